//! The patterns that the operator denies to native code: those of the configuration, and those that were denied while
//! the server ran (`sandstorm ext revoke`), which a file of the state directory keeps.
//!
//! The file also says with which patterns all loaded code was checked: a start with other patterns checks it again.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use parking_lot::{Mutex, RwLock};
use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

use crate::checked_json::{self, JsonFormats};
use crate::config::{ConfigError, write_private};
use sandstorm_builder::DeniedPattern;
use sandstorm_builder::limits::DENIED_PATTERNS;

/// Name of the file in the state directory.
const FILE: &str = "denied.json";

/// The format that is written.
const FORMAT: u32 = 2;
/// The formats that are read. The first named none and had no checksum: people may write it by hand.
const FORMATS: JsonFormats = JsonFormats { oldest: 1, newest: FORMAT, first_checked: 2 };

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DenyFile {
    #[serde(default)]
    format: u32,
    /// The patterns that were denied while the server ran.
    revoked: Vec<RevokedPattern>,
    /// The digest of the patterns for which all that is loaded was checked.
    checked: String,
}

/// A pattern that was denied while the server ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RevokedPattern {
    /// The pattern.
    pub(super) pattern: String,
    /// Since when, in milliseconds since 1970.
    pub(super) since_ms: u64,
}

/// See the head of this file.
#[derive(Debug)]
pub struct DenyList {
    configured: Vec<String>,
    path: Option<PathBuf>,
    file: Mutex<DenyFile>,
    /// Read-locked while checked native code is loaded, write-locked by a new pattern: a later search for the pattern
    /// in the loaded code misses nothing.
    loading: RwLock<()>,
}

/// The reason that a pattern is not denied, or stays so.
#[derive(Debug, thiserror::Error)]
pub(super) enum DenyError {
    /// There are too many.
    #[error("{DENIED_PATTERNS} patterns are denied, as many as there may be")]
    TooMany,
    /// It is not denied.
    #[error("{0:?} is not denied")]
    Unknown(String),
    /// The configuration denies it.
    #[error("the configuration denies {0:?} (builder.deny)")]
    Configured(String),
    /// The file cannot be written.
    #[error("{0}")]
    Unwritable(ConfigError),
}

impl DenyList {
    /// The patterns of the configuration, and none else; nothing is kept.
    pub fn of(configured: Vec<String>) -> DenyList {
        let file = DenyFile { format: FORMAT, revoked: Vec::new(), checked: digest(&BTreeSet::new()) };
        DenyList { configured, path: None, file: Mutex::new(file), loading: RwLock::new(()) }
    }

