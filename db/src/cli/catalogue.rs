//! `sandstorm catalogue …`

use clap::Subcommand;
use sandstorm_client::control::{EnableForMany, EnableSpec, EnabledOutcome, ShareSpec, SharedExtensionStatus};

use super::output::{CliError, OutputPrinter, columns};
use super::session::CliSession;

/// Extensions that tenants share.
#[derive(Debug, Subcommand)]
pub(super) enum CatalogueCommand {
    /// List the extensions that are shared
    List,
    /// Let other tenants enable an extension: all (with the operator's token), or those that are named
    Share {
        /// Name of the extension
        name: String,
        /// A tenant that may enable it; several times for several [default: all]
        #[arg(long, value_name = "TENANT")]
        with: Vec<String>,
    },
    /// Let others enable an extension no more; tenants that have it enabled keep it
    Unshare {
        /// Name of the extension
        name: String,
        /// Take it away from those who have it enabled
        #[arg(long)]
        disable: bool,
    },
    /// Enable another tenant's extension, with counters, budget and suspension of its own. It stays with its version
    Enable {
        /// The owner and the extension, OWNER/NAME
        #[arg(value_name = "OWNER/NAME", value_parser = owner_and_name)]
        of: (String, String),
        /// Name that it has here [default: the owner's]
        #[arg(long = "as", value_name = "NAME")]
        as_name: Option<String>,
        /// The version [default: the one that the owner has called now]
        #[arg(long)]
        version: Option<u64>,
        /// Go along when the owner has another version called
        #[arg(long, conflicts_with = "version")]
        follow: bool,
        /// For these tenants, by commas (with the operator's token)
        #[arg(long, value_name = "TENANTS", value_delimiter = ',')]
        tenants: Vec<String>,
        /// For all tenants but the owner (with the operator's token)
        #[arg(long, conflicts_with = "tenants")]
        all: bool,
    },
    /// Take an enabled extension away from a tenant
    Disable {
        /// Name that it has there
        name: String,
    },
}

/// Parses `OWNER/NAME`.
fn owner_and_name(text: &str) -> Result<(String, String), String> {
    match text.split_once('/') {
        Some((owner, name)) if !owner.is_empty() && !name.is_empty() => Ok((owner.to_owned(), name.to_owned())),
        _ => Err("write the owner's name, / and the extension's: lab/leaderboard".to_owned()),
    }
}

pub(super) fn run(session: &CliSession, command: CatalogueCommand, out: &OutputPrinter) -> Result<(), CliError> {
    let control = session.control();
    match command {
        CatalogueCommand::List => out.show(&control.catalogue()?, |shared| list(shared)),
        CatalogueCommand::Share { name, with } => {
            let with = Some(with).filter(|with| !with.is_empty());
            control.share_extension(&session.tenant()?, &name, &ShareSpec { with })?;
            out.done(&format!("shared {name}: `sandstorm catalogue enable` enables it"))
        }
        CatalogueCommand::Unshare { name, disable } => {
            control.unshare_extension(&session.tenant()?, &name, disable)?;
            out.done(&format!("{name} is shared no more"))
        }
        CatalogueCommand::Enable { of: (owner, extension), as_name, version, follow, tenants, all } => {
            let name = as_name.unwrap_or_else(|| extension.clone());
            let of = EnableSpec { owner, extension, version, follow };
            let enabled = if all || !tenants.is_empty() {
                let tenants = Some(tenants).filter(|_| !all);
                control.enable_for_many(&EnableForMany { of, name: name.clone(), tenants })?
            } else {
                control.enable_extension(&session.tenant()?, &name, &of)?
            };
            out.show(&enabled, |enabled| describe(enabled, &name))
        }
        CatalogueCommand::Disable { name } => {
            control.disable_extension(&session.tenant()?, &name)?;
            out.done(&format!("disabled {name}"))
        }
    }
}

fn describe(enabled: &EnabledOutcome, name: &str) -> String {
    let EnabledOutcome { version, tenants, took_us } = enabled;
    format!("enabled version {version} as {name} for {tenants} tenants in {} ms\n", took_us / 1_000)
}

fn list(shared: &[SharedExtensionStatus]) -> String {
    let row = |one: &SharedExtensionStatus| {
        let with = one.with.as_ref().map_or_else(|| "all".to_owned(), |with| with.join(", "));
        vec![format!("{}/{}", one.owner, one.name), one.version.to_string(), with, one.enabled.to_string()]
    };
    columns(&["EXTENSION", "VERSION", "SHARED WITH", "ENABLED"], &shared.iter().map(row).collect::<Vec<_>>())
}
