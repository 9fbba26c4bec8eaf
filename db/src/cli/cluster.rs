//! `sandstorm cluster …`

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use sandstorm_client::control::{
    BalanceReport, BalanceSpec, ClusterMemberStatus, ClusterStatus, Control, CopiesReport, CopyReport, FailOverSpec,
    GenerationReport, PlannedSlotMove, ServerBalanceReport, ServerChangeReport, ServerChangeSpec, SlotMoveSpec,
    SlotMoveStatus, StoredCopyReport, SuspectedServerReport,
};

use super::cluster_dev;
use super::cluster_split::{self, SplitArgs};
use super::cluster_words::{id_of, moves, ranges, short};
use super::output::{CliError, OutputPrinter, columns, fields};
use super::session::CliSession;

/// Several servers that share the keys.
#[derive(Debug, Subcommand)]
pub(super) enum ClusterCommand {
    /// Show the servers, whether they live, and which server owns which slots of the keys
    Status,
    /// Move slots, with their records, to another server, while all are served
    Move(MoveArgs),
    /// Have a server take its share of the slots from those that have more; ends a drain
    Add(ChangeArgs),
    /// Have a server give all its slots to the others, so that it can be stopped
    Drain(ChangeArgs),
    /// Move slots from servers that have much to do to others, by what each slot takes of their time and memory
    Balance(BalanceArgs),
    /// Move about half of what one server has to do to another, by its accesses, else by its records, else by slots
    Split(SplitArgs),
    /// Remove a server that was stopped: what starts with its state directory is refused
    Remove(RemoveArgs),
    /// Have another server take the place of one that is gone or hangs, with the copy that it has of that one's log
    FailOver(FailOverArgs),
    /// Start three servers and an etcd here, with an open tenant `dev` and its table `items`, until Ctrl-C
    Dev(cluster_dev::DevArgs),
}

/// Move slots, with their records, to another server, while all are served.
#[derive(Debug, Args)]
pub(super) struct MoveArgs {
    /// The slots, such as 0-99,5000; `sandstorm cluster status` shows their owners
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

/// A server that takes slots, or gives them away.
#[derive(Debug, Args)]
pub(super) struct ChangeArgs {
    /// The server: its id, or the beginning of it; `sandstorm cluster status` shows them
    #[arg(value_name = "ID")]
    id: String,
    /// Copy so many MiB a second at most, each move [default: as many as can be]
    #[arg(long, value_name = "MIB", default_value_t = 0, hide_default_value = true)]
    rate: u64,
    /// Only show what would be moved
    #[arg(long)]
    plan: bool,
}

/// Loads that are levelled.
#[derive(Debug, Args)]
pub(super) struct BalanceArgs {
    /// Copy so many MiB a second at most, each move [default: as many as can be]
    #[arg(long, value_name = "MIB", default_value_t = 0, hide_default_value = true)]
    rate: u64,
    /// Leave a server as it is that has at most so many percent more to do than the mean [default: 10]
    #[arg(long, value_name = "PERCENT", conflicts_with = "apply")]
    within: Option<f64>,
    /// Only show what would be moved, and the loads before and after
    #[arg(long)]
    plan: bool,
    /// Begin the moves of a plan as it was shown: the output of `sandstorm --json cluster balance --plan`
    #[arg(long, value_name = "FILE", conflicts_with = "plan")]
    apply: Option<PathBuf>,
}

/// A server that is removed.
#[derive(Debug, Args)]
pub(super) struct RemoveArgs {
    /// The server: its id, or the beginning of it; `sandstorm cluster status` shows them
    #[arg(value_name = "ID")]
    id: String,
    /// Its disk is lost: give its slots to the others, without their records. Be sure that it does not run any more
    #[arg(long)]
    give_up_records: bool,
    /// Only show which slots would go to which server
    #[arg(long)]
    plan: bool,
}

/// A server whose place another one takes.
#[derive(Debug, Args)]
pub(super) struct FailOverArgs {
    /// The server that is gone, or hangs: its id, or the beginning of it; `sandstorm cluster status` shows them
    #[arg(value_name = "ID")]
    id: String,
    /// The server that takes its place [default: of those with a copy of its log, the one with the fewest slots]
    #[arg(long, value_name = "ID")]
    to: Option<String>,
    /// The last writes to tables that do not wait for copies may be lost, and all records of those in memory only
    #[arg(long)]
    give_up_writes: bool,
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
        ClusterCommand::Add(args) => {
            let control = session();
            let change = spec(control.control(), args)?;
            let report = control.control().add_server(&change)?;
            out.show(&report, |report| {
                told(report, if report.moving > 0 { UNDER_WAY } else { "it has its share of the slots already" })
            })
        }
        ClusterCommand::Drain(args) => {
            let control = session();
            let change = spec(control.control(), args)?;
            let report = control.control().drain_server(&change)?;
            out.show(&report, |report| {
                let nothing = if report.slots == 0 { "it owns no slots: stop it, and remove it" } else { UNDER_WAY };
                told(report, nothing)
            })
        }
        ClusterCommand::Balance(args) => balance(session().control(), args, out),
        ClusterCommand::Split(args) => cluster_split::run(session().control(), args, out),
        ClusterCommand::Remove(args) => {
            let control = session();
            let RemoveArgs { id, give_up_records, plan } = args;
            let server = id_of(&control.control().cluster()?, id)?;
            let (give_up_records, plan) = (*give_up_records, *plan);
            let change = ServerChangeSpec { server, give_up_records, plan, mib_per_s: 0 };
            let report = control.control().remove_server(&change)?;
            let done = if plan { "it owns no slots, and would be removed" } else { "removed" };
            out.show(&report, |report| told(report, done))
        }
        ClusterCommand::FailOver(args) => {
            let control = session();
            let known = control.control().cluster()?;
            let to = args.to.as_ref().map(|to| id_of(&known, to)).transpose()?;
            let give_up_writes = args.give_up_writes;
            let wanted = FailOverSpec { server: id_of(&known, &args.id)?, to, give_up_writes };
            let begun = control.control().fail_over(&wanted)?;
            out.show(&begun, |_| "begun; `sandstorm cluster status` shows when it is done\n".to_owned())
        }
        ClusterCommand::Dev(args) => cluster_dev::run(args, out),
    }
}

