//! Scratch folders of builds. Each process has a folder of its own for them, which the next start removes if the
//! process has died.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::BuildError;

/// An empty folder beside the scratch folders.
pub(super) const ROOT_FOLDER: &str = "root";
/// The lock file: locked by the process that owns the folder; beside the folders, by any process that makes or removes
/// one.
const LOCK: &str = "lock";

/// A process's own folder for scratch folders; removed with the last copy of this.
#[derive(Clone, Debug)]
pub struct ScratchDir(Arc<LockedScratchDir>);

#[derive(Debug)]
struct LockedScratchDir {
    path: PathBuf,
    _lock: File,
}

impl Drop for LockedScratchDir {
    fn drop(&mut self) {
        // The next start removes what cannot be removed here.
        let _left = fs::remove_dir_all(&self.path);
    }
}

impl ScratchDir {
    /// Makes this process's folder in `state`, and removes those of processes that have died.
    pub(super) fn open(state: &Path) -> Result<ScratchDir, BuildError> {
        let all = scratch_root(state).join("builds");
        let made = (|| {
            fs::create_dir_all(&all)?;
            // Absolute: compilers have other working folders.
            let all = all.canonicalize()?;
            make_traversable(&all)?;
            let making = File::create(all.join(LOCK))?;
            making.lock()?;
            remove_stale(&all)?;
            let path = tempfile::Builder::new().prefix("builder-").tempdir_in(&all)?.keep();
            make_traversable(&path)?;
            fs::create_dir(path.join(ROOT_FOLDER))?;
            let lock = File::create(path.join(LOCK))?;
            lock.lock()?;
            io::Result::Ok(LockedScratchDir { path, _lock: lock })
        })();
        let own = made.map_err(|error| BuildError::io(&format!("making a folder in {}", all.display()), error))?;
        Ok(ScratchDir(Arc::new(own)))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// A new folder in it, removed when dropped.
    pub(super) fn folder(&self, prefix: &str) -> Result<tempfile::TempDir, BuildError> {
        let made = tempfile::Builder::new().prefix(prefix).tempdir_in(self.path());
        made.map_err(|error| BuildError::io("creating a scratch folder", error))
    }
}

/// The parent of scratch folders. It is in the state folder, unless that is closed to the users that root's compilers
/// run as; then it is a temporary folder of root's.
fn scratch_root(state: &Path) -> PathBuf {
    if !rustix::process::geteuid().is_root() {
        return state.to_owned();
    }
    let state = state.canonicalize().unwrap_or_else(|_| state.to_owned());
    let open = |folder: &Path| fs::metadata(folder).is_ok_and(|metadata| metadata.permissions().mode() & 0o001 != 0);
    if state.ancestors().all(open) {
        return state;
    }
    let shared = std::env::temp_dir().join("sandstorm-root");
    let _there_already = fs::create_dir(&shared);
    if own_folder(&shared, 0) && make_traversable(&shared).is_ok() { shared } else { state }
}

/// Returns whether this is a folder of that user's. Another user may have made it to read its content, or made it a
/// link so that its target is changed. So nothing is done to it before it is known to be ours, and ours cannot be
/// replaced among temporary files.
fn own_folder(path: &Path, user: u32) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == user)
}

/// Compilers that run as another user must reach their own folder; they cannot list those of others.
fn make_traversable(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o711))
}

/// Removes the folders whose processes no longer hold their lock.
fn remove_stale(all: &Path) -> io::Result<()> {
    for entry in fs::read_dir(all)? {
        let path = entry?.path();
        if !path.is_dir() {
            continue;
        }
        let alive = File::open(path.join(LOCK)).is_ok_and(|lock| lock.try_lock().is_err());
        if !alive {
            // It may be half removed, or another process's.
            let _left = fs::remove_dir_all(&path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_nobodys_folder() {
        let state = tempfile::tempdir().expect("a folder");
        let user = rustix::process::geteuid().as_raw();
        let link = state.path().join("link");
        std::os::unix::fs::symlink(state.path(), &link).expect("a link");
        assert!(own_folder(state.path(), user) && !own_folder(state.path(), user + 1));
        assert!(!own_folder(&link, user), "what it leads to is not to be touched");
    }

    #[test]
    fn folders_of_dead_builders_go_and_those_of_the_living_stay() {
        let state = tempfile::tempdir().expect("a folder");
        let living = ScratchDir::open(state.path()).expect("a folder");
        let build = living.folder("build-").expect("a folder");
        let dead = living.path().with_file_name("builder-dead").join("build-x");
        fs::create_dir_all(&dead).expect("a folder");
        fs::write(dead.join("big"), b"left by a crash").expect("a file");
        let other = ScratchDir::open(state.path()).expect("a folder");
        assert!(build.path().exists() && living.path().exists(), "a build that runs is left alone");
        assert!(!dead.exists(), "what a crash left is gone");
        let path = other.path().to_owned();
        drop(other);
        assert!(!path.exists());
    }
}
