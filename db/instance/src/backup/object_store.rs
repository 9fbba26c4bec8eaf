//! Backups in an object store that speaks S3.
//!
//! A backup is `NAME/part-00000000` and so on: its files, one after the other, each in parts of [`PART_BYTES`], in the
//! order of the manifest. `NAME/manifest.json` is written when all parts are there: what has none is no backup, and is
//! not listed. `NAME/claim` keeps two servers from making a backup of one name. It is made in a folder first, as any
//! backup is, and restored by way of one; so it takes room on the disk, and no more memory than a part.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use sandstorm_backing::{BackingError, ObjectStore, S3Objects, StoredObject, WriteCondition, open_s3};

use super::create::create_backup;
use super::file_copy::make_folder;
use super::manifest::{BackupFile, BackupManifest, MANIFEST_FILE};
use super::restore::{RestorePoint, RestoredBackup, check_empty, restore_backup};
use super::{BackupError, FoundBackup, STATE_FOLDER};

/// Bytes of a part; the last one of a file has fewer. What is in memory at a time.
pub const PART_BYTES: usize = 8 << 20;
/// Bytes of a manifest, at most: some hundred thousand files.
const MANIFEST_MOST_BYTES: usize = 64 << 20;
/// Time that a request may take: a part over a slow line.
const REQUEST_MOST: Duration = Duration::from_secs(60);
/// Times that a request is made which gets no answer, or none that can be used.
const TRIES: u32 = 6;
/// Pause before the second time; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The object that says whose a name is.
const CLAIM: &str = "claim";

/// A bucket, or a part of one, with backups.
#[derive(Debug)]
pub struct BackupStore {
    objects: S3Objects,
    /// The URL up to its options, and those.
    place: String,
    options: String,
}

/// Returns whether a place of backups is an object store, and no folder.
pub fn is_store(place: &Path) -> bool {
    place.to_str().is_some_and(|place| place.starts_with("s3://"))
}

fn part_name(backup: &str, number: u32) -> String {
    format!("{backup}/part-{number:08}")
}

/// Whether a folder of a bucket has the name of a backup.
fn is_backup_name(name: &str) -> bool {
    name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit() || b"TZ.".contains(&byte))
}

impl BackupStore {
    /// Opens a place of backups, `s3://BUCKET/PREFIX?endpoint=URL&region=NAME`, with `ACCESS_KEY:SECRET_KEY` or
    /// `ACCESS_KEY:SECRET_KEY:SESSION_TOKEN`. Nothing is asked yet.
    ///
    /// # Errors
    /// `Refused`: the URL is not understood, or the credentials are not.
    pub fn open(url: &str, credentials: &str) -> Result<BackupStore, BackupError> {
        let objects = open_s3(url, credentials, REQUEST_MOST);
        let objects = objects.map_err(|error| BackupError::Refused(error.to_string()))?;
        let (place, options) = url.find('?').map_or((url, ""), |at| url.split_at(at));
        let (place, options) = (place.trim_end_matches('/').to_owned(), options.to_owned());
        Ok(BackupStore { objects, place, options })
    }

    /// As above of a backup's URL, `s3://BUCKET/PREFIX/NAME?…`; returns its name, too.
    ///
    /// # Errors
    /// As above; the URL ends with no name of a backup.
    pub fn open_backup(url: &str, credentials: &str) -> Result<(BackupStore, String), BackupError> {
        let (place, options) = url.find('?').map_or((url, ""), |at| url.split_at(at));
        let named = place.trim_end_matches('/').rsplit_once('/').filter(|(_, name)| is_backup_name(name));
        let (parent, name) = named.ok_or_else(|| {
            let text = "does not end with the name of a backup: `sandstorm backup list` has those that there are";
            BackupError::Refused(format!("{place} {text}"))
        })?;
        Ok((BackupStore::open(&format!("{parent}{options}"), credentials)?, name.to_owned()))
    }

    /// Returns the URL of a backup.
    pub fn url(&self, name: &str) -> String {
        format!("{}/{name}{}", self.place, self.options)
    }

