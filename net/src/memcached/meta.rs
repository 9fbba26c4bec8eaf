//! The meta commands: two letters, a key, and flags of one letter each, some with a value.

use super::data_block::{DataBlock, find_data_block};
use super::text::{LineTokens, decode_base64, parse_flags, parse_i32, parse_u64};
use super::text_request::{MetaCommand, MetaFlags, MetaRequest, TextParse, TextRequest};
use super::{BAD_CHUNK, BAD_FORMAT, BAD_KEY, ERROR, MAX_KEY_LEN};

const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
/// Longest opaque word, bytes, its letter included.
const MAX_OPAQUE_LEN: usize = 32;
/// Flags of one command, at most.
const MAX_FLAGS: usize = 17;

/// Parses the flags. `Err`: what is wrong with them.
fn parse_meta_flags(words: LineTokens<'_>) -> Result<MetaFlags, &'static str> {
    let mut read = MetaFlags::default();
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
            b'N' => read.vivify = number(parse_i32(rest)),
            b'T' => read.ttl = number(parse_i32(rest)),
            b'R' => read.recache = number(parse_i32(rest)),
            b'C' | b'E' => {
                let cas = parse_u64(rest);
                error = error.or(cas.is_none().then_some(BAD_TOKEN));
                *(if letter == b'C' { &mut read.cas } else { &mut read.new_cas }) = Some(cas.unwrap_or(0));
            }
            b'F' => match parse_flags(rest) {
                Some(flags) => read.flags = flags,
                None => error = error.or(Some(BAD_FORMAT)),
            },
            b'D' => match parse_u64(rest) {
                Some(delta) => read.delta = Some(delta),
                None => error = error.or(Some("CLIENT_ERROR invalid numeric delta value")),
            },
            b'J' => match parse_u64(rest) {
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

/// Parses the meta command on a line, whose words these are.
pub(super) fn parse_meta<'i>(
    input: &'i [u8],
    line: &'i [u8],
    words: &[&'i [u8]],
    used: usize,
    max_value: usize,
) -> TextParse<'i> {
    let wrong = |text| TextParse::Request { request: TextRequest::Invalid { text, noreply: false }, used, skip: 0 };
    let verb = match words[0][1] {
        b'g' => MetaCommand::Get,
        b's' => return parse_meta_set(input, line, words, used, max_value),
        b'd' => MetaCommand::Delete,
        b'a' => MetaCommand::Arithmetic,
        b'e' => MetaCommand::Debug,
        b'n' => return TextParse::Request { request: TextRequest::MetaNoop, used, skip: 0 },
        _ => return wrong(ERROR),
    };
    match words.get(1) {
        Some(key) if key.len() <= MAX_KEY_LEN => {}
        None if verb != MetaCommand::Debug => return wrong(ERROR),
        _ => return wrong(BAD_FORMAT),
    }
    match parse_flags_and_key(verb, line, words[1], 2) {
        Ok(meta) => TextParse::Request { request: TextRequest::Meta(meta), used, skip: 0 },
        Err(text) => wrong(text),
    }
}

/// Returns whether a flag is among these.
fn has(mut written: LineTokens<'_>, letter: u8) -> bool {
    written.any(|word| word[0] == letter)
}

fn parse_flags_and_key<'i>(
    verb: MetaCommand,
    line: &'i [u8],
    key: &'i [u8],
    before: usize,
) -> Result<MetaRequest<'i>, &'static str> {
    let mut written = LineTokens::new(line);
    written.by_ref().take(before).for_each(drop);
    if written.count() > MAX_FLAGS {
        return Err("CLIENT_ERROR options flags are too long");
    }
    // `me` looks at the key alone.
    let read = if verb == MetaCommand::Debug {
        Ok(MetaFlags { base64: has(written, b'b'), ..MetaFlags::default() })
    } else {
        parse_meta_flags(written)
    };
    let vague = matches!(verb, MetaCommand::Delete | MetaCommand::Arithmetic);
    let flags = read.map_err(|text| if vague { "CLIENT_ERROR invalid or duplicate flag" } else { text })?;
    let mut words = written;
    if words.any(|word| word[0] == b'O' && word.len() > MAX_OPAQUE_LEN) {
        return Err("CLIENT_ERROR opaque token too long");
    }
    Ok(MetaRequest { verb, key, flags, block: b"", written })
}

/// Parses `ms`: a fault of its flags is reported after its data block was skipped.
fn parse_meta_set<'i>(
    input: &'i [u8],
    line: &'i [u8],
    words: &[&'i [u8]],
    used: usize,
    max_value: usize,
) -> TextParse<'i> {
    let wrong = |text, skip| TextParse::Request { request: TextRequest::Invalid { text, noreply: false }, used, skip };
    let Some(key) = words.get(1) else { return wrong(ERROR, 0) };
    let Some(len) = words.get(2) else { return wrong(BAD_FORMAT, 0) };
    if key.len() > MAX_KEY_LEN {
        return wrong(BAD_FORMAT, 0);
    }
    let Some(len) =
        parse_i32(len).and_then(|len| usize::try_from(len).ok()).filter(|len| *len <= i32::MAX as usize - 2)
    else {
        return wrong(BAD_FORMAT, 0);
    };
    let skip = len as u64 + 2;
    let meta = match parse_flags_and_key(MetaCommand::Set, line, key, 3) {
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
        let request = TextRequest::MetaTooLarge { key, base64: meta.flags.base64 };
        return TextParse::Request { request, used, skip };
    }
    match find_data_block(input, used, len) {
        DataBlock::Whole(block) => {
            let request = TextRequest::Meta(MetaRequest { block, ..meta });
            TextParse::Request { request, used: used + len + 2, skip: 0 }
        }
        DataBlock::Incomplete(needed) => TextParse::Incomplete(needed),
        DataBlock::BadTerminator(used) => {
            TextParse::Request { request: TextRequest::Invalid { text: BAD_CHUNK, noreply: false }, used, skip: 0 }
        }
    }
}
