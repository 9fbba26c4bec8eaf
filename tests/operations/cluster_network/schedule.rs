//! A random schedule of what may happen to a cluster, by a seed: the same seed makes the same decisions. A bounded one
//! is run with all tests, a longer one by `scripts/test cluster`: `CLUSTER_SEED` is the seed of the first round, and
//! `CLUSTER_MINUTES` how long.

use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::process::Signal;

use super::lab::NetworkLab;
use super::links::{ClusterLinks, ETCD, SlowLink};
use crate::cluster_copies::SERVERS;
use crate::cluster_failover::COPIED_TABLE;

/// Rounds of the bounded schedule.
const ROUNDS: u64 = 4;
/// Most events of a round, and the longest pause behind one: three leases and more, and a copy's patience of two
/// seconds.
const EVENTS: usize = 6;
const PAUSE_MS: u64 = 3_000;
/// The longest pause of half of them: what comes next comes before anything is noticed, or while a place is taken.
const SHORT_PAUSE_MS: u64 = 700;
/// Servers that something happens to: the last one is asked.
const VICTIMS: usize = SERVERS - 1;

/// Something that happens.
#[derive(Clone, Copy, Debug)]
enum ClusterEvent {
    /// A server is cut off from all but its clients.
    CutOff(usize),
    /// From etcd alone, or from another server alone.
    CutFrom(usize, usize),
    /// What it sends is lost, but to its clients.
    Mute(usize),
    /// What others send it is lost, but of its clients.
    Deaf(usize),
    /// Etcd is cut off from all.
    EtcdAway,
    /// Etcd is killed, and started again with its files.
    EtcdRestarts,
    Mend,
    Stop(usize),
    Wake(usize),
    Kill(usize),
    Restart(usize),
    /// Slots from the first to the last move to a server.
    Move(u32, u32, usize),
    Slow(SlowLink),
}

impl ClusterEvent {
    fn draw(random: &mut SmallRng) -> ClusterEvent {
        let at = random.random_range(0..VICTIMS);
        match random.random_range(0..14) {
            0 => ClusterEvent::CutOff(at),
            1 => ClusterEvent::CutFrom(at, ETCD),
            2 => ClusterEvent::CutFrom(at, SERVERS - 1),
            3 => ClusterEvent::CutFrom(0, 1),
            4 => ClusterEvent::Mute(at),
            5 => ClusterEvent::Deaf(at),
            6 => ClusterEvent::EtcdAway,
            12 => ClusterEvent::EtcdRestarts,
            7 => ClusterEvent::Mend,
            8 => ClusterEvent::Stop(at),
            9 => ClusterEvent::Wake(at),
            10 => {
                if random.random_bool(0.7) {
                    ClusterEvent::Kill(at)
                } else {
                    ClusterEvent::Restart(at)
                }
            }
            11 => {
                let first = random.random_range(0..16_384);
                ClusterEvent::Move(first, random.random_range(first..16_384), random.random_range(0..SERVERS))
            }
            _ => ClusterEvent::Slow(SlowLink {
                delay_ms: random.random_range(1..40),
                jitter_ms: random.random_range(0..10),
                loss_percent: random.random_range(0..4),
                reorder_percent: random.random_range(0..10),
                duplicate_percent: random.random_range(0..4),
            }),
        }
    }
}

/// What happens in a round, with the pause behind each: by its seed alone.
fn draw_round(seed: u64) -> Vec<(ClusterEvent, Duration)> {
    let mut random = SmallRng::seed_from_u64(seed);
    let count = random.random_range(1..=EVENTS);
    let draw = |_| {
        let event = ClusterEvent::draw(&mut random);
        let most_ms = if random.random_bool(0.5) { SHORT_PAUSE_MS } else { PAUSE_MS };
        (event, Duration::from_millis(random.random_range(0..most_ms)))
    };
    (0..count).map(draw).collect()
}

