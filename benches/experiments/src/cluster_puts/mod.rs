//! `sandstorm bench cluster-puts`: what a cluster costs a write. A put at a time with copies on the disks of two
//! servers, beside one on one server's disk, and beside NATS JetStream, if that is installed; gets and puts of one
//! server with `--cluster`, beside one without.

mod jet_stream;

use sandstorm_client::load::{Class, Data, Mix, Pace, TenantLoad, fill};
use sandstorm_terminal::output::CliError;

use self::jet_stream::JetStream;
use super::cluster_server::{ClusterFolder, SpawnedServer, await_that, has_etcd};
use super::measure::{
    FigureFn, LoadMeasurement, MeasuredSide, P50_US, P99_US, P999_US, THOUSAND_PER_S, measure_interleaved,
    run_single_class,
};
use super::report::{ExperimentFindings, RatioResult, RatioTarget, ReportTable, RoundSpread};
use super::{BenchArgs, bench_server};

const SERVERS: usize = 3;
/// Records of each table: as many as matter here.
const RECORDS: u64 = 100_000;
/// Seconds of one measurement, and rounds: ratios of nearly one need many.
const SECONDS: f64 = 0.5;
const ROUNDS: usize = 9;
const TABLE: u64 = 1;
const DISK_TABLE: u64 = 2;
const COPIES_TABLES: &str = "{ name = 't', id = 1, durability = 'copies' }";
const OTHER_TABLES: &str =
    "{ name = 't', id = 1, durability = 'none' }, { name = 'disk', id = 2, durability = 'disk' }";
/// Targets: the median of a put with copies, and the rates with `--cluster` over those without.
const PUT_US: f64 = 250.0;
const RATE_RATIO: f64 = 0.97;
/// What a message to JetStream with synced replicas takes over such a put, at least.
const JET_STREAM_RATIO: f64 = 2.5;

fn load(server: &SpawnedServer, table: u64, records: u64, class: Class) -> TenantLoad {
    TenantLoad::new("bench", server.client(), Data::new(table, records), Mix::only(class))
}

fn fill_table(server: &SpawnedServer, table: u64, records: u64) -> Result<(), CliError> {
    fill(&server.client(), &Data::new(table, records), &mut |_, _| {})?;
    Ok(())
}

fn first(servers: &[SpawnedServer]) -> Result<&SpawnedServer, CliError> {
    servers.first().ok_or_else(|| CliError::new("there is no server"))
}

fn table_of(title: &str, sides: &[MeasuredSide]) -> ReportTable {
    let figures: [(&str, FigureFn); 4] =
        [("thousand/s", THOUSAND_PER_S), ("p50, us", P50_US), ("p99, us", P99_US), ("p99.9, us", P999_US)];
    let mut table = ReportTable::new(title, "", figures.map(|(name, _)| name));
    for side in sides {
        table.row(&side.name, figures.map(|(_, figure)| side.spread(figure)).into());
    }
    table
}

/// Puts one at a time: to a table of durability `copies` of three servers, and to one of `disk` of a server alone.
fn puts_one_at_a_time(
    args: &BenchArgs,
    alone: &SpawnedServer,
    findings: &mut ExperimentFindings,
) -> Result<(), CliError> {
    let (records, seconds) = (args.records.unwrap_or(RECORDS), args.seconds(SECONDS));
    let folder = ClusterFolder::start(COPIES_TABLES)?;
    let servers = folder.start_servers(SERVERS, "--no-pin")?;
    let cluster = first(&servers)?;
    await_that("the servers have no copies", || {
        let statuses: Result<Vec<_>, _> = servers.iter().map(SpawnedServer::status).collect();
        let is_copied = |copies: &[_]| !copies.is_empty();
        let confirms = |status: &sandstorm_client::control::ClusterStatus| {
            is_copied(&status.copies.copies) && status.copies.copies.iter().all(|copy| copy.confirms && copy.needed)
        };
        Ok(statuses?.iter().all(confirms))
    })?;
    fill_table(cluster, TABLE, records)?;
    let puts = |server: &SpawnedServer, table: u64| -> Result<LoadMeasurement, CliError> {
        let load = load(server, table, records, Class::Put).pace(Pace::Closed { depth: 1 });
        run_single_class(load, Class::Put, seconds)
    };
    let mut names = vec!["copies: on the disks of two servers", "disk: on one server's disk, without a cluster"];
    let mut jet_stream = match JetStream::start()? {
        Ok(jet_stream) => {
            names.push("NATS JetStream, three replicas, each synced");
            Some(jet_stream)
        }
        Err(why) => {
            findings.notes.push(why);
            None
        }
    };
    let sides = measure_interleaved(args.rounds(ROUNDS), &names, |side| match (side, &mut jet_stream) {
        (0, _) => puts(cluster, TABLE),
        (1, _) | (_, None) => puts(alone, DISK_TABLE),
        (_, Some(jet_stream)) => jet_stream.publish_on(seconds),
    })?;
    findings.tables.push(table_of("A put at a time", &sides));
    findings.ratios.extend(ratios_of_puts(&sides));
    Ok(())
}

