//! The command line: `sandstorm serve`, and all commands to a running server.
//!
//! Results go to standard output, for people or, with `--json`, for programs; errors go to standard error as
//! `error: …` and `hint: …`, and end the process with a status that is not zero.

mod backup;
mod builder;
mod byte_args;
mod catalogue;
mod changes;
mod cluster;
mod cluster_dev;
mod cluster_split;
mod cluster_words;
mod completions;
mod data;
mod demo;
mod doctor;
mod events;
mod expiry;
mod export;
mod export_file;
mod ext;
mod ext_calls;
mod ext_dev;
mod ext_generate;
mod ext_logs;
mod ext_offline;
mod ext_versions;
mod folder_arg;
mod grant;
mod heat;
mod history;
mod hot;
mod import;
mod invoke;
mod kills;
mod latency;
mod load;
mod log;
mod man;
mod other_table;
mod positions;
mod profile;
mod progress;
mod rebuild;
mod secret;
mod serve;
mod session;
mod shell;
mod slow;
mod stat;
mod stop;
mod table;
mod tenant;
mod test_runner;
mod token;
mod top;
mod transaction;
mod transaction_steps;
mod trigger;
mod ui;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use sandstorm_client::Sealing;
use sandstorm_experiments::{self as bench, device_args, local_server};
use sandstorm_terminal::output;

use output::{CliError, OutputPrinter};
use sandstorm_client::control::Trust;
use session::CliSession;

/// Sandstorm: an in-memory storage server that many tenants share and that runs their Rust next to their data.
#[derive(Parser)]
#[command(name = "sandstorm", bin_name = "sandstorm", version, max_term_width = 100, arg_required_else_help = true)]
struct CommandLine {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: CliCommand,
}

/// Heading of the options that every command takes, so that its own stand out.
const GLOBAL_HEADING: &str = "Options of every command";

/// Default seconds for a control request: a hundred times the slowest one on a busy machine, and as long as a person
/// waits before looking for a fault.
const CONTROL_TIMEOUT_S: u64 = 10;

/// What every command takes.
#[derive(Clone, Args)]
#[command(next_help_heading = GLOBAL_HEADING)]
struct GlobalArgs {
    /// Address of the server's control port; for other machines TLS is used (https://) [default: the one that
    /// the state directory names, or 127.0.0.1:7399]
    #[arg(long, global = true, value_name = "HOST:PORT", env = "SANDSTORM_SERVER")]
    server: Option<String>,
    /// Trust the server's certificate if it is signed by one in this file (PEM) [default: the public authorities; on
    /// the server's machine, the certificate that the state directory names]
    #[arg(long, global = true, value_name = "FILE", env = "SANDSTORM_CA", value_parser = authorities)]
    ca: Option<Trust>,
    /// Trust the certificate with this fingerprint and no other; the server prints it when it starts
    #[arg(long, global = true, value_name = "sha256:…", env = "SANDSTORM_FINGERPRINT", value_parser = pin)]
    fingerprint: Option<Trust>,
    /// The operator's token or a tenant's [default: the one in the state directory]
    #[arg(long, global = true, env = "SANDSTORM_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Tenant of the command; not needed if there is only one, or if the token is a tenant's
    #[arg(long, global = true, value_name = "NAME", env = "SANDSTORM_TENANT")]
    tenant: Option<String>,
    /// State directory, with the operator's token and the tokens of tenants created on this machine [default:
    /// $XDG_STATE_HOME/sandstorm, or ~/.local/state/sandstorm]
    #[arg(long, global = true, value_name = "DIR", env = "SANDSTORM_STATE")]
    state: Option<PathBuf>,
    /// Encrypt data packets: auto (to other machines), always, or never (the server has to allow it)
    #[arg(long, global = true, value_name = "WHEN", env = "SANDSTORM_SEALED", default_value = "auto")]
    sealed: Sealing,
    /// Timeout of a control request, in seconds; of a push: 600
    #[arg(long, global = true, value_name = "SECONDS", env = "SANDSTORM_TIMEOUT", default_value_t = CONTROL_TIMEOUT_S)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// Print JSON, for programs; errors as well
    #[arg(long, global = true)]
    json: bool,
}

/// Reads the certificates of a file.
fn authorities(path: &str) -> Result<Trust, String> {
    Trust::in_file(std::path::Path::new(path)).map_err(|error| error.to_string())
}

