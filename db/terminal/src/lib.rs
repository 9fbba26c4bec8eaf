//! Makes untrusted text safe for a terminal or a log: names, texts of panics and errors, lines of pushed source.
//!
//! A terminal obeys its input: escape sequences retitle it, hide lines, or answer as if the user had typed. Characters
//! that change the direction of text, or have no width, show other text than is there. All of these are shown by their
//! number.
//!
//! The module [`output`] prints a command's results with it.
#![forbid(unsafe_code)]

pub mod output;

use std::fmt::Write as _;
use std::io::{self, Write};

/// Returns whether a terminal would act on a character rather than show it. Line ends and tabs are left to the caller.
pub fn needs_escape(c: char) -> bool {
    matches!(c,
        // C0 and DEL; C1, which some terminals take for escape sequences of one character.
        '\0'..='\u{8}' | '\u{b}'..='\u{1f}' | '\u{7f}'..='\u{9f}'
        // Direction of text.
        | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        // Line separators that are not line ends.
        | '\u{2028}' | '\u{2029}'
        // Zero width or invisible: the reader would not see them.
        | '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180e}' | '\u{200b}'..='\u{200d}'
        | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
        | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

fn write_escaped(c: char, into: &mut String) {
    // Writing to a string cannot fail.
    let _written = match c {
        '\n' => into.write_str("\\n"),
        '\t' => into.write_str("\\t"),
        '\r' => into.write_str("\\r"),
        c => write!(into, "\\u{{{:x}}}", u32::from(c)),
    };
}

fn escaped(text: &str, is_bad: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_bad(c) { write_escaped(c, &mut shown) } else { shown.push(c) }
    }
    shown
}

/// Escapes text of several lines: harmful characters are shown by their number.
pub fn escape_lines(text: &str) -> String {
    escaped(text, needs_escape)
}

/// As [`escape_lines`], on one line: line ends and tabs are escaped, too, so that no text forges a further line or
/// column.
pub fn escape_one_line(text: &str) -> String {
    escaped(text, |c| needs_escape(c) || matches!(c, '\n' | '\t'))
}

/// Escapes the same characters in JSON with its own escapes. They can only occur within strings, so the meaning stays
/// the same.
pub fn escape_json(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if !needs_escape(c) {
            shown.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _written = write!(shown, "\\u{unit:04x}");
        }
    }
    shown
}

/// Receives a log's events, one per write, and passes each on as one line.
#[derive(Debug)]
pub struct EscapedLogWriter<W> {
    to: W,
    /// Whether the log itself sets colours: sequences that only do that are passed through. (The content of an event
    /// has been escaped by then.)
    colors: bool,
}

impl<W: Write> EscapedLogWriter<W> {
    /// Creates a writer that passes the lines on to `to`.
    pub fn new(to: W, colors: bool) -> EscapedLogWriter<W> {
        EscapedLogWriter { to, colors }
    }

    fn event(&self, event: &str) -> String {
        let (event, end) = event.strip_suffix('\n').map_or((event, ""), |event| (event, "\n"));
        let (mut shown, mut rest) = (String::with_capacity(event.len() + 1), event);
        while let Some(c) = rest.chars().next() {
            let color = if self.colors { color_len(rest) } else { 0 };
            let len = if color == 0 { c.len_utf8() } else { color };
            let (this, behind) = rest.split_at(len);
            if color == 0 && (needs_escape(c) || c == '\n') {
                write_escaped(c, &mut shown)
            } else {
                shown.push_str(this)
            }
            rest = behind;
        }
        shown + end
    }
}

/// Length of the colour sequence that begins here; 0 if there is none.
fn color_len(text: &str) -> usize {
    let Some(behind) = text.strip_prefix("\u{1b}[") else { return 0 };
    let numbers = behind.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b';').count();
    if behind.as_bytes().get(numbers) == Some(&b'm') { numbers + 3 } else { 0 }
}

impl<W: Write> Write for EscapedLogWriter<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let shown = self.event(&String::from_utf8_lossy(event));
        self.to.write_all(shown.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The characters to escape, from the tables of Unicode: controls, format characters, separators of lines and
    /// paragraphs.
    fn table() -> impl Iterator<Item = char> {
        let ranges = [
            (0x0, 0x8),
            (0xb, 0x1f),
            (0x7f, 0x9f),
            (0xad, 0xad),
            (0x61c, 0x61c),
            (0x180e, 0x180e),
            (0x200b, 0x200f),
            (0x2028, 0x202e),
            (0x2060, 0x206f),
            (0xfeff, 0xfeff),
            (0xfff9, 0xfffb),
            (0xe0001, 0xe0001),
            (0xe0020, 0xe007f),
        ];
        ranges.into_iter().flat_map(|(from, to): (u32, u32)| from..=to).filter_map(char::from_u32)
    }

    #[test]
    fn nothing_that_a_terminal_obeys_gets_through() {
        for c in table() {
            let text = format!("a{c}b");
            for shown in [escape_lines(&text), escape_one_line(&text)] {
                assert!(!shown.contains(c) && shown.starts_with("a\\") && shown.ends_with('b'), "{shown:?}");
            }
            let quoted = serde_json::to_string(&text).unwrap();
            let shown = escape_json(&quoted);
            assert!(!shown.contains(c), "{shown:?}");
            assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text, "it means the same");
            for colors in [false, true] {
                let mut log = Vec::new();
                EscapedLogWriter::new(&mut log, colors).write_all(format!("{text}\n").as_bytes()).unwrap();
                let log = String::from_utf8(log).unwrap();
                assert!(!log.trim_end_matches('\n').contains(c), "{log:?}");
            }
        }
        assert_eq!(escape_lines("\u{1b}]0;title\u{7} \u{202e}txt.exe"), "\\u{1b}]0;title\\u{7} \\u{202e}txt.exe");
    }

    #[test]
    fn what_people_write_stays_as_it_is() {
        let text = "Grüße, 你好, שלום, مرحبا, e\u{301}, 😀 \\ \"quoted\"\n\tand a second line";
        assert_eq!(escape_lines(text), text);
        assert_eq!(escape_json(text), text);
        assert_eq!(escape_one_line("a\nb\tc"), "a\\nb\\tc");
    }

    #[test]
    fn an_event_is_one_line_whatever_stands_in_it_and_keeps_the_logs_own_colours() {
        let write = |event: &str, colors: bool| {
            let mut log = Vec::new();
            EscapedLogWriter::new(&mut log, colors).write_all(event.as_bytes()).unwrap();
            String::from_utf8(log).unwrap()
        };
        assert_eq!(write("WARN killed: a\n2026 ERROR forged\n", false), "WARN killed: a\\n2026 ERROR forged\n");
        let colored = "\u{1b}[2m2026\u{1b}[0m \u{1b}[33;1m WARN\u{1b}[0m \u{1b}[2Jx\u{1b}\n";
        let cleared = "\\u{1b}[2Jx\\u{1b}\n";
        assert_eq!(write(colored, true), format!("\u{1b}[2m2026\u{1b}[0m \u{1b}[33;1m WARN\u{1b}[0m {cleared}"));
        assert!(!write(colored, false).contains('\u{1b}'));
    }
}
