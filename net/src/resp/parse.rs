//! Finds commands at the front of the bytes that a client has sent: arrays of bulk strings, or words on a line.
//!
//! A parser goes on where it stopped when more bytes have come, so a long value is not looked at again for every
//! packet. It answers as Redis does, and refuses in the same words.

use super::inline;
use crate::limits::{
    RESP_ARGUMENTS, RESP_ARGUMENTS_PER_CALL, RESP_COMMAND_BYTES, RESP_LINE_BYTES, RESP_UNAUTHENTICATED_ARGUMENT_BYTES,
    RESP_UNAUTHENTICATED_ARGUMENTS,
};

/// The result of parsing the front of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RespParse {
    /// A command of so many bytes. Without arguments it is an empty line or array, which is no command and gets no
    /// answer.
    Command(RespCommand),
    /// A part of one; the whole has at least so many bytes.
    Incomplete(usize),
    /// A part of one, of which more has come than is read at once: to be called again with the same input, later.
    Paused,
    /// None, and nothing after it can be understood.
    Invalid(ProtocolError),
}

/// The ranges of a command's arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RespCommand {
    /// Bytes of the input that it takes.
    pub len: usize,
    spans: Vec<(u32, u32)>,
    /// The arguments' bytes, if they are not in the input as they are.
    inline_bytes: Option<Box<[u8]>>,
}

impl RespCommand {
    /// Number of arguments, the command's name included.
    pub fn count(&self) -> usize {
        self.spans.len()
    }

    /// The arguments. `input` begins where it did for the parser.
    pub fn args<'i>(&'i self, input: &'i [u8]) -> impl ExactSizeIterator<Item = &'i [u8]> + Clone {
        let bytes = self.inline_bytes.as_deref().unwrap_or(input);
        self.spans.iter().map(|(from, to)| bytes.get(*from as usize..*to as usize).unwrap_or_default())
    }

    /// Returns whether it was a line of words, not an array.
    pub fn is_inline(&self) -> bool {
        self.inline_bytes.is_some()
    }

    /// The argument of that number; none if there are not as many.
    #[inline]
    pub fn arg<'i>(&'i self, input: &'i [u8], number: usize) -> Option<&'i [u8]> {
        let (from, to) = self.spans.get(number)?;
        self.inline_bytes.as_deref().unwrap_or(input).get(*from as usize..*to as usize)
    }

    /// Bytes that it keeps beside the input.
    pub fn used_bytes(&self) -> usize {
        self.spans.capacity() * size_of::<(u32, u32)>() + self.inline_bytes.as_ref().map_or(0, |bytes| bytes.len())
    }

    /// Takes the command back for its memory.
    fn clear(&mut self) {
        self.len = 0;
        self.spans.clear();
        self.inline_bytes = None;
    }
}

/// The reason why a client cannot be understood; it gets the reason, and is disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A line that does not end.
    #[error("too big inline request")]
    LongLine,
    /// A quote that does not end.
    #[error("unbalanced quotes in request")]
    UnbalancedQuotes,
    /// A number of arguments that does not end.
    #[error("too big mbulk count string")]
    LongCount,
    /// A number of arguments that is none, or too large.
    #[error("invalid multibulk length")]
    Count,
    /// More arguments than an unauthenticated client may send.
    #[error("unauthenticated multibulk length")]
    UnauthenticatedCount,
    /// A length that does not end.
    #[error("too big bulk count string")]
    LongLength,
    /// Something else where a bulk string should begin.
    #[error("expected '$', got '{}'", char::from(*.0))]
    ExpectedBulk(u8),
    /// A length that is none, or too large.
    #[error("invalid bulk length")]
    Length,
    /// A longer argument than an unauthenticated client may send.
    #[error("unauthenticated bulk length")]
    UnauthenticatedLength,
}

/// Finds commands. Between two calls that answer [`RespParse::Incomplete`] or [`RespParse::Paused`] the input may only
/// grow at its end.
#[derive(Clone, Debug, Default)]
pub struct RespParser {
    /// The offset up to which the command has been read.
    at: usize,
    /// Arguments that have yet to come, once their number is known.
    left: Option<usize>,
    command: RespCommand,
}

impl RespParser {
    /// Forgets a part of a command: the next input begins with one.
    pub fn reset(&mut self) {
        *self = RespParser::default();
    }

    /// Bytes that it keeps of a command that is not whole yet, beside the input.
    pub fn used_bytes(&self) -> usize {
        self.command.used_bytes()
    }

    /// Hands back a command that was answered, so that its memory is used for the next.
    pub fn recycle(&mut self, mut command: RespCommand) {
        if self.command.spans.capacity() == 0 && command.spans.capacity() <= 64 {
            command.clear();
            self.command = command;
        }
    }