    /// Reads the file of a state directory, or makes it.
    ///
    /// # Errors
    /// One line: it cannot be read or written, or is not what was written. Native code that was denied must not run
    /// because a file is damaged.
    pub fn open(state: &Path, configured: Vec<String>) -> Result<DenyList, ConfigError> {
        let path = state.join(FILE);
        let mut list = DenyList::of(configured);
        let unusable = |error: &dyn std::fmt::Display| {
            ConfigError::new(format!(
                "{} cannot be used: {error}; put it back from a backup, or write there what is denied to native code: \
                 {{\"revoked\":[{{\"pattern\":\"…\",\"since_ms\":0}}],\"checked\":\"\"}}",
                path.display()
            ))
        };
        match fs::read(&path) {
            Ok(bytes) => {
                let (_, json) = checked_json::decode(&bytes, FORMATS).map_err(|why| unusable(&why))?;
                let file: DenyFile = serde_json::from_slice(json).map_err(|error| unusable(&error))?;
                for RevokedPattern { pattern, .. } in &file.revoked {
                    DeniedPattern::parse(pattern).map_err(|why| unusable(&format!("{pattern:?}: {why}")))?;
                }
                *list.file.get_mut() = DenyFile { format: FORMAT, ..file };
            }
            // A server on a full disk starts with the file as it is.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if let Err(error) = write(&path, list.file.get_mut()) {
                    tracing::warn!(%error, "nothing is denied to native code beyond the configuration");
                }
            }
            Err(error) => return Err(unusable(&error)),
        }
        list.path = Some(path);
        Ok(list)
    }

    /// All patterns, each once.
    pub(super) fn all(&self) -> Vec<String> {
        self.set(&self.file.lock()).into_iter().collect()
    }

    fn set(&self, file: &DenyFile) -> BTreeSet<String> {
        self.configured.iter().chain(file.revoked.iter().map(|one| &one.pattern)).cloned().collect()
    }

    /// Loads native code that was checked for these patterns, unless others are denied by now: then `None`, and it has
    /// to be checked again.
    pub(super) fn while_unchanged<T>(&self, checked: &[String], load: impl FnOnce() -> T) -> Option<T> {
        let _loading = self.loading.read();
        (self.all() == checked).then(load)
    }

    /// The patterns of the configuration, and the others.
    pub(super) fn listed(&self) -> (Vec<String>, Vec<RevokedPattern>) {
        (self.configured.clone(), self.file.lock().revoked.clone())
    }

    /// Denies a pattern from now on. Nothing is changed if it is denied already.
    pub(super) fn add(&self, pattern: &DeniedPattern, since_ms: u64) -> Result<(), DenyError> {
        let _alone = self.loading.write();
        self.change(|file| {
            let text = pattern.text();
            if self.configured.iter().any(|one| one == text) || file.revoked.iter().any(|one| one.pattern == text) {
                return Ok(());
            }
            if self.configured.len() + file.revoked.len() >= DENIED_PATTERNS {
                return Err(DenyError::TooMany);
            }
            file.revoked.push(RevokedPattern { pattern: text.to_owned(), since_ms });
            Ok(())
        })
    }

    /// Denies a pattern no more.
    pub(super) fn remove(&self, pattern: &str) -> Result<(), DenyError> {
        self.change(|file| {
            let before = file.revoked.len();
            file.revoked.retain(|one| one.pattern != pattern);
            match () {
                () if file.revoked.len() < before => Ok(()),
                () if self.configured.iter().any(|one| one == pattern) => {
                    Err(DenyError::Configured(pattern.to_owned()))
                }
                () => Err(DenyError::Unknown(pattern.to_owned())),
            }
        })
    }

    /// Whether all that is loaded was checked for all patterns that are denied now, or for more.
    pub(super) fn is_checked(&self) -> bool {
        let file = self.file.lock();
        let now = self.set(&file);
        now.is_empty() || file.checked == digest(&now)
    }

    /// Notes that all that is loaded was checked for these patterns.
    pub(super) fn set_checked(&self, patterns: &[String]) {
        let patterns: BTreeSet<String> = patterns.iter().cloned().collect();
        let changed = self.change(|file| {
            file.checked = digest(&patterns);
            Ok(())
        });
        if let Err(error) = changed {
            tracing::warn!(%error, "the next start checks all extensions again");
        }
    }

    /// Makes a change, and writes it before it counts.
    fn change(&self, change: impl FnOnce(&mut DenyFile) -> Result<(), DenyError>) -> Result<(), DenyError> {
        let mut file = self.file.lock();
        let mut next = file.clone();
        change(&mut next)?;
        if next == *file {
            return Ok(());
        }
        if let Some(path) = &self.path {
            write(path, &next).map_err(DenyError::Unwritable)?;
        }
        *file = next;
        Ok(())
    }
}

fn write(path: &Path, file: &DenyFile) -> Result<(), ConfigError> {
    let json = serde_json::to_vec(file)
        .map_err(|error| ConfigError::new(format!("cannot write {}: {error}", path.display())))?;
    write_private(path, &checked_json::with_checksum(json))
}

