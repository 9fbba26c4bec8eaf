//! The same parser once more, slow and simple, from the protocol's description: lines are cut into words with string
//! functions. It shares only the numbers with the fast one, and serves for comparison.

use super::text::{parse_flags, parse_i32, parse_u64};
use super::{BAD_CHUNK, BAD_FORMAT, MetaCommand, StoreRequest, TextParse, TextRequest, parse};

/// Longest value of these readings.
pub const MAX_VALUE: usize = 300;

/// The slow parser's result for a whole line, and the bytes behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextReferenceParse {
    /// Not all of it has come.
    Incomplete,
    /// Bytes of the request, and the request as text.
    Complete(usize, String),
    /// A value to be skipped: bytes of the line, bytes behind it.
    Skip(usize, u64),
    /// Cannot become a request.
    Fatal,
}

/// Parses the front of `input`.
pub fn parse_reference(input: &[u8], max_value: usize) -> TextReferenceParse {
    let lines: Vec<&[u8]> = input.splitn(2, |byte| *byte == b'\n').collect();
    let [line, behind] = lines[..] else { return unfinished(input) };
    let used = line.len() + 1;
    let line = if line.len() > 1 { line.strip_suffix(b"\r").unwrap_or(line) } else { line };
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).collect();
    let error = TextReferenceParse::Complete(used, "ERROR".into());
    let Some(name) = words.first() else { return error };
    let name = String::from_utf8_lossy(name).into_owned();
    let long = |key: &[u8]| key.len() > 250;
    let took = |what: String| TextReferenceParse::Complete(used, what);
    // Words of a line are counted up to 23, of which the last is all the rest.
    let quiet = words.len() < 23 && words.last() == Some(&&b"noreply"[..]);
    match (name.as_str(), words.len()) {
        ("get" | "gets" | "bget", 2..) if words[1..].iter().any(|key| long(key)) => took("format".into()),
        ("get" | "gets", 2) => took(format!("{name} {:?} None", words[1])),
        ("get" | "gets" | "bget", 3..) | ("bget", 2) => {
            TextReferenceParse::Complete(0, format!("{} None", name.replace('b', "")))
        }
        ("gat" | "gats", 2..) => touching(&name, used, &words),
        ("set" | "add" | "replace" | "append" | "prepend", 5 | 6) | ("cas", 6 | 7) => {
            let numbers = (parse_flags(words[2]), parse_i32(words[3]), parse_i32(words[4]));
            let cas = if name == "cas" { parse_u64(words[5]) } else { Some(0) };
            match (numbers, cas) {
                ((Some(flags), Some(exptime), Some(len)), Some(cas))
                    if (0..i32::MAX - 1).contains(&len) && !long(words[1]) =>
                {
                    let name = if name == "cas" { format!("cas({cas})") } else { name };
                    let front = format!("{name} {:?} {flags} {exptime} {quiet}", words[1]);
                    data(&front, used, behind, len as usize, max_value)
                }
                _ => took("format".into()),
            }
        }
        ("incr" | "decr" | "touch", 3 | 4) | ("delete", 2..=4) | ("flush_all", 1..=3) | ("verbosity", 2..) => {
            took(short(&name, &words, quiet))
        }
        ("version" | "quit" | "stats", _) => took(name),
        _ if is_known(&name) && !name.starts_with('m') => error,
        ("mg" | "md" | "ma" | "me" | "ms" | "mn", _) => meta(&name, used, &words, behind, max_value),
        _ if is_known(&name) => error,
        _ if words.last().is_some_and(|word| word.starts_with(b"HTTP/")) && words.len() < 23 => {
            TextReferenceParse::Fatal
        }
        // The last of very many words begins where the 23rd does.
        _ if words.len() >= 23 && words[22].starts_with(b"HTTP/") => TextReferenceParse::Fatal,
        _ => error,
    }
}

