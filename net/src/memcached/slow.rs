//! The same reading once more, slow and simple, from the protocol's description: lines are cut into words with the means of text,
//! nothing is shared with the fast one but the numbers. To compare with.

use super::text::{flags, int, unsigned};
use super::{BAD_CHUNK, BAD_FORMAT, Parsed, Request, parse};

/// Longest value of these readings.
pub const MAX_VALUE: usize = 300;

/// What the slow reading makes of a whole line, and the bytes behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slow {
    /// Not all there.
    More,
    /// This many bytes make a request; what it asks for in words of its own.
    Took(usize, String),
    /// A value to be skipped: bytes of the line, bytes behind it.
    Skips(usize, u64),
    /// Cannot become a request.
    Hopeless,
}

/// Reads what stands at the front of `input`; meta commands only as far as their key.
pub fn read(input: &[u8], max_value: usize) -> Slow {
    let lines: Vec<&[u8]> = input.splitn(2, |byte| *byte == b'\n').collect();
    let [line, behind] = lines[..] else { return unfinished(input) };
    let used = line.len() + 1;
    let line = if line.len() > 1 { line.strip_suffix(b"\r").unwrap_or(line) } else { line };
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).collect();
    let error = Slow::Took(used, "ERROR".into());
    let Some(name) = words.first() else { return error };
    let name = String::from_utf8_lossy(name).into_owned();
    let long = |key: &[u8]| key.len() > 250;
    match (name.as_str(), words.len()) {
        ("get" | "gets", 2..) if words[1..].iter().any(|key| long(key)) => Slow::Took(used, "key".into()),
        ("get" | "gets", 2) => Slow::Took(used, format!("{name} {:?}", words[1])),
        ("get" | "gets", 3..) => Slow::Took(0, name),
        ("set" | "add" | "replace" | "append" | "prepend", 5 | 6) | ("cas", 6 | 7) => {
            let numbers = (flags(words[2]), int(words[3]), int(words[4]));
            let cas = if name == "cas" { unsigned(words[5]) } else { Some(0) };
            match (numbers, cas) {
                ((Some(_), Some(_), Some(len)), Some(_)) if (0..i32::MAX - 1).contains(&len) && !long(words[1]) => {
                    data(&name, used, behind, len as usize, max_value)
                }
                _ => Slow::Took(used, "format".into()),
            }
        }
        ("delete", 2) => Slow::Took(used, format!("delete {:?}", long(words[1]))),
        ("version" | "quit", _) => Slow::Took(used, name),
        _ if !is_known(&name) && words.last().is_some_and(|word| word.starts_with(b"HTTP/")) => Slow::Hopeless,
        _ => Slow::Took(used, "other".into()),
    }
}

/// Names that make a line memcached's, whatever stands behind them.
fn is_known(name: &str) -> bool {
    let classic =
        "get gets bget gat gats set add replace append prepend cas incr decr touch delete flush_all verbosity stats";
    name.len() < 2 || (name.len() == 2 && name.starts_with('m')) || classic.split(' ').any(|known| known == name)
}

fn unfinished(input: &[u8]) -> Slow {
    if input.len() <= 2048 {
        return Slow::More;
    }
    let text = String::from_utf8_lossy(&input[..200]).into_owned();
    let trimmed = text.trim_start_matches(' ');
    if text.len() - trimmed.len() > 100 || !(trimmed.starts_with("get ") || trimmed.starts_with("gets ")) {
        return Slow::Hopeless;
    }
    Slow::Took(0, trimmed.split(' ').next().unwrap_or_default().to_owned())
}

fn data(name: &str, used: usize, behind: &[u8], len: usize, max_value: usize) -> Slow {
    if len > max_value {
        return Slow::Skips(used, len as u64 + 2);
    }
    if behind.len() < len + 2 {
        return Slow::More;
    }
    match behind[len..].starts_with(b"\r\n") {
        true => Slow::Took(used + len + 2, format!("{name} {:?}", &behind[..len])),
        false => Slow::Took(used + len + 2, "chunk".into()),
    }
}

/// What the fast reading says, in the slow one's words.
fn fast(input: &[u8]) -> Slow {
    match parse(input, MAX_VALUE) {
        Parsed::More(needed) => {
            assert!(needed > input.len(), "more has to be more");
            Slow::More
        }
        Parsed::Hopeless => Slow::Hopeless,
        Parsed::Request { used, skip, .. } if skip > 0 => Slow::Skips(used, skip),
        Parsed::Request { request, used, .. } => {
            let name = |cas: bool| if cas { "gets" } else { "get" };
            match request {
                Request::Get { key, cas, exptime: None } => Slow::Took(used, format!("{} {key:?}", name(cas))),
                Request::GetMany { cas, exptime: None } => Slow::Took(0, name(cas).into()),
                Request::Store(store) => {
                    let verb = format!("{:?}", store.verb).to_lowercase();
                    let verb = verb.split('(').next().unwrap_or_default().to_owned();
                    Slow::Took(used, format!("{verb} {:?}", store.value))
                }
                Request::Delete { .. } => Slow::Took(used, "delete false".into()),
                Request::Version => Slow::Took(used, "version".into()),
                Request::Quit => Slow::Took(used, "quit".into()),
                Request::Wrong { text: BAD_CHUNK, .. } => Slow::Took(used, "chunk".into()),
                Request::Wrong { text, .. } => Slow::Took(used, text.into()),
                _ => Slow::Took(used, "other".into()),
            }
        }
    }
}

/// Holds the fast reading to the slow one.
///
/// # Panics
/// Where they differ.
pub fn agrees(input: &[u8]) {
    let (fast, slow) = (fast(input), read(input, MAX_VALUE));
    match (&fast, &slow) {
        (Slow::Took(used, what), Slow::Took(expected, said)) => {
            let same = used == expected
                && match said.as_str() {
                    "other" => true,
                    "key" | "format" | "delete true" => what == BAD_FORMAT,
                    said => what == said,
                };
            assert!(same, "{fast:?}, expected {slow:?}, of {:?}", String::from_utf8_lossy(input));
        }
        _ => assert_eq!(fast, slow, "of {:?}", String::from_utf8_lossy(input)),
    }
}

/// Fuzzing: both readings of a stream, request by request.
///
/// # Panics
/// Where they differ.
pub fn fuzz(mut stream: &[u8]) {
    loop {
        // Data blocks of `ms` are no matter of the slow reading.
        if stream.split(|byte| *byte == b'\n').next().is_some_and(|line| line.windows(2).any(|two| two == b"ms")) {
            let _reads = parse(stream, MAX_VALUE);
            return;
        }
        agrees(stream);
        match parse(stream, MAX_VALUE) {
            Parsed::Request { used, skip, .. } if used > 0 => {
                let skip = usize::try_from(skip).unwrap_or(usize::MAX).saturating_add(used);
                stream = stream.get(skip..).unwrap_or_default();
            }
            _ => return,
        }
    }
}
