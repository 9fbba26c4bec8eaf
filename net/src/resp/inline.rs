//! A command as a person types it: words on a line, some of them in quotes.

/// Splits a line into words, appending their bytes and ends to `bytes` and `ends`; `false` if its quotes are
/// unbalanced.
pub(super) fn split_inline(line: &[u8], bytes: &mut Vec<u8>, ends: &mut Vec<usize>) -> bool {
    let mut rest = line;
    loop {
        while let Some((first, after)) = rest.split_first()
            && is_space(*first)
        {
            rest = after;
        }
        // A zero byte ends the line.
        if rest.first().is_none_or(|first| *first == 0) {
            return true;
        }
        let Some(after) = word(rest, bytes) else { return false };
        ends.push(bytes.len());
        rest = after;
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

/// Reads one word; `None` if a quote is not closed, or a word goes on right behind it.
fn word<'l>(line: &'l [u8], bytes: &mut Vec<u8>) -> Option<&'l [u8]> {
    let mut rest = line;
    loop {
        let Some((first, after)) = rest.split_first() else { return Some(rest) };
        match *first {
            b'"' => return require_separator(double_quoted(after, bytes)?),
            b'\'' => return require_separator(single_quoted(after, bytes)?),
            0 => return Some(rest),
            byte if is_space(byte) => return Some(rest),
            byte => bytes.push(byte),
        }
        rest = after;
    }
}

fn require_separator(rest: &[u8]) -> Option<&[u8]> {
    rest.first().is_none_or(|byte| is_space(*byte) || *byte == 0).then_some(rest)
}

fn single_quoted<'l>(mut rest: &'l [u8], bytes: &mut Vec<u8>) -> Option<&'l [u8]> {
    loop {
        match rest {
            [b'\\', b'\'', after @ ..] => {
                bytes.push(b'\'');
                rest = after;
            }
            [b'\'', after @ ..] => return Some(after),
            [0, ..] | [] => return None,
            [byte, after @ ..] => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
}

fn double_quoted<'l>(mut rest: &'l [u8], bytes: &mut Vec<u8>) -> Option<&'l [u8]> {
    let hex = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    loop {
        match rest {
            [b'\\', b'x', high, low, after @ ..] if hex(*high).is_some() && hex(*low).is_some() => {
                bytes.push(hex(*high)? << 4 | hex(*low)?);
                rest = after;
            }
            [b'\\', escaped, after @ ..] if *escaped != 0 => {
                bytes.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                rest = after;
            }
            [b'"', after @ ..] => return Some(after),
            [0, ..] | [] => return None,
            [byte, after @ ..] => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
}
