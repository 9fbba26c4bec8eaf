//! Files of JSON lines, one value a line, in two files that take turns: events, the history.
//!
//! `NAME.jsonl` is written; when it has its number of lines it becomes `NAME.1.jsonl`, and the one of that name goes.
//! Lines are pure ASCII: whatever names and texts hold, no terminal acts on them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::marker::PhantomData;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The two files of one name.
#[derive(Debug)]
pub(crate) struct JsonLineFiles<T> {
    current: PathBuf,
    former: PathBuf,
    file: Option<File>,
    /// Lines of a file, at most.
    most: usize,
    /// Lines in the current file.
    written: usize,
    /// Whether the last write failed.
    is_failing: bool,
    _values: PhantomData<fn(T)>,
}

impl<T: Serialize + DeserializeOwned> JsonLineFiles<T> {
    /// Opens the files of a name in a folder, each of at most `most` lines of at most `line_bytes`, and reads their
    /// values, the oldest first. A line that cannot be read is left out: the machine may have stopped while it was
    /// written.
    ///
    /// # Errors
    /// A file cannot be read, or not be written.
    pub(crate) fn open(
        folder: &Path,
        name: &str,
        most: usize,
        line_bytes: usize,
    ) -> io::Result<(JsonLineFiles<T>, Vec<T>)> {
        let (current, former) = (folder.join(format!("{name}.jsonl")), folder.join(format!("{name}.1.jsonl")));
        let (mut values, _) = read(&former, most, line_bytes)?;
        let (newer, has_cut_line) = read(&current, most, line_bytes)?;
        let written = newer.len();
        values.extend(newer);
        let mut files =
            JsonLineFiles { current, former, file: None, most, written, is_failing: false, _values: PhantomData };
        if has_cut_line {
            files.file()?.write_all(b"\n")?;
        }
        Ok((files, values))
    }

    fn file(&mut self) -> io::Result<&mut File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => OpenOptions::new().append(true).create(true).mode(0o600).open(&self.current)?,
        };
        Ok(self.file.insert(file))
    }

    /// Appends a value. One that cannot be written is kept in memory alone, and the log says so once.
    pub(crate) fn append(&mut self, value: &T) {
        let failed = self.write(value).err();
        match &failed {
            Some(error) if !self.is_failing => {
                tracing::warn!(%error, "nothing is written to {}", self.current.display());
            }
            _ => {}
        }
        self.is_failing = failed.is_some();
    }

    fn write(&mut self, value: &T) -> io::Result<()> {
        if self.written >= self.most {
            self.file = None;
            fs::rename(&self.current, &self.former)?;
            self.written = 0;
        }
        let line = ascii_line(value)?;
        // What a failed write has left of a line is no value, nor is what follows it on that line.
        let begin: &[u8] = if self.is_failing { b"\n" } else { b"" };
        self.file()?.write_all(&[begin, line.as_bytes()].concat())?;
        self.written += 1;
        Ok(())
    }
}

/// Makes a folder of the state directory for files that are for the server alone. `None`: it cannot be made, and a line
/// of the log says that what they are for, such as "events are", is kept in memory alone.
pub(crate) fn make_private_folder(state: &Path, name: &str, what_is: &str) -> Option<PathBuf> {
    let folder = state.join(name);
    if let Err(error) = fs::DirBuilder::new().mode(0o700).recursive(true).create(&folder) {
        // A server on a full disk starts all the same.
        tracing::warn!(%error, "{what_is} kept in memory alone: {}", folder.display());
        return None;
    }
    Some(folder)
}

/// A text of a line: what is behind its first bytes, at most so many, is cut off.
pub(crate) fn shortened(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.push('…');
    }
    text
}

/// The value as a line of JSON in ASCII.
fn ascii_line(value: &impl Serialize) -> io::Result<String> {
    let json = serde_json::to_string(value)?;
    let mut line = String::with_capacity(json.len() + 1);
    for c in json.chars() {
        if matches!(c, ' '..='~') {
            line.push(c);
            continue;
        }
        // Only strings have such characters.
        for unit in c.encode_utf16(&mut [0; 2]) {
            line.push_str(&format!("\\u{unit:04x}"));
        }
    }
    line.push('\n');
    Ok(line)
}

/// The values of a file, and whether its last line has no end.
fn read<T: DeserializeOwned>(path: &Path, most: usize, line_bytes: usize) -> io::Result<(Vec<T>, bool)> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), false)),
        Err(error) => return Err(error),
    };
    let (mut values, mut left_out, mut has_cut_line) = (Vec::new(), 0, false);
    let mut reader = BufReader::new(file.take((most * line_bytes) as u64));
    let mut line = Vec::new();
    while values.len() < most && reader.read_until(b'\n', &mut line)? > 0 {
        has_cut_line = !line.ends_with(b"\n");
        match serde_json::from_slice(&line) {
            Ok(value) => values.push(value),
            Err(_) if line.trim_ascii().is_empty() => {}
            Err(_) => left_out += 1,
        }
        line.clear();
    }
    if left_out > 0 {
        tracing::warn!("{left_out} lines of {} cannot be read, and are left out", path.display());
    }
    Ok((values, has_cut_line))
}
