//! Errors of an extension, as its caller gets them.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};

use crate::abi;

/// The kind of an [`Error`]; its number travels to the caller beside the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[repr(u32)]
pub enum ErrorKind {
    /// There is no such record.
    NotFound = abi::STATUS_NOT_FOUND,
    /// The condition of a write did not hold.
    Conflict = abi::STATUS_CONFLICT,
    /// The tenant has no such table, or the grant of it has ended.
    UnknownTable = abi::STATUS_UNKNOWN_TABLE,
    /// The table's memory quota is reached, the server's machine has no memory left, or the disk of its log is full and
    /// the table's records are kept there. Or too many of the table's replaced records are still being read, which is
    /// over in a moment.
    OutOfMemory = abi::STATUS_OUT_OF_MEMORY,
    /// A key, value or reply is longer than its limit.
    TooLarge = abi::STATUS_TOO_LARGE,
    /// An increment met a value that is not a decimal number.
    NotANumber = abi::STATUS_NOT_A_NUMBER,
    /// Another server owns this part of the table.
    WrongServer = abi::STATUS_WRONG_SERVER,
    /// The arguments of the invocation, or of a call, are invalid.
    Invalid = abi::STATUS_INVALID,
    /// The table is another tenant's and was granted for reading only.
    ReadOnly = abi::STATUS_READ_ONLY,
    /// The invocation's transaction met the writes of others each time that it was tried.
    Contended = abi::STATUS_CONTENDED,
    /// The server has ended an extension that was called, for a panic say; see the text.
    Killed = abi::STATUS_KILLED,
    /// The record is on the server's disk, which does not read it or has damaged it. It can be written again.
    NotRead = abi::STATUS_NOT_READ,
    /// What is behind the table does not take the change: it fails, or has as much to take as it may. Nothing was
    /// changed.
    NotBacked = abi::STATUS_NOT_BACKED,
    /// The extension's own reason; see the text.
    Other = 100,
}

impl ErrorKind {
    /// The kind of that number; one that is not known is the extension's own reason.
    pub(crate) fn from_code(code: u32) -> ErrorKind {
        [
            ErrorKind::NotFound,
            ErrorKind::Conflict,
            ErrorKind::UnknownTable,
            ErrorKind::OutOfMemory,
            ErrorKind::TooLarge,
            ErrorKind::NotANumber,
            ErrorKind::WrongServer,
            ErrorKind::Invalid,
            ErrorKind::ReadOnly,
            ErrorKind::Contended,
            ErrorKind::Killed,
            ErrorKind::NotRead,
            ErrorKind::NotBacked,
        ]
        .into_iter()
        .find(|kind| *kind as u32 == code)
        .unwrap_or(ErrorKind::Other)
    }
}

/// An error that an extension meets or returns. Its text reaches the caller of the invocation.
///
/// ```
/// use sandstorm_api::prelude::*;
/// let error = Error::invalid("args must be 8 bytes: a little-endian key");
/// assert_eq!(error.kind(), ErrorKind::Invalid);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    text: Cow<'static, str>,
}

impl Error {
    /// An error of the extension's own, with a text for the caller.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// assert_eq!(Error::new("sold out").text(), "sold out");
    /// ```
    pub fn new(text: impl Into<Cow<'static, str>>) -> Error {
        Error { kind: ErrorKind::Other, text: text.into() }
    }

    /// The extension does not accept its arguments.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// assert_eq!(Error::invalid("args: a name").kind(), ErrorKind::Invalid);
    /// ```
    pub fn invalid(text: impl Into<Cow<'static, str>>) -> Error {
        Error { kind: ErrorKind::Invalid, text: text.into() }
    }

    /// A record that must be there is not.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// assert_eq!(Error::not_found("no such order").kind(), ErrorKind::NotFound);
    /// ```
    pub fn not_found(text: impl Into<Cow<'static, str>>) -> Error {
        Error { kind: ErrorKind::NotFound, text: text.into() }
    }

    /// The error of an extension that was called.
    pub(crate) fn of_kind(kind: ErrorKind, text: String) -> Error {
        Error { kind, text: text.into() }
    }

    /// A limit was passed.
    pub(crate) fn too_large(text: String) -> Error {
        Error { kind: ErrorKind::TooLarge, text: text.into() }
    }

    /// The error of a commit's status: it is about all that the transaction writes.
    pub(crate) fn from_commit_status(status: u32) -> Error {
        let error = Error::from_status(status);
        match error.kind {
            ErrorKind::Contended => error,
            _ => Error {
                text: format!("the transaction was refused, nothing was written: {}", error.text).into(),
                ..error
            },
        }
    }

    /// An increment met something else than a number.
    pub(crate) fn not_a_number(key: &[u8]) -> Error {
        let text = format!("the value under {} is not a decimal number, or the sum overflows", shown_key(key));
        Error { kind: ErrorKind::NotANumber, text: text.into() }
    }

    /// The same error, with the key of an increment.
    pub(crate) fn of_increment(self, key: &[u8]) -> Error {
        if self.kind == ErrorKind::NotANumber { Error::not_a_number(key) } else { self }
    }

