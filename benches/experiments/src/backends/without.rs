//! The stand-in for shared memory in a build without DPDK.

use super::backend_kind::{BackendKind, DriverBackend};
use sandstorm_terminal::output::CliError;

/// No backends.
pub(super) struct MemifBackends;

impl MemifBackends {
    /// Starts none.
    pub(super) fn start() -> Result<MemifBackends, CliError> {
        Err(CliError::new(sandstorm_control::config::WITHOUT_DPDK))
    }

    /// Always fails.
    pub(super) fn take(&mut self, _kind: BackendKind) -> Result<DriverBackend, CliError> {
        Err(CliError::new(sandstorm_control::config::WITHOUT_DPDK))
    }
}
