//! A line that is edited at a terminal: cursor keys, history, completion. The terminal is raw while a line is read, and
//! as it was before while its command runs. A character is taken for one column; those that a terminal would obey are
//! never shown to it, wherever they come from.

use std::io::{self, Read, Write};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use sandstorm_terminal::{escape_one_line, needs_escape};

/// Columns of a terminal that does not say how many it has.
const USUAL_COLUMNS: usize = 80;
/// Columns that are used at least, however narrow a terminal says that it is.
const FEWEST_COLUMNS: usize = 20;
/// Characters of a line, at most: as many as fit into a system's line of arguments by far.
const LINE_CHARACTERS: usize = 64 << 10;

/// What a key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EditKey {
    Letter(char),
    Enter,
    Tab,
    Backspace,
    Delete,
    Left,
    Right,
    Up,
    Down,
    Home,
    End,
    /// Deletes to the start of the line, to its end, or the word before the cursor.
    CutBefore,
    CutBehind,
    CutWord,
    Clear,
    Interrupt,
    /// ^D: the end if the line is empty, else as `Delete`.
    Finish,
    Other,
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReadOutcome {
    Line(String),
    /// ^C: the line was given up.
    Interrupted,
    /// ^D, or the terminal is gone.
    End,
}

/// What may stand where a line's text ends: where the word begins that is completed, in bytes, and the whole words.
pub(super) type Completions = (usize, Vec<String>);

/// A line, and where in it the cursor is.
#[derive(Debug, Default)]
struct EditedLine {
    letters: Vec<char>,
    cursor: usize,
    /// The line of the history that is shown, from the newest; 0: none.
    shown: usize,
    /// What was typed before the history was shown.
    typed: Vec<char>,
}

impl EditedLine {
    fn set(&mut self, letters: Vec<char>) {
        self.cursor = letters.len();
        self.letters = letters;
    }

    /// Shows a line of the history; 0: what was typed.
    fn show(&mut self, which: usize, history: &[String]) {
        if which > history.len() {
            return;
        }
        if self.shown == 0 {
            self.typed = self.letters.clone();
        }
        self.shown = which;
        match which {
            0 => self.set(self.typed.clone()),
            _ => self.set(history[history.len() - which].chars().collect()),
        }
    }

    /// The start of the word before the cursor.
    fn word_start(&self) -> usize {
        let before = &self.letters[..self.cursor];
        let end = before.iter().rposition(|letter| !letter.is_whitespace()).map_or(0, |last| last + 1);
        before[..end].iter().rposition(|letter| letter.is_whitespace()).map_or(0, |space| space + 1)
    }

    /// Does what a key says to the line itself.
    fn edit(&mut self, key: EditKey, history: &[String]) {
        match key {
            EditKey::Letter(letter) if self.letters.len() < LINE_CHARACTERS => {
                self.letters.insert(self.cursor, letter);
                self.cursor += 1;
            }
            EditKey::Backspace if self.cursor > 0 => {
                self.cursor -= 1;
                self.letters.remove(self.cursor);
            }
            EditKey::Delete if self.cursor < self.letters.len() => drop(self.letters.remove(self.cursor)),
            EditKey::Left => self.cursor = self.cursor.saturating_sub(1),
            EditKey::Right => self.cursor = (self.cursor + 1).min(self.letters.len()),
            EditKey::Home => self.cursor = 0,
            EditKey::End => self.cursor = self.letters.len(),
            EditKey::Up => self.show(self.shown + 1, history),
            EditKey::Down => self.show(self.shown.saturating_sub(1), history),
            EditKey::CutBehind => self.letters.truncate(self.cursor),
            EditKey::CutBefore | EditKey::CutWord => {
                let start = if key == EditKey::CutWord { self.word_start() } else { 0 };
                self.letters.drain(start..self.cursor);
                self.cursor = start;
            }
            _ => {}
        }
    }

