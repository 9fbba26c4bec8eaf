//! How servers of a cluster, and slots, are named on the command line.

use sandstorm_client::control::{ClusterMemberStatus, ClusterStatus};

use super::output::CliError;

/// Digits of an id that name a server, at least: one or two are soon those of another one.
const ID_DIGITS: usize = 4;

/// The id of a server, of which the beginning is given.
pub(super) fn id_of(known: &ClusterStatus, wanted: &str) -> Result<String, CliError> {
    if wanted.len() < ID_DIGITS {
        return Err(CliError::new(format!(
            "{wanted:?} is too short: give at least {ID_DIGITS} digits of the server's id"
        ))
        .hint("`sandstorm cluster status` shows the servers"));
    }
    let found: Vec<&ClusterMemberStatus> =
        known.servers.iter().filter(|server| server.id.starts_with(wanted)).collect();
    let [server] = found.as_slice() else {
        let what = if found.is_empty() { "no server of the cluster" } else { "more than one server of the cluster" };
        return Err(CliError::new(format!("{wanted:?} is the beginning of the id of {what}"))
            .hint("`sandstorm cluster status` shows the servers"));
    };
    Ok(server.id.clone())
}

/// A number of moves.
pub(super) fn moves(count: usize) -> String {
    if count == 1 { "1 move".to_owned() } else { format!("{count} moves") }
}

/// The first digits of an id, which name a server in all but the largest clusters.
pub(super) fn short(id: &str) -> String {
    id.get(..8).unwrap_or(id).to_owned()
}

/// Ranges of slots in few words.
pub(super) fn ranges(all: &[[u16; 2]]) -> String {
    let shown =
        all.iter().map(|[first, last]| if first == last { first.to_string() } else { format!("{first}-{last}") });
    let shown: Vec<String> = shown.collect();
    if shown.is_empty() { "-".to_owned() } else { shown.join(" ") }
}
