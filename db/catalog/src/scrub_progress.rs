//! Progress of the scrub, which reads files again from the disk while they are in use. The scrubbing thread and the
//! threads that ask share this state.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Instant;

use parking_lot::Mutex;

use crate::limits::SCRUB_NOTES;

/// How far the reading is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubStatus {
    /// Whether a pass is under way.
    pub is_under_way: bool,
    /// Bytes that it has read.
    pub pass_bytes: u64,
    /// The last pass that was whole.
    pub last: Option<ScrubPass>,
    /// What of this server's log is damaged, until a checkpoint has taken its place.
    pub log_damage: Option<String>,
}

/// A whole pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubPass {
    /// When it has ended.
    pub ended: Instant,
    /// Bytes that were sound.
    pub bytes: u64,
    /// Pieces that were damaged.
    pub damage: u64,
}

#[derive(Debug, Default)]
struct ScrubProgressState {
    status: ScrubStatus,
    /// Whether a pass is to begin at once.
    is_asked: bool,
    thread: Option<Thread>,
    /// Damage of the log that is not reported yet.
    notes: Vec<String>,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub struct ScrubProgress {
    state: Mutex<ScrubProgressState>,
    bytes: AtomicU64,
    damage: AtomicU64,
}

impl ScrubProgress {
    /// How far the reading is.
    pub fn status(&self) -> ScrubStatus {
        self.state.lock().status.clone()
    }

    /// Bytes that were read again and were sound since the start, and pieces that were not.
    pub fn counts(&self) -> [u64; 2] {
        [&self.bytes, &self.damage].map(|count| count.load(Ordering::Relaxed))
    }

    /// Has a pass begin at once. Returns whether there is a thread for it: there is none where nothing is kept.
    pub fn ask(&self) -> bool {
        let state = &mut *self.state.lock();
        let Some(thread) = &state.thread else { return false };
        state.is_asked = true;
        thread.unpark();
        true
    }

    /// The thread that reads.
    pub fn set_thread(&self, thread: Thread) {
        self.state.lock().thread = Some(thread);
    }

    /// Whether a pass was asked for since the last one has begun.
    pub fn is_asked(&self) -> bool {
        self.state.lock().is_asked
    }

    /// A pass begins.
    pub fn begin(&self) {
        let state = &mut *self.state.lock();
        (state.is_asked, state.status.is_under_way, state.status.pass_bytes) = (false, true, 0);
    }

    /// Bytes of it are sound.
    pub fn note_sound(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.state.lock().status.pass_bytes += bytes;
    }

    /// A piece is damaged.
    pub fn note_damage(&self) {
        self.damage.fetch_add(1, Ordering::Relaxed);
    }

    /// The pass has ended; `damage` pieces were damaged.
    pub fn end(&self, damage: u64) {
        let state = &mut *self.state.lock();
        state.status.is_under_way = false;
        state.status.last = Some(ScrubPass { ended: Instant::now(), bytes: state.status.pass_bytes, damage });
    }

    /// Sets what of the log is damaged. What was not before is told once.
    pub fn set_log_damage(&self, damage: Option<String>) {
        let state = &mut *self.state.lock();
        if let Some(text) = damage.as_ref().filter(|text| state.status.log_damage.as_ref() != Some(*text))
            && state.notes.len() < SCRUB_NOTES
        {
            state.notes.push(text.clone());
        }
        state.status.log_damage = damage;
    }

    /// The damage of the log that was found since this was asked last.
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_is_counted_and_damage_is_told_once() {
        let progress = ScrubProgress::default();
        assert!(!progress.ask() && !progress.is_asked(), "there is no thread");
        progress.set_thread(std::thread::current());
        assert!(progress.ask() && progress.is_asked());
        progress.begin();
        progress.note_sound(5);
        progress.note_sound(6);
        progress.note_damage();
        let status = progress.status();
        assert!(!progress.is_asked() && status.is_under_way && status.last.is_none() && status.pass_bytes == 11);
        progress.end(1);
        let status = progress.status();
        let last = status.last.expect("a pass has ended");
        assert_eq!((status.is_under_way, last.bytes, last.damage, progress.counts()), (false, 11, 1, [11, 1]));
        progress.set_log_damage(Some("a".to_owned()));
        progress.set_log_damage(Some("a".to_owned()));
        assert_eq!((progress.take_notes(), progress.take_notes()), (vec!["a".to_owned()], vec![]));
        progress.set_log_damage(None);
        assert_eq!((progress.take_notes(), progress.status().log_damage), (vec![], None));
    }
}
