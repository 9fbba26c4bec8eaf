//! A model of moves: several servers with records, clients that write, a store that loses questions and answers or gets
//! them late, servers that lose each other's, and that crash and start again. A client that is served finds every key
//! as the last client has left it, whichever server that was.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sandstorm_store::RestoredRecord;
use sandstorm_store::slots::{SlotOwnership, SlotSpan};

use crate::broken_rules::{BROKEN, MemberRule, is_broken};
use crate::copy_format::{CopiedKey, CopiedTable, CopyAnswer, CopyAsk, CopyHead, CopyRequest, EmptiedTable};
use crate::limits::CHANGES_ABOVE_BYTES;
use crate::map_requests::MapRequest;
use crate::member::{ClusterMember, MemberAddresses};
use crate::model::{ModelEtcd, QuestionOutcome};
use crate::move_coordinator::MoveCoordinator;
use crate::slot_copy::{CopySource, CopyTables, SlotCopy};
use crate::slot_moves::WantedMove;
use crate::slot_plans::ServerChange;

/// Runs without a broken rule.
const RUNS: u64 = 80;
/// Runs in which a broken rule has to be noticed.
const BROKEN_RUNS: u64 = 5_000;
/// Steps of a run.
const STEPS: usize = 600;
const SERVERS: usize = 3;
/// The slots that clients write to.
const SLOTS: [u16; 4] = [0, 5_000, 9_000, 16_383];
const KEYS_PER_SLOT: u16 = 2;

/// A key: its slot, and its number there.
type ModelKey = (u16, u16);
/// A key's value, and its version.
type ModelRecords = BTreeMap<ModelKey, (u64, u64)>;

struct MovingServer {
    id: String,
    coordinator: Arc<MoveCoordinator>,
    member: ClusterMember,
    copy: Option<(SlotCopy, usize)>,
    /// Keys that have changed while they are copied.
    noted: BTreeSet<ModelKey>,
    /// Whether the table was emptied while it is copied.
    was_emptied: bool,
    freezes: u32,
    /// All that a crash leaves.
    records: ModelRecords,
}

impl MoveCoordinator {
    /// As [`MoveCoordinator::request_move`], without waiting.
    fn request_move_later(&self, wanted: WantedMove) {
        drop(self.ask(MapRequest::Begin(wanted)));
    }

    /// As [`MoveCoordinator::change_server`], without waiting.
    fn change_server_later(&self, id: &str, change: ServerChange) {
        drop(self.ask(MapRequest::Server(id.to_owned(), change)));
    }

    /// As [`MoveCoordinator::cancel_moves`], without waiting.
    fn cancel_moves_later(&self, spans: Vec<SlotSpan>) {
        drop(self.ask(MapRequest::Cancel(spans)));
    }
}

fn id_of(number: usize) -> String {
    format!("{number:040x}")
}

impl MovingServer {
    fn start(number: usize, boot: u64, records: ModelRecords) -> MovingServer {
        let slots = Arc::new(SlotOwnership::new(id_of(number)));
        slots.set_owned(|_| false);
        let coordinator = Arc::new(MoveCoordinator::new(slots, boot));
        let mut member = ClusterMember::new(Arc::clone(&coordinator), SERVERS);
        let data = SocketAddr::from(([127, 0, 0, 1], 7000 + number as u16));
        let (control, fingerprint) = (String::new(), String::new());
        member.set_addresses(&MemberAddresses { data, redis: None, memcached: None, control, fingerprint });
        MovingServer {
            id: id_of(number),
            coordinator,
            member,
            copy: None,
            noted: BTreeSet::new(),
            was_emptied: false,
            freezes: 0,
            records,
        }
    }

    fn owns(&self, slot: u16) -> bool {
        self.coordinator.slots().owns_slot(slot)
    }

    fn note(&mut self, key: ModelKey) {
        if self.coordinator.slots().copied().is_some_and(|span| span.contains(key.0)) {
            self.noted.insert(key);
        }
    }

