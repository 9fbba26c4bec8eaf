//! The figures of this server alone: calls compared with plain gets, chains, sealed sessions, runaway calls.

use sandstorm_client::Sealing;
use sandstorm_client::control::TableMode;
use sandstorm_client::load::{Class, Data, Mix, Pace, TenantLoad, fill};
use sandstorm_extension::limits::SLICE_US;

use super::measure::{
    FigureFn, LoadMeasurement, MeasuredSide, P50_US, P99_US, THOUSAND_PER_S, measure_interleaved, row, run_checked,
    run_single_class,
};
use super::report::{ExperimentFindings, RatioResult, RatioTarget, ReportTable, RoundSpread};
use super::{BenchArgs, bench_server};
use crate::local_server::{BAD, CHAIN, ExampleExtension, GET, LocalServer, LocalTenant};
use sandstorm_terminal::output::CliError;

/// Records of the tenant with the runaway code.
const MALLORYS_RECORDS: u64 = 10_000;
/// Seconds of one measurement, and rounds.
const SECONDS: f64 = 1.0;
const ROUNDS: usize = 5;

/// A tenant with records, and a server for it.
pub(super) struct SingleTenantSetup<'a> {
    args: &'a BenchArgs,
    server: LocalServer,
    alice: LocalTenant,
}

impl SingleTenantSetup<'_> {
    pub(super) fn start<'a>(
        args: &'a BenchArgs,
        examples: &[&ExampleExtension],
        mix: &Mix,
    ) -> Result<SingleTenantSetup<'a>, CliError> {
        let server = bench_server::start_bench_server(1, |_| {})?;
        let alice = server.tenant("alice", "t", TableMode::Store)?;
        for example in examples {
            server.push("alice", example)?;
        }
        let alone = SingleTenantSetup { args, server, alice };
        let load = alone.load(mix.clone());
        fill(&load.config, &load.data, &mut |_, _| {})?;
        Ok(alone)
    }

    pub(super) fn load(&self, mix: Mix) -> TenantLoad {
        let data = Data::new(self.alice.table, self.args.records());
        TenantLoad::new("alice", self.server.client(&self.alice), data, mix)
    }

    pub(super) fn server(&self) -> &LocalServer {
        &self.server
    }

    /// Messages under way in measurements of throughput.
    pub(super) fn depth(&self) -> usize {
        self.args.depth
    }

    pub(super) fn alone(&self, class: Class, depth: usize) -> Result<LoadMeasurement, CliError> {
        self.closed(class, depth, self.args.seconds(SECONDS))
    }

    /// Measures one class for so many seconds, with so many messages under way.
    pub(super) fn closed(&self, class: Class, depth: usize, seconds: f64) -> Result<LoadMeasurement, CliError> {
        run_single_class(self.load(Mix::only(class)).pace(Pace::Closed { depth }), class, seconds)
    }

    /// Measures one class for so many seconds, sent so often whether answers come or not.
    pub(super) fn open(&self, class: Class, per_s: f64, seconds: f64) -> Result<LoadMeasurement, CliError> {
        run_single_class(self.load(Mix::only(class)).pace(Pace::per_second(per_s)), class, seconds)
    }

    fn rounds(&self) -> usize {
        self.args.rounds(ROUNDS)
    }
}

/// Throughput and latency of all sides.
pub(super) fn table_of(title: &str, sides: &[MeasuredSide]) -> ReportTable {
    let figures: [(&str, FigureFn); 3] = [("thousand/s", THOUSAND_PER_S), ("p50, us", P50_US), ("p99, us", P99_US)];
    let mut table = ReportTable::new(title, "", figures.map(|(name, _)| name));
    for side in sides {
        table.row(&side.name, figures.map(|(_, figure)| side.spread(figure)).into());
    }
    table
}

/// The ratio of the first two sides.
fn ratio(what: &str, unit: &'static str, sides: &[MeasuredSide], figure: FigureFn, target: RatioTarget) -> RatioResult {
    let spread =
        |index: usize| sides.get(index).map_or(RoundSpread::of(Vec::new()), |side: &MeasuredSide| side.spread(figure));
    RatioResult::of(what, unit, [&spread(0), &spread(1)], Some(target))
}

pub(super) fn invoke(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let bench = SingleTenantSetup::start(args, &[&GET], &Mix::only(Class::Get))?;
    let depth = args.depth;
    let about = format!("Plain gets, and calls of an extension that does one get, {depth} messages under way.");
    let mut findings = ExperimentFindings::new("invoke", about);
    let classes = [Class::InvokeGet, Class::Get];
    let names = ["calls of one get", "plain gets"];
    let sides = measure_interleaved(bench.rounds(), &names, |side| bench.alone(classes[side], depth))?;
    findings.tables.push(table_of("", &sides));
    let what = format!("calls of one get / plain gets, depth {depth}");
    findings.ratios.push(ratio(&what, "thousand/s", &sides, THOUSAND_PER_S, RatioTarget::AtLeast(0.9)));
    Ok(findings)
}

