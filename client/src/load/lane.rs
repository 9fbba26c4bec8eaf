//! One connection of a load: draws requests, packs them into messages, and accounts for their answers.

use super::ask::{Ask, Rules, Scratch, Seen};
use super::class::{Class, Population};
use super::growth::Growth;
use super::keys::Chooser;
use super::report::Tally;
use super::{Arrivals, Data, Pace, TenantLoad};
use crate::Error;
use crate::raw::{Connection, Response, error_of};
use hdrhistogram::Histogram;
use rand::{Rng, RngCore, SeedableRng, rngs::SmallRng};
use rand_distr::{Distribution, Exp1};
use sandstorm_net::rpc::Status;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// When a run begins to count and when it ends, in nanoseconds since its start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) start: Instant,
    pub(super) counts_from_ns: u64,
    pub(super) ends_ns: u64,
}

impl Times {
    pub(super) fn now_ns(&self) -> u64 {
        self.ns_at(Instant::now())
    }

    pub(super) fn ns_at(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_nanos() as u64
    }
}

/// To go through so many answers takes about as long as to read the clock.
const ANSWERS_AT_ONCE: usize = 2;
/// One in so many passwords is wrong.
const WRONG_PASSWORD_ONE_IN: u32 = 8;

/// What a lane shares with others: those of its tenant, and those of its thread.
#[derive(Clone)]
pub(super) struct Shares<'l> {
    pub(super) growth: &'l Growth,
    /// Latencies since they were last taken, for the line of progress.
    pub(super) recent_ns: Rc<RefCell<Histogram<u64>>>,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Done,
    /// There was no record, which is as it should be.
    Missed,
    Wrong,
    Error(&'static str),
}

/// How a lane draws and accounts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    pub(super) seed: u64,
    pub(super) verify_every: u64,
    /// Digits to which latencies are told apart.
    pub(super) digits: u8,
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
    /// Messages that it may still send, where tenants have no pace of their own.
    owed: Option<usize>,
    /// Answers that clients compute over, until when, in nanoseconds since the start.
    computing: VecDeque<(u64, Ask)>,
    book: Book<'l>,
}

/// Where requests go that an answer does not end.
struct GoesOn<'l> {
    again: &'l mut VecDeque<Ask>,
    computing: &'l mut VecDeque<(u64, Ask)>,
    takes: Option<Duration>,
}

impl GoesOn<'_> {
    /// Whether a client, on a core of its own, still computes over the answer.
    fn computes(&self, ask: &Ask) -> bool {
        self.takes.is_some() && ask.class.called().is_some()
    }

    /// All take equally long: those that begin first end first.
    fn compute(&mut self, now_ns: u64, ask: &Ask) {
        self.computing.push_back((now_ns + self.takes.unwrap_or_default().as_nanos() as u64, *ask));
    }
}

/// Draws requests.
struct Drawer<'l> {
    load: &'l TenantLoad,
    growth: &'l Growth,
    /// By population.
    choosers: [Chooser; Population::COUNT],
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
    rules: Rules,
    digits: u8,
    shares: Shares<'l>,
    pub(super) tallies: Vec<Option<Box<Tally>>>,
    /// Operations that ended since the start, and those of them with an error.
    pub(super) done: u64,
    pub(super) failed: u64,
    /// The server has said that it is shutting down: nothing more is sent to it.
    pub(super) server_stops: bool,
}