    /// Completes the word before the cursor as far as all of its completions agree. Returns these, if there are several
    /// and they agree no further.
    fn complete(&mut self, (start, words): Completions) -> Vec<String> {
        let before: String = self.letters[..self.cursor].iter().collect();
        let word = before.get(start..).unwrap_or_default();
        let Some(first) = words.first() else { return Vec::new() };
        let agreed = words.iter().fold(first.as_str(), |agreed, other| {
            let bytes = agreed.char_indices().zip(other.chars()).take_while(|((_, a), b)| a == b);
            let end = bytes.last().map_or(0, |((at, letter), _)| at + letter.len_utf8());
            &agreed[..end]
        });
        let more = agreed.strip_prefix(word).unwrap_or_default();
        if more.is_empty() && words.len() > 1 {
            return words;
        }
        let end = if words.len() == 1 { " " } else { "" };
        for letter in more.chars().chain(end.chars()) {
            self.edit(EditKey::Letter(letter), &[]);
        }
        Vec::new()
    }

    /// What a terminal of so many columns shows, and the cursor's column.
    fn view(&self, prompt: &str, columns: usize) -> (String, usize) {
        let prompt_columns = prompt.chars().count();
        let room = columns.saturating_sub(prompt_columns + 1).max(1);
        let start = self.cursor.saturating_sub(room);
        let shown = |letter: &char| if is_shown(*letter) { *letter } else { '\u{fffd}' };
        let text: String = self.letters[start..].iter().take(room).map(shown).collect();
        (format!("{prompt}{text}"), prompt_columns + self.cursor - start)
    }
}

/// Whether a terminal shows a character as it is.
fn is_shown(letter: char) -> bool {
    !needs_escape(letter) && !matches!(letter, '\n' | '\t')
}

/// The first key of these bytes, and how many bytes it has; none if its end is missing.
fn first_key(bytes: &[u8]) -> Option<(EditKey, usize)> {
    let key = match *bytes.first()? {
        b'\r' | b'\n' => EditKey::Enter,
        b'\t' => EditKey::Tab,
        0x7f | 0x08 => EditKey::Backspace,
        0x01 => EditKey::Home,
        0x02 => EditKey::Left,
        0x03 => EditKey::Interrupt,
        0x04 => EditKey::Finish,
        0x05 => EditKey::End,
        0x06 => EditKey::Right,
        0x0b => EditKey::CutBehind,
        0x0c => EditKey::Clear,
        0x0e => EditKey::Down,
        0x10 => EditKey::Up,
        0x15 => EditKey::CutBefore,
        0x17 => EditKey::CutWord,
        0x1b => return Some(escaped_key(bytes)),
        0..=0x1f => EditKey::Other,
        first => {
            let length = match first {
                0..=0x7f => 1,
                0xc0..=0xdf => 2,
                0xe0..=0xef => 3,
                0xf0..=0xff => 4,
                _ => return Some((EditKey::Other, 1)),
            };
            let letter = std::str::from_utf8(bytes.get(..length)?).ok().and_then(|text| text.chars().next());
            let Some(letter) = letter else { return Some((EditKey::Other, 1)) };
            let key = if is_shown(letter) { EditKey::Letter(letter) } else { EditKey::Other };
            return Some((key, length));
        }
    };
    Some((key, 1))
}

/// A key that a terminal sends as an escape sequence. One that is cut off counts as the escape alone.
fn escaped_key(bytes: &[u8]) -> (EditKey, usize) {
    let Some(b'[' | b'O') = bytes.get(1) else { return (EditKey::Other, 1) };
    let Some(end) = bytes[2..].iter().position(|byte| (0x40..=0x7e).contains(byte)) else {
        return (EditKey::Other, bytes.len());
    };
    let key = match &bytes[2..=2 + end] {
        b"A" => EditKey::Up,
        b"B" => EditKey::Down,
        b"C" => EditKey::Right,
        b"D" => EditKey::Left,
        b"H" | b"1~" | b"7~" => EditKey::Home,
        b"F" | b"4~" | b"8~" => EditKey::End,
        b"3~" => EditKey::Delete,
        _ => EditKey::Other,
    };
    (key, 3 + end)
}

