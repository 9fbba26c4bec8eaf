//! `sandstorm bench spill`: a table with four times more data than memory, beside memcached's extstore: gets by Zipf's
//! law, reads of the disk for a miss, hot gets while the disk is busy, thirty cold records of one call.

use std::time::Duration;

use sandstorm_client::control::{SpillStatus, TableMode, TableSpec, TenantPatch};
use sandstorm_client::load::peer::{self, PeerLoad, PeerProtocol, PeerWorkload};
use sandstorm_client::load::{Class, Data, Mix, Pace, Skew, TenantLoad, fill};
use sandstorm_control::config::parse_listen;
use sandstorm_dialects::Protocol;
use sandstorm_terminal::output::CliError;

use super::measure::{
    FigureFn, MeasuredSide, P50_US, P99_US, P999_US, THOUSAND_PER_S, measure_interleaved, row, run_loads, run_peer,
    run_single_class,
};
use super::peer_server::PeerServer;
use super::report::{ExperimentFindings, RatioResult, RatioTarget, ReportTable, RoundSpread};
use super::{BenchArgs, bench_server};
use crate::local_server::{AGGREGATE, LocalServer, LocalTenant};

/// Bytes of a value: extstore takes those above 512.
const VALUE_BYTES: usize = 1_000;
/// Bytes of a record with its key and overhead, about; the data is so many times larger than the memory.
const RECORD_BYTES: u64 = 1_080;
const TIMES_MEMORY: u64 = 4;
const RECORDS: u64 = 240_000;
/// Memory that memcached needs to work at all, MiB.
const LEAST_MEMCACHED_MIB: u64 = 64;
/// Connections, or messages under way.
const DEPTH: usize = 64;
/// Hot records, and gets of them a second while the disk is busy or not.
const HOT_RECORDS: u64 = 1_000;
const HOT_PER_S: f64 = 5_000.0;
/// Lists of records for calls, and records of one.
const LISTS: u64 = 2_000;
const LISTED: u32 = 30;
/// Seconds of one measurement, and rounds.
const SECONDS: f64 = 1.0;
const ROUNDS: usize = 3;
/// Time that memcached has to move items to its file after each fill, and fills until it has all of them: it drops some
/// of the first two's.
const SETTLE: Duration = Duration::from_secs(1);
const PEER_FILLS: usize = 3;

struct SpillSetup {
    server: LocalServer,
    tenant: LocalTenant,
    large: Data,
    hot: Data,
    memcached: PeerServer,
    _folder: tempfile::TempDir,
}

impl SpillSetup {
    fn start(args: &BenchArgs) -> Result<SpillSetup, CliError> {
        let records = args.records.unwrap_or(RECORDS);
        let memory = (records * RECORD_BYTES / TIMES_MEMORY).max(1 << 20);
        let listen = parse_listen(Protocol::Memcached, "127.0.0.1:0=bench/large").map_err(CliError::new)?;
        let server = bench_server::start_bench_server(1, |overrides| {
            overrides.ephemeral = Some(false);
            overrides.listen = vec![listen];
        })?;
        let tenant = server.tenant("bench", "hot", TableMode::Cache)?;
        let quotas = [("memory_bytes".to_owned(), (memory * 4).max(1 << 30))].into();
        server.control().change_tenant("bench", &TenantPatch { quotas, ..TenantPatch::default() })?;
        let durability = Some(sandstorm_client::control::DurabilityLevel::None);
        let new = TableSpec {
            name: "large".to_owned(),
            mode: TableMode::Spill,
            quota_bytes: Some(memory),
            durability,
            ..TableSpec::default()
        };
        let table = server.control().create_table("bench", &new)?.id;
        server.push("bench", &AGGREGATE)?;
        let large =
            Data { value_len: VALUE_BYTES, lists: LISTS.min(records), list_len: LISTED, ..Data::new(table, records) };
        fill(&server.client(&tenant), &large, &mut |_, _| {})?;
        let hot = Data::new(tenant.table, HOT_RECORDS.min(records));
        fill(&server.client(&tenant), &hot, &mut |_, _| {})?;
        let folder = tempfile::tempdir()?;
        let mib = (memory >> 20).max(LEAST_MEMCACHED_MIB);
        let file_mib = ((records * RECORD_BYTES) >> 20) * 4 + 1_024;
        let memcached = PeerServer::memcached_with_file(&folder.path().join("extstore"), mib, file_mib)?;
        let setup = SpillSetup { server, tenant, large, hot, memcached, _folder: folder };
        for _ in 0..PEER_FILLS {
            peer::fill(&setup.peer(setup.memcached.address, PeerWorkload::Set))?;
            std::thread::sleep(SETTLE);
        }
        Ok(setup)
    }

    fn peer(&self, address: std::net::SocketAddr, workload: PeerWorkload) -> PeerLoad {
        // extstore may have dropped some while it was filled: these count as nothing.
        let data = Data { may_lack: true, lists: 0, ..self.large.clone() };
        PeerLoad { connections: DEPTH, ..PeerLoad::new(address, PeerProtocol::Memcached, workload, data) }
    }

    fn gets(&self, skew: Skew, depth: usize) -> TenantLoad {
        let data = Data { lists: 0, ..self.large.clone() };
        let load = TenantLoad::new("bench", self.server.client(&self.tenant), data, Mix::only(Class::Get));
        load.pace(Pace::Closed { depth }).skew(skew)
    }

    fn spilled(&self) -> Result<SpillStatus, CliError> {
        let table = self.server.control().table("bench", "large")?;
        table.spill.ok_or_else(|| CliError::new("the table has no spill file"))
    }

