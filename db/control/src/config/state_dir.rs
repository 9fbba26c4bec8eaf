//! The state directory: private to the server's user; holds the operator's token.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ConfigError;
use sandstorm_accounts::token;

/// Name of the file that holds the operator's token.
pub const OPERATOR_TOKEN_FILE: &str = "operator-token";

/// Name of the file with the address of the control port.
pub const CONTROL_FILE: &str = "control.json";

/// The address of a server's control port, for the command line on the same machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlFile {
    /// `http://` or `https://`, host and port.
    pub address: String,
    /// The fingerprint of its certificate, if it uses TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
}

impl ControlFile {
    /// The file that a server last wrote into this state directory; `None` if it is missing or malformed.
    pub fn read(state: &Path) -> Option<ControlFile> {
        serde_json::from_slice(&fs::read(state.join(CONTROL_FILE)).ok()?).ok()
    }

    /// Writes the file.
    ///
    /// # Errors
    /// One line: the file cannot be written.
    pub fn write(&self, state: &Path) -> Result<(), ConfigError> {
        let path = state.join(CONTROL_FILE);
        let json = serde_json::to_vec(self)
            .map_err(|error| ConfigError::new(format!("cannot write {}: {error}", path.display())))?;
        if fs::read(&path).is_ok_and(|there| there == json) {
            return Ok(());
        }
        // On a full disk the existing file still has its block: a half-written file for a moment is better than a wrong
        // port for good.
        write_private(&path, &json).or_else(|error| overwrite_in_place(&path, &json).map_err(|_also| error))
    }
}

/// Overwrites an existing file. A concurrent reader may see parts of both.
fn overwrite_in_place(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(path)?;
    file.write_all(bytes)?;
    file.set_len(bytes.len() as u64)?;
    file.sync_all()
}

/// Writes a file that only its owner may read, atomically: the old file stays until it is replaced.
///
/// # Errors
/// One line: it cannot be written.
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<(), ConfigError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || {
        // It is made with mode 0600 and a temporary name.
        let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        fs::File::open(folder)?.sync_all()
    };
    write().map_err(|error: io::Error| ConfigError::new(format!("cannot write {}: {error}", path.display())))
}

/// `$XDG_STATE_HOME/sandstorm`, or `~/.local/state/sandstorm`, or `./sandstorm-state` if neither is known.
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

/// Creates the state directory if it is missing, and checks that no other user can access it.
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
            "state directory {shown} belongs to user {}, but the server runs as {user}; choose another with --state",
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
    if state.join(OPERATOR_TOKEN_FILE).symlink_metadata().is_ok() {
        return read_operator_token(state);
    }
    let new = token::generate();
    write_operator_token(state, &new)?;
    Ok(new)
}

/// Replaces the stored token of the operator.
///
/// # Errors
/// One line: the file cannot be written; the old one stays then.
pub fn write_operator_token(state: &Path, token: &str) -> Result<(), ConfigError> {
    write_private(&state.join(OPERATOR_TOKEN_FILE), format!("{token}\n").as_bytes())
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