/// A certificate by its fingerprint.
fn pin(fingerprint: &str) -> Result<Trust, String> {
    if fingerprint.trim().is_empty() {
        return Err("it is empty: unset SANDSTORM_FINGERPRINT, or write there what the server prints".to_owned());
    }
    Trust::pin(fingerprint).ok_or_else(|| "write sha256: and 64 hexadecimal digits, as the server prints it".to_owned())
}

/// Exit status of a command line that cannot be parsed.
const USAGE: u8 = 2;

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Run a server
    Serve(Box<serve::ServeArgs>),
    /// See it work in a minute: a server, two tenants, pushed code, an endless loop that is killed
    Demo,
    /// Measure this machine, beside memcached and Redis: a report with tables and plots
    Bench(bench::BenchArgs),
    /// Put a load on a running server, as one tenant or as hundreds, and report throughput and latency
    Load(Box<load::LoadArgs>),
    /// Stop the server, and wait until it has stopped; of one elsewhere, or that keeps nothing, until its control port
    /// is closed
    Stop(stop::StopArgs),
    /// Show whether the server runs, and where its ports are
    Health,
    /// Tokens of viewers: create, list, revoke; and a token or its hash for a configuration file: new, hash
    #[command(subcommand, arg_required_else_help = true)]
    Token(token::TokenCommand),
    /// The operator's token: show whether an old one still works, replace it
    #[command(subcommand, arg_required_else_help = true)]
    Operator(token::OperatorCommand),
    /// Tenants: create, list, show, set, delete, token, rotate
    #[command(subcommand, arg_required_else_help = true)]
    Tenant(tenant::TenantCommand),
    /// Tables: create, list, show, drop
    #[command(subcommand, arg_required_else_help = true)]
    Table(table::TableCommand),
    /// The log of the records on the disk: check, show, scrub
    #[command(subcommand, arg_required_else_help = true)]
    Log(log::LogCommand),
    /// Backups of the state directory, with tenants, tables, extensions and records: create, list, restore
    #[command(subcommand, arg_required_else_help = true)]
    Backup(backup::BackupCommand),
    /// Write the records of tables to a file, as JSON lines
    Export(export::ExportArgs),
    /// Write records from such a file, a Redis or a memcached to tables
    Import(Box<import::ImportArgs>),
    /// The servers of a cluster: status, dev
    #[command(subcommand, arg_required_else_help = true)]
    Cluster(cluster::ClusterCommand),
    /// Tables shared with other tenants: add, list, revoke, drop
    #[command(subcommand, arg_required_else_help = true)]
    Grant(grant::GrantCommand),
    /// Extensions shared by tenants: list, share, unshare, enable, disable
    #[command(subcommand, arg_required_else_help = true)]
    Catalogue(catalogue::CatalogueCommand),
    /// Calls by the clock, or for each change of a table: create, list, pause, resume, replay, dead-letters, delete
    #[command(subcommand, arg_required_else_help = true)]
    Trigger(trigger::TriggerCommand),
    /// Secrets that a tenant's code reads: set, list, rm
    #[command(subcommand, arg_required_else_help = true)]
    Secret(secret::SecretCommand),
    /// Write a record
    Put(data::PutArgs),
    /// Read records
    Get(data::GetArgs),
    /// Read records of an ordered table, in the order of their keys
    Range(data::RangeArgs),
    /// Count the keys of an ordered table between two keys
    Count(positions::CountArgs),
    /// Count the keys of an ordered table before one: its position
    Rank(positions::RankArgs),
    /// Find the key at a position of an ordered table
    Nth(positions::NthArgs),
    /// Show how long a record has left
    Ttl(expiry::TtlArgs),
    /// Change when a record expires, and nothing else of it
    Touch(expiry::TouchArgs),
    /// Delete a record
    Del(data::DelArgs),
    /// Add to the decimal number under a key, and print the sum
    Incr(data::IncrArgs),
    /// Read, check and write records of any tables at one moment, or none of it
    Transaction(transaction::TransactionArgs),
    /// Extensions: new, check, test, dev, push, list, show, unload, suspend, resume, budget, revoke, recheck
    #[command(subcommand, arg_required_else_help = true)]
    Ext(ext::ExtCommand),
    /// Call an extension
    Invoke(invoke::InvokeArgs),
    /// Commands one after the other, with history and completion
    Shell,
    /// Check what this machine lacks: to compile extensions, to run as a service, for kernel-bypass network devices; or
    /// what is wrong with a running server (--live)
    Doctor(doctor::DoctorArgs),
    /// Show what the server does now: counters, one row a second until interrupted, or --once
    Stat(stat::StatArgs),
    /// Show what uses the server now: tenants, extensions, tables; sorted, filtered, with graphs
    Top(top::TopArgs),
    /// Show what operators, tenants and the server did: changes, pushes, kills, suspensions, restarts
    Events(events::EventsArgs),
    /// Follow the changes of a table with durability, as they reach the disk
    Changes(changes::ChangesArgs),
    /// Count the accesses of a table by key ranges and seconds, and draw them
    Heat(heat::HeatArgs),
    /// Show the largest records of a table, of all or of as many as are looked at
    Big(heat::BigArgs),
    /// Show the keys that are used most: of a table, counted for some seconds; without one of all tables, at once
    Hot(hot::HotArgs),
    /// Show what was used before now: by seconds, minutes or hours, a month back
    History(history::HistoryArgs),
    /// Show the requests that took long recently, over all protocols; set from when on they are kept
    Slow(slow::SlowArgs),
    /// Show where the time of a slow request went, and whom it waited for
    Explain(slow::ExplainArgs),
    /// Show where the page in a browser is, with a code that signs in once
    Ui(ui::UiArgs),
    /// Show the calls that the server killed recently, and why
    Kills(kills::KillsArgs),
    /// A builder on its own host: serve, key, build
    #[command(subcommand, arg_required_else_help = true)]
    Builder(builder::BuilderCommand),
    /// Print what a shell needs to complete this command line
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write manual pages, one for each command
    Man(man::ManArgs),
}

