//! Comparisons of where the work runs. `crossover` varies the computation of each call; `extensions` covers each of the
//! examples; `interleave` compares calls that wait for their records in turns with calls that wait alone.

use sandstorm_client::control::TableMode;
use sandstorm_client::load::{Class, Data, Mix, Pace, Skew, TenantLoad, fill};

use super::measure::{
    LoadMeasurement, P50_US, ParameterSweep, THOUSAND_PER_S, axis, measure_interleaved, measure_sweep, run_single_class,
};
use super::report::{AxisScale, ExperimentFindings, RatioResult, RatioTarget};
use super::single_server::table_of;
use super::{BenchArgs, bench_server};
use crate::local_server::{
    AGGREGATE, ANALYSIS, AUTH, CHAIN, CHECKSUM, ExampleExtension, LONG, LocalServer, LocalTenant,
};
use sandstorm_terminal::output::CliError;

/// Messages in flight: enough for clients that compute for a while each.
const DEPTH: usize = 256;
/// Seconds of one measurement, and rounds.
const SECONDS: f64 = 0.4;
const ROUNDS: usize = 3;

/// Records of a call where the computation is varied.
const SUMMED: u32 = 4;
/// Rounds of arithmetic for each of these records.
const ROUNDS_OF_ARITHMETIC: [f64; 8] = [1.0, 16.0, 64.0, 256.0, 512.0, 1024.0, 2048.0, 8192.0];
const CALLS: usize = 0;
const MANY_CLIENTS: usize = 1;

/// Links of the chains that `interleave` follows: several hundred megabytes, more than any cache holds.
const LINKS: u64 = 4_000_000;
/// Rounds of `interleave`.
const INTERLEAVE_ROUNDS: usize = 5;
const INTERLEAVE_TARGET: f64 = 3.0;

/// A server with a tenant and its records.
struct PlacementSetup {
    server: LocalServer,
    tenant: LocalTenant,
    data: Data,
}

impl PlacementSetup {
    fn start(server: LocalServer, examples: &[&ExampleExtension], data: Data) -> Result<PlacementSetup, CliError> {
        let tenant = server.tenant("bench", "t", TableMode::Store)?;
        for example in examples {
            server.push("bench", example)?;
        }
        let data = Data { table: tenant.table, ..data };
        fill(&server.client(&tenant), &data, &mut |_, _| {})?;
        Ok(PlacementSetup { server, tenant, data })
    }

    fn load(&self, class: Class) -> TenantLoad {
        let load = TenantLoad::new("bench", self.server.client(&self.tenant), self.data.clone(), Mix::only(class));
        load.pace(Pace::Closed { depth: DEPTH })
    }
}

pub(super) fn crossover(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let mix: Mix = "get,aggregate".parse().map_err(CliError::new)?;
    let data = Data { list_len: SUMMED, ..Data::new(0, args.records()) }.for_mix(&mix);
    let mut setup = PlacementSetup::start(bench_server::start_bench_server(1, |_| {})?, &[&AGGREGATE], data)?;
    let about = format!(
        "Sums over {SUMMED} records that a list names, with ever more rounds of arithmetic for each: as a call, which the server's one worker \
         computes, and by clients that get the list and the records in two round trips. Clients on cores of their own are played: the \
         time that the computing takes here is waited for, with {DEPTH} under way; one client core computes for all."
    );
    let mut findings = ExperimentFindings::new("crossover", about);
    let seconds = args.seconds(SECONDS);
    let names = ["calls", "by gets, clients on cores of their own", "by gets, one client core"];
    let x = axis("rounds of arithmetic of a call", AxisScale::Log);
    let values = ROUNDS_OF_ARITHMETIC.map(|rounds| rounds * f64::from(SUMMED));
    let sweep = measure_sweep(args.rounds(ROUNDS), x, &values, &names, |value, side| {
        setup.data.rounds = (value / f64::from(SUMMED)) as u32;
        match side {
            CALLS => run_single_class(setup.load(Class::Aggregate), Class::Aggregate, seconds),
            MANY_CLIENTS => {
                let takes = setup.data.measure_compute_time(Class::AggregateGets)?;
                run_single_class(setup.load(Class::AggregateGets).client_takes(takes), Class::AggregateGets, seconds)
            }
            _ => run_single_class(setup.load(Class::AggregateGets), Class::AggregateGets, seconds),
        }
    })?;
    sweep.show(&mut findings, "Sums a second", "thousand/s", AxisScale::Log, THOUSAND_PER_S);
    sweep.show(&mut findings, "Median latency of a sum", "p50, us", AxisScale::Log, P50_US);
    for (value, [over, side]) in
        values.iter().flat_map(|value| [[CALLS, MANY_CLIENTS], [CALLS, 2]].map(|of| (value, of)))
    {
        if let (Some(over), Some(side)) = (sweep.side(*value, over), sweep.side(*value, side)) {
            let what = format!("{value} rounds: {} / {}", over.name, side.name);
            let sides = [&over.spread(THOUSAND_PER_S), &side.spread(THOUSAND_PER_S)];
            findings.ratios.push(RatioResult::of(what, "thousand/s", sides, None));
        }
    }
    let takes = |rounds: f64| {
        let data = Data { rounds: rounds as u32, ..setup.data.clone() };
        data.measure_compute_time(Class::AggregateGets).map(|took| took.as_secs_f64() * 1e6)
    };
    let [.., most] = ROUNDS_OF_ARITHMETIC;
    findings.notes.push(format!(
        "{} {} rounds take {:.2} us here.",
        describe_crossover(&sweep),
        most * f64::from(SUMMED),
        takes(most)?
    ));
    Ok(findings)
}

