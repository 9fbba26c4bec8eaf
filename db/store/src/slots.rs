//! Slots of a cluster: which of them this server owns, and which servers own the others.
//!
//! A table of a server without a cluster has none of this, and owns all keys. In a cluster all tables of a server share
//! one [`SlotOwnership`]. Its bits decide; the map beside them only says where other keys are.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use sandstorm_net::slots::{SLOTS, slot_of};

use crate::limits::{CLUSTER_SERVERS, NOTED_KEYS_BYTES};

/// Words of the bitmap.
const WORDS: usize = SLOTS as usize / 64;
/// In the list of owners: a slot without an owner.
const NO_OWNER: u16 = u16::MAX;

/// A server of the cluster, as the others reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterServer {
    /// Its id: 40 hexadecimal digits, as Redis Cluster has them.
    pub id: String,
    /// Its first data port.
    pub data: SocketAddr,
    /// Its first port for Redis clients.
    pub redis: Option<SocketAddr>,
    /// Its first port for memcached clients.
    pub memcached: Option<SocketAddr>,
    /// The URL of its control port.
    pub control: String,
    /// The digest of its tenants, tables and extensions, which all servers have in common.
    pub directory: String,
    /// Whether it has told of itself lately. A hint: nothing is decided by it.
    pub is_alive: bool,
    /// Whether it gives all its slots away, and gets none.
    pub is_draining: bool,
}

#[cfg(any(test, feature = "testing"))]
impl ClusterServer {
    /// A server that lives and has a data port alone, for tests.
    pub fn example(id: &str) -> ClusterServer {
        ClusterServer {
            id: id.to_owned(),
            data: SocketAddr::from(([127, 0, 0, 1], 1)),
            redis: None,
            memcached: None,
            control: String::new(),
            directory: String::new(),
            is_alive: true,
            is_draining: false,
        }
    }
}

/// Consecutive slots of one server, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRange {
    /// The first slot.
    pub first: u16,
    /// The last slot.
    pub last: u16,
    /// The owner's place among the servers; `None`: they have no owner.
    pub server: Option<usize>,
}

/// A move of slots that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotMove {
    /// A random number.
    pub id: u64,
    /// The slots.
    pub span: SlotSpan,
    /// The id of the server that gives them away.
    pub source: String,
    /// The id of the server that takes them.
    pub target: String,
    /// Whether that server owns them already; the other one removes its records.
    pub handed_over: bool,
    /// MiB that are copied in a second, at most; 0: as many as can be.
    pub mib_per_s: u64,
}

/// The owner of each slot, in one epoch.
#[derive(Clone, Debug)]
pub struct SlotMap {
    /// Grows with each change of ownership; 0: no map has been read.
    pub epoch: u64,
    /// The servers, in the order of their ids.
    pub servers: Vec<ClusterServer>,
    /// The moves that are under way.
    pub moves: Vec<SlotMove>,
    owners: Box<[u16]>,
}

impl Default for SlotMap {
    fn default() -> SlotMap {
        SlotMap { epoch: 0, servers: Vec::new(), moves: Vec::new(), owners: vec![NO_OWNER; usize::from(SLOTS)].into() }
    }
}

impl SlotMap {
    /// Makes a map. Servers beyond [`CLUSTER_SERVERS`], and slots beyond the last, are ignored.
    pub fn new(epoch: u64, servers: Vec<ClusterServer>, ranges: &[SlotRange]) -> SlotMap {
        let mut map = SlotMap { epoch, servers, ..SlotMap::default() };
        for SlotRange { first, last, server } in ranges {
            let Some(server) = server.filter(|server| *server < CLUSTER_SERVERS) else { continue };
            if let Some(owners) = map.owners.get_mut(usize::from(*first)..=usize::from((*last).min(SLOTS - 1))) {
                owners.fill(server as u16);
            }
        }
        map
    }

    /// The owner of a slot.
    pub fn owner(&self, slot: u16) -> Option<&ClusterServer> {
        self.servers.get(usize::from(*self.owners.get(usize::from(slot))?))
    }

    /// All slots as ranges, in order, those without an owner included.
    pub fn ranges(&self) -> Vec<SlotRange> {
        let mut ranges: Vec<SlotRange> = Vec::new();
        for (slot, owner) in (0..SLOTS).zip(&self.owners) {
            let server = (*owner != NO_OWNER).then_some(usize::from(*owner));
            match ranges.last_mut() {
                Some(range) if range.server == server => range.last = slot,
                _ => ranges.push(SlotRange { first: slot, last: slot, server }),
            }
        }
        ranges
    }

