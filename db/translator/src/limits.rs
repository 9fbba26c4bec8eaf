//! Limits of this crate: name, default, unit, reason. What a module may ask of the compiler is bounded here; the
//! compiler's own limits bound the rest.

/// Bytes of a module. Its code is written down as Rust ten times as long, and compiled.
pub const MODULE_MAX_BYTES: usize = 4 << 20;
/// Bytes of all functions together: the compiler takes about a second for 100 KiB.
pub const CODE_MAX_BYTES: usize = 1 << 20;
/// Bytes of one function: the compiler's time grows faster than a function does.
pub const FUNCTION_MAX_BYTES: usize = 128 << 10;
/// Functions of a module.
pub const FUNCTIONS_MAX: usize = 10_000;
/// Local variables of a function.
pub const LOCALS_MAX: usize = 2_000;
/// Parameters of a function.
pub const PARAMETERS_MAX: usize = 32;
/// Types of functions: each is compared with each function that can be called indirectly.
pub const TYPES_MAX: usize = 2_000;
/// Blocks within each other: each is a level of nesting in Rust.
pub const NESTING_MAX: usize = 500;
/// Entries of the table of functions that can be called indirectly.
pub const TABLE_MAX: usize = 10_000;
/// Bytes of the Rust that a module is written down as: the compiler reads no longer file. A few bytes of a module may
/// stand for many lines, such as a number of local variables.
pub const TEXT_MAX_BYTES: usize = 64 << 20;
