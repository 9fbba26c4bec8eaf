//! A sandboxed extension as the builder signs it and the server loads it: verified code, its constants, and what its
//! memory holds at the start.
//!
//! Bytes, little-endian: magic (8), a table of fixed fields, then the lists in their order. The server trusts none of
//! them: the code is verified when it is loaded, and the rest only fills the invocation's own memory.

use crate::layout::{MAX_VARIABLES, MEMORY_MAX_BYTES, WASM_PAGE_BYTES};
use crate::limits::{
    CODE_MAX_BYTES, DATA_END_MAX_BYTES, DATA_MAX_BYTES, DATA_SEGMENTS_MAX, RESTORED_MAX_BYTES, STACK_MAX_BYTES,
};

/// First bytes of every image; the last is the format's version.
const MAGIC: [u8; 8] = *b"sandimg\x02";

/// Bytes that a module's memory holds at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataSegment {
    /// Where they begin.
    pub address: u32,
    /// Whether code that keeps to the language's rules may change them; if not, they are only restored when a call did
    /// not end well.
    pub writable: bool,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// What a module's memory and variables look like at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleLayout {
    /// Bytes of memory at the start, whole pages of WebAssembly.
    pub memory_bytes: u32,
    /// Bytes of memory that the module may grow to.
    pub memory_max_bytes: u32,
    /// The end of the module's data: the invocation's header, arguments and arena may begin there. 0: the module was
    /// not made by the server's builder.
    pub heap_base: u32,
    /// The bytes behind the data that are zero at the start and may be changed: `.bss`.
    pub zeroed: std::ops::Range<u32>,
    /// Bytes of the extension's future.
    pub future_size: u32,
    /// Alignment of the future, bytes.
    pub future_align: u32,
    /// Fingerprint of the API that the module was built against; 0: it was not made by the server's builder.
    pub api_fingerprint: u64,
    /// The variables' values, each as 64 bits.
    pub variables: Vec<u64>,
    /// The data.
    pub segments: Vec<DataSegment>,
}

/// A sandboxed extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxImage {
    /// Memory and variables.
    pub layout: ModuleLayout,
    /// The constants that code reads beside its own instructions, and where they begin relative to the image's start.
    pub constants_at: u32,
    /// See `constants_at`.
    pub constants: Vec<u8>,
    /// Where the code begins relative to the image's start: a whole number of pages, behind the constants.
    pub code_at: u32,
    /// The machine code.
    pub code: Vec<u8>,
    /// Where `sandstorm_start` and `sandstorm_poll` begin, relative to the code's start.
    pub start: u32,
    /// See `start`.
    pub poll: u32,
}

/// The reason why bytes are no image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a sandboxed extension: {0}")]
pub struct ImageError(pub &'static str);

impl SandboxImage {
    /// The image as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let layout = &self.layout;
        let mut out = MAGIC.to_vec();
        let fixed = [
            layout.memory_bytes,
            layout.memory_max_bytes,
            layout.heap_base,
            layout.zeroed.start,
            layout.zeroed.end,
            layout.future_size,
            layout.future_align,
            layout.variables.len() as u32,
            layout.segments.len() as u32,
            self.constants_at,
            self.constants.len() as u32,
            self.code_at,
            self.code.len() as u32,
            self.start,
            self.poll,
        ];
        fixed.iter().for_each(|field| out.extend(field.to_le_bytes()));
        out.extend(layout.api_fingerprint.to_le_bytes());
        layout.variables.iter().for_each(|value| out.extend(value.to_le_bytes()));
        for segment in &layout.segments {
            out.extend(segment.address.to_le_bytes());
            out.extend(u32::from(segment.writable).to_le_bytes());
            out.extend((segment.bytes.len() as u32).to_le_bytes());
            out.extend(&segment.bytes);
        }
        out.extend(&self.constants);
        out.extend(&self.code);
        out
    }

    /// Reads an image.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<SandboxImage, ImageError> {
        let mut rest = Reader(bytes);
        if rest.take(MAGIC.len())? != MAGIC {
            return Err(ImageError("it does not start as one of this version"));
        }
        let mut fixed = [0_u32; 15];
        for field in &mut fixed {
            *field = rest.u32()?;
        }
        let [memory_bytes, memory_max_bytes, heap_base, zeroed_start, zeroed_end, future_size, future_align, ..] =
            fixed;
        let [.., variables, segments, constants_at, constants_len, code_at, code_len, start, poll] = fixed;
        let api_fingerprint = rest.u64()?;
        if variables as usize > MAX_VARIABLES || segments as usize > DATA_SEGMENTS_MAX {
            return Err(ImageError("it has too many variables or data segments"));
        }
        let variables = (0..variables).map(|_| rest.u64()).collect::<Result<_, _>>()?;
        let segments = (0..segments).map(|_| rest.segment()).collect::<Result<_, _>>()?;
        let constants = rest.take(constants_len as usize)?.to_vec();
        let code = rest.take(code_len as usize)?.to_vec();
        if !rest.0.is_empty() {
            return Err(ImageError("it is longer than it says"));
        }
        let layout = ModuleLayout {
            memory_bytes,
            memory_max_bytes,
            heap_base,
            zeroed: zeroed_start..zeroed_end,
            future_size,
            future_align,
            api_fingerprint,
            variables,
            segments,
        };
        layout.check()?;
        let image = SandboxImage { layout, constants_at, constants, code_at, code, start, poll };
        image.check_parts()?;
        Ok(image)
    }

    /// Bytes of address space that the image takes.
    pub fn mapped_bytes(&self) -> usize {
        self.code_at as usize + self.code.len()
    }

    fn check_parts(&self) -> Result<(), ImageError> {
        let page = crate::layout::PAGE_BYTES as u32;
        let constants_end = self.constants_at as usize + self.constants.len();
        if !self.code_at.is_multiple_of(page) || constants_end > self.code_at as usize {
            return Err(ImageError("its constants and its code overlap"));
        }
        if self.code.is_empty() || self.mapped_bytes() > CODE_MAX_BYTES {
            return Err(ImageError("its code is empty or too long"));
        }
        Ok(())
    }
}

