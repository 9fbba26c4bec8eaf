//! A model of copies: several servers with records and copies of each other's logs, clients that count keys up and read
//! them, a store and links that lose questions and answers or get them late, servers that crash, servers that hear
//! nothing for long, and others that take their places, by command and by themselves. A client is never shown less than
//! was acknowledged before.

mod removing;
mod watching;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use sandstorm_store::slots::SlotOwnership;

use crate::broken_rules::{BROKEN, MemberRule, is_broken};
use crate::copy_coordinator::{CopiedUpTo, CopyName, CopyPosition};
use crate::map_requests::MapRequest;
use crate::member::{ClusterMember, MemberAddresses};
use crate::model::{ModelEtcd, QuestionOutcome};
use crate::move_coordinator::MoveCoordinator;
use watching::ModelWatch;

/// Runs without a broken rule; the environment's `COPY_SEEDS` says another number, or `FIRST-LAST`.
const RUNS: u64 = 200;
/// Runs in which a broken rule has to be noticed.
const BROKEN_RUNS: u64 = 8_000;
/// Steps of a run.
const STEPS: usize = 700;
const SERVERS: usize = 3;
/// The slots that clients write to; each has one key.
const SLOTS: [u16; 3] = [0, 8_000, 16_383];
/// Steps for which a copy promises not to be read, and for which its owner counts on that: its clock may be slow.
const LEASE: u64 = 60;
const COUNTED_LEASE: u64 = 54;
/// Steps of a succession that is hurried.
const HURRIED_STEPS: usize = 250;
/// Steps after which a copy is removed that is in no generation and gets no questions.
const IDLE: u64 = 70;

/// A change of a log: a slot's key has this value from here on, or none.
type ModelChange = (u16, Option<u64>);

/// A copy of another server's log.
#[derive(Clone, Debug, Default)]
struct ModelCopy {
    log: Vec<ModelChange>,
    epoch: u64,
    is_sealed: bool,
    /// When it has answered last.
    granted: u64,
}

/// What is asked of a copy: to go on behind `from` with these changes.
#[derive(Clone, Debug)]
struct ModelQuestion {
    epoch: u64,
    from: usize,
    changes: Vec<ModelChange>,
    /// Whether the copy is made if it is not there.
    makes: bool,
}

impl ModelCopy {
    /// Its answer: how far it is.
    fn append(&mut self, question: &ModelQuestion, now: u64) -> Option<u64> {
        if self.is_sealed || question.epoch < self.epoch || question.from > self.log.len() {
            return None;
        }
        self.epoch = question.epoch;
        let known = self.log.len() - question.from;
        self.log.extend(question.changes.iter().skip(known));
        self.granted = now;
        Some(self.log.len() as u64)
    }
}

struct CopyingServer {
    id: String,
    coordinator: Arc<MoveCoordinator>,
    member: ClusterMember,
    /// All that a crash leaves: its log, and the copies of others' logs.
    log: Vec<ModelChange>,
    copies: BTreeMap<CopyName, ModelCopy>,
    /// How much of the log a copy may have: so much is on the disk.
    shipped: usize,
    held: BTreeMap<CopyName, CopyPosition>,
    /// When it has read the map last.
    read_at: u64,
    records: BTreeMap<u16, u64>,
    /// Writes that are not acknowledged: the slot, the value, and where it is in the log.
    waiting: Vec<(u16, u64, u64)>,
    copied: CopiedUpTo,
    /// The server whose records were taken over, and where that ends in the log.
    inherited: Option<(CopyName, u64)>,
    watching: ModelWatch,
}

fn id_of(number: usize) -> String {
    format!("{number:040x}")
}

