//! What a request is about, for the case that it was slow: its command, its table, its key.

use sandstorm_accounts::RequestSubject;
use sandstorm_net::memcached::binary::{BinaryCommand, BinaryFrame};
use sandstorm_net::memcached::{MetaCommand, StoreMode, TextRequest};

/// What a text request is about.
pub(super) fn subject_of_request(request: &TextRequest<'_>, table: u64) -> RequestSubject {
    let (name, key): (_, &[u8]) = match request {
        TextRequest::Get { key, cas, exptime } => (retrieval(*cas, *exptime), key),
        TextRequest::GetMany { cas, exptime } => (retrieval(*cas, *exptime), b""),
        TextRequest::Store(store) => (storage(store.verb), store.key),
        TextRequest::TooLarge { key, set, .. } => (if *set { "set" } else { "store" }, key),
        TextRequest::Delete { key, .. } => ("delete", key),
        TextRequest::Arithmetic { key, up, .. } => (arithmetic(*up), key),
        TextRequest::Touch { key, .. } => ("touch", key),
        TextRequest::FlushAll { .. } => return RequestSubject::new("flush_all", table, b""),
        TextRequest::Meta(meta) => {
            let name = match meta.verb {
                MetaCommand::Get => "mg",
                MetaCommand::Set => "ms",
                MetaCommand::Delete => "md",
                MetaCommand::Arithmetic => "ma",
                MetaCommand::Debug => "me",
            };
            // An encoded key is another one than it looks.
            (name, if meta.flags.base64 { b"" } else { meta.key })
        }
        TextRequest::MetaTooLarge { key, base64 } => ("ms", if *base64 { b"" } else { key }),
        TextRequest::Stats(_) => return RequestSubject::of("stats"),
        TextRequest::Version => return RequestSubject::of("version"),
        TextRequest::Noop { .. } => return RequestSubject::of("noop"),
        TextRequest::MetaNoop => return RequestSubject::of("mn"),
        TextRequest::Quit => return RequestSubject::of("quit"),
        TextRequest::Invalid { .. } => return RequestSubject::of("invalid"),
    };
    RequestSubject::new(name, table, key)
}

/// What a frame of the binary protocol is about.
pub(super) fn subject_of_frame(frame: &BinaryFrame<'_>, table: u64) -> RequestSubject {
    let (name, key): (_, &[u8]) = match &frame.command {
        BinaryCommand::Get { key, exptime, .. } => (if exptime.is_some() { "gat" } else { "get" }, key),
        BinaryCommand::Touch { key, .. } => ("touch", key),
        BinaryCommand::Store { store, .. } => (storage(store.verb), store.key),
        BinaryCommand::TooLarge { key, set } => (if *set { "set" } else { "store" }, key),
        BinaryCommand::Delete { key, .. } => ("delete", key),
        BinaryCommand::Arithmetic { key, up, .. } => (arithmetic(*up), key),
        BinaryCommand::Flush { .. } => return RequestSubject::new("flush_all", table, b""),
        BinaryCommand::Stat { .. } => return RequestSubject::of("stats"),
        BinaryCommand::Version => return RequestSubject::of("version"),
        BinaryCommand::Noop => return RequestSubject::of("noop"),
        BinaryCommand::Quit => return RequestSubject::of("quit"),
        BinaryCommand::Sasl(_) => return RequestSubject::of("sasl"),
        BinaryCommand::Malformed(_) | BinaryCommand::Refused(_) | BinaryCommand::Unknown => {
            return RequestSubject::of("invalid");
        }
    };
    RequestSubject::new(name, table, key)
}

/// The name of a command that reads.
pub(super) fn retrieval(cas: bool, exptime: Option<i32>) -> &'static str {
    match (cas, exptime) {
        (false, None) => "get",
        (true, None) => "gets",
        (false, Some(_)) => "gat",
        (true, Some(_)) => "gats",
    }
}

fn storage(mode: StoreMode) -> &'static str {
    match mode {
        StoreMode::Set => "set",
        StoreMode::Add => "add",
        StoreMode::Replace => "replace",
        StoreMode::Append => "append",
        StoreMode::Prepend => "prepend",
        StoreMode::Cas(_) => "cas",
    }
}

fn arithmetic(up: bool) -> &'static str {
    if up { "incr" } else { "decr" }
}
