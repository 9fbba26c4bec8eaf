//! Two ports of one process that are connected.
//!
//! Guarantees: the rings between them stay for as long as the process lives, whatever becomes of the ports.
#![allow(unsafe_code)]

use super::device::shared_eal;
use super::eal::Eal;
use super::error::{DpdkErrno, DpdkError};
use crate::limits::DPDK_DESCRIPTORS;
use sandstorm_dpdk_sys as sys;
use std::ffi::CString;
use std::sync::Arc;

/// Two ports with a queue each, which are connected: what is sent at one end arrives at the other, in the buffers that
/// it was sent in, so that nothing is copied on the way. For measuring what a server does by itself.
#[derive(Debug)]
pub struct RingPair {
    ends: [String; 2],
    /// DPDK stays as it was started.
    _eal: Arc<Eal>,
}

impl RingPair {
    /// Starts DPDK with these arguments, if it does not run with them, and connects two new ports. A name (of letters
    /// and digits, 20 at most) is used once in a process.
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

    /// The names of both devices.
    pub fn ends(&self) -> &[String; 2] {
        &self.ends
    }
}
