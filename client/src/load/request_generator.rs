//! Draws the requests of one connection of a load, and the times at which they are meant to be sent.

use super::class::{Class, KeyPopulation};
use super::inserts::InsertTracker;
use super::keys::KeyChooser;
use super::load_request::LoadRequest;
use super::{Arrivals, Pace, TenantLoad};
use crate::limits;
use rand::{Rng, rngs::SmallRng};
use rand_distr::{Distribution, Exp1};
use sandstorm_net::slots::slot_of;

/// One password in this number is wrong.
const WRONG_PASSWORD_DENOMINATOR: u32 = 8;

/// Draws requests.
pub(super) struct RequestGenerator<'l> {
    pub(super) load: &'l TenantLoad,
    pub(super) growth: &'l InsertTracker,
    /// By population.
    pub(super) key_choosers: [KeyChooser; KeyPopulation::COUNT],
    pub(super) rng: SmallRng,
    pub(super) drawn: u64,
    pub(super) verify_every: u64,
    /// Mean gap between arrivals on this connection in nanoseconds; of no meaning in a closed loop.
    pub(super) mean_gap_ns: f64,
    pub(super) next_arrival_ns: f64,
    /// Buffer for the keys of records that are looked at.
    pub(super) key: Vec<u8>,
}

impl RequestGenerator<'_> {
    pub(super) fn due(&self, until_ns: u64) -> bool {
        self.mean_gap_ns > 0.0 && self.next_arrival_ns < until_ns as f64
    }

    /// The next request of an open loop, if it was meant to be sent before `until_ns`.
    pub(super) fn next_arrival(&mut self, until_ns: u64) -> Option<LoadRequest> {
        if !self.due(until_ns) {
            return None;
        }
        let request = self.draw(self.next_arrival_ns as u64);
        let arrivals = match self.load.pace {
            Pace::Open { arrivals, .. } => arrivals,
            Pace::Closed { .. } => Arrivals::Fixed,
        };
        self.next_arrival_ns += arrivals.sample_gap(&mut self.rng) * self.mean_gap_ns;
        Some(request)
    }

    pub(super) fn draw(&mut self, intended_ns: u64) -> LoadRequest {
        self.drawn += 1;
        let bad = self.load.bad_every > 0 && self.drawn.is_multiple_of(self.load.bad_every);
        let class = if bad { Class::Bad } else { self.load.mix.pick(self.rng.random()) };
        let verify = self.verify_every > 0 && self.drawn.is_multiple_of(self.verify_every);
        let id = match class {
            Class::Insert => self.growth.take(),
            // The objects that are asked for most would soon be gone.
            Class::ObjDelete => self.rng.random_range(0..self.load.data.records.max(1)),
            class => self.choose(class),
        };
        LoadRequest { class, id, step: 0, twist: self.twist(class), intended_ns, verify, hops: 0 }
    }

    fn choose(&mut self, class: Class) -> u64 {
        let population = class.population();
        let chooser = &mut self.key_choosers[population as usize];
        if population == KeyPopulation::Records {
            chooser.resize(self.growth.there());
        }
        let mut id = chooser.next(&mut self.rng);
        if let Some(slots) = &self.load.slots {
            for _ in 0..limits::LOAD_SLOT_DRAWS {
                self.load.data.write_key_of(class, id, &mut self.key);
                if slots.contains(&slot_of(&self.key)) {
                    break;
                }
                id = chooser.next(&mut self.rng);
            }
        }
        id
    }

    fn twist(&mut self, class: Class) -> u32 {
        let load = self.load;
        let data = &load.data;
        match class {
            Class::Scan => self.rng.random_range(1..=data.scan_most.max(1)),
            Class::Transfer => self.choose(class) as u32,
            class if class.is_of_graph() => self.rng.random(),
            Class::Auth | Class::AuthGets => u32::from(self.rng.random_ratio(1, WRONG_PASSWORD_DENOMINATOR)),
            _ => u32::from(data.draws_missing(class, &mut self.rng)),
        }
    }
}

impl Arrivals {
    /// A gap between two requests, in parts of the mean.
    pub(super) fn sample_gap(self, rng: &mut impl Rng) -> f64 {
        match self {
            Arrivals::Poisson => Exp1.sample(rng),
            Arrivals::Pareto => {
                let shape = super::ETC_GAP_SHAPE;
                // 1 - a number from 0 up to 1 is never 0; the mean of the distribution is scale / (1 - shape).
                let left: f64 = 1.0 - rng.random::<f64>();
                (1.0 - shape) / shape * (left.powf(-shape) - 1.0)
            }
            Arrivals::Fixed => 1.0,
        }
    }
}