/// Commands of one line, of a number of words that they may have.
fn short(name: &str, words: &[&[u8]], quiet: bool) -> String {
    let long = |key: &[u8]| key.len() > 250;
    let bad_time = || "CLIENT_ERROR invalid exptime argument".to_owned();
    match name {
        "incr" | "decr" | "touch" if long(words[1]) => "format".into(),
        "touch" => {
            parse_i32(words[2]).map_or_else(bad_time, |exptime| format!("touch {:?} {exptime} {quiet}", words[1]))
        }
        "delete" => match words[2..] {
            [] | [b"0"] | [b"noreply"] | [b"0", b"noreply"] if long(words[1]) => "format".into(),
            [] | [b"0"] => format!("delete {:?} false", words[1]),
            [b"noreply"] | [b"0", b"noreply"] => format!("delete {:?} true", words[1]),
            _ => "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]".into(),
        },
        "flush_all" if words.len() == 1 || (words.len() == 2 && quiet) => format!("flush_all 0 {quiet}"),
        "flush_all" => parse_i32(words[1]).map_or_else(bad_time, |delay| format!("flush_all {delay} {quiet}")),
        "verbosity" if parse_u64(words[1]).is_none() => "format".into(),
        "verbosity" => format!("nothing {quiet}"),
        _ => match parse_u64(words[2]) {
            Some(delta) => format!("{name} {:?} {delta} {quiet}", words[1]),
            None => "CLIENT_ERROR invalid numeric delta argument".into(),
        },
    }
}

/// `gat` and `gats`.
fn touching(name: &str, used: usize, words: &[&[u8]]) -> TextReferenceParse {
    let Some(exptime) = parse_i32(words[1]) else {
        return TextReferenceParse::Complete(used, "CLIENT_ERROR invalid exptime argument".into());
    };
    if words[2..].iter().any(|key| key.len() > 250) {
        return TextReferenceParse::Complete(used, "format".into());
    }
    let name = name.replace('a', "e");
    match words {
        [_, _, key] => TextReferenceParse::Complete(used, format!("{name} {key:?} Some({exptime})")),
        _ => TextReferenceParse::Complete(0, format!("{name} Some({exptime})")),
    }
}

/// Meta commands: the key, the flags one by one, and the block of `ms`.
fn meta(name: &str, used: usize, words: &[&[u8]], behind: &[u8], max_value: usize) -> TextReferenceParse {
    let took = |what: &str| TextReferenceParse::Complete(used, what.into());
    let least = if name == "ms" { 3 } else { 2 };
    match (name, words.len()) {
        ("mn", _) => return took("MN"),
        ("me", 1) | ("ms", 2) => return took("format"),
        (_, 1) => return took("ERROR"),
        _ if words[1].len() > 250 => return took("format"),
        _ => {}
    }
    let len = match name {
        "ms" => match parse_i32(words[2]).filter(|len| (0..i32::MAX - 1).contains(len)) {
            Some(len) => Some(len as usize),
            None => return took("format"),
        },
        _ => None,
    };
    let keys = &words[least..];
    let wrong = match keys.len() > 17 {
        true => Some("CLIENT_ERROR options flags are too long".to_owned()),
        false => wrong_flag(name, words[1], keys),
    };
    match (wrong, len) {
        (Some(wrong), None) => took(&wrong),
        (Some(_), Some(len)) => TextReferenceParse::Skip(used, len as u64 + 2),
        (None, None) => TextReferenceParse::Complete(used, format!("{name} {:?} {keys:?}", words[1])),
        (None, Some(len)) => data(&format!("ms {:?} {keys:?}", words[1]), used, behind, len, max_value),
    }
}

/// Returns whether that is base64: its letters in groups of four, the last of which may end with one or two equals
/// signs.
fn is_base64(key: &[u8]) -> bool {
    let text = String::from_utf8_lossy(key).into_owned();
    let letters = text.strip_suffix("==").or(text.strip_suffix('=')).unwrap_or(&text);
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "+/".contains(letter);
    text.len().is_multiple_of(4) && letters.chars().all(is_letter)
}

