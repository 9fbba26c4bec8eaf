//! Parses one request at the front of the input.

use super::data_block::{DataBlock, find_data_block};
use super::meta::parse_meta;
use super::text::{LineTokens, parse_flags, parse_i32, parse_u64};
use super::text_request::{StoreMode, StoreRequest, TextParse, TextRequest};
use super::{BAD_CHUNK, BAD_EXPTIME, BAD_FORMAT, ERROR, MAX_BLANKS, MAX_KEY_LEN, MAX_LINE_LEN};

/// Words of a line that are looked at, at most; the last one is all the rest.
const MAX_TOKENS: usize = 23;

/// The words of a line.
struct TokenizedLine<'i> {
    words: [&'i [u8]; MAX_TOKENS],
    count: usize,
}

impl<'i> TokenizedLine<'i> {
    fn new(line: &'i [u8]) -> TokenizedLine<'i> {
        let (mut words, mut count) = ([&line[..0]; MAX_TOKENS], 0);
        let mut rest = LineTokens::new(line);
        while count < MAX_TOKENS - 1
            && let Some(word) = rest.next()
        {
            words[count] = word;
            count += 1;
        }
        if !rest.rest().is_empty() && count == MAX_TOKENS - 1 {
            let blanks = rest.rest().iter().take_while(|byte| **byte == b' ').count();
            words[count] = &rest.rest()[blanks..];
            count += usize::from(!words[count].is_empty());
        }
        TokenizedLine { words, count }
    }

    fn words(&self) -> &[&'i [u8]] {
        &self.words[..self.count]
    }

    fn word(&self, index: usize) -> &'i [u8] {
        self.words[index]
    }

    fn noreply(&self) -> bool {
        self.count > 0 && self.words[self.count - 1] == b"noreply"
    }
}

/// The request at the front of `input`. Values longer than `max_value` are to be skipped.
#[inline]
pub fn parse(input: &[u8], max_value: usize) -> TextParse<'_> {
    let Some(end) = input.iter().position(|byte| *byte == b'\n') else {
        return unfinished(input);
    };
    let mut line = &input[..end];
    // As in memcached, a line of nothing but a carriage return keeps that.
    if line.len() > 1 && line.last() == Some(&b'\r') {
        line = &line[..line.len() - 1];
    }
    let used = end + 1;
    if line.starts_with(b"get ") || line.starts_with(b"gets ") {
        return get(line, used);
    }
    command(input, line, used, max_value)
}

/// Parses the beginning of a line that is not complete yet.
#[cold]
fn unfinished(input: &[u8]) -> TextParse<'_> {
    if input.len() <= MAX_LINE_LEN {
        return TextParse::Incomplete(input.len() + 1);
    }
    let blanks = input.iter().take_while(|byte| **byte == b' ').count();
    if blanks > MAX_BLANKS {
        return TextParse::Fatal;
    }
    for (word, cas) in [(&b"get "[..], false), (b"gets ", true)] {
        if input[blanks..].starts_with(word) {
            return TextParse::whole(TextRequest::GetMany { cas, exptime: None }, blanks + word.len());
        }
    }
    TextParse::Fatal
}

/// A `get` or `gets` that begins with its name: nearly all requests.
#[inline]
fn get(line: &[u8], used: usize) -> TextParse<'_> {
    let mut words = LineTokens::new(line);
    let name = words.next().map_or(0, <[u8]>::len);
    let Some(key) = words.next() else { return TextParse::wrong(ERROR, false, used) };
    let cas = name == 4;
    if words.rest().iter().all(|byte| *byte == b' ') {
        if key.len() > MAX_KEY_LEN {
            return TextParse::wrong(BAD_FORMAT, false, used);
        }
        return TextParse::whole(TextRequest::Get { key, cas, exptime: None }, used);
    }
    get_many(line, name, cas, None, used)
}

/// A line of many keys behind its first `front` bytes. If one of them is too long, that is all the answer.
fn get_many(line: &[u8], front: usize, cas: bool, exptime: Option<i32>, used: usize) -> TextParse<'_> {
    if LineTokens::new(&line[front..]).any(|key| key.len() > MAX_KEY_LEN) {
        return TextParse::wrong(BAD_FORMAT, false, used);
    }
    TextParse::whole(TextRequest::GetMany { cas, exptime }, front)
}

