//! The reason that calls of an extension are refused, and the text for their callers.

use jiff::Timestamp;

use super::TenantView;

/// The reason and beginning of a suspension: calls of the extension are answered `Suspended`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspension {
    /// Its beginning, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// The text for callers: since when, why, how to lift it.
    pub text: Box<str>,
    /// Whether only the operator lifts it; it also survives an unload and a new push.
    pub binding: bool,
    /// Whether the loaded version is the reason, so that the next version that is loaded lifts it, and an unload. The
    /// operator can lift it too, and the tenant cannot.
    pub until_replaced: bool,
}

impl Suspension {
    /// A suspension of `extension` from `since_ms` on; `why` is the rest of a sentence.
    pub fn new(extension: &str, since_ms: u64, why: &str) -> Suspension {
        let since = format_utc(since_ms);
        let text =
            format!("the extension is suspended since {since} UTC: {why}; `sandstorm ext resume {extension}` lifts it");
        Suspension { since_ms, text: text.into(), binding: false, until_replaced: false }
    }

    /// A suspension by the operator, which only the operator lifts.
    pub fn binding(since_ms: u64) -> Suspension {
        let since = format_utc(since_ms);
        let text = format!("the operator has suspended the extension since {since} UTC; only the operator lifts that");
        Suspension { since_ms, text: text.into(), binding: true, until_replaced: false }
    }

    /// A suspension of the loaded version; `why` is the rest of a sentence.
    pub fn until_replaced(since_ms: u64, why: &str) -> Suspension {
        let since = format_utc(since_ms);
        let text = format!(
            "the extension is suspended since {since} UTC: {why}; a new version that passes lifts that: push it again"
        );
        Suspension { since_ms, text: text.into(), binding: false, until_replaced: true }
    }

    /// What stands for a suspension of all extensions of a tenant that may have no code.
    pub(super) fn by_code_policy(tenant: &str) -> Suspension {
        let text = format!(
            "the tenant's code policy is none: its extensions are not called; the operator changes that with \
             `sandstorm tenant set {tenant} --code sandboxed`"
        );
        Suspension { since_ms: 0, text: text.into(), binding: true, until_replaced: false }
    }

    /// Whether a tenant may lift it.
    pub(super) fn is_tenants(&self) -> bool {
        !self.binding && !self.until_replaced
    }

    /// Which of two suspensions of one extension counts: the larger.
    pub(super) fn strength(&self) -> (bool, bool) {
        (self.binding, self.until_replaced)
    }
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
        if let Some(refusal) = self.tenant.code.refusal() {
            return Some(refusal);
        }
        // Checked on every call; mostly no extension is suspended, and then no name needs hashing.
        if self.suspended.is_empty() { None } else { self.suspended.get(name).map(|suspension| &**suspension) }
    }

    /// Lifts a suspension of the version that was loaded.
    pub(super) fn lift_until_replaced(&mut self, extension: &str) {
        if self.suspended.get(extension).is_some_and(|suspension| suspension.until_replaced) {
            self.suspended.remove(extension);
        }
    }
}

/// Milliseconds since 1970 as `2026-01-31 23:59:59`; the end of the year 9999 for all that come later.
pub fn format_utc(at_ms: u64) -> String {
    let at = i64::try_from(at_ms).ok().and_then(|at_ms| Timestamp::from_millisecond(at_ms).ok());
    at.unwrap_or(Timestamp::MAX).strftime("%F %T").to_string()
}
