//! `sandstorm bench isolation`: the cost of a process for each tenant, compared with calls in the server's own process.
//! It is computed from measured parts, and also run.

mod process_per_tenant;
mod switch_partner;

use sandstorm_client::load::{Class, Mix};

pub(super) use self::switch_partner::SwitchPartner;
use super::measure::{THOUSAND_PER_S, measure_interleaved};
use super::report::{
    AxisScale, ExperimentFindings, LinePlot, PlotAxis, PlotPoint, PlotSeries, ReportTable, RoundSpread,
};
use super::single_server::SingleTenantSetup;
use super::{BenchArgs, bench_server};
use crate::local_server::GET;
use sandstorm_terminal::output::CliError;

/// Numbers of tenants whose requests arrive in random order.
const TENANTS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// Switches that are timed together.
const SWITCHES: u32 = 20_000;
/// Rounds of every part.
const ROUNDS: usize = 5;

/// Requests a second where each takes `request_ns`. A request of another tenant than the one before takes a switch as
/// well.
pub(super) fn per_s(request_ns: f64, switch_ns: f64, tenants: u32) -> f64 {
    let others = f64::from(tenants - 1) / f64::from(tenants);
    1e9 / (request_ns + others * switch_ns)
}

pub(super) fn isolation(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let bench = SingleTenantSetup::start(args, &[&GET], &Mix::only(Class::Get))?;
    let about = "Parts, measured: a plain get and a call with one get end to end (closed loop, deep queue), and a switch from one process to another \
        on one core, by futex and by socket pair. From them: what a core could serve if every tenant's code ran in a process of its own, and \
        each request of another tenant than the last cost one switch; and what it serves by calls. The first curves are \
        computed from these; the others were run: a whole server process for each tenant, all on one core.";
    let mut findings = ExperimentFindings::new("isolation", about);
    let rounds = args.rounds(ROUNDS);
    let classes = [Class::Get, Class::InvokeGet];
    let sides = measure_interleaved(rounds, &["plain get", "call with one get"], |side| {
        bench.alone(classes[side], args.depth)
    })?;
    drop(bench);
    let switch = |partner: SwitchPartner| -> Result<RoundSpread, CliError> {
        let switches = (0..rounds).map(|_| partner.switch_ns(SWITCHES));
        Ok(RoundSpread::of(switches.collect::<Result<Vec<f64>, CliError>>()?))
    };
    let (futex, socket) = (switch(SwitchPartner::Futex)?, switch(SwitchPartner::Socket)?);
    let request = |side: usize| {
        let rates = sides[side].spread(THOUSAND_PER_S).rounds;
        RoundSpread::of(rates.into_iter().map(|thousand| 1e6 / thousand).collect())
    };
    let (get, call) = (request(0), request(1));
    let extra = RoundSpread::of(call.rounds.iter().zip(&get.rounds).map(|(call, get)| call - get).collect());
    let mut parts = ReportTable::new("Parts", "", ["ns"]);
    for (name, ns) in [
        ("a plain get, end to end", &get),
        ("a call with one get, end to end", &call),
        ("so the call costs", &extra),
        ("a switch to another process by futex", &futex),
        ("a switch to another process by socket pair", &socket),
    ] {
        parts.row(name, vec![ns.clone()]);
    }
    let arrangements = [
        ("calls in the server's process", call.median, 0.0),
        ("a process each, futex", get.median, futex.median),
        ("a process each, socket pair", get.median, socket.median),
    ];
    let mut rates = ReportTable::new("Thousand requests/s", "tenants", arrangements.map(|(name, ..)| name));
    for tenants in TENANTS {
        let rate = |(_, request, switch): (&str, f64, f64)| RoundSpread::once(per_s(request, switch, tenants) / 1000.0);
        rates.row(tenants.to_string(), arrangements.map(rate).into());
    }
    let series = arrangements.map(|(name, request, switch)| {
        let point = |tenants: &u32| PlotPoint {
            x: f64::from(*tenants),
            y: RoundSpread::once(per_s(request, switch, *tenants) / 1000.0),
        };
        PlotSeries { name: name.into(), points: TENANTS.iter().map(point).collect() }
    });
    findings.tables.extend([parts, rates]);
    findings.plots.push(LinePlot {
        title: "Requests a second, computed from the parts".into(),
        x: PlotAxis { name: "tenants".into(), scale: AxisScale::Log },
        y: PlotAxis { name: "thousand/s".into(), scale: AxisScale::Linear },
        series: series.into(),
    });
    process_per_tenant::processes(args, &mut findings)?;
    Ok(findings)
}

/// Runs a function on a thread that is bound to the first processor.
fn on_first<T: Send>(run: impl FnOnce() -> T + Send) -> Result<T, CliError> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            bench_server::bind_to_first();
            run()
        });
        thread.join().map_err(|_| CliError::new("the measuring thread panicked"))
    })
}
