//! In the place of shared memory where there is no DPDK.

use super::over::{Backend, Kind};
use crate::cli::output::Failure;

/// None.
pub(super) struct Memifs;

impl Memifs {
    /// There are none.
    pub(super) fn start() -> Result<Memifs, Failure> {
        Err(Failure::new(sandstorm_control::config::WITHOUT_DPDK))
    }

    /// There is none.
    pub(super) fn take(&mut self, _kind: Kind) -> Result<Backend, Failure> {
        Err(Failure::new(sandstorm_control::config::WITHOUT_DPDK))
    }
}
