//! A cursor over a text, which matches brackets and quotes.

use super::UnknownMir;

/// Deepest nesting of brackets in one text. Reaching the limit is a refusal.
const MAX_NESTING: usize = 512;

/// The text that is left to parse.
#[derive(Clone, Copy, Debug)]
pub(super) struct MirCursor<'a> {
    rest: &'a str,
}

impl<'a> MirCursor<'a> {
    pub(super) fn new(rest: &'a str) -> MirCursor<'a> {
        MirCursor { rest }
    }

    pub(super) fn rest(&self) -> &'a str {
        self.rest
    }

    pub(super) fn starts(&self, with: &str) -> bool {
        self.rest.starts_with(with)
    }

    pub(super) fn eat(&mut self, expected: &str) -> bool {
        match self.rest.strip_prefix(expected) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    pub(super) fn expect(&mut self, expected: &str) -> Result<(), UnknownMir> {
        if self.eat(expected) { Ok(()) } else { Err(self.unknown()) }
    }

    /// The error for an unknown text at the cursor.
    pub(super) fn unknown(&self) -> UnknownMir {
        UnknownMir::of(self.rest)
    }

    pub(super) fn number(&mut self) -> Result<u32, UnknownMir> {
        let length = self.rest.bytes().take_while(u8::is_ascii_digit).count();
        let (digits, rest) = self.rest.split_at_checked(length).ok_or_else(|| self.unknown())?;
        let number = digits.parse().map_err(|_| self.unknown())?;
        self.rest = rest;
        Ok(number)
    }

    /// The text up to the first of these bytes outside of brackets and quotes; that byte is left.
    pub(super) fn until(&mut self, stops: &[u8]) -> Result<&'a str, UnknownMir> {
        let bytes = self.rest.as_bytes();
        let mut open: Vec<u8> = Vec::new();
        let mut at = 0_usize;
        while let Some(byte) = bytes.get(at).copied() {
            if open.is_empty() && stops.contains(&byte) {
                break;
            }
            match byte {
                b'"' => at = self.string_end(at)?,
                b'\'' => at = self.char_end(at)?,
                b'(' => open.push(b')'),
                b'[' => open.push(b']'),
                b'{' => open.push(b'}'),
                b'<' => open.push(b'>'),
                // An arrow.
                b'>' if at > 0 && matches!(bytes.get(at - 1), Some(b'-' | b'=')) => {}
                b')' | b']' | b'}' | b'>' if open.pop() != Some(byte) => return Err(self.unknown()),
                _ => {}
            }
            if open.len() > MAX_NESTING {
                return Err(self.unknown());
            }
            at += 1;
        }
        let (found, rest) = self.rest.split_at_checked(at).ok_or_else(|| self.unknown())?;
        if !open.is_empty() || rest.is_empty() {
            return Err(self.unknown());
        }
        self.rest = rest;
        Ok(found)
    }

    /// The offset of the byte that closes the string which opens here.
    fn string_end(&self, start: usize) -> Result<usize, UnknownMir> {
        let bytes = self.rest.as_bytes();
        let mut at = start + 1;
        while let Some(byte) = bytes.get(at) {
            match byte {
                b'"' => return Ok(at),
                b'\\' => at += 2,
                _ => at += 1,
            }
        }
        Err(self.unknown())
    }

    /// The offset of the last byte of a character in quotes, or of the quote before a lifetime's name.
    fn char_end(&self, start: usize) -> Result<usize, UnknownMir> {
        let rest = self.rest.get(start + 1..).unwrap_or_default();
        let mut characters = rest.char_indices();
        let Some((_, first)) = characters.next() else { return Err(self.unknown()) };
        if first == '\\' {
            // `'\''`, `'\n'`, `'\u{1f}'`: the quote that closes it is none of the first two.
            let end = rest.get(2..).and_then(|rest| rest.find('\'')).ok_or_else(|| self.unknown())?;
            return Ok(start + 1 + 2 + end);
        }
        match characters.next() {
            Some((at, '\'')) => Ok(start + 1 + at),
            _ => Ok(start),
        }
    }
}

/// A line without its trailing source location: the text after a ` // ` outside of quotes. A line with unclosed quotes
/// is left as it is.
pub(in super::super) fn without_comment(line: &str) -> &str {
    let text = MirCursor::new(line);
    let bytes = line.as_bytes();
    let mut at = 0_usize;
    while let Some(byte) = bytes.get(at) {
        let end = match byte {
            b'"' => text.string_end(at),
            b'\'' => text.char_end(at),
            b'/' if bytes.get(at + 1) == Some(&b'/') => return line.get(..at).unwrap_or(line).trim_end(),
            _ => Ok(at),
        };
        match end {
            Ok(end) => at = end + 1,
            Err(_) => return line,
        }
    }
    line
}

/// Returns whether a body begins with this line, rather than with a line about it.
pub(in super::super) fn is_head(line: &str) -> bool {
    !line.is_empty() && !line.starts_with([' ', '}', '/', '|'])
}