    /// Parses the front of `input`. Limits are lower for a `unauthenticated`, whose tenant is not known yet.
    pub fn parse(&mut self, input: &[u8], unauthenticated: bool) -> RespParse {
        if self.left.is_none() {
            match input.first() {
                None => return RespParse::Incomplete(1),
                Some(b'*') => match self.count(input, unauthenticated) {
                    Ok(()) => {}
                    Err(other) => return other,
                },
                Some(_) => return self.line(input),
            }
        }
        let mut read = 0;
        while let Some(left @ 1..) = self.left {
            if read == RESP_ARGUMENTS_PER_CALL {
                return RespParse::Paused;
            }
            read += 1;
            match self.bulk(input, unauthenticated) {
                Ok(()) => self.left = Some(left - 1),
                Err(other) => return other,
            }
        }
        self.command.len = self.at;
        (self.at, self.left) = (0, None);
        RespParse::Command(std::mem::take(&mut self.command))
    }

    /// Reads how many arguments there are.
    fn count(&mut self, input: &[u8], unauthenticated: bool) -> Result<(), RespParse> {
        let (number, next) = read_number_line(input, 1, ProtocolError::LongCount)?;
        let count = match number {
            Some(number) if number <= RESP_ARGUMENTS as i64 => usize::try_from(number).unwrap_or(0),
            _ => return Err(RespParse::Invalid(ProtocolError::Count)),
        };
        if unauthenticated && count > RESP_UNAUTHENTICATED_ARGUMENTS {
            return Err(RespParse::Invalid(ProtocolError::UnauthenticatedCount));
        }
        (self.at, self.left) = (next, Some(count));
        self.command.clear();
        // No room for arguments that were only announced.
        self.command.spans.reserve(count.min(16));
        Ok(())
    }

    /// Reads one argument.
    fn bulk(&mut self, input: &[u8], unauthenticated: bool) -> Result<(), RespParse> {
        match input.get(self.at) {
            None => return Err(RespParse::Incomplete(self.at + 1)),
            Some(b'$') => {}
            // Redis looks once the line is whole; a line that is whole is all that can be seen of it.
            Some(other) => {
                read_number_line(input, self.at, ProtocolError::LongLength)?;
                return Err(RespParse::Invalid(ProtocolError::ExpectedBulk(*other)));
            }
        }
        let (number, from) = read_number_line(input, self.at + 1, ProtocolError::LongLength)?;
        let len = number.and_then(|number| usize::try_from(number).ok());
        let Some(len) = len.filter(|len| *len <= RESP_COMMAND_BYTES && from + *len <= RESP_COMMAND_BYTES) else {
            return Err(RespParse::Invalid(ProtocolError::Length));
        };
        if unauthenticated && len > RESP_UNAUTHENTICATED_ARGUMENT_BYTES {
            return Err(RespParse::Invalid(ProtocolError::UnauthenticatedLength));
        }
        let to = from + len;
        if input.len() < to + 2 {
            return Err(RespParse::Incomplete(to + 2));
        }
        // Both are at most `RESP_COMMAND_BYTES`, which fits.
        self.command.spans.push((from as u32, to as u32));
        self.at = to + 2;
        Ok(())
    }

    /// Reads a line of words.
    fn line(&mut self, input: &[u8]) -> RespParse {
        let searched = self.at.min(input.len());
        let Some(end) = input[searched..].iter().position(|byte| *byte == b'\n').map(|at| searched + at) else {
            self.at = input.len();
            return match input.len() > RESP_LINE_BYTES {
                true => RespParse::Invalid(ProtocolError::LongLine),
                false => RespParse::Incomplete(input.len() + 1),
            };
        };
        if end > RESP_LINE_BYTES {
            return RespParse::Invalid(ProtocolError::LongLine);
        }
        self.at = 0;
        let line = &input[..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        if !inline::split_inline(line, &mut bytes, &mut ends) {
            return RespParse::Invalid(ProtocolError::UnbalancedQuotes);
        }
        let mut from = 0;
        let spans = ends.iter().map(|end| (std::mem::replace(&mut from, *end as u32), *end as u32)).collect();
        RespParse::Command(RespCommand { len: end + 1, spans, inline_bytes: Some(bytes.into()) })
    }
}

/// The number from `from` to the end of its line, if it is one, and where the next line begins.
fn read_number_line(input: &[u8], from: usize, too_long: ProtocolError) -> Result<(Option<i64>, usize), RespParse> {
    let rest = &input[from.min(input.len())..];
    // Numbers are short; one that is not gets Redis' answer to a number that is too long.
    let Some(len) = rest.iter().take(RESP_LINE_BYTES + 1).position(|byte| *byte == b'\r') else {
        return Err(match rest.len() > RESP_LINE_BYTES {
            true => RespParse::Invalid(too_long),
            false => RespParse::Incomplete(input.len() + 1),
        });
    };
    if rest.len() < len + 2 {
        return Err(RespParse::Incomplete(input.len() + 1));
    }
    Ok((parse_number(&rest[..len]), from + len + 2))
}

/// A decimal number as Redis reads it: no plus, no leading zeros.
fn parse_number(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let canonical = match digits {
        [b'0'] => text.len() == 1,
        [b'1'..=b'9', rest @ ..] => rest.len() < 19 && rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if !canonical {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}
