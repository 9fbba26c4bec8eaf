//! Promise: where a device reads memory by itself, large values lie in the memory that is registered with it, up to a
//! size. That memory is released with them. When there is no more of it, records are stored elsewhere, and nothing else
//! changes.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use crate::common::alone::ran_alone;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use sandstorm_net::extents::ExtentSource;
use sandstorm_net::shared_bytes::SharedBytes;
use sandstorm_store::limits::{EXTENT_BYTES, LONGEST_SPAN_BYTES, MAX_VALUE_BYTES, ZERO_COPY_MIN_VALUE_BYTES};
use sandstorm_store::{
    Epochs, Participant, RecordTable, StoreCondition, TableConfig, WriteOptions, set_extent_source, slab_bytes,
};

/// Most extents at once.
const MOST: usize = 4;

/// Memory that a device would read. Released memory is overwritten, and stays at its address for the next user.
#[derive(Default)]
struct Fake {
    out: Mutex<BTreeSet<usize>>,
    all: Mutex<BTreeMap<usize, bool>>,
}

const LAYOUT: Layout = match Layout::from_size_align(EXTENT_BYTES, EXTENT_BYTES) {
    Ok(layout) => layout,
    Err(_) => panic!("an extent has a layout"),
};

// SAFETY: each extent is an allocation of its own, which is kept, and is out once at a time.
unsafe impl ExtentSource for Fake {
    fn take(&self) -> Option<NonNull<u8>> {
        let (mut out, mut all) = (self.out.lock().unwrap(), self.all.lock().unwrap());
        if out.len() == MOST {
            return None;
        }
        let free = all.iter_mut().find(|(_, is_out)| !**is_out).map(|(at, is_out)| {
            *is_out = true;
            *at
        });
        let at = free.unwrap_or_else(|| {
            // SAFETY: the layout is not empty.
            let at = unsafe { alloc(LAYOUT) }.expose_provenance();
            all.insert(at, true);
            at
        });
        assert!(out.insert(at));
        NonNull::new(std::ptr::with_exposed_provenance_mut(at))
    }

    fn has(&self, at: usize) -> bool {
        self.all.lock().unwrap().contains_key(&(at & !(EXTENT_BYTES - 1)))
    }

    unsafe fn give(&self, at: NonNull<u8>) {
        // SAFETY: the caller has released it.
        unsafe { at.as_ptr().write_bytes(0xee, EXTENT_BYTES) };
        let at = at.as_ptr().addr();
        assert!(self.out.lock().unwrap().remove(&at), "given back once");
        assert_eq!(self.all.lock().unwrap().insert(at, false), Some(true));
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        for at in self.all.lock().unwrap().keys() {
            // SAFETY: each came from `alloc`, and no thread uses it any more.
            unsafe { dealloc(std::ptr::with_exposed_provenance_mut(*at), LAYOUT) };
        }
    }
}

impl Fake {
    fn out(&self) -> usize {
        self.out.lock().unwrap().len()
    }

    fn holds(&self, bytes: &[u8]) -> bool {
        let at = bytes.as_ptr().addr();
        self.has(at) && self.has(at + bytes.len() - 1)
    }
}

fn value(seed: u64, len: usize) -> Vec<u8> {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut value = vec![0; len];
    random.fill(&mut value[..]);
    value
}

/// Lengths around the limits of every storage form of records.
fn length(random: &mut SmallRng) -> usize {
    match random.random_range(0..20) {
        0..5 => random.random_range(0..200),
        5..10 => random.random_range(ZERO_COPY_MIN_VALUE_BYTES..8_200),
        10..16 => random.random_range(8_100..40_000),
        16..18 => random.random_range(40_000..LONGEST_SPAN_BYTES),
        18 => random.random_range(LONGEST_SPAN_BYTES - 2_000..LONGEST_SPAN_BYTES + 2_000),
        _ => random.random_range(LONGEST_SPAN_BYTES..MAX_VALUE_BYTES / 2),
    }
}

