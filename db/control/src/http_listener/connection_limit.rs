//! The connection limits of a port: how many at once, how many from one address, which one is evicted at a limit. It
//! also delays the answers to wrong tokens.
//!
//! A connection is safe from eviction only while a request with a good token is worked on. At a limit, the connection
//! that has waited longest of the others is evicted. So incomplete headers, handshakes and bodies, and idle
//! connections, do not lock out other clients.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::sent_note::SentNote;
use super::tls_stream::HandshakeFailure;
use crate::limits::{
    FAILURE_DELAY, FAILURE_DELAY_MAX, FAILURES_FORGOTTEN, FAILURES_REMEMBERED, FAILURES_WITHOUT_DELAY,
    FILES_PER_CONNECTION, LOG_INTERVAL, MAX_CONNECTIONS, MAX_CONNECTIONS_PER_ADDRESS, MIN_CONNECTIONS,
    RESERVED_FOR_OPERATOR_ONE_IN,
};

/// The connection limiter of a port.
#[derive(Debug)]
pub(crate) struct ConnectionLimiter {
    /// The port's name, for the log.
    name: &'static str,
    /// Connections at a time.
    limit: usize,
    state: Mutex<LimiterState>,
    /// Signals that a connection has left, or can be evicted.
    room: Notify,
    failures: Mutex<AuthFailures>,
    counts: ConnectionCounters,
}

/// The counters of the limiter; several threads count.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCounters {
    /// Requests with a wrong token.
    pub(crate) wrong_tokens: AtomicU64,
    /// Connections to a port with TLS that spoke something else.
    pub(crate) not_tls: AtomicU64,
    /// Handshakes that failed.
    pub(crate) handshakes: AtomicU64,
    /// Connections that did not send a request, or read its answer, in time.
    pub(crate) too_slow: AtomicU64,
    /// Connections of one address beyond its limit.
    pub(crate) crowded: AtomicU64,
    /// Connections that were evicted for a later one: no request with a good token was worked on there.
    pub(crate) shed: AtomicU64,
}

/// The connections of the port.
#[derive(Debug, Default)]
struct LimiterState {
    /// Connections that have not been evicted.
    live: usize,
    /// Of these, those of other machines, by address.
    remote: HashMap<IpAddr, usize>,
    /// Connections that can be evicted, in the order in which they came or had their last answer.
    waiting: BTreeMap<u64, Arc<TrackedConnection>>,
    /// Connections that cannot.
    safe: usize,
    next: u64,
}

/// A connection as the limiter tracks it.
#[derive(Debug)]
struct TrackedConnection {
    /// The address whose limit it counts for; none of this machine's own.
    address: Option<IpAddr>,
    /// Whether it has been evicted.
    shed: AtomicBool,
    state: Mutex<EvictionState>,
    /// What is to be done when the answer under way has left.
    sent: SentNote,
}

#[derive(Debug, Default)]
struct EvictionState {
    /// Its key among the waiting connections; `None` while it is safe.
    waits: Option<u64>,
    waker: Option<Waker>,
}

/// A connection's slot; released when dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit(PermitHandle);

/// A request's handle of its connection's slot.
#[derive(Clone, Debug)]
pub(crate) struct PermitHandle {
    limiter: Arc<ConnectionLimiter>,
    seat: Arc<TrackedConnection>,
}

/// Recent wrong tokens, by address.
#[derive(Debug, Default)]
struct AuthFailures {
    by_address: HashMap<IpAddr, (u32, Instant)>,
    logged: Option<Instant>,
    unlogged: u64,
    /// When the lack of file descriptors was last logged.
    no_files: Option<Instant>,
}

