//! Copies single files with their checksums, and makes folders that only their owner may read.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use super::BackupError;

/// Bytes that are copied at once.
const COPY_BYTES: usize = 1 << 20;

/// The length and the CRC-32C of a file.
pub(super) type FileSum = (u64, u32);

/// Makes a folder with those above it, mode 0700.
pub(super) fn make_folder(path: &Path) -> Result<(), BackupError> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(BackupError::system("make", path))
}

/// Writes a new file, mode 0600, and waits until it is on the disk.
pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<FileSum, BackupError> {
    let mut file = create(path)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    written.map_err(BackupError::system("write", path))?;
    Ok((bytes.len() as u64, crc32c::crc32c(bytes)))
}

/// Copies a file; `None`: it is not there any more.
pub(super) fn copy_file(from: &Path, to: &Path) -> Result<Option<FileSum>, BackupError> {
    let mut source = match File::open(from) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(BackupError::system("read", from))?,
    };
    let mut target = create(to)?;
    let sum =
        each_part(&mut source, from, &mut |part| target.write_all(part).map_err(BackupError::system("write", to)))?;
    target.sync_all().map_err(BackupError::system("write", to))?;
    Ok(Some(sum))
}

/// Reads a file for its length and checksum.
pub(super) fn sum_file(path: &Path) -> Result<FileSum, BackupError> {
    let mut file = File::open(path).map_err(BackupError::system("read", path))?;
    each_part(&mut file, path, &mut |_| Ok(()))
}

/// Waits until the names in a folder are on the disk.
pub(super) fn sync_folder(path: &Path) -> Result<(), BackupError> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(BackupError::system("sync", path))
}

fn create(path: &Path) -> Result<File, BackupError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options.open(path).map_err(BackupError::system("make", path))
}

fn each_part(
    file: &mut File,
    path: &Path,
    take: &mut dyn FnMut(&[u8]) -> Result<(), BackupError>,
) -> Result<FileSum, BackupError> {
    let mut buffer = vec![0; COPY_BYTES];
    let (mut bytes, mut crc) = (0, 0);
    loop {
        let read = file.read(&mut buffer).map_err(BackupError::system("read", path))?;
        let part = buffer.get(..read).unwrap_or_default();
        if part.is_empty() {
            return Ok((bytes, crc));
        }
        (bytes, crc) = (bytes + read as u64, crc32c::crc32c_append(crc, part));
        take(part)?;
    }
}
