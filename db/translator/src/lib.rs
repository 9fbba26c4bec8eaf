//! Writes a WebAssembly module down as Rust whose machine code stays within the module's memory.
//!
//! Each access to memory is one instruction whose address is a 32-bit register (plus a constant) behind the `gs` base.
//! Indirect calls and jumps become comparisons and direct ones. The result is compiled as any crate; nothing of this
//! has to be trusted, since [`sandstorm_sandbox::verify`] proves each of these properties of the machine code.
//!
//! A module may use WebAssembly 1.0 with the extensions that compilers use today: sign extension, conversions that
//! saturate, `memory.copy` and `memory.fill`, several results, mutable globals that are exported.
#![forbid(unsafe_code)]

mod body;
mod control;
mod emit;
mod error;
pub mod limits;
mod memory;
mod module;
mod names;
mod numeric;
mod rust_types;
mod source_lines;
#[cfg(feature = "testing")]
pub mod testing;

pub use error::{RefusalReason, TranslateError};
use sandstorm_sandbox::ModuleLayout;
pub use source_lines::{SourceLines, split_debug_sections};

/// A module, written down as Rust.
#[derive(Clone, Debug)]
pub struct Translation {
    /// The text of a crate that exports `sandstorm_start` and `sandstorm_poll`.
    pub rust: String,
    /// What the module's memory and variables look like at the start.
    pub layout: ModuleLayout,
    /// Where the text's lines come from.
    pub source: SourceLines,
}

/// Translates a module.
///
/// # Errors
/// What the module has that is not allowed, with its offset.
///
/// # Examples
/// ```
/// // The smallest module there is has nothing to call.
/// let error = sandstorm_translator::translate(b"\0asm\x01\0\0\0").unwrap_err();
/// assert!(error.to_string().contains("sandstorm_start"));
/// ```
pub fn translate(wasm: &[u8]) -> Result<Translation, TranslateError> {
    let facts = module::ModuleFacts::read(wasm)?;
    let (rust, source) = emit::module_text(&facts)?;
    Ok(Translation { rust, layout: facts.layout, source })
}
