//! One connection of a load: draws requests, packs them into messages, and accounts for their answers.

use super::class::{Class, KeyPopulation};
use super::inserts::InsertTracker;
use super::keys::KeyChooser;
use super::load_request::{LoadRequest, ReplyVerdict};
use super::report::{ClassTally, WRONG_SERVER};
use super::request::{RequestBuffers, VerifyRules};
use super::request_generator::RequestGenerator;
use super::routes::{self, LoadRoutes, MOST_HOPS};
use super::time_line::PeriodRecorder;
use super::{Data, Pace, TenantLoad};
use crate::message::Message;
use crate::raw::{Response, operation_error};
use crate::{Error, limits};
use hdrhistogram::Histogram;
use rand::{Rng, RngCore, SeedableRng, rngs::SmallRng};
use sandstorm_net::rpc::RpcStatus;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The times at which a run begins to count and at which it ends, in nanoseconds since its start.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasurementWindow {
    pub(super) start: Instant,
    pub(super) measure_from_ns: u64,
    pub(super) end_ns: u64,
}

impl MeasurementWindow {
    pub(super) fn now_ns(&self) -> u64 {
        self.ns_at(Instant::now())
    }

    pub(super) fn ns_at(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_nanos() as u64
    }
}

/// Number of answers that take about as long to handle as the clock takes to read.
const ANSWERS_PER_CLOCK_READ: usize = 2;

/// State that a connection shares with the others of its tenant, and of its thread.
#[derive(Clone)]
pub(super) struct ConnectionContext<'l> {
    pub(super) growth: &'l InsertTracker,
    /// Latencies since they were last taken, for the line of progress.
    pub(super) recent_ns: Rc<RefCell<Histogram<u64>>>,
}

/// When a request ended, in nanoseconds since the start of the run.
#[derive(Clone, Copy)]
struct EndTime {
    /// When the kernel received the answer, if it says so; else as below.
    received_ns: u64,
    /// When the generator looked at it.
    seen_ns: u64,
}

impl From<u64> for EndTime {
    fn from(now_ns: u64) -> EndTime {
        EndTime { received_ns: now_ns, seen_ns: now_ns }
    }
}

/// The outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestOutcome {
    Succeeded,
    /// There was no record, which is as it should be.
    NotFound,
    Wrong,
    Error(&'static str),
}

/// Options for how a connection draws requests and accounts for them.
#[derive(Clone, Copy, Debug)]
pub(super) struct GeneratorOptions {
    pub(super) seed: u64,
    pub(super) verify_every: u64,
    /// Significant digits of latencies.
    pub(super) digits: u8,
}

/// A connection and its requests under way.
pub(super) struct LoadConnection<'l> {
    pub(super) tenant: usize,
    load: &'l TenantLoad,
    routes: LoadRoutes,
    generator: RequestGenerator<'l>,
    scratch: RequestBuffers,
    /// Requests of the message in each slot; the slot's index is the message's mark.
    in_flight: Vec<Vec<LoadRequest>>,
    free: Vec<usize>,
    /// Requests of several steps that go on.
    again: VecDeque<LoadRequest>,
    /// Messages that it may still send, where tenants have no pace of their own.
    credits: Option<usize>,
    /// Answers that clients compute over, until when, in nanoseconds since the start.
    computing: VecDeque<(u64, LoadRequest)>,
    /// Requests whose keys are on another server, with the epoch and the server's words.
    elsewhere: Vec<(LoadRequest, u64, String)>,
    /// Requests for keys whose slots no server owns at the moment, and when they are sent again.
    between_servers: VecDeque<(u64, LoadRequest)>,
    book: ResultRecorder<'l>,
}

/// The queue of requests that one answer does not end.
struct FollowUps<'l> {
    again: &'l mut VecDeque<LoadRequest>,
    computing: &'l mut VecDeque<(u64, LoadRequest)>,
    elsewhere: &'l mut Vec<(LoadRequest, u64, String)>,
    takes: Option<Duration>,
}

