//! The file of a Unix socket.

use rustix::fs::{self, AtFlags, CWD, FileType};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// The identity of a file, even if it is moved: device and inode.
pub(super) type FileIdentity = (u64, u64);

/// The file of a socket that is listened on. It is removed when this is dropped, unless another one stands there by
/// then.
#[derive(Debug)]
pub(super) struct SocketFile {
    pub(super) path: PathBuf,
    pub(super) identity: FileIdentity,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if stat_path(&self.path).is_ok_and(|(identity, _)| identity == self.identity) {
            let _is_gone_already = fs::unlink(&self.path);
        }
    }
}

/// Returns the identity and type of the file at a path, without following a link.
pub(super) fn stat_path(path: &Path) -> Result<(FileIdentity, FileType), Errno> {
    let found = fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(((found.st_dev, found.st_ino), FileType::from_raw_mode(found.st_mode)))
}
