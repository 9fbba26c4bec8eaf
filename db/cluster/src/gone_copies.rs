//! Folders of copies that are removed: each has another name first, under which it is not opened, and is deleted then.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::limits::GONE_PREFIX;

/// Removes the folders of copies whose removal was not ended.
pub(crate) fn remove_gone(copies: &Path) {
    let Ok(entries) = std::fs::read_dir(copies) else { return };
    let is_gone = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with(GONE_PREFIX);
    for entry in entries.filter_map(Result::ok).filter(is_gone) {
        if let Err(error) = std::fs::remove_dir_all(entry.path()) {
            tracing::warn!("{} stays: {error}", entry.path().display());
        }
    }
}

/// Gives the folder of a copy among the others another name, which it returns.
///
/// # Errors
/// The operating system's: it has its name still.
pub(crate) fn rename_gone(copies: &Path, folder: &str) -> std::io::Result<PathBuf> {
    // An earlier one of this name may not be deleted yet.
    let mut free = (0_u64..).map(|number| copies.join(format!("{GONE_PREFIX}{folder}-{number}")));
    let gone = free.find(|path| !path.exists()).unwrap_or_default();
    std::fs::rename(copies.join(folder), &gone)?;
    Ok(gone)
}

/// A copy that was taken out of the table of copies.
pub(crate) struct GoneCopy<C> {
    owner: String,
    /// Its folder, by its other name.
    folder: PathBuf,
    /// Its files are closed with it.
    _open: Option<Arc<C>>,
}

impl<C> GoneCopy<C> {
    /// One of an owner, whose folder has another name by now; its files may be open.
    pub(crate) fn new(owner: &str, folder: PathBuf, open: Option<Arc<C>>) -> GoneCopy<C> {
        GoneCopy { owner: owner.to_owned(), folder, _open: open }
    }

    /// Its folder.
    #[cfg(test)]
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Deletes its files, of which there may be GiB: never under the lock of all copies.
    pub(crate) fn delete(self, copies: &Path) {
        let delete = || {
            std::fs::File::open(copies)?.sync_all()?;
            std::fs::remove_dir_all(&self.folder)
        };
        match delete() {
            Ok(()) => tracing::info!(owner = %self.owner, "a copy that is needed no more was removed"),
            Err(error) => tracing::warn!(owner = %self.owner, "a copy that is needed no more stays: {error}"),
        }
    }
}
