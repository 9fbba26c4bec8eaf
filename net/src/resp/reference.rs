//! A slow parser of the protocol, written for correctness. The fuzz target compares the fast one with it.

use super::{ProtocolError, RespParse, RespParser};
use crate::limits::{RESP_ARGUMENTS, RESP_COMMAND_BYTES, RESP_LINE_BYTES};

/// The front of the input: arguments and the bytes they take; nothing yet; or an error.
type RespReferenceParse = Result<Option<(Vec<Vec<u8>>, usize)>, ProtocolError>;

/// The line at the front, without its end, and the bytes that it takes.
fn read_line(input: &[u8], error: ProtocolError) -> Result<Option<(&[u8], usize)>, ProtocolError> {
    for at in 0..input.len().min(RESP_LINE_BYTES + 1) {
        if input[at] == b'\r' {
            return Ok((at + 1 < input.len()).then_some((&input[..at], at + 2)));
        }
    }
    if input.len() > RESP_LINE_BYTES { Err(error) } else { Ok(None) }
}

fn integer(text: &[u8]) -> Option<i64> {
    let number: i64 = String::from_utf8(text.to_vec()).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == text).then_some(number)
}

/// Reads one command, from its beginning, every time.
pub fn parse_reference(input: &[u8]) -> RespReferenceParse {
    if input.first() != Some(&b'*') {
        return parse_inline_reference(input);
    }
    let Some((text, taken)) = read_line(&input[1..], ProtocolError::LongCount)? else { return Ok(None) };
    let mut at = 1 + taken;
    let count = integer(text).filter(|count| *count <= RESP_ARGUMENTS as i64).ok_or(ProtocolError::Count)?;
    let mut args = Vec::new();
    for _ in 0..count.max(0) {
        if at >= input.len() {
            return Ok(None);
        }
        let first = input[at];
        let after = if first == b'$' { at + 1 } else { at };
        let Some((text, taken)) = read_line(&input[after..], ProtocolError::LongLength)? else { return Ok(None) };
        if first != b'$' {
            return Err(ProtocolError::ExpectedBulk(first));
        }
        let from = after + taken;
        let most = RESP_COMMAND_BYTES.saturating_sub(from) as i64;
        let len = integer(text).filter(|len| (0..=most).contains(len)).ok_or(ProtocolError::Length)? as usize;
        if input.len() < from + len + 2 {
            return Ok(None);
        }
        args.push(input[from..from + len].to_vec());
        at = from + len + 2;
    }
    Ok(Some((args, at)))
}

fn parse_inline_reference(input: &[u8]) -> RespReferenceParse {
    let Some(end) = input.iter().take(RESP_LINE_BYTES + 1).position(|byte| *byte == b'\n') else {
        return if input.len() > RESP_LINE_BYTES { Err(ProtocolError::LongLine) } else { Ok(None) };
    };
    let mut text = &input[..end];
    if text.ends_with(b"\r") {
        text = &text[..end - 1];
    }
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let plain = !input[..end].iter().any(|byte| matches!(byte, b'"' | b'\''));
    let space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | 0x0b | 0x0c);
    if plain {
        let words = text.split(space).filter(|word| !word.is_empty());
        return Ok(Some((words.map(<[u8]>::to_vec).collect(), end + 1)));
    }
    let (mut args, mut at) = (Vec::new(), 0);
    'words: loop {
        while text.get(at).is_some_and(space) {
            at += 1;
        }
        if at == text.len() {
            return Ok(Some((args, end + 1)));
        }
        let (mut word, mut quote) = (Vec::new(), None);
        loop {
            let here = text.get(at).copied();
            match (quote, here) {
                (None, None) => break,
                (None, Some(byte)) if space(&byte) => break,
                (None, Some(byte @ (b'"' | b'\''))) => quote = Some(byte),
                (None, Some(byte)) => word.push(byte),
                (Some(_), None) => return Err(ProtocolError::UnbalancedQuotes),
                (Some(open), Some(byte)) if byte == open => {
                    if text.get(at + 1).is_some_and(|next| !space(next)) {
                        return Err(ProtocolError::UnbalancedQuotes);
                    }
                    at += 1;
                    args.push(word);
                    continue 'words;
                }
                (Some(b'\''), Some(b'\\')) if text.get(at + 1) == Some(&b'\'') => {
                    word.push(b'\'');
                    at += 1;
                }
                (Some(b'"'), Some(b'\\')) if at + 1 < text.len() => at += escape(&text[at + 1..], &mut word),
                (Some(_), Some(byte)) => word.push(byte),
            }
            at += 1;
        }
        args.push(word);
    }
}

/// Decodes the escape behind a backslash; returns the number of its bytes.
fn escape(rest: &[u8], word: &mut Vec<u8>) -> usize {
    if rest[0] == b'x' && rest.len() >= 3 && rest[1].is_ascii_hexdigit() && rest[2].is_ascii_hexdigit() {
        let digits = String::from_utf8_lossy(&rest[1..3]);
        word.push(u8::from_str_radix(&digits, 16).unwrap_or_default());
        return 3;
    }
    let named = [(b'n', b'\n'), (b'r', b'\r'), (b't', b'\t'), (b'b', 8), (b'a', 7)];
    word.push(named.iter().find(|(name, _)| *name == rest[0]).map_or(rest[0], |(_, byte)| *byte));
    1
}

