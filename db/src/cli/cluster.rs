//! `sandstorm cluster …`

use clap::Subcommand;
use sandstorm_client::control::{ClusterMemberStatus, ClusterStatus};

use super::cluster_dev;
use super::output::{CliError, OutputPrinter, columns, fields};
use super::session::CliSession;

/// Several servers that share the keys.
#[derive(Debug, Subcommand)]
pub(super) enum ClusterCommand {
    /// Show the servers, whether they live, and who owns which slots of the keys
    Status,
    /// Start three servers and an etcd here, with an open tenant `dev` and its table `items`, until Ctrl-C
    Dev(cluster_dev::DevArgs),
}

pub(super) fn run(
    session: impl FnOnce() -> CliSession,
    command: &ClusterCommand,
    out: &OutputPrinter,
) -> Result<(), CliError> {
    match command {
        ClusterCommand::Status => out.show(&session().control().cluster()?, describe),
        ClusterCommand::Dev(args) => cluster_dev::run(args, out),
    }
}

fn describe(status: &ClusterStatus) -> String {
    let mut facts = vec![("server", status.server.clone()), ("epoch", status.epoch.to_string())];
    if status.epoch == 0 {
        facts.push(("waits", "for as many servers as --cluster-servers says; until then nobody owns a key".to_owned()));
    } else if !status.unowned.is_empty() {
        facts.push(("unowned", ranges(&status.unowned)));
    }
    facts.extend(status.trouble.iter().map(|why| ("trouble", why.clone())));
    let row = |server: &ClusterMemberStatus| {
        let lives = match (server.lives, server.has_same_tenants) {
            (false, _) => "silent",
            (true, true) => "lives",
            (true, false) => "lives, other tenants",
        };
        let redis = server.redis_address.clone().unwrap_or_else(|| "-".to_owned());
        let id = server.id.get(..8).unwrap_or(&server.id);
        let id = if server.is_this { format!("{id} (this)") } else { id.to_owned() };
        vec![
            id,
            lives.to_owned(),
            server.data_address.clone(),
            redis,
            server.control_url.clone(),
            ranges(&server.slots),
        ]
    };
    let rows: Vec<Vec<String>> = status.servers.iter().map(row).collect();
    fields(&facts) + &columns(&["server", "state", "data", "redis", "control", "slots"], &rows)
}

/// Ranges of slots in few words.
fn ranges(all: &[[u16; 2]]) -> String {
    let shown =
        all.iter().map(|[first, last]| if first == last { first.to_string() } else { format!("{first}-{last}") });
    let shown: Vec<String> = shown.collect();
    if shown.is_empty() { "-".to_owned() } else { shown.join(" ") }
}
