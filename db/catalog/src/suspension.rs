//! Extensions whose calls are refused until somebody resumes them, and what is said about that.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::error::DirectoryError;
use super::extension_loading::unknown_extension;
use super::tenant_ref::TenantRef;
use super::{Directory, TenantView};

/// Why and since when calls of an extension are answered `Suspended`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspension {
    /// Since when, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// What callers are told: since when, why, how to lift it.
    pub text: Box<str>,
    /// Whether only the operator lifts it; it stays when the extension is unloaded and pushed again.
    pub binding: bool,
}

impl Suspension {
    /// A suspension of `extension` from `since_ms` on; `why` is the rest of a sentence.
    pub fn new(extension: &str, since_ms: u64, why: &str) -> Suspension {
        let since = format_utc(since_ms);
        let text =
            format!("the extension is suspended since {since} UTC: {why}; `sandstorm ext resume {extension}` lifts it");
        Suspension { since_ms, text: text.into(), binding: false }
    }

    /// One that the operator has asked for, and that only he lifts.
    pub fn binding(since_ms: u64) -> Suspension {
        let since = format_utc(since_ms);
        let text = format!("the operator has suspended the extension since {since} UTC; only the operator lifts that");
        Suspension { since_ms, text: text.into(), binding: true }
    }
}

fn insert_suspension(view: &mut TenantView, extension: &str, suspension: Suspension) -> Result<(), DirectoryError> {
    if !view.extensions.contains_key(extension) {
        return Err(unknown_extension(view, extension));
    }
    let binds_more = |old: &Arc<Suspension>| suspension.binding && !old.binding;
    if view.suspended.get(extension).is_none_or(binds_more) {
        view.suspended.insert(extension.into(), Arc::new(suspension));
    }
    Ok(())
}

impl TenantView {
    /// Whether calls of the extension of that name are to be answered `Suspended`.
    #[inline]
    pub fn is_suspended(&self, name: &str) -> bool {
        self.suspension(name).is_some()
    }

    /// Why calls of the extension of that name are refused, if they are.
    #[inline]
    pub fn suspension(&self, name: &str) -> Option<&Suspension> {
        // Asked on every call; mostly nothing is suspended, and then nothing is to be hashed.
        if self.suspended.is_empty() { None } else { self.suspended.get(name).map(|suspension| &**suspension) }
    }
}

impl Directory {
    /// Suspends an extension (its calls are answered `Suspended` from now on) or resumes it. What the operator has
    /// suspended stays so for anybody else who resumes it.
    ///
    /// # Errors
    /// No such tenant or extension.
    pub fn set_suspended<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: &str,
        suspended: bool,
        by_operator: bool,
    ) -> Result<(), DirectoryError> {
        if suspended {
            let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
            let suspension = match by_operator {
                true => Suspension::binding(now_ms),
                false => Suspension::new(extension, now_ms, "the tenant asked for that"),
            };
            return self.suspend(tenant, extension, suspension);
        }
        self.change_view(tenant, |_, view| {
            if !view.extensions.contains_key(extension) {
                return Err(unknown_extension(view, extension));
            }
            if by_operator || !view.suspended.get(extension).is_some_and(|suspension| suspension.binding) {
                view.suspended.remove(extension);
            }
            Ok(())
        })
    }

    /// Suspends an extension; one that is suspended stays so, for the reason that it was, unless that binds less.
    ///
    /// # Errors
    /// No such tenant or extension.
    pub fn suspend<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: &str,
        suspension: Suspension,
    ) -> Result<(), DirectoryError> {
        self.change_view(tenant, |_, view| insert_suspension(view, extension, suspension))
    }

    /// The same where the server does it by itself: whether it can be kept or not.
    ///
    /// # Errors
    /// No such tenant or extension.
    pub(super) fn suspend_by_policy<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        extension: &str,
        suspension: Suspension,
    ) -> Result<(), DirectoryError> {
        self.restrict_view(tenant, |_, view| insert_suspension(view, extension, suspension))
    }
}

/// Milliseconds since 1970 as `2026-01-31 23:59:59`.
pub fn format_utc(at_ms: u64) -> String {
    let seconds = at_ms / 1000;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Days since 1 March of year 0, in eras of 400 years: leap days then come last.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_shifted + 2) / 5 + 1;
    let month = if month_shifted < 10 { month_shifted + 3 } else { month_shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", of_day / 3600, of_day / 60 % 60, of_day % 60)
}
