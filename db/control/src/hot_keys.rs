//! Hot keys over all tables, before an operator suspects one: of each table an access is sampled some ten times a
//! second, one of 32 on average, and counted here.
//!
//! Workers pay for it only what a watch of a table costs, for the few accesses until the sampled one. A table's counts
//! use the space-saving algorithm, as a watch does, and count half after half a minute. So they show the present, and a
//! key that has taken a large part of a table's accesses for ten seconds is among them.
//!
//! A sample of an idle table takes long, samples of a busy one come at once. So a rate is no quotient over all samples,
//! in which one long wait would outweigh hundreds of short ones. Each second has its own rate, and all seconds weigh
//! the same but for their age.

use std::sync::{Arc, Weak};
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use sandstorm_catalog::{DirectorySnapshot, TableEntry};
use sandstorm_store::SampledAccess;

use crate::limits::{
    HOT_RATE_HALF_MS, HOT_RATE_STEP_MS, HOT_SAMPLE_ACCESSES, HOT_SAMPLE_COUNTERS, HOT_SAMPLE_HALF_MS, HOT_SAMPLE_KEYS,
    HOT_SAMPLE_TABLES, HOT_SAMPLES, HOT_SAMPLES_OF_KEY,
};

/// Accesses after which one is drawn, at most.
const MOST_ACCESSES: u32 = 2 * HOT_SAMPLE_ACCESSES - 1;

/// A key that takes much of a table's accesses now.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HotSpot {
    /// The tenant whose table it is.
    pub(crate) tenant: u32,
    /// The table's id.
    pub(crate) table: u64,
    /// The table's hash of the whole key.
    pub(crate) hash: u64,
    /// The beginning of the key.
    pub(crate) prefix: Vec<u8>,
    /// Bytes of the whole key.
    pub(crate) key_len: usize,
    /// The key's part of the table's accesses, at least.
    pub(crate) share: f64,
    /// Accesses of the table a second.
    pub(crate) table_per_s: f64,
    /// Drawn accesses by which that is known.
    pub(crate) samples: u64,
}

impl HotSpot {
    /// Accesses of the key a second.
    pub(crate) fn per_s(&self) -> f64 {
        self.share * self.table_per_s
    }

    /// The key's thousandths of the table's accesses, at least.
    pub(crate) fn per_mille(&self) -> u64 {
        (self.share * 1_000.0).round() as u64
    }
}

/// About how often a table is used now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TableAccessRates {
    /// Keys that are read a second.
    pub(crate) reads_per_s: f64,
    /// Keys that are written a second.
    pub(crate) writes_per_s: f64,
}

/// Draws accesses of all tables.
#[derive(Debug, Default)]
pub(crate) struct HotKeySampler(Mutex<SamplerState>);

#[derive(Debug, Default)]
struct SamplerState {
    /// When the last step of the rates ended.
    stepped_ms: u64,
    /// Of a generator of numbers that no tenant has to be unable to guess.
    random: u64,
    /// By the ids of the tenant and of its table.
    tables: HashMap<(u32, u64), TableSketch>,
}

/// What was drawn of a table.
#[derive(Debug, Default)]
struct TableSketch {
    /// The table: another may have its ids.
    entry: Weak<TableEntry>,
    /// Accesses that were drawn; an older one counts less.
    samples: f64,
    /// Those of them that were writes.
    writes: f64,
    rate: TableRate,
    keys: Vec<SketchedKey>,
}

/// A key with its count.
#[derive(Debug)]
struct SketchedKey {
    hash: u64,
    prefix: Vec<u8>,
    key_len: usize,
    count: f64,
    /// How much of that may be other keys'.
    error: f64,
}

impl SketchedKey {
    /// Accesses that were certainly its own.
    fn own(&self) -> f64 {
        self.count - self.error
    }
}

/// How often a table is used.
#[derive(Debug, Default)]
struct TableRate {
    /// Accesses in this step until one was drawn, and the time that they took.
    accesses: u64,
    took: Duration,
    /// Seconds since one was drawn, before this step.
    waited_s: f64,
    /// The sum of the earlier steps' accesses a second, each times its weight, and that of the weights.
    weighted_per_s: f64,
    weight: f64,
}

