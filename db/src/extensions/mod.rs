//! Tenants' compiled code: loading it, running it next to the data, ending it when it exceeds its budget.
//!
//! The core concepts:
//! - A [`Library`] is checked machine code; an [`Extension`] is a tenant's name and version for it; an invocation is one
//!   call of it.

mod elf;
mod extension;
mod load;

pub use extension::{Budget, BudgetOverride, Extension, ExtensionCounts, ExtensionStats, KillCause};
pub use load::{Library, LoadError};
