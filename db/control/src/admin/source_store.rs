//! The sources of the loaded versions, or the modules, beside their artifacts: the server can build them again for
//! another tier or under other rules. A version that was uploaded as an artifact has none. If nothing is persisted,
//! they are in memory.
//!
//! A file is the SHA-256 of what follows, as hexadecimal digits, a line feed, and the source as JSON: format 1. A later
//! format begins with `{"format":`, and is refused by name. Only the server's user may read it.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::PathBuf;

use data_encoding::HEXLOWER;
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};

use super::{MAX_PUSH_BYTES, remove_file};
use crate::checked_json::{self, JsonFormats};
use crate::config::{ConfigError, write_private};
use sandstorm_builder::PushedCode;
use sandstorm_builder::limits::MODULE_BYTES;

/// Bytes of such a file, at most: a source takes no more than the request that it came in, and its manifest is written
/// out; a module is written as base64.
const MAX_FILE_BYTES: u64 =
    if MAX_PUSH_BYTES > MODULE_TEXT_BYTES { MAX_PUSH_BYTES } else { MODULE_TEXT_BYTES } as u64 + (64 << 10);
/// Bytes of the longest module as base64.
const MODULE_TEXT_BYTES: usize = MODULE_BYTES.div_ceil(3) * 4;

/// The format that is read and written. It has a checksum of its own.
const FIRST_FORMAT: JsonFormats = JsonFormats { oldest: 1, newest: 1, first_checked: 2 };

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

    /// The source that such a file has.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    fn decode(bytes: &[u8]) -> Result<PushedCode, String> {
        if bytes.starts_with(b"{") {
            // Whatever is in there: a file that this program reads begins with a checksum.
            checked_json::decode(bytes, FIRST_FORMAT)?;
        }
        let damaged = || "it is not what was written".to_owned();
        let at = bytes.iter().position(|byte| *byte == b'\n').ok_or_else(damaged)?;
        let (sum, json) = bytes.split_at(at);
        let json = json.get(1..).unwrap_or_default();
        if sum != checksum(json).as_bytes() {
            return Err(damaged());
        }
        serde_json::from_slice(json).map_err(|error| error.to_string())
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
        let source = SourceStore::decode(&bytes).map_err(|why| unusable(&why))?;
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

#[cfg(test)]
mod tests {
    use sandstorm_builder::{PushedModule, PushedSource, SourceFile};

    use super::*;
    use crate::golden::{assert_golden, golden_file};

    /// What the golden files have: a source and a module.
    fn golden_sources() -> [(&'static str, PushedCode); 2] {
        let files = vec![SourceFile { path: "src/lib.rs".into(), text: "// \u{e9}\n\"\\\"\n".into() }];
        let manifest = "name = \"counted\"\nversion = \"1.2.3\"\nlibraries = [\"hmac-sha256\"]\n";
        let source = PushedSource::new(manifest, files).expect("a valid source");
        let module = PushedModule { name: "sums".into(), wasm: b"\0asm\x01\0\0\0\xff".to_vec() };
        [("source-format-1.txt", PushedCode::Source(source)), ("module-format-1.txt", PushedCode::Module(module))]
    }

    #[test]
    fn golden_files_of_sources_are_read_and_are_what_is_written() {
        for (name, code) in golden_sources() {
            assert_golden(name, &SourceStore::encode(&code).expect("JSON"));
            assert_eq!(SourceStore::decode(&golden_file(name)), Ok(code), "{name}");
        }
    }

    #[test]
    fn a_file_that_is_damaged_or_newer_is_named_and_not_used() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = SourceStore::in_folder(folder.path().to_owned());
        let [(_, code), _] = golden_sources();
        store.keep(7, 3, &code).expect("room");
        assert_eq!(store.read(7, "counted", 3), Ok(Some(code.clone())));
        assert_eq!(store.read(7, "counted", 4), Ok(None), "there is none");
        let path = store.path(7, "counted", 3).expect("a file");
        let good = fs::read(&path).expect("a file");
        let read_as = |bytes: &[u8]| {
            fs::write(&path, bytes).expect("room");
            let why = store.read(7, "counted", 3).expect_err("it is not used");
            assert!(why.contains(&*path.to_string_lossy()), "{why}");
            why
        };
        for at in 0..good.len() {
            let mut other = good.clone();
            other[at] ^= 1 << (at % 8);
            read_as(&other);
            read_as(&good[..at]);
        }
        let newer = read_as(b"{\"format\":2,\"code\":{}}\n");
        assert!(newer.contains("start the newer version that wrote it"), "{newer}");
        assert!(read_as(b"{\"format\":1}\n").contains("not what was written"));
        let other = PushedCode::Module(PushedModule { name: "other".into(), wasm: b"\0asm\x01\0\0\0".to_vec() });
        assert!(read_as(&SourceStore::encode(&other).expect("JSON")).contains("of another extension"));
    }
}
