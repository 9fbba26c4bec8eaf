//! In the place of shared memory where there is no DPDK.

use super::backend_kind::{BackendKind, DriverBackend};
use sandstorm_terminal::output::CliError;

/// None.
pub(super) struct MemifBackends;

impl MemifBackends {
    /// There are none.
    pub(super) fn start() -> Result<MemifBackends, CliError> {
        Err(CliError::new(sandstorm_control::config::WITHOUT_DPDK))
    }

    /// There is none.
    pub(super) fn take(&mut self, _kind: BackendKind) -> Result<DriverBackend, CliError> {
        Err(CliError::new(sandstorm_control::config::WITHOUT_DPDK))
    }
}
