//! Two connected ports of one process.
//!
//! Guarantees: the rings between them stay for as long as the process lives, even after the ports are closed.
#![allow(unsafe_code)]

use super::device::shared_eal;
use super::eal::Eal;
use super::error::{DpdkErrno, DpdkError};
use crate::limits::DPDK_DESCRIPTORS;
use sandstorm_dpdk_sys as sys;
use std::ffi::CString;
use std::sync::Arc;

/// Two connected ports with a queue each. A frame sent at one end arrives at the other in the same buffer, without a
/// copy. For measuring a server by itself.
#[derive(Debug)]
pub struct RingPair {
    ends: [String; 2],
    /// Keeps DPDK running.
    _eal: Arc<Eal>,
}

impl RingPair {
    /// Starts DPDK with these arguments, unless it runs with them, and connects two new ports. A name (of letters and
    /// digits, 20 at most) is used once in a process.
    ///
    /// # Errors
    /// [`DpdkError`]: DPDK does not start, or does not connect them.
    pub fn new(arguments: &[String], name: &str) -> Result<RingPair, DpdkError> {
        let eal = shared_eal(arguments)?;
        let names = [format!("{name}a"), format!("{name}b")];
        let strings = names.each_ref().map(|name| CString::new(name.as_str()).unwrap_or_default());
        // SAFETY: DPDK is started, which `eal` shows; the names live during the call, which copies them.
        let failed = unsafe { sys::ss_cable(strings[0].as_ptr(), strings[1].as_ptr(), DPDK_DESCRIPTORS) };
        if failed < 0 {
            return Err(DpdkError::RingPair { name: name.to_owned(), code: DpdkErrno::of(failed) });
        }
        Ok(RingPair { ends: names.map(|name| format!("net_ring_{name}")), _eal: eal })
    }

    /// Returns the names of both devices.
    pub fn ends(&self) -> &[String; 2] {
        &self.ends
    }
}