/// Returns the fault of the flags, if there is one.
fn wrong_flag(name: &str, key: &[u8], keys: &[&[u8]]) -> Option<String> {
    let token = "CLIENT_ERROR bad token in command line format";
    let (mut seen, mut wrong) = (Vec::new(), None);
    for word in keys.iter().filter(|_| name != "me") {
        let rest = &word[1..];
        if seen.contains(&word[0]) || word[0] >= 127 {
            wrong = Some("CLIENT_ERROR duplicate flag");
            break;
        }
        seen.push(word[0]);
        let value = match word[0] {
            b'N' | b'T' | b'R' if parse_i32(rest).is_none() => Some(token),
            b'C' | b'E' if parse_u64(rest).is_none() => Some(token),
            b'F' if parse_flags(rest).is_none() => Some(BAD_FORMAT),
            b'D' if parse_u64(rest).is_none() => Some("CLIENT_ERROR invalid numeric delta value"),
            b'J' if parse_u64(rest).is_none() => Some("CLIENT_ERROR invalid numeric initial value"),
            b'M' if rest.len() != 1 => Some("CLIENT_ERROR incorrect length for M token"),
            letter if !b"bqvIxNTRCEFDJMOPLkstcflhu".contains(&letter) => {
                wrong = Some("CLIENT_ERROR invalid flag");
                break;
            }
            _ => None,
        };
        wrong = wrong.or(value);
    }
    if wrong.is_some() && (name == "md" || name == "ma") {
        return Some("CLIENT_ERROR invalid or duplicate flag".into());
    }
    let long = keys.iter().any(|word| word[0] == b'O' && word.len() > 32);
    let mode = keys.iter().find(|word| word[0] == b'M').and_then(|word| word.get(1));
    let modes = |mode: &u8| !b"EeAaPpRrSs".contains(mode);
    let key_is_wrong = name == "ms" && keys.iter().any(|word| word[0] == b'b') && !is_base64(key);
    wrong
        .or(long.then_some("CLIENT_ERROR opaque token too long"))
        .or(key_is_wrong.then_some("CLIENT_ERROR error decoding key"))
        .or((name == "ms" && mode.is_some_and(modes)).then_some("CLIENT_ERROR invalid mode for ms M token"))
        .map(str::to_owned)
}

/// Names that make a line memcached's, with any words behind them.
fn is_known(name: &str) -> bool {
    let classic =
        "get gets bget gat gats set add replace append prepend cas incr decr touch delete flush_all verbosity stats";
    name.len() < 2 || (name.len() == 2 && name.starts_with('m')) || classic.split(' ').any(|known| known == name)
}

fn unfinished(input: &[u8]) -> TextReferenceParse {
    if input.len() <= 2048 {
        return TextReferenceParse::Incomplete;
    }
    let text = String::from_utf8_lossy(&input[..200]).into_owned();
    let trimmed = text.trim_start_matches(' ');
    if text.len() - trimmed.len() > 100 || !(trimmed.starts_with("get ") || trimmed.starts_with("gets ")) {
        return TextReferenceParse::Fatal;
    }
    TextReferenceParse::Complete(0, trimmed.split(' ').next().unwrap_or_default().to_owned() + " None")
}

fn data(name: &str, used: usize, behind: &[u8], len: usize, max_value: usize) -> TextReferenceParse {
    if len > max_value {
        return TextReferenceParse::Skip(used, len as u64 + 2);
    }
    if behind.len() < len + 2 {
        return TextReferenceParse::Incomplete;
    }
    match behind[len..].starts_with(b"\r\n") {
        true => TextReferenceParse::Complete(used + len + 2, format!("{name} {:?}", &behind[..len])),
        false => TextReferenceParse::Complete(used + len + 2, "chunk".into()),
    }
}

