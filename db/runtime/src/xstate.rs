//! The processor's extended registers (x87, SSE, AVX, AVX-512 and later ones): the components that a switched-out
//! invocation keeps, and their bytes. Found once, from CPUID and XCR0.
//!
//! Guarantees: [`XState::bytes`] is room for everything that XSAVE writes under [`XState::mask`]; [`XState::initial`]
//! points at an image that never changes and with which XRSTOR sets every register of the mask to its initial value.
#![allow(unsafe_code)]

use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::io;
use std::sync::OnceLock;

use super::mapping::GuardedMapping;
use crate::limits::XSTATE_MAX_BYTES;

/// State components that are not the code's own registers: protection keys, and the tiles, which a process has to ask
/// for.
const EXCLUDED_COMPONENTS: u64 = 1 << 9 | 1 << 17 | 1 << 18;
/// The beginning of the area, whatever is saved: the legacy region and the header.
const LEGACY_BYTES: usize = 512 + 64;
/// The offset of MXCSR in the legacy region, and a new program's value of it: all exceptions masked.
const MXCSR_OFFSET: usize = 24;
const MXCSR: u32 = 0x1f80;

/// The operands of XSAVE and XRSTOR.
#[derive(Clone, Copy, Debug)]
pub(super) struct XState {
    /// The components that are saved.
    pub(super) mask: u64,
    /// The bytes that they take, a multiple of 64.
    pub(super) bytes: usize,
    /// The image of initial registers; aligned to 64 and as long.
    pub(super) initial: usize,
}

impl XState {
    /// Returns the features of this processor.
    ///
    /// # Errors
    /// `Unsupported` if it cannot save its registers, or needs more room for them than a stack has to spare.
    pub(super) fn of_this_processor() -> io::Result<XState> {
        static FOUND: OnceLock<Option<XState>> = OnceLock::new();
        let found = FOUND.get_or_init(detect);
        found.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::Unsupported,
                "the processor, or the system, has no XSAVE (or one that takes more than 16 KiB): extensions cannot be \
                 switched out here",
            )
        })
    }
}

fn detect() -> Option<XState> {
    /// CPUID leaf 1, ECX: the system has switched XSAVE and XGETBV on.
    const OSXSAVE: u32 = 1 << 27;
    if __cpuid(1).ecx & OSXSAVE == 0 {
        return None;
    }
    // SAFETY: OSXSAVE says that the instruction may be used.
    let mask = unsafe { xcr0() } & !EXCLUDED_COMPONENTS;
    let mut bytes = LEGACY_BYTES;
    for component in (2..63).filter(|component| mask & 1 << component != 0) {
        let place = __cpuid_count(0xd, component);
        bytes = bytes.max((place.ebx + place.eax) as usize);
    }
    let bytes = bytes.next_multiple_of(64);
    if bytes > XSTATE_MAX_BYTES {
        return None;
    }
    let image = GuardedMapping::new(bytes, 0).ok()?;
    let initial = image.low();
    // SAFETY: within the mapping, which is ours and stays: the process uses it until it ends.
    unsafe { initial.add(MXCSR_OFFSET).cast::<u32>().write(MXCSR) };
    std::mem::forget(image);
    Some(XState { mask, bytes, initial: initial.addr() })
}

/// Returns the components that the system has switched on.
///
/// # Safety
/// The processor has XGETBV, and the system has switched it on.
#[target_feature(enable = "xsave")]
unsafe fn xcr0() -> u64 {
    // SAFETY: this function's contract; register 0 is always there.
    unsafe { _xgetbv(0) }
}
