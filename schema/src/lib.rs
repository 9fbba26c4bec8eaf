//! The types of an extension's functions: what each takes and gives, the bytes of both, and their JSON.
//!
//! A function's arguments are its fingerprint (u32), then one value; its reply is one value. All little-endian:
//!
//! | type | bytes |
//! |---|---|
//! | `bool` | 1: 0 or 1 |
//! | `u8` `u16` `u32` `u64` `i8` … `i64` `f32` `f64` | the number |
//! | `String`, `bytes` | length u32, then UTF-8 or bytes |
//! | `Option<T>` | 1: 0 without a value; or 1, then the value |
//! | `Vec<T>` | count u32, then the values |
//! | a struct | its fields in their order |
//! | an enum | 1: the number of the variant, from 0; then what is in it, in its order |
//! | `()` | none |
//!
//! docs/types.md is the page for authors of clients.
#![forbid(unsafe_code)]

mod blob;
mod change;
mod enum_variant;
mod extension_schema;
mod generate;
mod json;
pub mod limits;
mod struct_field;
mod value_reader;
mod value_type;

pub use blob::Blob;
pub use change::{CHANGE, CHANGE_OP, ChangeArgument, change_types};
pub use enum_variant::{EnumVariant, VariantPayload};
pub use extension_schema::{
    EnumType, ExtensionSchema, FunctionSchema, InvalidSchema, NamedType, StructType, TypeBody, fingerprint,
};
pub use generate::ClientLanguage;
pub use json::SchemaError;
pub use struct_field::StructField;
pub use value_type::ValueType;
