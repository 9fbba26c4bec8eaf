//! What one request of the text protocol asks for, classic or meta.

use super::text::LineTokens;

/// How a value is to be stored.
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
    /// How.
    pub verb: StoreMode,
    /// Under this key.
    pub key: &'i [u8],
    /// With these flags.
    pub flags: u32,
    /// Until then. The binary protocol's go beyond what the text protocol's may be.
    pub exptime: i64,
    /// The value.
    pub value: &'i [u8],
    /// Whether no answer is wanted.
    pub noreply: bool,
}

/// Which meta command.
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

/// What the flags of a meta command say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaFlags {
    /// b: the key is base64.
    pub base64: bool,
    /// q: no answer where it goes as it mostly goes.
    pub quiet: bool,
    /// v: with the value.
    pub value: bool,
    /// I: what is old, or to be invalidated, is marked as stale.
    pub invalidate: bool,
    /// x: the value goes, the item stays.
    pub remove_value: bool,
    /// N: where there is none, one is made that ends then.
    pub vivify: Option<i32>,
    /// T: the new time of expiry.
    pub ttl: Option<i32>,
    /// R: where it ends sooner than this, one client is told to renew it.
    pub recache: Option<i32>,
    /// C: only if it has this number.
    pub cas: Option<u64>,
    /// E: the number that it is to have.
    pub new_cas: Option<u64>,
    /// F: the flags that it is to have.
    pub flags: u32,
    /// D: by how much.
    pub delta: Option<u64>,
    /// J: what is written where there was none.
    pub initial: u64,
    /// M: the mode; 0: none was said.
    pub mode: u8,
}

/// A meta command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaRequest<'i> {
    /// Which.
    pub verb: MetaCommand,
    /// The key as it was written: in base64 if its flag says so.
    pub key: &'i [u8],
    /// What its flags say.
    pub flags: MetaFlags,
    /// The value of `ms`.
    pub block: &'i [u8],
    /// The flags as they were written, in their order: the answer has those that ask for something in the same.
    pub written: LineTokens<'i>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextRequest<'i> {
    /// get, gets, gat or gats of one key.
    Get {
        /// The key.
        key: &'i [u8],
        /// Whether the record's number is wanted, too.
        cas: bool,
        /// A new time of expiry.
        exptime: Option<i32>,
    },
    /// The same of any number of keys, which follow: the words up to the end of the line.
    GetMany {
        /// Whether the records' numbers are wanted, too.
        cas: bool,
        /// A new time of expiry.
        exptime: Option<i32>,
    },
    /// set, add, replace, append, prepend, cas.
    Store(StoreRequest<'i>),
    /// A value longer than can be stored. It is to be skipped, and told so; a `set` also ends what was there.
    TooLarge {
        /// The key.
        key: &'i [u8],
        /// Whether it was a `set`.
        set: bool,
        /// Whether no answer is wanted.
        noreply: bool,
    },
    /// delete.
    Delete {
        /// The key.
        key: &'i [u8],
        /// Whether no answer is wanted.
        noreply: bool,
    },
    /// incr, decr.
    Arithmetic {
        /// The key.
        key: &'i [u8],
        /// By so much.
        delta: u64,
        /// Up, or down.
        up: bool,
        /// Whether no answer is wanted.
        noreply: bool,
    },
    /// touch.
    Touch {
        /// The key.
        key: &'i [u8],
        /// The new time of expiry.
        exptime: i32,
        /// Whether no answer is wanted.
        noreply: bool,
    },
    /// flush_all.
    FlushAll {
        /// When.
        delay: i32,
        /// Whether no answer is wanted.
        noreply: bool,
    },
    /// stats, of what the words say.
    Stats(LineTokens<'i>),
    /// version.
    Version,
    /// verbosity, and what else is taken and does nothing.
    Noop {
        /// Whether no answer is wanted.
        noreply: bool,
    },
    /// quit.
    Quit,
    /// The same of ms. It ends what was there, whatever its mode.
    MetaTooLarge {
        /// The key, as it was written.
        key: &'i [u8],
        /// Whether that is in base64.
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
        /// Whether no answer is wanted.
        noreply: bool,
    },
}

/// What stands at the front of what has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextParse<'i> {
    /// A part of a request: it takes at least so many bytes.
    Incomplete(usize),
    /// A request.
    Request {
        /// What it asks for.
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
