//! The parser against the slow reading, whole and in pieces.

use super::reference::assert_agrees;
use super::*;
use proptest::prelude::*;

fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        "get|gets|bget|gat|gats|set|add|cas|append|prepend|replace|delete|version|quit|incr|decr|touch|flush_all|verbosity|stats",
        "mg|ms|md|ma|me|mn|noreply|HTTP/1[.]0|0",
        "[bqvIxNTRCEFDJMOPLkstcflhuz]-?[0-9]{0,3}",
        "M[EeAaPpRrSsXID+-]|O[a-z]{30,34}",
        "[a-z]{1,8}",
        "[0-9]{1,3}",
        "-?[0-9]{1,12}",
        Just("k".repeat(250)),
        Just("k".repeat(251)),
        Just("\r".to_owned()),
    ]
}

fn line() -> impl Strategy<Value = String> {
    (prop::collection::vec((word(), 1..3usize), 0..9), any::<bool>(), "[a-z]{0,12}").prop_map(|(words, cr, data)| {
        let line: String = words.iter().map(|(word, blanks)| word.clone() + &" ".repeat(*blanks)).collect();
        format!("{line}{}\n{data}\r\n", if cr { "\r" } else { "" })
    })
}

fn set() -> impl Strategy<Value = String> {
    let verb = "set|add|replace|append|prepend";
    let block = prop::collection::vec(prop_oneof![Just('\r'), Just('\n'), Just('a')], 0..6);
    (verb, "[a-c]{1,3}", 0..6usize, block, any::<bool>()).prop_map(|(verb, key, len, block, noreply)| {
        let block: String = block.into_iter().collect();
        format!("{verb} {key} 1 0 {len}{}\r\n{block}\r\n", if noreply { " noreply" } else { "" })
    })
}

proptest! {
    #[test]
    fn both_readings_agree_on_commands_cut_anywhere(text in prop_oneof![line(), set(), "(get|gets)( [a-z]{1,5}){0,5}\r\n"]) {
        for end in 0..=text.len() {
            assert_agrees(&text.as_bytes()[..end]);
        }
    }

    #[test]
    fn both_readings_agree_on_junk(junk in prop::collection::vec(any::<u8>(), 0..200)) {
        reference::fuzz(&junk);
    }

    #[test]
    fn what_is_enough_is_not_read_otherwise_with_more(text in prop_oneof![line(), set()], more in "[a-z\r\n]{0,20}") {
        let whole = text.clone() + &more;
        if let TextParse::Request { used, .. } = parse(text.as_bytes(), reference::MAX_VALUE) {
            let again = parse(whole.as_bytes(), reference::MAX_VALUE);
            let TextParse::Request { used: used_again, .. } = again else { panic!("{again:?}") };
            prop_assert_eq!(used, used_again);
        }
    }
}

#[test]
fn a_browser_is_hung_up_on_and_a_command_of_wrong_length_is_not() {
    // These are the answers of memcached 1.6.18.
    for line in ["foo HTTP/1.0", "GET / HTTP/1.1"] {
        assert_eq!(parse(format!("{line}\r\n").as_bytes(), 100), TextParse::Fatal, "{line}");
        assert_agrees(format!("{line}\r\n").as_bytes());
    }
    for line in ["set a HTTP/1.0", "touch HTTP/1", "touch a b c d HTTP/1.1", "delete a b c HTTP/1.0", "cas HTTP/1.0"] {
        let text = format!("{line}\r\n");
        let error = TextParse::Request {
            request: super::TextRequest::Invalid { text: super::ERROR, noreply: false },
            used: text.len(),
            skip: 0,
        };
        assert_eq!(parse(text.as_bytes(), 100), error, "{line}");
        assert_agrees(text.as_bytes());
    }
}

#[test]
fn long_lines_are_gets_or_hopeless() {
    let keys = "key ".repeat(2_000);
    for (front, hopeful) in [("get ", true), ("gets ", true), ("set ", false), ("", false), ("gat 0 ", false)] {
        for blanks in [0, 100, 101] {
            let text = " ".repeat(blanks) + front + &keys;
            assert_agrees(text.as_bytes());
            let expected = hopeful && blanks <= 100;
            assert_eq!(parse(text.as_bytes(), 100) != TextParse::Fatal, expected, "{front:?} behind {blanks}");
        }
    }
}

#[test]
fn flags_of_meta_commands() {
    let parsed = parse(b"mg foo v t k Oabc N30 q\r\n", 100);
    let TextParse::Request { request: TextRequest::Meta(meta), used: 25, .. } = parsed else { panic!("{parsed:?}") };
    assert_eq!((meta.verb, meta.key, meta.flags.vivify), (MetaCommand::Get, &b"foo"[..], Some(30)));
    assert!(meta.flags.value && meta.flags.quiet && !meta.flags.base64);
    assert_eq!(meta.written.count(), 6);
    for (line, expected_text) in [
        ("mg foo v v\r\n", "CLIENT_ERROR duplicate flag"),
        ("mg foo \u{1}\r\n", "CLIENT_ERROR invalid flag"),
        ("mg foo Nx\r\n", "CLIENT_ERROR bad token in command line format"),
        ("mg foo Dx\r\n", "CLIENT_ERROR invalid numeric delta value"),
        ("ma foo Dx\r\n", "CLIENT_ERROR invalid or duplicate flag"),
        ("mg\r\n", ERROR),
        ("mz foo\r\n", ERROR),
    ] {
        let TextParse::Request { request: TextRequest::Invalid { text, .. }, .. } = parse(line.as_bytes(), 100) else {
            panic!("{line:?}")
        };
        assert_eq!(text, expected_text, "{line:?}");
    }
    let parsed = parse(b"ms foo 3 MX\r\nabc\r\n", 100);
    assert!(matches!(parsed, TextParse::Request { used: 13, skip: 5, .. }), "{parsed:?}");
}
