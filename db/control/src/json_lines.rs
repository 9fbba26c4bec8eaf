//! Files of JSON lines, one value a line, in two files that take turns: events, the history, incidents.
//!
//! `NAME.jsonl` is written; when it has its number of values it becomes `NAME.1.jsonl`, and the one of that name goes.
//! Lines are pure ASCII: whatever names and texts hold, no terminal acts on them.
//!
//! A line of its own says the format of those behind it: `{"format":2,"sum":…}`, in later formats, too, so that an
//! earlier program refuses them by name. What is before it, or in a file without it, is of format 1. From format 2 on
//! each line ends with a field `sum`: 16 digits of the SHA-256 of the line's text before it. A line whose sum is wrong
//! is left out.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::marker::PhantomData;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use ring::digest::{SHA256, digest};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The format that is written. This one and the one before are read.
const FORMAT: u64 = 2;
/// Beginning of the line that says the format.
const FORMAT_LINE_BEGIN: &[u8] = b"{\"format\":";
/// What is before the sum of a line.
const SUM_FIELD: &str = ",\"sum\":\"";
/// What is behind it.
const SUM_END: &str = "\"}";
/// Hexadecimal digits of a sum: of 2^64 damaged lines one is taken for whole.
const SUM_DIGITS: usize = 16;
/// Bytes of a sum with what is around it.
const SUM_BYTES: usize = SUM_FIELD.len() + SUM_DIGITS + SUM_END.len();

/// The line that says the format of those behind it.
#[derive(Serialize, Deserialize)]
struct FormatLine {
    format: u64,
}

/// The two files of one name.
#[derive(Debug)]
pub(crate) struct JsonLineFiles<T> {
    current: PathBuf,
    former: PathBuf,
    file: Option<File>,
    /// Values of a file, at most.
    most: usize,
    /// Values in the current file.
    written: usize,
    /// Whether the current file says its format.
    has_format: bool,
    /// Whether the last write failed.
    is_failing: bool,
    _values: PhantomData<fn(T)>,
}

impl<T: Serialize + DeserializeOwned> JsonLineFiles<T> {
    /// Opens the files of a name in a folder, each of at most `most` values in lines of at most `line_bytes`, and reads
    /// their values, the oldest first. A line that cannot be read is left out: the machine may have stopped while it
    /// was written.
    ///
    /// # Errors
    /// A file cannot be read, or not be written, or a later version of this program has written it.
    pub(crate) fn open(
        folder: &Path,
        name: &str,
        most: usize,
        line_bytes: usize,
    ) -> io::Result<(JsonLineFiles<T>, Vec<T>)> {
        let (current, former) = (folder.join(format!("{name}.jsonl")), folder.join(format!("{name}.1.jsonl")));
        let mut values = read(&former, most, line_bytes)?.values;
        let newer = read(&current, most, line_bytes)?;
        let mut files = JsonLineFiles {
            current,
            former,
            file: None,
            most,
            written: newer.values.len(),
            has_format: newer.format == FORMAT,
            is_failing: false,
            _values: PhantomData,
        };
        if newer.has_cut_line {
            files.file()?.write_all(b"\n")?;
        }
        values.extend(newer.values);
        Ok((files, values))
    }

    fn file(&mut self) -> io::Result<&mut File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => OpenOptions::new().append(true).create(true).mode(0o600).open(&self.current)?,
        };
        Ok(self.file.insert(file))
    }

    /// Appends a value. A value that cannot be written is kept in memory alone, and the log says so once.
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
            (self.written, self.has_format) = (0, false);
        }
        // What a failed write has left of a line is no value, nor is what follows it on that line.
        let mut lines = if self.is_failing { "\n".to_owned() } else { String::new() };
        if !self.has_format {
            lines.push_str(&summed_line(&FormatLine { format: FORMAT })?);
        }
        lines.push_str(&summed_line(value)?);
        self.file()?.write_all(lines.as_bytes())?;
        (self.written, self.has_format) = (self.written + 1, true);
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

/// The value, an object, as a line of JSON in ASCII with its sum.
fn summed_line(value: &impl Serialize) -> io::Result<String> {
    let json = serde_json::to_string(value)?;
    let mut line = String::with_capacity(json.len() + SUM_BYTES);
    for c in json.strip_suffix('}').unwrap_or(&json).chars() {
        if matches!(c, ' '..='~') {
            line.push(c);
            continue;
        }
        // Only strings have such characters.
        for unit in c.encode_utf16(&mut [0; 2]) {
            line.push_str(&format!("\\u{unit:04x}"));
        }
    }
    let sum = sum_of(line.as_bytes());
    line.extend([SUM_FIELD, sum.as_str(), SUM_END, "\n"]);
    Ok(line)
}

/// The sum of a line whose text before it this is.
fn sum_of(text: &[u8]) -> String {
    HEXLOWER.encode(&digest(&SHA256, text).as_ref()[..SUM_DIGITS / 2])
}

/// Takes the sum off a line. `None`: it has none. `Some(false)`: it is wrong.
fn take_sum(line: &mut Vec<u8>) -> Option<bool> {
    let text = line.trim_ascii_end();
    let (before, behind) = text.split_at(text.len().checked_sub(SUM_BYTES)?);
    let sum = behind.strip_prefix(SUM_FIELD.as_bytes())?.strip_suffix(SUM_END.as_bytes())?;
    let (is_right, length) = (sum == sum_of(before).as_bytes(), before.len());
    line.truncate(length);
    line.push(b'}');
    Some(is_right)
}

/// What a file has.
struct ReadLines<T> {
    values: Vec<T>,
    /// The format of its last lines.
    format: u64,
    /// Whether its last line has no end.
    has_cut_line: bool,
}

/// Reads a file.
fn read<T: DeserializeOwned>(path: &Path, most: usize, line_bytes: usize) -> io::Result<ReadLines<T>> {
    let mut found = ReadLines { values: Vec::new(), format: 1, has_cut_line: false };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(error),
    };
    let mut left_out = 0;
    // One line more says the format.
    let mut reader = BufReader::new(file.take(((most + 1) * line_bytes) as u64));
    let mut line = Vec::new();
    while found.values.len() < most && reader.read_until(b'\n', &mut line)? > 0 {
        found.has_cut_line = !line.ends_with(b"\n");
        let is_empty = line.trim_ascii().is_empty();
        let sum = take_sum(&mut line);
        let is_whole = sum.unwrap_or(found.format == 1);
        if sum == Some(true) && line.starts_with(FORMAT_LINE_BEGIN) {
            found.format = read_format(path, &line)?;
        } else if let (true, Ok(value)) = (is_whole, serde_json::from_slice(&line)) {
            found.values.push(value);
        } else if !is_empty {
            left_out += 1;
        }
        line.clear();
    }
    if left_out > 0 {
        tracing::warn!("{left_out} lines of {} cannot be read, and are left out", path.display());
    }
    Ok(found)
}

/// The format that a whole line says.
fn read_format(path: &Path, line: &[u8]) -> io::Result<u64> {
    match serde_json::from_slice(line)? {
        FormatLine { format } if format <= FORMAT => Ok(format),
        FormatLine { format } => {
            let name = path.file_name().unwrap_or_default().display();
            Err(io::Error::other(format!(
                "{name} has format {format}, and this program reads formats up to {FORMAT}: start the newer version \
                 that wrote it, or move the file away"
            )))
        }
    }
}

#[cfg(test)]
#[path = "json_lines_tests.rs"]
mod tests;
