//! The thread that looks after streams: whether the one in use keeps what it has, and which are needed no more. Those
//! are streams of this server's log that no generation has, of an earlier start for example; those that this server has
//! read to take another one's place; and those of servers that were removed from the cluster.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::copy_coordinator::{CopyCoordinator, CopyName};
use crate::limits::{COPY_SWEEP_INTERVAL, STREAM_CARE_TICK, STREAM_FAULT_LOOK, SWEEP_MAP_AGE};
use crate::stream_copies::{STREAM_HOLDER, StreamCopies};

/// The copies of this server's log that have links now; `None`: these have ended.
pub(crate) type LinkedCopies = Box<dyn Fn() -> Option<Vec<CopyName>> + Send>;

/// The thread. It ends soon after this is dropped, which does not wait: it may be waiting for an answer.
pub(crate) struct StreamCaretaker {
    stop: Arc<AtomicBool>,
}

impl Drop for StreamCaretaker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl StreamCaretaker {
    /// Starts it; `None`: copies are on servers.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn start(
        copies: &Arc<CopyCoordinator>,
        linked: LinkedCopies,
    ) -> std::io::Result<Option<StreamCaretaker>> {
        let Some(streams) = copies.streams().cloned() else { return Ok(None) };
        let stop = Arc::new(AtomicBool::new(false));
        let (copies, stopped) = (Arc::clone(copies), Arc::clone(&stop));
        let run = move || {
            let (mut looked, mut unneeded) = (None::<Instant>, UnneededStreams::default());
            while !stopped.load(Ordering::Relaxed) {
                let interval = if streams.has_faults() { STREAM_FAULT_LOOK } else { COPY_SWEEP_INTERVAL };
                if looked.is_none_or(|at| at.elapsed() >= interval) {
                    looked = Some(Instant::now());
                    look(&copies, &streams, &linked, &mut unneeded);
                }
                streams.remove_unneeded();
                std::thread::park_timeout(STREAM_CARE_TICK);
            }
        };
        std::thread::Builder::new().name("streams".to_owned()).spawn(run)?;
        Ok(Some(StreamCaretaker { stop }))
    }
}

fn look(copies: &CopyCoordinator, streams: &StreamCopies, linked: &LinkedCopies, unneeded: &mut UnneededStreams) {
    let own = copies.own_id();
    let needed = copies.needed();
    let in_use: Vec<u64> = needed.iter().filter(|(holder, _)| holder == STREAM_HOLDER).map(|(_, copy)| *copy).collect();
    streams.look_again(own, &in_use);
    // What is there is asked for before what is needed: a stream that is made meanwhile is not among these.
    let Ok(there) = streams.all() else { return };
    let peers = copies.peers();
    if peers.read_at.is_none_or(|at| at.elapsed() >= SWEEP_MAP_AGE) {
        return;
    }
    // Whose id was removed never has a part in this cluster again.
    for (owner, copy) in there.iter().filter(|(owner, _)| peers.map.removed.contains(owner)) {
        streams.remove_later(owner, *copy);
    }
    let Some(linked) = linked() else { return };
    let needed = copies.needed();
    let is_used = |copy: u64| {
        let name = (STREAM_HOLDER.to_owned(), copy);
        needed.contains(&name) || linked.contains(&name)
    };
    let found = there.iter().filter(|(owner, copy)| owner == own && !is_used(*copy)).map(|(_, copy)| *copy);
    for copy in unneeded.found_twice(found.collect()) {
        streams.remove_later(own, copy);
    }
}

/// The streams of this server's log that the last look has found needed by nothing. A number is random: what this
/// start has not made, and the map has not, no later map has.
#[derive(Debug, Default)]
struct UnneededStreams(BTreeSet<u64>);

impl UnneededStreams {
    /// Those that the last look has found as well.
    fn found_twice(&mut self, found: BTreeSet<u64>) -> Vec<u64> {
        let twice = found.intersection(&self.0).copied().collect();
        self.0 = found;
        twice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_removed_that_two_looks_one_after_the_other_find_needed_by_nothing() {
        let mut known = UnneededStreams::default();
        let mut look = |found: &[u64]| known.found_twice(found.iter().copied().collect());
        assert_eq!(look(&[1, 2]), Vec::<u64>::new());
        assert_eq!(look(&[2, 3]), [2]);
        assert_eq!(look(&[]), Vec::<u64>::new());
        assert_eq!(look(&[3]), Vec::<u64>::new());
    }
}
