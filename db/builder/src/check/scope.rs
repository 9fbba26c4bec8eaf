//! The surroundings of an expression.

/// Whether an expression stands in a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuardContext {
    /// Any expression is allowed here.
    Code,
    /// In a guard, or in an index of an index.
    Guard,
    /// In a closure within one: a jump out of the closure does not leave the guard.
    Closure,
}

/// A call, loop or block around an expression.
pub(super) enum EnclosingScope {
    /// The arguments of a call.
    Arguments,
    /// A loop, and its label.
    Loop(Option<String>),
    /// A block with a label.
    Block(String),
}
