//! `sandstorm bench backends`: runs an echo, gets and calls over every driver of this machine. It also measures the
//! server's cost of a get by the size of its value.

mod answer;
mod backend_kind;
mod bare_gets;
mod child_process;
mod core_distance;
mod driver_backend;
#[cfg(feature = "dpdk")]
mod hugepages;
#[cfg(feature = "dpdk")]
mod memif;
#[cfg(not(feature = "dpdk"))]
#[path = "without.rs"]
mod memif;
mod netns;
mod zero_copy_cost;

pub(super) use answer::answer;
pub(super) use zero_copy_cost::zero_copy;

use std::sync::Arc;
use std::time::Instant;

use sandstorm_client::load::peer::{PeerLoad, PeerProtocol, PeerWorkload};
use sandstorm_client::load::{Class, Data, Mix, Pace, TenantLoad};

use self::backend_kind::{BackendKind, DriverBackend};
use self::bare_gets::BareGets;
use self::netns::NetworkNamespace;
use super::echo::{self, ConcurrencyShape, EchoProbe};
use super::measure::{
    FigureFn, LoadMeasurement, MeasuredSide, P50_US, THOUSAND_PER_S, measure_interleaved, run_peer, run_single_class,
};
use super::peer_server::{self, PeerServer};
use super::report::{ExperimentFindings, RatioResult, RatioTarget, ReportTable, RoundSpread};
use super::single_server::table_of;
use super::{BenchArgs, bench_server};
use sandstorm_terminal::output::CliError;

/// Messages in flight.
const DEPTHS: [usize; 2] = [1, 64];
/// Value sizes of the compared gets, bytes, and the number of records of each. The records fit the caches, so that the
/// comparison is between data paths and not between cache lines.
const VALUES: [usize; 2] = [64, 8192];
const VALUE_RECORDS: u64 = 1024;
/// Seconds of one measurement, and rounds.
const SECONDS: f64 = 0.5;
const ROUNDS: usize = 5;
/// Targets for gets over memif: the ratio to memcached's over TCP, one at a time, and to the same driver's echo.
const OF_MEMCACHED: f64 = 30.0;
const OF_ECHO: f64 = 0.5;
/// Target for the CPU time of a get of the larger value over that of the smaller.
const LARGE_TO_SMALL: f64 = 1.5;

/// Gets of a message, where several are batched.
const BATCH: usize = 32;
/// The workload that runs over each driver.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BackendWorkload {
    Echo,
    Bare,
    Get,
    Batch,
    Call,
}

const WORKLOADS: [(BackendWorkload, &str); 5] = [
    (BackendWorkload::Echo, "bare echo"),
    (BackendWorkload::Bare, "gets, asked for as barely"),
    (BackendWorkload::Get, "gets"),
    (BackendWorkload::Batch, "gets, 32 a message"),
    (BackendWorkload::Call, "calls of one get"),
];

/// All servers and drivers of the experiment.
struct BackendsSetup<'a> {
    args: &'a BenchArgs,
    backends: Vec<DriverBackend>,
    memcached: Option<PeerServer>,
    data: Data,
}

pub(super) fn backends(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let about = format!(
        "One server over each driver, in a process of its own whose worker has the first core while all others are stopped; the generator, over \
         the same driver, on the second; rounds by turns. {} records. An echo sends back datagrams of 128 B and does nothing else.",
        args.records()
    );
    let mut findings = ExperimentFindings::new("backends", about);
    let everybody = BackendsSetup::start(args, &mut findings)?;
    let mut apart_ns = vec![core_distance::round_trip_ns()];
    for depth in DEPTHS {
        everybody.compare(depth, &mut findings)?;
        apart_ns.push(core_distance::round_trip_ns());
    }
    everybody.values(&mut findings)?;
    apart_ns.push(core_distance::round_trip_ns());
    findings.notes.extend(core_distance::describe_readings(&apart_ns));
    Ok(findings)
}

