//! The file of an export: JSON, one object a line. docs/durability.md has the format.

use std::io::{BufRead, Read, Write};

use sandstorm_client::control::{ExportedRecord, TableSpec};
use serde::{Deserialize, Serialize};

/// What the first line calls the format.
pub(super) const FORMAT_NAME: &str = "sandstorm-export";
/// The version that is written here; later ones are refused by name.
pub(super) const FORMAT_VERSION: u32 = 1;
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

/// Writes a line.
///
/// # Errors
/// Those of the system.
pub(super) fn write_line(into: &mut impl Write, line: &impl Serialize) -> std::io::Result<()> {
    serde_json::to_writer(&mut *into, line)?;
    into.write_all(b"\n")
}

/// A line that was read.
#[derive(Debug, PartialEq)]
pub(super) enum ExportLine {
    Header,
    Table(TableSpec),
    Record(ExportedRecord),
    TableEnd { records: u64 },
    End { records: u64 },
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
                (FORMAT_NAME, Some(FORMAT_VERSION)) => Ok(ExportLine::Header),
                (FORMAT_NAME, Some(version)) => Err(format!(
                    "the file has format version {version}, and this program reads version {FORMAT_VERSION}: use a newer one"
                )),
                _ => Err(format!("the file is no {FORMAT_NAME} with a format_version")),
            };
        }
        if let Some(table) = line.table {
            return Ok(ExportLine::Table(table));
        }
        if let Some(records) = line.records {
            return match (line.end_of_table, line.end) {
                (Some(_), false) => Ok(ExportLine::TableEnd { records }),
                (None, true) => Ok(ExportLine::End { records }),
                _ => Err("it has records, and neither end_of_table nor end".to_owned()),
            };
        }
        let AnyLine { key, key_base64, value, value_base64, version, flags, expires_at_ms, .. } = line;
        Ok(ExportLine::Record(ExportedRecord { key, key_base64, value, value_base64, version, flags, expires_at_ms }))
    }
}

/// A line's number, from 1, and its text without its end, or why that is not had.
pub(super) type NumberedLine<'a> = (u64, Result<&'a [u8], String>);

/// Reads a file line by line, with bounded memory.
pub(super) struct LineReader<R> {
    reader: R,
    line: Vec<u8>,
    /// The number of the last line that was read, from 1.
    pub(super) number: u64,
}

impl<R: BufRead> LineReader<R> {
    pub(super) fn new(reader: R) -> LineReader<R> {
        LineReader { reader, line: Vec::new(), number: 0 }
    }

    /// Reads the next line that is not empty, without its end, and its number. `None`: there is no other. The inner
    /// error: it is too long.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn next_line(&mut self) -> std::io::Result<Option<NumberedLine<'_>>> {
        loop {
            self.line.clear();
            // Values of some MiB do not keep their memory for all the small ones behind them.
            self.line.shrink_to(1 << 20);
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
