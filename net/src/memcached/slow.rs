//! The same reading once more, slow and simple, from the protocol's description: lines are cut into words with the means of text,
//! nothing is shared with the fast one but the numbers. To compare with.

use super::text::{flags, int, unsigned};

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
        _ => Slow::Took(used, "other".into()),
    }
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