    fn push(&self, key: ModelKey, answer: &mut CopyAnswer) {
        let name = [key.0.to_le_bytes(), key.1.to_le_bytes()].concat();
        let found = self.records.get(&key).map(|(value, version)| (value.to_le_bytes(), *version));
        let record = found.as_ref().map(|(value, version)| RestoredRecord {
            version: *version,
            key: &name,
            value,
            flags: 0,
            expires_at_ms: 0,
        });
        answer.push(&CopiedKey { tenant: 1, table: 1, serial: 1, key: &name, record });
    }

    /// As the source of a move.
    fn answer(&mut self, request: &CopyRequest) -> Result<CopyAnswer, String> {
        let mut answer = CopyAnswer::default();
        let tables = || vec![CopiedTable { tenant: 1, table: 1, serial: 1, version: 0, backing: None, logged: None }];
        match &request.ask {
            CopyAsk::Begin => {
                self.coordinator.begin(request.move_id, request.attempt, &request.target)?;
                self.noted.clear();
                self.was_emptied = false;
                answer.head = CopyHead { tables: tables(), ..CopyHead::default() };
            }
            CopyAsk::Page { cursor, .. } => {
                let span = self.coordinator.span_of(request.attempt)?;
                let from = ((*cursor >> 16) as u16, *cursor as u16);
                let mut keys = self.records.range(from..).filter(|(key, _)| span.contains(key.0)).map(|(key, _)| *key);
                let (found, next) = (keys.next(), keys.next());
                found.into_iter().for_each(|key| self.push(key, &mut answer));
                answer.head.next = next.map(|key| u64::from(key.0) << 16 | u64::from(key.1));
                // Now and then so many that they come between the pages.
                answer.head.noted = (self.noted.len() as u64 / 2) * (CHANGES_ABOVE_BYTES + 1);
            }
            CopyAsk::Changes => {
                self.coordinator.span_of(request.attempt)?;
                let key = self.noted.pop_first();
                if std::mem::take(&mut self.was_emptied) {
                    answer.head.emptied.push(EmptiedTable { tenant: 1, table: 1, serial: 1 });
                }
                key.into_iter().for_each(|key| self.push(key, &mut answer));
                (answer.head.has_more, answer.head.noted) = (!self.noted.is_empty(), self.noted.len() as u64);
            }
            CopyAsk::Freeze => {
                self.coordinator.freeze(request.attempt)?;
                answer.head.tables = tables();
                // Now and then something is not written in time, and the slots are served again.
                self.freezes += 1;
                if self.freezes.is_multiple_of(5) {
                    self.coordinator.thaw(request.attempt);
                    answer.head.waits = true;
                }
            }
            CopyAsk::Thaw => {
                self.coordinator.span_of(request.attempt)?;
                self.coordinator.thaw(request.attempt);
            }
            CopyAsk::Ready => {
                self.coordinator.set_ready(request.attempt)?;
                answer.head.handed_over = self.coordinator.is_handed_over(request.attempt);
            }
            CopyAsk::Alive => drop(self.coordinator.span_of(request.attempt)?),
            CopyAsk::Abandon => self.coordinator.abandon(request.attempt),
            // The model has no triggers, so there are no calls for changes.
            CopyAsk::Called => {}
        }
        Ok(answer)
    }
}

/// A target's link to its source: an answer that was given, or the reason that none is there.
struct ModelLink<'s> {
    source: &'s mut MovingServer,
    outcomes: Vec<QuestionOutcome>,
    /// Questions that arrive later.
    late: &'s mut Vec<(usize, CopyRequest)>,
    number: usize,
}

impl CopySource for ModelLink<'_> {
    fn ask(&mut self, request: &CopyRequest) -> Result<CopyAnswer, String> {
        match self.outcomes.pop().unwrap_or(QuestionOutcome::Answered) {
            QuestionOutcome::Answered => self.source.answer(request),
            QuestionOutcome::AnswerLost => {
                let _lost = self.source.answer(request);
                Err("lost".to_owned())
            }
            QuestionOutcome::QuestionLost => {
                self.late.push((self.number, request.clone()));
                Err("lost".to_owned())
            }
        }
    }
}

