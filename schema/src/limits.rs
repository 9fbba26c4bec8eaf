//! Limits of this crate: name, value, unit, reason.

/// Bytes of a schema as JSON, at most: it is part of each artifact's header, which servers keep in memory.
pub const SCHEMA_BYTES: usize = 64 << 10;
/// Functions of an extension, at most: a call looks for its own among them.
pub const FUNCTIONS: usize = 64;
/// Named types of an extension, at most.
pub const NAMED_TYPES: usize = 128;
/// Fields of a struct, at most.
pub const FIELDS: usize = 128;
/// Variants of an enum, at most: their number is a byte.
pub const VARIANTS: usize = 256;
/// Types within types, at most: what reads a value goes so deep on its stack.
pub const NESTING: usize = 16;
/// Bytes of a description that a schema keeps of a type, field or function: its first lines.
pub const DESCRIPTION_BYTES: usize = 400;
/// Bytes of a name, at most.
pub const NAME_BYTES: usize = 64;
/// Bytes of one value on the wire, at most: those of an answer of our own protocol.
pub const VALUE_BYTES: usize = 8 << 20;