impl BackendsSetup<'_> {
    /// Starts what this machine allows, and notes the reason for what it does not.
    fn start<'a>(args: &'a BenchArgs, findings: &mut ExperimentFindings) -> Result<BackendsSetup<'a>, CliError> {
        let lab = NetworkNamespace::new().map(Arc::new);
        let filled = [Data::new(0, args.records()), sized(args, 0), sized(args, 1)];
        let (mut backends, mut memifs) = (Vec::new(), None);
        for kind in BackendKind::named(args.driver.as_deref().unwrap_or(""))? {
            match DriverBackend::start(kind, &lab, &mut memifs, &filled) {
                Ok(backend) => backends.push(backend),
                Err(error) if kind.is_always_available() => return Err(error.about(kind.name())),
                Err(error) => findings.notes.push(format!("skipped: {}: {}", kind.name(), error.message)),
            }
        }
        if backends.is_empty() {
            return Err(CliError::new(format!("no driver could be started; {}", findings.notes.join("; "))));
        }
        let data = Data::new(0, args.records());
        let memcached = match peer_server::is_installed(peer_server::MEMCACHED) {
            Ok(()) => {
                let memcached = PeerServer::memcached()?;
                sandstorm_client::load::peer::fill(&memcached_load(&memcached, &data, PeerWorkload::Set))?;
                Some(memcached)
            }
            Err(error) => {
                findings.notes.push(format!("skipped: memcached: {}", error.message));
                None
            }
        };
        bench_server::avoid_first_processors(1);
        Ok(BackendsSetup { args, backends, memcached, data })
    }

    /// Compares all drivers with so many messages in flight.
    fn compare(&self, depth: usize, findings: &mut ExperimentFindings) -> Result<(), CliError> {
        let seconds = self.args.seconds(SECONDS);
        let kinds = self.backends.iter().flat_map(|backend| WORKLOADS.map(|(what, name)| (backend, what, name)));
        let cells: Vec<(&DriverBackend, BackendWorkload, &str)> = kinds.collect();
        let mut names: Vec<String> =
            cells.iter().map(|(backend, _, what)| format!("{}: {what}", backend.kind.name())).collect();
        names.extend(self.memcached.iter().map(|_| "memcached, TCP, 16 connections, one get at a time".to_owned()));
        let named: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut busy = vec![Vec::new(); cells.len()];
        let sides =
            measure_interleaved(self.args.rounds(ROUNDS), &named, |side| match (cells.get(side), &self.memcached) {
                (Some((backend, BackendWorkload::Echo, _)), _) => {
                    backend.measure(BackendWorkload::Echo, &self.data, depth, seconds)
                }
                (Some((backend, what, _)), _) => {
                    let (measured, _, share) = backend.cost(*what, &self.data, depth, seconds)?;
                    busy[side].push(share);
                    Ok(measured)
                }
                (None, Some(memcached)) => {
                    run_peer(&memcached_load(memcached, &self.data, PeerWorkload::Get(1)), seconds)
                }
                (None, None) => Ok(LoadMeasurement::NOTHING),
            })?;
        let (ours, theirs) = sides.split_at(cells.len());
        findings.tables.extend(drivers_tables(&format!("{depth} under way"), &self.backends, ours));
        findings.tables.push(busy_table(depth, &self.backends, busy));
        if !theirs.is_empty() {
            findings.tables.push(table_of(&format!("A peer, beside {depth} under way"), theirs));
        }
        self.ratios(depth, ours, theirs.first(), findings);
        Ok(())
    }

    fn ratios(
        &self,
        depth: usize,
        ours: &[MeasuredSide],
        theirs: Option<&MeasuredSide>,
        findings: &mut ExperimentFindings,
    ) {
        for (backend, sides) in self.backends.iter().zip(ours.chunks(WORKLOADS.len())) {
            let [echo, bare, gets, batches, calls] = sides else { continue };
            let name = backend.kind.name();
            let is_memif = backend.kind.is_memif() && depth > 1;
            let mut ratio = |what: &str, [one, other]: [&MeasuredSide; 2], (unit, figure): (_, FigureFn), target| {
                let spreads = [one.spread(figure), other.spread(figure)];
                let what = format!("{name}, {depth} under way: {what}");
                findings.ratios.push(RatioResult::of(what, unit, [&spreads[0], &spreads[1]], target));
            };
            let rate: (_, FigureFn) = ("thousand/s", THOUSAND_PER_S);
            if backend.echo.is_none() {
                // There is nothing to compare with.
            } else if depth == 1 {
                ratio("p50 of gets / of a bare echo", [gets, echo], ("us", P50_US), None);
            } else {
                let target = is_memif.then_some(RatioTarget::AtLeast(OF_ECHO));
                ratio("gets, asked for as barely / bare echo", [bare, echo], rate, target);
                ratio("gets, by the client / bare echo", [gets, echo], rate, target);
                ratio("gets, by the client, 32 a message / bare echo", [batches, echo], rate, target);
            }
            ratio("calls of one get / gets", [calls, gets], rate, None);
            if let (Some(theirs), true) = (theirs, depth > 1) {
                let target = is_memif.then_some(RatioTarget::AtLeast(OF_MEMCACHED));
                ratio("gets, one a message / memcached's over TCP, one at a time", [gets, theirs], rate, target);
                ratio("gets, 32 a message / memcached's over TCP, one at a time", [batches, theirs], rate, target);
            }
        }
    }

    /// Measures the server's cost of a get by the size of its value.
    fn values(&self, findings: &mut ExperimentFindings) -> Result<(), CliError> {
        let [small, large] = VALUES;
        let seconds = self.args.seconds(SECONDS);
        let cells: Vec<(&DriverBackend, usize)> =
            self.backends.iter().flat_map(|backend| [0, 1].map(|size| (backend, size))).collect();
        let names = vec![""; cells.len()];
        let mut costs = vec![Vec::new(); cells.len()];
        let sides = measure_interleaved(self.args.rounds(ROUNDS), &names, |side| {
            let (backend, size) = cells[side];
            let (measured, cost_ns, _) =
                backend.cost(BackendWorkload::Get, &sized(self.args, size), DEPTHS[1], seconds)?;
            costs[side].push(cost_ns);
            Ok(measured)
        })?;
        let columns = [
            format!("server's ns a get, {small} B"),
            format!("the same, {large} B"),
            format!("thousand gets/s, {small} B"),
            format!("the same, {large} B"),
        ];
        let title = format!("Values of {small} B and {large} B, {} under way", DEPTHS[1]);
        let mut table = ReportTable::new(title, "driver", columns);
        for ((backend, costs), sides) in self.backends.iter().zip(costs.chunks(2)).zip(sides.chunks(2)) {
            let ([small_ns, large_ns], [small_side, large_side]) = (costs, sides) else { continue };
            let (small_ns, large_ns) = (RoundSpread::of(small_ns.clone()), RoundSpread::of(large_ns.clone()));
            let what = format!("{}: the server's time for a get of {large} B / of {small} B", backend.kind.name());
            let target = backend.kind.is_memif().then_some(RatioTarget::AtMost(LARGE_TO_SMALL));
            findings.ratios.push(RatioResult::of(what, "ns", [&large_ns, &small_ns], target));
            let rates = [small_side, large_side].map(|side| side.spread(THOUSAND_PER_S));
            table.row(backend.kind.name(), [small_ns, large_ns].into_iter().chain(rates).collect());
        }
        findings.tables.push(table);
        findings.notes.push(
            "The server's time is that of its worker's turns in which there was something to do (`busy_us` of its metrics), since a thread \
             that polls takes all of its core whether it works or not."
                .into(),
        );
        Ok(())
    }
}

