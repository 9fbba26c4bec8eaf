//! Trigger calls for the changes in a server's log, while slots move.
//!
//! Calls for a key are made in the order of its versions, also across a move. The source makes the calls for the
//! changes in its log, at the target once that owns the slots. The target makes none of its own for these slots until
//! the source reports that its calls are made. To make this take milliseconds, the source reads nearly to the end of
//! its log before it stops serving the slots. Both waits are bounded: a trigger that is late is given up, and is not
//! waited for again for a while. Its calls are still made, in no order with those of the target.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sandstorm_log::ChangeLog;

use crate::limits::{CALLS_LEFT_BYTES, CALLS_POLL, CALLS_WAIT, CALLS_WAIT_MOST, CALLS_WAITS};

/// Makes calls for the changes in this server's log.
pub trait ChangeCaller: Send + Sync {
    /// Names the triggers that have not made all calls for changes before a position. A trigger that makes none now
    /// does not count, nor does one that was given up lately.
    fn behind(&self, position: u64) -> Option<String>;

    /// Gives these triggers up, for a while.
    fn give_up(&self, position: u64);

    /// Has the triggers here be those on which the servers agree: what this server's log is told from here on of
    /// another server's changes, these are called for.
    ///
    /// # Errors
    /// One line: not all are.
    fn take_over(&self) -> Result<(), String> {
        Ok(())
    }

    /// Says of a trigger, by its serial, that changes of a server whose place is taken are not called for, and why.
    fn lose(&self, _serial: u64, _why: &str) {}
}

/// For which attempt of a target is waited, and whether it has the slots.
type WaitSubject = (u64, bool);

struct CallWait {
    of: WaitSubject,
    position: u64,
    since: Instant,
    /// Whether all calls before the position were made, or their callers were given up: a question that comes
    /// again, since its answer was lost, is answered at once.
    is_over: bool,
}

/// How long a wait may take: in this answer, and in all.
#[derive(Clone, Copy)]
struct WaitTimes {
    answer: Duration,
    all: Duration,
}

const TIMES: WaitTimes = WaitTimes { answer: CALLS_WAIT, all: CALLS_WAIT_MOST };

/// See the head of this file.
#[derive(Default)]
pub struct CallWaits {
    caller: OnceLock<Arc<dyn ChangeCaller>>,
    /// One for each subject, the newest last: the source of a move that is copied may be asked about others that it has
    /// handed over.
    waits: Mutex<Vec<CallWait>>,
}

impl CallWaits {
    /// Sets what makes calls, once.
    pub fn set_caller(&self, caller: Arc<dyn ChangeCaller>) {
        // The server starts them once.
        let _was_set = self.caller.set(caller);
    }

    /// What makes calls; `None`: there is none yet.
    pub(crate) fn caller(&self) -> Option<&dyn ChangeCaller> {
        self.caller.get().map(|caller| &**caller)
    }

    /// Waits until calls are made for nearly all changes of the log: before slots are frozen. Not to be called by a
    /// participant that is online.
    ///
    /// # Errors
    /// One line: they are not made yet. The next answer waits further.
    pub(crate) fn before_freeze(&self, attempt: u64, log: Option<Arc<ChangeLog>>) -> Result<(), String> {
        let Some(log) = log else { return Ok(()) };
        self.wait(((attempt, false), log.durable().saturating_sub(CALLS_LEFT_BYTES)), TIMES)
    }

    /// Waits until calls are made for all changes of the log up to the first question about this attempt, whose slots
    /// are handed over. Not to be called by a participant that is online.
    ///
    /// # Errors
    /// As [`CallWaits::before_freeze`].
    pub(crate) fn after_hand_over(&self, attempt: u64, log: Option<Arc<ChangeLog>>) -> Result<(), String> {
        let Some(log) = log else { return Ok(()) };
        let end = log.end();
        log.request(end);
        self.wait(((attempt, true), end), TIMES)
    }

    fn wait(&self, (of, position): (WaitSubject, u64), times: WaitTimes) -> Result<(), String> {
        let Some(caller) = self.caller.get() else { return Ok(()) };
        let begun = Instant::now();
        let (since, position) = match self.begin((of, position), begun) {
            Some(known) => known,
            None => return Ok(()),
        };
        while let Some(who) = caller.behind(position) {
            if since.elapsed() >= times.all {
                tracing::warn!("a move of slots goes on, though not all calls for changes are made: {who}");
                caller.give_up(position);
                break;
            }
            if begun.elapsed() >= times.answer {
                return Err(who);
            }
            std::thread::sleep(CALLS_POLL);
        }
        let mut waits = self.waits.lock();
        // Before a freeze the end goes on: what is asked for then is another wait.
        waits.retain(|known| known.of != of || of.1);
        waits.iter_mut().filter(|known| known.of == of).for_each(|known| known.is_over = true);
        Ok(())
    }

