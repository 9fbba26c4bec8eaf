//! Making a map.

use std::collections::HashMap;

use super::range_table::RangeTable;
use super::{CallerRule, INLINED_FRAMES_MAX, NAME_MAX_BYTES, SourceFrame, put_number};

/// Collects what a map says. Each text and each chain of frames is kept once.
#[derive(Debug, Default)]
pub struct CodeMapWriter {
    kept_arguments: u32,
    texts: Vec<u8>,
    text_places: HashMap<String, u32>,
    frames: Vec<u8>,
    frame_places: HashMap<[u32; 4], u32>,
    lines: Vec<(u32, u32)>,
    callers: Vec<(u32, u32)>,
    /// Where functions end.
    ends: Vec<(u32, u32)>,
}

impl CodeMapWriter {
    /// A map of an extension whose author wants so many bytes of a killed call's arguments kept.
    pub fn new(kept_arguments: u32) -> CodeMapWriter {
        CodeMapWriter { kept_arguments, ..CodeMapWriter::default() }
    }

    /// Says that the code from an address on, up to the next one that is named, was made of these frames, the innermost
    /// first; none: not known.
    pub fn add_line(&mut self, address: u32, frames: &[SourceFrame<'_>]) {
        let mut caller = None;
        for frame in frames[..frames.len().min(INLINED_FRAMES_MAX)].iter().rev() {
            caller = Some(self.frame(*frame, caller));
        }
        self.lines.push((address, caller.map_or(0, |place| place + 1)));
    }

    /// Says how to find the caller from an address on, up to the next one that is named; the default: not known.
    pub fn add_caller(&mut self, address: u32, rule: CallerRule) {
        self.callers.push((address, rule.encode()));
    }

    /// Says that a function ends at an address: if no other begins there, callers of what follows are not known.
    pub fn add_caller_end(&mut self, address: u32) {
        self.ends.push((address, 0));
    }

    /// Whether nothing was said of a source.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The map as bytes.
    pub fn finish(mut self) -> Vec<u8> {
        self.lines.sort_by_key(|(address, _)| *address);
        // Of an end and a beginning at one address the beginning counts, which comes behind it.
        self.ends.append(&mut self.callers);
        self.ends.sort_by_key(|(address, _)| *address);
        let parts = [self.texts, self.frames, RangeTable::encode(&self.lines), RangeTable::encode(&self.ends)];
        let mut out = self.kept_arguments.to_le_bytes().to_vec();
        parts.iter().for_each(|part| out.extend((part.len() as u32).to_le_bytes()));
        parts.iter().for_each(|part| out.extend_from_slice(part));
        out
    }

    /// The place of a frame that was inlined into the one at `caller`.
    fn frame(&mut self, frame: SourceFrame<'_>, caller: Option<u32>) -> u32 {
        let (function, file) = (self.text(frame.function), self.text(frame.file));
        let key = [function, file, frame.line, caller.map_or(0, |place| place + 1)];
        if let Some(place) = self.frame_places.get(&key) {
            return *place;
        }
        let place = self.frames.len() as u32;
        let back = caller.map_or(0, |caller| place - caller);
        [function, file, frame.line, back].into_iter().for_each(|number| put_number(&mut self.frames, number));
        self.frame_places.insert(key, place);
        place
    }

    fn text(&mut self, text: &str) -> u32 {
        let mut end = text.len().min(NAME_MAX_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let text = &text[..end];
        if let Some(place) = self.text_places.get(text) {
            return *place;
        }
        let place = self.texts.len() as u32;
        put_number(&mut self.texts, text.len() as u32);
        self.texts.extend_from_slice(text.as_bytes());
        self.text_places.insert(text.to_owned(), place);
        place
    }
}
