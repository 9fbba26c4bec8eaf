//! `sandstorm bench echo`: plain gets beside a bare echo of datagrams through the same driver: what the network leaves to be won.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sandstorm_client::load::{Class, Mix, Pace};
use sandstorm_net::driver::{Burst, Driver, Outbox, UdpDriver, UdpOptions};
use sandstorm_net::r2p2::Transmit;

use super::measure::{Measured, P50_US, THOUSAND_PER_S, alone, by_turns};
use super::own::{Alone, table_of};
use super::report::{Findings, Ratio, Target};
use super::{BenchArgs, stage};
use crate::cli::output::Failure;

/// Bytes of an echoed datagram: between a get's request and its answer.
const BYTES: usize = 128;
/// Where in it the time stands at which it was sent.
const TIME: usize = 8;
/// After so long without an answer what is under way is taken for lost, and sent again.
const LOST: Duration = Duration::from_millis(100);
/// Seconds of one measurement, and rounds.
const SECONDS: f64 = 0.7;
const ROUNDS: usize = 5;

/// How much is under way.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) sockets: usize,
    /// On each socket.
    pub(super) depth: usize,
}

const ONE: Shape = Shape { name: "one at a time", sockets: 1, depth: 1 };
/// What comes from different sockets can neither be coalesced nor segmented: one datagram a call, whatever the kernel offers.
const SINGLE: Shape = Shape { name: "64 sockets, one at a time each: one datagram a call", sockets: 64, depth: 1 };
const DEEP: Shape = Shape { name: "one socket, 64 under way, offloads on", sockets: 1, depth: 64 };

fn driver() -> Result<UdpDriver, Failure> {
    UdpDriver::bind(([127, 0, 0, 1], 0).into(), UdpOptions::default()).map_err(|error| Failure::new(error.to_string()))
}

/// Sends back what comes, until it is stopped.
pub(super) fn answer(driver: &mut impl Driver, stopped: &AtomicBool) {
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

/// A thread on the first processor that sends back what comes; ends with this value.
struct Echo {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    fn start() -> Result<Echo, Failure> {
        let mut driver = driver()?;
        let address = driver.local();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            stage::bind_to_first();
            answer(&mut driver, &stopped);
        });
        Ok(Echo { address, stop, thread: Some(thread) })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there was told where it happened.
            let _ended = thread.join();
        }
    }
}

/// What is asked.
pub(super) trait Question {
    /// Queues one, at this time.
    fn ask(&mut self, to: SocketAddr, now_ns: u64, outbox: &mut Outbox);

    /// When the question was sent that this answers; none: it answers none, or not as it should.
    fn sent_ns(&mut self, datagram: &[u8]) -> Option<u64>;
}

/// Datagrams that come back as they are.
pub(super) struct Same;

impl Question for Same {
    fn ask(&mut self, to: SocketAddr, now_ns: u64, outbox: &mut Outbox) {
        outbox.send(to, &[&now_ns.to_le_bytes(), &[0; BYTES - TIME]]);
    }

    fn sent_ns(&mut self, datagram: &[u8]) -> Option<u64> {
        datagram.first_chunk::<TIME>().map(|time| u64::from_le_bytes(*time))
    }
}

/// One of the asking sockets.
struct Asker<D, Q> {
    driver: D,
    question: Q,
    outbox: Outbox,
    answered: Instant,
    /// It has had an answer: the way is known, and all go that are to be under way.
    found: bool,
}

impl<D: Driver, Q: Question> Asker<D, Q> {
    fn ask(&mut self, to: SocketAddr, begun: Instant, count: usize) {
        let now_ns = begun.elapsed().as_nanos() as u64;
        for _ in 0..count {
            self.question.ask(to, now_ns, &mut self.outbox);
        }
        self.driver.transmit(&mut self.outbox);
    }
}

