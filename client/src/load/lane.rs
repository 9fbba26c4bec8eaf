//! One connection of a load: draws requests, packs them into messages, and accounts for their answers.

use super::keys::Chooser;
use super::report::Tally;
use super::workload::{Ask, Class, Data, Scratch, Seen};
use super::{Arrivals, Pace, TenantLoad};
use crate::Error;
use crate::raw::{Connection, Response, error_of};
use rand::{Rng, RngCore, SeedableRng, rngs::SmallRng};
use rand_distr::{Distribution, Exp1};
use sandstorm_net::rpc::Status;
use std::collections::VecDeque;
use std::time::Instant;

/// When a run begins to count and when it ends, in nanoseconds since its start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) start: Instant,
    pub(super) counts_from_ns: u64,
    pub(super) ends_ns: u64,
}

impl Times {
    pub(super) fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// Which of three populations a class draws from.
fn population(class: Class) -> usize {
    match class {
        Class::Chain | Class::ChainGets => 1,
        Class::MultiGet | Class::Aggregate | Class::AggregateGets | Class::Long => 2,
        _ => 0,
    }
}

/// A connection and what is under way on it.
pub(super) struct Lane<'l> {
    pub(super) tenant: usize,
    load: &'l TenantLoad,
    connection: Connection,
    drawer: Drawer<'l>,
    scratch: Scratch,
    /// Requests of the message in each slot; the slot's index is the message's mark.
    flights: Vec<Vec<Ask>>,
    free: Vec<usize>,
    /// Requests of several steps that go on.
    again: VecDeque<Ask>,
    book: Book<'l>,
}

/// Draws requests.
struct Drawer<'l> {
    load: &'l TenantLoad,
    choosers: [Chooser; 3],
    rng: SmallRng,
    drawn: u64,
    verify_every: u64,
    /// Mean gap between arrivals on this lane in nanoseconds; of no meaning in a closed loop.
    gap_ns: f64,
    next_ns: f64,
}

/// Accounts for answers.
pub(super) struct Book<'l> {
    data: &'l Data,
    times: Times,
    read_only: bool,
    pub(super) tallies: Vec<Option<Box<Tally>>>,
    /// Operations that ended since the start, and those of them with an error.
    pub(super) done: u64,
    pub(super) failed: u64,
    /// Latencies since they were last taken, for the line of progress.
    pub(super) recent_ns: hdrhistogram::Histogram<u64>,
}