impl CopyingServer {
    fn start(number: usize, boot: u64, log: Vec<ModelChange>, copies: BTreeMap<CopyName, ModelCopy>) -> CopyingServer {
        let slots = Arc::new(SlotOwnership::new(id_of(number)));
        slots.set_owned(|_| false);
        let coordinator = Arc::new(MoveCoordinator::new(slots, boot));
        let mut member = ClusterMember::new(Arc::clone(&coordinator), SERVERS);
        let data = SocketAddr::from(([127, 0, 0, 1], 7000 + number as u16));
        let (control, fingerprint) = (String::new(), String::new());
        member.set_addresses(&MemberAddresses { data, redis: None, memcached: None, control, fingerprint });
        let mut records = BTreeMap::new();
        for (slot, value) in &log {
            match value {
                Some(value) => drop(records.insert(*slot, *value)),
                None => drop(records.remove(slot)),
            }
        }
        let (held, waiting, copied, inherited) = (BTreeMap::new(), Vec::new(), CopiedUpTo::default(), None);
        let (id, shipped) = (id_of(number), log.len());
        member.copies().note_log(log.len() as u64);
        let (read_at, watching) = (0, ModelWatch::default());
        CopyingServer {
            id,
            coordinator,
            member,
            log,
            copies,
            shipped,
            held,
            read_at,
            records,
            waiting,
            copied,
            inherited,
            watching,
        }
    }

    fn set(&mut self, slot: u16, value: Option<u64>) -> u64 {
        match value {
            Some(value) => drop(self.records.insert(slot, value)),
            None => drop(self.records.remove(&slot)),
        }
        self.log.push((slot, value));
        self.log.len() as u64
    }

    /// Whether what is at a position may be shown.
    fn may_show(&self, position: u64, now: u64) -> bool {
        let is_leased = self.copied.asked_ns > 0 && now < self.copied.asked_ns + COUNTED_LEASE;
        self.copied.position >= position && (is_leased || is_broken(MemberRule::ReadsNeedALease))
    }
}

struct CopyWorld {
    random: StdRng,
    store: ModelEtcd,
    servers: Vec<CopyingServer>,
    /// The highest value of each slot's key that was acknowledged or shown.
    truth: BTreeMap<u16, u64>,
    late: Vec<(usize, CopyName, ModelQuestion)>,
    now: u64,
    boots: u64,
    numbers: u64,
    has_faults: bool,
    acknowledged: usize,
    succeeded: usize,
    removed: usize,
    hurry: Option<HurriedSuccession>,
    /// The server that never comes back.
    dead: Option<usize>,
    /// The server whose disk is nearly full: copies there take nothing, and confirm what they have.
    full: Option<usize>,
    refused: usize,
}

/// A server takes another one's place, and does more than others meanwhile. The other one hangs, and clients read there
/// all the same. What a lease is for is met seldom otherwise.
#[derive(Clone, Copy)]
struct HurriedSuccession {
    /// Whether all of it takes less time than a lease.
    is_quick: bool,
    successor: usize,
    hangs: usize,
    steps_left: usize,
}

impl CopyWorld {
    fn new(seed: u64) -> CopyWorld {
        let servers = (0..SERVERS).map(|at| CopyingServer::start(at, 1 + at as u64, Vec::new(), BTreeMap::new()));
        let mut world = CopyWorld {
            random: StdRng::seed_from_u64(seed),
            store: ModelEtcd::default(),
            servers: servers.collect(),
            truth: BTreeMap::new(),
            late: Vec::new(),
            now: 1,
            boots: 10,
            numbers: 0,
            has_faults: true,
            acknowledged: 0,
            succeeded: 0,
            removed: 0,
            hurry: None,
            dead: None,
            full: None,
            refused: 0,
        };
        world.store.found_cluster(world.servers.iter_mut().map(|server| (&*server.id, &mut server.member)));
        world
    }

    fn outcome(&mut self, one_in: u32) -> QuestionOutcome {
        let drawn = QuestionOutcome::draw(&mut self.random, one_in);
        if self.has_faults { drawn } else { QuestionOutcome::Answered }
    }

    fn look(&mut self, at: usize) {
        let fates = (0..4).map(|_| self.outcome(6)).collect();
        let server = &mut self.servers[at];
        if self.store.look(&mut server.member, fates) {
            server.read_at = self.now;
        }
        if server.member.copies().has_lost() {
            server.waiting.clear();
            server.member.copies().end_loss();
        }
    }

