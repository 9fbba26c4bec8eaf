//! The file of an export: JSON, one object a line. docs/durability.md has the format.
//!
//! From format 2 on the last line ends with a checksum (CRC-32C) of all that is before it, its own other fields
//! included. Format 1 had none.

use std::io::{BufRead, Read, Write};

use sandstorm_client::control::{ExportedRecord, TableSpec};
use sandstorm_log::crc32c_append;
use serde::{Deserialize, Serialize};

/// What the first line calls the format.
pub(super) const FORMAT_NAME: &str = "sandstorm-export";
/// The version that is written here, the first with a checksum; later ones are refused by name.
pub(super) const FORMAT_VERSION: u32 = 2;
/// The oldest version that is read.
const OLDEST_VERSION: u32 = 1;
/// What is before the checksum in the last line.
const CHECKSUM_FIELD: &str = ",\"crc32c\":";
/// Bytes of memory that stay for the next line: values of some MiB do not keep theirs for all the small ones behind.
const RETAINED_LINE_BYTES: usize = 1 << 20;
/// Bytes of a line, at most: a largest key and value with every byte escaped.
pub(super) const MAX_LINE_BYTES: usize = 64 << 20;

/// The first line.
#[derive(Debug, Serialize)]
pub(super) struct HeaderLine<'l> {
    pub(super) format: &'l str,
    pub(super) format_version: u32,
    /// The version of the program.
    pub(super) program: &'l str,
    pub(super) tenant: &'l str,
    pub(super) made_ms: u64,
}

/// The line before a table's records.
#[derive(Debug, Serialize)]
pub(super) struct TableLine {
    pub(super) table: TableSpec,
}

/// The line behind a table's records.
#[derive(Debug, Serialize)]
pub(super) struct TableEndLine<'l> {
    pub(super) end_of_table: &'l str,
    pub(super) records: u64,
}

/// The last line.
#[derive(Debug, Serialize)]
pub(super) struct EndLine {
    pub(super) end: bool,
    pub(super) tables: u64,
    pub(super) records: u64,
}

/// A file that is written line by line, with the checksum of what it has.
pub(super) struct ExportWriter<W> {
    into: W,
    sum: u32,
    line: Vec<u8>,
}

impl<W: Write> ExportWriter<W> {
    pub(super) fn new(into: W) -> ExportWriter<W> {
        ExportWriter { into, sum: 0, line: Vec::new() }
    }

    /// Writes a line.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn line(&mut self, line: &impl Serialize) -> std::io::Result<()> {
        self.line.clear();
        self.line.shrink_to(RETAINED_LINE_BYTES);
        serde_json::to_writer(&mut self.line, line)?;
        self.line.push(b'\n');
        self.sum = crc32c_append(self.sum, &self.line);
        self.into.write_all(&self.line)
    }

    /// Writes the last line, with the checksum.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn end(mut self, line: &EndLine) -> std::io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.pop();
        let sum = crc32c_append(self.sum, &text);
        text.extend_from_slice(format!("{CHECKSUM_FIELD}{sum}}}\n").as_bytes());
        self.into.write_all(&text)?;
        self.into.flush()
    }
}

/// A line that was read.
#[derive(Debug, PartialEq)]
pub(super) enum ExportLine {
    Header { version: u32 },
    Table(TableSpec),
    Record(ExportedRecord),
    TableEnd { records: u64 },
    End { records: u64, crc32c: Option<u32> },
}

/// All fields that a line may have: an unknown one is an error, and no loss in silence.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct AnyLine {
    format: Option<String>,
    format_version: Option<u32>,
    program: Option<String>,
    tenant: Option<String>,
    made_ms: Option<u64>,
    table: Option<TableSpec>,
    end_of_table: Option<String>,
    end: bool,
    tables: Option<u64>,
    records: Option<u64>,
    key: Option<String>,
    key_base64: Option<String>,
    value: Option<String>,
    value_base64: Option<String>,
    version: u64,
    flags: u32,
    expires_at_ms: u64,
    crc32c: Option<u32>,
}

impl ExportLine {
    /// Reads a line.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub(super) fn parse(line: &[u8]) -> Result<ExportLine, String> {
        // A list would be taken for an object that has these fields in this order.
        if !line.trim_ascii_start().starts_with(b"{") {
            return Err("it is no line of an export: it is no JSON object".to_owned());
        }
        let line: AnyLine =
            serde_json::from_slice(line).map_err(|error| format!("it is no line of an export: {error}"))?;
        if let Some(format) = line.format {
            return match (format.as_str(), line.format_version) {
                (FORMAT_NAME, Some(version @ OLDEST_VERSION..=FORMAT_VERSION)) => Ok(ExportLine::Header { version }),
                (FORMAT_NAME, Some(version)) => Err(format!(
                    "the file has format version {version}, and this program reads versions {OLDEST_VERSION} to \
                     {FORMAT_VERSION}: use a newer one"
                )),
                _ => Err(format!("the file is no {FORMAT_NAME} with a format_version")),
            };
        }
        if line.crc32c.is_some() && !line.end {
            return Err("it has a crc32c, which belongs to the last line".to_owned());
        }
        if let Some(table) = line.table {
            return Ok(ExportLine::Table(table));
        }
        if let Some(records) = line.records {
            return match (line.end_of_table, line.end) {
                (Some(_), false) => Ok(ExportLine::TableEnd { records }),
                (None, true) => Ok(ExportLine::End { records, crc32c: line.crc32c }),
                _ => Err("it has records, and neither end_of_table nor end".to_owned()),
            };
        }
        let AnyLine { key, key_base64, value, value_base64, version, flags, expires_at_ms, .. } = line;
        Ok(ExportLine::Record(ExportedRecord { key, key_base64, value, value_base64, version, flags, expires_at_ms }))
    }
}

