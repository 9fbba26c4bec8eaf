//! The first figures of this server alone: calls against plain gets, chains, sealed sessions, runaways.

use sandstorm_client::Sealing;
use sandstorm_client::control::TableMode;
use sandstorm_client::load::{Class, Data, Mix, Pace, TenantLoad, fill};
use sandstorm_extension::limits::SLICE_US;

use super::measure::{Figure, Measured, P50_US, P99_US, Side, THOUSAND_PER_S, alone, by_turns, row, run_well};
use super::report::{Findings, Ratio, Spread, Table, Target};
use super::{BenchArgs, stage};
use crate::cli::local::{BAD, CHAIN, Example, GET, LocalServer, LocalTenant};
use crate::cli::output::Failure;

/// Records of the tenant whose code runs away.
const MALLORYS_RECORDS: u64 = 10_000;
/// Seconds of one measurement, and rounds.
const SECONDS: f64 = 1.0;
const ROUNDS: usize = 5;

/// A tenant with records, and a server for it.
pub(super) struct Alone<'a> {
    args: &'a BenchArgs,
    server: LocalServer,
    alice: LocalTenant,
}

impl Alone<'_> {
    pub(super) fn start<'a>(args: &'a BenchArgs, examples: &[&Example], mix: &Mix) -> Result<Alone<'a>, Failure> {
        let server = stage::server(1, |_| {})?;
        let alice = server.tenant("alice", "t", TableMode::Store)?;
        for example in examples {
            server.push("alice", example)?;
        }
        let alone = Alone { args, server, alice };
        let load = alone.load(mix.clone());
        fill(&load.config, &load.data, &mut |_, _| {})?;
        Ok(alone)
    }

    pub(super) fn load(&self, mix: Mix) -> TenantLoad {
        let data = Data::new(self.alice.table, self.args.records());
        TenantLoad::new("alice", self.server.client(&self.alice), data, mix)
    }

    pub(super) fn alone(&self, class: Class, depth: usize) -> Result<Measured, Failure> {
        let load = self.load(Mix::only(class)).pace(Pace::Closed { depth });
        alone(load, class, self.args.seconds(SECONDS))
    }

    fn rounds(&self) -> usize {
        self.args.rounds(ROUNDS)
    }
}

/// Throughput and latency of all sides.
pub(super) fn table_of(title: &str, sides: &[Side]) -> Table {
    let figures: [(&str, Figure); 3] = [("thousand/s", THOUSAND_PER_S), ("p50, us", P50_US), ("p99, us", P99_US)];
    let mut table = Table::new(title, "", figures.map(|(name, _)| name));
    for side in sides {
        table.row(&side.name, figures.map(|(_, figure)| side.spread(figure)).into());
    }
    table
}

/// The ratio of the first two sides.
fn ratio(what: &str, unit: &'static str, sides: &[Side], figure: Figure, target: Target) -> Ratio {
    let spread = |index: usize| sides.get(index).map_or(Spread::of(Vec::new()), |side: &Side| side.spread(figure));
    Ratio::of(what, unit, [&spread(0), &spread(1)], Some(target))
}

pub(super) fn invoke(args: &BenchArgs) -> Result<Findings, Failure> {
    let bench = Alone::start(args, &[&GET], &Mix::only(Class::Get))?;
    let depth = args.depth;
    let about = format!("Plain gets, and calls of an extension that does one get, {depth} messages under way.");
    let mut findings = Findings::new("invoke", about);
    let classes = [Class::InvokeGet, Class::Get];
    let names = ["calls of one get", "plain gets"];
    let sides = by_turns(bench.rounds(), &names, |side| bench.alone(classes[side], depth))?;
    findings.tables.push(table_of("", &sides));
    let what = format!("calls of one get / plain gets, depth {depth}");
    findings.ratios.push(ratio(&what, "thousand/s", &sides, THOUSAND_PER_S, Target::AtLeast(0.9)));
    Ok(findings)
}

pub(super) fn chain(args: &BenchArgs) -> Result<Findings, Failure> {
    let bench = Alone::start(args, &[&CHAIN], &"get,chain".parse().map_err(Failure::new)?)?;
    let mut findings = Findings::new("chain", "Eight records, each named by the one before: by gets, and in one call.");
    let classes = [Class::ChainGets, Class::Chain];
    let names = ["eight gets, one after another", "one call of a chain of 8"];
    let sides = by_turns(bench.rounds(), &names, |side| bench.alone(classes[side], 1))?;
    findings.tables.push(table_of("One at a time", &sides));
    let what = "eight gets / one call of a chain of 8, p50 at depth 1";
    findings.ratios.push(ratio(what, "us", &sides, P50_US, Target::AtLeast(4.0)));
    Ok(findings)
}

