//! The keys of a terminal, from the bytes that it sends for them.

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TerminalKey {
    Character(char),
    Enter,
    Escape,
    Backspace,
    Tab,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    /// Control and C.
    Interrupt,
}

/// The keys of what was read at once. A terminal sends the bytes of a key together, so an escape byte at the end is
/// that key. Unknown sequences are skipped.
pub(super) fn keys_of(bytes: &[u8]) -> Vec<TerminalKey> {
    let mut keys = Vec::new();
    let mut rest = bytes;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match first {
            0x1b => match sequence(after) {
                Some((key, left)) => {
                    keys.extend(key);
                    rest = left;
                }
                None => keys.push(TerminalKey::Escape),
            },
            b'\r' | b'\n' => keys.push(TerminalKey::Enter),
            b'\t' => keys.push(TerminalKey::Tab),
            0x7f | 0x08 => keys.push(TerminalKey::Backspace),
            0x03 => keys.push(TerminalKey::Interrupt),
            0x00..=0x1f => {}
            _ => {
                let (c, left) = character(*first, after);
                keys.extend(c.map(TerminalKey::Character));
                rest = left;
            }
        }
    }
    keys
}

/// The key of an escape sequence behind its first byte, and the bytes behind it; `None`: it is no sequence.
fn sequence(bytes: &[u8]) -> Option<(Option<TerminalKey>, &[u8])> {
    let (introducer, rest) = bytes.split_first()?;
    match introducer {
        b'[' => {}
        b'O' => {
            let (last, rest) = rest.split_first()?;
            return Some((arrow(*last), rest));
        }
        _ => return None,
    }
    let end = rest.iter().position(|byte| (0x40..=0x7e).contains(byte))?;
    let (parameters, rest) = rest.split_at(end);
    let (last, rest) = rest.split_first()?;
    let key = match (parameters.split(|byte| *byte == b';').next()?, last) {
        (b"1" | b"7", b'~') => Some(TerminalKey::Home),
        (b"4" | b"8", b'~') => Some(TerminalKey::End),
        (b"5", b'~') => Some(TerminalKey::PageUp),
        (b"6", b'~') => Some(TerminalKey::PageDown),
        _ => arrow(*last),
    };
    Some((key, rest))
}

fn arrow(last: u8) -> Option<TerminalKey> {
    Some(match last {
        b'A' => TerminalKey::Up,
        b'B' => TerminalKey::Down,
        b'C' => TerminalKey::Right,
        b'D' => TerminalKey::Left,
        b'H' => TerminalKey::Home,
        b'F' => TerminalKey::End,
        _ => return None,
    })
}

/// The character that begins with `first`, and the bytes behind it.
fn character(first: u8, rest: &[u8]) -> (Option<char>, &[u8]) {
    let more = match first {
        0xc0..=0xdf => 1,
        0xe0..=0xef => 2,
        0xf0..=0xf7 => 3,
        _ => 0,
    };
    let more = more.min(rest.len());
    let mut bytes = vec![first];
    bytes.extend_from_slice(&rest[..more]);
    let c = std::str::from_utf8(&bytes).ok().and_then(|text| text.chars().next());
    (c, &rest[more..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_from_what_terminals_send() {
        use TerminalKey::{Backspace, Character, Down, End, Enter, Escape, Home, Interrupt, PageDown, PageUp, Up};
        for (bytes, keys) in [
            (&b"q/\r"[..], vec![Character('q'), Character('/'), Enter]),
            (b"\x1b[A\x1bOB\x1b[5~\x1b[6~", vec![Up, Down, PageUp, PageDown]),
            (b"\x1b[1;5A\x1b[H\x1b[4~", vec![Up, Home, End]),
            (b"\x1b", vec![Escape]),
            (b"\x1bx", vec![Escape, Character('x')]),
            (b"\x1b[99z\x7f\x03", vec![Backspace, Interrupt]),
            ("\u{e9}\u{1f600}".as_bytes(), vec![Character('\u{e9}'), Character('\u{1f600}')]),
            (b"\xff\xc3", vec![]),
        ] {
            assert_eq!(keys_of(bytes), keys, "{bytes:?}");
        }
    }
}