const UNDER_WAY: &str = "its moves are under way already: `sandstorm cluster status` shows how far";

fn spec(control: &Control, args: &ChangeArgs) -> Result<ServerChangeSpec, CliError> {
    let server = id_of(&control.cluster()?, &args.id)?;
    Ok(ServerChangeSpec { server, mib_per_s: args.rate, give_up_records: false, plan: args.plan })
}

/// What was begun, or what would be; `nothing` is what is to be said of no moves.
fn told(report: &ServerChangeReport, nothing: &str) -> String {
    if !report.planned.is_empty() {
        let row = |one: &PlannedSlotMove| vec![ranges(&[one.slots]), short(&one.from), short(&one.to)];
        return columns(&["would move", "from", "to"], &report.planned.iter().map(row).collect::<Vec<_>>());
    }
    match report.moves {
        0 => format!("{nothing}\n"),
        count => format!("began {}; `sandstorm cluster status` shows how far\n", moves(count)),
    }
}

fn move_slots(control: &Control, args: &MoveArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let Some(wanted) = args.to.as_ref().filter(|_| !args.cancel) else {
        let cancelled = control.cancel_moves(&args.slots.0)?;
        return out.show(&cancelled, |cancelled| format!("cancelled {}\n", moves(cancelled.moves)));
    };
    let to = id_of(&control.cluster()?, wanted)?;
    let spec = SlotMoveSpec { slots: args.slots.0.clone(), to, mib_per_s: args.rate };
    let begun = control.move_slots(&spec)?;
    out.show(&begun, |begun| format!("began {}; `sandstorm cluster status` shows how far\n", moves(begun.moves)))
}

fn balance(control: &Control, args: &BalanceArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let moves = args.apply.as_deref().map(read_plan).transpose()?;
    let spec = BalanceSpec { plan: args.plan, mib_per_s: args.rate, within_percent: args.within, moves };
    out.show(&control.balance(&spec)?, describe_balance)
}

/// The moves of a plan that was printed as JSON.
fn read_plan(path: &Path) -> Result<Vec<PlannedSlotMove>, CliError> {
    let failed = |error: &dyn std::fmt::Display| {
        CliError::new(format!("{}: {error}", path.display()))
            .hint("a plan is what `sandstorm --json cluster balance --plan` prints")
    };
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    let plan: BalanceReport = serde_json::from_str(&text).map_err(|error| failed(&error))?;
    Ok(plan.moves)
}

/// The loads before and after, and the moves between.
fn describe_balance(report: &BalanceReport) -> String {
    let percent = |part: f64| format!("{:.0} %", part * 100.0);
    let row = |server: &ServerBalanceReport| {
        let hottest = server.hottest_slot.zip(server.hottest_slot_cpu);
        let hottest = hottest.map_or_else(|| "-".to_owned(), |(slot, part)| format!("{slot}: {}", percent(part)));
        let [cpu, cpu_after] = [server.cpu, server.cpu_after].map(percent);
        let [memory, memory_after] = [server.memory, server.memory_after].map(percent);
        vec![short(&server.server), cpu, cpu_after, memory, memory_after, hottest]
    };
    let rows: Vec<Vec<String>> = report.servers.iter().map(row).collect();
    let mut text = match rows.is_empty() {
        true => String::new(),
        false => columns(&["server", "CPU", "then", "memory", "then", "hottest slot"], &rows) + "\n",
    };
    report.remarks.iter().for_each(|remark| text += &format!("{remark}\n"));
    if report.moves.is_empty() {
        return text + "the servers are level: nothing to move\n";
    }
    if report.begun {
        let begun = moves(report.moves.len());
        return text + &format!("began {begun}; `sandstorm cluster status` shows how far\n");
    }
    let row = |one: &PlannedSlotMove| vec![ranges(&[one.slots]), short(&one.from), short(&one.to)];
    text += &columns(&["would move", "from", "to"], &report.moves.iter().map(row).collect::<Vec<_>>());
    text + &format!("{} MiB of records\n", report.bytes.div_ceil(1 << 20))
}

