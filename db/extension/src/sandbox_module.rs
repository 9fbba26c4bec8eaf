//! Loading a sandboxed extension's code.
//!
//! Guarantees: code is only mapped after [`sandstorm_sandbox::verify`] has proven it to stay within its memory, and the
//! bytes that were verified are the bytes that are mapped. No page is writable and executable at once. The code is
//! unmapped when the value is dropped.
#![allow(unsafe_code)]

use std::ptr::{NonNull, null_mut};

use sandstorm_sandbox::layout::PAGE_BYTES;
use sandstorm_sandbox::{ModuleLayout, SandboxImage, verify};

use super::load_error::LoadError;
use crate::limits::{FUTURE_MAX_ALIGN_BYTES, FUTURE_MAX_BYTES};

/// The code of a sandboxed extension, mapped, and what its memory looks like at the start.
#[derive(Debug)]
pub struct SandboxModule {
    layout: ModuleLayout,
    mapping: CodeMapping,
    start: usize,
    poll: usize,
    /// Where the code lies in the image.
    code: std::ops::Range<u64>,
}

impl SandboxModule {
    /// Reads, verifies and maps an image.
    ///
    /// # Errors
    /// `Malformed`, `Refused`, `OtherApi` or `System`, with what was found.
    pub(super) fn load(bytes: &[u8], api_fingerprint: u64) -> Result<SandboxModule, LoadError> {
        check_processor()?;
        let image = SandboxImage::decode(bytes).map_err(|error| LoadError::Malformed(error.0.into()))?;
        let layout = &image.layout;
        if layout.api_fingerprint != 0 && layout.api_fingerprint != api_fingerprint {
            return Err(LoadError::OtherApi { library: layout.api_fingerprint, server: api_fingerprint });
        }
        let (size, align) = (layout.future_size as usize, layout.future_align.max(1) as usize);
        if size > FUTURE_MAX_BYTES || !align.is_power_of_two() || align > FUTURE_MAX_ALIGN_BYTES {
            return Err(LoadError::Refused(format!(
                "its future takes {size} bytes aligned to {align}; at most {FUTURE_MAX_BYTES} bytes aligned to \
                 {FUTURE_MAX_ALIGN_BYTES} are allowed: box large locals"
            )));
        }
        verify(&image).map_err(|error| LoadError::Refused(error.to_string()))?;
        let mapping = CodeMapping::new(&image)?;
        let first = mapping.first.addr().get() + image.code_at as usize;
        let (start, poll) = (first + image.start as usize, first + image.poll as usize);
        let code = u64::from(image.code_at)..image.mapped_bytes() as u64;
        Ok(SandboxModule { layout: image.layout, mapping, start, poll, code })
    }

    /// What the module's memory and variables look like at the start.
    pub fn layout(&self) -> &ModuleLayout {
        &self.layout
    }

    /// The addresses of `sandstorm_start` and `sandstorm_poll`.
    pub(super) fn entries(&self) -> (usize, usize) {
        (self.start, self.poll)
    }

    /// Where the image begins in memory, and where its code lies in it.
    pub(super) fn code(&self) -> (usize, std::ops::Range<u64>) {
        (self.mapping.first.addr().get(), self.code.clone())
    }

    /// Returns whether an address lies in the module's code.
    pub fn has_code_at(&self, address: usize) -> bool {
        let first = self.mapping.first.addr().get();
        (first..first + self.mapping.len).contains(&address)
    }
}

/// Refuses a processor or kernel that sandboxed code cannot run on.
fn check_processor() -> Result<(), LoadError> {
    /// Bit of `AT_HWCAP2`: programs may change the base of `gs`.
    const HWCAP2_FSGSBASE: u64 = 1 << 1;
    // SAFETY: reads the auxiliary vector.
    let capabilities = unsafe { libc::getauxval(libc::AT_HWCAP2) };
    if capabilities & HWCAP2_FSGSBASE == 0 || !std::arch::is_x86_feature_detected!("sse4.1") {
        return Err(LoadError::Refused(
            "sandboxed code needs a processor with FSGSBASE and SSE4.1 and Linux 5.9 or newer; use the native tier for \
             tenants that you trust"
                .into(),
        ));
    }
    Ok(())
}

/// Constants and code in memory.
#[derive(Debug)]
struct CodeMapping {
    first: NonNull<u8>,
    len: usize,
}

// SAFETY: memory that nothing writes to after `new`.
unsafe impl Send for CodeMapping {}
// SAFETY: as above.
unsafe impl Sync for CodeMapping {}

impl CodeMapping {
    fn new(image: &SandboxImage) -> Result<CodeMapping, LoadError> {
        let failed = |what| LoadError::system(what, std::io::Error::last_os_error());
        let len = image.mapped_bytes().next_multiple_of(PAGE_BYTES);
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping where the kernel chooses.
        let first = unsafe { libc::mmap(null_mut(), len, access, flags, -1, 0) };
        if first == libc::MAP_FAILED {
            return Err(failed("mapping its code"));
        }
        let Some(first) = NonNull::new(first.cast::<u8>()) else { return Err(failed("mapping its code")) };
        let mapping = CodeMapping { first, len };
        let (constants_at, code_at) = (image.constants_at as usize, image.code_at as usize);
        // SAFETY: constants and code lie within the new mapping one behind the other (checked when the image was
        // decoded); the rest of the last page becomes instructions that trap.
        unsafe {
            first
                .add(constants_at)
                .copy_from_nonoverlapping(NonNull::from(&*image.constants).cast(), image.constants.len());
            first.add(code_at).write_bytes(0xcc, len - code_at);
            first.add(code_at).copy_from_nonoverlapping(NonNull::from(&*image.code).cast(), image.code.len());
            let protect = |from: usize, to: usize, access| {
                to == from || libc::mprotect(first.as_ptr().add(from).cast(), to - from, access) == 0
            };
            if !protect(0, code_at, libc::PROT_READ) || !protect(code_at, len, libc::PROT_READ | libc::PROT_EXEC) {
                return Err(failed("making its code executable"));
            }
        }
        Ok(mapping)
    }
}

impl Drop for CodeMapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, whose code no thread runs any more: each invocation holds the module.
        unsafe { libc::munmap(self.first.as_ptr().cast(), self.len) };
    }
}
