//! The memory of an extension's calls.

use sandstorm_accounts::limits::{INVOCATION_UNITS, MEMORY_UNIT_BYTES};
use sandstorm_extension::LoadedExtension;

/// Bytes that the tenant is charged for the calls of an extension that have begun and not ended: those that each begins
/// with, and what they have grown to beyond them.
pub(super) fn extension_memory_bytes(extension: &LoadedExtension) -> u64 {
    let begun_with = extension.stats.read().live() * u64::from(INVOCATION_UNITS);
    (begun_with + extension.memory.units()) * MEMORY_UNIT_BYTES as u64
}
