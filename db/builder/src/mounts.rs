//! A compiler's own file system: an empty one in memory, with the files and folders that it may see mounted at their
//! original paths. Everything else is not forbidden but absent.
//!
//! Guarantees: the unsafe blocks hold calls of `mount`, `umount2` and `pivot_root` with strings that outlive them, in a
//! process that has a mount namespace of its own; no memory is shared with the kernel beyond the call.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The path of the launcher's own program in that file system.
pub(super) const LAUNCHER: &str = "/launcher";

/// Moves this process into a file system that holds `paths`, and `program` as [`LAUNCHER`]; `root` is an empty folder.
pub(super) fn enter_private_root(root: &Path, paths: &[PathBuf], program: &Path) -> Result<(), String> {
    let said = |what: &str, path: &Path, error: std::io::Error| format!("{what} {}: {error}", path.display());
    // Mounts in here must not reach the rest of the system.
    mount(None, Path::new("/"), None, libc::MS_REC | libc::MS_PRIVATE, None)
        .map_err(|error| said("keeping mounts apart under", Path::new("/"), error))?;
    let plain = libc::MS_NOSUID | libc::MS_NODEV;
    mount(Some(Path::new("sandbox")), root, Some("tmpfs"), plain, Some("size=1m,mode=755"))
        .map_err(|error| said("mounting a file system on", root, error))?;
    for path in paths {
        bind(path, &inside(root, path)).map_err(|error| said("binding", path, error))?;
    }
    bind(program, &inside(root, Path::new(LAUNCHER))).map_err(|error| said("binding", program, error))?;
    std::env::set_current_dir(root).map_err(|error| said("entering", root, error))?;
    // The old root ends up on top of the new one, and is unmounted from there.
    // SAFETY: two strings that outlive the call.
    if unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) } != 0 {
        return Err(said("changing the root to", root, std::io::Error::last_os_error()));
    }
    // SAFETY: a string that outlives the call.
    if unsafe { libc::umount2(c".".as_ptr(), libc::MNT_DETACH) } != 0 {
        return Err(said("leaving the root for", root, std::io::Error::last_os_error()));
    }
    let readonly = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY | plain;
    mount(None, Path::new("/"), None, readonly, None).map_err(|error| said("closing", root, error))?;
    std::env::set_current_dir("/").map_err(|error| said("entering", root, error))
}

fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn bind(from: &Path, to: &Path) -> std::io::Result<()> {
    if fs::metadata(from)?.is_dir() {
        fs::create_dir_all(to)?;
    } else {
        to.parent().map_or(Ok(()), fs::create_dir_all)?;
        if !to.exists() {
            fs::write(to, [])?;
        }
    }
    mount(Some(from), to, None, libc::MS_BIND | libc::MS_REC, None)
}

fn mount(
    from: Option<&Path>,
    to: &Path,
    kind: Option<&str>,
    flags: libc::c_ulong,
    data: Option<&str>,
) -> std::io::Result<()> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(std::io::Error::other);
    let from = from.map(|path| text(path.as_os_str().as_bytes())).transpose()?;
    let to = text(to.as_os_str().as_bytes())?;
    let kind = kind.map(|kind| text(kind.as_bytes())).transpose()?;
    let data = data.map(|data| text(data.as_bytes())).transpose()?;
    let pointer = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
    // SAFETY: strings that outlive the call, or null where the call takes null.
    let done = unsafe { libc::mount(pointer(&from), to.as_ptr(), pointer(&kind), flags, pointer(&data).cast()) };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