impl TableRate {
    fn add(&mut self, drawn: &SampledAccess) {
        self.accesses += u64::from(drawn.accesses);
        self.took += drawn.took;
    }

    /// Ends a step of so many seconds.
    fn step(&mut self, seconds: f64) {
        let now = self.step_per_s().unwrap_or_else(|| {
            // Fewer accesses than one is drawn after have come in all that time.
            self.waited_s += seconds;
            self.per_s().min(f64::from(MOST_ACCESSES) / self.waited_s)
        });
        if self.accesses > 0 {
            self.waited_s = 0.0;
        }
        (self.accesses, self.took) = (0, Duration::ZERO);
        let kept = left_of(seconds, HOT_RATE_HALF_MS);
        self.weighted_per_s = self.weighted_per_s * kept + now * (1.0 - kept);
        self.weight = self.weight * kept + (1.0 - kept);
    }

    /// What this step's draws say alone, if there are any.
    fn step_per_s(&self) -> Option<f64> {
        (self.accesses > 0).then(|| self.accesses as f64 / self.took.as_secs_f64().max(1e-6))
    }

    /// Accesses a second.
    fn per_s(&self) -> f64 {
        if self.weight > 0.0 { self.weighted_per_s / self.weight } else { self.step_per_s().unwrap_or(0.0) }
    }
}

/// What is left after so many seconds of what counts half after `half_ms`.
fn left_of(seconds: f64, half_ms: u64) -> f64 {
    0.5_f64.powf(seconds * 1e3 / half_ms as f64)
}

impl HotKeySampler {
    /// Takes the accesses that were drawn since the last call, and asks each table for another one.
    pub(crate) fn look(&self, snapshot: &DirectorySnapshot, now_ms: u64) {
        self.look_and_tell(snapshot, now_ms, &mut |_, _| ());
    }

    /// As [`HotKeySampler::look`]; tells what was drawn besides, with the ids of the tenant and of its table.
    pub(crate) fn look_and_tell(
        &self,
        snapshot: &DirectorySnapshot,
        now_ms: u64,
        tell: &mut dyn FnMut((u32, u64), &SampledAccess),
    ) {
        let mut state = self.0.lock();
        state.step(now_ms);
        for view in snapshot.iter() {
            for entry in view.tables.values() {
                state.draw(view.tenant.id, entry, tell);
            }
        }
        state.tables.retain(|(tenant, table), sketch| {
            let entry = snapshot.tenant(*tenant).and_then(|view| view.tables.get(table));
            entry.is_some_and(|entry| sketch.is_of(entry))
        });
    }

    /// The keys of these tenants' tables that take most accesses now, over all of them: those that take a large part
    /// of their table's.
    pub(crate) fn hottest(&self, is_asked: impl Fn(u32) -> bool, most: usize) -> Vec<HotSpot> {
        let state = self.0.lock();
        let asked = state.tables.iter().filter(|((tenant, _), _)| is_asked(*tenant));
        let mut spots: Vec<HotSpot> = asked.flat_map(|(ids, sketch)| sketch.spots(*ids)).collect();
        spots.sort_by(|one, two| two.per_s().total_cmp(&one.per_s()).then_with(|| one.hash.cmp(&two.hash)));
        spots.truncate(most);
        spots
    }

    /// About how often the tables are used that are used most, by the ids of the tenant and of its table.
    pub(crate) fn rates(&self) -> HashMap<(u32, u64), TableAccessRates> {
        self.0.lock().tables.iter().map(|(ids, sketch)| (*ids, sketch.rates())).collect()
    }
}

impl SamplerState {
    fn draw(&mut self, tenant: u32, entry: &Arc<TableEntry>, tell: &mut dyn FnMut((u32, u64), &SampledAccess)) {
        // A range of which the middle is the average: what comes together, in whatever number, is drawn as what comes
        // alone.
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let accesses = 1 + (self.random >> 33) as u32 % MOST_ACCESSES;
        if let Some(drawn) = entry.table.sample_access(accesses) {
            tell((tenant, entry.id), &drawn);
            self.add(tenant, entry, drawn);
        }
    }

