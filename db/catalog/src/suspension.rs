//! Extensions whose calls are refused until somebody resumes them, and what is said about that.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

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

/// Milliseconds since 1970 as `2026-01-31 23:59:59`; the end of the year 9999 for all that come later.
pub fn format_utc(at_ms: u64) -> String {
    let at = i64::try_from(at_ms).ok().and_then(|at_ms| Timestamp::from_millisecond(at_ms).ok());
    at.unwrap_or(Timestamp::MAX).strftime("%F %T").to_string()
}