impl FollowUps<'_> {
    /// Returns whether a client, on a core of its own, still computes over the answer.
    fn computes(&self, request: &LoadRequest) -> bool {
        self.takes.is_some() && request.class.called().is_some()
    }

    /// All computations take equally long: those that begin first end first.
    fn compute(&mut self, now_ns: u64, request: &LoadRequest) {
        self.computing.push_back((now_ns + self.takes.unwrap_or_default().as_nanos() as u64, *request));
    }
}

/// Accounts for answers.
pub(super) struct ResultRecorder<'l> {
    data: &'l Data,
    times: MeasurementWindow,
    rules: VerifyRules,
    digits: u8,
    shares: ConnectionContext<'l>,
    pub(super) tallies: Vec<Option<Box<ClassTally>>>,
    /// Operations that ended since the start, and those of them with an error.
    pub(super) done: u64,
    pub(super) failed: u64,
    /// The server has said that it is shutting down: nothing more is sent to it.
    pub(super) server_stopping: bool,
    periods: Option<PeriodRecorder>,
}

impl<'l> LoadConnection<'l> {
    pub(super) fn connect(
        tenant: usize,
        load: &'l TenantLoad,
        shares: ConnectionContext<'l>,
        habits: GeneratorOptions,
        times: MeasurementWindow,
    ) -> Result<LoadConnection<'l>, Error> {
        let data = &load.data;
        let choose = |population| {
            KeyChooser::new(load.skew, data.count(population)).map_err(|text| Error::TooLarge { what: text })
        };
        let key_choosers = [
            choose(KeyPopulation::Records)?,
            choose(KeyPopulation::Links)?,
            choose(KeyPopulation::Lists)?,
            choose(KeyPopulation::RowLists)?,
            choose(KeyPopulation::Users)?,
            choose(KeyPopulation::Accounts)?,
        ];
        let mean_gap_ns = match load.pace {
            Pace::Open { per_s, .. } => 1e9 * load.connections.max(1) as f64 / per_s.max(1e-3),
            Pace::Closed { .. } => 0.0,
        };
        let GeneratorOptions { seed, verify_every, digits } = habits;
        let (rng, growth) = (SmallRng::seed_from_u64(seed), shares.growth);
        let generator = RequestGenerator {
            load,
            growth,
            key_choosers,
            rng,
            drawn: 0,
            verify_every,
            mean_gap_ns,
            next_arrival_ns: 0.0,
            key: Vec::new(),
        };
        let rules = VerifyRules::of(load);
        let tallies = Class::ALL.map(|_| None).into();
        let (done, failed, server_stopping) = (0, 0, false);
        let periods = load.time_line.as_ref().map(PeriodRecorder::new);
        let book =
            ResultRecorder { data, times, rules, digits, shares, tallies, done, failed, server_stopping, periods };
        let routes = LoadRoutes::connect(&load.config)?;
        let (scratch, again, computing) = (RequestBuffers::default(), VecDeque::new(), VecDeque::new());
        let (in_flight, free) = (Vec::new(), Vec::new());
        Ok(LoadConnection {
            tenant,
            load,
            routes,
            generator,
            scratch,
            in_flight,
            free,
            again,
            computing,
            elsewhere: Vec::new(),
            between_servers: VecDeque::new(),
            credits: None,
            book,
        })
    }

    /// Begins to count time; connecting took some of it.
    pub(super) fn begin(&mut self, times: MeasurementWindow) {
        self.book.times = times;
        self.generator.next_arrival_ns = self.generator.rng.random::<f64>() * self.generator.mean_gap_ns;
    }

    /// From now on it sends only one message for each call of [`LoadConnection::add_credit`].
    pub(super) fn enable_credits(&mut self) {
        self.credits = Some(0);
    }

    pub(super) fn add_credit(&mut self) {
        self.credits = self.credits.map(|credits| credits + 1);
    }

    /// Returns the number of messages under way, and of those that it is owed.
    pub(super) fn has(&self) -> usize {
        self.in_flight_messages() + self.credits.unwrap_or(0)
    }

    /// Ends early.
    pub(super) fn end_at(&mut self, end_ns: u64) {
        self.book.times.end_ns = end_ns;
    }

    pub(super) fn book(&mut self) -> &mut ResultRecorder<'l> {
        &mut self.book
    }

    pub(super) fn retransmissions(&self) -> u64 {
        self.routes.retransmissions()
    }

    /// Nothing is under way, and nothing is due before the end.
    pub(super) fn is_idle(&self) -> bool {
        let has_sent_all = self.book.server_stopping || self.again.is_empty();
        has_sent_all && self.is_all_answered() && !self.generator.due(self.book.times.end_ns)
    }

    fn has_nothing_pending(&self) -> bool {
        self.is_all_answered() && self.again.is_empty()
    }

    /// No answer is under way.
    fn is_all_answered(&self) -> bool {
        self.free.len() == self.in_flight.len() && self.computing.is_empty() && self.between_servers.is_empty()
    }

    /// The next time, in nanoseconds since the start, at which there is something to do; at once while answers are
    /// awaited.
    pub(super) fn next_poll_ns(&self) -> u64 {
        match self.load.pace {
            Pace::Open { .. } if self.has_nothing_pending() => self.generator.next_arrival_ns as u64,
            // A closed loop always has something under way.
            _ => 0,
        }
    }

    /// The next time, in nanoseconds since the start, at which it has something to do that does not wait for an answer.
    pub(super) fn due_ns(&self) -> u64 {
        let first_ns = |queue: &VecDeque<(u64, LoadRequest)>| queue.front().map_or(u64::MAX, |(until_ns, _)| *until_ns);
        let computed_ns = first_ns(&self.computing).min(first_ns(&self.between_servers));
        match self.load.pace {
            Pace::Open { .. } if self.generator.due(self.book.times.end_ns) => {
                computed_ns.min(self.generator.next_arrival_ns as u64)
            }
            _ => computed_ns,
        }
    }

    /// Returns the socket to sleep on until an answer comes.
    #[inline]
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.routes.first().socket()
    }

    /// Takes answers and sends what is due. Returns whether anything happened. `begun` is roughly the present time: to
    /// read the clock takes longer than some drivers take to bring a packet.
    pub(super) fn turn(&mut self, begun: Instant) -> bool {
        let (answered, now) = self.take_answers(begun);
        let now_ns = self.book.times.ns_at(now);
        while let Some((_, request)) = self.computing.pop_front_if(|(until_ns, _)| *until_ns <= now_ns) {
            self.book.enter(now_ns, &request, RequestOutcome::Succeeded);
        }
        while let Some((_, request)) = self.between_servers.pop_front_if(|(until_ns, _)| *until_ns <= now_ns) {
            self.again.push_back(request);
        }
        let mut sent = false;
        while self.may_send(now_ns) {
            sent = true;
            self.send(now, now_ns);
        }
        if sent {
            self.routes.all().for_each(|connection| connection.flush());
        }
        answered > 0 || sent
    }

    fn in_flight_messages(&self) -> usize {
        let between_servers = self.between_servers.len().div_ceil(self.load.batch.max(1));
        self.in_flight.len() - self.free.len() + self.computing.len() + between_servers
    }

    fn may_send(&self, now_ns: u64) -> bool {
        if self.book.server_stopping {
            return false;
        }
        let before_end = now_ns < self.book.times.end_ns;
        if let Some(credits) = self.credits {
            return self.routes.free_slots() > 0 && (!self.again.is_empty() || credits > 0 && before_end);
        }
        match self.load.pace {
            Pace::Closed { depth } => {
                self.in_flight_messages() < depth.max(1) && (!self.again.is_empty() || before_end)
            }
            Pace::Open { .. } => {
                let until_ns = now_ns.min(self.book.times.end_ns);
                self.routes.free_slots() > 0 && (!self.again.is_empty() || self.generator.due(until_ns))
            }
        }
    }

    /// Returns the number of answers, and the time: if there were none, that at which the turn began.
    fn take_answers(&mut self, begun: Instant) -> (usize, Instant) {
        let LoadConnection { routes, in_flight, free, again, computing, elsewhere, book, scratch, load, .. } = self;
        let mut goes_on = FollowUps { again, computing, elsewhere, takes: load.client_takes };
        // Answers of one look were there together.
        let mut polled = None;
        let mut each = |tag: u64, answer: Result<Response<'_>, Error>| {
            let (_, now_ns) = *polled.get_or_insert_with(|| {
                let now = Instant::now();
                (now, book.times.ns_at(now))
            });
            let slot = tag as usize;
            let Some(requests) = in_flight.get_mut(slot) else { return };
            match answer {
                Ok(response) => {
                    let received_ns = response.arrived().map_or(now_ns, |at| book.times.ns_at(at).min(now_ns));
                    let at = EndTime { received_ns, seen_ns: now_ns };
                    book.answered(at, requests, &response, &mut goes_on, scratch);
                }
                Err(error) => requests.iter().for_each(|request| {
                    scratch.edge_keys.release(request);
                    book.enter(now_ns, request, RequestOutcome::Error(error.code()));
                }),
            }
            requests.clear();
            free.push(slot);
        };
        let answered = routes.all().map(|connection| connection.poll_at(begun, &mut each)).sum();
        let now = match polled {
            // Handling many answers took some time.
            _ if answered > ANSWERS_PER_CLOCK_READ => Instant::now(),
            Some((now, _)) => now,
            None => begun,
        };
        if !self.elsewhere.is_empty() {
            self.follow(now);
        }
        (answered, now)
    }

    /// Has requests go to the servers that have their keys, at once or, where no server owns the slot, in a moment.
    #[cold]
    fn follow(&mut self, now: Instant) {
        let now_ns = self.book.times.ns_at(now);
        for (mut request, epoch, text) in std::mem::take(&mut self.elsewhere) {
            let LoadConnection { book, scratch, .. } = self;
            let key = routes::key_of(Message::of(|message| book.data.write_request(&request, 0, message, scratch)));
            let waited_ns = now_ns.saturating_sub(request.intended_ns);
            let may_wait = !key.is_empty() && waited_ns < self.load.config.deadline.as_nanos() as u64;
            request.hops += 1;
            let code = match self.routes.learn(&key, epoch, &text) {
                Ok(()) if request.hops < MOST_HOPS => {
                    self.again.push_back(request);
                    continue;
                }
                // Servers that learn of a change at different times send on to each other for a moment.
                Ok(()) | Err(Error::WrongServer { .. }) if may_wait => {
                    request.hops = 0;
                    self.between_servers.push_back((now_ns + limits::LOAD_MOVE_PAUSE_NS, request));
                    continue;
                }
                Ok(()) => WRONG_SERVER,
                Err(error) => error.code(),
            };
            self.scratch.edge_keys.release(&request);
            self.book.enter(now_ns, &request, RequestOutcome::Error(code));
        }
    }

    /// The number of a slot for a message.
    fn slot(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.in_flight.push(Vec::new());
            self.in_flight.len() - 1
        })
    }

    /// The next request that is due. `drew` is set if it is a new one, which only `may_draw` allows.
    fn next_request(&mut self, now_ns: u64, may_draw: bool, drew: &mut bool) -> Option<LoadRequest> {
        let end_ns = self.book.times.end_ns;
        self.again.pop_front().or_else(|| match self.load.pace {
            Pace::Closed { .. } => (may_draw && now_ns < end_ns).then(|| {
                *drew = true;
                self.generator.draw(now_ns)
            }),
            Pace::Open { .. } => self.generator.next_arrival(now_ns.min(end_ns)),
        })
    }

    /// Sends one message of requests that are due; in a cluster one to each server that has some of their keys.
    fn send(&mut self, now: Instant, now_ns: u64) {
        let may_draw = self.credits != Some(0);
        let drew = match self.routes.is_cluster() {
            true => self.send_routed(now, now_ns, may_draw),
            false => self.send_one(now, now_ns, may_draw),
        };
        self.credits = self.credits.map(|credits| credits - usize::from(drew && credits > 0));
    }

    fn send_one(&mut self, now: Instant, now_ns: u64, may_draw: bool) -> bool {
        let slot = self.slot();
        let mut message = self.routes.connection(routes::FIRST).message();
        let (mut last, mut count, mut drew) = (0, 0, false);
        while count < self.load.batch.max(1) {
            let before = message.bytes();
            // Operations of one kind are about equally long: the next one fits if the last one would fit again.
            if count > 0 && before + last > self.load.config.packet_bytes() {
                break;
            }
            let Some(request) = self.next_request(now_ns, may_draw, &mut drew) else { break };
            let salt = self.generator.rng.next_u64();
            self.book.data.write_request(&request, salt, &mut message, &mut self.scratch);
            last = message.bytes() - before;
            count += 1;
            self.in_flight.get_mut(slot).iter_mut().for_each(|requests| requests.push(request));
        }
        self.submit(routes::FIRST, slot, message, (now, now_ns));
        drew
    }

    fn send_routed(&mut self, now: Instant, now_ns: u64, may_draw: bool) -> bool {
        let mut parts: Vec<(usize, usize, Message)> = Vec::new();
        let (packet_bytes, mut drew) = (self.load.config.packet_bytes(), false);
        for _ in 0..self.load.batch.max(1) {
            let Some(request) = self.next_request(now_ns, may_draw, &mut drew) else { break };
            let salt = self.generator.rng.next_u64();
            let LoadConnection { book, scratch, .. } = self;
            let one = Message::of(|message| book.data.write_request(&request, salt, message, scratch));
            let number = self.routes.owner(&routes::key_of(one.clone()));
            let fits = |part: &Message| part.bytes() + one.bytes() <= packet_bytes;
            let slot = match parts.iter_mut().find(|(known, _, part)| *known == number && fits(part)) {
                Some((_, slot, part)) => {
                    part.append(&one);
                    *slot
                }
                None => {
                    let slot = self.slot();
                    parts.push((number, slot, one));
                    slot
                }
            };
            self.in_flight.get_mut(slot).iter_mut().for_each(|requests| requests.push(request));
        }
        for (number, slot, message) in parts {
            self.submit(number, slot, message, (now, now_ns));
        }
        drew
    }

    fn submit(&mut self, number: usize, slot: usize, message: Message, (now, now_ns): (Instant, u64)) {
        if let Err(error) = self.routes.connection(number).send_at(now, slot as u64, message) {
            let Some(requests) = self.in_flight.get_mut(slot) else { return };
            requests.iter().for_each(|request| self.book.enter(now_ns, request, RequestOutcome::Error(error.code())));
            requests.clear();
            self.free.push(slot);
        }
    }

    /// Counts requests that are still under way or were never sent, when the run has waited long enough.
    pub(super) fn abandon(&mut self) {
        let now_ns = self.book.times.now_ns();
        for requests in &mut self.in_flight {
            requests.drain(..).for_each(|request| self.book.enter(now_ns, &request, RequestOutcome::Error("timeout")));
        }
        for request in self.again.drain(..) {
            self.book.enter(now_ns, &request, RequestOutcome::Error("unsent"));
        }
        for (_, request) in self.between_servers.drain(..) {
            self.book.enter(now_ns, &request, RequestOutcome::Error(WRONG_SERVER));
        }
        for (_, request) in self.computing.drain(..) {
            self.book.enter(now_ns, &request, RequestOutcome::Succeeded);
        }
        while let Some(request) = self.generator.next_arrival(self.book.times.end_ns) {
            self.book.enter(now_ns, &request, RequestOutcome::Error("unsent"));
        }
    }
}

