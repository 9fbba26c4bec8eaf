//! `sandstorm bench ycsb-t`: transfers between accounts in transactions, by how much they conflict. The sum must stay
//! the same.

use sandstorm_client::control::TableMode;
use sandstorm_client::load::{Class, Mix, Pace, Plan, Skew, TenantLoad, audit, fill};

use super::measure::{LoadMeasurement, P50_US, P99_US, THOUSAND_PER_S, axis, measure_sweep, row, run_checked};
use super::report::{AxisScale, ExperimentFindings, RatioResult, ReportTable, RoundSpread};
use super::{BenchArgs, bench_server};
use crate::local_server::TRANSFER;
use sandstorm_terminal::output::CliError;

/// Exponents of Zipf's law over the accounts; 0: all alike.
const EXPONENTS: [f64; 5] = [0.0, 0.5, 0.99, 1.2, 1.5];
/// Accounts by default.
const ACCOUNTS: u64 = 100_000;
/// Seconds of one measurement, and rounds.
const SECONDS: f64 = 0.5;
const ROUNDS: usize = 3;
const TRANSFERS: usize = 0;
const MIXED: usize = 1;
const NAMES: [&str; 3] = ["transfers", "ycsb-t: 90 balances to 10 transfers", "balances"];

pub(super) fn ycsb_t(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let server = bench_server::start_bench_server(1, |_| {})?;
    let tenant = server.tenant("bench", "t", TableMode::Store)?;
    server.push("bench", &TRANSFER)?;
    let accounts = args.records.unwrap_or(ACCOUNTS).max(2);
    let plan: Plan = "ycsb-t".parse().map_err(CliError::new)?;
    let data = plan.data(tenant.table, accounts);
    fill(&server.client(&tenant), &data, &mut |_, _| {})?;
    let about = format!(
        "{accounts} accounts; a transfer is a call of an extension that reads and writes two of them in a transaction, a balance a plain get. \
         {} messages under way. Which accounts: by Zipf's law with a growing exponent, at 0 all alike. What could not be committed after \
         several tries is answered as a conflict, and counts as answered. After each measurement all accounts are summed up.",
        args.depth
    );
    let mut findings = ExperimentFindings::new("ycsb-t", about);
    let seconds = args.seconds(SECONDS);
    let mut conflicts: Vec<(f64, Vec<f64>)> = EXPONENTS.map(|exponent| (exponent, Vec::new())).into();
    let mixes = [Mix::only(Class::Transfer), plan.mix.clone(), Mix::only(Class::Balance)];
    let x = axis("exponent", AxisScale::Linear);
    let sweep = measure_sweep(
        args.rounds(ROUNDS),
        x,
        &EXPONENTS,
        &NAMES,
        |exponent, side| -> Result<LoadMeasurement, CliError> {
            let skew = if exponent > 0.0 { Skew::Zipf { exponent } } else { Skew::Uniform };
            let load = TenantLoad::new("bench", server.client(&tenant), data.clone(), mixes[side].clone());
            let report = run_checked(vec![load.skew(skew).pace(Pace::Closed { depth: args.depth })], seconds)?;
            let found = audit(&server.client(&tenant), &data)?;
            if !found.is_right() {
                let text = format!("the accounts have {} in all, and had {}: this is a bug", found.sum, found.wanted);
                return Err(CliError::new(text));
            }
            let transfers = report.row("bench", Class::Transfer);
            if let (TRANSFERS, Some(transfers)) = (side, transfers) {
                let lost = transfers.errors.get("conflict").copied().unwrap_or(0) as f64;
                let at = conflicts.iter_mut().filter(|(at, _)| *at == exponent);
                at.for_each(|(_, rounds)| rounds.push(1000.0 * lost / transfers.count.max(1) as f64));
            }
            let measured = row(&report, "bench", if side < 2 { Class::Transfer } else { Class::Balance });
            Ok(LoadMeasurement { per_s: report.per_s, ..measured })
        },
    )?;
    sweep.show(&mut findings, "Throughput", "thousand/s", AxisScale::Log, THOUSAND_PER_S);
    sweep.show(
        &mut findings,
        "Median latency of a transfer (the last: of a balance)",
        "p50, us",
        AxisScale::Log,
        P50_US,
    );
    sweep.show(&mut findings, "Tail latency of the same", "p99, us", AxisScale::Log, P99_US);
    let mut lost = ReportTable::new("Transfers alone", "exponent", ["conflicts of a thousand"]);
    for (exponent, rounds) in conflicts {
        lost.row(exponent.to_string(), vec![RoundSpread::of(rounds)]);
    }
    findings.tables.push(lost);
    for exponent in EXPONENTS {
        let (Some(mixed), Some(balances)) = (sweep.side(exponent, MIXED), sweep.side(exponent, MIXED + 1)) else {
            continue;
        };
        let sides = [&mixed.spread(THOUSAND_PER_S), &balances.spread(THOUSAND_PER_S)];
        let what = format!("ycsb-t / balances alone, exponent {exponent}");
        findings.ratios.push(RatioResult::of(what, "thousand/s", sides, None));
    }
    findings.notes.push("The sum of all accounts stayed what it was after every measurement.".into());
    Ok(findings)
}
