//! The processor's extended registers (x87, SSE, AVX, AVX-512 and later ones): the components that a switched-out
//! invocation keeps, and their bytes. Found once, from CPUID and XCR0.
//!
//! Guarantees: [`XState::bytes`] is room for everything that XSAVE writes under [`XState::mask`]; [`XState::initial`]
//! points at an image that never changes and with which XRSTOR sets every register of the mask to its initial value.
//! Where [`XState::vectors`] says so, the processor tells which components are in use, and has the instructions that
//! clear those of [`VECTOR_COMPONENTS`].
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
pub(super) const MXCSR_OFFSET: usize = 24;
const MXCSR: u32 = 0x1f80;

/// The components of the vector and mask registers: SSE, AVX, and the three of AVX-512.
pub(super) const VECTOR_COMPONENTS: u32 = 1 << 1 | 1 << 2 | AVX512_COMPONENTS;
const AVX512_COMPONENTS: u32 = 1 << 5 | 1 << 6 | 1 << 7;

/// Values of [`XState::vectors`]: only XRSTOR is known to clear all; there are the registers of AVX; those of AVX-512.
pub(super) const VECTORS_UNKNOWN: u32 = 0;
pub(super) const VECTORS_AVX: u32 = 1;
pub(super) const VECTORS_AVX512: u32 = 2;

/// The operands of XSAVE and XRSTOR.
#[derive(Clone, Copy, Debug)]
pub(super) struct XState {
    /// The components that are saved.
    pub(super) mask: u64,
    /// The bytes that they take, a multiple of 64.
    pub(super) bytes: usize,
    /// The image of initial registers; aligned to 64 and as long.
    pub(super) initial: usize,
    /// How the vector and mask registers can be cleared without XRSTOR, which always takes its 283 cycles.
    pub(super) vectors: u32,
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
    Some(XState { mask, bytes, initial: initial.addr(), vectors: vectors(mask) })
}

/// How the vector registers of such components can be cleared.
fn vectors(mask: u64) -> u32 {
    /// CPUID leaf 0xd, 1, EAX: XGETBV tells which components are in use.
    const XGETBV_IN_USE: u32 = 1 << 2;
    let tells_use = __cpuid_count(0xd, 1).eax & XGETBV_IN_USE != 0;
    match mask as u32 & VECTOR_COMPONENTS {
        VECTOR_COMPONENTS if tells_use => VECTORS_AVX512,
        found if tells_use && found == VECTOR_COMPONENTS & !AVX512_COMPONENTS => VECTORS_AVX,
        _ => VECTORS_UNKNOWN,
    }
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