/// What is wrong with a file as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExportFault {
    /// It ends before its last line.
    CutOff,
    /// Its last line has no checksum, though its format has one.
    NoChecksum,
    /// Its checksum is another one.
    WrongChecksum,
}

impl ExportFault {
    /// Returns what is wrong, for people, with the number of the last line.
    pub(super) fn describe(self, number: u64) -> String {
        match self {
            ExportFault::CutOff => format!("the file ends with line {number}, before its last line: it was cut off"),
            ExportFault::NoChecksum => format!("line {number}, the last one, has no crc32c: it was changed or damaged"),
            ExportFault::WrongChecksum => {
                format!("the checksum in line {number} is not that of the file: it was changed or damaged")
            }
        }
    }
}

/// Looks whether a file is whole, before anything of it is used: it has its last line, and the checksum is right. The
/// inner error: the number of the last line that is there, and what is wrong. Of a format without a checksum, or of no
/// export at all, nothing is said.
///
/// # Errors
/// Those of the system.
pub(super) fn check_whole(reader: impl BufRead) -> std::io::Result<Result<(), (u64, ExportFault)>> {
    let mut lines = LineReader::new(reader);
    let header = match lines.next_line()? {
        Some((_, line)) => line.and_then(ExportLine::parse),
        None => return Ok(Ok(())),
    };
    let Ok(ExportLine::Header { version }) = header else { return Ok(Ok(())) };
    if version == OLDEST_VERSION {
        return Ok(Ok(()));
    }
    let mut found = Err(ExportFault::CutOff);
    while let Some((_, line)) = lines.next_line()? {
        // The other lines are looked at when they are imported.
        let is_end = line.as_ref().is_ok_and(|line| line.starts_with(b"{\"end\":"));
        let parsed = if is_end { line.and_then(ExportLine::parse).ok() } else { None };
        found = match parsed {
            Some(ExportLine::End { crc32c, .. }) => lines.check_sum(version, crc32c),
            _ => Err(ExportFault::CutOff),
        };
    }
    Ok(found.map_err(|fault| (lines.number, fault)))
}

/// A line's number, from 1, and its text without its end, or why that is not had.
pub(super) type NumberedLine<'a> = (u64, Result<&'a [u8], String>);

/// Reads a file line by line, with bounded memory.
pub(super) struct LineReader<R> {
    reader: R,
    line: Vec<u8>,
    /// The checksum of all that is before that line.
    sum: u32,
    /// The number of the last line that was read, from 1.
    pub(super) number: u64,
}

impl<R: BufRead> LineReader<R> {
    pub(super) fn new(reader: R) -> LineReader<R> {
        LineReader { reader, line: Vec::new(), sum: 0, number: 0 }
    }

    /// Looks at the checksum that the last line has, which is the one that was read last.
    ///
    /// # Errors
    /// [`ExportFault`].
    pub(super) fn check_sum(&self, version: u32, crc32c: Option<u32>) -> Result<(), ExportFault> {
        if version == OLDEST_VERSION {
            return Ok(());
        }
        let named = crc32c.ok_or(ExportFault::NoChecksum)?;
        let line = self.line.trim_ascii();
        let field = line.windows(CHECKSUM_FIELD.len()).rposition(|piece| piece == CHECKSUM_FIELD.as_bytes());
        let checked = line.get(..field.unwrap_or(0)).unwrap_or_default();
        if crc32c_append(self.sum, checked) == named { Ok(()) } else { Err(ExportFault::WrongChecksum) }
    }

    /// Reads the next line that is not empty, without its end, and its number. `None`: there is no other. The inner
    /// error: it is too long.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn next_line(&mut self) -> std::io::Result<Option<NumberedLine<'_>>> {
        loop {
            self.sum = crc32c_append(self.sum, &self.line);
            self.line.clear();
            self.line.shrink_to(RETAINED_LINE_BYTES);
            let read = self.reader.by_ref().take(MAX_LINE_BYTES as u64).read_until(b'\n', &mut self.line)?;
            if read == 0 {
                return Ok(None);
            }
            self.number += 1;
            if self.line.last() != Some(&b'\n') && read == MAX_LINE_BYTES {
                self.reader.skip_until(b'\n')?;
                return Ok(Some((self.number, Err(format!("it is longer than {} MiB", MAX_LINE_BYTES >> 20)))));
            }
            if !self.line.trim_ascii().is_empty() {
                break;
            }
        }
        Ok(Some((self.number, Ok(self.line.trim_ascii()))))
    }
}

#[cfg(test)]
#[path = "export_file_tests.rs"]
mod tests;