    /// The kind.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// match db.put(table, b"lock", b"me").if_absent().await {
    ///     Err(error) if error.kind() == ErrorKind::Conflict => db.reply(b"taken")?,
    ///     other => drop(other?),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The text for the caller.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// assert_eq!(Error::from(format!("{} left", 0)).text(), "0 left");
    /// ```
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The same error, with the name of the table that is not there.
    pub(crate) fn with_table_name(self, name: &str) -> Error {
        match self.kind {
            ErrorKind::UnknownTable => Error { text: format!("the tenant has no table {name:?}").into(), ..self },
            _ => self,
        }
    }

    /// The same error, of one of many writes, which are counted from 0.
    pub(crate) fn at_entry(self, index: usize, of: usize) -> Error {
        let text = format!("{} (entry {} of {of}; those before it are done)", self.text, index + 1);
        Error { text: text.into(), ..self }
    }

    /// The same error, of one of many writes of a transaction.
    pub(crate) fn of_entry(self, index: usize, of: usize) -> Error {
        Error { text: format!("{} (entry {} of {of})", self.text, index + 1).into(), ..self }
    }

    /// The same error, where it is about a record on the disk that a page has met behind so many others.
    pub(crate) fn behind_records(self, before: usize) -> Error {
        let place = match (self.kind, before) {
            (ErrorKind::NotRead | ErrorKind::OutOfMemory, 0) => String::from("the first record of the page"),
            (ErrorKind::NotRead | ErrorKind::OutOfMemory, _) => {
                format!("record {} of the page: one of {before} records ends before it", before + 1)
            }
            _ => return self,
        };
        Error { text: format!("{} ({place})", self.text).into(), ..self }
    }

    /// The error of a host call's status; `STATUS_OK` must not come here.
    pub(crate) fn from_status(status: u32) -> Error {
        let (kind, text) = match status {
            abi::STATUS_NOT_FOUND => (ErrorKind::NotFound, "no such record"),
            abi::STATUS_CONFLICT => (ErrorKind::Conflict, "the condition of the write did not hold"),
            abi::STATUS_UNKNOWN_TABLE => (ErrorKind::UnknownTable, "the tenant has no such table"),
            abi::STATUS_OUT_OF_MEMORY => (
                ErrorKind::OutOfMemory,
                "the table's memory quota is reached, or the machine has no memory left, or the disk of the server's log is full, or \
                 too many replaced records are still being read: call again in a moment",
            ),
            abi::STATUS_TOO_LARGE => (
                ErrorKind::TooLarge,
                "a key, value or reply is longer than its limit: 64 KiB, 8 MiB, the quota reply_bytes",
            ),
            abi::STATUS_NOT_A_NUMBER => {
                (ErrorKind::NotANumber, "the value is not a decimal number, or the sum overflows")
            }
            abi::STATUS_WRONG_SERVER => {
                (ErrorKind::WrongServer, "another server owns the key: `{tag}` brings keys together")
            }
            abi::STATUS_INVALID => (ErrorKind::Invalid, "an argument is out of its range"),
            abi::STATUS_READ_ONLY => (ErrorKind::ReadOnly, "the table was granted for reading only"),
            abi::STATUS_NOT_ORDERED => {
                (ErrorKind::Invalid, "the table is not ordered: ranges need one that was made with --ordered")
            }
            abi::STATUS_NOT_READ => (
                ErrorKind::NotRead,
                "the record is on the server's disk and cannot be read: write it again, or delete it",
            ),
            abi::STATUS_NOT_BACKED => (
                ErrorKind::NotBacked,
                "what is behind the table does not take the change: it fails, or as much waits for it as may; call again later",
            ),
            abi::STATUS_NOT_SCANNED => (
                ErrorKind::Invalid,
                "not all records of the table are in memory: `scan_page` waits for those of the mode `spill`, and those \
                 behind a backing are not listed",
            ),
            abi::STATUS_CONTENDED => (
                ErrorKind::Contended,
                "the transaction met the writes of others each time; nothing was written: call again",
            ),
            _ => (ErrorKind::Other, "the server answered with a status that this API does not know"),
        };
        Error { kind, text: Cow::Borrowed(text) }
    }
}

/// A key in a text, in quotes: as much of it as tells which it is.
pub(crate) fn shown_key(key: &[u8]) -> String {
    /// Characters of a key that a message shows.
    const SHOWN: usize = 64;
    let key: String = String::from_utf8_lossy(key).chars().take(SHOWN).collect::<String>().escape_debug().to_string();
    format!("\"{key}\"")
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.text)
    }
}

impl core::error::Error for Error {}

impl From<&'static str> for Error {
    fn from(text: &'static str) -> Error {
        Error::new(text)
    }
}

impl From<String> for Error {
    fn from(text: String) -> Error {
        Error::new(text)
    }
}

impl From<core::str::Utf8Error> for Error {
    fn from(_: core::str::Utf8Error) -> Error {
        Error::invalid("not valid UTF-8")
    }
}

impl From<core::num::ParseIntError> for Error {
    fn from(_: core::num::ParseIntError) -> Error {
        Error::invalid("not a number")
    }
}

impl From<core::num::ParseFloatError> for Error {
    fn from(_: core::num::ParseFloatError) -> Error {
        Error::invalid("not a number")
    }
}

impl From<core::num::TryFromIntError> for Error {
    fn from(_: core::num::TryFromIntError) -> Error {
        Error::invalid("a number does not fit into its type")
    }
}

impl From<core::array::TryFromSliceError> for Error {
    fn from(_: core::array::TryFromSliceError) -> Error {
        Error::invalid("not of the expected length")
    }
}
