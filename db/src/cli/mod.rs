//! The command line: `sandstorm serve` and everything that one says to a running server.
//!
//! Results go to standard output, for people or, with `--json`, for programs; errors go to standard error as
//! `error: …` and `hint: …`, and end the process with a status that is not zero.

mod bench;
mod bytes;
mod data;
mod demo;
mod ext;
mod local;
mod output;
mod serve;
mod session;
mod stat;
mod table;
mod tenant;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use output::{Failure, Out};
use session::Session;

/// Sandstorm: an in-memory storage server that many tenants share and that runs their Rust next to their data.
#[derive(Debug, Parser)]
#[command(name = "sandstorm", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Clone, Debug, Args)]
struct Global {
    /// Control address of the server
    #[arg(long, global = true, value_name = "HOST:PORT", env = "SANDSTORM_SERVER", default_value = "127.0.0.1:7399")]
    server: String,
    /// The operator's token or a tenant's; left out: the one in the state directory
    #[arg(long, global = true, env = "SANDSTORM_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// The tenant; may be left out when there is only one, or when the token is a tenant's
    #[arg(long, global = true, value_name = "NAME", env = "SANDSTORM_TENANT")]
    tenant: Option<String>,
    /// State directory: the server's secrets, and the tokens of tenants created from here
    #[arg(long, global = true, value_name = "DIR", env = "SANDSTORM_STATE")]
    state: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a server
    Serve(serve::ServeArgs),
    /// The whole story in a minute: a server, two tenants, pushed code, a runaway that is ended
    Demo,
    /// Measure this machine: calls against plain gets, chains, runaways
    Bench(bench::BenchArgs),
    /// Ask the server to stop
    Stop,
    /// Show whether the server runs, and where its ports are
    Health,
    /// Tenants: create, list, show, change, delete, new token
    #[command(subcommand)]
    Tenant(tenant::TenantCommand),
    /// Tables: create, list, show, drop
    #[command(subcommand)]
    Table(table::TableCommand),
    /// Write a record
    Put(data::PutArgs),
    /// Read records
    Get(data::GetArgs),
    /// Delete a record
    Del(data::DelArgs),
    /// Add to a number
    Incr(data::IncrArgs),
    /// Extensions: new, check, test, push, list, show, unload
    #[command(subcommand)]
    Ext(ext::ExtCommand),
    /// Call an extension
    Invoke(data::InvokeArgs),
    /// Counters, one row a second
    Stat(stat::StatArgs),
    /// Invocations that were ended lately
    Kills(stat::KillsArgs),
    /// The builder's process: serves a server on standard input and output
    #[command(hide = true)]
    Builder,
}

/// Parses the command line, runs the command, says what went wrong.
pub(crate) fn main() -> ExitCode {
    let cli = Cli::parse();
    let out = Out { json: cli.global.json };
    match run(cli, &out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            out.fail(&failure);
            ExitCode::from(failure.status)
        }
    }
}

fn run(cli: Cli, out: &Out) -> Result<(), Failure> {
    let session = || Session::new(&cli.global);
    match cli.command {
        Command::Serve(args) => serve::serve(&args, cli.global.state.as_deref(), out),
        Command::Demo => demo::demo(out),
        Command::Bench(args) => bench::bench(&args, out),
        Command::Stop => {
            session().control().shutdown()?;
            out.done("the server stops")
        }
        Command::Health => serve::health(&session(), out),
        Command::Tenant(command) => tenant::run(&session(), command, out),
        Command::Table(command) => table::run(&session(), command, out),
        Command::Put(args) => data::put(&session(), &args, out),
        Command::Get(args) => data::get(&session(), &args, out),
        Command::Del(args) => data::del(&session(), &args, out),
        Command::Incr(args) => data::incr(&session(), &args, out),
        Command::Ext(command) => ext::run(session, command, out),
        Command::Invoke(args) => data::invoke(&session(), &args, out),
        Command::Stat(args) => stat::stat(&session(), &args, out),
        Command::Kills(args) => stat::kills(&session(), &args, out),
        Command::Builder => Err(Failure::new("the builder takes no options").hint("run exactly `sandstorm builder`")),
    }
}
