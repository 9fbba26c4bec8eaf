//! A tenant's extension: a [`ExtensionLibrary`] of checked machine code, loaded, with a name, a version, a budget and
//! counters.
#![deny(unsafe_code)]

mod callee;
mod elf;
mod extension;
mod library;
mod library_code;
pub mod limits;
mod load_error;
mod sandbox_module;
mod trust;

pub use callee::{CalleeRefusal, callee_arguments};
pub use extension::{
    Budget, BudgetOverride, CallThrottle, ExtensionCounters, InvocationOutcome, InvocationTotals, LoadedExtension,
    TransactionCounts, kill_text,
};
pub use library::{ExtensionLibrary, LibraryVtable};
pub use library_code::LibraryCode;
pub use load_error::LoadError;
pub use sandbox_module::SandboxModule;
pub use sandstorm_net::rpc::KillCause;
pub use sandstorm_net::{CodeOrigin, CodePolicy, CodeTier};
pub use trust::CallTrust;

/// Checks a library's file, without loading it.
///
/// # Errors
/// The fault that was found in it.
#[cfg(any(test, feature = "testing"))]
pub fn check_elf(file: &[u8]) -> Result<(), LoadError> {
    elf::check(file).map(drop)
}