impl<'l> Lane<'l> {
    pub(super) fn connect(
        tenant: usize,
        load: &'l TenantLoad,
        shares: Shares<'l>,
        habits: Habits,
        times: Times,
    ) -> Result<Lane<'l>, Error> {
        let data = &load.data;
        let choose =
            |population| Chooser::new(load.skew, data.count(population)).map_err(|text| Error::TooLarge { what: text });
        let choosers = [
            choose(Population::Records)?,
            choose(Population::Links)?,
            choose(Population::Lists)?,
            choose(Population::RowLists)?,
            choose(Population::Users)?,
            choose(Population::Accounts)?,
        ];
        let gap_ns = match load.pace {
            Pace::Open { per_s, .. } => 1e9 * load.connections.max(1) as f64 / per_s.max(1e-3),
            Pace::Closed { .. } => 0.0,
        };
        let Habits { seed, verify_every, digits } = habits;
        let (rng, growth) = (SmallRng::seed_from_u64(seed), shares.growth);
        let drawer = Drawer { load, growth, choosers, rng, drawn: 0, verify_every, gap_ns, next_ns: 0.0 };
        let rules = Rules::of(load);
        let tallies = Class::ALL.map(|_| None).into();
        let book = Book { data, times, rules, digits, shares, tallies, done: 0, failed: 0, server_stops: false };
        let connection = Connection::connect(&load.config)?;
        let (scratch, again, computing) = (Scratch::default(), VecDeque::new(), VecDeque::new());
        let (flights, free) = (Vec::new(), Vec::new());
        Ok(Lane { tenant, load, connection, drawer, scratch, flights, free, again, computing, owed: None, book })
    }

    /// Begins to count time; connecting took some of it.
    pub(super) fn begin(&mut self, times: Times) {
        self.book.times = times;
        self.drawer.next_ns = self.drawer.rng.random::<f64>() * self.drawer.gap_ns;
    }

    /// From here on it sends what it is owed, as many messages as [`Lane::owe`] is called.
    pub(super) fn await_turns(&mut self) {
        self.owed = Some(0);
    }

    pub(super) fn owe(&mut self) {
        self.owed = self.owed.map(|owed| owed + 1);
    }

    /// Messages under way, and those that it is owed.
    pub(super) fn has(&self) -> usize {
        self.under_way() + self.owed.unwrap_or(0)
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
        let has_asked_all = self.book.server_stops || self.again.is_empty();
        has_asked_all && self.hears_all() && !self.drawer.due(self.book.times.ends_ns)
    }

    fn awaits_nothing(&self) -> bool {
        self.hears_all() && self.again.is_empty()
    }

    /// No answer is under way.
    fn hears_all(&self) -> bool {
        self.free.len() == self.flights.len() && self.computing.is_empty()
    }

    /// The next time, in nanoseconds since the start, at which there is something to do; at once while answers are awaited.
    pub(super) fn next_turn_ns(&self) -> u64 {
        match self.load.pace {
            Pace::Open { .. } if self.awaits_nothing() => self.drawer.next_ns as u64,
            // A closed loop always has something under way.
            _ => 0,
        }
    }

    /// The next time, in nanoseconds since the start, at which it has something to do that does not wait for an answer.
    pub(super) fn due_ns(&self) -> u64 {
        let computed_ns = self.computing.front().map_or(u64::MAX, |(until_ns, _)| *until_ns);
        match self.load.pace {
            Pace::Open { .. } if self.drawer.due(self.book.times.ends_ns) => {
                computed_ns.min(self.drawer.next_ns as u64)
            }
            _ => computed_ns,
        }
    }

    /// What can be slept on until an answer comes.
    #[inline]
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.connection.socket()
    }

    /// Takes answers and sends what is due. Returns whether anything happened. `begun` is about now: to read the clock takes longer than
    /// some drivers take to bring a packet.
    pub(super) fn turn(&mut self, begun: Instant) -> bool {
        let (answered, now) = self.take_answers(begun);
        let now_ns = self.book.times.ns_at(now);
        while let Some((_, ask)) = self.computing.pop_front_if(|(until_ns, _)| *until_ns <= now_ns) {
            self.book.enter(now_ns, &ask, End::Done);
        }
        let mut sent = false;
        while self.may_send(now_ns) {
            sent = true;
            self.send(now, now_ns);
        }
        if sent {
            self.connection.flush();
        }
        answered > 0 || sent
    }

    fn under_way(&self) -> usize {
        self.flights.len() - self.free.len() + self.computing.len()
    }

    fn may_send(&self, now_ns: u64) -> bool {
        if self.book.server_stops {
            return false;
        }
        let before_end = now_ns < self.book.times.ends_ns;
        if let Some(owed) = self.owed {
            return self.connection.room() > 0 && (!self.again.is_empty() || owed > 0 && before_end);
        }
        match self.load.pace {
            Pace::Closed { depth } => self.under_way() < depth.max(1) && (!self.again.is_empty() || before_end),
            Pace::Open { .. } => {
                let until_ns = now_ns.min(self.book.times.ends_ns);
                self.connection.room() > 0 && (!self.again.is_empty() || self.drawer.due(until_ns))
            }
        }
    }

    /// How many answers there were, and the time: that at which the turn was begun if there were none.
    fn take_answers(&mut self, begun: Instant) -> (usize, Instant) {
        let Lane { connection, flights, free, again, computing, book, scratch, load, .. } = self;
        let mut goes_on = GoesOn { again, computing, takes: load.client_takes };
        // Answers of one look were there together.
        let mut looked = None;
        let answered = connection.poll_at(begun, |mark, answer| {
            let (_, now_ns) = *looked.get_or_insert_with(|| {
                let now = Instant::now();
                (now, book.times.ns_at(now))
            });
            let slot = mark as usize;
            let Some(asks) = flights.get_mut(slot) else { return };
            match answer {
                Ok(response) => book.answered(now_ns, asks, &response, &mut goes_on, scratch),
                Err(error) => asks.iter().for_each(|ask| {
                    scratch.held.release(ask);
                    book.enter(now_ns, ask, End::Error(error.code()));
                }),
            }
            asks.clear();
            free.push(slot);
        });
        let now = match looked {
            // To go through many took some time.
            _ if answered > ANSWERS_AT_ONCE => Instant::now(),
            Some((now, _)) => now,
            None => begun,
        };
        (answered, now)
    }

    /// Sends one message of requests that are due.
    fn send(&mut self, now: Instant, now_ns: u64) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.flights.push(Vec::new());
            self.flights.len() - 1
        });
        let mut message = self.connection.message();
        let Some(asks) = self.flights.get_mut(slot) else { return };
        let until_ns = now_ns.min(self.book.times.ends_ns);
        let mut last = 0;
        let may_draw = self.owed != Some(0);
        let mut drew = false;
        for _ in 0..self.load.batch.max(1) {
            let before = message.bytes();
            // Operations of one kind are about equally long: the next one fits if the last one would fit again.
            if !asks.is_empty() && before + last > self.load.config.packet_bytes() {
                break;
            }
            let closed = matches!(self.load.pace, Pace::Closed { .. });
            let Some(ask) = self.again.pop_front().or_else(|| match closed {
                true => (may_draw && now_ns < self.book.times.ends_ns).then(|| {
                    drew = true;
                    self.drawer.draw(now_ns)
                }),
                false => self.drawer.arrival(until_ns),
            }) else {
                break;
            };
            let salt = self.drawer.rng.next_u64();
            self.book.data.write_ask(&ask, salt, &mut message, &mut self.scratch);
            last = message.bytes() - before;
            asks.push(ask);
        }
        self.owed = self.owed.map(|owed| owed - usize::from(drew && owed > 0));
        if let Err(error) = self.connection.send_at(now, slot as u64, message) {
            asks.iter().for_each(|ask| self.book.enter(now_ns, ask, End::Error(error.code())));
            asks.clear();
            self.free.push(slot);
        }
    }

    /// Counts what is still under way or was never sent, when the run has waited long enough.
    pub(super) fn abandon(&mut self) {
        let now_ns = self.book.times.now_ns();
        for asks in &mut self.flights {
            asks.drain(..).for_each(|ask| self.book.enter(now_ns, &ask, End::Error("timeout")));
        }
        for ask in self.again.drain(..) {
            self.book.enter(now_ns, &ask, End::Error("unsent"));
        }
        for (_, ask) in self.computing.drain(..) {
            self.book.enter(now_ns, &ask, End::Done);
        }
        while let Some(ask) = self.drawer.arrival(self.book.times.ends_ns) {
            self.book.enter(now_ns, &ask, End::Error("unsent"));
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
        self.next_ns += arrivals.gap(&mut self.rng) * self.gap_ns;
        Some(ask)
    }

    fn draw(&mut self, intended_ns: u64) -> Ask {
        self.drawn += 1;
        let bad = self.load.bad_every > 0 && self.drawn.is_multiple_of(self.load.bad_every);
        let class = if bad { Class::Bad } else { self.load.mix.pick(self.rng.random()) };
        let verify = self.verify_every > 0 && self.drawn.is_multiple_of(self.verify_every);
        let id = match class {
            Class::Insert => self.growth.take(),
            // What is asked for most would soon be gone.
            Class::ObjDelete => self.rng.random_range(0..self.load.data.records.max(1)),
            class => self.choose(class),
        };
        Ask { class, id, step: 0, twist: self.twist(class), intended_ns, verify }
    }

    fn choose(&mut self, class: Class) -> u64 {
        let population = class.population();
        let chooser = &mut self.choosers[population as usize];
        if population == Population::Records {
            chooser.resize(self.growth.there());
        }
        chooser.next(&mut self.rng)
    }

    fn twist(&mut self, class: Class) -> u32 {
        let load = self.load;
        let data = &load.data;
        match class {
            Class::Scan => self.rng.random_range(1..=data.scan_most.max(1)),
            Class::Transfer => self.choose(class) as u32,
            class if class.is_of_graph() => self.rng.random(),
            Class::Auth | Class::AuthGets => u32::from(self.rng.random_ratio(1, WRONG_PASSWORD_ONE_IN)),
            _ => u32::from(data.draws_missing(class, &mut self.rng)),
        }
    }
}