    /// Makes a request again while it gets no answer that can be used.
    fn often<T>(
        &self,
        (action, object): (&'static str, &str),
        mut request: impl FnMut() -> Result<T, BackingError>,
    ) -> Result<T, BackupError> {
        let mut pause = FIRST_PAUSE;
        let mut tries = 1;
        loop {
            match request() {
                Err(BackingError::Unavailable(_) | BackingError::Damaged(_)) if tries < TRIES => {
                    thread::sleep(pause);
                    (tries, pause) = (tries + 1, pause * 2);
                }
                done => {
                    let object = format!("{}/{object}", self.place);
                    return done.map_err(|error| BackupError::Store { action, object, error: error.to_string() });
                }
            }
        }
    }

    fn put(&self, object: &str, bytes: &[u8]) -> Result<(), BackupError> {
        self.often(("write", object), || self.objects.put(object, bytes, &WriteCondition::Always).map(drop))
    }

    fn get(&self, object: &str, most_bytes: usize) -> Result<Option<StoredObject>, BackupError> {
        self.often(("read", object), || self.objects.get(object, most_bytes))
    }

    /// Makes a backup of a state directory; returns its name. It is made in a folder below `staging` first, which is
    /// removed again, and has to have room for it.
    ///
    /// # Errors
    /// [`BackupError`]; then there is no backup. What was uploaded is removed as far as the store takes that.
    pub fn create(&self, state: &Path, staging: &Path) -> Result<(String, BackupManifest), BackupError> {
        let folder = TemporaryFolder::make(staging)?;
        let (made, manifest) = create_backup(state, &folder.0)?;
        let name = made.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        self.claim(&name)?;
        let mut parts = 0;
        let uploaded = self.upload(&made, &name, &manifest, &mut parts);
        if uploaded.is_err() {
            self.remove(&name, parts);
        }
        uploaded.map(|()| (name, manifest))
    }

    /// Takes a name. A lost answer is told from another server's claim by what it says.
    fn claim(&self, name: &str) -> Result<(), BackupError> {
        let (object, own) = (format!("{name}/{CLAIM}"), format!("{:016x}", RandomState::new().build_hasher().finish()));
        let claimed = self.often(("write", &object), || {
            match self.objects.put(&object, own.as_bytes(), &WriteCondition::Absent) {
                Err(BackingError::Conflict) => Ok(false),
                put => put.map(|_| true),
            }
        })?;
        if claimed || self.get(&object, own.len())?.is_some_and(|found| found.bytes == own.as_bytes()) {
            return Ok(());
        }
        let text = format!("another server makes a backup {name} at {} at the same moment: try again", self.place);
        Err(BackupError::Refused(text))
    }

    fn upload(&self, folder: &Path, name: &str, manifest: &BackupManifest, parts: &mut u32) -> Result<(), BackupError> {
        let mut part = Vec::with_capacity(PART_BYTES);
        for file in &manifest.files {
            let path = folder.join(STATE_FOLDER).join(&file.path);
            let mut source = File::open(&path).map_err(BackupError::system("read", &path))?;
            let (mut bytes, mut crc32c) = (0, 0);
            loop {
                part.clear();
                let read = (&mut source).take(PART_BYTES as u64).read_to_end(&mut part);
                read.map_err(BackupError::system("read", &path))?;
                if part.is_empty() {
                    break;
                }
                (bytes, crc32c) = (bytes + part.len() as u64, crc32c::crc32c_append(crc32c, &part));
                self.put(&part_name(name, *parts), &part)?;
                *parts += 1;
            }
            if (bytes, crc32c) != (file.bytes, file.crc32c) {
                return Err(BackupError::damaged(&path, "it has changed since it was copied"));
            }
        }
        let bytes = manifest.encode().map_err(|error| BackupError::Refused(error.to_string()))?;
        self.put(&format!("{name}/{MANIFEST_FILE}"), &bytes)
    }

    /// Removes the parts of an unfinished backup. The manifest first: its write may have been done.
    fn remove(&self, name: &str, parts: u32) {
        let all = [MANIFEST_FILE, CLAIM].map(|object| format!("{name}/{object}")).into_iter();
        for object in all.chain((0..=parts).map(|number| part_name(name, number))) {
            if self.objects.delete(&object, &WriteCondition::Always).is_err() {
                // It takes nothing now. Without a manifest it is no backup.
                return;
            }
        }
    }

    /// Lists the backups, the oldest first. What is being made, or was not made whole, is left out.
    ///
    /// # Errors
    /// The store cannot be asked.
    pub fn list(&self) -> Result<Vec<FoundBackup>, BackupError> {
        let mut names = self.often(("list", ""), || self.objects.list_folders())?;
        names.retain(|name| is_backup_name(name));
        names.sort();
        let mut found = Vec::new();
        for name in names {
            let path = PathBuf::from(self.url(&name));
            match self.manifest(&name) {
                Ok(None) => {}
                Ok(Some(manifest)) => found.push(FoundBackup { path, manifest: Ok(manifest) }),
                Err(error @ BackupError::Store { .. }) => return Err(error),
                Err(error) => found.push(FoundBackup { path, manifest: Err(error) }),
            }
        }
        Ok(found)
    }

    /// Reads the manifest of a backup; `None`: there is none.
    fn manifest(&self, name: &str) -> Result<Option<BackupManifest>, BackupError> {
        let object = format!("{name}/{MANIFEST_FILE}");
        let found = self.get(&object, MANIFEST_MOST_BYTES)?;
        let path = PathBuf::from(format!("{}/{object}", self.place));
        found.map(|found| BackupManifest::decode(&found.bytes, &path)).transpose()
    }

    fn manifest_of(&self, name: &str) -> Result<BackupManifest, BackupError> {
        let missing = || BackupError::Refused(format!("there is no backup {}", self.url(name)));
        self.manifest(name)?.ok_or_else(missing)
    }

    /// Reads the parts of a file, which is what it was, or an error.
    fn fetch(
        &self,
        (name, file): (&str, &BackupFile),
        number: &mut u32,
        take: &mut dyn FnMut(&[u8]) -> Result<(), BackupError>,
    ) -> Result<(), BackupError> {
        let (mut left, mut crc32c) = (file.bytes, 0);
        while left > 0 {
            let object = part_name(name, *number);
            let damaged = |what: String| {
                BackupError::damaged(&PathBuf::from(format!("{}/{object} ({})", self.place, file.path)), what)
            };
            let expected = left.min(PART_BYTES as u64);
            // One byte more, so that a longer one is told from one that cannot be read.
            let found = self.get(&object, PART_BYTES + 1)?.ok_or_else(|| damaged("it is not there".to_owned()))?;
            if found.bytes.len() as u64 != expected {
                return Err(damaged(format!("it has {} bytes instead of {expected}", found.bytes.len())));
            }
            crc32c = crc32c::crc32c_append(crc32c, &found.bytes);
            (left, *number) = (left - expected, *number + 1);
            // The last part decides before it is taken.
            if left == 0 && crc32c != file.crc32c {
                return Err(damaged("the checksum of the file is wrong".to_owned()));
            }
            take(&found.bytes)?;
        }
        Ok(())
    }

    /// Checks every part of a backup against its manifest.
    ///
    /// # Errors
    /// [`BackupError`]: the first file that is not what it was.
    pub fn check(&self, name: &str) -> Result<BackupManifest, BackupError> {
        let manifest = self.manifest_of(name)?;
        let mut number = 0;
        for file in &manifest.files {
            self.fetch((name, file), &mut number, &mut |_| Ok(()))?;
        }
        Ok(manifest)
    }

    /// Restores a backup into a state directory, by way of a folder beside it, which is removed again.
    ///
    /// # Errors
    /// As [`restore_backup`]; nothing is left then.
    pub fn restore(&self, name: &str, state: &Path, point: RestorePoint) -> Result<RestoredBackup, BackupError> {
        check_empty(state)?;
        let manifest = self.manifest_of(name)?;
        let parent = state.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = TemporaryFolder::make(parent)?;
        let mut number = 0;
        for file in &manifest.files {
            let path = folder.0.join(STATE_FOLDER).join(&file.path);
            path.parent().map_or(Ok(()), make_folder)?;
            let mut target = File::create(&path).map_err(BackupError::system("make", &path))?;
            self.fetch((name, file), &mut number, &mut |part| {
                target.write_all(part).map_err(BackupError::system("write", &path))
            })?;
        }
        let bytes = manifest.encode().map_err(|error| BackupError::Refused(error.to_string()))?;
        let path = folder.0.join(MANIFEST_FILE);
        fs::write(&path, bytes).map_err(BackupError::system("write", &path))?;
        restore_backup(&folder.0, state, point)
    }
}

/// A folder that is removed with what it has.
struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn make(parent: &Path) -> Result<TemporaryFolder, BackupError> {
        let number = RandomState::new().build_hasher().finish();
        let folder = parent.join(format!(".sandstorm-backup-{number:016x}"));
        make_folder(&folder)?;
        Ok(TemporaryFolder(folder))
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(folder = %self.0.display(), %error, "a folder of a backup stays");
        }
    }
}