/// Parses the command line, runs the command, and prints its error.
pub(crate) fn main() -> ExitCode {
    let cli = match CommandLine::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage_error(suggest_command(error)),
    };
    let out = OutputPrinter { json: cli.global.json };
    match run(cli, &out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            out.fail(&failure);
            ExitCode::from(failure.status)
        }
    }
}

/// Names of commands in other programs, and their names here. It also has words that only look like another command: a
/// user who types `top` does not mean `stop`.
const COMMAND_SYNONYMS: [(&[&str], &str); 23] = [
    (&["stats", "monitor", "metrics", "info", "watch"], "stat"),
    (&["status", "ping", "version", "info"], "health"),
    (&["start", "run", "server", "up"], "serve"),
    (&["shutdown", "quit", "down", "halt"], "stop"),
    (&["set", "write", "insert", "store"], "put"),
    (&["read", "fetch", "mget"], "get"),
    (&["delete", "rm", "remove", "unset"], "del"),
    (&["incrby", "add", "decr"], "incr"),
    (&["begin", "commit", "multi", "atomic", "tx", "transact"], "transaction"),
    (&["scan", "keys", "list", "ls"], "range"),
    (&["size", "length", "zcount", "dbsize"], "count"),
    (&["position", "zrank"], "rank"),
    (&["expire", "pexpire", "persist"], "touch"),
    (&["call", "exec", "fcall", "eval"], "invoke"),
    (&["push", "deploy", "check", "test", "new", "extension", "extensions"], "ext"),
    (&["user", "users", "account", "tenants"], "tenant"),
    (&["tables"], "table"),
    (&["page", "web", "dashboard", "console"], "ui"),
    (&["benchmark", "measure"], "bench"),
    (&["htop", "ps", "processes"], "top"),
    (&["slowlog"], "slow"),
    (&["dump", "save"], "export"),
    (&["load-file", "restore-file", "migrate"], "import"),
];

/// Adds a suggestion to the error of an unknown command: its synonym instead of the most similar name.
fn suggest_command(mut error: clap::Error) -> clap::Error {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let Some(ContextValue::String(text_of_error)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    let meant: Vec<String> = COMMAND_SYNONYMS
        .iter()
        .filter(|(names, _)| names.contains(&text_of_error.to_lowercase().as_str()))
        .map(|(_, command)| (*command).to_owned())
        .collect();
    // In a group of commands, such as `sandstorm tenant rm`, the words mean something else.
    let usage = error.get(ContextKind::Usage).map(ToString::to_string).unwrap_or_default();
    if usage.contains("sandstorm [OPTIONS]") && !meant.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(meant));
    }
    error
}