impl<'l> Lane<'l> {
    pub(super) fn connect(
        tenant: usize,
        load: &'l TenantLoad,
        seed: u64,
        verify_every: u64,
        times: Times,
    ) -> Result<Lane<'l>, Error> {
        let data = &load.data;
        let choosers = [data.records, data.links, data.lists].map(|count| Chooser::new(load.skew, count));
        let [records, links, lists] = choosers;
        let invalid = |text| Error::TooLarge { what: text };
        let choosers = [records.map_err(invalid)?, links.map_err(invalid)?, lists.map_err(invalid)?];
        let read_only = !load.mix.has(Class::Put);
        let gap_ns = match load.pace {
            Pace::Open { per_s, .. } => 1e9 * load.connections.max(1) as f64 / per_s.max(1e-3),
            Pace::Closed { .. } => 0.0,
        };
        let rng = SmallRng::seed_from_u64(seed);
        let drawer = Drawer { load, choosers, rng, drawn: 0, verify_every, gap_ns, next_ns: 0.0 };
        let book = Book {
            data,
            times,
            read_only,
            tallies: Class::ALL.map(|_| None).into(),
            done: 0,
            failed: 0,
            recent_ns: super::report::histogram(),
        };
        let connection = Connection::connect(&load.config)?;
        let (scratch, again) = (Scratch::default(), VecDeque::new());
        Ok(Lane { tenant, load, connection, drawer, scratch, flights: Vec::new(), free: Vec::new(), again, book })
    }

    /// Begins to count time; connecting took some of it.
    pub(super) fn begin(&mut self, times: Times) {
        self.book.times = times;
        self.drawer.next_ns = self.drawer.rng.random::<f64>() * self.drawer.gap_ns;
    }

    /// Ends early.
    pub(super) fn end_at(&mut self, ends_ns: u64) {
        self.book.times.ends_ns = ends_ns;
    }

    pub(super) fn book(&mut self) -> &mut Book<'l> {
        &mut self.book
    }

    pub(super) fn retransmissions(&self) -> u64 {
        self.connection.counters().retransmissions
    }

    /// Nothing is under way, and nothing is due before the end.
    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == self.flights.len() && self.again.is_empty() && !self.drawer.due(self.book.times.ends_ns)
    }

    /// Takes answers and sends what is due. Returns whether anything happened.
    pub(super) fn turn(&mut self) -> bool {
        let answered = self.take_answers();
        let now_ns = self.book.times.now_ns();
        let mut sent = false;
        while self.may_send(now_ns) {
            sent = true;
            self.send(now_ns);
        }
        if sent {
            self.connection.flush();
        }
        answered > 0 || sent
    }

    fn may_send(&self, now_ns: u64) -> bool {
        let under_way = self.flights.len() - self.free.len();
        match self.load.pace {
            Pace::Closed { depth } => {
                under_way < depth.max(1) && (!self.again.is_empty() || now_ns < self.book.times.ends_ns)
            }
            Pace::Open { .. } => {
                let until_ns = now_ns.min(self.book.times.ends_ns);
                self.connection.room() > 0 && (!self.again.is_empty() || self.drawer.due(until_ns))
            }
        }
    }

    fn take_answers(&mut self) -> usize {
        let Lane { connection, flights, free, again, book, scratch, .. } = self;
        connection.poll(|mark, answer| {
            let now_ns = book.times.now_ns();
            let slot = mark as usize;
            let Some(asks) = flights.get_mut(slot) else { return };
            match answer {
                Ok(response) => book.answered(now_ns, asks, &response, again, scratch),
                Err(error) => asks.iter().for_each(|ask| book.enter(now_ns, ask, Some(error.code()), false)),
            }
            asks.clear();
            free.push(slot);
        })
    }

    /// Sends one message of requests that are due.
    fn send(&mut self, now_ns: u64) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.flights.push(Vec::new());
            self.flights.len() - 1
        });
        let mut message = self.connection.message();
        let Some(asks) = self.flights.get_mut(slot) else { return };
        let until_ns = now_ns.min(self.book.times.ends_ns);
        let mut last = 0;
        for _ in 0..self.load.batch.max(1) {
            let before = message.bytes();
            // Operations of one kind are about equally long: the next one fits if the last one would fit again.
            if !asks.is_empty() && before + last > self.load.config.packet_bytes() {
                break;
            }
            let closed = matches!(self.load.pace, Pace::Closed { .. });
            let Some(ask) = self.again.pop_front().or_else(|| match closed {
                true => (now_ns < self.book.times.ends_ns).then(|| self.drawer.draw(now_ns)),
                false => self.drawer.arrival(until_ns),
            }) else {
                break;
            };
            let salt = self.drawer.rng.next_u64();
            self.book.data.write_ask(&ask, salt, &mut message, &mut self.scratch);
            last = message.bytes() - before;
            asks.push(ask);
        }
        if let Err(error) = self.connection.send(slot as u64, message) {
            asks.iter().for_each(|ask| self.book.enter(now_ns, ask, Some(error.code()), false));
            asks.clear();
            self.free.push(slot);
        }
    }

    /// Counts what is still under way or was never sent, when the run has waited long enough.
    pub(super) fn abandon(&mut self) {
        let now_ns = self.book.times.now_ns();
        for asks in &mut self.flights {
            asks.drain(..).for_each(|ask| self.book.enter(now_ns, &ask, Some("timeout"), false));
        }
        for ask in self.again.drain(..) {
            self.book.enter(now_ns, &ask, Some("unsent"), false);
        }
        while let Some(ask) = self.drawer.arrival(self.book.times.ends_ns) {
            self.book.enter(now_ns, &ask, Some("unsent"), false);
        }
    }
}