impl ResultRecorder<'_> {
    fn answered(
        &mut self,
        at: EndTime,
        requests: &mut [LoadRequest],
        response: &Response<'_>,
        goes_on: &mut FollowUps<'_>,
        scratch: &mut RequestBuffers,
    ) {
        let mut answers = response.operations();
        // A message refused as a whole may be answered by one operation: it stands for all.
        let mut whole = "protocol";
        for request in requests {
            let answer = match answers.next() {
                Some(Ok(answer)) => answer,
                Some(Err(_)) | None => {
                    self.enter(at, request, RequestOutcome::Error(whole));
                    continue;
                }
            };
            if let Some(error) = operation_error(&answer) {
                if let Error::WrongServer { epoch, text } = &error {
                    goes_on.elsewhere.push((*request, *epoch, text.clone()));
                    continue;
                }
                scratch.edge_keys.release(request);
                whole = error.code();
                self.enter(at, request, RequestOutcome::Error(whole));
                continue;
            }
            let found = answer.status == RpcStatus::Ok;
            match self.data.check_reply(request, found, answer.value, self.rules, scratch) {
                ReplyVerdict::NextStep => goes_on.again.push_back(*request),
                ReplyVerdict::Done if goes_on.computes(request) => goes_on.compute(at.seen_ns, request),
                ReplyVerdict::Done if found => self.enter(at, request, RequestOutcome::Succeeded),
                ReplyVerdict::Done => self.enter(at, request, RequestOutcome::NotFound),
                ReplyVerdict::Wrong => self.enter(at, request, RequestOutcome::Wrong),
            }
        }
    }

    /// Gives what was found over time to the run's collector, if one was given.
    pub(super) fn gather_periods(&mut self) {
        if let Some(periods) = self.periods.take() {
            periods.gather(self.times.start);
        }
    }

    /// Enters a request that ended.
    fn enter(&mut self, at: impl Into<EndTime>, request: &LoadRequest, end: RequestOutcome) {
        let EndTime { received_ns, seen_ns } = at.into();
        let well = !matches!(end, RequestOutcome::Error(_));
        self.server_stopping |= matches!(end, RequestOutcome::Error(super::report::SHUTTING_DOWN));
        self.done += 1;
        self.failed += u64::from(!well);
        let latency_ns = received_ns.saturating_sub(request.intended_ns).max(1);
        self.shares.recent_ns.borrow_mut().saturating_record(latency_ns);
        if let Some(periods) = &mut self.periods {
            periods.note(seen_ns, request.class, latency_ns, well);
        }
        if request.class == Class::Insert {
            self.shares.growth.ended(request.id, well);
        }
        if request.intended_ns < self.times.measure_from_ns {
            return;
        }
        let Some(tally) = self.tallies.get_mut(request.class.index()) else { return };
        let tally = tally.get_or_insert_with(|| Box::new(ClassTally::new(self.digits)));
        tally.latency_ns.saturating_record(latency_ns);
        tally.seen_ns.saturating_record(seen_ns.saturating_sub(request.intended_ns).max(1));
        match end {
            RequestOutcome::Error(code) => *tally.errors.entry(code).or_default() += 1,
            RequestOutcome::Succeeded | RequestOutcome::NotFound | RequestOutcome::Wrong => {
                tally.last_ns = tally.last_ns.max(seen_ns);
                tally.ok += 1;
                tally.missed += u64::from(end == RequestOutcome::NotFound);
                tally.verified += u64::from(request.verify || end == RequestOutcome::Wrong);
                tally.wrong += u64::from(end == RequestOutcome::Wrong);
            }
        }
    }
}
