//! The meta commands: two letters, a key, and flags of one letter each, some with a value.

use super::request::{Block, Parsed, Request, block};
use super::text::{Words, decode_base64, flags, int, unsigned};
use super::{BAD_CHUNK, BAD_FORMAT, BAD_KEY, ERROR, MAX_KEY_LEN};

/// Which meta command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaVerb {
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
pub struct Flags {
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
pub struct Meta<'i> {
    /// Which.
    pub verb: MetaVerb,
    /// The key as it was written: in base64 if its flag says so.
    pub key: &'i [u8],
    /// What its flags say.
    pub flags: Flags,
    /// The value of `ms`.
    pub block: &'i [u8],
    /// The flags as they were written, in their order: the answer has those that ask for something in the same.
    pub written: Words<'i>,
}

const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
/// Longest opaque word, bytes, its letter included.
const MAX_OPAQUE_LEN: usize = 32;
/// Flags of one command, at most.
const MAX_FLAGS: usize = 17;

/// Reads the flags. `Err`: what is wrong with them.
fn read_flags(words: Words<'_>) -> Result<Flags, &'static str> {
    let mut read = Flags::default();
    let mut seen = 0u128;
    let mut error = None;
    for word in words {
        let (letter, rest) = (word[0], &word[1..]);
        if letter >= 127 || seen >> letter & 1 == 1 {
            return Err("CLIENT_ERROR duplicate flag");
        }
        seen |= 1 << letter;
        let mut number = |number: Option<i32>| {
            error = error.or(number.is_none().then_some(BAD_TOKEN));
            Some(number.unwrap_or(0))
        };
        match letter {
            b'b' => read.base64 = true,
            b'q' => read.quiet = true,
            b'v' => read.value = true,
            b'I' => read.invalidate = true,
            b'x' => read.remove_value = true,
            b'N' => read.vivify = number(int(rest)),
            b'T' => read.ttl = number(int(rest)),
            b'R' => read.recache = number(int(rest)),
            b'C' | b'E' => {
                let cas = unsigned(rest);
                error = error.or(cas.is_none().then_some(BAD_TOKEN));
                *(if letter == b'C' { &mut read.cas } else { &mut read.new_cas }) = Some(cas.unwrap_or(0));
            }
            b'F' => match flags(rest) {
                Some(flags) => read.flags = flags,
                None => error = error.or(Some(BAD_FORMAT)),
            },
            b'D' => match unsigned(rest) {
                Some(delta) => read.delta = Some(delta),
                None => error = error.or(Some("CLIENT_ERROR invalid numeric delta value")),
            },
            b'J' => match unsigned(rest) {
                Some(initial) => read.initial = initial,
                None => error = error.or(Some("CLIENT_ERROR invalid numeric initial value")),
            },
            b'M' if rest.len() == 1 => read.mode = rest[0],
            b'M' => error = error.or(Some("CLIENT_ERROR incorrect length for M token")),
            b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'l' | b'h' | b'u' => {}
            _ => return Err("CLIENT_ERROR invalid flag"),
        }
    }
    error.map_or(Ok(read), Err)
}

/// The meta command on a line, whose words these are.
pub(super) fn parse_meta<'i>(
    input: &'i [u8],
    line: &'i [u8],
    words: &[&'i [u8]],
    used: usize,
    max_value: usize,
) -> Parsed<'i> {
    let wrong = |text| Parsed::Request { request: Request::Wrong { text, noreply: false }, used, skip: 0 };
    let verb = match words[0][1] {
        b'g' => MetaVerb::Get,
        b's' => return set(input, line, words, used, max_value),
        b'd' => MetaVerb::Delete,
        b'a' => MetaVerb::Arithmetic,
        b'e' => MetaVerb::Debug,
        b'n' => return Parsed::Request { request: Request::MetaNothing, used, skip: 0 },
        _ => return wrong(ERROR),
    };
    match words.get(1) {
        Some(key) if key.len() <= MAX_KEY_LEN => {}
        None if verb != MetaVerb::Debug => return wrong(ERROR),
        _ => return wrong(BAD_FORMAT),
    }
    match read(verb, line, words[1], 2) {
        Ok(meta) => Parsed::Request { request: Request::Meta(meta), used, skip: 0 },
        Err(text) => wrong(text),
    }
}

/// Whether a flag is among these.
fn has(mut written: Words<'_>, letter: u8) -> bool {
    written.any(|word| word[0] == letter)
}

fn read<'i>(verb: MetaVerb, line: &'i [u8], key: &'i [u8], before: usize) -> Result<Meta<'i>, &'static str> {
    let mut written = Words::new(line);
    written.by_ref().take(before).for_each(drop);
    if written.count() > MAX_FLAGS {
        return Err("CLIENT_ERROR options flags are too long");
    }
    // `me` looks at the key alone.
    let read = if verb == MetaVerb::Debug {
        Ok(Flags { base64: has(written, b'b'), ..Flags::default() })
    } else {
        read_flags(written)
    };
    let vague = matches!(verb, MetaVerb::Delete | MetaVerb::Arithmetic);
    let flags = read.map_err(|text| if vague { "CLIENT_ERROR invalid or duplicate flag" } else { text })?;
    let mut words = written;
    if words.any(|word| word[0] == b'O' && word.len() > MAX_OPAQUE_LEN) {
        return Err("CLIENT_ERROR opaque token too long");
    }
    Ok(Meta { verb, key, flags, block: b"", written })
}

/// `ms`: what is wrong with its flags is told after its data block was skipped.
fn set<'i>(input: &'i [u8], line: &'i [u8], words: &[&'i [u8]], used: usize, max_value: usize) -> Parsed<'i> {
    let wrong = |text, skip| Parsed::Request { request: Request::Wrong { text, noreply: false }, used, skip };
    let Some(key) = words.get(1) else { return wrong(ERROR, 0) };
    let Some(len) = words.get(2) else { return wrong(BAD_FORMAT, 0) };
    if key.len() > MAX_KEY_LEN {
        return wrong(BAD_FORMAT, 0);
    }
    let Some(len) = int(len).and_then(|len| usize::try_from(len).ok()).filter(|len| *len <= i32::MAX as usize - 2)
    else {
        return wrong(BAD_FORMAT, 0);
    };
    let skip = len as u64 + 2;
    let meta = match read(MetaVerb::Set, line, key, 3) {
        Ok(meta) => meta,
        Err(text) => return wrong(text, skip),
    };
    if meta.flags.base64 && decode_base64(key, &mut [0; MAX_KEY_LEN]).is_none() {
        return wrong(BAD_KEY, skip);
    }
    if !matches!(meta.flags.mode, 0 | b'E' | b'e' | b'A' | b'a' | b'P' | b'p' | b'R' | b'r' | b'S' | b's') {
        return wrong("CLIENT_ERROR invalid mode for ms M token", skip);
    }
    if len > max_value {
        let request = Request::MetaTooLarge { key, base64: meta.flags.base64 };
        return Parsed::Request { request, used, skip };
    }
    match block(input, used, len) {
        Block::Whole(block) => {
            let request = Request::Meta(Meta { block, ..meta });
            Parsed::Request { request, used: used + len + 2, skip: 0 }
        }
        Block::More(needed) => Parsed::More(needed),
        Block::Wrong(used) => {
            Parsed::Request { request: Request::Wrong { text: BAD_CHUNK, noreply: false }, used, skip: 0 }
        }
    }
}
