//! The files that keep triggers over a restart, one for each: what it is, how far it has come, and its dead letters.
//! So a change of a trigger writes what this trigger has, whatever others have.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use data_encoding::BASE64;
use serde::{Deserialize, Serialize};

use super::definition::TriggerDefinition;
use crate::config::{ConfigError, write_private};

/// Name of the folder in the state directory.
pub const TRIGGER_FOLDER: &str = "triggers";
/// The format of its files, and the only one that is read.
const FORMAT: u32 = 2;
/// Name of the file in the state directory that had all triggers of all tenants, up to format 1. It is moved.
const COMMON_FILE: &str = "triggers.json";
/// Its format.
const COMMON_FORMAT: u32 = 1;
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
    pub(crate) dead_letters: Vec<DeadLetter>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TriggerFile {
    format: u32,
    trigger: StoredTrigger,
}

/// The same, to be written.
#[derive(Serialize)]
struct WrittenFile<'t> {
    format: u32,
    trigger: &'t StoredTrigger,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CommonFile {
    format: u32,
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
        let CommonFile { format, triggers } =
            serde_json::from_slice(&bytes).map_err(|error| unusable(&common_path, &error))?;
        check_format(&common_path, (format, COMMON_FORMAT))?;
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
            let TriggerFile { format, trigger } =
                serde_json::from_slice(&bytes).map_err(|error| unusable(&path, &error))?;
            check_format(&path, (format, FORMAT))?;
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
        let bytes = serde_json::to_vec(&WrittenFile { format: FORMAT, trigger });
        let bytes = bytes.map_err(|error| ConfigError::new(format!("a trigger cannot be written down: {error}")))?;
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

fn check_format(path: &Path, (format, readable): (u32, u32)) -> Result<(), ConfigError> {
    if format != readable {
        return Err(unusable(path, &format!("it has format {format}, and this program reads format {readable}")));
    }
    Ok(())
}

fn check_trigger(path: &Path, StoredTrigger { spec, .. }: &StoredTrigger) -> Result<(), ConfigError> {
    spec.source().map(drop).map_err(|why| unusable(path, &format!("trigger {:?}: {why}", spec.name)))
}

#[cfg(test)]
mod tests {
    //! Promise: what was kept in either form is there after a start, and a start without it says what is wrong.

    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn trigger(tenant: u32, name: &str, position: u64) -> StoredTrigger {
        let spec = serde_json::json!({"name": name, "extension": "count", "table": "items"});
        let letter = DeadLetter { id: 1, at_ms: 2, position: 3, tries: 4, error: "no".into(), args: None };
        StoredTrigger {
            tenant,
            tenant_name: format!("shop{tenant}"),
            spec: serde_json::from_value(spec).expect("a definition"),
            position,
            log_id: 0,
            last_due_ms: 7,
            paused: String::new(),
            dead_letters: vec![letter],
        }
    }

    #[test]
    fn triggers_are_read_as_they_were_written_and_what_a_crash_leaves_goes() {
        let state = tempfile::tempdir().expect("a folder");
        let (folder, none) = TriggerFolder::open(state.path()).expect("an empty one");
        assert!(none.is_empty() && !folder.path.exists(), "there is no folder before the first trigger");
        let written = [trigger(1, "a.b", 11), trigger(1, "a", 10), trigger(12, "a", 12)];
        for trigger in &written {
            folder.write(trigger).expect("room");
        }
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!((mode(&folder.path), mode(&folder.path.join("1-a.json"))), (0o700, 0o600));
        fs::write(folder.path.join(".new-x"), b"{").expect("as a crash leaves it");
        assert_eq!(TriggerFolder::open(state.path()).expect("files").1, written);
        assert!(!folder.path.join(".new-x").exists());
        folder.remove(1, "a.b").expect("it was there");
        folder.remove(1, "a.b").expect("it is gone");
        assert_eq!(TriggerFolder::open(state.path()).expect("files").1, written[1..]);
    }

    #[test]
    fn the_common_file_of_earlier_versions_is_moved_and_holds_while_it_is_there() {
        let state = tempfile::tempdir().expect("a folder");
        let triggers = vec![trigger(1, "a", 10), trigger(2, "b", 11)];
        let common = serde_json::to_vec(&CommonFile { format: COMMON_FORMAT, triggers: triggers.clone() });
        let (path, common) = (state.path().join(COMMON_FILE), common.expect("JSON"));
        // As an interrupted move, or what an earlier version has changed since, leaves it.
        let (folder, _) = TriggerFolder::open(state.path()).expect("an empty one");
        folder.write(&trigger(1, "a", 5)).expect("room");
        folder.write(&trigger(1, "removed", 5)).expect("room");
        fs::write(&path, &common).expect("room");
        assert_eq!(TriggerFolder::open(state.path()).expect("both").1, triggers);
        assert!(!path.exists());
        assert_eq!(TriggerFolder::open(state.path()).expect("files").1, triggers);
        // A later format is not guessed at, and nothing is lost.
        fs::write(&path, br#"{"format":9,"triggers":[]}"#).expect("room");
        let refused = TriggerFolder::open(state.path()).expect_err("it is another format").to_string();
        assert!(refused.contains("format 9") && refused.contains(COMMON_FILE), "{refused}");
        fs::remove_file(&path).expect("it is there");
        assert_eq!(TriggerFolder::open(state.path()).expect("files").1, triggers);
    }

    #[test]
    fn a_damaged_file_is_named() {
        let state = tempfile::tempdir().expect("a folder");
        let (folder, _) = TriggerFolder::open(state.path()).expect("an empty one");
        folder.write(&trigger(1, "a", 10)).expect("room");
        let file = folder.path.join("1-a.json");
        let good = fs::read_to_string(&file).expect("it is there");
        for (bad, word) in [
            (good[..20].to_owned(), "EOF"),
            (good.replace("\"format\":2", "\"format\":3"), "format 3"),
            (good.replace("\"table\":\"items\"", "\"every\":\"never\""), "never"),
            (good.replace("\"name\":\"a\"", "\"name\":\"b\""), "another trigger"),
        ] {
            fs::write(&file, bad).expect("room");
            let why = TriggerFolder::open(state.path()).expect_err("it is damaged").to_string();
            assert!(why.contains("1-a.json") && why.contains(word) && why.contains("remove it"), "{why}");
        }
    }
}
