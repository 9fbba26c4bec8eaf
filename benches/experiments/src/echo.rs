//! `sandstorm bench echo`: plain gets beside a bare echo of datagrams through the same driver. The echo shows the part
//! of the time that the network takes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sandstorm_client::load::{Class, Mix, Pace};
use sandstorm_net::driver::{Burst, DatagramDriver, Outbox, UdpDriver, UdpOptions};
use sandstorm_net::r2p2::DatagramSink;

use super::measure::{LoadMeasurement, P50_US, THOUSAND_PER_S, measure_interleaved, run_single_class};
use super::report::{ExperimentFindings, RatioResult, RatioTarget};
use super::single_server::{SingleTenantSetup, table_of};
use super::{BenchArgs, bench_server};
use sandstorm_terminal::output::CliError;

/// Bytes of an echoed datagram: between the sizes of a get's request and its answer.
const ECHO_BYTES: usize = 128;
/// Offset of the send time in the datagram.
const TIMESTAMP_OFFSET: usize = 8;
/// Time without an answer after which all requests in flight count as lost and are sent again.
const LOSS_TIMEOUT: Duration = Duration::from_millis(100);
/// Seconds of one measurement, and rounds.
const SECONDS: f64 = 0.7;
const ROUNDS: usize = 5;

/// The number of sockets and of requests in flight.
#[derive(Clone, Copy)]
pub(super) struct ConcurrencyShape {
    pub(super) name: &'static str,
    pub(super) sockets: usize,
    /// Requests in flight on each socket.
    pub(super) depth: usize,
}

const ONE: ConcurrencyShape = ConcurrencyShape { name: "one at a time", sockets: 1, depth: 1 };
/// Datagrams of different sockets can be neither coalesced nor segmented. So each call carries one datagram, whatever
/// the kernel offers.
const SINGLE: ConcurrencyShape =
    ConcurrencyShape { name: "64 sockets, one at a time each: one datagram a call", sockets: 64, depth: 1 };
const DEEP: ConcurrencyShape =
    ConcurrencyShape { name: "one socket, 64 under way, offloads on", sockets: 1, depth: 64 };

fn driver() -> Result<UdpDriver, CliError> {
    UdpDriver::bind(([127, 0, 0, 1], 0).into(), UdpOptions::default()).map_err(|error| CliError::new(error.to_string()))
}

/// Sends back every datagram until it is stopped.
pub(super) fn answer(driver: &mut impl DatagramDriver, stopped: &AtomicBool) {
    let (mut burst, mut outbox) = (driver.burst(), Outbox::default());
    while !stopped.load(Relaxed) {
        if driver.receive(&mut burst) == 0 && outbox.is_empty() {
            std::hint::spin_loop();
            continue;
        }
        burst.iter().for_each(|(peer, datagram)| outbox.send(peer, &[datagram]));
        driver.transmit(&mut outbox);
        burst.clear();
    }
}

/// An echo thread on the first processor; ended when dropped.
struct EchoThread {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl EchoThread {
    fn start() -> Result<EchoThread, CliError> {
        let mut driver = driver()?;
        let address = driver.local();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            bench_server::bind_to_first();
            answer(&mut driver, &stopped);
        });
        Ok(EchoThread { address, stop, thread: Some(thread) })
    }
}

impl Drop for EchoThread {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported where it happened.
            let _ended = thread.join();
        }
    }
}

/// The requests of a closed loop, and their answers.
pub(super) trait ProbeProtocol {
    /// Queues one request, sent at this time.
    fn send_get(&mut self, to: SocketAddr, now_ns: u64, outbox: &mut Outbox);

    /// Returns the send time of the request that this datagram answers; `None` if it answers none, or wrongly.
    fn sent_ns(&mut self, datagram: &[u8]) -> Option<u64>;
}

/// Datagrams that come back unchanged.
pub(super) struct EchoProbe;

impl ProbeProtocol for EchoProbe {
    fn send_get(&mut self, to: SocketAddr, now_ns: u64, outbox: &mut Outbox) {
        outbox.send(to, &[&now_ns.to_le_bytes(), &[0; ECHO_BYTES - TIMESTAMP_OFFSET]]);
    }

    fn sent_ns(&mut self, datagram: &[u8]) -> Option<u64> {
        datagram.first_chunk::<TIMESTAMP_OFFSET>().map(|time| u64::from_le_bytes(*time))
    }
}

/// One of the client's sockets.
struct ProbeClient<D, Q> {
    driver: D,
    protocol: Q,
    outbox: Outbox,
    answered: Instant,
    /// It has received an answer. So the path is known, and the full number of requests may be in flight.
    found: bool,
}