/// Describes the values between which calls stop being faster than clients on cores of their own.
fn describe_crossover(sweep: &ParameterSweep) -> String {
    let ratio = |(value, sides): &(f64, Vec<super::measure::MeasuredSide>)| {
        let of = |side: usize| sides.get(side).map_or(f64::NAN, |side| side.spread(THOUSAND_PER_S).median);
        (*value, of(CALLS) / of(MANY_CLIENTS))
    };
    let ratios: Vec<(f64, f64)> = sweep.at.iter().map(ratio).collect();
    match crossover_point(&ratios) {
        Some(value) => format!(
            "The server does as many by calls as by gets of clients at about {value:.0} rounds of arithmetic a call."
        ),
        None if ratios.iter().all(|(_, ratio)| *ratio > 1.0) => "Calls are faster throughout.".into(),
        None if ratios.iter().all(|(_, ratio)| *ratio < 1.0) => "Gets are faster throughout.".into(),
        None => "Where the lines cross cannot be told.".into(),
    }
}

/// The value at which a ratio falls below 1, interpolated between its two neighbours on logarithmic scales.
fn crossover_point(ratios: &[(f64, f64)]) -> Option<f64> {
    ratios.windows(2).find_map(|pair| {
        let [(from, above), (to, below)] = *pair else { return None };
        let part = above.ln() / (above.ln() - below.ln());
        (above >= 1.0 && below < 1.0).then(|| (from.ln() + part * (to.ln() - from.ln())).exp())
    })
}

pub(super) fn extensions(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let pairs = [
        ("aggregate, 30 records", Class::Aggregate, Class::AggregateGets),
        ("checksum, 30 records of 100 B", Class::Checksum, Class::ChecksumGets),
        ("analysis, 30 rows through a tree of 6 levels", Class::Analysis, Class::AnalysisGets),
        ("auth, 1,000 rounds of hashing", Class::Auth, Class::AuthGets),
        ("long, 128 gets in batches of 8", Class::Long, Class::LongGets),
    ];
    let mix: Mix = "get,aggregate,checksum,analysis,auth,long".parse().map_err(CliError::new)?;
    let examples = [&AGGREGATE, &CHECKSUM, &ANALYSIS, &AUTH, &LONG];
    let setup = PlacementSetup::start(
        bench_server::start_bench_server(1, |_| {})?,
        &examples,
        Data::new(0, args.records()).for_mix(&mix),
    )?;
    let about = format!(
        "What the example extensions do, called, and done by one client core that gets the records and computes the same; {} under way. \
         The client of auth is trusted with the hash, that of analysis has the tree.",
        args.depth
    );
    let mut findings = ExperimentFindings::new("extensions", about);
    let seconds = args.seconds(SECONDS);
    for (name, call, gets) in pairs {
        let classes = [call, gets];
        let sides = measure_interleaved(args.rounds(ROUNDS), &["calls", "the client by gets"], |side| {
            let load = setup.load(classes[side]).pace(Pace::Closed { depth: args.depth });
            run_single_class(load, classes[side], seconds)
        })?;
        findings.tables.push(table_of(name, &sides));
        let spreads = [sides[0].spread(THOUSAND_PER_S), sides[1].spread(THOUSAND_PER_S)];
        let what = format!("{name}: calls / the client by gets");
        findings.ratios.push(RatioResult::of(what, "thousand/s", [&spreads[0], &spreads[1]], None));
    }
    Ok(findings)
}

pub(super) fn interleave(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let links = args.records.unwrap_or(LINKS);
    let start_with = |interleave| {
        let server = bench_server::start_bench_server(1, |overrides| overrides.interleave = Some(interleave))?;
        PlacementSetup::start(server, &[&CHAIN], Data { links, ..Data::new(0, 1) })
    };
    let setup = [start_with(true)?, start_with(false)?];
    let about = format!(
        "Chains of {} among {links} records, uniformly drawn, so that each step misses the caches; {DEPTH} calls under way. A server \
         whose calls give way while their record comes from memory, and one with --no-interleave, by turns.",
        setup[0].data.depth
    );
    let mut findings = ExperimentFindings::new("interleave", about);
    let seconds = args.seconds(SECONDS);
    let names = ["interleaved", "--no-interleave"];
    let sides =
        measure_interleaved(args.rounds(INTERLEAVE_ROUNDS), &names, |side| -> Result<LoadMeasurement, CliError> {
            run_single_class(setup[side].load(Class::Chain).skew(Skew::Uniform), Class::Chain, seconds)
        })?;
    findings.tables.push(table_of("Chains", &sides));
    let spreads = [sides[0].spread(THOUSAND_PER_S), sides[1].spread(THOUSAND_PER_S)];
    let what = format!("chains of {}: interleaved / --no-interleave", setup[0].data.depth);
    let target = Some(RatioTarget::AtLeast(INTERLEAVE_TARGET));
    findings.ratios.push(RatioResult::of(what, "thousand/s", [&spreads[0], &spreads[1]], target));
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crossing_lies_where_the_ratio_is_one() {
        assert_eq!(
            crossover_point(&[(1.0, 4.0), (10.0, 2.0), (100.0, 0.5), (1000.0, 0.1)]).map(f64::round),
            Some(32.0)
        );
        assert_eq!(crossover_point(&[(1.0, 4.0), (10.0, 2.0)]), None);
        assert_eq!(crossover_point(&[(1.0, 0.5), (10.0, 0.2)]), None);
    }
}
