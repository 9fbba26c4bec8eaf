//! The files that keep triggers over a restart, one for each: what it is, how far it has come, and its dead letters.
//! So a change of a trigger writes what this trigger has, whatever others have.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use data_encoding::BASE64;
use serde::{Deserialize, Serialize};

use super::definition::TriggerDefinition;
use crate::checked_json::{self, JsonFormats, is_zero};
use crate::config::{ConfigError, write_private};
use sandstorm_catalog::{AgreedTrigger, TenantAccount};

/// Name of the folder in the state directory.
pub const TRIGGER_FOLDER: &str = "triggers";
/// The format of its files that is written.
const FORMAT: u32 = 3;
/// The formats of its files that are read. The second one had no checksum.
const FORMATS: JsonFormats = JsonFormats { oldest: 2, newest: FORMAT, first_checked: 3 };
/// Name of the file in the state directory that had all triggers of all tenants, up to format 1. It is moved.
const COMMON_FILE: &str = "triggers.json";
/// Its only format.
const COMMON_FORMATS: JsonFormats = JsonFormats { oldest: 1, newest: 1, first_checked: 2 };
/// How the names of files begin that a crash has left half-written.
const HALF_WRITTEN: &str = ".new-";

/// A call whose tries are over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeadLetter {
    /// Its number among those of its trigger.
    pub(crate) id: u64,
    /// When it was given up, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// The position of its change; 0: it has no change.
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

/// A trigger in its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredTrigger {
    /// Id and name of its tenant: both have to be the same after a restart.
    pub(crate) tenant: u32,
    pub(crate) tenant_name: String,
    pub(crate) spec: TriggerDefinition,
    /// Of a table's trigger: the position up to which all changes are handled.
    pub(crate) position: u64,
    /// The log that this is a position of; 0: not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) log_id: u64,
    /// Of a schedule: the last time that it was due, or when it was created, in milliseconds since 1970.
    pub(crate) last_due_ms: u64,
    /// Why it makes no calls; empty: it does.
    pub(crate) paused: String,
    /// In a cluster: what the servers have agreed on, as this one has taken it over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) agreed: Option<AgreedTrigger>,
    pub(crate) dead_letters: Vec<DeadLetter>,
}

impl StoredTrigger {
    /// A trigger that has made no calls yet: for changes from a position of a log on, or by the clock from now on.
    pub(crate) fn begins(
        tenant: &TenantAccount,
        spec: TriggerDefinition,
        (position, log_id): (u64, u64),
        now_ms: u64,
    ) -> StoredTrigger {
        StoredTrigger {
            tenant: tenant.id,
            tenant_name: tenant.name.clone(),
            spec,
            position,
            log_id,
            last_due_ms: now_ms,
            paused: String::new(),
            agreed: None,
            dead_letters: Vec::new(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TriggerFile {
    #[serde(rename = "format")]
    _format: u32,
    trigger: StoredTrigger,
}

/// The same, to be written.
#[derive(Serialize)]
struct WrittenFile<'t> {
    format: u32,
    trigger: &'t StoredTrigger,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CommonFile {
    #[serde(rename = "format")]
    _format: u32,
    triggers: Vec<StoredTrigger>,
}

/// The folder of the files.
#[derive(Clone, Debug)]
pub(super) struct TriggerFolder {
    path: PathBuf,
}

impl TriggerFolder {
    /// Opens the folder of a state directory, with the triggers that it has. There is none before the first trigger.
    /// A common file is moved here: as long as it is there, what it says holds.
    ///
    /// # Errors
    /// One line: a file cannot be read, or is not what was written.
    pub(super) fn open(state: &Path) -> Result<(TriggerFolder, Vec<StoredTrigger>), ConfigError> {
        let folder = TriggerFolder { path: state.join(TRIGGER_FOLDER) };
        let common_path = state.join(COMMON_FILE);
        let Some(bytes) = read_file(&common_path)? else {
            let triggers = folder.read()?;
            return Ok((folder, triggers));
        };
        let (_, json) = checked_json::decode(&bytes, COMMON_FORMATS).map_err(|why| unusable(&common_path, &why))?;
        let CommonFile { triggers, .. } =
            serde_json::from_slice(json).map_err(|error| unusable(&common_path, &error))?;
        triggers.iter().try_for_each(|trigger| check_trigger(&common_path, trigger))?;
        // A move that did not end, or an earlier version of this program that ran since.
        for (name, _) in folder.files()? {
            folder.remove_file(&name)?;
        }
        for trigger in &triggers {
            folder.write(trigger)?;
        }
        let removed = fs::remove_file(&common_path).and_then(|()| fs::File::open(state)?.sync_all());
        removed.map_err(|error| ConfigError::new(format!("cannot remove {}: {error}", common_path.display())))?;
        Ok((folder, triggers))
    }

    fn read(&self) -> Result<Vec<StoredTrigger>, ConfigError> {
        let mut triggers = Vec::new();
        for (name, path) in self.files()? {
            if name.starts_with(HALF_WRITTEN) {
                self.remove_file(&name)?;
                continue;
            }
            let Some(bytes) = read_file(&path)? else { continue };
            let (_, json) = checked_json::decode(&bytes, FORMATS).map_err(|why| unusable(&path, &why))?;
            let TriggerFile { trigger, .. } = serde_json::from_slice(json).map_err(|error| unusable(&path, &error))?;
            check_trigger(&path, &trigger)?;
            if name != file_name(trigger.tenant, &trigger.spec.name) {
                return Err(unusable(&path, &"it has another trigger than its name says"));
            }
            triggers.push(trigger);
        }
        Ok(triggers)
    }

    /// The files by name.
    fn files(&self) -> Result<Vec<(String, PathBuf)>, ConfigError> {
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(unusable(&self.path, &error)),
        };
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| unusable(&self.path, &error))?;
            files.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
        }
        files.sort();
        Ok(files)
    }