/// The SHA-256 of patterns, each with its length before it.
fn digest(patterns: &BTreeSet<String>) -> String {
    let mut context = Context::new(&SHA256);
    for pattern in patterns {
        context.update(&(pattern.len() as u64).to_le_bytes());
        context.update(pattern.as_bytes());
    }
    HEXLOWER.encode(context.finish().as_ref())
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::golden::{assert_golden, golden_file};

    fn pattern(text: &str) -> DeniedPattern {
        DeniedPattern::parse(text).unwrap()
    }

    #[test]
    fn what_is_denied_is_kept_privately_and_what_is_configured_stays() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let open = |configured: &[&str]| {
            DenyList::open(folder.path(), configured.iter().map(|one| (*one).to_owned()).collect()).unwrap()
        };
        let list = open(&["own-trait"]);
        let path = folder.path().join(FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!list.is_checked(), "what the configuration denies was not looked for yet");
        list.set_checked(&list.all());
        assert!(list.is_checked());
        list.add(&pattern("peekable"), 5).unwrap();
        list.add(&pattern("peekable"), 6).unwrap();
        list.add(&pattern("own-trait"), 7).unwrap();
        assert_eq!(list.all(), ["own-trait", "peekable"]);
        let again = open(&["own-trait"]);
        assert_eq!((again.all(), again.is_checked()), (list.all(), false));
        assert_eq!(again.listed().1, [RevokedPattern { pattern: "peekable".into(), since_ms: 5 }]);
        again.set_checked(&again.all());
        assert!(open(&["own-trait"]).is_checked() && !open(&["own-trait", "match-guard"]).is_checked());
        assert!(matches!(again.remove("own-trait"), Err(DenyError::Configured(_))));
        assert!(matches!(again.remove("closure-expression"), Err(DenyError::Unknown(_))));
        again.remove("peekable").unwrap();
        assert_eq!(open(&[]).all(), [] as [String; 0]);
        for number in 0..DENIED_PATTERNS - 1 {
            again.add(&pattern(&format!("n{number}")), 1).unwrap();
        }
        assert!(matches!(again.add(&pattern("one_more"), 1), Err(DenyError::TooMany)));
    }

    fn denied(list: &DenyList) -> Vec<(String, u64)> {
        list.listed().1.into_iter().map(|one| (one.pattern, one.since_ms)).collect()
    }

    #[test]
    fn golden_files_of_both_formats_are_read_and_the_newest_is_what_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let since = [("peekable", 1_700_000_000_000), ("match-guard", 1_700_000_000_001)];
        let list = DenyList::open(folder.path(), Vec::new()).unwrap();
        since.iter().for_each(|(text, since_ms)| list.add(&pattern(text), *since_ms).unwrap());
        list.set_checked(&list.all());
        assert_golden("denied-format-2.json", &fs::read(&path).unwrap());
        for format in ["denied-format-1.json", "denied-format-2.json"] {
            fs::write(&path, golden_file(format)).unwrap();
            let read = DenyList::open(folder.path(), Vec::new()).unwrap();
            assert_eq!(denied(&read), since.map(|(text, since_ms)| (text.to_owned(), since_ms)), "{format}");
            assert!(read.is_checked(), "{format}");
            // The next change writes the newest format.
            read.add(&pattern("own-trait"), 1).unwrap();
            read.remove("own-trait").unwrap();
            assert_golden("denied-format-2.json", &fs::read(&path).unwrap());
        }
    }

    #[test]
    fn what_was_written_is_read_and_no_flipped_bit_passes() {
        for seed in 0..20 {
            let random = &mut SmallRng::seed_from_u64(seed);
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(FILE);
            let list = DenyList::open(folder.path(), Vec::new()).unwrap();
            for number in 0..random.random_range(1..9) {
                list.add(&pattern(&format!("n{number}")), random.random()).unwrap();
            }
            assert_eq!(denied(&DenyList::open(folder.path(), Vec::new()).unwrap()), denied(&list), "seed {seed}");
            let written = fs::read(&path).unwrap();
            for _ in 0..200 {
                let (at, bit) = (random.random_range(0..written.len()), random.random_range(0..8));
                let mut other = written.clone();
                other[at] ^= 1 << bit;
                fs::write(&path, &other).unwrap();
                let read = DenyList::open(folder.path(), Vec::new());
                assert!(read.is_err(), "seed {seed}, byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn a_damaged_file_and_one_of_a_newer_version_stop_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        fs::write(&path, "{\"format\":3,\"revoked\":[]}").unwrap();
        let refused = DenyList::open(folder.path(), Vec::new()).unwrap_err().to_string();
        assert!(refused.contains("format 3, and this program reads formats up to 2"), "{refused}");
        for bad in ["", "{}", "{\"revoked\":[{\"pattern\":\"(\",\"since_ms\":0}],\"checked\":\"\"}"] {
            fs::write(&path, bad).unwrap();
            let refused = DenyList::open(folder.path(), Vec::new()).unwrap_err().to_string();
            assert!(refused.starts_with(&path.display().to_string()) && refused.contains("backup"), "{refused}");
        }
    }

    #[test]
    fn what_cannot_be_written_is_not_denied() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        fs::create_dir(&state).unwrap();
        let list = DenyList::open(&state, Vec::new()).unwrap();
        fs::remove_dir_all(&state).unwrap();
        assert!(matches!(list.add(&pattern("peekable"), 1), Err(DenyError::Unwritable(_))));
        assert_eq!(list.all(), [] as [String; 0]);
    }
}
