//! A place in a worker's block for one look at what it runs: filled by the signal's handler when a sampler asks, and
//! never otherwise.
//!
//! Of the three states only one side acts on each, so no word is written while it is read: the sampler turns idle to
//! wanted and taken to idle, the handler the rest.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::guest_registers::GuestRegisters;
use crate::limits::SAMPLE_STACK_BYTES;

const IDLE: u32 = 0;
const WANTED: u32 = 1;
const TAKEN: u32 = 2;

/// Room for the words of a stack.
type StackWords = [AtomicUsize; SAMPLE_STACK_BYTES / 8];

/// See the module.
#[derive(Debug, Default)]
pub(super) struct SampleSlot {
    state: AtomicU32,
    /// Whether one of the host's functions ran.
    in_call: AtomicU32,
    /// The number of the extension whose code ran. A library would not do: tenants share them.
    extension: AtomicU64,
    instruction: AtomicUsize,
    stack: AtomicUsize,
    frame: AtomicUsize,
    /// Words of the stack that are kept.
    len: AtomicUsize,
    /// Made when the worker is sampled for the first time.
    words: OnceLock<Box<StackWords>>,
}

/// What a worker ran.
#[derive(Debug, Default)]
pub(super) struct CodeSample {
    pub(super) extension: u64,
    pub(super) in_call: bool,
    pub(super) registers: GuestRegisters,
    /// The stack from the stack pointer up, native-endian words.
    pub(super) bytes: Vec<u8>,
}

impl SampleSlot {
    /// Asks for a sample; returns whether that is to be signalled.
    pub(super) fn want(&self) -> bool {
        self.words.get_or_init(|| Box::new([const { AtomicUsize::new(0) }; SAMPLE_STACK_BYTES / 8]));
        self.state.compare_exchange(IDLE, WANTED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Takes the sample that was asked for last, if there is one.
    pub(super) fn take(&self, sample: &mut CodeSample) -> bool {
        if self.state.load(Ordering::Acquire) != TAKEN {
            return false;
        }
        let load = |word: &AtomicUsize| word.load(Ordering::Relaxed);
        sample.extension = self.extension.load(Ordering::Relaxed);
        sample.in_call = self.in_call.load(Ordering::Relaxed) != 0;
        sample.registers =
            GuestRegisters { instruction: load(&self.instruction), stack: load(&self.stack), frame: load(&self.frame) };
        sample.bytes.clear();
        let words = self.words.get().map_or(&[][..], |words| &words[..]);
        words.iter().take(load(&self.len)).for_each(|word| sample.bytes.extend(load(word).to_ne_bytes()));
        self.state.store(IDLE, Ordering::Release);
        true
    }

    /// Gives a sample that was wanted; by the handler alone. The stack's words are those that `stack` gives.
    pub(super) fn give(&self, extension: u64, in_call: bool, at: GuestRegisters, stack: impl Iterator<Item = usize>) {
        let words = self.words.get().map_or(&[][..], |words| &words[..]);
        let mut len = 0;
        for (word, value) in words.iter().zip(stack) {
            word.store(value, Ordering::Relaxed);
            len += 1;
        }
        self.len.store(len, Ordering::Relaxed);
        self.instruction.store(at.instruction, Ordering::Relaxed);
        self.stack.store(at.stack, Ordering::Relaxed);
        self.frame.store(at.frame, Ordering::Relaxed);
        self.extension.store(extension, Ordering::Relaxed);
        self.in_call.store(in_call.into(), Ordering::Relaxed);
        self.state.store(TAKEN, Ordering::Release);
    }

    /// Says that there is nothing to sample; by the handler alone.
    pub(super) fn give_nothing(&self) {
        self.state.store(IDLE, Ordering::Release);
    }

    /// Whether the handler is to take a sample.
    pub(super) fn is_wanted(&self) -> bool {
        self.state.load(Ordering::Acquire) == WANTED
    }
}