/// What is to be said of a move.
fn describe_move(one: &SlotMoveStatus) -> Vec<String> {
    let state = match (&one.state, one.handed_over) {
        _ if one.from == one.to => "removes what it has of them, and then serves them".to_owned(),
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
        facts.push(("waits", "for as many servers as --cluster-servers says; no key has an owner before".to_owned()));
    } else if !status.unowned.is_empty() {
        facts.push(("unowned", ranges(&status.unowned)));
    }
    facts.extend(status.trouble.iter().map(|why| ("trouble", why.clone())));
    let row = |server: &ClusterMemberStatus| {
        let mut lives = match (server.lives, server.has_same_tenants) {
            (false, _) => "silent",
            (true, true) => "lives",
            (true, false) => "lives, other tenants",
        }
        .to_owned();
        if server.draining {
            lives += if server.slots.is_empty() { ", drained" } else { ", drains" };
        }
        let redis = server.redis_address.clone().unwrap_or_else(|| "-".to_owned());
        let id = if server.is_this { format!("{} (this)", short(&server.id)) } else { short(&server.id) };
        vec![id, lives, server.data_address.clone(), redis, server.control_url.clone(), ranges(&server.slots)]
    };
    let rows: Vec<Vec<String>> = status.servers.iter().map(row).collect();
    let servers = columns(&["server", "state", "data", "redis", "control", "slots"], &rows);
    let moves: Vec<Vec<String>> = status.moves.iter().map(describe_move).collect();
    let moves = if moves.is_empty() {
        String::new()
    } else {
        format!("\n{}", columns(&["moving", "from", "to", "copied", "state"], &moves))
    };
    fields(&facts) + &servers + &moves + &describe_copies(&status.copies)
}

/// Which server has copies of which log, and how far those of this server's log are.
fn describe_copies(copies: &CopiesReport) -> String {
    let mut text = String::new();
    let names = |all: &[String]| match all.is_empty() {
        true => "-".to_owned(),
        false => all.iter().map(|id| short(id)).collect::<Vec<_>>().join(" "),
    };
    let row = |one: &GenerationReport| {
        let state = match &one.successor {
            Some(successor) => format!("{} takes its place", short(successor)),
            None if one.servers.is_empty() => "none".to_owned(),
            None => "in use".to_owned(),
        };
        vec![short(&one.owner), one.number.to_string(), names(&one.servers), state]
    };
    let rows: Vec<Vec<String>> = copies.generations.iter().map(row).collect();
    if !rows.is_empty() {
        text += &format!("\n{}", columns(&["copies of", "generation", "at", "state"], &rows));
    }
    let row = |copy: &CopyReport| {
        let state = match (&copy.trouble, copy.confirms, copy.needed) {
            (Some(trouble), _, _) => trouble.clone(),
            (None, true, true) => "confirms".to_owned(),
            (None, false, _) => "silent".to_owned(),
            (None, true, false) => "is being filled".to_owned(),
        };
        vec![short(&copy.server), format!("{} KiB", copy.behind_bytes.div_ceil(1 << 10)), state]
    };
    let rows: Vec<Vec<String>> = copies.copies.iter().map(row).collect();
    if copies.wanted > 0 {
        let stalled = if copies.stalled { ", writes to tables with copies are refused" } else { "" };
        text += &format!("\ncopies of this server's log: {} wanted{stalled}\n", copies.wanted);
        text += &columns(&["at", "behind", "state"], &rows);
    }
    let row = |copy: &StoredCopyReport| {
        let state = match &copy.damage {
            Some(damage) => format!("damaged, counts for nothing: {damage}"),
            None if copy.sealed => "sealed".to_owned(),
            None => "open".to_owned(),
        };
        let checked = copy.checked_s_ago.map_or_else(|| "not yet".to_owned(), |ago| format!("{ago} s ago"));
        vec![short(&copy.owner), format!("{} MiB", copy.bytes.div_ceil(1 << 20)), checked, state]
    };
    let rows: Vec<Vec<String>> = copies.kept.iter().map(row).collect();
    if !rows.is_empty() {
        text += &format!("\n{}", columns(&["kept here of", "size", "read again", "state"], &rows));
    }
    let row = |one: &SuspectedServerReport| {
        let state = match (&one.obstacle, one.gone) {
            (Some(obstacle), _) => format!("gone; its place is not taken: {obstacle}"),
            (None, true) => "gone; this server takes its place".to_owned(),
            (None, false) => "is asked whether it is there".to_owned(),
        };
        // The one whose place another one was to take is watched no more.
        let silent = if one.silent_ms > 0 { format!("{} ms", one.silent_ms) } else { "-".to_owned() };
        vec![short(&one.server), silent, state]
    };
    let rows: Vec<Vec<String>> = copies.suspected.iter().map(row).collect();
    if !rows.is_empty() {
        text += &format!("\n{}", columns(&["nothing heard of", "for", "state"], &rows));
    }
    text
}
