//! `sandstorm grant …`

use clap::Subcommand;
use sandstorm_client::control::{Access, CreateGrant, GivenGrant, Grants};

use super::output::{Failure, Out, columns};
use super::session::Session;

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

pub(super) fn run(session: &Session, command: GrantCommand, out: &Out) -> Result<(), Failure> {
    let control = session.control();
    let tenant = session.tenant()?;
    match command {
        GrantCommand::Add { table, to, read_write } => {
            let access = if read_write { Access::ReadWrite } else { Access::Read };
            let given = control.grant(&tenant, &CreateGrant { table, to, access })?;
            out.show(&given, |given| {
                let GivenGrant { table, to, access, in_force } = given;
                // Nothing else says to an owner why its partner does not find the table.
                let note = match in_force {
                    Some(_) => "",
                    None => " if there is such a tenant and it has room",
                };
                format!("granted {table} to {to} ({}): it has it as {tenant}/{table}{note}\n", in_words(*access))
            })
        }
        GrantCommand::List => out.show(&control.grants(&tenant)?, |grants| list(&tenant, grants)),
        GrantCommand::Revoke { table, from } => {
            control.revoke_grant(&tenant, &table, &from)?;
            out.done(&format!("revoked {table} from {from}"))
        }
        GrantCommand::Drop { name } => {
            let Some((owner, table)) = name.split_once('/') else {
                return Err(Failure::new(format!("{name:?} is not the name of a granted table"))
                    .hint("granted tables are named OWNER/TABLE; `sandstorm grant list` shows them"));
            };
            control.drop_grant(&tenant, owner, table)?;
            out.done(&format!("gave up {name}"))
        }
    }
}

/// What a grant allows, as the command line has it.
pub(super) fn in_words(access: Access) -> &'static str {
    match access {
        Access::Own => "own",
        Access::Read => "read",
        Access::ReadWrite => "read-write",
    }
}

fn list(tenant: &str, grants: &Grants) -> String {
    let given = grants.given.iter().map(|given| {
        let state = if given.in_force == Some(false) { "given, not in force" } else { "given" };
        vec![
            format!("{tenant}/{}", given.table),
            "-".to_owned(),
            state.to_owned(),
            given.to.clone(),
            in_words(given.access).to_owned(),
        ]
    });
    let received = grants.received.iter().map(|received| {
        vec![
            received.name.clone(),
            received.id.to_string(),
            "received".to_owned(),
            tenant.to_owned(),
            in_words(received.access).to_owned(),
        ]
    });
    let rows: Vec<_> = given.chain(received).collect();
    columns(&["TABLE", "ID", "GRANT", "TO", "ACCESS"], &rows)
}
