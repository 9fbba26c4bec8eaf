//! `sandstorm bench observation`: what it costs to look at a server that works, and how well it knows its latency.
//!
//! What is always measured is compared with a program that does not measure it (`cfg(unobserved)`), by
//! `scripts/compare`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use sandstorm_client::control::TableMode;
use sandstorm_client::load::{Class, Mix};
use sandstorm_terminal::output::CliError;

use super::BenchArgs;
use super::measure::{LoadMeasurement, P99_US, RECEIVED_P99_US, THOUSAND_PER_S, measure_interleaved};
use super::report::{ExperimentFindings, RatioResult, RatioTarget, ReportTable, RoundSpread};
use super::single_server::{SingleTenantSetup, table_of};
use crate::local_server::{GET, LocalServer};
use crate::thread_times::ThreadTimes;

/// So many that all of it ends within two minutes.
const ROUNDS: usize = 4;
/// Tenants with a table each that the page shows beside the one that works.
const IDLE_TENANTS: usize = 300;
const VIEWERS: usize = 10;
/// Time between two readings of a page that is looked at, as the page has it.
const PAGE_INTERVAL: Duration = Duration::from_secs(2);
/// Pause between two looks of a viewer whether it is over.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// Seconds of one measurement: a viewer reads at least once.
const SECONDS: f64 = 3.0;
/// Prefix of the names of the threads that answer at the control port.
const CONTROL_THREADS: &str = "control";
/// The server's p99 over that of the client: within 12 %.
const P99_TARGET: f64 = 0.88;
/// Part of the highest rate at which the two are compared, too.
const OPEN_PART: f64 = 0.5;
/// Rate of calls while a profile samples over the rate without.
const PROFILE_TARGET: f64 = 0.98;
/// Part of a processor that answers ten viewers.
const VIEWERS_TARGET: f64 = 0.01;

/// A page that is looked at: reads what the page reads, as often as the page does.
fn view(server: &LocalServer, number: usize, stop: &AtomicBool) -> Result<(), CliError> {
    let address = server.control_address();
    let token = server.operator_token()?;
    let request = format!(
        "GET /v1/overview?show=front HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    );
    let mut next = Instant::now() + PAGE_INTERVAL * number as u32 / VIEWERS as u32;
    while !stop.load(Relaxed) {
        if Instant::now() < next {
            std::thread::sleep(LOOK_PAUSE);
            continue;
        }
        next += PAGE_INTERVAL;
        let (mut stream, mut answer) = (TcpStream::connect(address)?, Vec::new());
        stream.write_all(request.as_bytes())?;
        stream.read_to_end(&mut answer)?;
        if !answer.starts_with(b"HTTP/1.1 200") {
            let line = String::from_utf8_lossy(&answer[..answer.len().min(60)]).into_owned();
            return Err(CliError::new(format!("a viewer was answered {line:?}")));
        }
    }
    Ok(())
}

/// Stops viewers, also where the measurement has failed.
struct StopViewers<'a>(&'a AtomicBool);

impl Drop for StopViewers<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Measures beside so many viewers. Returns also the part of a processor that the control port has taken.
fn beside_viewers(
    bench: &SingleTenantSetup<'_>,
    viewers: usize,
    depth: usize,
    seconds: f64,
) -> Result<(LoadMeasurement, f64), CliError> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopViewers(&stop);
        let stop = &stop;
        let threads: Vec<_> =
            (0..viewers).map(|number| scope.spawn(move || view(bench.server(), number, stop))).collect();
        let (begun, before) = (Instant::now(), ThreadTimes::read());
        let measured = bench.closed(Class::Get, depth, seconds)?;
        let used = ThreadTimes::read().since(&before, CONTROL_THREADS);
        let part = used.as_secs_f64() / begun.elapsed().as_secs_f64();
        stop.store(true, Relaxed);
        for thread in threads {
            thread.join().map_err(|_| CliError::new("a viewer has failed"))??;
        }
        Ok((measured, part))
    })
}

/// Measures calls, while they are profiled or not. The second is the number of samples.
fn calls(bench: &SingleTenantSetup<'_>, is_profiled: bool, seconds: f64) -> Result<(LoadMeasurement, u64), CliError> {
    let depth = bench.depth();
    if !is_profiled {
        return Ok((bench.closed(Class::InvokeGet, depth, seconds)?, 0));
    }
    // It samples longer than is measured: the load begins with a warm-up.
    let sampled_s = (seconds * 1.25).ceil() as u64 + 1;
    std::thread::scope(|scope| {
        let profile = scope.spawn(|| bench.server().control().profile("alice", GET.name, sampled_s));
        let measured = bench.closed(Class::InvokeGet, depth, seconds)?;
        let profile = profile.join().map_err(|_| CliError::new("the profile has failed"))??;
        Ok((measured, profile.samples))
    })
}

