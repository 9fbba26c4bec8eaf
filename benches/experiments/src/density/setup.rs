//! The server of the experiment: a group of tenants for each number of tenants and each tier, each tenant with records
//! and libraries of its own.

use std::sync::Arc;
use std::time::Duration;

use sandstorm_client::control::TableMode;
use sandstorm_client::load::{Class, Data, Mix, Pace, Report, Skew, TenantLoad, fill};
use sandstorm_net::{CodePolicy, CodeTier};
use sandstorm_terminal::output::CliError;

use crate::distinct_library::DistinctLibraries;
use crate::local_server::{AGGREGATE, CHAIN, ExampleExtension, GET, LocalServer, LocalTenant};
use crate::measure::{LoadMeasurement, run_crowded, run_loads};
use crate::report::median;
use crate::thread_times::ThreadTimes;
use crate::{BenchArgs, bench_server};

/// Records of all tenants of a number of them together: each has as many as the others.
pub(super) const RECORDS: u64 = 640_000;
/// Hops of a chain, and records of a list that one call sums up.
const HOPS: u32 = 8;
const SUMMED: u32 = 4;
/// Connections of one tenant at most. A tenant alone may have 1,024 calls under way, and a repeated request is one
/// more.
const TENANT_CONNECTIONS: usize = 512;
/// Seconds in which hundreds of tenants call for the first time, before they are measured: each first call finds its
/// code, its table and its memory nowhere near the processor.
const FIRST_CALLS_S: f64 = 1.5;
/// Tenants from which on that is done.
const MANY_TENANTS: usize = 256;

/// Connections and messages under way of all tenants together: the same however many tenants there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadShape {
    pub(super) connections: usize,
    /// Messages under way on each connection.
    pub(super) depth: usize,
    pub(super) counts: &'static [f64],
}

/// What is sent, and in which tier it runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct DensitySide {
    pub(super) name: &'static str,
    pub(super) class: Class,
    pub(super) tier: CodeTier,
}

pub(super) const fn side(name: &'static str, class: Class, tier: CodeTier) -> DensitySide {
    DensitySide { name, class, tier }
}

/// So many tenants of a tier, each with its records and its libraries.
struct TenantGroup {
    tier: CodeTier,
    tenants: Vec<(LocalTenant, Data)>,
}

/// The server, and a group for each number of tenants and each tier.
pub(super) struct DensitySetup {
    pub(super) server: LocalServer,
    groups: Vec<TenantGroup>,
}

impl DensitySetup {
    pub(super) fn start(args: &BenchArgs, shape: LoadShape, sides: &[DensitySide]) -> Result<DensitySetup, CliError> {
        let server = bench_server::start_bench_server(1, |_| {})?;
        let mut setup = DensitySetup { server, groups: Vec::new() };
        let mut libraries = DistinctLibraries::new()?;
        for tier in [CodeTier::Native, CodeTier::Sandboxed] {
            if sides.iter().any(|side| side.tier == tier) {
                for count in shape.counts {
                    let group = setup.group(args, *count as u64, tier, &mut libraries)?;
                    setup.groups.push(group);
                }
            }
        }
        Ok(setup)
    }

    fn group(
        &self,
        args: &BenchArgs,
        count: u64,
        tier: CodeTier,
        libraries: &mut DistinctLibraries,
    ) -> Result<TenantGroup, CliError> {
        let policy = match tier {
            CodeTier::Native => CodePolicy::Native,
            CodeTier::Sandboxed => CodePolicy::Sandboxed,
        };
        let mut tenants = Vec::new();
        for number in 0..count {
            let name = format!("{tier}-{count}-{number}");
            let tenant = self.server.tenant_with_code(&name, "t", TableMode::Store, Some(policy))?;
            for example in [&GET, &CHAIN, &AGGREGATE] as [&ExampleExtension; 3] {
                let extension = Arc::new(libraries.load(example, tier)?);
                let loaded = self.server.directory().load_extension(&*name, extension, "", 0);
                loaded.map_err(|error| CliError::new(error.to_string()))?;
            }
            let mut data = Data::new(tenant.table, (args.records.unwrap_or(RECORDS) / count).max(1));
            (data.links, data.depth) = ((data.records / 4).max(1), HOPS);
            (data.lists, data.list_len) = ((data.records / 4).max(1), SUMMED);
            fill(&self.server.client(&tenant), &data, &mut |_, _| {})?;
            tenants.push((tenant, data));
        }
        Ok(TenantGroup { tier, tenants })
    }

    pub(super) fn loads(&self, count: usize, side: DensitySide, shape: LoadShape) -> Vec<TenantLoad> {
        let group = self.groups.iter().find(|group| group.tier == side.tier && group.tenants.len() == count);
        let connections = (shape.connections / count.max(1)).clamp(1, TENANT_CONNECTIONS);
        let load = |(tenant, data): &(LocalTenant, Data)| {
            let load = TenantLoad::new("tenant", self.server.client(tenant), data.clone(), Mix::only(side.class))
                .pace(Pace::Closed { depth: shape.depth })
                .skew(Skew::Uniform);
            // The data as it was filled, without the chains and lists that the mix would ask for.
            TenantLoad { connections, data: data.clone(), ..load }
        };
        group.into_iter().flat_map(|group| &group.tenants).map(load).collect()
    }

    pub(super) fn measure(
        &self,
        loads: Vec<TenantLoad>,
        exponent: Option<f64>,
        seconds: f64,
    ) -> Result<LoadMeasurement, CliError> {
        if loads.len() >= MANY_TENANTS {
            run_loads(loads.clone(), FIRST_CALLS_S)?;
        }
        let watch = || {
            std::thread::sleep(Duration::from_secs_f64(seconds * 0.4));
            let (before, busy) = (ThreadTimes::read(), self.server.busy_us());
            std::thread::sleep(Duration::from_secs_f64(seconds * 0.7));
            (ThreadTimes::read(), before, self.server.busy_us() - busy)
        };
        let (report, (after, before, busy_us)) = std::thread::scope(|scope| {
            let watch = scope.spawn(watch);
            let report = run_crowded(loads, exponent, seconds)?;
            let watched = watch.join().map_err(|_| CliError::new("the clock's thread has ended"))?;
            Ok::<_, CliError>((report, watched))
        })?;
        let watched_us = seconds * 0.7e6;
        // Of the worker's time on its processor, the part that is not spent looking for work.
        let is_busy = (busy_us as f64 / watched_us).min(1.0);
        let per_operation = |time: Duration| 1e6 * time.as_secs_f64() / (report.per_s * seconds * 0.7);
        let worker_us = per_operation(after.since(&before, "worker-")) * is_busy;
        let watchdog_us = per_operation(after.since(&before, "watchdog"));
        Ok(LoadMeasurement { server_us: worker_us, watchdog_us, ..measurement(&report) })
    }
}

/// The latencies of all tenants' operations together, and those of the tenant that waits longest.
fn measurement(report: &Report) -> LoadMeasurement {
    let all = report.classes.first().map_or(LoadMeasurement::NOTHING, LoadMeasurement::from);
    let mut p99_us: Vec<f64> = report.tenants.iter().map(|tenant| tenant.p99_us).collect();
    let slowest = p99_us.iter().copied().fold(f64::NAN, f64::max);
    LoadMeasurement { per_s: report.per_s, slowest_p99: slowest / median(&mut p99_us), ..all }
}
