//! From lines of the text back to the module: what a debugger, or a server that names where a call ended, asks.

use std::ops::Range;

use wasmparser::{Parser, Payload};

/// Where the lines of a translation's text come from.
#[derive(Clone, Debug, Default)]
pub struct SourceLines {
    /// Lines of the text, from 1, and the operators that were written there, as offsets in the module's code section,
    /// which is how its debug information counts. In the order of the lines.
    pub operators: Vec<(u32, u32)>,
    /// The lines that a function's body takes, and its number.
    pub bodies: Vec<(Range<u32>, u32)>,
    /// The names of functions by their number, where the module has some.
    pub names: Vec<(u32, String)>,
}

impl SourceLines {
    /// The operator that a line of the text was written for.
    pub fn operator_at(&self, line: u32) -> Option<u32> {
        self.body_at(line)?;
        let behind = self.operators.partition_point(|(first, _)| *first <= line);
        let (first, offset) = self.operators.get(behind.checked_sub(1)?)?;
        // Not one of the function before.
        (*first >= self.body_at(line)?.0.start).then_some(*offset)
    }

    /// The number of the function that a line of the text is in.
    pub fn function_at(&self, line: u32) -> Option<u32> {
        self.body_at(line).map(|(_, function)| *function)
    }

    /// The name that the module gives to a function.
    pub fn name_of(&self, function: u32) -> Option<&str> {
        let at = self.names.binary_search_by_key(&function, |(number, _)| *number).ok()?;
        Some(&self.names[at].1)
    }

    fn body_at(&self, line: u32) -> Option<&(Range<u32>, u32)> {
        let behind = self.bodies.partition_point(|(lines, _)| lines.start <= line);
        self.bodies.get(behind.checked_sub(1)?).filter(|(lines, _)| lines.contains(&line))
    }
}

/// Counts the lines of a text that grows.
#[derive(Debug, Default)]
pub(crate) struct LineCounter {
    counted: usize,
    line: u32,
}

impl LineCounter {
    /// The line that the text's next byte is on, from 1.
    pub(crate) fn next_line(&mut self, text: &str) -> u32 {
        let new = text.as_bytes().get(self.counted..).unwrap_or_default();
        self.line += new.iter().filter(|byte| **byte == b'\n').count() as u32;
        self.counted = text.len();
        self.line + 1
    }
}

/// Takes the debug information out of a module: the module without it, and its sections by name. A module that cannot
/// be read comes back as it is.
pub fn split_debug_sections(wasm: &[u8]) -> (Vec<u8>, Vec<(&str, &[u8])>) {
    let (mut kept, mut from, mut sections) = (Vec::new(), 0_usize, Vec::new());
    for payload in Parser::new(0).parse_all(wasm) {
        let Ok(payload) = payload else { return (wasm.to_vec(), Vec::new()) };
        let Payload::CustomSection(section) = payload else { continue };
        if !section.name().starts_with(".debug_") {
            continue;
        }
        let range = section.range();
        let (start, end) = (range.start as usize, range.end as usize);
        let Some(before) = header_of(wasm, start, end).filter(|before| *before >= from) else {
            return (wasm.to_vec(), Vec::new());
        };
        kept.extend_from_slice(&wasm[from..before]);
        from = end;
        sections.push((section.name(), section.data()));
    }
    kept.extend_from_slice(&wasm[from.min(wasm.len())..]);
    (kept, sections)
}

/// Where the header of the custom section begins whose content lies there: its number, 0, and its length in LEB128.
fn header_of(wasm: &[u8], start: usize, end: usize) -> Option<usize> {
    (2..=6).filter_map(|bytes| start.checked_sub(bytes)).find(|at| {
        let mut length = 0_u64;
        let header = wasm.get(*at..start).unwrap_or_default();
        let Some((0, digits)) = header.split_first().map(|(first, rest)| (*first, rest)) else { return false };
        for (index, digit) in digits.iter().enumerate() {
            length |= u64::from(digit & 0x7f) << (7 * index);
            if (digit & 0x80 == 0) != (index + 1 == digits.len()) {
                return false;
            }
        }
        length == (end - start) as u64
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_lead_to_operators_of_their_own_function() {
        let lines = SourceLines {
            operators: vec![(10, 100), (12, 104), (21, 200)],
            bodies: vec![(9..15, 3), (19..25, 4)],
            names: vec![(3, "three".to_owned()), (9, "nine".to_owned())],
        };
        let found: Vec<_> = [8, 9, 10, 11, 12, 14, 15, 20, 21, 24, 25].map(|line| lines.operator_at(line)).into();
        let (first, second, third) = (Some(100), Some(104), Some(200));
        assert_eq!(found, [None, None, first, first, second, second, None, None, third, third, None]);
        assert_eq!((lines.function_at(20), lines.function_at(16)), (Some(4), None));
        assert_eq!((lines.name_of(3), lines.name_of(4)), (Some("three"), None));
    }

    #[test]
    fn debug_information_is_taken_out_and_the_rest_stays() {
        let custom = |name: &str, content: &[u8]| {
            let body = [&[name.len() as u8], name.as_bytes(), content].concat();
            [&[0, body.len() as u8], &body[..]].concat()
        };
        let head = b"\0asm\x01\0\0\0".to_vec();
        let (names, info) = (custom("names", b"kept"), custom(".debug_info", b"taken"));
        let long = [&[0][..], &[0x8b, 0x80, 0x00], b"\x0b.debug_line"].concat();
        let long = [&long[..1], &[0x8c, 0x80, 0x00], &long[4..]].concat();
        let wasm = [&head[..], &info, &names, &long].concat();
        let (kept, sections) = split_debug_sections(&wasm);
        assert_eq!(kept, [&head[..], &names].concat());
        assert_eq!(sections, [(".debug_info", &b"taken"[..]), (".debug_line", &b""[..])]);
        for broken in [&wasm[..wasm.len() - 1], b"\0asm", b""] {
            assert_eq!(split_debug_sections(broken), (broken.to_vec(), Vec::new()));
        }
    }
}