impl ConnectionLimiter {
    /// The limiter of a port; `name` is the port's name in the log.
    pub(crate) fn new(name: &'static str) -> Arc<ConnectionLimiter> {
        // A process that may open few files reserves most of them for its other work.
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let part =
            files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX) / FILES_PER_CONNECTION);
        ConnectionLimiter::with_limit(name, part.clamp(MIN_CONNECTIONS, MAX_CONNECTIONS))
    }

    fn with_limit(name: &'static str, limit: usize) -> Arc<ConnectionLimiter> {
        Arc::new(ConnectionLimiter {
            name,
            limit,
            state: Mutex::default(),
            room: Notify::new(),
            failures: Mutex::default(),
            counts: ConnectionCounters::default(),
        })
    }

    pub(crate) fn counts(&self) -> &ConnectionCounters {
        &self.counts
    }

    /// Waits until there is a slot for one more connection, or one that can be freed.
    pub(crate) async fn wait(&self) {
        loop {
            let left = self.room.notified();
            {
                let state = self.state.lock();
                if state.live < self.limit || !state.waiting.is_empty() {
                    return;
                }
            }
            left.await;
        }
    }

    /// Slots that other machines may have: the rest is for the operator on this one.
    fn remote_limit(&self) -> usize {
        self.limit - self.limit / RESERVED_FOR_OPERATOR_ONE_IN
    }

    /// Reserves a slot for a connection from that address. At a limit, of its address, of all other machines or of the
    /// port, the connection there that has waited longest is evicted. `None` if all of them are being served.
    pub(crate) fn place(self: &Arc<ConnectionLimiter>, from: IpAddr) -> Option<ConnectionPermit> {
        let address = counted_address(from);
        let mut state = self.state.lock();
        let has_room = match address {
            Some(own) => {
                let all: usize = state.remote.values().sum();
                let mine = state.remote.get(&own).copied().unwrap_or(0);
                let of_one = MAX_CONNECTIONS_PER_ADDRESS.min(self.remote_limit());
                (mine < of_one || self.shed(&mut state, |seat| seat.address == Some(own)))
                    && (all < self.remote_limit()
                        || mine >= of_one
                        || self.shed(&mut state, |seat| seat.address.is_some()))
            }
            None => true,
        };
        if !has_room || (state.live >= self.limit && !self.shed(&mut state, |_| true)) {
            self.counts.crowded.fetch_add(1, Relaxed);
            return None;
        }
        state.live += 1;
        if let Some(address) = address {
            *state.remote.entry(address).or_default() += 1;
        }
        let (shed, sent) = (AtomicBool::new(false), SentNote::default());
        let seat = Arc::new(TrackedConnection { address, shed, state: Mutex::default(), sent });
        state.wait(&seat);
        Some(ConnectionPermit(PermitHandle { limiter: self.clone(), seat }))
    }

    /// Evicts the connection that has waited longest of those that match. Returns whether there was one. Its slot is
    /// free at once.
    fn shed(&self, state: &mut LimiterState, meant: impl Fn(&TrackedConnection) -> bool) -> bool {
        let found = state.waiting.iter().find(|(_, seat)| meant(seat)).map(|(key, _)| *key);
        let Some(seat) = found.and_then(|key| state.waiting.remove(&key)) else { return false };
        state.leave(seat.address);
        let mut state = seat.state.lock();
        state.waits = None;
        seat.shed.store(true, Relaxed);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
        self.counts.shed.fetch_add(1, Relaxed);
        true
    }

    /// Evicts the connection that has waited longest, to free its file descriptor. Returns whether there was one.
    pub(crate) fn evict_one(&self) -> bool {
        self.shed(&mut self.state.lock(), |_| true)
    }

    /// Notes that the process may open no more files.
    pub(crate) fn no_files(&self, error: &std::io::Error) {
        let mut failures = self.failures.lock();
        let now = Instant::now();
        if failures.no_files.is_none_or(|logged| now.saturating_duration_since(logged) >= LOG_INTERVAL) {
            failures.no_files = Some(now);
            tracing::warn!(%error, "{}: no connection can be accepted; raise the limit of open files (LimitNOFILE)", self.name);
        }
    }

    /// Connections at a time.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Whether half of the slots are in use: then connections should not outlive their requests.
    pub(crate) fn is_crowded(&self) -> bool {
        self.state.lock().live > self.limit / 2
    }

    /// Counts a connection that failed before its first request.
    pub(crate) fn broken(&self, why: HandshakeFailure) {
        match why {
            HandshakeFailure::NotTls => self.counts.not_tls.fetch_add(1, Relaxed),
            HandshakeFailure::Failed => self.counts.handshakes.fetch_add(1, Relaxed),
        };
    }

    /// Notes a wrong token. Returns the delay of the answer. Right tokens are never delayed, even if other clients try
    /// wrong ones from the same address.
    pub(crate) fn failed(&self, from: IpAddr) -> Duration {
        self.counts.wrong_tokens.fetch_add(1, Relaxed);
        self.failures.lock().note(self.name, from.to_canonical(), Instant::now())
    }
}

