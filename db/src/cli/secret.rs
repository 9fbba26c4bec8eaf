//! `sandstorm secret …`

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use sandstorm_catalog::format_utc;
use sandstorm_catalog::limits::SECRET_BYTES;
use sandstorm_client::control::SecretStatus;

use super::output::{CliError, OutputPrinter, columns};
use super::session::CliSession;

/// Secrets that a tenant's code reads.
#[derive(Debug, Subcommand)]
pub(super) enum SecretCommand {
    /// Set a secret, which code reads with db.secret("NAME"); the value is read from standard input, where no list of
    /// processes and no shell's history has it
    Set {
        /// Name: 1 to 64 letters, digits, '_', '-' and '.'
        name: String,
        /// Read the value from this file
        #[arg(long, value_name = "FILE")]
        from: Option<PathBuf>,
    },
    /// List the names, never a value
    List,
    /// Remove a secret
    Rm {
        /// Name of the secret
        name: String,
    },
}

pub(super) fn run(session: &CliSession, command: SecretCommand, out: &OutputPrinter) -> Result<(), CliError> {
    let control = session.control();
    let tenant = session.tenant()?;
    match command {
        SecretCommand::Set { name, from } => {
            control.set_secret(&tenant, &name, &value(from.as_deref())?)?;
            out.done(&format!("set secret {name}"))
        }
        SecretCommand::List => out.show(&control.secrets(&tenant)?, |secrets| list(secrets)),
        SecretCommand::Rm { name } => {
            control.remove_secret(&tenant, &name)?;
            out.done(&format!("removed secret {name}"))
        }
    }
}

/// Reads a value: a byte more than is allowed, so that a longer one is refused. A line's end is no part of it.
fn value(from: Option<&Path>) -> Result<Vec<u8>, CliError> {
    let mut value = Vec::new();
    let most = SECRET_BYTES as u64 + 2;
    let read = match from {
        Some(file) => std::fs::File::open(file).and_then(|file| file.take(most).read_to_end(&mut value)),
        None => std::io::stdin().lock().take(most).read_to_end(&mut value),
    };
    let source = from.map_or_else(|| "standard input".to_owned(), |file| file.display().to_string());
    read.map_err(|error| CliError::new(format!("reading {source}: {error}")))?;
    if value.last() == Some(&b'\n') {
        value.pop();
    }
    if value.is_empty() {
        return Err(CliError::new(format!("{source} is empty"))
            .hint("give the value, for example: echo VALUE | sandstorm secret set NAME"));
    }
    Ok(value)
}

fn list(secrets: &[SecretStatus]) -> String {
    let row = |secret: &SecretStatus| {
        let state = if secret.opens { "sealed" } else { "lost: set it again" };
        vec![secret.name.clone(), format_utc(secret.set_at_ms), state.to_owned()]
    };
    columns(&["NAME", "SET AT", "STATE"], &secrets.iter().map(row).collect::<Vec<_>>())
}