/// A terminal that is raw until this is dropped.
struct RawInput(Termios);

impl RawInput {
    fn open() -> io::Result<RawInput> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(RawInput(before))
    }
}

impl Drop for RawInput {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _gone = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Reads lines from the terminal.
#[derive(Debug, Default)]
pub(super) struct LineEditor {
    /// Earlier lines, the newest last.
    history: Vec<String>,
    /// What was typed ahead.
    pending: Vec<u8>,
}

impl LineEditor {
    pub(super) fn new(history: Vec<String>) -> LineEditor {
        LineEditor { history, pending: Vec::new() }
    }

    /// Adds a line to the history, unless it is the newest already.
    pub(super) fn keep(&mut self, line: &str) {
        if self.history.last().is_none_or(|last| last != line) {
            self.history.push(line.to_owned());
        }
    }

    /// Reads a line.
    ///
    /// # Errors
    /// The terminal's settings cannot be changed, or it cannot be read or written.
    pub(super) fn read(&mut self, prompt: &str, complete: &dyn Fn(&str) -> Completions) -> io::Result<ReadOutcome> {
        let _raw = RawInput::open()?;
        let (mut line, mut out) = (EditedLine::default(), io::stdout().lock());
        // Behind what a command printed without a line's end, so many spaces end in the next line.
        write!(out, "{:1$}\r", "", columns() - 1)?;
        loop {
            draw(&mut out, &line, prompt)?;
            let Some(key) = self.next_key()? else { return Ok(ReadOutcome::End) };
            let outcome = match key {
                EditKey::Enter => ReadOutcome::Line(line.letters.iter().collect()),
                EditKey::Interrupt => ReadOutcome::Interrupted,
                EditKey::Finish if line.letters.is_empty() => ReadOutcome::End,
                EditKey::Finish => {
                    line.edit(EditKey::Delete, &self.history);
                    continue;
                }
                EditKey::Clear => {
                    out.write_all(b"\x1b[H\x1b[2J")?;
                    continue;
                }
                EditKey::Tab => {
                    let before: String = line.letters[..line.cursor].iter().collect();
                    let words = line.complete(complete(&before));
                    if !words.is_empty() {
                        write!(out, "\r\n{}\r\n", escape_one_line(&words.join("  ")))?;
                    }
                    continue;
                }
                key => {
                    line.edit(key, &self.history);
                    continue;
                }
            };
            out.write_all(b"\r\n")?;
            out.flush()?;
            return Ok(outcome);
        }
    }