impl<D: DatagramDriver, Q: ProbeProtocol> ProbeClient<D, Q> {
    fn send_get(&mut self, to: SocketAddr, begun: Instant, count: usize) {
        let now_ns = begun.elapsed().as_nanos() as u64;
        for _ in 0..count {
            self.protocol.send_get(to, now_ns, &mut self.outbox);
        }
        self.driver.transmit(&mut self.outbox);
    }
}

/// Measures an echo in a closed loop.
fn measure_echo(shape: ConcurrencyShape, seconds: f64) -> Result<LoadMeasurement, CliError> {
    let echo = EchoThread::start()?;
    run_closed_loop(echo.address, shape, seconds, || Ok((driver()?, EchoProbe)))
}

/// Sends requests in a closed loop over drivers of any kind.
pub(super) fn run_closed_loop<D: DatagramDriver, Q: ProbeProtocol>(
    to: SocketAddr,
    shape: ConcurrencyShape,
    seconds: f64,
    open: impl Fn() -> Result<(D, Q), CliError>,
) -> Result<LoadMeasurement, CliError> {
    let begun = Instant::now();
    let asker = |_| {
        let (driver, protocol) = open()?;
        Ok(ProbeClient { driver, protocol, outbox: Outbox::default(), answered: begun, found: false })
    };
    let mut askers = (0..shape.sockets).map(asker).collect::<Result<Vec<ProbeClient<D, Q>>, CliError>>()?;
    let mut burst: Burst = askers[0].driver.burst();
    let (counts_from, ends) = (Duration::from_secs_f64(seconds / 4.0), Duration::from_secs_f64(seconds * 1.25));
    let mut latencies_ns: Vec<u64> = Vec::new();
    askers.iter_mut().for_each(|asker| asker.send_get(to, begun, 1));
    while begun.elapsed() < ends {
        for asker in &mut askers {
            let answered = asker.driver.receive(&mut burst);
            let now = begun.elapsed();
            if answered == 0 {
                if asker.answered.elapsed() > LOSS_TIMEOUT {
                    asker.answered = Instant::now();
                    asker.send_get(to, begun, if asker.found { shape.depth } else { 1 });
                }
                continue;
            }
            for (_, datagram) in burst.iter() {
                let sent_ns = asker.protocol.sent_ns(datagram);
                if now >= counts_from
                    && let Some(sent_ns) = sent_ns
                {
                    latencies_ns.push((now.as_nanos() as u64).saturating_sub(sent_ns));
                }
            }
            burst.clear();
            asker.answered = Instant::now();
            let next = if asker.found { answered } else { shape.depth };
            asker.found = true;
            asker.send_get(to, begun, next);
        }
    }
    latencies_ns.sort_unstable();
    let us = |share: f64| {
        let at = (latencies_ns.len() as f64 * share) as usize;
        latencies_ns.get(at.min(latencies_ns.len().saturating_sub(1))).map_or(f64::NAN, |ns| *ns as f64 / 1000.0)
    };
    let per_s = latencies_ns.len() as f64 / seconds;
    let (p50_us, p99_us, p999_us) = (us(0.5), us(0.99), us(0.999));
    Ok(LoadMeasurement { per_s, keys_per_s: per_s, p50_us, p99_us, p999_us, ..LoadMeasurement::NOTHING })
}

pub(super) fn echo(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let bench = SingleTenantSetup::start(args, &[], &Mix::only(Class::Get))?;
    let about = format!(
        "Plain gets, and datagrams of {ECHO_BYTES} B that a thread on the same core sends back through the same driver and does nothing else \
         with."
    );
    let mut findings = ExperimentFindings::new("echo", about);
    let seconds = args.seconds(SECONDS);
    for shape in [ONE, SINGLE, DEEP] {
        let sides = measure_interleaved(args.rounds(ROUNDS), &["plain gets", "bare echo"], |side| {
            if side == 1 {
                return measure_echo(shape, seconds);
            }
            let mut load = bench.load(Mix::only(Class::Get)).pace(Pace::Closed { depth: shape.depth });
            load.connections = shape.sockets;
            run_single_class(load, Class::Get, seconds)
        })?;
        findings.tables.push(table_of(shape.name, &sides));
        let ratio = |what: &str, unit, figure, target| {
            let [gets, echo] = [0, 1].map(|side: usize| sides[side].spread(figure));
            RatioResult::of(format!("{what} of gets / of a bare echo, {}", shape.name), unit, [&gets, &echo], target)
        };
        findings.ratios.push(match (shape.sockets, shape.depth) {
            (1, 1) => ratio("p50", "us", P50_US, Some(RatioTarget::AtMost(1.3))),
            (_, 1) => ratio("rate", "thousand/s", THOUSAND_PER_S, Some(RatioTarget::AtLeast(0.85))),
            _ => ratio("rate", "thousand/s", THOUSAND_PER_S, None),
        });
    }
    Ok(findings)
}
