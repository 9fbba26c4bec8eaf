//! Files with what it takes to reach another program: a password, certificates. etcd's are read by this as well.

use std::path::Path;

use crate::limits::ACCESS_FILE_BYTES;

/// Returns the text of such a file.
///
/// # Errors
/// One line: the path, and why not.
pub fn read_access_text(path: &Path) -> Result<String, String> {
    let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let found = std::fs::metadata(path).map_err(|error| failed(&error))?;
    if !found.is_file() || found.len() > ACCESS_FILE_BYTES {
        return Err(failed(&format!("is no file of at most {} KiB", ACCESS_FILE_BYTES >> 10)));
    }
    std::fs::read_to_string(path).map_err(|error| failed(&error))
}

/// Returns the password in a file, without the end of its line.
///
/// # Errors
/// One line: the path, and why not.
pub fn read_password(path: &Path) -> Result<String, String> {
    let password = read_access_text(path)?.trim_end_matches(['\r', '\n']).to_owned();
    if password.is_empty() {
        return Err(format!("{}: is empty", path.display()));
    }
    Ok(password)
}