impl AuthFailures {
    fn note(&mut self, port: &'static str, from: IpAddr, now: Instant) -> Duration {
        let address = ip_prefix(from);
        let fresh = |(_, last): &(u32, Instant)| now.saturating_duration_since(*last) < FAILURES_FORGOTTEN;
        if !self.by_address.contains_key(&address) && self.by_address.len() >= FAILURES_REMEMBERED {
            self.by_address.retain(|_, failures| fresh(failures));
            if self.by_address.len() >= FAILURES_REMEMBERED {
                let oldest = self.by_address.iter().min_by_key(|(_, (_, last))| *last).map(|(address, _)| *address);
                oldest.and_then(|oldest| self.by_address.remove(&oldest));
            }
        }
        let so_far = self.by_address.get(&address).filter(|failures| fresh(failures)).map_or(0, |(count, _)| *count);
        let count = so_far.saturating_add(1);
        self.by_address.insert(address, (count, now));
        self.unlogged += 1;
        if self.logged.is_none_or(|logged| now.saturating_duration_since(logged) >= LOG_INTERVAL) {
            let others = self.unlogged - 1;
            tracing::warn!(peer = %from, lately = count, others, "{port}: unknown token");
            (self.logged, self.unlogged) = (Some(now), 0);
        }
        match count.checked_sub(FAILURES_WITHOUT_DELAY + 1) {
            None => Duration::ZERO,
            Some(more) => FAILURE_DELAY.saturating_mul(1 << more.min(16)).min(FAILURE_DELAY_MAX),
        }
    }
}

impl LimiterState {
    /// Puts a connection at the end of the waiting ones.
    fn wait(&mut self, seat: &Arc<TrackedConnection>) {
        seat.state.lock().waits = Some(self.next);
        self.waiting.insert(self.next, seat.clone());
        self.next += 1;
    }

    /// Releases the slot of a connection.
    fn leave(&mut self, address: Option<IpAddr>) {
        self.live -= 1;
        let Some(address) = address else { return };
        if let Some(count) = self.remote.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.remote.remove(&address);
            }
        }
    }
}

impl PermitHandle {
    /// Has `then` called once the answer to the request under way is with the kernel.
    pub(crate) fn when_sent(&self, then: impl FnOnce() + Send + 'static) {
        self.seat.sent.set(then);
    }

    /// Marks the connection as safe while a request with a good token is worked on, until its answer begins. Operators'
    /// connections always become safe; tenants' only while some slots stay evictable.
    pub(crate) fn serve(&self, operator: bool) {
        let mut state = self.limiter.state.lock();
        if self.is_evicted() || !operator && state.safe >= self.limiter.remote_limit() {
            return;
        }
        let waits = self.seat.state.lock().waits.take();
        if let Some(key) = waits {
            state.waiting.remove(&key);
            state.safe += 1;
        }
    }

    pub(crate) fn is_evicted(&self) -> bool {
        self.seat.shed.load(Relaxed)
    }
}

