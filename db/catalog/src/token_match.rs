//! Which of its tokens a tenant has shown.

/// Which of a tenant's tokens was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenMatch {
    /// The one that it has now.
    Current,
    /// The one before, within its grace.
    Old,
}
