//! The trust that calls earn: how late the watchdog may look at a poll.
//!
//! A call without a poll that exceeds its slice earns a little; a poll that does takes all. So a poll that runs too
//! long and is seen late has cost more calls than it gains. What is trusted is code: libraries of the same bytes earn
//! their trust together, for every tenant that loaded them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use parking_lot::Mutex;
use ring::digest::{SHA256, digest};

use crate::limits::{COUNTER_STRIPES, KNOWN_AFTER_CALLS, LIBRARY_TRUST_STEP, TRUSTED_AFTER_CALLS};

/// The trust in a call's code on one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum CallTrust {
    /// Nothing is known of it: the watchdog looks as often as it can.
    #[default]
    Unknown = 0,
    /// It has had enough calls for a short nap of the watchdog's.
    Known = 1,
    /// It has had enough calls for a long one.
    Proven = 2,
}

impl CallTrust {
    /// The trust after so many calls without a poll that exceeded its slice.
    #[inline]
    pub fn after_calls(calls: u64) -> CallTrust {
        if calls > TRUSTED_AFTER_CALLS {
            CallTrust::Proven
        } else if calls > KNOWN_AFTER_CALLS {
            CallTrust::Known
        } else {
            CallTrust::Unknown
        }
    }
}

/// The trust that all extensions with the same library have earned, worker by worker. Each of them reports its calls
/// in steps, so that a call costs no further line of the cache.
#[derive(Debug, Default)]
pub(super) struct LibraryTrust {
    /// Calls since the last poll that exceeded its slice.
    calls: [AtomicU64; COUNTER_STRIPES],
}

impl LibraryTrust {
    /// The trust of libraries with these bytes: the one that others of them have, too.
    pub(super) fn of_library(file: &[u8]) -> Arc<LibraryTrust> {
        type Known = HashMap<[u8; 32], Weak<LibraryTrust>>;
        static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
        let mut key = [0; 32];
        key.copy_from_slice(digest(&SHA256, file).as_ref());
        let mut known = KNOWN.lock();
        if let Some(found) = known.get(&key).and_then(Weak::upgrade) {
            return found;
        }
        // Libraries come seldom; those that are gone leave no more than their digests until then.
        known.retain(|_, trust| trust.strong_count() > 0);
        let new = Arc::new(LibraryTrust::default());
        known.insert(key, Arc::downgrade(&new));
        new
    }

    fn stripe(&self, worker: usize) -> &AtomicU64 {
        &self.calls[worker.min(COUNTER_STRIPES - 1)]
    }

    /// Adds a step's calls.
    pub(super) fn add_step(&self, worker: usize) {
        self.stripe(worker).fetch_add(LIBRARY_TRUST_STEP, Ordering::Relaxed);
    }

    /// Takes all trust on a worker.
    pub(super) fn withdraw(&self, worker: usize) {
        self.stripe(worker).store(0, Ordering::Relaxed);
    }

    /// The trust on a worker.
    pub(super) fn on(&self, worker: usize) -> CallTrust {
        CallTrust::after_calls(self.stripe(worker).load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BudgetOverride, ExtensionLibrary, LoadedExtension};

    /// An extension with a library of these bytes, as far as trust goes.
    fn extension(bytes: &[u8]) -> LoadedExtension {
        let library = ExtensionLibrary::of_nothing_with_trust(LibraryTrust::of_library(bytes));
        LoadedExtension::new("e", 1, library, BudgetOverride::default())
    }

    fn call(extension: &LoadedExtension, worker: usize, calls: u64) -> CallTrust {
        (0..calls).map(|_| extension.begun(worker)).last().unwrap_or_default()
    }

    #[test]
    fn trust_grows_with_calls_and_is_each_workers_own() {
        let one = extension(b"trust grows");
        assert_eq!(call(&one, 0, KNOWN_AFTER_CALLS), CallTrust::Unknown);
        assert_eq!(call(&one, 0, 1), CallTrust::Known);
        assert_eq!(call(&one, 0, TRUSTED_AFTER_CALLS - KNOWN_AFTER_CALLS), CallTrust::Proven);
        assert_eq!(call(&one, 1, 1), CallTrust::Unknown, "each worker counts for itself");
        one.note_long_poll(0);
        assert_eq!(call(&one, 0, KNOWN_AFTER_CALLS), CallTrust::Unknown, "it has to prove itself anew");
    }

    #[test]
    fn the_same_library_of_a_thousand_tenants_is_one() {
        let tenants: Vec<LoadedExtension> = (0..1_000).map(|_| extension(b"the same for all")).collect();
        let other = extension(b"another");
        for tenant in &tenants[..500] {
            call(tenant, 0, LIBRARY_TRUST_STEP);
        }
        assert_eq!(call(&tenants[999], 0, 1), CallTrust::Proven, "its first call here");
        assert_eq!(call(&other, 0, 1), CallTrust::Unknown);
        tenants[3].note_long_poll(0);
        assert_eq!(call(&tenants[999], 0, 1), CallTrust::Unknown, "what one of them does, all may do");
    }

    #[test]
    fn what_is_unloaded_everywhere_is_forgotten() {
        let first = extension(b"comes and goes");
        call(&first, 0, 2 * TRUSTED_AFTER_CALLS);
        drop(first);
        assert_eq!(call(&extension(b"comes and goes"), 0, 1), CallTrust::Unknown);
    }
}