/// Asks an echo in a closed loop.
fn echoes(shape: Shape, seconds: f64) -> Result<Measured, Failure> {
    let echo = Echo::start()?;
    ask(echo.address, shape, seconds, || Ok((driver()?, Same)))
}

/// Asks whoever answers, in a closed loop, over drivers of any kind.
pub(super) fn ask<D: Driver, Q: Question>(
    to: SocketAddr,
    shape: Shape,
    seconds: f64,
    open: impl Fn() -> Result<(D, Q), Failure>,
) -> Result<Measured, Failure> {
    let begun = Instant::now();
    let asker = |_| {
        let (driver, question) = open()?;
        Ok(Asker { driver, question, outbox: Outbox::default(), answered: begun, found: false })
    };
    let mut askers = (0..shape.sockets).map(asker).collect::<Result<Vec<Asker<D, Q>>, Failure>>()?;
    let mut burst: Burst = askers[0].driver.burst();
    let (counts_from, ends) = (Duration::from_secs_f64(seconds / 4.0), Duration::from_secs_f64(seconds * 1.25));
    let mut latencies_ns: Vec<u64> = Vec::new();
    askers.iter_mut().for_each(|asker| asker.ask(to, begun, 1));
    while begun.elapsed() < ends {
        for asker in &mut askers {
            let answered = asker.driver.receive(&mut burst);
            let now = begun.elapsed();
            if answered == 0 {
                if asker.answered.elapsed() > LOST {
                    asker.answered = Instant::now();
                    asker.ask(to, begun, if asker.found { shape.depth } else { 1 });
                }
                continue;
            }
            for (_, datagram) in burst.iter() {
                let sent_ns = asker.question.sent_ns(datagram);
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
            asker.ask(to, begun, next);
        }
    }
    latencies_ns.sort_unstable();
    let us = |share: f64| {
        let at = (latencies_ns.len() as f64 * share) as usize;
        latencies_ns.get(at.min(latencies_ns.len().saturating_sub(1))).map_or(f64::NAN, |ns| *ns as f64 / 1000.0)
    };
    let per_s = latencies_ns.len() as f64 / seconds;
    let (p50_us, p99_us, p999_us) = (us(0.5), us(0.99), us(0.999));
    Ok(Measured { per_s, keys_per_s: per_s, p50_us, p99_us, p999_us, ..Measured::NOTHING })
}

pub(super) fn echo(args: &BenchArgs) -> Result<Findings, Failure> {
    let bench = Alone::start(args, &[], &Mix::only(Class::Get))?;
    let about = format!(
        "Plain gets, and datagrams of {BYTES} B that a thread on the same core sends back through the same driver and does nothing else \
         with."
    );
    let mut findings = Findings::new("echo", about);
    let seconds = args.seconds(SECONDS);
    for shape in [ONE, SINGLE, DEEP] {
        let sides = by_turns(args.rounds(ROUNDS), &["plain gets", "bare echo"], |side| {
            if side == 1 {
                return echoes(shape, seconds);
            }
            let mut load = bench.load(Mix::only(Class::Get)).pace(Pace::Closed { depth: shape.depth });
            load.connections = shape.sockets;
            alone(load, Class::Get, seconds)
        })?;
        findings.tables.push(table_of(shape.name, &sides));
        let ratio = |what: &str, unit, figure, target| {
            let [gets, echo] = [0, 1].map(|side: usize| sides[side].spread(figure));
            Ratio::of(format!("{what} of gets / of a bare echo, {}", shape.name), unit, [&gets, &echo], target)
        };
        findings.ratios.push(match (shape.sockets, shape.depth) {
            (1, 1) => ratio("p50", "us", P50_US, Some(Target::AtMost(1.3))),
            (_, 1) => ratio("rate", "thousand/s", THOUSAND_PER_S, Some(Target::AtLeast(0.85))),
            _ => ratio("rate", "thousand/s", THOUSAND_PER_S, None),
        });
    }
    Ok(findings)
}
