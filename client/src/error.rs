//! Errors of data requests.

use sandstorm_net::rpc::{KillCause, OpKind, Operation, RpcStatus, failure_name};
use std::borrow::Cow;
use std::time::Duration;
use thiserror::Error;

/// The reason why a request has no result. Its text says what to do. A missing record is no error: reads answer `None`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The condition of the write did not hold; or an invocation's transaction met the writes of others at each try,
    /// and wrote nothing. What the invocation wrote outside of the transaction stays written, once for each try.
    #[error(
        "conflict: the record is not as the write's condition asks, or others wrote what the transaction had read; try again"
    )]
    Conflict,
    /// Others have changed what a [`crate::ClientTransaction`] had read, and it has written nothing: run it again.
    #[error(
        "conflict: others have changed {} of table {table} since the transaction read it, and nothing was written; run it again",
        shown_key(key)
    )]
    TransactionConflict {
        /// The table's id.
        table: u64,
        /// The key; of a range the smallest key that is part of it.
        key: Vec<u8>,
    },
    /// The value under the key is no number, or the sum would overflow.
    #[error("{text}; put a number there first")]
    NotANumber {
        /// Tells which key it is.
        text: String,
    },
    /// The table is full, or too many of its replaced records are still being read, which is over in a moment.
    #[error("out of memory: {text}")]
    OutOfMemory {
        /// Tells which of the two it was, and what to do, in the server's words.
        text: String,
    },
    /// A quota of the tenant refuses the request.
    #[error("over quota ({which}); send less, or ask the operator for more")]
    OverQuota {
        /// The quota, in the server's words.
        which: String,
    },
    /// A key, value, arguments, reply or message is over its limit. An invocation in a batch may have run, and its
    /// reply may not have fitted beside the others.
    #[error("too large: {what}; split it")]
    TooLarge {
        /// The thing that is too large, and its limit.
        what: String,
    },
    /// The invocation was ended.
    #[error("the invocation was killed ({}){}; see the extension's kills", cause_name(*cause), detail_suffix(text))]
    Killed {
        /// The cause.
        cause: KillCause,
        /// More about it.
        text: String,
    },
    /// The extension itself answered with an error.
    #[error("the extension failed ({}){}", failure_text(*code), detail_suffix(text))]
    Failed {
        /// Its code.
        code: u32,
        /// Its text.
        text: String,
    },
    /// The token is missing or wrong, or there is no such tenant: a server does not say which.
    #[error(
        "not authenticated: unknown tenant or wrong token; check the id (sandstorm tenant list) and the token, or let the \
         operator rotate it"
    )]
    Unauthenticated,
    /// No such tenant. Only older servers say so.
    #[error("no such tenant: check its id (sandstorm tenant list)")]
    UnknownTenant,
    /// The tenant has no such table.
    #[error("no such table: check its id (sandstorm table list), or create it")]
    UnknownTable,
    /// The tenant has no such extension.
    #[error("no such extension, or not that version: push it first (sandstorm ext push)")]
    UnknownExtension,
    /// The extension is suspended.
    #[error("{text}")]
    Suspended {
        /// The server's words: the time, the reason, and the remedy.
        text: String,
    },
    /// Another server of the cluster owns the key; nothing was done.
    #[error("another server of the cluster owns the key: {text}")]
    WrongServer {
        /// The epoch of the cluster's map of slots.
        epoch: u64,
        /// The server's words: the owner's address first, if it is known.
        text: String,
    },
    /// The server had no room; the request was not run.
    #[error("the server is overloaded and did not run the request; send it again later, or send less at a time")]
    Overloaded,
    /// The table is another tenant's, granted for reading only.
    #[error("the table was granted for reading only; its owner may grant it with --read-write")]
    ReadOnly,
    /// From another machine the tenant's data are reached in a sealed session only.
    #[error(
        "from another machine this tenant's data are reached in a sealed session only; do not choose plain packets, and give its token"
    )]
    SealRequired,
    /// The request ran, but the server does not know that it is on the disk.
    #[error("not known to be on the disk: {text}")]
    NotDurable {
        /// The server's words.
        text: String,
    },
    /// The record is on the server's disk and cannot be read; nothing was changed.
    #[error("the record cannot be read: {text}")]
    NotRead {
        /// The server's words.
        text: String,
    },
    /// What is behind the table does not take the change; nothing was changed.
    #[error("{text}")]
    NotBacked {
        /// The server's words.
        text: String,
    },
    /// The server is stopping; the request was not run.
    #[error("the server is shutting down and did not run the request; send it again when it is back")]
    ShuttingDown,
    /// The server no longer knows whether it ran.
    #[error("the server no longer knows this request, it may or may not have run; read before you write again")]
    Stale,
    /// No answer within the deadline.
    #[error("no answer within {} ms, the request may or may not have run; is the server running?", after.as_millis())]
    Timeout {
        /// The deadline that passed.
        after: Duration,
    },
    /// Too many requests wait in this client.
    #[error("{waiting} requests wait in this client already; await some of them first")]
    Busy {
        /// Number of waiting requests.
        waiting: usize,
    },
    /// The request, or an operation of it, is malformed; the malformed part was not run.
    #[error("the server refuses the request: {text}")]
    Malformed {
        /// The server's words.
        text: String,
    },
    /// The server speaks another version of the format.
    #[error("the server speaks another version of the protocol: {text}; use the client of that version")]
    Version {
        /// The server's words.
        text: String,
    },
    /// The answer does not fit the request.
    #[error("answer not understood: {text}; are client and server of the same version?")]
    Protocol {
        /// Describes what does not fit.
        text: String,
    },
    /// The socket failed.
    #[error("socket: {text}")]
    Io {
        /// The system's words.
        text: String,
    },
    /// The client's background task has ended, with its runtime.
    #[error("the client is closed: its runtime has ended; connect again")]
    Closed,
}

