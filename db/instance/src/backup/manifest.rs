//! The manifest of a backup: a line of JSON, and a line with its checksum.

use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

use super::BackupError;

/// Name of the manifest in a backup's folder.
pub const MANIFEST_FILE: &str = "manifest.json";
/// The format that is written here. It is the first; once there is another one, both are read.
pub const MANIFEST_FORMAT: u32 = 1;
/// Beginning of the last line.
const CHECKSUM_WORD: &str = "crc32c ";

/// What a backup has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackupManifest {
    /// The format of the backup.
    pub format: u32,
    /// The version of the program that made it.
    pub program: String,
    /// When it was made, in milliseconds since the Unix epoch.
    pub made_ms: u64,
    /// The records' log, if there was one.
    pub log: Option<BackupLog>,
    /// Its tables.
    pub tables: Vec<BackupTable>,
    /// Its files.
    pub files: Vec<BackupFile>,
}

/// The part of the log that a backup has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackupLog {
    /// The random number of the log, hexadecimal.
    pub id: String,
    /// The first position up to which it can be restored; `null`: only all of it.
    pub earliest: Option<u64>,
    /// When that was written, in milliseconds since the Unix epoch; 0: nothing was since.
    pub earliest_ms: u64,
    /// The position at which it ends.
    pub end: u64,
    /// When the last of it was written, in milliseconds since the Unix epoch; 0: there is nothing behind the
    /// checkpoint.
    pub end_ms: u64,
}

/// A table, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackupTable {
    /// The tenant's name.
    pub tenant: String,
    /// The table's name.
    pub name: String,
    /// Whether its records are in the backup: it has durability.
    pub has_records: bool,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackupFile {
    /// Its path in the state directory.
    pub path: String,
    /// Its bytes.
    pub bytes: u64,
    /// The CRC-32C of them.
    pub crc32c: u32,
}

impl BackupFile {
    /// Returns whether its path leads to somewhere within the state directory.
    fn is_inside(&self) -> bool {
        let mut components = Path::new(&self.path).components();
        !self.path.is_empty() && components.all(|component| matches!(component, Component::Normal(_)))
    }
}

impl BackupManifest {
    /// Returns the bytes of the file.
    ///
    /// # Errors
    /// That of the serializer.
    pub(super) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut bytes = serde_json::to_vec(self)?;
        bytes.push(b'\n');
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(format!("{CHECKSUM_WORD}{crc:08x}\n").as_bytes());
        Ok(bytes)
    }

    /// Reads the bytes of the file at a path.
    ///
    /// # Errors
    /// [`BackupError`]: it is damaged, or of a newer format.
    pub(super) fn decode(bytes: &[u8], path: &Path) -> Result<BackupManifest, BackupError> {
        let damaged = |what: &str| BackupError::damaged(path, what);
        let end = bytes.iter().position(|byte| *byte == b'\n').ok_or_else(|| damaged("it has no second line"))?;
        let (checked, last) = bytes.split_at_checked(end + 1).ok_or_else(|| damaged("it has no second line"))?;
        let expected = format!("{CHECKSUM_WORD}{:08x}\n", crc32c::crc32c(checked));
        if last != expected.as_bytes() {
            return Err(damaged("its checksum is wrong"));
        }
        #[derive(Deserialize)]
        struct AnyFormat {
            format: u64,
        }
        let malformed = |error: serde_json::Error| damaged(&format!("it is no manifest: {error}"));
        let AnyFormat { format } = serde_json::from_slice(checked).map_err(malformed)?;
        if format > u64::from(MANIFEST_FORMAT) {
            return Err(BackupError::Newer { path: path.display().to_string(), format });
        }
        let manifest: BackupManifest = serde_json::from_slice(checked).map_err(malformed)?;
        match manifest.files.iter().find(|file| !file.is_inside()) {
            Some(file) => Err(damaged(&format!("it names {:?}, which is no file of a state directory", file.path))),
            None => Ok(manifest),
        }
    }

    /// Reads the manifest of the backup in a folder.
    ///
    /// # Errors
    /// [`BackupError`].
    pub fn read(backup: &Path) -> Result<BackupManifest, BackupError> {
        let path = backup.join(MANIFEST_FILE);
        let bytes = std::fs::read(&path).map_err(BackupError::system("read", &path))?;
        BackupManifest::decode(&bytes, &path)
    }

    /// Returns the bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}