    /// Writes a trigger; it is on the disk when this returns. Returns the bytes.
    ///
    /// # Errors
    /// One line: the file cannot be written.
    pub(super) fn write(&self, trigger: &StoredTrigger) -> Result<usize, ConfigError> {
        let json = serde_json::to_vec(&WrittenFile { format: FORMAT, trigger });
        let json = json.map_err(|error| ConfigError::new(format!("a trigger cannot be written down: {error}")))?;
        let bytes = checked_json::with_checksum(json);
        self.create()?;
        write_private(&self.path.join(file_name(trigger.tenant, &trigger.spec.name)), &bytes)?;
        Ok(bytes.len())
    }

    /// Makes the folder, unless it is there.
    fn create(&self) -> Result<(), ConfigError> {
        let made = match DirBuilder::new().mode(0o700).create(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            made => made.and_then(|()| fs::File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()),
        };
        made.map_err(|error| ConfigError::new(format!("cannot make {}: {error}", self.path.display())))
    }

    /// Removes the file of a trigger, if there is one; that is on the disk when this returns.
    ///
    /// # Errors
    /// One line: the file cannot be removed.
    pub(super) fn remove(&self, tenant: u32, name: &str) -> Result<(), ConfigError> {
        self.remove_file(&file_name(tenant, name))
    }

    fn remove_file(&self, name: &str) -> Result<(), ConfigError> {
        let path = self.path.join(name);
        let removed = match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            removed => removed.and_then(|()| fs::File::open(&self.path)?.sync_all()),
        };
        removed.map_err(|error| ConfigError::new(format!("cannot remove {}: {error}", path.display())))
    }
}

/// Names of triggers have no slash and begin with a letter or digit.
fn file_name(tenant: u32, name: &str) -> String {
    format!("{tenant}-{name}.json")
}

fn unusable(path: &Path, error: &dyn std::fmt::Display) -> ConfigError {
    ConfigError::new(format!(
        "{} cannot be used: {error}; put it back from a backup, or remove it to start without what it has",
        path.display()
    ))
}

fn read_file(path: &Path) -> Result<Option<Vec<u8>>, ConfigError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unusable(path, &error)),
    }
}

fn check_trigger(path: &Path, StoredTrigger { spec, .. }: &StoredTrigger) -> Result<(), ConfigError> {
    spec.source().map(drop).map_err(|why| unusable(path, &format!("trigger {:?}: {why}", spec.name)))
}

#[cfg(test)]
#[path = "state_file_tests.rs"]
mod tests;
