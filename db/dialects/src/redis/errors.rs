//! The errors of commands, as clients read them.

use std::borrow::Cow;

use super::arguments::lossy_text;
use sandstorm_store::StoreError;
use sandstorm_store::backed::BackingRefusal;

/// The result of a command: its answer is written, or this error is to be.
pub(super) type CommandResult = Result<(), CommandError>;

/// An error's text, with its code for programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommandError(pub(super) Cow<'static, str>);

impl From<&'static str> for CommandError {
    fn from(text: &'static str) -> CommandError {
        CommandError(Cow::Borrowed(text))
    }
}

impl From<String> for CommandError {
    fn from(text: String) -> CommandError {
        CommandError(Cow::Owned(text))
    }
}

impl From<StoreError> for CommandError {
    fn from(error: StoreError) -> CommandError {
        match error {
            StoreError::OutOfMemory => "OOM command not allowed when used memory > 'maxmemory'.".into(),
            StoreError::NoMemory | StoreError::ReclaimPressure => format!("OOM {error}").into(),
            StoreError::NotLogged(_) => format!("MISCONF {error}").into(),
            StoreError::NotSpilled(_) => format!("OOM {error}").into(),
            StoreError::NotBacked(BackingRefusal::ReadOnly) => format!("READONLY {error}").into(),
            StoreError::NotBacked(BackingRefusal::NotCleared) => format!("ERR {error}").into(),
            StoreError::NotBacked(_) => format!("NOTBACKED {error}").into(),
            // Between the look at the key's slot and the write: its server is changing.
            StoreError::WrongServer => "TRYAGAIN The slot is changing its server".into(),
            StoreError::Cold => format!("TRYAGAIN {error}").into(),
            StoreError::ValueTooLarge => TOO_LONG.into(),
            other => format!("ERR {other}").into(),
        }
    }
}

pub(super) const SYNTAX: &str = "ERR syntax error";
pub(super) const NO_KEY: &str = "ERR no such key";
pub(super) const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
pub(super) const TOO_LONG: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
pub(super) const NO_AUTH: &str = "NOAUTH Authentication required.";
pub(super) const OVER_RATE: &str = "OVERQUOTA the tenant is over its quota requests_per_s: try again later";
pub(super) const ANSWER_TOO_LONG: &str = "ERR the answer would be longer than one may be: ask for less at once";

/// The error of a command that was checked to need nothing from elsewhere, and does: more absent keys are asked for
/// than a table with a backing remembers, or its settings have changed. It is not run again: others of its transaction
/// may have changed something.
pub(super) const LEFT_MEMORY: &str = "TRYAGAIN what the command needs left memory while it ran: send it again";

/// The error for an unknown subcommand of a command.
pub(super) fn unknown_subcommand(word: &[u8], command: &str) -> CommandError {
    let word = lossy_text(&word[..word.len().min(128)]);
    format!("ERR unknown subcommand '{word}'. Try {command} HELP.").into()
}

/// The error for an unknown command.
pub(super) fn unknown_command(args: &[&[u8]]) -> CommandError {
    let mut preview = String::new();
    for arg in args.iter().skip(1) {
        if preview.len() >= 128 {
            break;
        }
        let arg = arg.split(|byte| *byte == 0).next().unwrap_or_default();
        let shown = &arg[..arg.len().min(128 - preview.len())];
        preview.push_str(&format!("'{}' ", lossy_text(shown)));
    }
    let name = args.first().copied().unwrap_or_default();
    format!("ERR unknown command '{}', with args beginning with: {preview}", lossy_text(&name[..name.len().min(128)]))
        .into()
}