pub(super) fn chain(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let bench = SingleTenantSetup::start(args, &[&CHAIN], &"get,chain".parse().map_err(CliError::new)?)?;
    let mut findings =
        ExperimentFindings::new("chain", "Eight records, each named by the one before: by gets, and in one call.");
    let classes = [Class::ChainGets, Class::Chain];
    let names = ["eight gets, one after another", "one call of a chain of 8"];
    let sides = measure_interleaved(bench.rounds(), &names, |side| bench.alone(classes[side], 1))?;
    findings.tables.push(table_of("One at a time", &sides));
    let what = "eight gets / one call of a chain of 8, p50 at depth 1";
    findings.ratios.push(ratio(what, "us", &sides, P50_US, RatioTarget::AtLeast(4.0)));
    Ok(findings)
}

pub(super) fn sealed(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let bench = SingleTenantSetup::start(args, &[], &Mix::only(Class::Get))?;
    let mut findings = ExperimentFindings::new("sealed", "Gets in sealed sessions (AES-GCM) beside plain ones.");
    for depth in [1, args.depth] {
        let names = ["sealed", "plain"];
        let sides = measure_interleaved(bench.rounds(), &names, |side| {
            let mut load = bench.load(Mix::only(Class::Get)).pace(Pace::Closed { depth });
            load.config.sealing = [Sealing::Always, Sealing::Never][side];
            run_single_class(load, Class::Get, args.seconds(SECONDS))
        })?;
        findings.tables.push(table_of(&format!("{depth} under way"), &sides));
        let what = format!("sealed gets / plain ones, depth {depth}");
        findings.ratios.push(ratio(&what, "thousand/s", &sides, THOUSAND_PER_S, RatioTarget::AtLeast(0.8)));
    }
    Ok(findings)
}

/// A second tenant beside the measured one, with `get` and `bad`.
pub(super) struct TwoTenantSetup {
    server: LocalServer,
    alice: LocalTenant,
    mallory: LocalTenant,
    records: u64,
}

impl TwoTenantSetup {
    pub(super) fn start(args: &BenchArgs) -> Result<TwoTenantSetup, CliError> {
        let SingleTenantSetup { server, alice, .. } = SingleTenantSetup::start(args, &[&GET], &Mix::only(Class::Get))?;
        let mallory = server.tenant("mallory", "t", TableMode::Store)?;
        server.push("mallory", &GET)?;
        server.push("mallory", &BAD)?;
        fill(&server.client(&mallory), &Data::new(mallory.table, MALLORYS_RECORDS), &mut |_, _| {})?;
        Ok(TwoTenantSetup { server, alice, mallory, records: args.records() })
    }

    fn loads(&self) -> [TenantLoad; 2] {
        [("alice", &self.alice, self.records), ("mallory", &self.mallory, MALLORYS_RECORDS)].map(
            |(name, tenant, records)| {
                let data = Data::new(tenant.table, records);
                TenantLoad::new(name, self.server.client(tenant), data, Mix::only(Class::InvokeGet))
            },
        )
    }

    /// A third of the server's throughput for one of them.
    pub(super) fn one_third_rate(&self, args: &BenchArgs) -> Result<f64, CliError> {
        let [alice, _] = self.loads();
        let most =
            run_single_class(alice.pace(Pace::Closed { depth: args.depth }), Class::InvokeGet, args.seconds(SECONDS))?;
        Ok(most.rate()?.min(MAX_CALLS_PER_S) / 3.0)
    }

    /// Measures Alice's calls while Mallory calls as often; one in `every` of Mallory's calls is endless. Also returns
    /// the number of those.
    pub(super) fn measure(&self, rate: f64, every: u64, seconds: f64) -> Result<(LoadMeasurement, u64), CliError> {
        let [alice, mallory] = self.loads().map(|load| load.pace(Pace::per_second(rate)));
        let report = run_checked(vec![alice, mallory.bad_every(every)], seconds)?;
        let bad = report.row("mallory", Class::Bad).map_or(0, |row| row.count);
        Ok((row(&report, "alice", Class::InvokeGet), bad))
    }
}

/// Calls a second beyond which the generator would be the bottleneck.
const MAX_CALLS_PER_S: f64 = 300_000.0;

pub(super) fn runaway(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let bench = TwoTenantSetup::start(args)?;
    let rate = bench.one_third_rate(args)?;
    let about = format!(
        "Two tenants call an extension that does one get, {rate:.0} times a second each; one in so many of the other \
         one's calls never ends, and is ended by the server."
    );
    let mut findings = ExperimentFindings::new("runaway", about);
    let every = [100_000, 0, 1_000];
    let names = ["beside one endless call in 100,000", "beside none", "beside one endless call in 1,000"];
    let seconds = args.seconds(SECONDS);
    let sides =
        measure_interleaved(args.rounds(ROUNDS), &names, |side| Ok(bench.measure(rate, every[side], seconds)?.0))?;
    findings.tables.push(table_of("The tenant whose calls end", &sides));
    let what = "p99 beside one endless call in 100,000 / beside none";
    findings.ratios.push(ratio(what, "us", &sides, P99_US, RatioTarget::AtMost(2.0)));
    let often = sides.get(2).map_or(RoundSpread::of(Vec::new()), |side| side.spread(P99_US));
    let slice = RoundSpread::of(vec![SLICE_US as f64; often.rounds.len()]);
    let what = "p99 beside one endless call in 1,000 / the budget of a slice";
    findings.ratios.push(RatioResult::of(what, "us", [&often, &slice], Some(RatioTarget::AtMost(2.0))));
    Ok(findings)
}
