//! The Rust types of WebAssembly's values.

use wasmparser::ValType;

use crate::error::{TranslateError, refuse};

/// The Rust type of a value.
pub(crate) fn rust_type(kind: ValType) -> Result<&'static str, TranslateError> {
    match kind {
        ValType::I32 => Ok("u32"),
        ValType::I64 => Ok("u64"),
        ValType::F32 => Ok("f32"),
        ValType::F64 => Ok("f64"),
        ValType::V128 | ValType::Ref(_) => refuse("it has a value that is no number"),
    }
}
