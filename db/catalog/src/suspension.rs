//! Extensions whose calls are refused until they are resumed, and the texts for their callers.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

use super::error::DirectoryError;
use super::extension_loading::unknown_extension;
use super::tenant_ref::TenantRef;
use super::{Directory, TenantView};

/// The reason and beginning of a suspension: calls of the extension are answered `Suspended`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspension {
    /// Its beginning, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// The text for callers: since when, why, how to lift it.
    pub text: Box<str>,
    /// Whether only the operator lifts it; it also survives an unload and a new push.
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

    /// A suspension by the operator, which only the operator lifts.
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

    /// The suspension of the extension of that name, if there is one.
    #[inline]
    pub fn suspension(&self, name: &str) -> Option<&Suspension> {
        // Checked on every call; mostly no extension is suspended, and then no name needs hashing.
        if self.suspended.is_empty() { None } else { self.suspended.get(name).map(|suspension| &**suspension) }
    }
}

impl Directory {
    /// Suspends an extension (its calls are answered `Suspended` from now on) or resumes it. A suspension by the
    /// operator stays when any other caller resumes it.
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

    /// Suspends an extension. An older suspension stays, with its reason, unless it is less binding.
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

    /// The same for a suspension by the server: whether or not it can be persisted.
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