/// The records of one size. Each size has its own key length, so that all of them exist at the same time.
fn sized(args: &BenchArgs, size: usize) -> Data {
    let mut data = Data::new(0, args.records().min(VALUE_RECORDS));
    data.key_len += size + 1;
    data.value_len = VALUES[size];
    data
}

fn memcached_load(memcached: &PeerServer, data: &Data, workload: PeerWorkload) -> PeerLoad {
    PeerLoad::new(memcached.address, PeerProtocol::Memcached, workload, data.clone())
}

/// One row for each driver. Drivers without an echo have a table of their own.
fn drivers_tables(title: &str, backends: &[DriverBackend], sides: &[MeasuredSide]) -> Vec<ReportTable> {
    let table = |of: &str, has_echo: bool| {
        let whats = &WORKLOADS[usize::from(!has_echo)..];
        let columns = whats.iter().map(|(_, name)| format!("{name}, thousand/s"));
        let latencies = whats.iter().map(|(_, name)| format!("{name}, p50, us"));
        let mut table = ReportTable::new(title, of, columns.chain(latencies));
        for (backend, sides) in backends.iter().zip(sides.chunks(WORKLOADS.len())) {
            if backend.echo.is_some() == has_echo {
                let of = |figure: FigureFn| sides[usize::from(!has_echo)..].iter().map(move |side| side.spread(figure));
                table.row(backend.kind.name(), of(THOUSAND_PER_S).chain(of(P50_US)).collect());
            }
        }
        table
    };
    let without = backends.iter().any(|backend| backend.echo.is_none());
    std::iter::once(table("driver", true)).chain(without.then(|| table("driver without an echo", false))).collect()
}