impl Error {
    /// The error that an answered operation means; `None` when it is a success or [`RpcStatus::NotFound`].
    pub(crate) fn of(answer: &Operation<'_>) -> Option<Error> {
        let text = || String::from_utf8_lossy(answer.value).into_owned();
        Some(match answer.status {
            RpcStatus::Ok | RpcStatus::NotFound => return None,
            RpcStatus::Conflict if answer.op == OpKind::Commit => {
                Error::TransactionConflict { table: answer.table, key: answer.key.to_vec() }
            }
            RpcStatus::Conflict => Error::Conflict,
            // A message that could not be read has no operation to answer.
            RpcStatus::Malformed if answer.op == OpKind::Ping => {
                let text = format!("it could not be read ({}); are client and server of the same version?", text());
                Error::Malformed { text }
            }
            RpcStatus::Malformed => Error::Malformed { text: text() },
            RpcStatus::Version => Error::Version { text: text() },
            RpcStatus::Unauthenticated => Error::Unauthenticated,
            RpcStatus::UnknownTenant => Error::UnknownTenant,
            RpcStatus::UnknownTable => Error::UnknownTable,
            RpcStatus::UnknownExtension => Error::UnknownExtension,
            RpcStatus::WrongServer => Error::WrongServer { epoch: answer.number, text: text() },
            RpcStatus::OverQuota => Error::OverQuota { which: text() },
            RpcStatus::OutOfMemory => Error::OutOfMemory { text: text() },
            RpcStatus::TooLarge => Error::TooLarge { what: text() },
            RpcStatus::Killed => match u8::try_from(answer.number).ok().and_then(KillCause::from_byte) {
                Some(cause) => Error::Killed { cause, text: text() },
                None => Error::Protocol { text: format!("unknown cause {} of a kill", answer.number) },
            },
            RpcStatus::Failed => Error::Failed { code: u32::try_from(answer.number).unwrap_or(u32::MAX), text: text() },
            RpcStatus::Overloaded => Error::Overloaded,
            RpcStatus::Stale => Error::Stale,
            RpcStatus::NotANumber => {
                let text = Some(text()).filter(|text| !text.is_empty());
                Error::NotANumber { text: text.unwrap_or_else(|| "the value is no number, or too large".to_owned()) }
            }
            RpcStatus::Suspended => Error::Suspended { text: text() },
            RpcStatus::ShuttingDown => Error::ShuttingDown,
            RpcStatus::ReadOnly => Error::ReadOnly,
            RpcStatus::SealRequired => Error::SealRequired,
            RpcStatus::NotDurable => Error::NotDurable { text: text() },
            RpcStatus::NotRead => Error::NotRead { text: text() },
            RpcStatus::NotBacked => Error::NotBacked { text: text() },
        })
    }

