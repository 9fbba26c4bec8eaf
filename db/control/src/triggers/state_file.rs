//! The file that keeps triggers over a restart: what they are, how far they have come, and their dead letters.

use std::fs;
use std::io;
use std::path::Path;

use data_encoding::BASE64;
use serde::{Deserialize, Serialize};

use super::definition::TriggerDefinition;
use crate::config::{ConfigError, write_private};

/// Name of the file in the state directory.
pub(crate) const TRIGGER_FILE: &str = "triggers.json";
/// The format that is written, and the only one that is read.
const FORMAT: u32 = 1;

/// A call whose tries are over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeadLetter {
    /// Its number among those of its trigger.
    pub(crate) id: u64,
    /// When it was given up, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// The position of its change; 0: it is none.
    pub(crate) position: u64,
    /// Times that it was tried.
    pub(crate) tries: u32,
    /// The last error.
    pub(crate) error: String,
    /// The arguments in base64; `None`: they were too long to be kept.
    pub(crate) args: Option<String>,
}

impl DeadLetter {
    /// The arguments; `None`: they were too long to be kept.
    pub(crate) fn decoded_args(&self) -> Option<Vec<u8>> {
        BASE64.decode(self.args.as_ref()?.as_bytes()).ok()
    }
}

/// A trigger in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredTrigger {
    /// Id and name of its tenant: both have to be the same after a restart.
    pub(crate) tenant: u32,
    pub(crate) tenant_name: String,
    pub(crate) spec: TriggerDefinition,
    /// Of a table's trigger: the position up to which all changes are handled.
    pub(crate) position: u64,
    /// Of a schedule: the last time that it was due, or when it was created, in milliseconds since 1970.
    pub(crate) last_due_ms: u64,
    /// Why it makes no calls; empty: it does.
    pub(crate) paused: String,
    pub(crate) dead_letters: Vec<DeadLetter>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TriggerFile {
    format: u32,
    triggers: Vec<StoredTrigger>,
}

/// Reads the triggers of a state directory; there are none without the file.
///
/// # Errors
/// One line: the file cannot be read, or is not what was written.
pub(crate) fn read(state: &Path) -> Result<Vec<StoredTrigger>, ConfigError> {
    let path = state.join(TRIGGER_FILE);
    let unusable = |error: &dyn std::fmt::Display| {
        ConfigError::new(format!(
            "{} cannot be used: {error}; put it back from a backup, or remove it to start without triggers",
            path.display()
        ))
    };
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unusable(&error)),
    };
    let file: TriggerFile = serde_json::from_slice(&bytes).map_err(|error| unusable(&error))?;
    if file.format != FORMAT {
        return Err(unusable(&format!("it has format {}, and this program reads format {FORMAT}", file.format)));
    }
    for StoredTrigger { spec, .. } in &file.triggers {
        spec.source().map_err(|why| unusable(&format!("trigger {:?}: {why}", spec.name)))?;
    }
    Ok(file.triggers)
}

/// Writes the triggers; they are on the disk when this returns. Returns the bytes.
///
/// # Errors
/// One line: the file cannot be written.
pub(crate) fn write(state: &Path, triggers: Vec<StoredTrigger>) -> Result<usize, ConfigError> {
    let bytes = serde_json::to_vec(&TriggerFile { format: FORMAT, triggers });
    let bytes = bytes.map_err(|error| ConfigError::new(format!("triggers cannot be written down: {error}")))?;
    write_private(&state.join(TRIGGER_FILE), &bytes)?;
    Ok(bytes.len())
}