/// The records of a target.
struct ModelTables<'r> {
    records: &'r mut ModelRecords,
    /// Whether a table is logged otherwise than at the source.
    differs: bool,
}

impl CopyTables for ModelTables<'_> {
    fn check(&mut self, _tables: &[CopiedTable]) -> Result<(), String> {
        Ok(())
    }

    fn logged_otherwise(&self, _tables: &[CopiedTable]) -> Option<String> {
        self.differs.then(|| "the durability of a table was changed".to_owned())
    }

    fn clear(&mut self, spans: &[SlotSpan]) -> Result<bool, String> {
        let found = self.records.keys().copied().find(|key| spans.iter().any(|span| span.contains(key.0)));
        Ok(found.map(|key| self.records.remove(&key)).is_some())
    }

    fn empty(&mut self, spans: &[SlotSpan], _table: &EmptiedTable) -> Result<bool, String> {
        self.clear(spans)
    }

    fn take(&mut self, answer: &CopyAnswer) -> Result<u64, String> {
        let mut count = 0;
        for copied in answer.keys() {
            let copied = copied?;
            let half = |at: usize| u16::from_le_bytes([copied.key[at], copied.key[at + 1]]);
            let key = (half(0), half(2));
            match copied.record {
                Some(record) => {
                    let value = u64::from_le_bytes(record.value.try_into().unwrap());
                    self.records.insert(key, (value, record.version));
                }
                None if is_broken(MemberRule::RemovalsAreCopied) => {}
                None => drop(self.records.remove(&key)),
            }
            count += 1;
        }
        // Many, as long as there are some: so that it takes some rounds.
        Ok(count * 1_000)
    }

    fn finish(&mut self, _tables: &[CopiedTable]) -> Result<(), String> {
        Ok(())
    }
}

struct MoveWorld {
    random: StdRng,
    store: ModelEtcd,
    servers: Vec<MovingServer>,
    /// Every key as clients have left it.
    truth: ModelRecords,
    late: Vec<(usize, CopyRequest)>,
    versions: u64,
    boots: u64,
    /// Whether questions and answers are lost.
    has_faults: bool,
    /// Slots that were handed over.
    moved: usize,
}

impl MoveWorld {
    fn new(seed: u64) -> MoveWorld {
        let servers = (0..SERVERS).map(|number| MovingServer::start(number, 1 + number as u64, BTreeMap::new()));
        let mut world = MoveWorld {
            random: StdRng::seed_from_u64(seed),
            store: ModelEtcd::default(),
            servers: servers.collect(),
            truth: BTreeMap::new(),
            late: Vec::new(),
            versions: 0,
            boots: 10,
            has_faults: true,
            moved: 0,
        };
        world.store.found_cluster(world.servers.iter_mut().map(|server| (&*server.id, &mut server.member)));
        world
    }

    /// What happens to the next questions; one in so many is lost, and as many answers are.
    fn outcomes(&mut self, one_in: u32) -> Vec<QuestionOutcome> {
        if !self.has_faults {
            return Vec::new();
        }
        (0..4).map(|_| QuestionOutcome::draw(&mut self.random, one_in)).collect()
    }

    /// A client writes to a key, or removes it; `Err`: the key is not as it was left.
    fn write(&mut self, at: usize) -> Result<(), ModelKey> {
        let key = (SLOTS[self.random.random_range(0..SLOTS.len())], self.random.random_range(0..KEYS_PER_SLOT));
        let server = &mut self.servers[at];
        if !server.owns(key.0) {
            return Ok(());
        }
        if server.records.get(&key) != self.truth.get(&key) {
            return Err(key);
        }
        server.note(key);
        self.versions += 1;
        if self.random.random_ratio(1, 4) {
            server.records.remove(&key);
            self.truth.remove(&key);
        } else {
            let sum = self.truth.get(&key).map_or(0, |(value, _)| *value) + 1;
            server.records.insert(key, (sum, self.versions));
            self.truth.insert(key, (sum, self.versions));
        }
        Ok(())
    }