/// The fast parser's result in the slow one's terms.
fn parse_fast(input: &[u8]) -> TextReferenceParse {
    match parse(input, MAX_VALUE) {
        TextParse::Incomplete(needed) => {
            assert!(needed > input.len(), "more has to be more");
            TextReferenceParse::Incomplete
        }
        TextParse::Fatal => TextReferenceParse::Fatal,
        TextParse::Request { used, skip, .. } if skip > 0 => TextReferenceParse::Skip(used, skip),
        // The keys are taken one by one behind it.
        TextParse::Request { request: request @ TextRequest::GetMany { .. }, .. } => {
            TextReferenceParse::Complete(0, describe_request(&request))
        }
        TextParse::Request { request, used, .. } => TextReferenceParse::Complete(used, describe_request(&request)),
    }
}

/// A request in words.
fn describe_request(request: &TextRequest<'_>) -> String {
    let name = |cas: bool| if cas { "gets" } else { "get" };
    match *request {
        TextRequest::Get { key, cas, exptime } => format!("{} {key:?} {exptime:?}", name(cas)),
        TextRequest::GetMany { cas, exptime } => format!("{} {exptime:?}", name(cas)),
        TextRequest::Store(StoreRequest { verb, key, flags, exptime, value, noreply }) => {
            let verb = format!("{verb:?}").to_lowercase();
            format!("{verb} {key:?} {flags} {exptime} {noreply} {value:?}")
        }
        TextRequest::Delete { key, noreply } => format!("delete {key:?} {noreply}"),
        TextRequest::Arithmetic { key, delta, up, noreply } => {
            format!("{} {key:?} {delta} {noreply}", if up { "incr" } else { "decr" })
        }
        TextRequest::Touch { key, exptime, noreply } => format!("touch {key:?} {exptime} {noreply}"),
        TextRequest::FlushAll { delay, noreply } => format!("flush_all {delay} {noreply}"),
        TextRequest::Stats(_) => "stats".into(),
        TextRequest::Version => "version".into(),
        TextRequest::Noop { noreply } => format!("nothing {noreply}"),
        TextRequest::Quit => "quit".into(),
        TextRequest::MetaNoop => "MN".into(),
        TextRequest::Meta(meta) => {
            let name = match meta.verb {
                MetaCommand::Get => "mg",
                MetaCommand::Set => "ms",
                MetaCommand::Delete => "md",
                MetaCommand::Arithmetic => "ma",
                MetaCommand::Debug => "me",
            };
            let front = format!("{name} {:?} {:?}", meta.key, meta.written.collect::<Vec<_>>());
            if meta.verb == MetaCommand::Set { format!("{front} {:?}", meta.block) } else { front }
        }
        TextRequest::Invalid { text: BAD_CHUNK, .. } => "chunk".into(),
        TextRequest::Invalid { text: BAD_FORMAT, .. } => "format".into(),
        TextRequest::Invalid { text, .. } => text.into(),
        TextRequest::TooLarge { .. } | TextRequest::MetaTooLarge { .. } => {
            "too large, but nothing is to be skipped".into()
        }
    }
}

/// Holds the fast reading to the slow one.
///
/// # Panics
/// When they differ.
pub fn assert_agrees(input: &[u8]) {
    let (fast, slow) = (parse_fast(input), parse_reference(input, MAX_VALUE));
    assert_eq!(fast, slow, "of {:?}", String::from_utf8_lossy(input));
}

/// Fuzzing: both readings of a stream, request by request.
///
/// # Panics
/// When they differ.
pub fn fuzz(mut stream: &[u8]) {
    loop {
        assert_agrees(stream);
        match parse(stream, MAX_VALUE) {
            TextParse::Request { used, skip, .. } if used > 0 => {
                let skip = usize::try_from(skip).unwrap_or(usize::MAX).saturating_add(used);
                stream = stream.get(skip..).unwrap_or_default();
            }
            _ => return,
        }
    }
}
