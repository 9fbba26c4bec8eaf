//! The token of a builder's service: made at its first start, stored in a file of mode 0600, copied to the servers.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Name of the token's file in the builder's state folder.
pub const TOKEN_FILE: &str = "builder-token";

/// Reads a token file, which must be closed to other users.
pub(super) fn read(path: &Path) -> Result<String, String> {
    let wrong = |why: &dyn std::fmt::Display| format!("token file {}: {why}", path.display());
    let mode = fs::metadata(path).map_err(|error| wrong(&error))?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(wrong(&format!("mode {mode:o} lets others read it; run `chmod 600` on it")));
    }
    let text = fs::read_to_string(path).map_err(|error| wrong(&error))?;
    let token = text.trim();
    if token.len() < 20 || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(wrong(&"it must hold a token of at least 20 characters"));
    }
    Ok(token.to_owned())
}

/// Reads the token in a state folder, or writes a new one there.
///
/// # Errors
/// A text that names the file and the problem.
pub fn open(state: &Path, generate: fn() -> String) -> Result<String, String> {
    let path = state.join(TOKEN_FILE);
    match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
        Ok(mut file) => {
            let new = generate();
            let written = file.write_all(format!("{new}\n").as_bytes()).and_then(|()| file.sync_all());
            written.map_err(|error| format!("writing {}: {error}", path.display()))?;
            Ok(new)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => read(&path),
        Err(error) => Err(format!("creating {}: {error}", path.display())),
    }
}
