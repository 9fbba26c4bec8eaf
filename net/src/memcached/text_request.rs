//! Requests of the text protocol, classic or meta.

use super::text::LineTokens;

/// The modes in which a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreMode {
    /// In any case.
    Set,
    /// If there is none.
    Add,
    /// If there is one.
    Replace,
    /// Behind the one that is there.
    Append,
    /// Before it.
    Prepend,
    /// If the one that is there has this number.
    Cas(u64),
}

/// A value to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreRequest<'i> {
    /// The mode.
    pub verb: StoreMode,
    /// The key.
    pub key: &'i [u8],
    /// The flags.
    pub flags: u32,
    /// The time of expiry. The binary protocol's go beyond what the text protocol's may be.
    pub exptime: i64,
    /// The value.
    pub value: &'i [u8],
    /// True if no answer is wanted.
    pub noreply: bool,
}

/// The meta commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaCommand {
    /// mg
    Get,
    /// ms
    Set,
    /// md
    Delete,
    /// ma
    Arithmetic,
    /// me
    Debug,
}

/// The flags of a meta command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaFlags {
    /// b: the key is base64.
    pub base64: bool,
    /// q: no answer where it goes as it mostly goes.
    pub quiet: bool,
    /// v: with the value.
    pub value: bool,
    /// I: an old value, or one to be invalidated, is marked as stale.
    pub invalidate: bool,
    /// x: the value goes, the item stays.
    pub remove_value: bool,
    /// N: where there is none, one is made that ends then.
    pub vivify: Option<i32>,
    /// T: the new time of expiry.
    pub ttl: Option<i32>,
    /// R: if it expires sooner than this, one client is asked to renew it.
    pub recache: Option<i32>,
    /// C: only if it has this number.
    pub cas: Option<u64>,
    /// E: the number that it is to have.
    pub new_cas: Option<u64>,
    /// F: the flags that it is to have.
    pub flags: u32,
    /// D: by how much.
    pub delta: Option<u64>,
    /// J: the number that is written where there is none.
    pub initial: u64,
    /// M: the mode; 0: none was said.
    pub mode: u8,
}

/// A meta command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaRequest<'i> {
    /// The command.
    pub verb: MetaCommand,
    /// The key as it was written: in base64 if its flag says so.
    pub key: &'i [u8],
    /// Its flags.
    pub flags: MetaFlags,
    /// The value of `ms`.
    pub block: &'i [u8],
    /// The flags as they were written, in their order: the answer has those that ask for something in the same.
    pub written: LineTokens<'i>,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextRequest<'i> {
    /// get, gets, gat or gats of one key.
    Get {
        /// The key.
        key: &'i [u8],
        /// True if the record's number is wanted, too.
        cas: bool,
        /// A new time of expiry.
        exptime: Option<i32>,
    },
    /// The same of any number of keys, which follow: the words up to the end of the line.
    GetMany {
        /// True if the records' numbers are wanted, too.
        cas: bool,
        /// A new time of expiry.
        exptime: Option<i32>,
    },
    /// set, add, replace, append, prepend, cas.
    Store(StoreRequest<'i>),
    /// A value longer than can be stored. It is to be skipped, and refused; a `set` also ends what was there.
    TooLarge {
        /// The key.
        key: &'i [u8],
        /// True if it was a `set`.
        set: bool,
        /// True if no answer is wanted.
        noreply: bool,
    },
    /// delete.
    Delete {
        /// The key.
        key: &'i [u8],
        /// True if no answer is wanted.
        noreply: bool,
    },
    /// incr, decr.
    Arithmetic {
        /// The key.
        key: &'i [u8],
        /// The difference.
        delta: u64,
        /// Up, or down.
        up: bool,
        /// True if no answer is wanted.
        noreply: bool,
    },
    /// touch.
    Touch {
        /// The key.
        key: &'i [u8],
        /// The new time of expiry.
        exptime: i32,
        /// True if no answer is wanted.
        noreply: bool,
    },
    /// flush_all.
    FlushAll {
        /// The delay.
        delay: i32,
        /// True if no answer is wanted.
        noreply: bool,
    },
    /// stats, of the group that the words name.
    Stats(LineTokens<'i>),
    /// version.
    Version,
    /// verbosity, and the other commands that are accepted and do nothing.
    Noop {
        /// True if no answer is wanted.
        noreply: bool,
    },
    /// quit.
    Quit,
    /// An ms whose value is longer than can be stored. It ends what was there, whatever its mode.
    MetaTooLarge {
        /// The key, as it was written.
        key: &'i [u8],
        /// True if that is in base64.
        base64: bool,
    },
    /// mg, ms, md, ma, me.
    Meta(MetaRequest<'i>),
    /// mn.
    MetaNoop,
    /// Something that is answered with this text.
    Invalid {
        /// The text.
        text: &'static str,
        /// True if no answer is wanted.
        noreply: bool,
    },
}

/// The result of parsing the front of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextParse<'i> {
    /// A part of a request: the whole takes at least so many bytes.
    Incomplete(usize),
    /// A request.
    Request {
        /// The request.
        request: TextRequest<'i>,
        /// Bytes that it takes of those that have come.
        used: usize,
        /// Bytes that are to be skipped of those behind them, which may not have come yet.
        skip: u64,
    },
    /// Something that cannot become a request: the connection ends.
    Fatal,
}

impl<'i> TextParse<'i> {
    pub(super) fn whole(request: TextRequest<'i>, used: usize) -> TextParse<'i> {
        TextParse::Request { request, used, skip: 0 }
    }

    pub(super) fn wrong(text: &'static str, noreply: bool, used: usize) -> TextParse<'i> {
        TextParse::whole(TextRequest::Invalid { text, noreply }, used)
    }
}
