//! The types of values and functions in Rust.

use std::fmt::Write;

use wasmparser::{FuncType, ValType};

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

/// The parameters and the first result of a function, as Rust; each parameter is `l` and its number.
pub(crate) fn rust_signature(kind: &FuncType) -> Result<String, TranslateError> {
    let mut text = String::from("(");
    for (index, parameter) in kind.params().iter().enumerate() {
        let _ = write!(text, "mut l{index}: {}, ", rust_type(*parameter)?);
    }
    text.push(')');
    if let Some(result) = kind.results().first() {
        let _ = write!(text, " -> {}", rust_type(*result)?);
    }
    Ok(text)
}