    fn look(&mut self, at: usize) {
        let fates = self.outcomes(6);
        let _answered = self.store.look(&mut self.servers[at].member, fates);
    }

    /// The slot mover's next step.
    fn mover(&mut self, at: usize) {
        let outcomes = self.outcomes(40);
        let server = &mut self.servers[at];
        if let Some((move_id, span)) = server.coordinator.next_to_clear() {
            server.records.retain(|key, _| !span.contains(key.0));
            server.coordinator.set_cleared(move_id);
            return;
        }
        if server.copy.is_none() {
            let Some((wanted, _, _)) = server.coordinator.next_copy() else { return };
            let source = (0..SERVERS).find(|number| id_of(*number) == wanted.source).unwrap();
            let copy = SlotCopy::new(&server.id, wanted.id, wanted.span(), self.random.random());
            server.copy = Some((copy, source));
        }
        let Some((mut copy, number)) = server.copy.take() else { return };
        // Now and then the durability of a table is changed.
        let differs = self.has_faults && self.random.random_ratio(1, 8);
        let mut records = std::mem::take(&mut server.records);
        let is_wanted = server.coordinator.is_to_be_copied(copy.move_id());
        let source = &mut self.servers[number];
        let mut link = ModelLink { source, outcomes, late: &mut self.late, number };
        let is_cancelled = copy.is_served() && !is_wanted;
        let mut tables = ModelTables { records: &mut records, differs };
        let failed = is_cancelled || copy.step(&mut link, &mut tables).is_err();
        if failed {
            copy.abandon(&mut link);
        }
        let goes_on = !failed && !copy.is_over();
        self.moved += usize::from(copy.is_over());
        self.servers[at].records = records;
        if goes_on {
            self.servers[at].copy = Some((copy, number));
        }
    }

    /// Something that is not every day's.
    fn trouble(&mut self, at: usize) {
        match self.random.random_range(0..8) {
            0 => {
                self.boots += 1;
                let records = std::mem::take(&mut self.servers[at].records);
                self.servers[at] = MovingServer::start(at, self.boots, records);
            }
            1 if !self.store.between.is_empty() => self.store.apply_late(&mut self.random),
            2 if !self.late.is_empty() => {
                let late = self.random.random_range(0..self.late.len());
                let (source, request) = self.late.swap_remove(late);
                let _nobody_waits = self.servers[source].answer(&request);
            }
            3 => self.servers[at].coordinator.end_silent(Duration::ZERO, Duration::ZERO),
            4 => {
                let mut ends = [0, 1].map(|_| SLOTS[self.random.random_range(0..SLOTS.len())]);
                ends.sort_unstable();
                let spans = vec![SlotSpan { first: ends[0], last: ends[1] }];
                let target = id_of(self.random.random_range(0..SERVERS));
                self.servers[at].coordinator.request_move_later(WantedMove { spans, target, mib_per_s: 0 });
            }
            5 if self.random.random_ratio(1, 4) => {
                let server = id_of(self.random.random_range(0..SERVERS));
                let mib_per_s = 0;
                let change = match self.random.random_ratio(1, 2) {
                    true => ServerChange::Drain { mib_per_s },
                    false => ServerChange::Add { mib_per_s },
                };
                self.servers[at].coordinator.change_server_later(&server, change);
            }
            6 if self.random.random_ratio(1, 8) => {
                let span = SlotSpan { first: 0, last: 16_383 };
                self.servers[at].coordinator.cancel_moves_later(vec![span]);
            }
            7 => self.empty(at),
            _ => {}
        }
    }

