//! `sandstorm grant …`

use clap::Subcommand;
use sandstorm_client::control::{GivenGrant, GrantList, GrantSpec, TableAccess};

use super::output::{CliError, OutputPrinter, columns};
use super::session::CliSession;

/// Tables that tenants share.
#[derive(Debug, Subcommand)]
pub(super) enum GrantCommand {
    /// Let another tenant use a table; that tenant calls it OWNER/TABLE
    Add {
        /// Name of the table
        table: String,
        /// Name of the tenant that may use it
        #[arg(long, value_name = "TENANT")]
        to: String,
        /// Allow writing, too; what is written counts against the table's quota
        #[arg(long)]
        read_write: bool,
    },
    /// List the tables that the tenant granted, and those that were granted to it
    List,
    /// End a grant at once
    Revoke {
        /// Name of the table
        table: String,
        /// Name of the tenant that may use it no longer
        #[arg(long, value_name = "TENANT", alias = "to")]
        from: String,
    },
    /// Give up a table that another tenant granted
    Drop {
        /// The table, as OWNER/TABLE
        name: String,
    },
}

pub(super) fn run(session: &CliSession, command: GrantCommand, out: &OutputPrinter) -> Result<(), CliError> {
    let control = session.control();
    let tenant = session.tenant()?;
    match command {
        GrantCommand::Add { table, to, read_write } => {
            let access = if read_write { TableAccess::ReadWrite } else { TableAccess::Read };
            let given = control.grant(&tenant, &GrantSpec { table, to, access })?;
            out.show(&given, |given| {
                let GivenGrant { table, to, access, in_force } = given;
                // Nothing else tells an owner why its partner does not find the table.
                let note = match in_force {
                    Some(_) => "",
                    None => " if there is such a tenant and it has room",
                };
                format!(
                    "granted {table} to {to} ({}): its name there is {tenant}/{table}{note}\n",
                    describe_access(*access)
                )
            })
        }
        GrantCommand::List => out.show(&control.grants(&tenant)?, |grants| list(&tenant, grants)),
        GrantCommand::Revoke { table, from } => {
            control.revoke_grant(&tenant, &table, &from)?;
            out.done(&format!("revoked {table} from {from}"))
        }
        GrantCommand::Drop { name } => {
            let Some((owner, table)) = name.split_once('/') else {
                return Err(CliError::new(format!("{name:?} is not the name of a granted table"))
                    .hint("granted tables are named OWNER/TABLE; `sandstorm grant list` shows them"));
            };
            control.drop_grant(&tenant, owner, table)?;
            out.done(&format!("gave up {name}"))
        }
    }
}

/// Describes a grant's access in the command line's words.
pub(super) fn describe_access(access: TableAccess) -> &'static str {
    match access {
        TableAccess::Own => "own",
        TableAccess::Read => "read",
        TableAccess::ReadWrite => "read-write",
    }
}

fn list(tenant: &str, grants: &GrantList) -> String {
    let given = grants.given.iter().map(|given| {
        let state = if given.in_force == Some(false) { "given, not in force" } else { "given" };
        vec![
            format!("{tenant}/{}", given.table),
            "-".to_owned(),
            state.to_owned(),
            given.to.clone(),
            describe_access(given.access).to_owned(),
        ]
    });
    let received = grants.received.iter().map(|received| {
        vec![
            received.name.clone(),
            received.id.to_string(),
            "received".to_owned(),
            tenant.to_owned(),
            describe_access(received.access).to_owned(),
        ]
    });
    let rows: Vec<_> = given.chain(received).collect();
    columns(&["TABLE", "ID", "GRANT", "TO", "ACCESS"], &rows)
}
