//! A tenant's extension: a [`Library`] of checked machine code, loaded, with a name, a version, a budget and counters.
#![deny(unsafe_code)]

mod elf;
mod extension;
pub mod limits;
mod load;

pub use extension::{
    Brake, Budget, BudgetOverride, Extension, ExtensionCounts, ExtensionStats, Outcome, Transactions, kill_text,
};
pub use load::{Library, LoadError, Vtable};
pub use sandstorm_net::rpc::KillCause;

/// Checks a library's file, without loading it.
///
/// # Errors
/// What is wrong with it.
#[cfg(any(test, feature = "testing"))]
pub fn check_elf(file: &[u8]) -> Result<(), LoadError> {
    elf::check(file).map(drop)
}
