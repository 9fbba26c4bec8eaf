//! Folders of copies that are removed: each has another name first, under which it is not opened, and is deleted then.

use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Begins the name of the folder of a copy that is being removed: what is left of one after a stop is no copy.
pub(crate) const GONE_PREFIX: &str = ".gone-";

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

/// A copy that was taken out of the table of copies.
pub(crate) struct GoneCopy<C> {
    owner: String,
    /// Its folder, or why it has its name still.
    folder: std::io::Result<PathBuf>,
    /// Its files are closed with it.
    _open: Option<Arc<C>>,
}

impl<C> GoneCopy<C> {
    /// Gives the folder of an owner's copy, which may be open, another name.
    pub(crate) fn rename((copies, folder): (&Path, &str), owner: &str, open: Option<Arc<C>>) -> GoneCopy<C> {
        // An earlier one of this name may not be deleted yet.
        let mut free = (0_u64..).map(|number| copies.join(format!("{GONE_PREFIX}{folder}-{number}")));
        let gone = free.find(|path| !path.exists()).unwrap_or_default();
        let renamed = std::fs::rename(copies.join(folder), &gone).map(|()| gone);
        GoneCopy { owner: owner.to_owned(), folder: renamed, _open: open }
    }

    /// Its folder, unless it has its name still.
    #[cfg(test)]
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref().ok()
    }

    /// Deletes its files, of which there may be GiB: never under the lock of all copies.
    pub(crate) fn delete(self, copies: &Path) {
        let delete = |folder: PathBuf| {
            std::fs::File::open(copies)?.sync_all()?;
            std::fs::remove_dir_all(folder)
        };
        match self.folder.and_then(delete) {
            Ok(()) => tracing::info!(owner = %self.owner, "a copy that is needed no more was removed"),
            Err(error) => tracing::warn!(owner = %self.owner, "a copy that is needed no more stays: {error}"),
        }
    }
}