fn command<'i>(input: &'i [u8], line: &'i [u8], used: usize, max_value: usize) -> TextParse<'i> {
    let words = TokenizedLine::new(line);
    let count = words.count;
    let noreply = words.noreply();
    let of = |least: usize, most: usize| (least..=most).contains(&count);
    let wrong = |text| TextParse::wrong(text, false, used);
    let name = words.word(0);
    if count == 0 || name.len() < 2 {
        return wrong(ERROR);
    }
    if name.len() == 2 && name[0] == b'm' {
        return parse_meta(input, line, words.words(), used, max_value);
    }
    match name {
        b"bget" if count >= 2 => get_many(line, offset_after_tokens(line, 1), false, None, used),
        b"get" | b"gets" if count >= 2 => {
            let front = line.iter().take_while(|byte| **byte == b' ').count();
            match get(&line[front..], used) {
                TextParse::Request { request: request @ TextRequest::GetMany { .. }, used, skip } => {
                    TextParse::Request { request, used: used + front, skip }
                }
                parsed => parsed,
            }
        }
        b"gat" | b"gats" if count >= 2 => get_and_touch(line, &words, used),
        b"set" | b"add" | b"replace" | b"append" | b"prepend" if of(5, 6) => {
            store(input, &words, None, used, max_value)
        }
        b"cas" if of(6, 7) => store(input, &words, Some(5), used, max_value),
        b"incr" | b"decr" if of(3, 4) => arithmetic(&words, used),
        b"touch" if of(3, 4) => touch(&words, used),
        b"delete" if of(2, 4) => delete(&words, used),
        b"flush_all" if of(1, 3) => flush_all(&words, used),
        b"stats" => {
            let mut rest = LineTokens::new(line);
            rest.next();
            TextParse::whole(TextRequest::Stats(rest), used)
        }
        b"version" => TextParse::whole(TextRequest::Version, used),
        b"verbosity" if count >= 2 => match parse_u64(words.word(1)) {
            Some(_) => TextParse::whole(TextRequest::Noop { noreply }, used),
            None => TextParse::wrong(BAD_FORMAT, noreply, used),
        },
        b"quit" => TextParse::whole(TextRequest::Quit, used),
        _ if is_command(name) => wrong(ERROR),
        // A browser: memcached hangs up, so that none of the later bytes are taken for commands.
        _ if words.word(count - 1).starts_with(b"HTTP/") => TextParse::Fatal,
        _ => wrong(ERROR),
    }
}

/// Returns whether the name is one of memcached's commands, which came with too few words or too many.
#[cold]
fn is_command(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 17] = [
        b"get",
        b"gets",
        b"bget",
        b"gat",
        b"gats",
        b"set",
        b"add",
        b"replace",
        b"append",
        b"prepend",
        b"cas",
        b"incr",
        b"decr",
        b"touch",
        b"delete",
        b"flush_all",
        b"verbosity",
    ];
    NAMES.contains(&name)
}

/// Returns the offset of the rest of a line behind its first words.
fn offset_after_tokens(line: &[u8], words: usize) -> usize {
    let mut rest = LineTokens::new(line);
    rest.by_ref().take(words).for_each(drop);
    line.len() - rest.rest().len()
}

fn get_and_touch<'i>(line: &'i [u8], words: &TokenizedLine<'i>, used: usize) -> TextParse<'i> {
    let cas = words.word(0).len() == 4;
    let Some(exptime) = parse_i32(words.word(1)) else {
        return TextParse::wrong(BAD_EXPTIME, false, used);
    };
    let front = offset_after_tokens(line, 2);
    if words.count == 3 {
        let key = words.word(2);
        if key.len() > MAX_KEY_LEN {
            return TextParse::wrong(BAD_FORMAT, false, used);
        }
        return TextParse::whole(TextRequest::Get { key, cas, exptime: Some(exptime) }, used);
    }
    get_many(line, front, cas, Some(exptime), used)
}

