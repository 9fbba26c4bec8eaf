//! What a request's handler wants to do once its answer has left.
//!
//! Requests of a connection are answered one after the other. The HTTP server flushes when all that it has to write is
//! written. So the first flush after a write after the handler's end is that of its answer. (A client that sends its
//! next request before it has read an answer may get that one's flush for this one's: then a little less is measured.)

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;

/// Called when an answer has left.
type SentFunction = Box<dyn FnOnce() + Send>;

/// What is to be done when the answer under way has left.
#[derive(Default)]
pub(super) struct SentNote {
    /// Whether there is anything to do.
    is_set: AtomicBool,
    /// Whether anything was written since.
    is_written: AtomicBool,
    then: Mutex<Option<SentFunction>>,
}

impl std::fmt::Debug for SentNote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SentNote").field("is_set", &self.is_set).finish_non_exhaustive()
    }
}

impl SentNote {
    /// Has `then` called, on the connection's thread, once what is written from now on has left. It replaces what was
    /// to be called for an earlier answer.
    pub(super) fn set(&self, then: impl FnOnce() + Send + 'static) {
        *self.then.lock() = Some(Box::new(then));
        self.is_written.store(false, Relaxed);
        self.is_set.store(true, Relaxed);
    }

    /// Notes that bytes were written.
    pub(super) fn note_written(&self) {
        if self.is_set.load(Relaxed) {
            self.is_written.store(true, Relaxed);
        }
    }

    /// Notes that all that was written has left.
    pub(super) fn note_flushed(&self) {
        if self.is_written.swap(false, Relaxed) && self.is_set.swap(false, Relaxed) {
            let then = self.then.lock().take();
            if let Some(then) = then {
                then();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn it_is_done_once_at_the_first_flush_after_a_write() {
        let (note, done) = (SentNote::default(), Arc::new(AtomicU32::new(0)));
        let set = || {
            let done = Arc::clone(&done);
            note.set(move || {
                done.fetch_add(1, Relaxed);
            });
        };
        let flushed = |write: bool| {
            if write {
                note.note_written();
            }
            note.note_flushed();
            done.load(Relaxed)
        };
        assert_eq!(flushed(true), 0, "nothing was to be done");
        set();
        assert_eq!([false, true, true].map(flushed), [0, 1, 1], "a flush of what was written before is none");
        set();
        set();
        assert_eq!([true, true].map(flushed), [2, 2], "one of them, as the other's answer never left");
    }
}
