//! What a NATS server sends, from bytes: lines, some with a payload behind them. Nothing in it is believed: each length
//! is bounded before it is waited for.

use crate::limits::{LINE_BYTES, MESSAGE_BYTES};

/// Something that a server has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerWord<'b> {
    /// What it tells of itself, as JSON.
    Info(&'b [u8]),
    /// A message.
    Message(ServerMessage<'b>),
    Ping,
    Pong,
    Ok,
    /// What it refuses.
    Error(&'b str),
}

/// A message that a server has sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerMessage<'b> {
    pub(crate) subject: &'b str,
    /// The block of headers, with its status line; empty: there are none.
    pub(crate) headers: &'b [u8],
    pub(crate) payload: &'b [u8],
}

/// What was read from the front of some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WordParse<'b> {
    /// A word, and its bytes.
    Word(ServerWord<'b>, usize),
    /// More bytes are needed.
    Incomplete,
    /// It is no word of this protocol.
    Malformed(&'static str),
}

/// Reads the next word.
pub(crate) fn parse_word(bytes: &[u8]) -> WordParse<'_> {
    let Some(end) = bytes.iter().take(LINE_BYTES).position(|byte| *byte == b'\n') else {
        return match bytes.len() >= LINE_BYTES {
            true => WordParse::Malformed("a line is too long"),
            false => WordParse::Incomplete,
        };
    };
    let (line, rest) = bytes.split_at(end);
    let Some(line) = line.strip_suffix(b"\r") else {
        return WordParse::Malformed("a line ends without a return");
    };
    let Ok(text) = std::str::from_utf8(line) else {
        return WordParse::Malformed("a line is no text");
    };
    let rest = rest.get(1..).unwrap_or_default();
    let (word, arguments) = text.split_once([' ', '\t']).unwrap_or((text, ""));
    let whole = |word| WordParse::Word(word, end + 1);
    match word.to_ascii_uppercase().as_str() {
        "INFO" => whole(ServerWord::Info(arguments.trim().as_bytes())),
        "PING" => whole(ServerWord::Ping),
        "PONG" => whole(ServerWord::Pong),
        "+OK" => whole(ServerWord::Ok),
        "-ERR" => whole(ServerWord::Error(arguments.trim().trim_matches('\''))),
        "MSG" => parse_message(arguments, false, rest, end + 1),
        "HMSG" => parse_message(arguments, true, rest, end + 1),
        _ => WordParse::Malformed("an unknown word"),
    }
}

/// Reads a message whose line had these arguments.
fn parse_message<'b>(arguments: &'b str, has_headers: bool, rest: &'b [u8], line_bytes: usize) -> WordParse<'b> {
    let malformed = WordParse::Malformed("a message without its subject and length");
    let words: Vec<&str> = arguments.split_ascii_whitespace().take(6).collect();
    let lengths = if has_headers { 2 } else { 1 };
    // Subject, number of the subscription, perhaps where answers go, and lengths.
    if !(lengths + 2..=lengths + 3).contains(&words.len()) {
        return malformed;
    }
    let number = |text: &&str| text.parse::<usize>().ok().filter(|bytes| *bytes <= MESSAGE_BYTES);
    let lengths: Vec<Option<usize>> = words[words.len() - lengths..].iter().map(number).collect();
    let (header_bytes, total) = match lengths.as_slice() {
        [Some(total)] => (0, *total),
        [Some(headers), Some(total)] if headers <= total => (*headers, *total),
        _ => return WordParse::Malformed("a message whose length is none, or too large"),
    };
    let Some(content) = rest.get(..total + 2) else {
        return WordParse::Incomplete;
    };
    let Some(content) = content.strip_suffix(b"\r\n") else {
        return WordParse::Malformed("a message that ends elsewhere than it says");
    };
    let (headers, payload) = content.split_at(header_bytes);
    let subject = words.first().copied().unwrap_or_default();
    WordParse::Word(ServerWord::Message(ServerMessage { subject, headers, payload }), line_bytes + total + 2)
}

impl<'b> ServerMessage<'b> {
    fn header_lines(&self) -> impl Iterator<Item = &'b str> {
        std::str::from_utf8(self.headers).unwrap_or_default().split("\r\n")
    }

    /// The number of the status line; `None`: there is none.
    pub(crate) fn status(&self) -> Option<u32> {
        let line = self.header_lines().next()?.strip_prefix("NATS/1.0")?;
        line.split_ascii_whitespace().next()?.parse().ok()
    }

    /// The first value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&'b str> {
        let fields = self.header_lines().skip(1).filter_map(|line| line.split_once(':'));
        fields.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(mut bytes: &[u8]) -> (Vec<String>, &[u8]) {
        let mut found = Vec::new();
        while let WordParse::Word(word, used) = parse_word(bytes) {
            found.push(format!("{word:?}"));
            bytes = &bytes[used..];
        }
        (found, bytes)
    }

    #[test]
    fn what_a_server_sends_is_read_word_by_word_wherever_it_is_cut() {
        let sent = b"INFO {\"a\":1} \r\nPING\r\nMSG a.b 1 5\r\nhe\r\no\r\nHMSG a 1 r 12 14\r\nNATS/1.0\r\n\r\nok\r\n\
            +OK\r\n-ERR 'no such thing'\r\npong\r\n";
        let (all, rest) = words(sent);
        assert_eq!((all.len(), rest.len()), (7, 0), "{all:?}");
        for end in 0..sent.len() {
            let (found, _) = words(&sent[..end]);
            assert_eq!(found, all[..found.len()], "cut off at {end}");
        }
    }

    #[test]
    fn what_is_too_long_or_nonsense_is_refused_before_it_is_waited_for() {
        for sent in [
            b"MSG a 1 99999999999\r\n".as_slice(),
            b"MSG a 1 9000000\r\n",
            b"MSG a 1 -1\r\n",
            b"MSG a 5\r\n",
            b"MSG a 1 b c 5\r\n",
            b"HMSG a 1 9 5\r\n",
            b"MSG a 1 1\r\nxyz",
            b"HELLO\r\n",
            b"PING\n",
            b"\xff\xfe\r\n",
        ] {
            assert!(matches!(parse_word(sent), WordParse::Malformed(_)), "{:?}", String::from_utf8_lossy(sent));
        }
        assert!(matches!(parse_word(&vec![b'x'; LINE_BYTES]), WordParse::Malformed(_)));
    }

    #[test]
    fn headers_and_the_status_line_are_found() {
        let headers = b"NATS/1.0 503 No Responders\r\nNats-Sequence: 17\r\nx:y:z\r\n\r\n";
        let message = ServerMessage { headers, ..ServerMessage::default() };
        assert_eq!((message.status(), message.header("nats-sequence")), (Some(503), Some("17")));
        assert_eq!((message.header("x"), message.header("none")), (Some("y:z"), None));
        let plain = ServerMessage { headers: b"NATS/1.0\r\na: b\r\n\r\n", ..ServerMessage::default() };
        assert_eq!((plain.status(), plain.header("a")), (None, Some("b")));
    }

    proptest! {
        /// Whatever is sent: nothing panics, no word is longer than what was sent, and reading goes on or ends.
        #[test]
        fn any_bytes_are_words_or_not(
            pieces in prop::collection::vec(
                prop_oneof![
                    Just(b"MSG ".to_vec()), Just(b"HMSG ".to_vec()), Just(b"a 1 2\r\n".to_vec()), Just(b"\r\n".to_vec()),
                    Just(b"NATS/1.0 ".to_vec()), prop::collection::vec(any::<u8>(), 0..20),
                ],
                0..30,
            ),
        ) {
            let sent = pieces.concat();
            let mut rest = sent.as_slice();
            while let WordParse::Word(word, used) = parse_word(rest) {
                prop_assert!(used > 0 && used <= rest.len());
                if let ServerWord::Message(message) = &word {
                    let _whatever = (message.status(), message.header("a"));
                }
                rest = &rest[used..];
            }
        }
    }
}