/// Measures gets: as many as are answered with so many under way, or so many a second whether they are answered or not.
/// The second is the server's own p99 of them, microseconds.
fn gets_with_own_p99(
    bench: &SingleTenantSetup<'_>,
    per_s: Option<f64>,
    seconds: f64,
) -> Result<(LoadMeasurement, f64), CliError> {
    let control = bench.server().control();
    let before = control.latency(Some("alice"), true)?;
    let measured = match per_s {
        None => bench.closed(Class::Get, bench.depth(), seconds)?,
        Some(per_s) => bench.open(Class::Get, per_s, seconds)?,
    };
    let counted = control.latency(Some("alice"), true)?.since(&before);
    let row = counted.rows.iter().find(|row| row.class == "get" && row.extension.is_none());
    Ok((measured, row.map_or(f64::NAN, |row| row.total.p99_ns as f64 / 1000.0)))
}

/// The server's own p99 beside the client's: with as many under way as the generator keeps, and at a fraction of that
/// rate. The client's lasts until the kernel has received the answer: for how long it waits in the generator's socket
/// is no time of the server's.
fn own_p99(
    args: &BenchArgs,
    bench: &SingleTenantSetup<'_>,
    seconds: f64,
    findings: &mut ExperimentFindings,
) -> Result<(), CliError> {
    let most = bench.closed(Class::Get, bench.depth(), seconds)?.rate()?;
    let paces = [None, Some(most * OPEN_PART)];
    let names = [format!("{} under way", bench.depth()), format!("{:.0} thousand/s", most * OPEN_PART / 1e3)];
    let mut own = [Vec::new(), Vec::new()];
    let sides = measure_interleaved(args.rounds(ROUNDS), &[&names[0], &names[1]], |side| {
        let (measured, own_p99_us) = gets_with_own_p99(bench, paces[side], seconds)?;
        own[side].push(own_p99_us);
        Ok(measured)
    })?;
    for (side, own) in own.into_iter().enumerate() {
        let p99 = [&RoundSpread::of(own), &sides[side].spread(RECEIVED_P99_US)];
        let what = format!("the server's p99 of gets / the client's, {}", names[side]);
        findings.ratios.push(RatioResult::of(&what, "us", p99, Some(RatioTarget::AtLeast(P99_TARGET))));
        let seen_us = sides[side].spread(P99_US).median;
        let name = &names[side];
        findings.notes.push(format!("Until the generator looked at the answers, {name}: a p99 of {seen_us:.1} us."));
    }
    Ok(())
}

pub(super) fn observation(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let mix: Mix = "get,invoke-get".parse().map_err(CliError::new)?;
    let bench = SingleTenantSetup::start(args, &[&GET], &mix)?;
    for number in 0..IDLE_TENANTS {
        bench.server().tenant(&format!("idle-{number}"), "t", TableMode::Store)?;
    }
    let (seconds, depth) = (args.seconds(SECONDS), bench.depth());
    let about = format!(
        "Gets and calls of a tenant, {depth} messages under way, beside {IDLE_TENANTS} tenants that do nothing: while {VIEWERS} pages \
         are open, and while the calls are profiled. The server's own p99 beside the client's."
    );
    let mut findings = ExperimentFindings::new("observation", about);

    let (mut parts, names) = ([Vec::new(), Vec::new()], ["ten pages are open", "nobody looks"]);
    let sides = measure_interleaved(args.rounds(ROUNDS), &names, |side| {
        let (measured, part) = beside_viewers(&bench, if side == 0 { VIEWERS } else { 0 }, depth, seconds)?;
        parts[side].push(part);
        Ok(measured)
    })?;
    findings.tables.push(table_of("Gets", &sides));
    let mut table = ReportTable::new("The control port", "", ["part of a processor"]);
    let [open, none] = parts.map(RoundSpread::of);
    table.row(names[0], vec![open.clone()]);
    table.row(names[1], vec![none]);
    findings.tables.push(table);
    let rates = [&sides[0].spread(THOUSAND_PER_S), &sides[1].spread(THOUSAND_PER_S)];
    findings.ratios.push(RatioResult::of("gets while ten pages are open / nobody looks", "thousand/s", rates, None));
    let whole = RoundSpread::of(vec![1.0; open.rounds.len()]);
    let what = "the control port's part of a processor while ten pages are open";
    findings.ratios.push(RatioResult::of(what, "", [&open, &whole], Some(RatioTarget::AtMost(VIEWERS_TARGET))));

    let (names, mut samples) = (["while they are profiled", "without"], 0);
    let sides = measure_interleaved(args.rounds(ROUNDS), &names, |side| {
        let (measured, more) = calls(&bench, side == 0, seconds)?;
        samples += more;
        Ok(measured)
    })?;
    findings.notes.push(format!("The profiles have {samples} samples."));
    findings.tables.push(table_of("Calls of one get", &sides));
    let rates = [&sides[0].spread(THOUSAND_PER_S), &sides[1].spread(THOUSAND_PER_S)];
    let target = Some(RatioTarget::AtLeast(PROFILE_TARGET));
    findings.ratios.push(RatioResult::of("calls while they are profiled / without", "thousand/s", rates, target));

    own_p99(args, &bench, seconds, &mut findings)?;
    Ok(findings)
}
