//! Pools of packet buffers.
//!
//! Guarantees: a pool is freed when its owner has gone, no port is open, and all of its buffers are back; otherwise it
//! stays (see [`super::eal`]).
#![allow(unsafe_code)]

use super::eal::{Eal, PoolPointer};
use super::error::{DpdkErrno, DpdkError};
use crate::limits::DPDK_POOL_CACHE;
use sandstorm_dpdk_sys as sys;
use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A pool of buffers for packets.
pub struct MbufPool {
    pointer: PoolPointer,
    eal: Arc<Eal>,
    buffers: u32,
}

impl std::fmt::Debug for MbufPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("buffers", &self.buffers).field("in_use", &self.in_use()).finish_non_exhaustive()
    }
}

/// The number that makes the pools' names unique.
static NEXT_POOL: AtomicU32 = AtomicU32::new(0);

fn next_name() -> CString {
    CString::new(format!("sandstorm{}", NEXT_POOL.fetch_add(1, Relaxed))).unwrap_or_default()
}

/// Returns the bytes of data room for frames of so many bytes.
fn data_bytes_per_mbuf(frame: u16) -> u16 {
    // SAFETY: a function of its argument alone.
    u16::try_from(unsafe { sys::ss_pool_room(frame) }).unwrap_or(u16::MAX)
}

impl MbufPool {
    /// Creates a pool of so many buffers, each for a frame of `frame` bytes, near the memory node `socket` (-1: any).
    ///
    /// # Errors
    /// [`DpdkError::Pool`] when there is no memory for it.
    pub fn new(eal: &Arc<Eal>, buffers: u32, frame: u16, socket: i32) -> Result<MbufPool, DpdkError> {
        MbufPool::make(eal, buffers, (0, data_bytes_per_mbuf(frame)), socket)
    }

    /// Like [`MbufPool::new`], with all buffers in one piece of memory, each right behind the one before.
    ///
    /// # Errors
    /// As [`MbufPool::new`], and when there is no such piece.
    pub fn contiguous(eal: &Arc<Eal>, buffers: u32, frame: u16, socket: i32) -> Result<MbufPool, DpdkError> {
        let (name, data_bytes) = (next_name(), data_bytes_per_mbuf(frame));
        // SAFETY: DPDK is started, which `eal` shows; the name is copied.
        let (made, code) = unsafe {
            let made = sys::ss_dense_pool(name.as_ptr(), buffers, DPDK_POOL_CACHE, data_bytes, socket);
            (made, sys::ss_errno())
        };
        MbufPool::of(eal, buffers, data_bytes, made, code)
    }

    /// Creates a pool of so many buffers without data room, each for shared bytes elsewhere.
    ///
    /// # Errors
    /// As [`MbufPool::new`].
    pub fn for_external_buffers(eal: &Arc<Eal>, buffers: u32, socket: i32) -> Result<MbufPool, DpdkError> {
        // SAFETY: a function without arguments.
        let private = unsafe { sys::ss_hold_bytes() };
        MbufPool::make(eal, buffers, (private, 0), socket)
    }

    fn make(
        eal: &Arc<Eal>,
        buffers: u32,
        (private, data_bytes): (u16, u16),
        socket: i32,
    ) -> Result<MbufPool, DpdkError> {
        let name = next_name();
        // SAFETY: DPDK is started, which `eal` shows; the name is copied.
        let (made, code) = unsafe {
            let made =
                sys::rte_pktmbuf_pool_create(name.as_ptr(), buffers, DPDK_POOL_CACHE, private, data_bytes, socket);
            (made, sys::ss_errno())
        };
        MbufPool::of(eal, buffers, data_bytes, made, code)
    }

    fn of(
        eal: &Arc<Eal>,
        buffers: u32,
        data_bytes: u16,
        made: *mut sys::rte_mempool,
        code: i32,
    ) -> Result<MbufPool, DpdkError> {
        let data_bytes = u32::from(data_bytes);
        let pointer =
            NonNull::new(made).ok_or(DpdkError::Pool { mbufs: buffers, data_bytes, code: DpdkErrno(code) })?;
        Ok(MbufPool { pointer: PoolPointer(pointer), eal: Arc::clone(eal), buffers })
    }

    /// Returns the number of all buffers.
    pub fn buffers(&self) -> u32 {
        self.buffers
    }

    /// Returns the number of buffers in use, in queues or by owners of packets. An estimate while other threads use the
    /// pool.
    pub fn in_use(&self) -> u32 {
        // SAFETY: the pool lives as long as its owner.
        unsafe { sys::rte_mempool_in_use_count(self.pointer.0.as_ptr()) }
    }

    pub(super) fn pointer(&self) -> *mut sys::rte_mempool {
        self.pointer.0.as_ptr()
    }
}

impl Drop for MbufPool {
    fn drop(&mut self) {
        self.eal.leave(self.pointer);
    }
}
