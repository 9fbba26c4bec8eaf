//! Memory that is mapped rather than allocated: side stacks, signal stacks, arenas.
//!
//! Guarantees: a [`GuardedMapping`] is private, zero-filled, readable and writable memory of this process alone, except
//! for its guard and for what was closed; it is unmapped when dropped.
#![allow(unsafe_code)]

use std::io;

const PAGE: usize = 4096;

/// A mapping with an inaccessible guard below it (possibly of no bytes).
#[derive(Debug)]
pub(super) struct GuardedMapping {
    start: *mut u8,
    guard: usize,
    len: usize,
}

// SAFETY: plain memory that the value owns alone.
unsafe impl Send for GuardedMapping {}

impl GuardedMapping {
    /// Maps `len` bytes above a guard of `guard` bytes, both rounded up to pages. Pages take memory once they are
    /// touched.
    pub(super) fn new(len: usize, guard: usize) -> io::Result<GuardedMapping> {
        let (len, guard) = (len.next_multiple_of(PAGE), guard.next_multiple_of(PAGE));
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping where the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len + guard, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = GuardedMapping { start: start.cast(), guard, len };
        // SAFETY: the first pages of our own new mapping.
        if guard > 0 && unsafe { libc::mprotect(start, guard, libc::PROT_NONE) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(mapping)
    }

    /// Returns the first usable byte.
    pub(super) fn low(&self) -> *mut u8 {
        self.start.wrapping_add(self.guard)
    }

    /// Replaces the highest word, as code that runs on a stack would; returns what was there.
    #[cfg(test)]
    pub(super) fn replace_highest_word(&self, word: u64) -> u64 {
        // SAFETY: the word is within the mapping, aligned, and used by no code while a test looks at it.
        unsafe { self.low().add(self.len() - 8).cast::<u64>().replace(word) }
    }

    /// Replaces all words from the usable byte `from` on; returns the words that were there, each once.
    #[cfg(test)]
    pub(super) fn replace_words(&self, from: usize, word: u64) -> Vec<u64> {
        // SAFETY: as above; the bytes from there on are open.
        let words = (from..self.len()).step_by(8).map(|at| unsafe { self.low().add(at).cast::<u64>().replace(word) });
        let mut found: Vec<u64> = words.collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Returns the usable bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes of the guard.
    pub(super) fn guard(&self) -> usize {
        self.guard
    }

    /// Opens the usable bytes before `to`, or closes them: then every access to them faults.
    pub(super) fn set_open(&mut self, to: usize, is_open: bool) -> io::Result<()> {
        set_open(self.low().addr(), to.min(self.len) / PAGE * PAGE, is_open)
    }

    /// Writes zeroes over the usable bytes from `from` on, which are open.
    pub(super) fn clear_from(&mut self, from: usize) {
        let from = from.min(self.len);
        // SAFETY: within the mapping, which `&mut self` holds alone.
        unsafe { self.low().add(from).write_bytes(0, self.len - from) }
    }

    /// Writes zeroes over the first `len` bytes.
    pub(super) fn clear(&mut self, len: usize) {
        // SAFETY: within the mapping, which `&mut self` holds alone.
        unsafe { self.low().write_bytes(0, len.min(self.len)) }
    }

    /// Gives the pages from `from` to `to` (offsets of usable bytes) back to the kernel: they read as zero afterwards.
    pub(super) fn give_back(&mut self, from: usize, to: usize) {
        let (from, to) = (from.next_multiple_of(PAGE), to.min(self.len).next_multiple_of(PAGE));
        if from < to {
            // SAFETY: whole pages of our own mapping; failing leaves them as they are, so they are cleared by hand.
            unsafe {
                if libc::madvise(self.low().add(from).cast(), to - from, libc::MADV_DONTNEED) != 0 {
                    self.low().add(from).write_bytes(0, to - from);
                }
            }
        }
    }
}

/// Opens whole pages of a mapping of ours, or closes them. Called by the handler of faults too.
pub(super) fn set_open(first: usize, len: usize, is_open: bool) -> io::Result<()> {
    let access = if is_open { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
    // SAFETY: the callers name usable bytes of a mapping of their own.
    match unsafe { libc::mprotect(std::ptr::with_exposed_provenance_mut(first), len, access) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Drop for GuardedMapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which no thread uses any more.
        unsafe { libc::munmap(self.start.cast(), self.guard + self.len) };
    }
}
