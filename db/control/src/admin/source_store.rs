//! The sources of the loaded versions, or the modules, beside their artifacts: the server can build them again for
//! another tier or under other rules. A version that was uploaded as an artifact has none. If nothing is persisted,
//! they are in memory.
//!
//! A file is the SHA-256 of what follows, as hexadecimal digits, a line feed, and the source as JSON. Only the server's
//! user may read it.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::PathBuf;

use data_encoding::HEXLOWER;
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};

use super::{MAX_PUSH_BYTES, remove_file};
use crate::config::{ConfigError, write_private};
use sandstorm_builder::PushedCode;
use sandstorm_builder::limits::MODULE_BYTES;

/// Bytes of such a file, at most: a source takes no more than the request that it came in, and its manifest is written
/// out; a module is written as base64.
const MAX_FILE_BYTES: u64 =
    if MAX_PUSH_BYTES > MODULE_TEXT_BYTES { MAX_PUSH_BYTES } else { MODULE_TEXT_BYTES } as u64 + (64 << 10);
/// Bytes of the longest module as base64.
const MODULE_TEXT_BYTES: usize = MODULE_BYTES.div_ceil(3) * 4;

/// Tenant, extension and version.
type SourceKey = (u32, String, u64);

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct SourceStore {
    folder: Option<PathBuf>,
    /// The sources if there is no folder.
    memory: Mutex<HashMap<SourceKey, PushedCode>>,
}

impl SourceStore {
    /// Sources as files of that folder.
    pub(super) fn in_folder(folder: PathBuf) -> SourceStore {
        SourceStore { folder: Some(folder), memory: Mutex::default() }
    }

    /// The file of a version's source; `None` if sources are in memory.
    pub(super) fn path(&self, tenant: u32, name: &str, version: u64) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(format!("{tenant}-{version}-{name}.source")))
    }

    /// Keeps the source of a version. It is on the disk when this returns.
    pub(super) fn keep(&self, tenant: u32, version: u64, source: &PushedCode) -> Result<(), ConfigError> {
        let name = source.name();
        let Some(path) = self.path(tenant, name, version) else {
            self.memory.lock().insert((tenant, name.to_owned(), version), source.clone());
            return Ok(());
        };
        let bytes = SourceStore::encode(source)
            .map_err(|error| ConfigError::new(format!("cannot write {}: {error}", path.display())))?;
        write_private(&path, &bytes)
    }

    /// The bytes of such a file.
    ///
    /// # Errors
    /// The reason, for people.
    pub(super) fn encode(source: &PushedCode) -> Result<Vec<u8>, String> {
        let json = serde_json::to_vec(source).map_err(|error| error.to_string())?;
        Ok([checksum(&json).as_bytes(), b"\n", &json].concat())
    }

    /// Whether the source of a version is kept.
    pub(super) fn has(&self, tenant: u32, name: &str, version: u64) -> bool {
        match self.path(tenant, name, version) {
            Some(path) => path.is_file(),
            None => self.memory.lock().contains_key(&(tenant, name.to_owned(), version)),
        }
    }

    /// The source of a version; `None` if none is kept.
    ///
    /// # Errors
    /// The reason that it cannot be used, for people: it cannot be read, or is not what was written.
    pub(super) fn read(&self, tenant: u32, name: &str, version: u64) -> Result<Option<PushedCode>, String> {
        let Some(path) = self.path(tenant, name, version) else {
            return Ok(self.memory.lock().get(&(tenant, name.to_owned(), version)).cloned());
        };
        let unusable =
            |error: &dyn std::fmt::Display| format!("its kept source cannot be used: {}: {error}", path.display());
        match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unusable(&error)),
            Ok(found) if found.len() > MAX_FILE_BYTES => return Err(unusable(&"it is longer than any source")),
            Ok(_) => {}
        }
        let bytes = fs::read(&path).map_err(|error| unusable(&error))?;
        let damaged = "it is not what was written";
        let at = bytes.iter().position(|byte| *byte == b'\n').ok_or_else(|| unusable(&damaged))?;
        let (sum, json) = (&bytes[..at], &bytes[at + 1..]);
        if sum != checksum(json).as_bytes() {
            return Err(unusable(&damaged));
        }
        let source: PushedCode = serde_json::from_slice(json).map_err(|error| unusable(&error))?;
        if source.name() != name {
            return Err(unusable(&"it is of another extension"));
        }
        Ok(Some(source))
    }

    /// Removes the source of a version that is no longer loaded.
    pub(super) fn forget(&self, tenant: u32, name: &str, version: u64) {
        match self.path(tenant, name, version) {
            Some(path) => remove_file(&path),
            None => drop(self.memory.lock().remove(&(tenant, name.to_owned(), version))),
        }
    }
}

fn checksum(json: &[u8]) -> String {
    HEXLOWER.encode(digest(&SHA256, json).as_ref())
}