    /// Gets by Zipf's law, at this server and at memcached.
    fn zipf(&self, args: &BenchArgs) -> Result<Vec<MeasuredSide>, CliError> {
        let own = self.server.listening().first().copied();
        let own = own.ok_or_else(|| CliError::new("the server does not listen where it was asked to"))?;
        let seconds = args.seconds(SECONDS);
        let names = ["sandstorm, own protocol", "sandstorm, memcached's protocol", "memcached, extstore"];
        measure_interleaved(args.rounds(ROUNDS), &names, |side| match side {
            0 => run_single_class(self.gets(Skew::default(), DEPTH), Class::Get, seconds),
            1 => run_peer(&self.peer(own, PeerWorkload::Get(1)), seconds),
            _ => run_peer(&self.peer(self.memcached.address, PeerWorkload::Get(1)), seconds),
        })
    }

    /// Gets of hot records at a steady rate: alone, and beside a client that reads cold ones at the disk's full rate.
    fn hot_beside_cold(&self, args: &BenchArgs) -> Result<Vec<MeasuredSide>, CliError> {
        let seconds = args.seconds(SECONDS);
        let names = ["hot gets, the disk quiet", "hot gets, the disk busy"];
        measure_interleaved(args.rounds(ROUNDS), &names, |side| {
            let mut hot =
                TenantLoad::new("hot", self.server.client(&self.tenant), self.hot.clone(), Mix::only(Class::Get));
            hot.pace = Pace::per_second(HOT_PER_S);
            let loads = if side == 0 { vec![hot] } else { vec![hot, self.gets(Skew::Uniform, DEPTH)] };
            Ok(row(&run_loads(loads, seconds)?, "hot", Class::Get))
        })
    }

    /// One record at a time, and thirty in one call; three of four are cold.
    fn one_and_thirty(&self, args: &BenchArgs) -> Result<Vec<MeasuredSide>, CliError> {
        let seconds = args.seconds(SECONDS);
        let names = ["a get, one at a time", "a call over thirty, one at a time"];
        measure_interleaved(args.rounds(ROUNDS), &names, |side| {
            if side == 0 {
                return run_single_class(self.gets(Skew::Uniform, 1), Class::Get, seconds);
            }
            let mix = Mix::only(Class::Aggregate);
            let load = TenantLoad::new("bench", self.server.client(&self.tenant), self.large.clone(), mix);
            let load = load.pace(Pace::Closed { depth: 1 }).skew(Skew::Uniform);
            // The lists that were filled, not as many as the mix would ask for.
            run_single_class(TenantLoad { data: self.large.clone(), ..load }, Class::Aggregate, seconds)
        })
    }
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

fn ratio(
    what: &str,
    (unit, figure): (&'static str, FigureFn),
    sides: &[MeasuredSide],
    [one, other]: [usize; 2],
    target: RatioTarget,
) -> Option<RatioResult> {
    let spreads = [sides.get(one)?.spread(figure), sides.get(other)?.spread(figure)];
    Some(RatioResult::of(what, unit, [&spreads[0], &spreads[1]], Some(target)))
}

pub(super) fn spill(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let setup = SpillSetup::start(args)?;
    let filled = setup.spilled()?;
    let about = format!(
        "{} records of 30 + {VALUE_BYTES} bytes, {TIMES_MEMORY} times more than memory, by Zipf's law of 0.99, {DEPTH} under way; \
         {} of them are on the disk only, in {} MiB. memcached 1.6's extstore has as much memory, but {LEAST_MEMCACHED_MIB} MiB at least. Both \
         files are in the temporary folder.",
        setup.large.records,
        filled.cold_records,
        filled.file_bytes >> 20,
    );
    let mut findings = ExperimentFindings::new("spill", about);
    let zipf = setup.zipf(args)?;
    let after = setup.spilled()?;
    let hot = setup.hot_beside_cold(args)?;
    let thirty = setup.one_and_thirty(args)?;
    findings.tables.push(table_of("Gets by Zipf's law", &zipf));
    findings.tables.push(table_of("Hot gets", &hot));
    findings.tables.push(table_of("Cold records together", &thirty));
    let reads = after.reads.saturating_sub(filled.reads);
    let read_bytes = after.read_bytes.saturating_sub(filled.read_bytes);
    let waits = after.waits.saturating_sub(filled.waits);
    let per_wait = [RoundSpread::of(vec![reads as f64]), RoundSpread::of(vec![waits as f64])];
    let few = Some(RatioTarget::AtMost(1.0));
    findings.ratios.push(RatioResult::of(
        "reads of the disk / requests that missed",
        "",
        [&per_wait[0], &per_wait[1]],
        few,
    ));
    findings.notes.push(format!(
        "Each read takes one operation of the disk, of {} bytes in the mean; {} failed.",
        read_bytes.checked_div(reads).unwrap_or(0),
        after.read_errors
    ));
    let ratios = [
        ratio(
            "gets, own protocol / extstore",
            ("thousand/s", THOUSAND_PER_S),
            &zipf,
            [0, 2],
            RatioTarget::AtLeast(2.0),
        ),
        ratio(
            "gets, memcached's protocol / extstore",
            ("thousand/s", THOUSAND_PER_S),
            &zipf,
            [1, 2],
            RatioTarget::AtLeast(1.0),
        ),
        ratio("hot gets, the disk busy / quiet, p99", ("us", P99_US), &hot, [1, 0], RatioTarget::AtMost(1.3)),
        ratio("a call over thirty / a get, p50", ("us", P50_US), &thirty, [1, 0], RatioTarget::AtMost(6.0)),
    ];
    findings.ratios.extend(ratios.into_iter().flatten());
    Ok(findings)
}