    /// Since when is waited, and for which position; `None`: it is over.
    fn begin(&self, (of, position): (WaitSubject, u64), now: Instant) -> Option<(Instant, u64)> {
        let mut waits = self.waits.lock();
        match waits.iter().find(|known| known.of == of) {
            Some(known) if known.is_over => None,
            // Behind a hand-over it is a fixed position; before it, one near an end that goes on.
            Some(known) => Some((known.since, if of.1 { known.position } else { position })),
            None => {
                if waits.len() >= CALLS_WAITS {
                    waits.remove(0);
                }
                waits.push(CallWait { of, position, since: now, is_over: false });
                Some((now, position))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A caller that progresses by some bytes at each look, and then no more.
    #[derive(Default)]
    struct SlowCaller {
        at: AtomicU64,
        pace: u64,
        end: u64,
        given_up: AtomicU64,
    }

    impl ChangeCaller for SlowCaller {
        fn behind(&self, position: u64) -> Option<String> {
            let at = self.at.fetch_add(self.pace, Ordering::SeqCst).min(self.end);
            (at < position && self.given_up.load(Ordering::SeqCst) == 0).then(|| "trigger t".to_owned())
        }

        fn give_up(&self, position: u64) {
            self.given_up.store(position, Ordering::SeqCst);
        }
    }

    fn waits(caller: &Arc<SlowCaller>) -> CallWaits {
        let waits = CallWaits::default();
        waits.set_caller(Arc::clone(caller) as Arc<dyn ChangeCaller>);
        waits
    }

    const ENDLESS: Duration = Duration::from_secs(3_600);

    #[test]
    fn a_move_goes_on_once_all_calls_are_made() {
        let caller = Arc::new(SlowCaller { pace: 10, end: u64::MAX, ..SlowCaller::default() });
        let times = WaitTimes { answer: ENDLESS, all: ENDLESS };
        assert_eq!(waits(&caller).wait(((1, true), 100), times), Ok(()));
        assert!(caller.at.load(Ordering::SeqCst) > 100 && caller.given_up.load(Ordering::SeqCst) == 0);
        assert_eq!(CallWaits::default().wait(((1, true), 100), times), Ok(()), "nobody makes calls");
    }

    #[test]
    fn who_never_makes_its_calls_is_given_up_and_holds_up_no_other_move() {
        let caller = Arc::new(SlowCaller { end: 50, ..SlowCaller::default() });
        let waits = waits(&caller);
        let short = WaitTimes { answer: Duration::ZERO, all: ENDLESS };
        assert_eq!(waits.wait(((1, true), 100), short), Err("trigger t".to_owned()));
        // What was written since the first question is not waited for.
        caller.at.store(100, Ordering::SeqCst);
        let fixed = Arc::new(SlowCaller { end: u64::MAX, ..SlowCaller::default() });
        fixed.at.store(100, Ordering::SeqCst);
        let of_fixed = CallWaits::default();
        of_fixed.set_caller(Arc::clone(&fixed) as Arc<dyn ChangeCaller>);
        assert_eq!(of_fixed.wait(((1, true), 100), short), Ok(()));
        assert_eq!(of_fixed.wait(((1, true), 900), short), Ok(()));
        assert!(of_fixed.wait(((1, false), 900), short).is_err(), "before the hand-over the end goes on");
        let over = WaitTimes { answer: ENDLESS, all: Duration::ZERO };
        assert_eq!(waits.wait(((1, true), 100), over), Ok(()));
        assert_eq!(caller.given_up.load(Ordering::SeqCst), 100);
        assert_eq!(waits.wait(((2, false), 200), short), Ok(()));
    }
    /// A server that hands over slots to one server while it is asked about those that another one has.
    #[test]
    fn moves_to_two_servers_do_not_begin_each_others_wait_anew() {
        let caller = Arc::new(SlowCaller { end: 50, ..SlowCaller::default() });
        let waits = waits(&caller);
        let short = WaitTimes { answer: Duration::ZERO, all: ENDLESS };
        assert!(waits.wait(((1, true), 100), short).is_err());
        let since =
            |of| waits.waits.lock().iter().find(|known| known.of == of).map(|known| (known.since, known.position));
        let first = since((1, true));
        assert!(waits.wait(((2, false), 300), short).is_err());
        assert!(waits.wait(((1, true), 900), short).is_err());
        assert!(first.is_some() && since((1, true)) == first, "they are those of its first question");
        // What is over stays so, though the answer was lost and the log has grown.
        let over = WaitTimes { answer: ENDLESS, all: Duration::ZERO };
        assert_eq!(waits.wait(((1, true), 900), over), Ok(()));
        caller.given_up.store(0, Ordering::SeqCst);
        assert_eq!(waits.wait(((1, true), 900), short), Ok(()));
        assert!(waits.wait(((2, false), 300), short).is_err(), "the other one is not");
        for attempt in 0..10 * CALLS_WAITS as u64 {
            assert!(waits.wait(((attempt, false), 300), short).is_err());
        }
        assert_eq!(waits.waits.lock().len(), CALLS_WAITS);
    }
}
