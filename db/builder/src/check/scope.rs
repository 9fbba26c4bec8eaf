//! Where an expression stands.

/// Where an expression stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuardContext {
    /// Anything may stand here.
    Code,
    /// In a guard, or in an index of an index.
    Guard,
    /// In a closure there: what leaves the closure does not leave the guard.
    Closure,
}

/// What stands around an expression.
pub(super) enum EnclosingScope {
    /// The arguments of a call.
    Arguments,
    /// A loop, and its label.
    Loop(Option<String>),
    /// A block with a label.
    Block(String),
}