struct World {
    table: RecordTable,
    epochs: Arc<Epochs>,
    participant: Participant,
    source: Arc<Fake>,
    /// The expected value of each key.
    model: BTreeMap<u64, (u64, usize)>,
    /// Values that are still being sent, with their expected content.
    resources: Vec<(SharedBytes, u64)>,
}

impl World {
    fn put(&mut self, key: u64, seed: u64, len: usize) {
        let (name, value) = (key.to_le_bytes(), value(seed, len));
        self.table
            .put(&self.participant, self.table.hash(&name), &name, &value, &WriteOptions::default(), 0)
            .expect("room");
        self.model.insert(key, (seed, len));
    }

    /// Compares with the model; returns whether the value lies where the device reads it.
    fn check(&mut self, key: u64, share: bool) -> Option<bool> {
        let name = key.to_le_bytes();
        let guard = self.participant.guard();
        let found = self.table.get(&guard, self.table.hash(&name), &name, 0);
        let Some((seed, len)) = self.model.get(&key) else {
            assert!(found.is_none());
            return None;
        };
        let found = found.expect("there");
        assert!(found.value() == value(*seed, *len), "{len} bytes");
        if share && let Some(share) = found.share() {
            self.resources.push((share, *seed));
        }
        (*len > 0).then(|| self.source.holds(found.value()))
    }

    fn let_go(&mut self, index: usize) {
        let (share, seed) = self.resources.swap_remove(index);
        assert!(*share == value(seed, share.len())[..], "what is held stays");
    }

    fn settle(&mut self) {
        while self.epochs.stats().limbo_items != 0 {
            self.participant.quiescent();
        }
    }
}

#[test]
fn large_values_lie_where_the_device_reads_them_and_that_memory_goes_back() {
    if ran_alone(module_path!(), "large_values_lie_where_the_device_reads_them_and_that_memory_goes_back") {
        return;
    }
    let epochs = Epochs::new();
    let source = Arc::new(Fake::default());
    set_extent_source(Arc::<Fake>::clone(&source));
    let table = RecordTable::with_seed(TableConfig::default(), Arc::clone(&epochs), 1);
    let participant = epochs.register();
    let (model, resources) = (BTreeMap::new(), Vec::new());
    let mut world = World { table, epochs, participant, source, model, resources };
    let mut random = SmallRng::seed_from_u64(23);

    // While there is enough of it, all values that fit an extent are there.
    for key in 0..60 {
        let len = length(&mut random);
        world.put(key, key, len);
        let is_there = world.check(key, false);
        let fits = len < LONGEST_SPAN_BYTES - 200;
        assert!(is_there == Some(fits) || len == 0 || len.abs_diff(LONGEST_SPAN_BYTES) < 200, "{len}");
        if world.source.out() == MOST {
            break;
        }
    }
    assert!(world.source.out() > 1);

    let mut elsewhere = 0;
    for round in 0..3_000u64 {
        let key = random.random_range(0..150);
        match random.random_range(0..10) {
            0..5 => {
                let len = length(&mut random);
                world.put(key, 1_000 + round, len);
            }
            5..7 => {
                let name = key.to_le_bytes();
                let hash = world.table.hash(&name);
                let deleted = world.table.delete(&world.participant, hash, &name, StoreCondition::Always, 0);
                assert_eq!(deleted, Ok(world.model.remove(&key).is_some()));
            }
            7 if !world.resources.is_empty() => world.let_go(random.random_range(0..world.resources.len())),
            _ => elsewhere += u64::from(world.check(key, world.resources.len() < 30) == Some(false)),
        }
        world.participant.quiescent();
        assert!(world.source.out() <= MOST && slab_bytes() >= world.source.out() * EXTENT_BYTES);
    }
    assert!(elsewhere > 0 && world.source.out() >= 2, "it was scarce: {elsewhere}, {}", world.source.out());

    let keys: Vec<u64> = world.model.keys().copied().collect();
    for key in keys {
        world.check(key, false);
    }
    world.table.clear(&world.participant).expect("no log");
    world.settle();
    while !world.resources.is_empty() {
        world.let_go(0);
    }
    world.participant.offline();
    assert!(world.source.out() <= 7, "{} extents are left: slabs in reserve, and four spare ones", world.source.out());
}
