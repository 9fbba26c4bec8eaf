//! The token of a tenant that was presented: current or old.

/// The token of a tenant that was presented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenMatch {
    /// The current one.
    Current,
    /// The previous one, within its grace period.
    Old,
}