fn ratios_of_puts(sides: &[MeasuredSide]) -> Vec<RatioResult> {
    let mut ratios = Vec::new();
    if let [copies, disk, more @ ..] = sides {
        let (copies, disk) = (copies.spread(P50_US), disk.spread(P50_US));
        let most = RoundSpread::of(vec![PUT_US; copies.rounds.len()]);
        let what = format!("a put with copies on two disks / {PUT_US} us, p50");
        let target = Some(RatioTarget::AtMost(1.0));
        ratios.push(RatioResult::of(what, "us", [&copies, &most], target));
        let what = "a put with copies on two disks / on one disk, p50";
        ratios.push(RatioResult::of(what, "us", [&copies, &disk], None));
        for jet_stream in more {
            let (what, target) =
                ("JetStream / a put with copies on two disks, p50", RatioTarget::AtLeast(JET_STREAM_RATIO));
            ratios.push(RatioResult::of(what, "us", [&jet_stream.spread(P50_US), &copies], Some(target)));
        }
    }
    ratios
}

/// Gets and puts of a server of a cluster of one, and of one that belongs to none.
fn rates(args: &BenchArgs, servers: [&SpawnedServer; 2], findings: &mut ExperimentFindings) -> Result<(), CliError> {
    let records = args.records.unwrap_or(RECORDS);
    for server in servers {
        fill_table(server, TABLE, records)?;
    }
    for (class, what) in [(Class::Get, "gets"), (Class::Put, "puts")] {
        let names = ["with --cluster", "without"];
        let sides = measure_interleaved(args.rounds(ROUNDS), &names, |side| {
            let load = load(servers[side], TABLE, records, class).pace(Pace::Closed { depth: args.depth });
            run_single_class(load, class, args.seconds(SECONDS))
        })?;
        findings.tables.push(table_of(&format!("One server, {what}, {} under way", args.depth), &sides));
        if let [with, without] = sides.as_slice() {
            let sides = [&with.spread(THOUSAND_PER_S), &without.spread(THOUSAND_PER_S)];
            let what = format!("{what} of one server with --cluster / without");
            let target = Some(RatioTarget::AtLeast(RATE_RATIO));
            findings.ratios.push(RatioResult::of(what, "thousand/s", sides, target));
        }
    }
    Ok(())
}

pub(super) fn cluster_puts(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let records = args.records.unwrap_or(RECORDS);
    let about = format!(
        "A put at a time to a table of durability `copies`, which waits for the disks of two servers of three on this \
         machine, beside one of durability `disk` of a server alone. Then gets and puts in memory ({} under way) of a \
         server that is a cluster of one, and of one without `--cluster`, each with its worker on the first core, by \
         turns. Tables of {records} records of 30 B + 100 B.",
        args.depth
    );
    let mut findings = ExperimentFindings::new("cluster-puts", about);
    if !has_etcd(&mut findings) {
        return Ok(findings);
    }
    bench_server::reset_affinity()?;
    let folder = ClusterFolder::start(OTHER_TABLES)?;
    let mut alone = folder.server(None, "")?;
    alone.start()?;
    fill_table(&alone, DISK_TABLE, records)?;
    puts_one_at_a_time(args, &alone, &mut findings)?;
    let mut member = folder.server(Some(1), "")?;
    member.start()?;
    await_that("the server owns no slots", || Ok(member.status()?.unowned.is_empty()))?;
    bench_server::avoid_first_processors(1);
    rates(args, [&member, &alone], &mut findings)?;
    Ok(findings)
}
