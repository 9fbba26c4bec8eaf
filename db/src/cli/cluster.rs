//! `sandstorm cluster …`

use clap::{Args, Subcommand};
use sandstorm_client::control::{ClusterMemberStatus, ClusterStatus, Control, SlotMoveSpec, SlotMoveStatus};

use super::cluster_dev;
use super::output::{CliError, OutputPrinter, columns, fields};
use super::session::CliSession;

/// Several servers that share the keys.
#[derive(Debug, Subcommand)]
pub(super) enum ClusterCommand {
    /// Show the servers, whether they live, and who owns which slots of the keys
    Status,
    /// Move slots, with their records, to another server, while all are served
    Move(MoveArgs),
    /// Start three servers and an etcd here, with an open tenant `dev` and its table `items`, until Ctrl-C
    Dev(cluster_dev::DevArgs),
}

/// Move slots, with their records, to another server, while all are served.
#[derive(Debug, Args)]
pub(super) struct MoveArgs {
    /// The slots, such as 0-99,5000; `sandstorm cluster status` shows who owns which
    #[arg(value_name = "SLOTS", value_parser = slots)]
    slots: SlotList,
    /// The server that is to have them: its id, or the beginning of it
    #[arg(long, value_name = "ID", required_unless_present = "cancel")]
    to: Option<String>,
    /// Copy so many MiB a second at most [default: as many as can be]
    #[arg(long, value_name = "MIB", default_value_t = 0, hide_default_value = true, conflicts_with = "cancel")]
    rate: u64,
    /// Leave them where they are; not any more once they are handed over
    #[arg(long, conflicts_with = "to")]
    cancel: bool,
}

/// Ranges of slots.
#[derive(Clone, Debug)]
struct SlotList(Vec<[u16; 2]>);

fn slots(text: &str) -> Result<SlotList, String> {
    let bad = |word: &str| format!("{word:?} is no slot, nor a range of them such as 0-99; the slots are 0 to 16383");
    let range = |word: &str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        match (first.trim().parse::<u16>(), last.trim().parse::<u16>()) {
            (Ok(first), Ok(last)) if first <= last && last < 16_384 => Ok([first, last]),
            _ => Err(bad(word)),
        }
    };
    text.split(',').map(range).collect::<Result<_, _>>().map(SlotList)
}

pub(super) fn run(
    session: impl FnOnce() -> CliSession,
    command: &ClusterCommand,
    out: &OutputPrinter,
) -> Result<(), CliError> {
    match command {
        ClusterCommand::Status => out.show(&session().control().cluster()?, describe),
        ClusterCommand::Move(args) => move_slots(session().control(), args, out),
        ClusterCommand::Dev(args) => cluster_dev::run(args, out),
    }
}

fn move_slots(control: &Control, args: &MoveArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let moves = |count: usize| if count == 1 { "1 move".to_owned() } else { format!("{count} moves") };
    let Some(wanted) = args.to.as_ref().filter(|_| !args.cancel) else {
        let cancelled = control.cancel_moves(&args.slots.0)?;
        return out.show(&cancelled, |cancelled| format!("cancelled {}\n", moves(cancelled.moves)));
    };
    let known = control.cluster()?;
    let found: Vec<&ClusterMemberStatus> =
        known.servers.iter().filter(|server| server.id.starts_with(wanted)).collect();
    let [target] = found.as_slice() else {
        let what = if found.is_empty() { "no server of the cluster" } else { "more than one server of the cluster" };
        return Err(CliError::new(format!("{wanted:?} is the beginning of the id of {what}"))
            .hint("`sandstorm cluster status` shows the servers"));
    };
    let spec = SlotMoveSpec { slots: args.slots.0.clone(), to: target.id.clone(), mib_per_s: args.rate };
    let begun = control.move_slots(&spec)?;
    out.show(&begun, |begun| format!("began {}; `sandstorm cluster status` shows how far\n", moves(begun.moves)))
}

/// What is to be said of a move.
fn describe_move(one: &SlotMoveStatus) -> Vec<String> {
    let short = |id: &str| id.get(..8).unwrap_or(id).to_owned();
    let state = match (&one.state, one.handed_over) {
        (_, true) => "handed over; the source removes its records".to_owned(),
        (Some(state), false) => state.clone(),
        (None, false) => "under way; its servers know more".to_owned(),
    };
    let copied = match (one.records, one.bytes) {
        (Some(records), Some(bytes)) => format!("{records} records, {} MiB", bytes >> 20),
        _ => "-".to_owned(),
    };
    vec![ranges(&[one.slots]), short(&one.from), short(&one.to), copied, state]
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
    let servers = columns(&["server", "state", "data", "redis", "control", "slots"], &rows);
    let moves: Vec<Vec<String>> = status.moves.iter().map(describe_move).collect();
    let moves = if moves.is_empty() {
        String::new()
    } else {
        format!("\n{}", columns(&["moving", "from", "to", "copied", "state"], &moves))
    };
    fields(&facts) + &servers + &moves
}

/// Ranges of slots in few words.
fn ranges(all: &[[u16; 2]]) -> String {
    let shown =
        all.iter().map(|[first, last]| if first == last { first.to_string() } else { format!("{first}-{last}") });
    let shown: Vec<String> = shown.collect();
    if shown.is_empty() { "-".to_owned() } else { shown.join(" ") }
}
