//! The state directory: private to the server's user; holds the operator's token.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::ConfigError;
use crate::tenants::token;

/// Name of the file that holds the operator's token.
pub const OPERATOR_TOKEN_FILE: &str = "operator-token";

/// `$XDG_STATE_HOME/sandstorm`, or `~/.local/state/sandstorm`, or `./sandstorm-state` where neither is known.
pub fn default_state_dir() -> PathBuf {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(state) = absolute("XDG_STATE_HOME") {
        return state.join("sandstorm");
    }
    match absolute("HOME") {
        Some(home) => home.join(".local/state/sandstorm"),
        None => PathBuf::from("sandstorm-state"),
    }
}

/// Creates the state directory if it is not there, and checks that nobody else reaches into it.
///
/// # Errors
/// One line: it cannot be created, is no directory, belongs to another user, or is open to others.
pub fn prepare_state_dir(path: &Path) -> Result<(), ConfigError> {
    let shown = path.display();
    let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    created.map_err(|error| ConfigError::new(format!("cannot create state directory {shown}: {error}")))?;
    let metadata = fs::metadata(path)
        .map_err(|error| ConfigError::new(format!("cannot look at state directory {shown}: {error}")))?;
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user {
        return Err(ConfigError::new(format!(
            "state directory {shown} belongs to user {}, not to {user}, who runs the server; choose another with --state",
            metadata.uid()
        )));
    }
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(ConfigError::new(format!(
            "state directory {shown} has mode {mode:o}: others could read its secrets; run: chmod 700 {shown}"
        )));
    }
    Ok(())
}

/// The operator's token: read from the state directory, or made there at the first start (mode 0600).
///
/// # Errors
/// One line: the file cannot be read or written, is open to others, or holds no token.
pub fn operator_token(state: &Path) -> Result<String, ConfigError> {
    let path = state.join(OPERATOR_TOKEN_FILE);
    let new = token::generate();
    match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
        Ok(mut file) => {
            let written = file.write_all(format!("{new}\n").as_bytes()).and_then(|()| file.sync_all());
            written.map_err(|error| ConfigError::new(format!("cannot write {}: {error}", path.display())))?;
            Ok(new)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => read_operator_token(state),
        Err(error) => Err(ConfigError::new(format!("cannot create {}: {error}", path.display()))),
    }
}

/// The operator's token of a server that has been started with this state directory.
///
/// # Errors
/// One line: the file is not there, cannot be read, is open to others, or holds no token.
pub fn read_operator_token(state: &Path) -> Result<String, ConfigError> {
    let path = state.join(OPERATOR_TOKEN_FILE);
    let shown = path.display();
    let unreadable = |error: io::Error| ConfigError::new(format!("cannot read {shown}: {error}"));
    let mode = fs::metadata(&path).map_err(unreadable)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(ConfigError::new(format!(
            "{shown} has mode {mode:o}: others could read the operator's token; delete it to have a new one made"
        )));
    }
    let text = fs::read_to_string(&path).map_err(unreadable)?;
    let token = text.trim();
    if token::TokenHash::of_chosen(token).is_none() {
        return Err(ConfigError::new(format!("{shown} holds no token; delete it to have a new one made")));
    }
    Ok(token.to_owned())
}
