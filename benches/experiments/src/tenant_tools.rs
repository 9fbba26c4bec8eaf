//! `sandstorm bench tenant-tools`: what tenants' tools cost. A line below the level that is kept, an extension of the
//! catalogue that is enabled for a thousand tenants, types, a client's transactions, and a rollback.

use std::time::Instant;

use sandstorm_client::blocking::Client;
use sandstorm_client::control::{EnableForMany, EnableSpec, ShareSpec, TableMode};
use sandstorm_net::CodePolicy;
use sandstorm_terminal::output::CliError;

use super::measure::resident_bytes;
use super::report::{ExperimentFindings, RatioResult, RatioTarget, ReportTable, RoundSpread};
use super::tenant_commits::{client_of, commits, rollbacks, source_of, typed_calls};
use super::{BenchArgs, bench_server};
use crate::local_server::{GET, LocalServer};

const ROUNDS: usize = 15;
/// Tenants that a shared extension is enabled for; `--quick`: fewer.
const TENANTS: usize = 1_000;
const QUICK_TENANTS: usize = 20;
/// Lines that one call writes, or does without.
const LINES: u64 = 1_000_000;
/// Nanoseconds that a line below the level that is kept may take.
const LINE_TARGET_NS: f64 = 5.0;
/// Seconds that enabling may take, and KiB of memory for each tenant.
const ENABLE_TARGET_S: f64 = 5.0;
const MEMORY_TARGET_KIB: f64 = 64.0;

/// A sum, with a line of the log for each of its steps or without.
const LINES_SOURCE: &str = "#![no_std]
#![forbid(unsafe_code)]
use core::hint::black_box;
use sandstorm_api::prelude::*;
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (count, with) = args.split_first_chunk::<8>().ok_or(Error::invalid(\"count u64, then a byte for lines\"))?;
    let mut sum = 0u64;
    for number in 0..u64::from_le_bytes(*count) {
        sum = black_box(sum.wrapping_add(number));
        if !with.is_empty() {
            debug!(\"line {} of {}\", number, sum);
        }
    }
    db.reply(&sum.to_le_bytes())
}
";

/// CPU time of a call, nanoseconds for each of its steps.
fn step_ns(client: &Client, has_lines: bool) -> Result<f64, CliError> {
    let arguments = [&LINES.to_le_bytes()[..], if has_lines { b"x" } else { b"" }].concat();
    let failed = |error: &dyn std::fmt::Display| CliError::new(format!("a call of lines: {error}"));
    let measured = client.invoke_measured("lines", 0, &arguments).map_err(|error| failed(&error))?;
    measured.result.map_err(|error| failed(&error))?;
    let cost = measured.cost.ok_or_else(|| CliError::new("the server does not tell what a call costs"))?;
    Ok(cost.cpu_ns as f64 / LINES as f64)
}

/// Lines below the level that is kept, in either tier.
fn lines(args: &BenchArgs, server: &LocalServer, findings: &mut ExperimentFindings) -> Result<(), CliError> {
    let mut table = ReportTable::new("A step of a loop", "", ["ns"]);
    for (tenant, tier, code) in
        [("native", "native", CodePolicy::Native), ("sandboxed", "sandboxed", CodePolicy::Sandboxed)]
    {
        let made = server.tenant_with_code(tenant, "t", TableMode::Store, Some(code))?;
        server.control().push(tenant, "lines", &source_of("lines", 1, LINES_SOURCE))?;
        let client = client_of(server, &made)?;
        // By turns, and the first of each is not counted: its code comes from memory.
        step_ns(&client, true)?;
        step_ns(&client, false)?;
        let (mut with, mut without, mut line) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..args.rounds(ROUNDS) {
            let (one, other) = (step_ns(&client, true)?, step_ns(&client, false)?);
            with.push(one);
            without.push(other);
            line.push((one - other).max(0.0));
        }
        let whole = RoundSpread::of(vec![1.0; line.len()]);
        table.row(format!("{tier}, with a line"), vec![RoundSpread::of(with)]);
        table.row(format!("{tier}, without"), vec![RoundSpread::of(without)]);
        let what = format!("a line below the level that is kept, {tier}, ns");
        let target = Some(RatioTarget::AtMost(LINE_TARGET_NS));
        findings.ratios.push(RatioResult::of(&what, "", [&RoundSpread::of(line), &whole], target));
    }
    findings.tables.push(table);
    Ok(())
}

/// A shared extension that is enabled for many tenants.
fn catalogue(args: &BenchArgs, server: &LocalServer, findings: &mut ExperimentFindings) -> Result<(), CliError> {
    let many = if args.quick { QUICK_TENANTS } else { TENANTS };
    let control = server.control();
    server.tenant_with_code("owner", "t", TableMode::Store, Some(CodePolicy::Sandboxed))?;
    server.push("owner", &GET)?;
    let names: Vec<String> = (0..many).map(|number| format!("user-{number}")).collect();
    for name in &names {
        server.tenant(name, "t", TableMode::Store)?;
    }
    control.share_extension("owner", GET.name, &ShareSpec::default())?;
    let of = EnableSpec { owner: "owner".into(), extension: GET.name.into(), ..EnableSpec::default() };
    // The server is a part of this process.
    let (before, begun) = (resident_bytes()?, Instant::now());
    let enabled = control.enable_for_many(&EnableForMany { of, name: "shared".into(), tenants: Some(names) })?;
    let (took, grown) = (begun.elapsed().as_secs_f64(), (resident_bytes()? - before).max(0.0));
    if enabled.tenants != many as u64 {
        return Err(CliError::new(format!("it was enabled for {} tenants of {many}", enabled.tenants)));
    }
    let (took, kib) = (RoundSpread::of(vec![took]), RoundSpread::of(vec![grown / 1024.0 / many as f64]));
    let mut table = ReportTable::new(format!("A shared extension, enabled for {many} tenants"), "", ["value"]);
    table.row("seconds, for all", vec![took.clone()]);
    table.row("KiB of memory, for each", vec![kib.clone()]);
    findings.tables.push(table);
    let whole = RoundSpread::of(vec![1.0]);
    for (what, value, most) in
        [("seconds to enable it for all", took, ENABLE_TARGET_S), ("KiB for each tenant", kib, MEMORY_TARGET_KIB)]
    {
        findings.ratios.push(RatioResult::of(what, "", [&value, &whole], Some(RatioTarget::AtMost(most))));
    }
    Ok(())
}

pub(super) fn tenant_tools(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let server = bench_server::start_bench_server(1, |_| {})?;
    let about = format!(
        "Calls of a loop of {LINES} steps, each with a `debug!` line below the level that is kept or without, by turns: their CPU time, \
         as the server tells it. An extension that is compiled once and enabled for many tenants by one command. \
         Lookups by types and by bytes that are read by hand, by turns in slices of some milliseconds: the median CPU time \
         of calls that are made alone, and the worker's time for each of many that are made together. \
         Transfers by a client's transaction and by a call. Rollbacks beside three connections."
    );
    let mut findings = ExperimentFindings::new("tenant-tools", about);
    lines(args, &server, &mut findings)?;
    catalogue(args, &server, &mut findings)?;
    typed_calls(args, &server, &mut findings)?;
    commits(args, &server, &mut findings)?;
    rollbacks(args, &server, &mut findings)?;
    Ok(findings)
}