impl ConnectionPermit {
    /// A handle of the slot for a request.
    pub(crate) fn visit(&self) -> PermitHandle {
        self.0.clone()
    }

    /// Notes that the answer begins: the connection waits again, behind all others.
    pub(crate) fn answered(&self) {
        let PermitHandle { limiter, seat } = &self.0;
        let mut state = limiter.state.lock();
        let waits = seat.state.lock().waits.take();
        match waits {
            Some(key) => drop(state.waiting.remove(&key)),
            None if self.0.is_evicted() => return,
            None => state.safe -= 1,
        }
        state.wait(seat);
        limiter.room.notify_one();
    }

    /// Notes that bytes were written.
    pub(crate) fn note_written(&self) {
        self.0.seat.sent.note_written();
    }

    /// Notes that all that was written is with the kernel.
    pub(crate) fn note_flushed(&self) {
        self.0.seat.sent.note_flushed();
    }

    /// Ready once the connection has been evicted.
    pub(crate) fn poll_evicted(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.0.seat.state.lock();
        if self.0.is_evicted() {
            return Poll::Ready(());
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let PermitHandle { limiter, seat } = &self.0;
        let mut state = limiter.state.lock();
        if self.0.is_evicted() {
            return;
        }
        let waits = seat.state.lock().waits.take();
        match waits {
            Some(key) => drop(state.waiting.remove(&key)),
            None => state.safe -= 1,
        }
        state.leave(seat.address);
        limiter.room.notify_one();
    }
}

/// The address whose limit a connection counts for. `None`: it is of this machine.
pub(crate) fn counted_address(from: IpAddr) -> Option<IpAddr> {
    let from = from.to_canonical();
    (!from.is_loopback()).then(|| ip_prefix(from))
}

/// The address, or for IPv6 its /64, which one party has to itself.
fn ip_prefix(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_tokens_are_slowed_by_address_and_remembered_within_bounds() {
        let mut failures = AuthFailures::default();
        let now = Instant::now();
        let ip = |last: u32| IpAddr::V4((0x0A00_0000 + last).into());
        let delays: Vec<Duration> = (0..12).map(|_| failures.note("port", ip(1), now)).collect();
        assert!(delays[..FAILURES_WITHOUT_DELAY as usize].iter().all(Duration::is_zero));
        assert!(delays.windows(2).all(|pair| pair[0] <= pair[1]));
        assert_eq!(*delays.last().unwrap(), FAILURE_DELAY_MAX);
        assert_eq!(failures.note("port", ip(2), now), Duration::ZERO, "another address");
        assert_eq!(failures.note("port", ip(1), now + FAILURES_FORGOTTEN), Duration::ZERO, "it is forgotten");
        for n in 0..5_000 {
            failures.note("port", ip(n), now);
        }
        assert!(failures.by_address.len() <= FAILURES_REMEMBERED);
        let of_one_network = |last: &str| failures_key(&format!("2001:db8:1:2::{last}"));
        assert_eq!(of_one_network("1"), of_one_network("ffff"));
    }

    fn failures_key(text: &str) -> IpAddr {
        ip_prefix(text.parse().unwrap())
    }

    fn take(limiter: &Arc<ConnectionLimiter>, address: &str) -> Option<ConnectionPermit> {
        limiter.place(address.parse().unwrap())
    }

    /// A connection with a request with a good token in progress.
    fn serve(limiter: &Arc<ConnectionLimiter>, address: &str) -> Option<ConnectionPermit> {
        take(limiter, address).inspect(|place| place.visit().serve(true))
    }

    fn is_asked_to_leave(place: &ConnectionPermit) -> bool {
        place.poll_evicted(&Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn other_machines_leave_places_for_this_one_and_for_each_other() {
        let limiter = ConnectionLimiter::with_limit("port", MAX_CONNECTIONS);
        let of_one: Vec<_> =
            (0..MAX_CONNECTIONS_PER_ADDRESS).map(|_| serve(&limiter, "10.0.0.1").expect("its share")).collect();
        assert!(take(&limiter, "10.0.0.1").is_none() && take(&limiter, "::ffff:10.0.0.1").is_none());
        let others: Vec<_> = (0..MAX_CONNECTIONS)
            .filter_map(|n| serve(&limiter, &format!("10.0.{}.{}", n / 200 + 1, n % 200)))
            .collect();
        assert_eq!(of_one.len() + others.len(), limiter.remote_limit());
        assert!(limiter.is_crowded());
        let own: Vec<_> = (limiter.remote_limit()..MAX_CONNECTIONS)
            .map(|_| serve(&limiter, "127.0.0.1").expect("kept free"))
            .collect();
        assert!(take(&limiter, "127.0.0.1").is_none());
        assert!(!of_one.iter().chain(&others).chain(&own).any(is_asked_to_leave), "all of them are being served");
        drop((of_one, others, own));
        let state = limiter.state.lock();
        assert_eq!((state.live, state.safe, state.remote.len(), state.waiting.len()), (0, 0, 0, 0));
    }

    #[test]
    fn where_a_limit_is_met_the_one_leaves_that_has_waited_longest_and_none_that_is_served() {
        let limiter = ConnectionLimiter::with_limit("port", MAX_CONNECTIONS);
        let served = serve(&limiter, "127.0.0.1").unwrap();
        let half: Vec<_> = (0..10_000).map(|_| take(&limiter, "127.0.0.1").expect("always")).collect();
        let left = half.iter().filter(|place| is_asked_to_leave(place)).count();
        assert_eq!(left, 10_000 - (MAX_CONNECTIONS - 1));
        assert!(half[..left].iter().all(is_asked_to_leave) && !is_asked_to_leave(&served), "the oldest");
        // A connection that had its answer is the youngest; it may still be evicted later.
        served.answered();
        let more: Vec<_> = (1..MAX_CONNECTIONS).map(|_| take(&limiter, "127.0.0.1").unwrap()).collect();
        assert!(!is_asked_to_leave(&served));
        let last = take(&limiter, "127.0.0.1").unwrap();
        assert!(is_asked_to_leave(&served) && !is_asked_to_leave(&last));
        drop((served, half, more, last));
        assert_eq!(limiter.state.lock().live, 0);
    }

    #[test]
    fn an_address_that_takes_its_share_pushes_out_its_own() {
        let limiter = ConnectionLimiter::with_limit("port", MAX_CONNECTIONS);
        let other = take(&limiter, "10.0.0.2").unwrap();
        let own: Vec<_> = (0..1_000).map(|_| take(&limiter, "10.0.0.1").unwrap()).collect();
        assert!(!is_asked_to_leave(&other));
        assert_eq!(own.iter().filter(|place| !is_asked_to_leave(place)).count(), MAX_CONNECTIONS_PER_ADDRESS);
        let many: Vec<_> =
            (0..1_000).map(|n| take(&limiter, &format!("10.1.{}.{}", n / 200, n % 200)).unwrap()).collect();
        assert!(is_asked_to_leave(&other) && !is_asked_to_leave(many.last().unwrap()));
        assert_eq!(limiter.state.lock().live, limiter.remote_limit());
    }

    #[test]
    fn tenants_leave_places_that_the_operator_can_have() {
        let limiter = ConnectionLimiter::with_limit("port", MAX_CONNECTIONS);
        let tenants: Vec<_> = (0..MAX_CONNECTIONS)
            .map(|_| take(&limiter, "127.0.0.1").inspect(|place| place.visit().serve(false)).unwrap())
            .collect();
        assert!(!tenants.iter().any(is_asked_to_leave));
        let operator = serve(&limiter, "127.0.0.1").expect("one of the last tenants' leaves");
        assert_eq!(tenants.iter().filter(|place| is_asked_to_leave(place)).count(), 1);
        assert!(!is_asked_to_leave(&operator));
    }
}