    /// A client counts a key up; another one reads it. `Err`: it is shown less than was acknowledged.
    fn client(&mut self, at: usize) -> Result<(), u16> {
        let slot = SLOTS[self.random.random_range(0..SLOTS.len())];
        let (now, server) = (self.now, &mut self.servers[at]);
        if !server.coordinator.slots().owns_slot(slot) {
            return Ok(());
        }
        if self.random.random_ratio(1, 2) {
            let value = server.records.get(&slot).copied().unwrap_or(0) + 1;
            let position = server.set(slot, Some(value));
            server.waiting.push((slot, value, position));
            return Ok(());
        }
        let last = server.log.iter().rposition(|(other, _)| *other == slot).map_or(0, |at| at as u64 + 1);
        let found = server.records.get(&slot).copied().unwrap_or(0);
        let known = self.truth.get(&slot).copied().unwrap_or(0);
        if server.may_show(last, now) && found < known {
            return Err(slot);
        }
        Ok(())
    }

    /// Sends the answers that need not wait any more.
    fn answer(&mut self, at: usize) -> Result<(), u16> {
        let (now, server) = (self.now, &mut self.servers[at]);
        while let Some((slot, value, position)) = server.waiting.first().copied() {
            if !server.may_show(position, now) {
                break;
            }
            server.waiting.remove(0);
            let known = self.truth.entry(slot).or_default();
            if value <= *known {
                return Err(slot);
            }
            *known = value;
            self.acknowledged += 1;
        }
        Ok(())
    }

    /// Asks a copy to go on.
    fn ship(&mut self, at: usize) {
        let outcome = self.outcome(12);
        let server = &self.servers[at];
        let copies = server.member.copies();
        let names: BTreeSet<CopyName> = copies.needed().into_iter().chain(server.held.keys().cloned()).collect();
        let names: Vec<CopyName> = names.into_iter().collect();
        let Some(name) = names.choose(&mut self.random).cloned() else { return };
        // A new one is made until it has confirmed something; where a link begins again, it asks what is there first.
        let is_new = server.held.get(&name).is_some_and(|copy| copy.held.is_none()) && !copies.needed().contains(&name);
        let makes = is_new || is_broken(MemberRule::OnlyNewCopiesAreMade);
        let known = server.held.get(&name).and_then(|copy| copy.held).unwrap_or(0) as usize;
        let from = if self.random.random_ratio(1, 4) { 0 } else { known };
        // Not always all that there is.
        let to = self.random.random_range(known..=server.log.len());
        let number = (0..SERVERS).find(|number| id_of(*number) == name.0).unwrap();
        let is_refused = self.full == Some(number) && to > known;
        // A question that writes nothing follows one that was refused.
        let changes = server.log[from..if is_refused { known } else { to }].to_vec();
        self.refused += usize::from(is_refused);
        let question = ModelQuestion { epoch: copies.generation().0, from, changes, makes };
        let asked_ns = self.now;
        self.servers[at].shipped = self.servers[at].shipped.max(to);
        let of = (self.servers[at].id.clone(), name.1);
        let answer = match outcome {
            QuestionOutcome::QuestionLost => {
                self.late.push((number, of, question));
                None
            }
            QuestionOutcome::AnswerLost => {
                self.deliver(number, &of, &question);
                None
            }
            QuestionOutcome::Answered => self.deliver(number, &of, &question),
        };
        let server = &mut self.servers[at];
        if let Some(held) = answer {
            // What is there, and not what was sent, counts: an earlier question may have come meanwhile.
            let is_counted = is_refused && is_broken(MemberRule::FullCopiesHoldNoMore);
            let held = if is_counted { to as u64 } else { held.min(server.log.len() as u64) };
            server.held.insert(name, CopyPosition { held: Some(held), asked_ns });
        }
        server.copied = server.member.copies().publish(&server.held);
    }