/// Which servers were killed, and which are stopped.
#[derive(Default)]
struct Victims {
    is_dead: [bool; VICTIMS],
    is_asleep: [bool; VICTIMS],
}

impl Victims {
    fn wake(&mut self, lab: &NetworkLab, at: usize) {
        if std::mem::take(&mut self.is_asleep[at]) {
            lab.signal(at, Signal::CONT);
        }
    }

    fn make(&mut self, lab: &mut NetworkLab, event: ClusterEvent) {
        let others = |at: usize| (0..=ETCD).filter(move |other| *other != at);
        match event {
            ClusterEvent::CutOff(at) => lab.links.cut_off(at, &others(at).collect::<Vec<_>>()),
            ClusterEvent::CutFrom(at, other) => lab.links.cut_off(at, &[other]),
            ClusterEvent::Mute(at) => lab.links.cut(&others(at).map(|other| (at, other)).collect::<Vec<_>>()),
            ClusterEvent::Deaf(at) => lab.links.cut(&others(at).map(|other| (other, at)).collect::<Vec<_>>()),
            ClusterEvent::EtcdAway => lab.links.cut_off(ETCD, &(0..SERVERS).collect::<Vec<_>>()),
            ClusterEvent::EtcdRestarts => {
                lab.cluster.etcd.stop();
                lab.cluster.etcd.restart();
            }
            ClusterEvent::Mend => lab.links.mend(),
            ClusterEvent::Stop(at) if !self.is_dead[at] => {
                lab.signal(at, Signal::STOP);
                self.is_asleep[at] = true;
            }
            ClusterEvent::Wake(at) => self.wake(lab, at),
            ClusterEvent::Kill(at) if !self.is_dead[at] => {
                lab.kill(at);
                (self.is_dead[at], self.is_asleep[at]) = (true, false);
            }
            ClusterEvent::Restart(at) if self.is_dead[at] && lab.links.is_whole() => self.restart(lab, at),
            ClusterEvent::Move(first, last, to) => {
                // Refused where it has these slots, or etcd is away.
                let line = format!("cluster move {first}-{last} --to {}", lab.id(to));
                let _refused = lab.cluster.last().output(&line);
            }
            ClusterEvent::Slow(how) if lab.links.can_be_slow() => lab.links.slow(Some(how)),
            ClusterEvent::Stop(_) | ClusterEvent::Kill(_) | ClusterEvent::Restart(_) | ClusterEvent::Slow(_) => {}
        }
    }

    fn restart(&mut self, lab: &mut NetworkLab, at: usize) {
        lab.restart(at);
        self.is_dead[at] = false;
    }

    /// Ends whatever has happened.
    fn end(mut self, lab: &mut NetworkLab) {
        lab.links.mend();
        lab.links.slow(None);
        for at in 0..VICTIMS {
            self.wake(lab, at);
            if self.is_dead[at] {
                self.restart(lab, at);
            }
        }
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Runs a schedule: as long as the variables say, or a bounded one.
pub(super) fn run() {
    let seed = variable("CLUSTER_SEED").unwrap_or(1);
    let time = variable("CLUSTER_MINUTES").map(|minutes| Duration::from_secs(60 * minutes));
    let Some(links) = ClusterLinks::new_slow(seed).or_else(ClusterLinks::new) else { return };
    let Some(mut lab) = NetworkLab::start_on(links, COPIED_TABLE, Vec::new()) else { return };
    let begun = Instant::now();
    let goes_on = |round: u64| time.map_or(round < ROUNDS, |time| begun.elapsed() < time);
    for round in (0..).take_while(|round| goes_on(*round)) {
        let events = draw_round(seed + round);
        // A round by itself: CLUSTER_SEED is its own seed.
        println!("seed {}: {events:?}", seed + round);
        lab.under_load(|lab, _| {
            let mut victims = Victims::default();
            for (event, pause) in events {
                victims.make(lab, event);
                thread::sleep(pause);
            }
            victims.end(lab);
        });
    }
}