impl ModuleLayout {
    /// Checks that everything lies within the module's memory.
    ///
    /// # Errors
    /// The first thing that does not.
    pub fn check(&self) -> Result<(), ImageError> {
        let memory = self.memory_bytes as usize;
        if memory > MEMORY_MAX_BYTES
            || self.memory_max_bytes as usize > MEMORY_MAX_BYTES
            || self.memory_max_bytes < self.memory_bytes
            || !memory.is_multiple_of(WASM_PAGE_BYTES)
        {
            return Err(ImageError("its memory is longer than it may be, or not whole pages"));
        }
        if self.heap_base as usize > memory || self.zeroed.start > self.zeroed.end || self.zeroed.end as usize > memory
        {
            return Err(ImageError("its data ends outside of its memory"));
        }
        if self.variables.len() > MAX_VARIABLES || self.segments.len() > DATA_SEGMENTS_MAX {
            return Err(ImageError("it has too many variables or data segments"));
        }
        let end_of = |segment: &DataSegment| segment.address as usize + segment.bytes.len();
        if self.segments.iter().any(|segment| end_of(segment) > memory) {
            return Err(ImageError("its data lies outside of its memory"));
        }
        let total: usize = self.segments.iter().map(|segment| segment.bytes.len()).sum();
        if total > DATA_MAX_BYTES {
            return Err(ImageError("its constants and static variables together are longer than 512 KiB"));
        }
        if self.is_ours() { self.check_ours() } else { self.check_foreign() }
    }

    /// What the server relies on where it puts arguments, future and arena behind the data.
    fn check_ours(&self) -> Result<(), ImageError> {
        let heap_base = self.heap_base as usize;
        if heap_base > DATA_END_MAX_BYTES {
            return Err(ImageError("its stack and its data together are longer than they may be"));
        }
        let end_of = |segment: &DataSegment| segment.address as usize + segment.bytes.len();
        if self.segments.iter().any(|segment| end_of(segment) > heap_base) || self.zeroed.end as usize > heap_base {
            return Err(ImageError("its data lies behind where it says that it ends"));
        }
        let writable = self.segments.iter().filter(|segment| segment.writable);
        let restored: usize = writable.map(|segment| segment.bytes.len()).sum::<usize>() + self.zeroed.len();
        if restored > RESTORED_MAX_BYTES {
            return Err(ImageError("its static variables that may change take more than 128 KiB"));
        }
        Ok(())
    }

    fn check_foreign(&self) -> Result<(), ImageError> {
        if self.zeroed.is_empty() {
            return Ok(());
        }
        Err(ImageError("it names variables that are zero, which only a module of the server's builder does"))
    }

    /// Returns whether the module says that the server's builder made it: it has the allocator of `sandstorm_api`, and
    /// the server puts arguments, future and arena behind its data.
    pub fn is_ours(&self) -> bool {
        self.api_fingerprint != 0
    }

    /// Bytes of the stack at the bottom of a module's memory; 0: it has none that is known to be there.
    pub fn stack_bytes(&self) -> usize {
        // The linker makes the stack pointer the first variable, and puts the stack below all data.
        let pointer = self.variables.first().copied().unwrap_or(0);
        let data = self.segments.iter().map(|segment| segment.address).min().unwrap_or(self.heap_base);
        let zeroed = if self.zeroed.is_empty() { self.heap_base } else { self.zeroed.start };
        let below = data.min(zeroed).min(self.heap_base).min(STACK_MAX_BYTES as u32);
        if self.is_ours() && pointer <= u64::from(below) { pointer as usize } else { 0 }
    }
}

/// Reads from the front of some bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], ImageError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(ImageError("it is cut short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, ImageError> {
        self.take(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap_or_default()))
    }

    fn u64(&mut self) -> Result<u64, ImageError> {
        self.take(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()))
    }

    fn segment(&mut self) -> Result<DataSegment, ImageError> {
        let (address, writable, len) = (self.u32()?, self.u32()? != 0, self.u32()?);
        Ok(DataSegment { address, writable, bytes: self.take(len as usize)?.to_vec() })
    }
}

#[cfg(test)]
#[path = "image_tests.rs"]
mod tests;