pub(super) fn sealed(args: &BenchArgs) -> Result<Findings, Failure> {
    let bench = Alone::start(args, &[], &Mix::only(Class::Get))?;
    let mut findings = Findings::new("sealed", "Gets in sealed sessions (AES-GCM) beside plain ones.");
    for depth in [1, args.depth] {
        let names = ["sealed", "plain"];
        let sides = by_turns(bench.rounds(), &names, |side| {
            let mut load = bench.load(Mix::only(Class::Get)).pace(Pace::Closed { depth });
            load.config.sealing = [Sealing::Always, Sealing::Never][side];
            alone(load, Class::Get, args.seconds(SECONDS))
        })?;
        findings.tables.push(table_of(&format!("{depth} under way"), &sides));
        let what = format!("sealed gets / plain ones, depth {depth}");
        findings.ratios.push(ratio(&what, "thousand/s", &sides, THOUSAND_PER_S, Target::AtLeast(0.8)));
    }
    Ok(findings)
}

/// Another tenant beside the one that is measured: `get` and `bad`.
pub(super) struct Beside {
    server: LocalServer,
    alice: LocalTenant,
    mallory: LocalTenant,
    records: u64,
}

impl Beside {
    pub(super) fn start(args: &BenchArgs) -> Result<Beside, Failure> {
        let Alone { server, alice, .. } = Alone::start(args, &[&GET], &Mix::only(Class::Get))?;
        let mallory = server.tenant("mallory", "t", TableMode::Store)?;
        server.push("mallory", &GET)?;
        server.push("mallory", &BAD)?;
        fill(&server.client(&mallory), &Data::new(mallory.table, MALLORYS_RECORDS), &mut |_, _| {})?;
        Ok(Beside { server, alice, mallory, records: args.records() })
    }

    fn loads(&self) -> [TenantLoad; 2] {
        [("alice", &self.alice, self.records), ("mallory", &self.mallory, MALLORYS_RECORDS)].map(
            |(name, tenant, records)| {
                let data = Data::new(tenant.table, records);
                TenantLoad::new(name, self.server.client(tenant), data, Mix::only(Class::InvokeGet))
            },
        )
    }

    /// A third of what the server does for one of them.
    pub(super) fn third(&self, args: &BenchArgs) -> Result<f64, Failure> {
        let [alice, _] = self.loads();
        let most = alone(alice.pace(Pace::Closed { depth: args.depth }), Class::InvokeGet, args.seconds(SECONDS))?;
        Ok(most.rate()?.min(MOST_BESIDE) / 3.0)
    }

    /// Alice's calls while Mallory calls as often, and one in `every` of Mallory's is endless; and how many those were.
    pub(super) fn measure(&self, rate: f64, every: u64, seconds: f64) -> Result<(Measured, u64), Failure> {
        let [alice, mallory] = self.loads().map(|load| load.pace(Pace::per_second(rate)));
        let report = run_well(vec![alice, mallory.bad_every(every)], seconds)?;
        let bad = report.row("mallory", Class::Bad).map_or(0, |row| row.count);
        Ok((row(&report, "alice", Class::InvokeGet), bad))
    }
}

/// Calls a second beyond which the generator would be what is measured.
const MOST_BESIDE: f64 = 300_000.0;

pub(super) fn runaway(args: &BenchArgs) -> Result<Findings, Failure> {
    let bench = Beside::start(args)?;
    let rate = bench.third(args)?;
    let about = format!(
        "Two tenants call an extension that does one get, {rate:.0} times a second each; one in so many of the other \
         one's calls never ends, and is ended by the server."
    );
    let mut findings = Findings::new("runaway", about);
    let every = [100_000, 0, 1_000];
    let names = ["beside one endless call in 100,000", "beside none", "beside one endless call in 1,000"];
    let seconds = args.seconds(SECONDS);
    let sides = by_turns(args.rounds(ROUNDS), &names, |side| Ok(bench.measure(rate, every[side], seconds)?.0))?;
    findings.tables.push(table_of("The tenant whose calls end", &sides));
    let what = "p99 beside one endless call in 100,000 / beside none";
    findings.ratios.push(ratio(what, "us", &sides, P99_US, Target::AtMost(2.0)));
    let often = sides.get(2).map_or(Spread::of(Vec::new()), |side| side.spread(P99_US));
    let slice = Spread::of(vec![SLICE_US as f64; often.rounds.len()]);
    let what = "p99 beside one endless call in 1,000 / the budget of a slice";
    findings.ratios.push(Ratio::of(what, "us", [&often, &slice], Some(Target::AtMost(2.0))));
    Ok(findings)
}
