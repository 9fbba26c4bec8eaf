//! The compiler's sysroots of one server, shared with the later servers of a run. Each would make its own: seconds of a
//! processor, beside the measurements.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The folder of the cache that is open.
static CACHE: Mutex<Option<PathBuf>> = Mutex::new(None);

/// The prefix of the names of sysroots in a builder's folder. One that is being made has another.
const SYSROOT_PREFIX: &str = "sysroot-";

/// Open until it is dropped; one at a time.
pub(crate) struct SysrootCache {
    _folder: tempfile::TempDir,
}

impl SysrootCache {
    /// Opens a cache with what a builder's state folder has, or an empty one.
    pub(crate) fn open(from: Option<&Path>) -> io::Result<SysrootCache> {
        let folder = tempfile::tempdir()?;
        if let Some(from) = from {
            link_sysroots(from, folder.path())?;
        }
        *CACHE.lock().unwrap_or_else(PoisonError::into_inner) = Some(folder.path().to_owned());
        Ok(SysrootCache { _folder: folder })
    }
}

impl Drop for SysrootCache {
    fn drop(&mut self) {
        *CACHE.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Gives a new server's state folder what the cache has. A server without it makes its own.
pub(crate) fn take(state: &Path) {
    let cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    let builder = state.join("builder");
    // As the server makes them: it keeps secrets there.
    let mut private = fs::DirBuilder::new();
    private.recursive(true).mode(0o700);
    if let Some(cache) = &*cache
        && private.create(&builder).is_ok()
    {
        let _complete = link_sysroots(cache, &builder);
    }
}

/// Puts what a server has made into the cache.
pub(crate) fn give(state: &Path) {
    let cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(cache) = &*cache {
        let _complete = link_sysroots(&state.join("builder"), cache);
    }
}

/// Links to the sysroots that the other folder lacks. One that cannot be linked as a whole is left out.
fn link_sysroots(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        let target = to.join(&name);
        if name.to_string_lossy().starts_with(SYSROOT_PREFIX) && !target.exists() {
            let unfinished = to.join(Path::new("linking").join(&name));
            fs::create_dir_all(unfinished.parent().unwrap_or(to))?;
            link_folder(&path, &unfinished)?;
            fs::rename(&unfinished, &target)?;
        }
    }
    Ok(())
}

/// Makes a folder with hard links to the files of another.
fn link_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let (from, to) = entry.map(|entry| (entry.path(), to.join(entry.file_name())))?;
        if from.is_dir() { link_folder(&from, &to)? } else { fs::hard_link(&from, &to)? }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_gets_the_sysroots_that_an_earlier_one_has_made_while_the_cache_is_open() {
        let states = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let builder = |number: usize| states[number].path().join("builder");
        fs::create_dir_all(builder(0).join("sysroot-1/lib")).unwrap();
        fs::create_dir_all(builder(0).join("making-2")).unwrap();
        fs::write(builder(0).join("sysroot-1/lib/core.rlib"), "core").unwrap();
        let cache = SysrootCache::open(None).unwrap();
        give(states[0].path());
        take(states[1].path());
        let linked = builder(1).join("sysroot-1/lib/core.rlib");
        assert_eq!(fs::read_to_string(&linked).unwrap(), "core");
        assert!(!builder(1).join("making-2").exists());
        drop(cache);
        take(states[2].path());
        assert!(!builder(2).exists() && linked.exists());
        let _cache = SysrootCache::open(Some(&builder(0))).unwrap();
        take(states[2].path());
        assert!(builder(2).join("sysroot-1/lib/core.rlib").exists() && !builder(2).join("making-2").exists());
    }
}
