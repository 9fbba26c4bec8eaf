//! Who is let in at a port: how many at once, how many from one address, and what becomes of those who try
//! tokens that are nobody's.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::stream::Broken;
use crate::limits::control::{
    FAILURE_DELAY, FAILURE_DELAY_MAX, FAILURES_FORGOTTEN, FAILURES_REMEMBERED, FAILURES_WITHOUT_DELAY, LOG_EVERY,
    MAX_CONNECTIONS, MAX_CONNECTIONS_OF_ONE, MAX_REMOTE_CONNECTIONS,
};

/// The door of a port.
#[derive(Debug)]
pub(crate) struct Door {
    /// The port's name, for the log.
    name: &'static str,
    places: Arc<Semaphore>,
    remote: Mutex<HashMap<IpAddr, usize>>,
    failures: Mutex<Failures>,
    counts: Counts,
}

/// What is counted at the door; several threads count.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Requests with a token that is nobody's.
    pub(crate) wrong_tokens: AtomicU64,
    /// Connections to a port with TLS that spoke something else.
    pub(crate) not_tls: AtomicU64,
    /// Handshakes that failed.
    pub(crate) handshakes: AtomicU64,
    /// Connections that did not send a request, or read its answer, in time.
    pub(crate) too_slow: AtomicU64,
    /// Connections of one address beyond its share.
    pub(crate) crowded: AtomicU64,
}

/// A connection's place; given back when dropped.
pub(crate) struct Place {
    door: Arc<Door>,
    /// Whose share it comes from; none of this machine's own.
    address: Option<IpAddr>,
    _permit: OwnedSemaphorePermit,
}

/// Wrong tokens of late, by address.
#[derive(Debug, Default)]
struct Failures {
    by_address: HashMap<IpAddr, (u32, Instant)>,
    logged: Option<Instant>,
    unlogged: u64,
}

impl Door {
    /// The door of the port that the log calls so.
    pub(crate) fn new(name: &'static str) -> Arc<Door> {
        Arc::new(Door {
            name,
            places: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            remote: Mutex::default(),
            failures: Mutex::default(),
            counts: Counts::default(),
        })
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Waits until there is a place for one more connection.
    pub(crate) async fn wait(&self) -> OwnedSemaphorePermit {
        match self.places.clone().acquire_owned().await {
            Ok(permit) => permit,
            // The semaphore is never closed.
            Err(_) => std::future::pending().await,
        }
    }

    /// The place of a connection from there; `None` if that address, or all other machines together, have theirs already.
    pub(crate) fn place(self: &Arc<Door>, from: IpAddr, permit: OwnedSemaphorePermit) -> Option<Place> {
        let from = from.to_canonical();
        if from.is_loopback() {
            return Some(Place { door: self.clone(), address: None, _permit: permit });
        }
        let address = network(from);
        let mut remote = self.remote.lock();
        let all: usize = remote.values().sum();
        let own = remote.get(&address).copied().unwrap_or(0);
        if all >= MAX_REMOTE_CONNECTIONS || own >= MAX_CONNECTIONS_OF_ONE {
            self.counts.crowded.fetch_add(1, Relaxed);
            return None;
        }
        remote.insert(address, own + 1);
        Some(Place { door: self.clone(), address: Some(address), _permit: permit })
    }

    /// Whether half of the places are taken: connections should not outlive their requests then.
    pub(crate) fn is_crowded(&self) -> bool {
        self.places.available_permits() < MAX_CONNECTIONS / 2
    }

    /// Counts a connection that came to nothing.
    pub(crate) fn broken(&self, why: Broken) {
        match why {
            Broken::NotTls => self.counts.not_tls.fetch_add(1, Relaxed),
            Broken::Handshake => self.counts.handshakes.fetch_add(1, Relaxed),
        };
    }

    /// Notes a token that is nobody's; gives how long the answer is to be held back. Right tokens are never held back,
    /// whoever else tries from the same address.
    pub(crate) fn failed(&self, from: IpAddr) -> Duration {
        self.counts.wrong_tokens.fetch_add(1, Relaxed);
        self.failures.lock().note(self.name, from.to_canonical(), Instant::now())
    }
}

impl Failures {
    fn note(&mut self, port: &'static str, from: IpAddr, now: Instant) -> Duration {
        let address = network(from);
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
        if self.logged.is_none_or(|logged| now.saturating_duration_since(logged) >= LOG_EVERY) {
            let others = self.unlogged - 1;
            tracing::warn!(peer = %from, lately = count, others, "{port}: a token that is nobody's");
            (self.logged, self.unlogged) = (Some(now), 0);
        }
        match count.checked_sub(FAILURES_WITHOUT_DELAY + 1) {
            None => Duration::ZERO,
            Some(more) => FAILURE_DELAY.saturating_mul(1 << more.min(16)).min(FAILURE_DELAY_MAX),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(address) = self.address else { return };
        let mut remote = self.door.remote.lock();
        if let Some(count) = remote.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                remote.remove(&address);
            }
        }
    }
}

/// The address, or for IPv6 the /64 that one party has to itself.
fn network(address: IpAddr) -> IpAddr {
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
        let mut failures = Failures::default();
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
        network(text.parse().unwrap())
    }

    #[test]
    fn other_machines_leave_places_for_this_one_and_for_each_other() {
        let door = Door::new("port");
        let take = |address: &str| {
            let permit = door.places.clone().try_acquire_owned().expect("a place is left");
            door.place(address.parse().unwrap(), permit)
        };
        let of_one: Vec<_> = (0..MAX_CONNECTIONS_OF_ONE).map(|_| take("10.0.0.1").expect("its share")).collect();
        assert!(take("10.0.0.1").is_none() && take("::ffff:10.0.0.1").is_none());
        let others: Vec<_> =
            (0..MAX_CONNECTIONS).filter_map(|n| take(&format!("10.0.{}.{}", n / 200 + 1, n % 200))).collect();
        assert_eq!(of_one.len() + others.len(), MAX_REMOTE_CONNECTIONS);
        assert!(door.is_crowded());
        let own: Vec<_> =
            (MAX_REMOTE_CONNECTIONS..MAX_CONNECTIONS).map(|_| take("127.0.0.1").expect("kept free")).collect();
        assert!(door.places.clone().try_acquire_owned().is_err());
        drop((of_one, others, own));
        assert_eq!((door.places.available_permits(), door.remote.lock().len()), (MAX_CONNECTIONS, 0));
    }
}