    fn deliver(&mut self, number: usize, of: &CopyName, question: &ModelQuestion) -> Option<u64> {
        if self.dead == Some(number) {
            return None;
        }
        let now = self.now;
        let server = &mut self.servers[number];
        if question.makes {
            server.copies.entry(of.clone()).or_default();
        }
        let done = server.copies.get_mut(of)?.append(question, now);
        server.watching.hear(of, done.is_some());
        done
    }

    /// Chooses other copies.
    fn choose(&mut self, at: usize) {
        self.numbers += 1;
        let other = (at + 1 + self.random.random_range(0..SERVERS - 1)) % SERVERS;
        let server = &mut self.servers[at];
        let (_, known) = server.member.copies().generation();
        if self.random.random_ratio(1, 2) {
            // A new one is filled first.
            if server.held.len() < 4 {
                server.held.insert((id_of(other), self.numbers), CopyPosition::default());
            }
            return;
        }
        let mut all: Vec<CopyName> = known.clone();
        // One that has not answered for long is no choice: it may be removed by now.
        let is_well = |copy: &CopyPosition| self.now < copy.asked_ns + LEASE;
        let others = server.held.iter().filter(|(name, copy)| !known.contains(name) && is_well(copy));
        all.extend(others.map(|(name, _)| name.clone()));
        let wanted: Vec<CopyName> = all.into_iter().filter(|_| self.random.random_ratio(1, 2)).take(2).collect();
        let one_each = wanted.iter().map(|(server, _)| server).collect::<BTreeSet<_>>().len() == wanted.len();
        if one_each && !wanted.is_empty() && server.member.copies().want(wanted, &server.held) {
            let needed = server.member.copies().needed();
            // What is filled and not wanted is given up.
            server.held.retain(|name, _| needed.contains(name) || name.1 == self.numbers);
        }
        server.copied = server.member.copies().publish(&server.held);
    }

    /// Takes another server's place, if it is to be.
    fn inherit(&mut self, at: usize) {
        let now = self.now;
        let server = &mut self.servers[at];
        let Some((owner, number)) = server.member.copies().inheritance() else {
            server.inherited = None;
            return;
        };
        let name = (owner.clone(), number);
        let Some(copy) = server.copies.get_mut(&name) else { return };
        if server.inherited.as_ref().is_none_or(|(known, _)| *known != name) {
            copy.is_sealed |= !is_broken(MemberRule::CopiesAreSealedFirst);
            if now < copy.granted + LEASE && !is_broken(MemberRule::LeasesAreWaitedFor) {
                return;
            }
            let log = copy.log.clone();
            let map = server.member.copies().peers().map;
            let is_his = |slot: u16| map.spans_of(&owner).any(|span| span.contains(slot));
            for slot in SLOTS.into_iter().filter(|slot| is_his(*slot)) {
                server.set(slot, None);
            }
            for (slot, value) in log.into_iter().filter(|(slot, _)| is_his(*slot)) {
                server.set(slot, value);
            }
            server.inherited = Some((name, server.log.len() as u64));
        }
        if server.inherited.as_ref().is_some_and(|(_, end)| server.copied.position >= *end) {
            server.member.copies().set_succeeded(&owner);
            self.succeeded += 1;
        }
    }

    fn trouble(&mut self, at: usize) {
        match self.random.random_range(0..6) {
            0 if self.random.random_ratio(1, 2) => {
                self.boots += 1;
                let server = &mut self.servers[at];
                let kept = self.random.random_range(server.shipped..=server.log.len());
                let (mut log, copies) = (std::mem::take(&mut server.log), std::mem::take(&mut server.copies));
                log.truncate(kept);
                self.servers[at] = CopyingServer::start(at, self.boots, log, copies);
            }
            1 if !self.store.between.is_empty() => self.store.apply_late(&mut self.random),
            2 if !self.late.is_empty() => {
                let late = self.random.random_range(0..self.late.len());
                let (number, of, question) = self.late.swap_remove(late);
                self.deliver(number, &of, &question);
            }
            3 if self.random.random_ratio(1, 2) => {
                let owner = self.random.random_range(0..SERVERS);
                let to = self.random.random_ratio(1, 3).then(|| id_of(self.random.random_range(0..SERVERS)));
                drop(self.servers[at].coordinator.ask(MapRequest::FailOver(id_of(owner), to)));
                if at != owner && self.random.random_ratio(1, 2) {
                    let is_quick = self.random.random_ratio(1, 2);
                    let steps_left = HURRIED_STEPS;
                    // It hangs just when it has leases.
                    (0..4).for_each(|_| self.ship(owner));
                    self.hurry = Some(HurriedSuccession { is_quick, successor: at, hangs: owner, steps_left });
                }
            }
            4 => self.now += self.random.random_range(0..LEASE),
            5 if self.random.random_ratio(1, 2) => {
                self.full = self.random.random_ratio(1, 2).then(|| self.random.random_range(0..SERVERS));
            }
            _ => {}
        }
    }

