//! Compares a server process for each tenant, all on the first processor, with one server whose tenants' calls share
//! its process. Both are measured, with the kernel's cost of so many processes.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use sandstorm_client::Config;
use sandstorm_client::control::TableMode;
use sandstorm_client::load::{Class, Data, Mix, Pace, TenantLoad, fill};

use super::super::measure::{
    LoadMeasurement, P99_US, ParameterSweep, THOUSAND_PER_S, axis, measure_sweep, run_checked,
};
use super::super::report::{AxisScale, ExperimentFindings, RatioResult, median};
use super::super::{BenchArgs, bench_server};
use crate::local_server::{GET, LocalServer, LocalTenant};
use sandstorm_terminal::output::CliError;

/// Tenants, and processes for them: the first ones alone in a quick run.
const COUNTS: [f64; 4] = [1.0, 2.0, 4.0, 8.0];
const QUICK_COUNTS: usize = 2;
/// Messages in flight of all tenants together.
const UNDER_WAY: usize = 256;
/// Seconds of one measurement, and rounds.
const SECONDS: f64 = 0.5;
const ROUNDS: usize = 3;
/// The only tenant of each process, and its table.
const TENANT: u32 = 1;
const TABLE: u64 = 1;
const CALLS: usize = 0;
const NAMES: [&str; 2] = ["calls in one process", "a process each, plain gets"];

/// A server in a process of its own; ended when dropped.
struct TenantProcess {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl TenantProcess {
    fn start() -> Result<TenantProcess, CliError> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("server.toml");
        let tenant = format!(
            "[[tenants]]\nname = \"t\"\nid = {TENANT}\nopen = true\ntables = [{{ name = \"t\", id = {TABLE} }}]\n"
        );
        std::fs::write(&file, tenant)?;
        let (first, state) = (bench_server::first_processor().to_string(), folder.path().join("state"));
        let mut command = Command::new("taskset");
        command.args(["-c", &first]).arg(std::env::current_exe()?);
        command.args([
            "serve",
            "--json",
            "--data",
            "127.0.0.1:0",
            "--control",
            "127.0.0.1:0",
            "--workers",
            "1",
            "--code",
            "native",
        ]);
        command.args(["--ephemeral", "--no-builder", "--config"]).arg(&file).arg("--state").arg(state);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let child = child.map_err(|error| CliError::new(format!("cannot start a server under taskset: {error}")))?;
        let mut process = TenantProcess { child, address: ([127, 0, 0, 1], 0).into(), _folder: folder };
        let mut line = String::new();
        if let Some(out) = process.child.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        let reported: Option<serde_json::Value> = serde_json::from_str(&line).ok();
        let address = reported.as_ref().and_then(|reported| reported["data"].as_str()?.parse().ok());
        process.address = address.ok_or_else(|| CliError::new("a server ends at once, or does not say where it is"))?;
        Ok(process)
    }

    fn client(&self) -> Config {
        Config::new(self.address, TENANT)
    }
}

impl Drop for TenantProcess {
    fn drop(&mut self) {
        // It may have ended by itself; nothing of it is needed any more.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Both sides, with their tenants so far.
struct IsolationSetup {
    server: LocalServer,
    tenants: Vec<LocalTenant>,
    processes: Vec<TenantProcess>,
}

impl IsolationSetup {
    fn start() -> Result<IsolationSetup, CliError> {
        Ok(IsolationSetup {
            server: bench_server::start_bench_server(1, |_| {})?,
            tenants: Vec::new(),
            processes: Vec::new(),
        })
    }

    /// Adds tenants until there are so many.
    fn grow(&mut self, count: usize, records: u64) -> Result<(), CliError> {
        while self.tenants.len() < count {
            let name = format!("tenant-{}", self.tenants.len());
            let tenant = self.server.tenant(&name, "t", TableMode::Store)?;
            self.server.push(&name, &GET)?;
            fill(&self.server.client(&tenant), &Data::new(tenant.table, records), &mut |_, _| {})?;
            self.tenants.push(tenant);
            let process = TenantProcess::start()?;
            fill(&process.client(), &Data::new(TABLE, records), &mut |_, _| {})?;
            self.processes.push(process);
        }
        Ok(())
    }

    fn measure(&self, count: usize, side: usize, records: u64, seconds: f64) -> Result<LoadMeasurement, CliError> {
        let depth = (UNDER_WAY / count).max(1);
        let load = |number: usize| {
            let (config, table, class) = match side {
                CALLS => (self.server.client(&self.tenants[number]), self.tenants[number].table, Class::InvokeGet),
                _ => (self.processes[number].client(), TABLE, Class::Get),
            };
            let load = TenantLoad::new("tenant", config, Data::new(table, records), Mix::only(class));
            load.pace(Pace::Closed { depth })
        };
        let report = run_checked((0..count).map(load).collect(), seconds)?;
        let of_tenants = |figure: fn(&sandstorm_client::load::ClassReport) -> f64| {
            let mut all: Vec<f64> = report.tenants.iter().flat_map(|one| &one.rows).map(figure).collect();
            median(&mut all)
        };
        let (p50_us, p99_us) = (of_tenants(|row| row.p50_us), of_tenants(|row| row.p99_us));
        Ok(LoadMeasurement {
            per_s: report.per_s,
            keys_per_s: report.per_s,
            p50_us,
            p99_us,
            ..LoadMeasurement::NOTHING
        })
    }
}

/// Adds the measured results to the computed ones.
pub(super) fn processes(args: &BenchArgs, findings: &mut ExperimentFindings) -> Result<(), CliError> {
    let counts = if args.quick { &COUNTS[..QUICK_COUNTS] } else { &COUNTS[..] };
    let most = counts.last().copied().unwrap_or(1.0);
    let records = (args.records() / most as u64).max(1);
    let mut both = IsolationSetup::start()?;
    both.grow(most as usize, records)?;
    let seconds = args.seconds(SECONDS);
    let x = axis("tenants, run", AxisScale::Log);
    let sweep: ParameterSweep = measure_sweep(args.rounds(ROUNDS), x, counts, &NAMES, |count, side| {
        both.measure(count as usize, side, records, seconds)
    })?;
    sweep.show(findings, "Requests a second, run", "thousand/s", AxisScale::Linear, THOUSAND_PER_S);
    sweep.show(findings, "Tail latency, median of the tenants, run", "p99, us", AxisScale::Log, P99_US);
    for &count in counts {
        let (Some(calls), Some(processes)) = (sweep.side(count, CALLS), sweep.side(count, 1)) else { continue };
        let sides = [&calls.spread(THOUSAND_PER_S), &processes.spread(THOUSAND_PER_S)];
        let what = format!("{count} tenants: calls in one process / a process each");
        findings.ratios.push(RatioResult::of(what, "thousand/s", sides, None));
    }
    findings.notes.push(format!(
        "What was run: {UNDER_WAY} messages under way of all tenants together, {records} records each. A process that has nothing to do spins \
         for a moment before it sleeps, as any server here, and takes that from the others."
    ));
    Ok(())
}
