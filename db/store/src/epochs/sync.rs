//! The synchronisation that `protocol` uses; `model.rs` puts loom's in its place.

pub(super) use parking_lot::Mutex;
pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Takes the lock, if it is free.
pub(super) fn try_lock<T>(mutex: &Mutex<T>) -> Option<parking_lot::MutexGuard<'_, T>> {
    mutex.try_lock()
}

/// Takes the lock.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> parking_lot::MutexGuard<'_, T> {
    mutex.lock()
}