/// The part of its core that the server used. The generator could not fill the rest.
fn busy_table(depth: usize, backends: &[DriverBackend], busy: Vec<Vec<f64>>) -> ReportTable {
    let columns = WORKLOADS.iter().skip(1).map(|(_, name)| format!("{name}, %"));
    let mut table = ReportTable::new(format!("{depth} under way: the server's core, busy"), "driver", columns);
    for (backend, busy) in backends.iter().zip(busy.chunks(WORKLOADS.len())) {
        table.row(backend.kind.name(), busy.iter().skip(1).map(|shares| RoundSpread::of(shares.clone())).collect());
    }
    table
}

impl DriverBackend {
    /// Runs one measurement while all other processes are stopped.
    fn measure(
        &self,
        what: BackendWorkload,
        data: &Data,
        depth: usize,
        seconds: f64,
    ) -> Result<LoadMeasurement, CliError> {
        let class = match what {
            BackendWorkload::Echo => {
                let Some(process) = &self.echo else { return Ok(LoadMeasurement::NOTHING) };
                let _awake = process.resume();
                let shape = ConcurrencyShape { name: "", sockets: 1, depth };
                return echo::run_closed_loop(process.address()?, shape, seconds, || {
                    Ok((self.open_to_echo()?, EchoProbe))
                });
            }
            BackendWorkload::Bare => {
                let _awake = self.server.process.resume();
                return self.bare_gets(data, depth, seconds);
            }
            BackendWorkload::Get | BackendWorkload::Batch => Class::Get,
            BackendWorkload::Call => Class::InvokeGet,
        };
        let _awake = self.server.process.resume();
        let data = Data { table: self.server.tenant.table, ..data.clone() };
        let load = TenantLoad::new("bench", self.config()?, data, Mix::only(class));
        let batch = if what == BackendWorkload::Batch { BATCH } else { 1 };
        run_single_class(load.pace(Pace::Closed { depth }).batch(batch), class, seconds)
    }

    /// As [`Self::measure`], with the server's nanoseconds for each record that it read, and the percentage of its core
    /// that it used.
    fn cost(
        &self,
        what: BackendWorkload,
        data: &Data,
        depth: usize,
        seconds: f64,
    ) -> Result<(LoadMeasurement, f64, f64), CliError> {
        let (busy_us, read) = self.server.busy()?;
        let begun = Instant::now();
        let measured = self.measure(what, data, depth, seconds)?;
        let wall_us = begun.elapsed().as_micros() as f64;
        let (busy_after_us, read_after) = self.server.busy()?;
        let busy_us = (busy_after_us - busy_us) as f64;
        Ok((measured, busy_us * 1000.0 / (read_after - read) as f64, 100.0 * busy_us / wall_us))
    }

    /// Gets from a client that is as cheap as the echo's.
    fn bare_gets(&self, data: &Data, depth: usize, seconds: f64) -> Result<LoadMeasurement, CliError> {
        let tenant = &self.server.tenant;
        let (to, shape) = (self.server.process.address()?, ConcurrencyShape { name: "", sockets: 1, depth });
        let open = || {
            let gets = BareGets::new(tenant.id, Data { table: tenant.table, ..data.clone() })?;
            let mut driver = self.open_to_server()?;
            gets.send_hello(to, &tenant.token, &mut driver)?;
            Ok((driver, gets))
        };
        echo::run_closed_loop(to, shape, seconds, open)
    }
}
