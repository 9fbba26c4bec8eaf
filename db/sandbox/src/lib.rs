//! Sandboxed extensions: machine code that a verifier has proven to stay within its own memory.
//!
//! - [`layout`]: where an invocation's memory lies.
//! - [`HostFunction`]: what code may call of the host.
//! - [`SandboxImage`]: what the builder signs and the server loads.
//! - [`code_map`]: what machine code of either tier was made of, line by line.
//! - [`verify()`]: the proof. Neither the compiler that made the code nor the translator before it has to be trusted.
#![forbid(unsafe_code)]

pub mod code_map;
pub mod guest_types;
mod host_function;
mod image;
pub mod layout;
pub mod limits;
mod verifier;

pub use host_function::{HostFunction, IMPORT_MODULE, MAX_HOST_PARAMETERS, MEMORY_PIECE_BYTES, NumberType};
pub use image::{DataSegment, ImageError, ModuleLayout, SandboxImage};
pub use verifier::{Proof, VerifyError, verify};
