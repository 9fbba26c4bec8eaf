//! What machine code was made of: for each of its addresses the functions, files and lines, those that were inlined
//! too, and how to find the caller of the function there. The builder makes the map of an extension of either tier
//! from the compiler's debug information and puts it behind the library; the server reads it when something ended or
//! is looked at, and never before.
//!
//! Bytes, little-endian: how many bytes of arguments its author wants kept where a call ends (u32), the lengths of four
//! parts (u32 each), then the parts: texts, frames, lines, callers. A text is
//! a length (LEB128) and UTF-8. A frame is four numbers (LEB128): the place of its function's text, of its file's
//! text, its line, and the distance back to the frame that it was inlined into (0: none). Lines and callers are
//! [`range_table`]s from addresses to the place of a frame plus one, and to a rule.
//!
//! The map is signed with its library, and nothing relies on that: a reader checks each place, a chain of frames only
//! goes back, and an answer is bounded.

mod range_table;
mod writer;

pub use writer::CodeMapWriter;

use range_table::RangeTable;

/// Last bytes of a library that has a map.
const MAGIC: [u8; 8] = *b"sandmap\x01";
/// Bytes behind a map: its length and [`MAGIC`].
const TRAILER_BYTES: usize = 16;
/// Bytes of a map, at most: some twenty times as many as a large extension's. A longer one is left out.
pub const CODE_MAP_MAX_BYTES: usize = 4 << 20;
/// Frames at one address, at most: functions that were inlined into each other.
pub const INLINED_FRAMES_MAX: usize = 24;
/// Bytes of a function's or a file's name, at most; the rest is cut.
pub const NAME_MAX_BYTES: usize = 160;

/// Bytes of a killed call's arguments that may be kept: enough for a key and a word or two.
pub const ARGUMENTS_MAX_BYTES: u32 = 256;

/// A place in a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SourceFrame<'a> {
    /// The function's name.
    pub function: &'a str,
    /// The file; empty: not known.
    pub file: &'a str,
    /// The line, from 1; 0: not known.
    pub line: u32,
}

/// How to find the caller of a function, at an address in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallerRule {
    /// Whether the frame is found by `rbp` instead of `rsp`.
    pub by_rbp: bool,
    /// The frame's upper end, relative to that register, bytes; the return address lies below it. 0: not known.
    pub frame_bytes: u32,
    /// Where the caller's `rbp` is kept, below that end, in words; 0: it is still in the register.
    pub rbp_words: u8,
}

impl CallerRule {
    const BY_RBP: u32 = 1 << 31;
    const FRAME_MAX: u32 = 1 << 24;

    /// The rule as a number; 0 where it does not fit, as for one that is not known.
    fn encode(self) -> u32 {
        if self.frame_bytes == 0 || self.frame_bytes >= CallerRule::FRAME_MAX || self.rbp_words >= 128 {
            return 0;
        }
        let by = if self.by_rbp { CallerRule::BY_RBP } else { 0 };
        by | u32::from(self.rbp_words) << 24 | self.frame_bytes
    }

    fn decode(value: u32) -> CallerRule {
        CallerRule {
            by_rbp: value & CallerRule::BY_RBP != 0,
            frame_bytes: value & (CallerRule::FRAME_MAX - 1),
            rbp_words: (value >> 24 & 127) as u8,
        }
    }
}

/// The map of a library.
#[derive(Clone, PartialEq, Eq)]
pub struct CodeMap {
    kept_arguments: u32,
    texts: Box<[u8]>,
    frames: Box<[u8]>,
    lines: RangeTable,
    callers: RangeTable,
}

impl std::fmt::Debug for CodeMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CodeMap({} bytes)", self.bytes())
    }
}

