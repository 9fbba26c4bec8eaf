//! Finds the tables that damage may have hit, for the error that names it. Table numbers are random. So eight bytes
//! that equal the number of a table that the log has named are a change of that table, also within a damaged frame.

use std::collections::{BTreeSet, HashMap};

use crate::change::{ChangeKind, LoggedChange, u64_at};
use crate::disk::LogDisk;
use crate::error::LogError;
use crate::file_reader::{FrameRead, LogFileReader};
use crate::frame::{FileHeader, frame_bytes};
use crate::limits::FRAME_PAYLOAD_BYTES;

/// Tables that an error names, at most.
const MOST_NAMED: usize = 8;

/// The names of tables by their numbers, as far as the log has said them.
#[derive(Debug, Default)]
pub(crate) struct TableNames(HashMap<u64, String>);

impl TableNames {
    /// Notes the name that a change tells.
    #[inline]
    pub(crate) fn note(&mut self, change: &LoggedChange<'_>) {
        if change.kind == ChangeKind::MakeTable {
            self.0.insert(change.table, String::from_utf8_lossy(change.key).into_owned());
        }
    }

    /// The tables whose numbers are somewhere in these bytes, or that are named there, each once.
    fn in_bytes(&self, bytes: &[u8]) -> BTreeSet<String> {
        let known = |at| u64_at(bytes, at).and_then(|number| self.0.get(&number)).cloned();
        let told = |at| LoggedChange::decode(bytes.get(at..)?).and_then(|(change, _)| name_told(&change));
        (0..bytes.len()).filter_map(|at| known(at).or_else(|| told(at))).collect()
    }

    /// Returns an error of damage with the tables that have changes there. Others stay as they are.
    pub(crate) fn name_in(&self, disk: &dyn LogDisk, file: &FileHeader, error: LogError) -> LogError {
        let LogError::Damaged { file: path, offset, what } = error else { return error };
        // Without the bytes there is nothing to be said of tables; the damage is the error.
        let bytes = damaged_bytes(disk, file, offset).unwrap_or_default();
        let named = self.in_bytes(&bytes);
        let mut names: Vec<_> = named.iter().take(MOST_NAMED).cloned().collect();
        if named.len() > MOST_NAMED {
            names.push(format!("{} more", named.len() - MOST_NAMED));
        }
        let tables = match names.as_slice() {
            [] => "which tables have changes there cannot be seen".to_owned(),
            names => format!("changes of {} are there", names.join(", ")),
        };
        LogError::Damaged { file: path, offset, what: format!("{what}; {tables}") }
    }
}

/// The name that a change tells, if it is one that a table may have: what is looked at may be anything.
fn name_told(change: &LoggedChange<'_>) -> Option<String> {
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-./".contains(byte);
    let is_made = change.kind == ChangeKind::MakeTable && change.value.is_empty() && change.expires_at_ms == 0;
    let is_name = is_made && change.key.contains(&b'/') && change.key.iter().all(is_of_name);
    is_name.then(|| String::from_utf8_lossy(change.key).into_owned())
}

/// Reads from an offset up to the next intact frame, at most the bytes of a frame.
fn damaged_bytes(disk: &dyn LogDisk, file: &FileHeader, offset: u64) -> Result<Vec<u8>, LogError> {
    let mut reader = LogFileReader::open_as(disk, *file)?;
    let most = (offset + frame_bytes(FRAME_PAYLOAD_BYTES)).min(reader.bytes);
    reader.offset = offset;
    let mut end = offset;
    while end < most {
        if matches!(reader.next_frame_anywhere()?, FrameRead::Frame(..)) && end > offset {
            break;
        }
        end = reader.offset.min(most);
    }
    reader.bytes_at(offset, (end - offset) as usize)
}