/// Help goes to standard output; a command line that cannot be parsed is an error like any other, with status 2.
fn usage_error(error: clap::Error) -> ExitCode {
    if !error.use_stderr() || !std::env::args_os().any(|argument| argument == "--json") {
        // There is no stream left to report the error to.
        let _closed = error.print();
        return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
    }
    let text = error.to_string();
    let text_of_error = text.trim_start_matches("error: ").split("\n\n").next().unwrap_or_default();
    let message: Vec<&str> = text_of_error.split_whitespace().collect();
    let failure = CliError::new(message.join(" ")).hint("--help shows what there is").code("usage");
    OutputPrinter { json: true }.fail(&failure);
    ExitCode::from(USAGE)
}

fn run(cli: CommandLine, out: &OutputPrinter) -> Result<(), CliError> {
    let session = || CliSession::new(&cli.global);
    match cli.command {
        CliCommand::Serve(args) => serve::serve(&args, cli.global.state.as_deref(), out),
        CliCommand::Backup(command) => backup::run(command, cli.global.state.as_deref(), out),
        CliCommand::Log(command) => log::run(command, session, cli.global.state.as_deref(), out),
        CliCommand::Demo => demo::demo(out),
        CliCommand::Bench(args) => bench::bench(&args, out),
        CliCommand::Load(args) => load::load(&session(), &args, out),
        CliCommand::Stop(args) => stop::stop(&session(), &args, out),
        CliCommand::Health => serve::health(&session(), out),
        CliCommand::Token(command) => token::run(session, &command, out),
        CliCommand::Operator(command) => token::operator(&session(), &command, out),
        CliCommand::Tenant(command) => tenant::run(&session(), command, out),
        CliCommand::Table(command) => table::run(&session(), command, out),
        CliCommand::Cluster(command) => cluster::run(session, &command, out),
        CliCommand::Grant(command) => grant::run(&session(), command, out),
        CliCommand::Export(args) => export::export(&session(), &args, out),
        CliCommand::Import(args) => import::import(&session(), &args, out),
        CliCommand::Catalogue(command) => catalogue::run(&session(), command, out),
        CliCommand::Trigger(command) => trigger::run(&session(), command, out),
        CliCommand::Secret(command) => secret::run(&session(), command, out),
        CliCommand::Put(args) => data::put(&session(), &args, out),
        CliCommand::Get(args) => data::get(&session(), &args, out),
        CliCommand::Range(args) => data::range(&session(), &args, out),
        CliCommand::Count(args) => positions::count(&session(), &args, out),
        CliCommand::Rank(args) => positions::rank(&session(), &args, out),
        CliCommand::Nth(args) => positions::nth(&session(), &args, out),
        CliCommand::Ttl(args) => expiry::ttl(&session(), &args, out),
        CliCommand::Touch(args) => expiry::touch(&session(), &args, out),
        CliCommand::Del(args) => data::del(&session(), &args, out),
        CliCommand::Incr(args) => data::incr(&session(), &args, out),
        CliCommand::Transaction(args) => transaction::run(&session(), &args, out),
        CliCommand::Ext(command) => ext::run(session, command, out),
        CliCommand::Invoke(args) => invoke::run(&session(), &args, out),
        CliCommand::Shell => shell::run(&cli.global, out),
        CliCommand::Doctor(args) if args.live => doctor::live::run(&session(), out),
        CliCommand::Doctor(args) => doctor::doctor(&args, out),
        CliCommand::Stat(args) => stat::stat(&session(), &args, out),
        CliCommand::Top(args) => top::run(&session(), &args, out),
        CliCommand::Events(args) => events::run(&session(), &args, out),
        CliCommand::Changes(args) => changes::run(&session(), &args, out),
        CliCommand::Hot(args) => hot::run(&session(), &args, out),
        CliCommand::Heat(args) => heat::heat(&session(), &args, out),
        CliCommand::Big(args) => heat::big(&session(), &args, out),
        CliCommand::History(args) => history::run(&session(), &args, out),
        CliCommand::Slow(args) => slow::run(&session(), &args, out),
        CliCommand::Explain(args) => slow::explain(&session(), &args, out),
        CliCommand::Ui(args) => ui::run(&session(), &args, out),
        CliCommand::Kills(args) => kills::run(&session(), &args, out),
        CliCommand::Builder(command) => builder::run(&cli.global, command, out),
        CliCommand::Completions { shell } => completions::run(shell),
        CliCommand::Man(args) => man::run(&args, out),
    }
}