fn store<'i>(
    input: &'i [u8],
    words: &TokenizedLine<'i>,
    cas_at: Option<usize>,
    used: usize,
    max_value: usize,
) -> TextParse<'i> {
    let noreply = words.noreply();
    let key = words.word(1);
    let numbers = (parse_flags(words.word(2)), parse_i32(words.word(3)), parse_i32(words.word(4)));
    let cas = cas_at.map_or(Some(0), |at| parse_u64(words.word(at)));
    let (true, (Some(flags), Some(exptime), Some(len)), Some(cas)) = (key.len() <= MAX_KEY_LEN, numbers, cas) else {
        return TextParse::wrong(BAD_FORMAT, noreply, used);
    };
    let Some(len) = usize::try_from(len).ok().filter(|len| *len <= i32::MAX as usize - 2) else {
        return TextParse::wrong(BAD_FORMAT, noreply, used);
    };
    let verb = match words.word(0) {
        b"set" => StoreMode::Set,
        b"add" => StoreMode::Add,
        b"replace" => StoreMode::Replace,
        b"append" => StoreMode::Append,
        b"prepend" => StoreMode::Prepend,
        _ => StoreMode::Cas(cas),
    };
    if len > max_value {
        let request = TextRequest::TooLarge { key, set: verb == StoreMode::Set, noreply };
        return TextParse::Request { request, used, skip: len as u64 + 2 };
    }
    match find_data_block(input, used, len) {
        DataBlock::Whole(value) => {
            let store = StoreRequest { verb, key, flags, exptime: exptime.into(), value, noreply };
            TextParse::whole(TextRequest::Store(store), used + len + 2)
        }
        DataBlock::Incomplete(needed) => TextParse::Incomplete(needed),
        DataBlock::BadTerminator(used) => TextParse::wrong(BAD_CHUNK, noreply, used),
    }
}

fn arithmetic<'i>(words: &TokenizedLine<'i>, used: usize) -> TextParse<'i> {
    let (key, noreply) = (words.word(1), words.noreply());
    if key.len() > MAX_KEY_LEN {
        return TextParse::wrong(BAD_FORMAT, noreply, used);
    }
    let Some(delta) = parse_u64(words.word(2)) else {
        return TextParse::wrong("CLIENT_ERROR invalid numeric delta argument", noreply, used);
    };
    TextParse::whole(TextRequest::Arithmetic { key, delta, up: words.word(0) == b"incr", noreply }, used)
}

fn touch<'i>(words: &TokenizedLine<'i>, used: usize) -> TextParse<'i> {
    let (key, noreply) = (words.word(1), words.noreply());
    if key.len() > MAX_KEY_LEN {
        return TextParse::wrong(BAD_FORMAT, noreply, used);
    }
    let Some(exptime) = parse_i32(words.word(2)) else {
        return TextParse::wrong(BAD_EXPTIME, noreply, used);
    };
    TextParse::whole(TextRequest::Touch { key, exptime, noreply }, used)
}

fn delete<'i>(words: &TokenizedLine<'i>, used: usize) -> TextParse<'i> {
    const USAGE: &str = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";
    let (key, noreply) = (words.word(1), words.count > 2 && words.noreply());
    let zero = words.word(2) == b"0";
    let valid = match words.count {
        2 => true,
        3 => zero || noreply,
        _ => zero && noreply,
    };
    if !valid {
        return TextParse::wrong(USAGE, noreply, used);
    }
    if key.len() > MAX_KEY_LEN {
        return TextParse::wrong(BAD_FORMAT, noreply, used);
    }
    TextParse::whole(TextRequest::Delete { key, noreply }, used)
}

fn flush_all<'i>(words: &TokenizedLine<'i>, used: usize) -> TextParse<'i> {
    let noreply = words.noreply();
    let delay = if words.count == 1 + usize::from(noreply) { Some(0) } else { parse_i32(words.word(1)) };
    match delay {
        Some(delay) => TextParse::whole(TextRequest::FlushAll { delay, noreply }, used),
        None => TextParse::wrong(BAD_EXPTIME, noreply, used),
    }
}
