//! The files of a stream of events: JSON, one event a line, in two files that take turns.
//!
//! `NAME.jsonl` is written; when it has [`EVENTS_PER_FILE`] events it becomes `NAME.1.jsonl`, and the one of that name
//! goes. Lines are pure ASCII: whatever names and texts hold, no terminal acts on them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::event::ServerEvent;
use crate::limits::{EVENT_LINE_BYTES, EVENTS_PER_FILE};

/// The files of one stream.
#[derive(Debug)]
pub(super) struct EventFiles {
    current: PathBuf,
    former: PathBuf,
    file: Option<File>,
    /// Events in the current file.
    written: usize,
    /// Whether the last write failed.
    is_failing: bool,
}

impl EventFiles {
    /// Opens the files of a stream in a folder, and reads their events, the oldest first. A line that cannot be read is
    /// left out: the machine may have stopped while it was written.
    ///
    /// # Errors
    /// A file cannot be read, or not be written.
    pub(super) fn open(folder: &Path, name: &str) -> io::Result<(EventFiles, Vec<ServerEvent>)> {
        let (current, former) = (folder.join(format!("{name}.jsonl")), folder.join(format!("{name}.1.jsonl")));
        let (mut events, _) = read(&former)?;
        let (newer, has_cut_line) = read(&current)?;
        let written = newer.len();
        events.extend(newer);
        let mut files = EventFiles { current, former, file: None, written, is_failing: false };
        if has_cut_line {
            files.file()?.write_all(b"\n")?;
        }
        Ok((files, events))
    }

    fn file(&mut self) -> io::Result<&mut File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => OpenOptions::new().append(true).create(true).mode(0o600).open(&self.current)?,
        };
        Ok(self.file.insert(file))
    }

    /// Appends an event. One that cannot be written is kept in memory alone, and the log says so once.
    pub(super) fn append(&mut self, event: &ServerEvent) {
        let failed = self.write(event).err();
        match &failed {
            Some(error) if !self.is_failing => {
                tracing::warn!(%error, "events are not written to {}", self.current.display());
            }
            _ => {}
        }
        self.is_failing = failed.is_some();
    }

    fn write(&mut self, event: &ServerEvent) -> io::Result<()> {
        if self.written >= EVENTS_PER_FILE {
            self.file = None;
            fs::rename(&self.current, &self.former)?;
            self.written = 0;
        }
        let line = ascii_line(event)?;
        // What a failed write has left of a line is no event, nor is what follows it on that line.
        let begin: &[u8] = if self.is_failing { b"\n" } else { b"" };
        self.file()?.write_all(&[begin, line.as_bytes()].concat())?;
        self.written += 1;
        Ok(())
    }
}

/// The event as a line of JSON in ASCII.
fn ascii_line(event: &ServerEvent) -> io::Result<String> {
    let json = serde_json::to_string(event)?;
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

/// The events of a file, and whether its last line has no end.
fn read(path: &Path) -> io::Result<(Vec<ServerEvent>, bool)> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), false)),
        Err(error) => return Err(error),
    };
    let (mut events, mut left_out, mut has_cut_line) = (Vec::new(), 0, false);
    let mut reader = BufReader::new(file.take((EVENTS_PER_FILE * EVENT_LINE_BYTES) as u64));
    let mut line = Vec::new();
    while events.len() < EVENTS_PER_FILE && reader.read_until(b'\n', &mut line)? > 0 {
        has_cut_line = !line.ends_with(b"\n");
        match serde_json::from_slice(&line) {
            Ok(event) => events.push(event),
            Err(_) if line.trim_ascii().is_empty() => {}
            Err(_) => left_out += 1,
        }
        line.clear();
    }
    if left_out > 0 {
        tracing::warn!("{left_out} lines of {} are no events, and are left out", path.display());
    }
    Ok((events, has_cut_line))
}