    /// The table is emptied at a server, which refuses that where records come or are about to go.
    fn empty(&mut self, at: usize) {
        let server = &mut self.servers[at];
        let slots = Arc::clone(server.coordinator.slots());
        if slots.is_arriving() || slots.is_frozen() || self.random.random_ratio(1, 2) {
            return;
        }
        server.records.retain(|key, _| !slots.owns_slot(key.0));
        self.truth.retain(|key, _| !slots.owns_slot(key.0));
        server.was_emptied |= slots.copied().is_some();
    }

    fn owners(&self, slot: u16) -> usize {
        self.servers.iter().filter(|server| server.owns(slot)).count()
    }

    fn step(&mut self) -> Result<(), ModelKey> {
        let at = self.random.random_range(0..SERVERS);
        match self.random.random_range(0..16) {
            0..4 => self.write(at)?,
            4..7 => self.look(at),
            7..14 => self.mover(at),
            _ => self.trouble(at),
        }
        match SLOTS.into_iter().find(|slot| self.owners(*slot) > 1) {
            Some(slot) => Err((slot, u16::MAX)),
            None => Ok(()),
        }
    }

    /// Without faults all moves come to their ends, and every key is as it was left.
    fn settle(&mut self) -> Result<(), ModelKey> {
        self.has_faults = false;
        self.store.between.clear();
        self.late.clear();
        let is_quiet = |server: &MovingServer| server.coordinator.slots().map().moves.is_empty();
        for round in 0..400 {
            for at in 0..SERVERS {
                self.look(at);
                self.mover(at);
            }
            // Others' changes may be read a round later.
            if round % 4 == 3 && self.servers.iter().all(is_quiet) {
                break;
            }
        }
        for at in 0..SERVERS {
            assert!(self.servers[at].coordinator.slots().map().moves.is_empty(), "a move has not ended");
        }
        for server in &self.servers {
            let map = server.coordinator.slots().map();
            let is_draining = map.servers.iter().any(|one| one.id == server.id && one.is_draining);
            let owned = SLOTS.into_iter().find(|slot| server.owns(*slot));
            assert!(!is_draining || owned.is_none(), "a server that is drained owns slot {owned:?}");
        }
        for slot in SLOTS {
            let owner = self.servers.iter().find(|server| server.owns(slot)).expect("an owner");
            for key in (0..KEYS_PER_SLOT).map(|number| (slot, number)) {
                if owner.records.get(&key) != self.truth.get(&key) {
                    return Err(key);
                }
            }
            let others = self.servers.iter().filter(|server| server.id != owner.id);
            assert!(self.owners(slot) == 1 && others.count() == SERVERS - 1);
        }
        Ok(())
    }
}

/// One run: the key that was not as it was left, or has two owners; and the moves that ended.
fn run(seed: u64) -> (Option<ModelKey>, usize) {
    let mut world = MoveWorld::new(seed);
    let gone = (0..STEPS).try_for_each(|_| world.step()).and_then(|()| world.settle());
    (gone.err(), world.moved)
}

#[test]
fn every_key_is_as_it_was_left_while_slots_move() {
    let mut moved = 0;
    for seed in 0..RUNS {
        let (lost, moves) = run(seed);
        assert_eq!(lost, None, "seed {seed}");
        moved += moves;
    }
    assert!(moved as u64 > RUNS, "{moved} moves in {RUNS} runs");
}

#[test]
fn each_rule_of_moves_is_needed() {
    for rule in [
        MemberRule::MovesCompare,
        MemberRule::MovesAreTakenUp,
        MemberRule::FrozenIsNotServed,
        MemberRule::WhatIsSentStaysFrozen,
        MemberRule::NoneBeginsWhileHandedOver,
        MemberRule::CopiesBeginEmpty,
        MemberRule::ChangesAreCopied,
        MemberRule::RemovalsAreCopied,
        MemberRule::EmptiedIsCopied,
    ] {
        BROKEN.set(Some(rule));
        let broken = std::panic::catch_unwind(|| (0..BROKEN_RUNS).any(|seed| run(seed).0.is_some()));
        BROKEN.set(None);
        assert!(broken.unwrap_or(false), "the model has not noticed {rule:?}");
    }
}