    /// A word for programs, as the command line prints it with `--json` and the load generator counts by it.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Conflict | Error::TransactionConflict { .. } => "conflict",
            Error::NotANumber { .. } => "not_a_number",
            Error::OutOfMemory { .. } => "out_of_memory",
            Error::OverQuota { .. } => "over_quota",
            Error::TooLarge { .. } => "too_large",
            Error::Killed { .. } => "killed",
            Error::Failed { .. } => "failed",
            Error::Unauthenticated => "unauthenticated",
            Error::UnknownTenant => "unknown_tenant",
            Error::UnknownTable => "unknown_table",
            Error::UnknownExtension => "unknown_extension",
            Error::Suspended { .. } => "suspended",
            Error::WrongServer { .. } => "wrong_server",
            Error::Overloaded => "overloaded",
            Error::ShuttingDown => "shutting_down",
            Error::ReadOnly => "read_only",
            Error::SealRequired => "seal_required",
            Error::NotDurable { .. } => "not_durable",
            Error::NotRead { .. } => "not_read",
            Error::NotBacked { .. } => "not_backed",
            Error::Stale => "stale",
            Error::Timeout { .. } => "timeout",
            Error::Busy { .. } => "busy",
            Error::Malformed { .. } => "malformed",
            Error::Version { .. } => "version",
            Error::Protocol { .. } => "protocol",
            Error::Io { .. } => "io",
            Error::Closed => "closed",
        }
    }

    /// The name of what the extension has failed for, such as `not_found`, or of why its call was killed, such as
    /// `panic`: as HTTP's `kind` and `cause` have it. `None`: it is neither.
    pub fn kind(&self) -> Option<&'static str> {
        match self {
            Error::Failed { code, .. } => Some(failure_name(u64::from(*code)).unwrap_or("other")),
            Error::Killed { cause, .. } => Some(cause_name(*cause)),
            _ => None,
        }
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        Error::Io { text: error.to_string() }
    }
}

/// The name of a cause as the control API writes it.
pub fn cause_name(cause: KillCause) -> &'static str {
    match cause {
        KillCause::SliceBudget => "slice_budget",
        KillCause::TotalBudget => "total_budget",
        KillCause::Panic => "panic",
        KillCause::OutOfMemory => "out_of_memory",
        KillCause::StackOverflow => "stack_overflow",
        KillCause::DivisionByZero => "division_by_zero",
        KillCause::IllegalInstruction => "illegal_instruction",
        KillCause::MemoryFault => "memory_fault",
        KillCause::Unloaded => "unloaded",
        KillCause::ReclaimPressure => "crowded",
    }
}

/// The kind of an extension's error by its name; a number without one as it stands.
fn failure_text(code: u32) -> Cow<'static, str> {
    failure_name(u64::from(code)).map_or_else(|| Cow::Owned(format!("code {code}")), Cow::Borrowed)
}

/// What an increment of a key's record has met that is no number, as a server says it.
pub(crate) fn not_a_number(key: &[u8]) -> Error {
    let shown = shown_key(key);
    Error::NotANumber {
        text: format!("the value under {shown} is not a decimal number, or the sum does not fit in 64 bits"),
    }
}

/// A key in a text: as much of it as tells which it is.
fn shown_key(key: &[u8]) -> String {
    const SHOWN_BYTES: usize = 64;
    let shown = key.get(..SHOWN_BYTES).unwrap_or(key).escape_ascii();
    if key.len() > SHOWN_BYTES { format!("the key \"{shown}…\"") } else { format!("the key \"{shown}\"") }
}

fn detail_suffix(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}