impl CodeMap {
    /// Reads a map; `None`: these bytes are none.
    pub fn read(bytes: &[u8]) -> Option<CodeMap> {
        let mut rest = bytes;
        let mut lengths = [0_usize; 5];
        for length in &mut lengths {
            let (first, behind) = rest.split_first_chunk::<4>()?;
            *length = u32::from_le_bytes(*first) as usize;
            rest = behind;
        }
        let mut part = |length| {
            let (first, behind) = rest.split_at_checked(length)?;
            rest = behind;
            Some(first)
        };
        let [kept, texts, frames, lines, callers] = lengths;
        let kept_arguments = (kept as u32).min(ARGUMENTS_MAX_BYTES);
        let (texts, frames) = (part(texts)?.into(), part(frames)?.into());
        let (lines, callers) = (RangeTable::read(part(lines)?)?, RangeTable::read(part(callers)?)?);
        rest.is_empty().then_some(CodeMap { kept_arguments, texts, frames, lines, callers })
    }

    /// Bytes of a call's arguments that the extension's author wants kept where it is killed.
    pub fn kept_arguments(&self) -> usize {
        self.kept_arguments as usize
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        self.texts.len() + self.frames.len() + self.lines.bytes() + self.callers.bytes()
    }

    /// The functions at an address of the library, the innermost first: each was inlined into the next.
    pub fn frames_at(&self, address: u32) -> impl Iterator<Item = SourceFrame<'_>> {
        let mut next = self.lines.value_at(address).and_then(|place| place.checked_sub(1));
        std::iter::from_fn(move || {
            let place = next.take()?;
            let (frame, caller) = self.frame(place)?;
            next = caller;
            Some(frame)
        })
        .take(INLINED_FRAMES_MAX)
    }

    /// A frame, and the place of the one that it was inlined into, which lies before it.
    fn frame(&self, place: u32) -> Option<(SourceFrame<'_>, Option<u32>)> {
        let mut rest = self.frames.get(place as usize..)?;
        let (function, file) = (take_number(&mut rest)?, take_number(&mut rest)?);
        let (line, back) = (take_number(&mut rest)?, take_number(&mut rest)?);
        let frame = SourceFrame { function: self.text(function)?, file: self.text(file)?, line };
        Some((frame, if back == 0 { None } else { place.checked_sub(back) }))
    }

    fn text(&self, place: u32) -> Option<&str> {
        let mut rest = self.texts.get(place as usize..)?;
        let length = take_number(&mut rest)? as usize;
        std::str::from_utf8(rest.get(..length.min(NAME_MAX_BYTES))?).ok()
    }

    /// How to find the caller of the function at an address of the library; `None`: not known.
    pub fn caller_rule(&self, address: u32) -> Option<CallerRule> {
        let rule = CallerRule::decode(self.callers.value_at(address)?);
        (rule.frame_bytes != 0).then_some(rule)
    }
}

/// Puts a map behind a library. One that is too long is left out.
pub fn with_code_map(mut library: Vec<u8>, map: &[u8]) -> Vec<u8> {
    if !map.is_empty() && map.len() <= CODE_MAP_MAX_BYTES {
        library.extend_from_slice(map);
        library.extend((map.len() as u64).to_le_bytes());
        library.extend(MAGIC);
    }
    library
}

/// The library without its map, and the map; none behind a library that was built without.
pub fn split_code_map(file: &[u8]) -> (&[u8], Option<&[u8]>) {
    let parts = || {
        let (rest, trailer) = file.split_last_chunk::<TRAILER_BYTES>()?;
        let (length, magic) = trailer.split_first_chunk::<8>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok().filter(|_| *magic == MAGIC)?;
        let at = rest.len().checked_sub(length).filter(|_| length <= CODE_MAP_MAX_BYTES)?;
        Some(rest.split_at(at))
    };
    parts().map_or((file, None), |(library, map)| (library, Some(map)))
}

/// Takes a number in LEB128 from the front.
fn take_number(rest: &mut &[u8]) -> Option<u32> {
    let mut value = 0_u32;
    for shift in [0, 7, 14, 21, 28] {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        value |= u32::from(byte & 0x7f).checked_shl(shift).unwrap_or_default();
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Appends a number in LEB128.
fn put_number(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests;
