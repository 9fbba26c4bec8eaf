//! The last frames of a log, in memory. Copies on other servers and tails read each frame as soon as it is on the disk;
//! the log's direct writes leave none in the system's memory, so each would be a read of the disk.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::limits::{RECENT_WRITE_BYTES, RECENT_WRITES};

/// What one write has put on the disk.
struct RecentWrite {
    /// The number of its segment.
    segment: u64,
    offset: u64,
    frames: Vec<u8>,
}

/// The last writes of a log: see the head of this file.
#[derive(Default)]
pub(crate) struct RecentFrames {
    is_wanted: AtomicBool,
    writes: Mutex<VecDeque<RecentWrite>>,
}

impl RecentFrames {
    /// Has the next writes be kept, or no more. Of several callers at once the last one has seen what the others
    /// have changed before: it is asked under the lock.
    pub(crate) fn want(&self, is_wanted: impl FnOnce() -> bool) {
        let _one_after_the_other = self.writes.lock();
        self.is_wanted.store(is_wanted(), Relaxed);
    }

    /// Keeps frames that are on the disk, if they are wanted. Large writes are left to the disk.
    pub(crate) fn note(&self, segment: u64, offset: u64, frames: &[u8]) {
        if !self.is_wanted.load(Relaxed) || frames.len() > RECENT_WRITE_BYTES {
            return;
        }
        let mut writes = self.writes.lock();
        let spent = if writes.len() < RECENT_WRITES { None } else { writes.pop_front() };
        let mut memory = spent.map(|write| write.frames).unwrap_or_default();
        memory.clear();
        memory.extend_from_slice(frames);
        writes.push_back(RecentWrite { segment, offset, frames: memory });
    }

    /// Reads from an offset of a segment, up to the end of the write that is there; `None`: it is not here.
    pub(crate) fn read_at(&self, segment: u64, offset: u64, into: &mut [u8]) -> Option<usize> {
        let writes = self.writes.lock();
        let mut of_segment = writes.iter().rev().filter(|write| write.segment == segment && write.offset <= offset);
        let found = of_segment.find_map(|write| write.frames.get((offset - write.offset) as usize..))?;
        let read = found.len().min(into.len());
        into.get_mut(..read)?.copy_from_slice(found.get(..read)?);
        (read > 0).then_some(read)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn of_two_that_change_at_once_what_is_wanted_the_last_one_has_seen_both() {
        let (recent, is_shipped, has_other_ended) =
            (RecentFrames::default(), AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            recent.want(|| {
                let seen = is_shipped.load(Relaxed);
                // Copies begin to need the log just behind the look of a tail that has ended.
                scope.spawn(|| {
                    is_shipped.store(true, Relaxed);
                    recent.want(|| is_shipped.load(Relaxed));
                    has_other_ended.store(true, Relaxed);
                });
                // It ends now if nothing has it wait.
                let begun = Instant::now();
                while !has_other_ended.load(Relaxed) && begun.elapsed() < Duration::from_millis(300) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                seen
            });
        });
        assert!(recent.is_wanted.load(Relaxed), "what copies need is kept");
    }

    #[test]
    fn the_last_small_writes_are_read_by_their_segment_and_offset() {
        let recent = RecentFrames::default();
        let read = |segment, offset| {
            let mut into = [0; 3];
            recent.read_at(segment, offset, &mut into).map(|read| into[..read].to_vec())
        };
        recent.note(1, 0, b"unwanted");
        assert_eq!(read(1, 0), None);
        recent.want(|| true);
        recent.note(1, 100, b"abcd");
        recent.note(1, 104, b"ef");
        recent.note(2, 100, b"gh");
        assert_eq!([read(1, 100), read(1, 102)], [Some(b"abc".to_vec()), Some(b"cd".to_vec())]);
        assert_eq!([read(1, 104), read(2, 100)], [Some(b"ef".to_vec()), Some(b"gh".to_vec())]);
        assert_eq!([read(1, 106), read(1, 99), read(3, 100)], [None, None, None]);
        recent.note(3, 0, &vec![7; RECENT_WRITE_BYTES + 1]);
        assert_eq!(read(3, 0), None, "what is large stays with the disk");
        for number in 0..RECENT_WRITES as u64 {
            recent.note(4, number, b"x");
        }
        assert_eq!([read(1, 104), read(4, 0)], [None, Some(b"x".to_vec())], "the oldest are dropped");
        assert_eq!(recent.writes.lock().len(), RECENT_WRITES);
    }
}