    /// The next key; none if the terminal is gone.
    fn next_key(&mut self) -> io::Result<Option<EditKey>> {
        loop {
            if let Some((key, length)) = first_key(&self.pending) {
                self.pending.drain(..length);
                return Ok(Some(key));
            }
            let mut bytes = [0; 256];
            match io::stdin().lock().read(&mut bytes) {
                Ok(0) => return Ok(None),
                Ok(read) => self.pending.extend_from_slice(&bytes[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Columns of the terminal.
fn columns() -> usize {
    let known = tcgetwinsize(io::stdout()).map(|size| usize::from(size.ws_col)).ok().filter(|columns| *columns > 0);
    known.unwrap_or(USUAL_COLUMNS).max(FEWEST_COLUMNS)
}

fn draw(out: &mut impl Write, line: &EditedLine, prompt: &str) -> io::Result<()> {
    let (text, cursor) = line.view(prompt, columns());
    write!(out, "\r{text}\x1b[K\r")?;
    if cursor > 0 {
        write!(out, "\x1b[{cursor}C")?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line after these keys, with `|` where the cursor is.
    fn typed(bytes: &[u8], history: &[&str]) -> String {
        let history: Vec<String> = history.iter().map(|line| (*line).to_owned()).collect();
        let (mut line, mut rest) = (EditedLine::default(), bytes);
        while let Some((key, length)) = first_key(rest) {
            line.edit(key, &history);
            rest = &rest[length..];
        }
        let mut letters = line.letters.clone();
        letters.insert(line.cursor, '|');
        letters.into_iter().collect()
    }

    #[test]
    fn a_line_is_edited_as_in_other_shells() {
        assert_eq!(typed(b"get x", &[]), "get x|");
        assert_eq!(typed("gét".as_bytes(), &[]), "gét|");
        assert_eq!(typed(b"gt\x1b[De", &[]), "ge|t");
        assert_eq!(typed(b"xget\x01\x1b[3~", &[]), "|get");
        assert_eq!(typed(b"get\x7f\x7f\x7f\x7f", &[]), "|");
        assert_eq!(typed(b"get items x\x17", &[]), "get items |");
        assert_eq!(typed(b"get items  \x17\x17", &[]), "|");
        assert_eq!(typed(b"get items\x02\x02\x0b", &[]), "get ite|");
        assert_eq!(typed(b"get items\x02\x02\x15", &[]), "|ms");
        assert_eq!(typed(b"a\x1b[Cb\x1b[Hc\x1b[Fd\x1b[99~", &[]), "cabd|");
    }

    #[test]
    fn the_history_is_gone_through_and_what_was_typed_comes_back() {
        let history = ["first", "second"];
        assert_eq!(typed(b"ty\x1b[A", &history), "second|");
        assert_eq!(typed(b"ty\x1b[A\x1b[A\x1b[A", &history), "first|");
        assert_eq!(typed(b"ty\x1b[A\x1b[A\x1b[B\x1b[B\x1b[B", &history), "ty|");
        assert_eq!(typed(b"\x1b[A!", &history), "second!|");
    }

    #[test]
    fn words_are_completed_as_far_as_they_agree() {
        let complete = |text: &str, words: &[&str]| {
            let mut line = EditedLine::default();
            line.set(text.chars().collect());
            let start = text.rfind(' ').map_or(0, |space| space + 1);
            let shown = line.complete((start, words.iter().map(|word| (*word).to_owned()).collect()));
            (line.letters.iter().collect::<String>(), shown.len())
        };
        assert_eq!(complete("get it", &["items"]), ("get items ".to_owned(), 0));
        assert_eq!(complete("b", &["bank.deposit", "bank.transfer"]), ("bank.".to_owned(), 0));
        assert_eq!(complete("bank.", &["bank.deposit", "bank.transfer"]), ("bank.".to_owned(), 2));
        assert_eq!(complete("x", &[]), ("x".to_owned(), 0));
    }

    #[test]
    fn a_line_that_is_too_long_shows_where_the_cursor_is() {
        let mut line = EditedLine::default();
        line.set("0123456789".chars().collect());
        assert_eq!(line.view("> ", 80), ("> 0123456789".to_owned(), 12));
        assert_eq!(line.view("> ", 8), ("> 56789".to_owned(), 7));
        line.cursor = 0;
        assert_eq!(line.view("> ", 8), ("> 01234".to_owned(), 2));
    }

    #[test]
    fn what_a_terminal_would_obey_is_not_shown_to_it() {
        assert_eq!(typed("a\u{9b}b\u{202e}c".as_bytes(), &[]), "abc|");
        let mut line = EditedLine::default();
        line.show(1, &["get \u{1b}[2J".to_owned()]);
        assert_eq!(line.view("> ", 80).0, "> get \u{fffd}[2J");
    }

    #[test]
    fn keys_that_are_cut_off_wait_or_do_nothing() {
        assert_eq!(first_key("é".as_bytes().split_at(1).0), None);
        assert_eq!(first_key(b"\x1b"), Some((EditKey::Other, 1)));
        assert_eq!(first_key(b"\x1b[1"), Some((EditKey::Other, 3)));
        assert_eq!(first_key(b"\xff\xff\xff\xff"), Some((EditKey::Other, 1)));
        assert_eq!(first_key(b"\x80"), Some((EditKey::Other, 1)));
    }
}
