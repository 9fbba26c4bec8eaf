//! The arguments of commands, and what they may say.

use arrayvec::ArrayVec;
use sandstorm_net::resp::RespCommand;

use crate::limits::redis::STEP_ARGS;

/// The arguments of a command of any length.
#[derive(Clone, Copy)]
pub(super) struct CommandArguments<'i> {
    pub(super) command: &'i RespCommand,
    pub(super) input: &'i [u8],
}

impl<'i> CommandArguments<'i> {
    /// All arguments but the name.
    pub(super) fn after_name(&self) -> impl Iterator<Item = &'i [u8]> + Clone + use<'i> {
        let (command, input) = (self.command, self.input);
        (1..command.count()).filter_map(move |number| command.arg(input, number))
    }

    /// Their number, the name included.
    pub(super) fn len(&self) -> usize {
        self.command.count()
    }

    /// Up to [`STEP_ARGS`] of them from that number on.
    pub(super) fn from(&self, number: usize) -> ArrayVec<&'i [u8], STEP_ARGS> {
        let end = self.len().min(number + STEP_ARGS);
        (number..end).filter_map(|number| self.command.arg(self.input, number)).collect()
    }
}

/// A whole number as Redis reads it: no plus, no leading zeros, no spaces.
pub(super) fn parse_integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let canonical = match digits {
        [b'0'] => text.len() == 1,
        [b'1'..=b'9', rest @ ..] => rest.len() < 19 && rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    canonical.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
}

/// Whether a word equals `meant`, ignoring case.
pub(super) fn is_word(word: &[u8], meant: &str) -> bool {
    word.eq_ignore_ascii_case(meant.as_bytes())
}

/// Bytes as text, for messages.
pub(super) fn lossy_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