    fn add(&mut self, tenant: u32, entry: &Arc<TableEntry>, drawn: SampledAccess) {
        let ids = (tenant, entry.id);
        if let Some(sketch) = self.tables.get_mut(&ids).filter(|sketch| sketch.is_of(entry)) {
            return sketch.add(drawn);
        }
        let mut sketch = TableSketch { entry: Arc::downgrade(entry), ..TableSketch::default() };
        sketch.add(drawn);
        if self.tables.len() >= HOT_SAMPLE_TABLES && !self.displace(sketch.rate.per_s()) {
            return;
        }
        self.tables.insert(ids, sketch);
    }

    /// Forgets the table that is used least, if it is used less than that.
    fn displace(&mut self, per_s: f64) -> bool {
        let rates = self.tables.iter().map(|(ids, sketch)| (sketch.rate.per_s(), *ids));
        let least = rates.min_by(|one, two| one.0.total_cmp(&two.0));
        let displaced = least.filter(|(rate, _)| *rate < per_s);
        displaced.is_some_and(|(_, ids)| self.tables.remove(&ids).is_some())
    }

    /// Ends a step of the rates, if one is over, and lets what was drawn before count less.
    fn step(&mut self, now_ms: u64) {
        let elapsed_ms = now_ms.abs_diff(self.stepped_ms);
        if elapsed_ms < HOT_RATE_STEP_MS {
            return;
        }
        // The first one, and one after the clock was set, began nowhere.
        let seconds = elapsed_ms.min(HOT_SAMPLE_HALF_MS) as f64 / 1e3;
        self.stepped_ms = now_ms;
        let kept = left_of(seconds, HOT_SAMPLE_HALF_MS);
        for sketch in self.tables.values_mut() {
            sketch.rate.step(seconds);
            sketch.samples *= kept;
            sketch.writes *= kept;
            for key in &mut sketch.keys {
                (key.count, key.error) = (key.count * kept, key.error * kept);
            }
            sketch.keys.retain(|key| key.count >= LEAST_COUNT);
        }
        self.tables.retain(|_, sketch| sketch.samples >= LEAST_COUNT);
    }
}

/// What counts less is forgotten: one access of a minute ago and more.
const LEAST_COUNT: f64 = 0.25;

impl TableSketch {
    /// Whether it is of this table.
    fn is_of(&self, entry: &Arc<TableEntry>) -> bool {
        std::ptr::eq(self.entry.as_ptr(), Arc::as_ptr(entry))
    }

    fn add(&mut self, drawn: SampledAccess) {
        self.samples += 1.0;
        self.writes += f64::from(u8::from(drawn.is_write));
        self.rate.add(&drawn);
        let SampledAccess { hash, prefix, key_len, .. } = drawn;
        if let Some(known) = self.keys.iter_mut().find(|key| key.hash == hash) {
            known.count += 1.0;
        } else if self.keys.len() < HOT_SAMPLE_COUNTERS {
            self.keys.push(SketchedKey { hash, prefix, key_len, count: 1.0, error: 0.0 });
        } else if let Some(least) = self.keys.iter_mut().min_by(|one, two| one.count.total_cmp(&two.count)) {
            let error = least.count;
            *least = SketchedKey { hash, prefix, key_len, count: error + 1.0, error };
        }
    }

    fn rates(&self) -> TableAccessRates {
        let writes_per_s = self.rate.per_s() * self.writes / self.samples.max(f64::MIN_POSITIVE);
        TableAccessRates { reads_per_s: self.rate.per_s() - writes_per_s, writes_per_s }
    }