    fn step(&mut self) -> Result<(), u16> {
        let mut at = self.random.random_range(0..SERVERS);
        let Some(mut hurry) = self.hurry.take() else {
            self.now += 1;
            return self.act(at);
        };
        self.now +=
            if hurry.is_quick { u64::from(self.random.random_ratio(1, 8)) } else { self.random.random_range(0..3) };
        if self.random.random_ratio(1, 2) {
            at = hurry.successor;
        }
        hurry.steps_left -= 1;
        self.hurry = Some(hurry).filter(|hurry| hurry.steps_left > 0);
        if at == hurry.hangs { self.client(at) } else { self.act(at) }
    }

    fn act(&mut self, at: usize) -> Result<(), u16> {
        // What a broken rule loses is rare: those runs have successions by command alone, which are more frequent.
        let watches = BROKEN.get().is_none();
        match self.random.random_range(0..if watches { 21 } else { 20 }) {
            0..4 => self.client(at)?,
            4..7 => self.answer(at)?,
            7..12 => self.ship(at),
            12..14 => self.look(at),
            14..16 => self.choose(at),
            16..18 => self.inherit(at),
            18 if self.random.random_ratio(1, 2) => self.sweep(at),
            18 => self.clear(at),
            19 if watches && self.random.random_ratio(1, 2) => self.watch(at),
            19 if watches && self.random.random_ratio(1, 12) => self.wish_any(at),
            _ => self.trouble(at),
        }
        Ok(())
    }

    /// Without faults every key is served, as it was acknowledged.
    fn settle(&mut self) -> Result<(), u16> {
        (self.has_faults, self.hurry, self.full) = (false, None, None);
        self.store.between.clear();
        for round in 0..4_000 {
            self.now += 1;
            for at in 0..SERVERS {
                self.look(at);
                self.ship(at);
                self.choose_well(at);
                self.inherit(at);
                self.answer(at)?;
                self.clear(at);
            }
            if round > 10 && self.is_settled() {
                break;
            }
        }
        if !self.is_settled() {
            assert!(BROKEN.get().is_some() || self.lacks_copy(), "a server's place is not taken");
            return Ok(());
        }
        for slot in SLOTS {
            let owner =
                self.servers.iter().find(|server| server.coordinator.slots().owns_slot(slot)).expect("an owner");
            let found = owner.records.get(&slot).copied().unwrap_or(0);
            if found < self.truth.get(&slot).copied().unwrap_or(0) {
                return Err(slot);
            }
        }
        Ok(())
    }

    /// A server that has no copy that answers gets one.
    fn choose_well(&mut self, at: usize) {
        let names: Vec<CopyName> = self.servers[at].member.copies().needed().into_iter().collect();
        let own = self.servers[at].id.clone();
        let is_good = |name: &CopyName| {
            let number = (0..SERVERS).find(|number| id_of(*number) == name.0).unwrap();
            let is_new = self.servers[at].held.get(name).is_some_and(|copy| copy.held.is_none());
            let found = self.servers[number].copies.get(&(own.clone(), name.1));
            found.map_or(is_new, |copy| !copy.is_sealed)
        };
        if !names.is_empty() && names.iter().all(is_good) {
            return;
        }
        let good: Vec<CopyName> = self.servers[at].held.keys().filter(|name| is_good(name)).cloned().collect();
        let server = &mut self.servers[at];
        if good.is_empty() {
            self.numbers += 1;
            server.held.insert((id_of((at + 1) % SERVERS), self.numbers), CopyPosition::default());
        } else {
            let _later = server.member.copies().want(good[..1].to_vec(), &server.held);
        }
    }