    /// The number of slots of a server, by its place.
    pub fn count(&self, server: usize) -> usize {
        self.owners.iter().filter(|owner| usize::from(**owner) == server).count()
    }

    /// The number of slots that have an owner.
    pub fn assigned(&self) -> usize {
        self.owners.iter().filter(|owner| **owner != NO_OWNER).count()
    }
}

/// Consecutive slots, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotSpan {
    /// The first slot.
    pub first: u16,
    /// The last slot.
    pub last: u16,
}

impl SlotSpan {
    /// Whether a slot is among them.
    #[inline]
    pub fn contains(self, slot: u16) -> bool {
        (self.first..=self.last).contains(&slot)
    }

    /// Whether the slot of a key is among them.
    #[inline]
    pub fn has(self, key: &[u8]) -> bool {
        self.contains(slot_of(key))
    }

    /// Whether the slot of a key is in one of some spans, which are disjoint and in their order.
    #[inline]
    pub fn any_has(spans: &[SlotSpan], key: &[u8]) -> bool {
        let slot = slot_of(key);
        let behind = spans.partition_point(|span| span.last < slot);
        spans.get(behind).is_some_and(|span| span.first <= slot)
    }
}

/// Stands for no slots: the first one is behind the last.
const NO_SPAN: u32 = 1 << 16;

/// Some slots in one word: the first one, and in the lower half the last.
fn span_bits(span: Option<SlotSpan>) -> u32 {
    span.map_or(NO_SPAN, |span| u32::from(span.first) << 16 | u32::from(span.last))
}

fn span_of_bits(bits: u32) -> Option<SlotSpan> {
    let (first, last) = ((bits >> 16) as u16, bits as u16);
    (first <= last).then_some(SlotSpan { first, last })
}

/// Whether what a table's backing does not have yet is written there by this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteBack {
    /// The key is this server's.
    Now,
    /// It is not sure: the server has not read whose it is, or what an earlier start has given away.
    Later,
    /// Another server owns it.
    Never,
}

/// What this server owns, and what it knows of the others. Shared by all tables.
#[derive(Debug)]
pub struct SlotOwnership {
    own_id: String,
    bits: Box<[AtomicU64; WORDS]>,
    has_all: AtomicBool,
    map: RwLock<Arc<SlotMap>>,
    trouble: Mutex<Option<(u64, String)>>,
    looks: AtomicU64,
    /// The slots that are copied to another server, as [`span_bits`].
    copied: AtomicU32,
    /// The slots that another server is about to hand over to this one.
    awaited: AtomicU32,
    /// Bytes of the keys that have changed meanwhile and are not copied again yet.
    noted_bytes: AtomicUsize,
    /// Whether the copy cannot be finished: too many keys have changed, or a table was emptied.
    is_spoilt: AtomicBool,
    /// Whether records of slots that this server does not own yet are copied here.
    has_arrivals: AtomicBool,
    /// Times that the slots which this server owns were set.
    changes: AtomicU64,
    /// The slots whose former owner still makes calls for changes from before, as [`span_bits`].
    called_elsewhere: AtomicU32,
    /// The server whose place this one takes now.
    inherited_from: Mutex<Option<String>>,
    /// Whether another server has taken this one's place, and how often it was read.
    has_lost_place: AtomicBool,
    lost_places: AtomicU64,
}

impl SlotOwnership {
    /// The ownership of a server that has not read the map yet. It owns all slots, so that its own records can be
    /// restored; [`SlotOwnership::set_owned`] comes before the first request.
    pub fn new(own_id: String) -> SlotOwnership {
        SlotOwnership {
            own_id,
            bits: Box::new([const { AtomicU64::new(u64::MAX) }; WORDS]),
            has_all: AtomicBool::new(true),
            map: RwLock::default(),
            trouble: Mutex::default(),
            looks: AtomicU64::new(0),
            copied: AtomicU32::new(NO_SPAN),
            awaited: AtomicU32::new(NO_SPAN),
            noted_bytes: AtomicUsize::new(0),
            is_spoilt: AtomicBool::new(false),
            has_arrivals: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            called_elsewhere: AtomicU32::new(NO_SPAN),
            inherited_from: Mutex::default(),
            has_lost_place: AtomicBool::new(false),
            lost_places: AtomicU64::new(0),
        }
    }

    /// Notes that what others have changed up to some moment of this look holds here now.
    pub fn note_look(&self) {
        self.looks.fetch_add(1, Ordering::Release);
    }