    fn spots(&self, (tenant, table): (u32, u64)) -> Vec<HotSpot> {
        let samples = self.samples;
        let mut keys: Vec<&SketchedKey> = self.keys.iter().filter(|_| samples >= HOT_SAMPLES as f64).collect();
        keys.sort_by(|one, two| two.own().total_cmp(&one.own()).then_with(|| one.hash.cmp(&two.hash)));
        let spot = |key: &SketchedKey| HotSpot {
            tenant,
            table,
            hash: key.hash,
            prefix: key.prefix.clone(),
            key_len: key.key_len,
            share: key.own() / samples,
            table_per_s: self.rate.per_s(),
            samples: samples as u64,
        };
        // Of fewer it may be chance.
        let is_known = |key: &&&SketchedKey| key.own() >= HOT_SAMPLES_OF_KEY;
        keys.iter().filter(is_known).take(HOT_SAMPLE_KEYS).map(|key| spot(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use sandstorm_catalog::{Directory, NewTable, NewTenant};
    use sandstorm_store::{Epochs, Participant};

    use super::*;

    /// A server with tenants that each have a table `t`.
    struct SampledServer {
        directory: Arc<Directory>,
        participant: Participant,
        sampler: HotKeySampler,
        now_ms: u64,
    }

    impl SampledServer {
        fn new(tenants: &[&str]) -> SampledServer {
            let epochs = Epochs::new();
            let directory = Directory::new(Arc::clone(&epochs));
            for name in tenants {
                directory.create_tenant(NewTenant::named(name)).expect("a tenant");
                directory.create_table(*name, NewTable::named("t")).expect("a table");
            }
            let sampler = HotKeySampler::default();
            SampledServer { directory, participant: epochs.register(), sampler, now_ms: 1_000_000 }
        }

        fn table(&self, tenant: &str) -> Arc<TableEntry> {
            let snapshot = self.directory.snapshot();
            let view = snapshot.by_name(tenant).expect("a tenant");
            Arc::clone(view.tables.values().next().expect("a table"))
        }

        fn get(&self, entry: &TableEntry, key: &[u8]) {
            entry.table.get(&self.participant.guard(), entry.table.hash(key), key, 1);
        }

        fn look(&mut self) {
            self.now_ms += 100;
            self.sampler.look(&self.directory.snapshot(), self.now_ms);
        }

        fn id(&self, tenant: &str) -> u32 {
            self.directory.snapshot().by_name(tenant).expect("a tenant").tenant.id
        }
    }

    /// Numbers that repeat from run to run.
    fn next(random: &mut u64) -> u64 {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *random >> 33
    }

    #[test]
    fn one_hot_key_among_many_tables_is_found_with_its_share_and_forgotten_when_it_is_over() {
        let names: Vec<String> = (0..20).map(|tenant| format!("t{tenant}")).collect();
        let mut server = SampledServer::new(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let tables: Vec<Arc<TableEntry>> = names.iter().map(|name| server.table(name)).collect();
        let mut random = 7;
        let mut serve = |server: &mut SampledServer, is_hot: bool, rounds: usize| {
            for _ in 0..rounds {
                for (number, entry) in tables.iter().enumerate() {
                    for _ in 0..100 {
                        let key = next(&mut random) % 5_000;
                        // Four in ten of one key, of one table.
                        let hot = is_hot && number == 13 && next(&mut random) % 10 < 4;
                        server.get(
                            entry,
                            if hot { b"the hot one".to_vec() } else { key.to_le_bytes().to_vec() }.as_slice(),
                        );
                    }
                }
                server.look();
            }
        };
        serve(&mut server, true, 250);
        let spots = server.sampler.hottest(|_| true, 10);
        let [spot] = &spots[..] else { panic!("{spots:?}") };
        assert_eq!((spot.tenant, spot.table), (server.id("t13"), server.table("t13").id));
        assert_eq!((spot.prefix.as_slice(), spot.key_len), (&b"the hot one"[..], 11));
        assert!((0.3..0.5).contains(&spot.share), "{spot:?}");
        assert!(spot.table_per_s > 0.0 && spot.samples >= HOT_SAMPLES, "{spot:?}");
        let other = server.id("t1");
        assert_eq!(server.sampler.hottest(|tenant| tenant == other, 10), [], "it is another's");
        let ids = (spot.tenant, spot.table);
        assert_eq!(server.sampler.hottest(|tenant| tenant == ids.0, 10), spots, "its own");
        serve(&mut server, false, 8 * HOT_SAMPLE_HALF_MS as usize / 100);
        assert_eq!(server.sampler.hottest(|_| true, 10), [], "it is over");
        server.directory.delete_tenant("t13").expect("it is there");
        server.look();
        assert!(!server.sampler.0.lock().tables.contains_key(&ids), "what is gone is forgotten");
    }

    #[test]
    fn the_hottest_of_a_zipf_trace_are_found_in_whatever_order_they_come() {
        const KEYS: usize = 10_000;
        let sums: Vec<f64> = (1..=KEYS)
            .scan(0.0, |sum, rank| {
                *sum += (rank as f64).powf(-0.99);
                Some(*sum)
            })
            .collect();
        let whole = *sums.last().expect("a sum");
        let mut server = SampledServer::new(&["a"]);
        let (entry, mut random) = (server.table("a"), 3);
        for _ in 0..250 {
            // Each batch begins with a key that is asked for once in a batch, as a client's get of its settings.
            server.get(&entry, b"first");
            for _ in 0..199 {
                let at = next(&mut random) as f64 / (1_u64 << 31) as f64 * whole;
                let number = sums.partition_point(|sum| *sum < at);
                server.get(&entry, format!("user:{number}").as_bytes());
            }
            server.look();
        }
        let spots = server.sampler.hottest(|_| true, 10);
        assert_eq!(spots[0].prefix, b"user:0", "{spots:?}");
        assert!((spots[0].share - 1.0 / whole).abs() < 0.06, "{} of {spots:?}", 1.0 / whole);
        let first = spots.iter().find(|spot| spot.prefix == b"first").map_or(0.0, |spot| spot.share);
        assert!(first < 0.06, "what comes first in each batch is drawn no more often: {spots:?}");
    }

    #[test]
    fn a_tenant_that_gets_the_id_of_another_sees_none_of_its_keys() {
        let mut server = SampledServer::new(&["a"]);
        let entry = server.table("a");
        for _ in 0..300 {
            (0..70).for_each(|_| server.get(&entry, b"secret"));
            server.look();
        }
        let id = server.id("a");
        assert_eq!(server.sampler.hottest(|tenant| tenant == id, 10).len(), 1);
        server.directory.delete_tenant("a").expect("it is there");
        server.directory.create_tenant(NewTenant { id: Some(id), ..NewTenant::named("b") }).expect("a tenant");
        server.directory.create_table("b", NewTable::named("t")).expect("a table");
        server.look();
        assert_eq!((server.id("b"), server.table("b").id), (id, entry.id));
        assert_eq!(server.sampler.hottest(|_| true, 10), [], "they were another's");
    }

    /// Draws what a table with so many accesses a second has drawn in a tenth of a second, four in five of one key, by
    /// a clock that is the test's.
    fn simulate_tick(state: &mut SamplerState, entry: &Arc<TableEntry>, now_ms: &mut u64, per_s: f64, idle: Duration) {
        *now_ms += 100;
        state.step(*now_ms);
        let accesses = 1 + (*now_ms / 100 * 37 % u64::from(MOST_ACCESSES)) as u32;
        let took = idle + Duration::from_secs_f64(f64::from(accesses) / per_s);
        let hash = if (*now_ms / 100).is_multiple_of(5) { *now_ms } else { 1 };
        let is_write = (*now_ms / 100).is_multiple_of(4);
        state.add(1, entry, SampledAccess { hash, prefix: vec![1], key_len: 1, slot: 0, accesses, took, is_write });
    }

    #[test]
    fn a_hot_key_of_a_table_that_was_idle_is_there_after_ten_seconds_with_its_rate() {
        let server = SampledServer::new(&["a"]);
        let entry = server.table("a");
        // Of a table that no access was drawn of, of one that had few, and in whatever part of a minute it begins.
        for (had_few, idle_s, begins_ms) in [(false, 43, 0), (true, 43, 0), (false, 3_600, 17_300), (true, 7, 25_900)] {
            let (mut state, mut now_ms) = (SamplerState::default(), 1_000_000 + begins_ms);
            if had_few {
                simulate_tick(&mut state, &entry, &mut now_ms, 1.0, Duration::ZERO);
            }
            for _ in 0..10 * idle_s {
                now_ms += 100;
                state.step(now_ms);
            }
            let mut idle = Duration::from_secs(idle_s);
            for second in 1..=60 {
                for _ in 0..10 {
                    simulate_tick(&mut state, &entry, &mut now_ms, 3_000.0, std::mem::take(&mut idle));
                }
                let spots = state.tables[&(1, entry.id)].spots((1, entry.id));
                let Some(spot) = spots.first() else {
                    assert!(second < 10, "{second} s, after {idle_s} idle ones");
                    continue;
                };
                assert!((spot.share - 0.8).abs() < 0.05, "{second} s: {spot:?}");
                let off = spot.per_s() / 2_400.0;
                assert!((if second < 10 { 0.6 } else { 0.8 }..1.1).contains(&off), "{second} s: {off}, {spot:?}");
                let TableAccessRates { reads_per_s, writes_per_s } = state.tables[&(1, entry.id)].rates();
                let written = writes_per_s / (reads_per_s + writes_per_s);
                assert!((written - 0.25).abs() < 0.07, "{second} s: {reads_per_s} and {writes_per_s}");
            }
            // It ends: of the rate little is left after some ten seconds, though the keys are still known.
            for _ in 0..150 {
                now_ms += 100;
                state.step(now_ms);
            }
            let spots = state.tables[&(1, entry.id)].spots((1, entry.id));
            assert!(spots[0].per_s() < 200.0 && (spots[0].share - 0.8).abs() < 0.05, "{spots:?}");
        }
    }

    #[test]
    fn the_rate_of_a_slow_table_is_right_though_one_is_drawn_less_than_once_a_second() {
        let server = SampledServer::new(&["a"]);
        let (entry, per_s) = (server.table("a"), 8.0);
        let (mut state, mut now_ms) = (SamplerState::default(), 1_000_000);
        let mut next_ms = now_ms;
        for turn in 0..200_u64 {
            let accesses = 1 + (turn * 37 % u64::from(MOST_ACCESSES)) as u32;
            let took = Duration::from_secs_f64(f64::from(accesses) / per_s);
            next_ms += took.as_millis() as u64;
            while now_ms < next_ms {
                now_ms += 100;
                state.step(now_ms);
            }
            let drawn = SampledAccess { hash: 1, prefix: vec![1], key_len: 1, slot: 0, accesses, took, is_write: true };
            state.add(1, &entry, drawn);
            let told = state.tables[&(1, entry.id)].rate.per_s();
            assert!((told - per_s).abs() < 0.5, "{turn}: {told}");
        }
    }

    #[test]
    fn memory_is_bounded_and_busy_tables_displace_those_that_are_not() {
        let mut state = SamplerState::default();
        let drawn = |accesses: u32| SampledAccess {
            hash: 1,
            prefix: vec![1],
            key_len: 1,
            slot: 0,
            accesses,
            took: Duration::from_millis(100),
            is_write: false,
        };
        for table in 0..HOT_SAMPLE_TABLES as u64 {
            let mut sketch = TableSketch::default();
            sketch.add(drawn(10));
            state.tables.insert((1, table), sketch);
        }
        assert!(!state.displace(50.0), "it is used less than all others");
        assert!(state.displace(5_000.0));
        assert_eq!(state.tables.len(), HOT_SAMPLE_TABLES - 1);
        let mut sketch = TableSketch::default();
        for hash in 0..10_000 {
            sketch.add(SampledAccess { hash, ..drawn(1) });
        }
        assert_eq!(sketch.keys.len(), HOT_SAMPLE_COUNTERS);
        assert_eq!(sketch.spots((1, 1)), [], "no key is certain to have had more than one in a counter's part");
    }
}