    /// Whether a server is to take a place with a copy that was removed before the map named it: a change that its
    /// owner had wanted was made only when it was awake again. An operator has to decide then; nothing wrong is shown.
    fn lacks_copy(&self) -> bool {
        self.servers
            .iter()
            .any(|server| server.member.copies().inheritance().is_some_and(|name| !server.copies.contains_key(&name)))
    }

    fn is_settled(&self) -> bool {
        self.servers.iter().all(|server| {
            let map = server.member.copies().peers().map;
            map.succession().is_none() && SLOTS.iter().all(|slot| map.ranges.iter().any(|one| one.0 <= *slot))
        }) && SLOTS.iter().all(|slot| self.servers.iter().any(|server| server.coordinator.slots().owns_slot(*slot)))
    }
}

/// One run: the slot whose key was shown as it had been before, writes that were acknowledged, places taken, copies
/// removed, whether at the end the place of a server was taken that never came back, and what full disks have refused.
fn run(seed: u64) -> (Option<u16>, [usize; 5]) {
    let mut world = CopyWorld::new(seed);
    let ended = (0..STEPS).try_for_each(|_| world.step()).and_then(|()| {
        match BROKEN.get().is_some() || world.random.random_ratio(1, 2) {
            true => world.settle().map(|()| false),
            false => {
                let dead = world.random.random_range(0..SERVERS);
                world.bury(dead)
            }
        }
    });
    let buried = usize::from(ended == Ok(true));
    (ended.err(), [world.acknowledged, world.succeeded, world.removed, buried, world.refused])
}

/// The seeds of the runs without a broken rule.
fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("COPY_SEEDS") else { return 0..RUNS };
    let number = |text: &str| text.parse::<u64>().expect("COPY_SEEDS is a number, or FIRST-LAST");
    text.split_once('-').map_or_else(|| 0..number(&text), |(first, last)| number(first)..number(last) + 1)
}

#[test]
fn what_was_acknowledged_is_shown_whoever_takes_whose_place() {
    let mut all = [0; 5];
    let seeds = seeds();
    for seed in seeds.clone() {
        let (lost, counts) = run(seed);
        assert_eq!(lost, None, "seed {seed}");
        all.iter_mut().zip(counts).for_each(|(all, count)| *all += count);
    }
    let [acknowledged, succeeded, removed, buried, refused] = all.map(|count| count as u64);
    let runs = seeds.end - seeds.start;
    let is_enough = acknowledged > 10 * runs && succeeded > runs / 2 && removed > runs / 2 && buried > runs / 20;
    let is_enough = is_enough && refused > runs;
    assert!(is_enough || runs < RUNS, "{all:?} in {runs}");
}

#[test]
fn each_rule_of_copies_is_needed() {
    for rule in [
        MemberRule::GenerationsCompare,
        MemberRule::NewCopiesHoldAll,
        MemberRule::SentCopiesAreNeeded,
        MemberRule::AllCopiesConfirm,
        MemberRule::FullCopiesHoldNoMore,
        MemberRule::CopiesAreSealedFirst,
        MemberRule::ReadsNeedALease,
        MemberRule::LeasesAreWaitedFor,
        MemberRule::LostPlacesEndWaits,
        MemberRule::OnlyNewCopiesAreMade,
        MemberRule::InheritedStays,
    ] {
        BROKEN.set(Some(rule));
        let broken = std::panic::catch_unwind(|| (0..BROKEN_RUNS).any(|seed| run(seed).0.is_some()));
        BROKEN.set(None);
        assert!(broken.unwrap_or(false), "the model has not noticed {rule:?}");
    }
}
