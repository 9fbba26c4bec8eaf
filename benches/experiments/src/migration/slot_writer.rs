//! A client of Redis Cluster that writes to keys of the slots that move, one write at a time, and notes when each was
//! acknowledged.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sandstorm_client::load::keys;
use sandstorm_net::slots::slot_of;
use sandstorm_terminal::output::CliError;

use super::super::cluster_server::PATIENCE;
use super::super::peer_server::RedisConnection;
use super::{MOVING, RECORD_BYTES};

/// Keys that it writes, one after the other.
const KEYS: usize = 1_000;
/// Pause behind a write that was acknowledged, and before one is tried again.
const WRITE_PAUSE: Duration = Duration::from_micros(200);

/// The times at which writes were acknowledged.
pub(super) struct AcknowledgedWrites(Vec<Instant>);

impl AcknowledgedWrites {
    /// The longest time without one between two moments, in milliseconds; NaN if there were none.
    pub(super) fn longest_pause_ms(&self, from: Instant, to: Instant) -> f64 {
        let pairs = self.0.iter().zip(self.0.iter().skip(1));
        let inside = pairs.filter(|(before, after)| **after > from && **before < to);
        let gaps_ms = inside.map(|(before, after)| (*after - *before).as_secs_f64() * 1_000.0);
        gaps_ms.fold(f64::NAN, f64::max)
    }
}

/// The connections, and where slots are.
struct SlotWriter {
    first: SocketAddr,
    connections: HashMap<SocketAddr, RedisConnection>,
    owners: HashMap<u16, SocketAddr>,
}

impl SlotWriter {
    fn command(&mut self, at: SocketAddr, words: &[&[u8]]) -> Result<Result<Vec<u8>, String>, CliError> {
        let connection = match self.connections.entry(at) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => new.insert(RedisConnection::connect(at)?),
        };
        connection.ask(words)
    }

    /// Writes until it is acknowledged, wherever the servers say that the key is.
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<(), CliError> {
        let (slot, words, begun) = (slot_of(key), [&b"SET"[..], key, value], Instant::now());
        let mut asked_at = None;
        while begun.elapsed() < PATIENCE {
            let at = asked_at.unwrap_or_else(|| self.owners.get(&slot).copied().unwrap_or(self.first));
            if asked_at.take().is_some() {
                let _accepted = self.command(at, &[b"ASKING"])?;
            }
            let Err(refusal) = self.command(at, &words)? else { return Ok(()) };
            let mut parts = refusal.split(' ');
            let (kind, _slot, owner) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
            match (kind, owner.and_then(|owner| owner.parse().ok())) {
                ("MOVED", Some(owner)) => drop(self.owners.insert(slot, owner)),
                ("ASK", Some(owner)) => asked_at = Some(owner),
                ("TRYAGAIN" | "CLUSTERDOWN", _) => std::thread::sleep(WRITE_PAUSE),
                _ => return Err(CliError::new(format!("a write was refused: {refusal}"))),
            }
        }
        Err(CliError::new(format!("a write was not acknowledged within {PATIENCE:?}")))
    }
}

/// Writes to records below `records` whose slots move, until it is told to stop. It begins at one server.
pub(super) fn write_until(stop: &AtomicBool, first: SocketAddr, records: u64) -> Result<AcknowledgedWrites, CliError> {
    let (mut key, mut value, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    for id in 0..records {
        keys::write_key(keys::RECORD, id, RECORD_BYTES.0, &mut key);
        if MOVING.contains(&slot_of(&key)) {
            ids.push(id);
        }
        if ids.len() == KEYS {
            break;
        }
    }
    let mut writer = SlotWriter { first, connections: HashMap::new(), owners: HashMap::new() };
    let mut acknowledged = Vec::new();
    for (salt, id) in (0..).zip(ids.iter().cycle()) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        keys::write_key(keys::RECORD, *id, RECORD_BYTES.0, &mut key);
        keys::write_value(*id, salt, RECORD_BYTES.1, &mut value);
        writer.write(&key, &value)?;
        acknowledged.push(Instant::now());
        std::thread::sleep(WRITE_PAUSE);
    }
    Ok(AcknowledgedWrites(acknowledged))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pause_is_that_of_the_time_that_is_asked_for() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let writes = AcknowledgedWrites([0, 10, 40, 45, 50, 150].map(at).into());
        let pause = |from: u64, to: u64| writes.longest_pause_ms(at(from), at(to)).round();
        assert_eq!([pause(0, 200), pause(0, 45), pause(42, 50), pause(20, 30)], [100.0, 30.0, 5.0, 30.0]);
        assert!(writes.longest_pause_ms(at(160), at(170)).is_nan());
    }
}