impl Arrivals {
    /// A gap between two requests, in parts of the mean.
    pub(super) fn gap(self, rng: &mut impl Rng) -> f64 {
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

impl Book<'_> {
    fn answered(
        &mut self,
        now_ns: u64,
        asks: &mut [Ask],
        response: &Response<'_>,
        goes_on: &mut GoesOn<'_>,
        scratch: &mut Scratch,
    ) {
        let mut answers = response.operations();
        // A message refused as a whole may be answered by one operation: it stands for all.
        let mut whole = "protocol";
        for ask in asks {
            let answer = match answers.next() {
                Some(Ok(answer)) => answer,
                Some(Err(_)) | None => {
                    self.enter(now_ns, ask, End::Error(whole));
                    continue;
                }
            };
            if let Some(error) = error_of(&answer) {
                scratch.held.release(ask);
                whole = error.code();
                self.enter(now_ns, ask, End::Error(whole));
                continue;
            }
            let found = answer.status == Status::Ok;
            match self.data.see(ask, found, answer.value, self.rules, scratch) {
                Seen::Again => goes_on.again.push_back(*ask),
                Seen::Done if goes_on.computes(ask) => goes_on.compute(now_ns, ask),
                Seen::Done if found => self.enter(now_ns, ask, End::Done),
                Seen::Done => self.enter(now_ns, ask, End::Missed),
                Seen::Wrong => self.enter(now_ns, ask, End::Wrong),
            }
        }
    }

    /// Enters a request that ended.
    fn enter(&mut self, now_ns: u64, ask: &Ask, end: End) {
        let well = !matches!(end, End::Error(_));
        self.server_stops |= matches!(end, End::Error(super::report::SHUTTING_DOWN));
        self.done += 1;
        self.failed += u64::from(!well);
        let latency_ns = now_ns.saturating_sub(ask.intended_ns).max(1);
        self.shares.recent_ns.borrow_mut().saturating_record(latency_ns);
        if ask.class == Class::Insert {
            self.shares.growth.ended(ask.id, well);
        }
        if ask.intended_ns < self.times.counts_from_ns {
            return;
        }
        let Some(tally) = self.tallies.get_mut(ask.class.index()) else { return };
        let tally = tally.get_or_insert_with(|| Box::new(Tally::new(self.digits)));
        tally.latency_ns.saturating_record(latency_ns);
        match end {
            End::Error(code) => *tally.errors.entry(code).or_default() += 1,
            End::Done | End::Missed | End::Wrong => {
                tally.last_ns = tally.last_ns.max(now_ns);
                tally.ok += 1;
                tally.missed += u64::from(end == End::Missed);
                tally.verified += u64::from(ask.verify || end == End::Wrong);
                tally.wrong += u64::from(end == End::Wrong);
            }
        }
    }
}
