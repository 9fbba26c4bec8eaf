//! `sandstorm bench sizes`: plain gets by the size of the value; `growth`: gets while the table doubles.

use sandstorm_client::control::{TableMode, TableSpec};
use sandstorm_client::load::peer::{self, PeerLoad, PeerProtocol, PeerWorkload};
use sandstorm_client::load::{Class, Data, Mix, Pace, Skew, TenantLoad, fill};

use super::measure::{
    LoadMeasurement, P50_US, P99_US, P999_US, THOUSAND_PER_S, axis, measure_interleaved, measure_sweep, row,
    run_checked, run_peer, run_single_class,
};
use super::peer_server::PeerServer;
use super::report::{AxisScale, ExperimentFindings, RatioResult, RatioTarget};
use super::single_server::table_of;
use super::{BenchArgs, bench_server};
use crate::local_server::LocalTenant;
use sandstorm_terminal::output::CliError;

const SIZES: [f64; 7] = [16.0, 64.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0];
/// Most bytes of all values of one size.
const BYTES: u64 = 64 << 20;
/// Requests in flight on each of the peers' 16 connections, and messages in flight here: the same in all.
const PIPELINE: usize = 4;
const DEPTH: usize = 64;
/// Seconds of one measurement, and rounds.
const SECONDS: f64 = 0.4;
const ROUNDS: usize = 3;

/// Puts and gets a second while a table grows.
const GROWTH_PUTS_PER_S: f64 = 200_000.0;
const GROWTH_GETS_PER_S: f64 = 50_000.0;
const GROWTH_SECONDS: f64 = 1.0;
const GROWTH_ROUNDS: usize = 5;
/// Puts in one message.
const GROWTH_BATCH: usize = 16;
/// Records before the start, as a part of those put during warm-up and measurement: the table doubles at least once.
const THERE_BEFORE: f64 = 0.4;
/// Target for p99.9 while the table doubles, over the quiet p99.9.
const GROWTH_TARGET: f64 = 5.0;

/// The records of one size. Each size has its own key length, so that all of them exist at the same time.
fn data(args: &BenchArgs, table: u64, size: f64) -> Data {
    let mut data = Data::new(table, args.records().min(BYTES / size as u64).max(1));
    data.value_len = size as usize;
    data.key_len += SIZES.iter().position(|one| *one == size).unwrap_or(0);
    data
}

pub(super) fn sizes(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let server = bench_server::start_bench_server(1, |_| {})?;
    let tenant = server.tenant("bench", "t", TableMode::Store)?;
    let (memcached, redis) = (PeerServer::memcached()?, PeerServer::redis()?);
    let peers = [(memcached.address, PeerProtocol::Memcached), (redis.address, PeerProtocol::Redis)];
    let load = |peer: usize, size: f64, workload: PeerWorkload| {
        let (address, speech) = peers[peer];
        PeerLoad { pipeline: PIPELINE, ..PeerLoad::new(address, speech, workload, data(args, tenant.table, size)) }
    };
    for size in SIZES {
        fill(&server.client(&tenant), &data(args, tenant.table, size), &mut |_, _| {})?;
        for peer in 0..peers.len() {
            peer::fill(&load(peer, size, PeerWorkload::Set))?;
        }
    }
    let about = format!(
        "Gets of values of 16 B to 64 KiB, at most {} MiB of them: {DEPTH} messages under way here, 16 connections with {PIPELINE} \
         requests each at the peers, all on the first core.",
        BYTES >> 20
    );
    let mut findings = ExperimentFindings::new("sizes", about);
    let seconds = args.seconds(SECONDS);
    let names = ["sandstorm, own protocol", "memcached, TCP", "Redis, TCP"];
    let x = axis("bytes of a value", AxisScale::Log);
    let sweep = measure_sweep(args.rounds(ROUNDS), x, &SIZES, &names, |size, side| {
        if side > 0 {
            return run_peer(&load(side - 1, size, PeerWorkload::Get(1)), seconds);
        }
        let data = data(args, tenant.table, size);
        let load = TenantLoad::new("bench", server.client(&tenant), data, Mix::only(Class::Get));
        run_single_class(load.pace(Pace::Closed { depth: DEPTH }), Class::Get, seconds)
    })?;
    sweep.show(&mut findings, "Gets a second", "thousand/s", AxisScale::Log, THOUSAND_PER_S);
    sweep.show(&mut findings, "Median latency", "p50, us", AxisScale::Log, P50_US);
    sweep.show(&mut findings, "Tail latency", "p99, us", AxisScale::Log, P99_US);
    Ok(findings)
}

pub(super) fn growth(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let server = bench_server::start_bench_server(1, |_| {})?;
    let tenant = server.tenant("bench", "t", TableMode::Store)?;
    let seconds = args.seconds(GROWTH_SECONDS);
    // With the warm-up time, and as many again for keys that are drawn twice.
    let put = (GROWTH_PUTS_PER_S * seconds * 1.25) as u64;
    let there = ((put as f64 * THERE_BEFORE) as u64).max(1_000);
    let about = format!(
        "{GROWTH_GETS_PER_S:.0} gets/s of {there} records, beside {GROWTH_PUTS_PER_S:.0} puts/s: of new records, so that the table grows to more than \
         twice its size meanwhile, and of those that are there, so that it does not. A table of its own for each."
    );
    let mut findings = ExperimentFindings::new("growth", about);
    let mut table = 0;
    let names = ["while the table doubles", "quiet"];
    let sides = measure_interleaved(args.rounds(GROWTH_ROUNDS), &names, |side| -> Result<LoadMeasurement, CliError> {
        table += 1;
        let name = format!("growing-{table}");
        let create = TableSpec { name: name.clone(), mode: TableMode::Store, ..TableSpec::default() };
        let id = server.control().create_table("bench", &create)?.id;
        let at = LocalTenant { id: tenant.id, token: tenant.token.clone(), table: id };
        fill(&server.client(&at), &Data::new(id, there), &mut |_, _| {})?;
        let reader = TenantLoad::new("reader", server.client(&at), Data::new(id, there), Mix::only(Class::Get));
        let of_writer = if side == 0 { there + 2 * put } else { there };
        let writer = TenantLoad::new("writer", server.client(&at), Data::new(id, of_writer), Mix::only(Class::Put));
        let writer = writer.skew(Skew::Uniform).batch(GROWTH_BATCH).pace(Pace::per_second(GROWTH_PUTS_PER_S));
        let report = run_checked(vec![reader.pace(Pace::per_second(GROWTH_GETS_PER_S)), writer], seconds)?;
        server.control().drop_table("bench", &name)?;
        Ok(row(&report, "reader", Class::Get))
    })?;
    let mut table = table_of("The gets", &sides);
    table.columns.push("p99.9, us".into());
    for (row, side) in table.rows.iter_mut().zip(&sides) {
        row.cells.push(side.spread(P999_US));
    }
    findings.tables.push(table);
    let spreads = [sides[0].spread(P999_US), sides[1].spread(P999_US)];
    let what = "p99.9 of gets while the table doubles / quiet";
    findings.ratios.push(RatioResult::of(
        what,
        "us",
        [&spreads[0], &spreads[1]],
        Some(RatioTarget::AtMost(GROWTH_TARGET)),
    ));
    Ok(findings)
}
