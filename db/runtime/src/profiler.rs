//! Profiles of an extension's code while it serves: some hundred times a second each worker that runs extensions is
//! asked where it is, for as long as a profile is taken. Otherwise nothing is asked, and it costs nothing.
//!
//! A sample is taken by the handler of the watchdog's signal: three registers and the used part of the side stack. All
//! else happens on the profiling caller's thread: the stack is walked, within the bytes that were copied, and counted.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sandstorm_accounts::CodePlace;
use sandstorm_extension::{LibraryCode, LoadedExtension};

use super::Watchdog;
use super::guest_walk::OpenStack;
use super::sample_slot::CodeSample;
use super::watchdog::WatchdogState;
use super::worker_block::WorkerBlock;
use crate::limits::{PROFILE_PLACES, PROFILE_STACKS, SAMPLES_PER_S};

/// Takes profiles, one at a time.
#[derive(Clone, Debug)]
pub struct Profiler {
    watchdog: Arc<WatchdogState>,
    under_way: Arc<Mutex<()>>,
}

/// Samples that were taken at one place, reached in one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfiledStack {
    /// The number of samples.
    pub samples: u64,
    /// Whether one of the host's functions ran, which the innermost place had called.
    pub in_host: bool,
    /// The functions, the innermost first; none: not known.
    pub places: Vec<CodePlace>,
}

/// Where an extension's code was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeProfile {
    /// The samples that found it running.
    pub samples: u64,
    /// Those of them at places whose function and line are known, in the extension's own files or in what they call.
    pub named: u64,
    /// The stacks, the most frequent first.
    pub stacks: Vec<ProfiledStack>,
    /// Samples at further stacks, which are not listed.
    pub unlisted: u64,
}

/// Another caller takes a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another profile is being taken")]
pub struct ProfilerBusy;

/// Where code was: addresses of its library, the innermost first, and whether the host's ran.
type RawStack = (Vec<u32>, bool);

impl Profiler {
    /// A profiler of the code that this watchdog watches.
    pub fn new(watchdog: &Watchdog) -> Profiler {
        Profiler { watchdog: Arc::clone(watchdog.shared()), under_way: Arc::default() }
    }

    /// Samples the calls of a tenant's extension for so long, or until `stop`; blocks meanwhile. Calls that another
    /// tenant makes of the same library, which was shared with it, are not among them.
    ///
    /// # Errors
    /// [`ProfilerBusy`].
    pub fn profile(
        &self,
        extension: &LoadedExtension,
        length: Duration,
        stop: &AtomicBool,
    ) -> Result<CodeProfile, ProfilerBusy> {
        let _alone = self.under_way.try_lock().ok_or(ProfilerBusy)?;
        let (until, code) = (Instant::now() + length, extension.library.code());
        let (mut counts, mut unlisted) = (HashMap::<RawStack, u64>::new(), 0);
        let (mut workers, mut sample) = (Vec::<Arc<WorkerBlock>>::new(), CodeSample::default());
        let mut jitter = 0x9e37_79b9_u64;
        loop {
            for worker in workers.drain(..) {
                if !worker.sample.take(&mut sample) || sample.extension != extension.number() {
                    continue;
                }
                let stack = raw_stack(code, &sample);
                if counts.len() < PROFILE_STACKS || counts.contains_key(&stack) {
                    *counts.entry(stack).or_default() += 1;
                } else {
                    unlisted += 1;
                }
            }
            if Instant::now() >= until || stop.load(Ordering::Relaxed) {
                break;
            }
            self.watchdog.sample_workers(&mut workers);
            // Never in step with anything that the code does: between half a period and one and a half.
            jitter = jitter.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let period_us = 1_000_000 / SAMPLES_PER_S;
            std::thread::sleep(Duration::from_micros(period_us / 2 + (jitter >> 33) % period_us));
        }
        Ok(resolved(code, counts, unlisted))
    }
}

fn raw_stack(code: &LibraryCode, sample: &CodeSample) -> RawStack {
    let mut offsets = Vec::new();
    let stack = OpenStack::new(sample.registers.stack, &sample.bytes);
    stack.walk(code, sample.registers, |offset| offsets.push(offset));
    (offsets, sample.in_call)
}

/// Names the places, and adds up stacks that have the same.
fn resolved(code: &LibraryCode, counts: HashMap<RawStack, u64>, unlisted: u64) -> CodeProfile {
    let mut stacks: HashMap<(bool, Vec<CodePlace>), u64> = HashMap::new();
    for ((offsets, in_host), samples) in counts {
        let places = offsets.iter().flat_map(|offset| code.places_at(*offset)).take(PROFILE_PLACES);
        let places: Vec<CodePlace> = places.map(named).collect();
        *stacks.entry((in_host, places)).or_default() += samples;
    }
    let stacks = stacks.into_iter().map(|((in_host, places), samples)| ProfiledStack { samples, in_host, places });
    let mut stacks: Vec<ProfiledStack> = stacks.collect();
    stacks.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| shown(&a.places).cmp(&shown(&b.places))));
    let is_named = |stack: &&ProfiledStack| stack.places.iter().any(|place| place.line > 0);
    CodeProfile {
        samples: stacks.iter().map(|stack| stack.samples).sum::<u64>() + unlisted,
        named: stacks.iter().filter(is_named).map(|stack| stack.samples).sum(),
        stacks,
        unlisted,
    }
}

fn named(place: CodePlace) -> CodePlace {
    let function = if place.function.is_empty() { "(no name)".to_owned() } else { place.function };
    CodePlace { function, ..place }
}

fn shown(places: &[CodePlace]) -> Vec<String> {
    places.iter().map(ToString::to_string).collect()
}