impl Drawer<'_> {
    fn due(&self, until_ns: u64) -> bool {
        self.gap_ns > 0.0 && self.next_ns < until_ns as f64
    }

    /// The next request of an open loop, if it was meant to be sent before `until_ns`.
    fn arrival(&mut self, until_ns: u64) -> Option<Ask> {
        if !self.due(until_ns) {
            return None;
        }
        let ask = self.draw(self.next_ns as u64);
        let arrivals = match self.load.pace {
            Pace::Open { arrivals, .. } => arrivals,
            Pace::Closed { .. } => Arrivals::Fixed,
        };
        let gaps: f64 = match arrivals {
            Arrivals::Poisson => Exp1.sample(&mut self.rng),
            Arrivals::Fixed => 1.0,
        };
        self.next_ns += gaps * self.gap_ns;
        Some(ask)
    }

    fn draw(&mut self, intended_ns: u64) -> Ask {
        self.drawn += 1;
        let bad = self.load.bad_every > 0 && self.drawn.is_multiple_of(self.load.bad_every);
        let class = if bad { Class::Bad } else { self.load.mix.pick(self.rng.random()) };
        let [records, links, lists] = &self.choosers;
        let chooser = match population(class) {
            1 => links,
            2 => lists,
            _ => records,
        };
        let id = chooser.next(&mut self.rng);
        let verify = self.verify_every > 0 && self.drawn.is_multiple_of(self.verify_every);
        Ask { class, id, step: 0, intended_ns, verify }
    }
}

impl Book<'_> {
    fn answered(
        &mut self,
        now_ns: u64,
        asks: &mut [Ask],
        response: &Response<'_>,
        again: &mut VecDeque<Ask>,
        scratch: &mut Scratch,
    ) {
        let mut answers = response.operations();
        // A message refused as a whole may be answered by one operation: it stands for all.
        let mut whole = "protocol";
        for ask in asks {
            let answer = match answers.next() {
                Some(Ok(answer)) => answer,
                Some(Err(_)) | None => {
                    self.enter(now_ns, ask, Some(whole), false);
                    continue;
                }
            };
            if let Some(error) = error_of(&answer) {
                whole = error.code();
                self.enter(now_ns, ask, Some(whole), false);
                continue;
            }
            let found = answer.status == Status::Ok;
            match self.data.see(ask, found, answer.value, self.read_only, scratch) {
                Seen::Again => again.push_back(*ask),
                Seen::Done => self.enter(now_ns, ask, None, false),
                Seen::Wrong => self.enter(now_ns, ask, None, true),
            }
        }
    }

    /// Enters a request that ended.
    fn enter(&mut self, now_ns: u64, ask: &Ask, error: Option<&'static str>, wrong: bool) {
        self.done += 1;
        self.failed += u64::from(error.is_some());
        let latency_ns = now_ns.saturating_sub(ask.intended_ns).max(1);
        self.recent_ns.saturating_record(latency_ns);
        if ask.intended_ns < self.times.counts_from_ns {
            return;
        }
        let Some(tally) = self.tallies.get_mut(ask.class.index()) else { return };
        let tally = tally.get_or_insert_with(|| Box::new(Tally::new()));
        tally.latency_ns.saturating_record(latency_ns);
        match error {
            Some(code) => *tally.errors.entry(code).or_default() += 1,
            None => {
                tally.last_ns = tally.last_ns.max(now_ns);
                tally.ok += 1;
                tally.verified += u64::from(ask.verify || wrong);
                tally.wrong += u64::from(wrong);
            }
        }
    }
}