    /// Looks so far. What was changed before a moment holds here once two have ended since then: the first may have
    /// begun before it.
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Acquire)
    }

    /// This server's id.
    pub fn own_id(&self) -> &str {
        &self.own_id
    }

    /// Whether this server owns all slots.
    #[inline]
    pub fn owns_all(&self) -> bool {
        self.has_all.load(Ordering::Acquire)
    }

    /// Whether this server owns a slot.
    #[inline]
    pub fn owns_slot(&self, slot: u16) -> bool {
        let word = self.bits.get(usize::from(slot / 64));
        word.is_some_and(|word| word.load(Ordering::Acquire) >> (slot % 64) & 1 == 1)
    }

    /// Whether this server owns the slot of a key.
    #[inline]
    pub fn owns(&self, key: &[u8]) -> bool {
        self.owns_all() || self.owns_slot(slot_of(key))
    }

    /// Sets the slots that this server owns.
    pub fn set_owned(&self, owns: impl Fn(u16) -> bool) {
        let mut all = true;
        for (number, word) in self.bits.iter().enumerate() {
            let first = number as u16 * 64;
            let bits = (0..64).fold(0, |bits, bit| bits | u64::from(owns(first + bit)) << bit);
            if bits != u64::MAX {
                all = false;
                self.has_all.store(false, Ordering::Release);
            }
            word.store(bits, Ordering::Release);
        }
        self.has_all.store(all, Ordering::Release);
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Times that the slots which this server owns were set. If a caller sees the same number before and after some
    /// work, and the server owns a slot afterwards, it owned it all the while.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Sets the slots whose former owner still makes the calls for changes before the hand-over. Until it has made them
    /// this server makes none for their changes, so that a key's calls come in the order of its versions.
    pub fn set_called_elsewhere(&self, span: Option<SlotSpan>) {
        self.called_elsewhere.store(span_bits(span), Ordering::Release);
    }

    /// Whether [`SlotOwnership::set_called_elsewhere`] names a slot.
    pub fn is_called_elsewhere(&self, slot: u16) -> bool {
        span_of_bits(self.called_elsewhere.load(Ordering::Acquire)).is_some_and(|span| span.contains(slot))
    }

    /// Sets the server whose place this one takes now.
    pub fn set_inherited_from(&self, server: Option<&str>) {
        let mut known = self.inherited_from.lock();
        if known.as_deref() != server {
            *known = server.map(str::to_owned);
        }
    }

    /// What [`SlotOwnership::set_inherited_from`] has set.
    pub fn inherited_from(&self) -> Option<String> {
        self.inherited_from.lock().clone()
    }

    /// Says whether another server has taken this one's place, which owns what this one has owned. To be called before
    /// the map is set that says so.
    pub fn set_lost_place(&self, is_lost: bool) {
        if !self.has_lost_place.swap(is_lost, Ordering::AcqRel) && is_lost {
            self.lost_places.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Times that this server has read that another one has taken its place.
    pub fn lost_places(&self) -> u64 {
        self.lost_places.load(Ordering::Acquire)
    }

    /// The map that was read last.
    pub fn map(&self) -> Arc<SlotMap> {
        Arc::clone(&self.map.read())
    }

    /// Replaces the map.
    pub fn set_map(&self, map: SlotMap) {
        *self.map.write() = Arc::new(map);
    }

    /// The slots that are copied to another server now. Keys of theirs that change are noted.
    #[inline]
    pub fn copied(&self) -> Option<SlotSpan> {
        span_of_bits(self.copied.load(Ordering::Acquire))
    }

    /// Sets the slots that are copied, from a clean beginning. What was noted before is forgotten by the tables
    /// themselves.
    pub fn set_copied(&self, span: Option<SlotSpan>) {
        self.is_spoilt.store(false, Ordering::Release);
        self.copied.store(span_bits(span), Ordering::Release);
    }

    /// Says whether records of slots that this server does not own yet are copied here. Tables are not emptied then.
    pub fn set_arriving(&self, on: bool) {
        self.has_arrivals.store(on, Ordering::Release);
    }

    /// Whether slots that are copied to another server are not served any more: it has them soon.
    pub fn is_frozen(&self) -> bool {
        self.copied().is_some_and(|span| !self.owns_slot(span.first))
    }

    /// Says which slots this server has all records of, and is about to own.
    pub fn set_awaited(&self, span: Option<SlotSpan>) {
        self.awaited.store(span_bits(span), Ordering::Release);
    }

    /// What [`SlotOwnership::set_arriving`] has set.
    pub fn is_arriving(&self) -> bool {
        self.has_arrivals.load(Ordering::Acquire)
    }

    pub(crate) fn count_noted(&self, bytes: usize) {
        if self.noted_bytes.fetch_add(bytes, Ordering::Relaxed) > NOTED_KEYS_BYTES {
            self.spoil_copy();
        }
    }

    pub(crate) fn uncount_noted(&self, bytes: usize) {
        self.noted_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Notes that a copy which is under way cannot be finished.
    pub fn spoil_copy(&self) {
        self.is_spoilt.store(true, Ordering::Release);
    }

    /// Whether the copy cannot be finished.
    pub fn is_copy_spoilt(&self) -> bool {
        self.is_spoilt.load(Ordering::Acquire)
    }

    /// Bytes of keys that have changed and are not copied again yet.
    pub fn noted_bytes(&self) -> usize {
        self.noted_bytes.load(Ordering::Relaxed)
    }

    /// Serves some slots no more.
    pub fn disown(&self, span: SlotSpan) {
        self.has_all.store(false, Ordering::Release);
        for (number, word) in (0_u16..).zip(self.bits.iter()) {
            let first = number * 64;
            let bits = (0..64).fold(0, |bits, bit| bits | u64::from(span.contains(first + bit)) << bit);
            word.fetch_and(!bits, Ordering::AcqRel);
        }
        // Behind the bits: see `changes`.
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether this server writes what the backing of a table does not have yet of a key. It does while the key's slot
    /// is not served any more and not given away either: no other server gets it before all is written.
    pub fn write_back(&self, key: &[u8]) -> WriteBack {
        let (slot, map) = (slot_of(key), self.map());
        let is_given = self.copied().is_some_and(|span| span.contains(slot));
        match map.owner(slot) {
            Some(owner) if owner.id != self.own_id => WriteBack::Never,
            Some(_) if self.owns_slot(slot) || is_given => WriteBack::Now,
            _ => WriteBack::Later,
        }
    }

    /// Since when the store of the cluster's state has not answered, in milliseconds since 1970, and why.
    pub fn trouble(&self) -> Option<(u64, String)> {
        self.trouble.lock().clone()
    }

    /// Notes that the store of the cluster's state does not answer, or that it does again.
    pub fn set_trouble(&self, why: Option<(u64, String)>) {
        let mut trouble = self.trouble.lock();
        *trouble = match (why, trouble.take()) {
            // Since the first failure.
            (Some((_, why)), Some((since_ms, _))) => Some((since_ms, why)),
            (why, _) => why,
        };
    }

    /// Whether another server is about to hand a slot over to this one, or has, and this one has not read it yet. Its
    /// owner in the map that was read last sends clients here then.
    pub fn is_changing(&self, slot: u16) -> bool {
        span_of_bits(self.awaited.load(Ordering::Acquire)).is_some_and(|span| span.contains(slot))
    }

    /// The server that owns a slot in the map that was read last, if a client may be sent there: not this one, and not
    /// one that is about to hand the slot over to this one.
    pub fn other_owner<'m>(&self, map: &'m SlotMap, slot: u16) -> Option<&'m ClusterServer> {
        map.owner(slot).filter(|owner| owner.id != self.own_id && !self.is_changing(slot))
    }

    /// The epoch of the map, and the text for a request whose key another server owns. Its first word is the address
    /// of the owner's first data port, or `-` if the slot has no owner.
    #[cold]
    pub fn wrong_server(&self, key: &[u8]) -> (u64, String) {
        self.wrong_server_of(slot_of(key))
    }

    /// The same of a slot.
    #[cold]
    pub fn wrong_server_of(&self, slot: u16) -> (u64, String) {
        let map = self.map();
        let text = match (self.other_owner(&map, slot), map.owner(slot)) {
            (Some(owner), _) => format!("{} owns slot {slot} of the key", owner.data),
            (None, Some(_)) => format!("- slot {slot} is changing its server; ask again"),
            (None, None) => {
                format!("- no server owns slot {slot} of the key; `sandstorm cluster status` shows the owners")
            }
        };
        (map.epoch, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(number: u16) -> ClusterServer {
        let data = SocketAddr::from(([10, 0, 0, number as u8], 7400));
        ClusterServer { data, ..ClusterServer::example(&format!("{number:040x}")) }
    }

    #[test]
    fn a_map_is_its_ranges() {
        let range = |first, last, server| SlotRange { first, last, server };
        let given = [range(0, 99, Some(0)), range(100, 199, Some(1)), range(300, 16_383, Some(0))];
        let map = SlotMap::new(3, vec![server(1), server(2)], &given);
        let all = [given[0], given[1], range(200, 299, None), given[2]];
        assert_eq!(map.ranges(), all);
        assert_eq!((map.count(1), map.assigned()), (100, 16_284));
        assert_eq!(map.owner(150).map(|owner| owner.id.as_str()), Some(server(2).id.as_str()));
        assert!(map.owner(250).is_none() && map.owner(SLOTS).is_none());
        assert_eq!(SlotMap::new(3, map.servers.clone(), &map.ranges()).ranges(), all);
    }

    #[test]
    fn ownership_is_of_the_slots_that_were_set() {
        let own = SlotOwnership::new(server(1).id);
        assert!(own.owns_all() && own.owns(b"any"), "until the map is known, for the records of this server itself");
        for (first, last) in [(0, 0), (63, 64), (100, 16_383), (0, 16_383), (1, 0)] {
            own.set_owned(|slot| (first..=last).contains(&slot));
            for slot in 0..SLOTS {
                assert_eq!(own.owns_slot(slot), (first..=last).contains(&slot), "{first} to {last}: {slot}");
            }
            assert_eq!(own.owns_all(), (first, last) == (0, 16_383));
        }
        assert!(!own.owns_slot(SLOTS));
    }

    #[test]
    fn the_first_word_of_a_refusal_is_where_the_key_is() {
        let own = SlotOwnership::new(server(1).id);
        own.set_owned(|slot| slot < 10_000);
        let to = |first, last, server| SlotRange { first, last, server: Some(server) };
        own.set_map(SlotMap::new(7, vec![server(1), server(2)], &[to(0, 9_999, 0), to(10_000, 15_000, 1)]));
        assert_eq!(own.wrong_server(b"foo"), (7, "10.0.0.2:7400 owns slot 12182 of the key".to_owned()));
        own.set_map(SlotMap::new(8, vec![server(1)], &[to(0, 9_999, 0)]));
        assert!(own.wrong_server(b"foo").1.starts_with("- no server owns slot 12182"));
        // Its owner sends clients here already.
        own.set_map(SlotMap::new(7, vec![server(1), server(2)], &[to(0, 9_999, 0), to(10_000, 15_000, 1)]));
        own.set_awaited(Some(SlotSpan { first: 12_000, last: 13_000 }));
        assert!(own.wrong_server(b"foo").1.starts_with("- slot 12182 is changing its server"));
        own.set_awaited(None);
        assert!(own.wrong_server(b"foo").1.starts_with("10.0.0.2:7400 "));
    }

    #[test]
    fn a_backing_is_written_only_by_the_owner_of_a_key() {
        let own = SlotOwnership::new(server(1).id);
        let map =
            |owner| SlotMap::new(7, vec![server(1), server(2)], &[SlotRange { first: 0, last: 16_383, server: owner }]);
        assert_eq!(own.write_back(b"foo"), WriteBack::Later, "no map was read");
        own.set_map(map(Some(0)));
        assert_eq!(own.write_back(b"foo"), WriteBack::Now);
        own.set_owned(|_| false);
        assert_eq!(own.write_back(b"foo"), WriteBack::Later, "an earlier start may have given it away");
        own.set_copied(Some(SlotSpan { first: 12_000, last: 13_000 }));
        assert_eq!(own.write_back(b"foo"), WriteBack::Now, "it is not served, and is written before it is given away");
        own.set_map(map(Some(1)));
        assert_eq!(own.write_back(b"foo"), WriteBack::Never);
        own.set_map(map(None));
        assert_eq!(own.write_back(b"bar"), WriteBack::Later);
    }

    #[test]
    fn whoever_looks_before_and_after_learns_whether_a_slot_was_owned_in_between() {
        let own = SlotOwnership::new(server(1).id);
        let before = own.changes();
        assert!(own.owns_slot(7) && own.changes() == before, "nothing has changed");
        own.disown(SlotSpan { first: 5, last: 9 });
        assert!(!own.owns_slot(7), "it is not served now");
        own.set_owned(|_| true);
        assert!(own.owns_slot(7) && own.changes() != before, "it is served again, and was not in between");
        own.set_called_elsewhere(Some(SlotSpan { first: 5, last: 9 }));
        assert!(own.is_called_elsewhere(9) && !own.is_called_elsewhere(10));
        own.set_called_elsewhere(None);
        assert!(!own.is_called_elsewhere(9));
    }

    #[test]
    fn trouble_counts_from_its_beginning() {
        let own = SlotOwnership::new(String::new());
        own.set_trouble(Some((5, "refused".into())));
        own.set_trouble(Some((9, "no answer".into())));
        assert_eq!(own.trouble(), Some((5, "no answer".to_owned())));
        own.set_trouble(None);
        assert_eq!(own.trouble(), None);
    }
}
