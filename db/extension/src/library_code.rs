//! Where a library's code is in memory, and what it was made of.
//!
//! Guarantees: bytes are only read where the library's own code is mapped, which stays as long as the library does.
#![allow(unsafe_code)]

use std::ops::Range;

use sandstorm_accounts::CodePlace;
use sandstorm_sandbox::code_map::CodeMap;

/// A library's code.
#[derive(Debug, Default)]
pub struct LibraryCode {
    /// Where address 0 of the library is in memory.
    base: usize,
    /// The addresses of the library that are code.
    ranges: Vec<Range<u64>>,
    /// `None`: it was built without one.
    map: Option<CodeMap>,
}

impl LibraryCode {
    pub(super) fn new(base: usize, ranges: impl IntoIterator<Item = Range<u64>>, map: Option<&[u8]>) -> LibraryCode {
        LibraryCode { base, ranges: ranges.into_iter().collect(), map: map.and_then(CodeMap::read) }
    }

    /// Of code of a test's own, which has to stay where it is.
    #[cfg(any(test, feature = "testing"))]
    pub fn of_memory(code: &'static [u8], map: &[u8]) -> LibraryCode {
        let all = std::iter::once(0..code.len() as u64);
        LibraryCode::new(code.as_ptr().expose_provenance(), all, Some(map))
    }

    /// What the code was made of; `None`: not known.
    pub fn map(&self) -> Option<&CodeMap> {
        self.map.as_ref()
    }

    /// The address in the library of one in memory; `None`: it is no code of this library.
    pub fn offset_of(&self, address: usize) -> Option<u32> {
        let offset = address.checked_sub(self.base)? as u64;
        self.ranges.iter().any(|range| range.contains(&offset)).then(|| u32::try_from(offset).ok())?
    }

    /// Whether the instruction that ends at an address in memory is a call: so an address that a call has left on a
    /// stack is told from any other number there.
    pub fn is_behind_call(&self, address: usize) -> bool {
        const LONGEST: usize = 7;
        let Some(first) = address.checked_sub(LONGEST) else { return false };
        if self.offset_of(first).is_none() || self.offset_of(address - 1).is_none() {
            return false;
        }
        let at: *const [u8; LONGEST] = std::ptr::with_exposed_provenance(first);
        // SAFETY: both ends lie in the library's code, which has no gaps of a page between them: it is mapped and
        // readable as long as the library lives.
        let bytes = unsafe { at.read_unaligned() };
        // A call of a near address; or by a register or memory, in the lengths that its operands take.
        let indirect = |behind: usize| {
            let [code, operand] = [bytes[LONGEST - behind], bytes[LONGEST - behind + 1]];
            code == 0xff && operand >> 3 & 7 == 2
        };
        bytes[LONGEST - 5] == 0xe8 || [2, 3, 4, 6, 7].into_iter().any(indirect)
    }

    /// The functions at an address of the library, the innermost first; none: not known.
    pub fn places_at(&self, offset: u32) -> impl Iterator<Item = CodePlace> {
        let frames = self.map.iter().flat_map(move |map| map.frames_at(offset));
        frames.map(|frame| CodePlace { function: clean(frame.function), file: clean(frame.file), line: frame.line })
    }
}

/// A name without what a terminal or a log would take for something else.
fn clean(name: &str) -> String {
    name.chars().map(|one| if one.is_control() { '\u{fffd}' } else { one }).collect()
}