/// Reads all commands of `input` with a parser that is given it in pieces of the lengths that `cut` says.
fn in_pieces(input: &[u8], mut cut: impl FnMut() -> usize) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolError>) {
    let (mut parser, mut from, mut to) = (RespParser::default(), 0, 0);
    let mut commands = Vec::new();
    loop {
        match parser.parse(&input[from..to], false) {
            RespParse::Command(command) => {
                let args: Vec<Vec<u8>> = command.args(&input[from..to]).map(<[u8]>::to_vec).collect();
                from += command.len;
                commands.push(args);
                parser.recycle(command);
            }
            RespParse::Invalid(error) => return (commands, Some(error)),
            RespParse::Paused => {}
            RespParse::Incomplete(needed) => {
                assert!(needed > to - from, "more is needed than there is");
                if to == input.len() {
                    return (commands, None);
                }
                to = (to + cut().max(1)).min(input.len());
            }
        }
    }
}

/// Asserts that the parser reads what the slow parser does, in whatever pieces the input comes.
pub fn assert_parser_agrees(input: &[u8]) {
    let (mut expected, mut at) = (Vec::new(), 0);
    let broken = loop {
        match parse_reference(&input[at..]) {
            Ok(Some((args, taken))) => {
                expected.push(args);
                at += taken;
            }
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    let mut random = input.len() as u64 | 1;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) as usize % 40
    };
    assert_eq!(in_pieces(input, || 1), (expected.clone(), broken), "byte by byte");
    assert_eq!(in_pieces(input, || usize::MAX), (expected.clone(), broken), "at once");
    assert_eq!(in_pieces(input, &mut next), (expected, broken), "in pieces");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::resp::RespWriter;

    #[test]
    fn errors_have_the_words_that_clients_know() {
        let broken = |input: &[u8]| match RespParser::default().parse(input, false) {
            RespParse::Invalid(error) => error.to_string(),
            other => panic!("{other:?}"),
        };
        assert_eq!(broken(b"*3000000000\r\n"), "invalid multibulk length");
        assert_eq!(broken(b"*x\r\n"), "invalid multibulk length");
        assert_eq!(broken(b"*1\r\n$-5\r\n"), "invalid bulk length");
        assert_eq!(broken(b"*1\r\n$1073741824\r\n"), "invalid bulk length");
        assert_eq!(broken(b"*1\r\n:1\r\n"), "expected '$', got ':'");
        assert_eq!(broken(b"set \"a\r\n"), "unbalanced quotes in request");
        assert_eq!(broken(&vec![b'a'; RESP_LINE_BYTES + 1]), "too big inline request");
        assert_eq!(broken(&[b"*".as_slice(), &vec![b'1'; RESP_LINE_BYTES + 1]].concat()), "too big mbulk count string");
        assert_eq!(
            RespParser::default().parse(b"*11\r\n", true),
            RespParse::Invalid(ProtocolError::UnauthenticatedCount)
        );
        assert_eq!(
            RespParser::default().parse(b"*1\r\n$16385\r\n", true),
            RespParse::Invalid(ProtocolError::UnauthenticatedLength)
        );
    }

    #[test]
    fn a_long_value_is_waited_for_and_not_read_again() {
        let mut parser = RespParser::default();
        assert_eq!(parser.parse(b"*2\r\n$3\r\nGET\r\n$1000000\r\nabc", false), RespParse::Incomplete(1_000_025));
    }

    #[test]
    fn both_versions_write_what_they_have_for_it() {
        let written = |resp3, f: &dyn Fn(&mut RespWriter<'_>)| {
            let mut out = Vec::new();
            f(&mut RespWriter { out: &mut out, resp3 });
            String::from_utf8(out).expect("text")
        };
        for (f, two, three) in [
            ((|r| r.null()) as fn(&mut RespWriter<'_>), "$-1\r\n", "_\r\n"),
            (|r| r.null_array(), "*-1\r\n", "_\r\n"),
            (|r| r.map(2), "*4\r\n", "%2\r\n"),
            (|r| r.set(2), "*2\r\n", "~2\r\n"),
            (|r| r.push(2), "*2\r\n", ">2\r\n"),
            (|r| r.double(1.5), "$3\r\n1.5\r\n", ",1.5\r\n"),
            (|r| r.boolean(true), ":1\r\n", "#t\r\n"),
            (|r| r.verbatim("ab"), "$2\r\nab\r\n", "=6\r\ntxt:ab\r\n"),
            (|r| r.integer(i64::MIN), ":-9223372036854775808\r\n", ":-9223372036854775808\r\n"),
            (|r| r.error(b"ERR a\r\nb"), "-ERR a  b\r\n", "-ERR a  b\r\n"),
        ] {
            assert_eq!((written(false, &f), written(true, &f)), (two.to_owned(), three.to_owned()));
        }
    }

    fn piece() -> impl Strategy<Value = Vec<u8>> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..12);
        let command = prop::collection::vec(bytes(), 0..5).prop_map(|args| {
            let mut out = Vec::new();
            let mut reply = RespWriter { out: &mut out, resp3: false };
            reply.array(args.len());
            args.iter().for_each(|arg| reply.bulk(arg));
            out
        });
        prop_oneof![
            6 => command,
            3 => "[ a-z\"'\\\\x0-9]{0,20}\r?\n".prop_map(String::into_bytes),
            1 => "[*$][-+]?[0-9]{0,6}\r\n".prop_map(String::into_bytes),
            1 => bytes(),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_parser_reads_what_the_slow_reading_does(
            pieces in prop::collection::vec(piece(), 0..8), cut in any::<prop::sample::Index>(), flip in any::<(u8, bool)>(),
        ) {
            let mut input = pieces.concat();
            if flip.1 && !input.is_empty() {
                let at = cut.index(input.len());
                input[at] = flip.0;
            }
            assert_parser_agrees(&input);
        }
    }
}
