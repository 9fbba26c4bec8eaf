//! A model of the agreement: several servers, and a store that loses questions and answers, forgets signs of life, and
//! is asked in any order. After each step no slot has two owners.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sandstorm_net::slots::SLOTS;
use sandstorm_store::slots::SlotOwnership;

use crate::broken_rules::{BROKEN, MemberRule};
use crate::member::{ClusterMember, MemberAddresses, MemberError};
use crate::metadata::{ListedValues, MetadataChange, MetadataRange, MetadataStore, NoAnswer, StoredValue};
use crate::move_coordinator::MoveCoordinator;

/// Runs with each number of servers.
const RUNS: u64 = 100;
/// Runs in which a broken rule has to be noticed.
const BROKEN_RUNS: u64 = 5_000;
/// Steps of a run.
const STEPS: usize = 80;

/// What has happened to a question.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuestionOutcome {
    Answered,
    /// The store never sees it.
    QuestionLost,
    /// It is done, and the answer is lost.
    AnswerLost,
}

impl QuestionOutcome {
    /// One in so many questions is lost, and as many answers are.
    pub(crate) fn draw(random: &mut StdRng, one_in: u32) -> QuestionOutcome {
        match random.random_range(0..one_in) {
            0 => QuestionOutcome::QuestionLost,
            1 => QuestionOutcome::AnswerLost,
            _ => QuestionOutcome::Answered,
        }
    }
}

/// The store: keys with values and revisions.
#[derive(Default)]
pub(crate) struct ModelEtcd {
    values: BTreeMap<String, (String, u64)>,
    revision: u64,
    /// The fates of the next questions; later ones are answered.
    pub(crate) fates: Vec<QuestionOutcome>,
    /// Done before a change is: another server's step comes between its look and its change.
    pub(crate) between: Vec<MetadataChange>,
}

impl ModelEtcd {
    fn fate(&mut self) -> QuestionOutcome {
        self.fates.pop().unwrap_or(QuestionOutcome::Answered)
    }

    pub(crate) fn put(&mut self, key: &str, value: &str) {
        self.revision += 1;
        self.values.insert(key.to_owned(), (value.to_owned(), self.revision));
    }

    pub(crate) fn get(&self, key: &str) -> String {
        self.values.get(key).map_or_else(String::new, |(value, _)| value.clone())
    }

    pub(crate) fn apply(&mut self, change: &MetadataChange) -> bool {
        let revision = |key: &String| self.values.get(key).map_or(0, |(_, revision)| *revision);
        let holds = change.compared.iter().all(|(key, wanted)| revision(key) == *wanted);
        if holds {
            let is_removed = |key: &String| change.removed.iter().any(|(from, to)| from <= key && key < to);
            self.values.retain(|key, _| !is_removed(key));
            change.put.iter().for_each(|(key, value)| self.put(key, value));
        }
        holds
    }

    /// Makes one of the changes whose servers have given up waiting.
    pub(crate) fn apply_late(&mut self, random: &mut StdRng) {
        let late = random.random_range(0..self.between.len());
        let change = self.between.swap_remove(late);
        self.apply(&change);
    }

    /// A server's look at the store. The next questions have these fates; all of them that are left are forgotten.
    /// Returns whether the whole look was answered.
    pub(crate) fn look(&mut self, member: &mut ClusterMember, fates: Vec<QuestionOutcome>) -> bool {
        self.fates = fates;
        let stepped = member.step(self);
        assert!(matches!(stepped, Ok(()) | Err(MemberError::NoAnswer(_))), "{stepped:?}");
        self.fates.clear();
        stepped.is_ok()
    }

    /// The cluster begins: its servers live, and each has looked twice.
    pub(crate) fn found_cluster<'m>(&mut self, members: impl Iterator<Item = (&'m str, &'m mut ClusterMember)>) {
        let (ids, mut members): (Vec<_>, Vec<_>) = members.unzip();
        ids.iter().for_each(|id| self.put(&format!("live/{id}"), "1"));
        for _ in 0..2 {
            members.iter_mut().for_each(|member| member.step(self).unwrap());
        }
    }
}

impl MetadataStore for ModelEtcd {
    fn list(&mut self, range: MetadataRange<'_>) -> Result<ListedValues, NoAnswer> {
        let read = |(key, (value, revision)): (&String, &(String, u64))| StoredValue {
            key: key.clone(),
            value: value.clone(),
            revision: *revision,
        };
        let values = self.values.range(range.from.to_owned()..range.to.to_owned()).map(read).collect();
        let found = ListedValues { values, revision: self.revision, has_more: false };
        if self.fate() == QuestionOutcome::Answered { Ok(found) } else { Err(NoAnswer("lost".into())) }
    }

    fn change(&mut self, change: &MetadataChange) -> Result<Option<u64>, NoAnswer> {
        match self.fate() {
            QuestionOutcome::QuestionLost => {
                // It may arrive later, after the server has given up waiting.
                self.between.push(change.clone());
                Err(NoAnswer("lost".into()))
            }
            fate => {
                let made = self.apply(change).then_some(self.revision);
                if fate == QuestionOutcome::Answered { Ok(made) } else { Err(NoAnswer("lost".into())) }
            }
        }
    }
}

struct ModelServer {
    id: String,
    slots: Arc<SlotOwnership>,
    member: ClusterMember,
}

impl ModelServer {
    fn start(number: usize, founders: usize, boot: u64) -> ModelServer {
        let id = format!("{number:040x}");
        let slots = Arc::new(SlotOwnership::new(id.clone()));
        slots.set_owned(|_| false);
        let coordinator = Arc::new(MoveCoordinator::new(Arc::clone(&slots), boot));
        let mut member = ClusterMember::new(coordinator, founders);
        let data = SocketAddr::from(([127, 0, 0, 1], 7000 + number as u16));
        let (control, fingerprint) = (String::new(), String::new());
        member.set_addresses(&MemberAddresses { data, redis: None, memcached: None, control, fingerprint });
        ModelServer { id, slots, member }
    }
}

/// The slots that two servers own, or none.
fn owned_twice(servers: &[ModelServer]) -> Option<u16> {
    (0..SLOTS).step_by(61).find(|slot| servers.iter().filter(|server| server.slots.owns_slot(*slot)).count() > 1)
}

/// One run. Returns a slot that had two owners.
fn run(seed: u64, count: usize) -> Option<u16> {
    let mut random = StdRng::seed_from_u64(seed);
    let founders = random.random_range(1..=count);
    let mut store = ModelEtcd::default();
    let mut servers: Vec<ModelServer> = (0..count).map(|number| ModelServer::start(number, founders, 1)).collect();
    for step in 0..STEPS {
        let at = random.random_range(0..count);
        match random.random_range(0..10) {
            0 => {
                store.values.remove(&format!("live/{}", servers[at].id));
            }
            1 => servers[at] = ModelServer::start(at, founders, 2 + step as u64),
            2..=3 if !store.between.is_empty() => store.apply_late(&mut random),
            4..=5 => store.put(&format!("live/{}", servers[at].id), "1"),
            _ => {
                store.fates = (0..3).map(|_| QuestionOutcome::draw(&mut random, 5)).collect();
                match servers[at].member.step(&mut store) {
                    Ok(()) | Err(MemberError::NoAnswer(_) | MemberError::Replaced(_)) => {}
                    Err(error) => panic!("seed {seed}: {error}"),
                }
                store.fates.clear();
            }
        }
        if let Some(slot) = owned_twice(&servers) {
            return Some(slot);
        }
    }
    // Once all is well, all slots have an owner.
    for server in &servers {
        store.put(&format!("live/{}", server.id), "1");
    }
    store.between.clear();
    settle(&mut servers, &mut store, founders, seed);
    owned_twice(&servers)
}

/// Steps without faults: they end with a map, in which the founders have all slots.
fn settle(servers: &mut [ModelServer], store: &mut ModelEtcd, founders: usize, seed: u64) {
    for _ in 0..3 {
        for server in servers.iter_mut() {
            server.member.step(store).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
    }
    let owner = |slot: u16| servers.iter().position(|server| server.slots.owns_slot(slot));
    let owners: Vec<Option<usize>> = (0..SLOTS).step_by(61).map(owner).collect();
    let different: BTreeSet<&usize> = owners.iter().flatten().collect();
    assert!(owners.iter().all(Option::is_some) && different.len() == founders, "seed {seed}: {owners:?}");
}

#[test]
fn no_slot_ever_has_two_owners() {
    for seed in 0..RUNS {
        for count in 1..=4 {
            assert_eq!(run(seed, count), None, "seed {seed}, {count} servers");
        }
    }
}

#[test]
fn a_map_that_is_founded_without_a_compare_is_found() {
    BROKEN.set(Some(MemberRule::FoundingCompares));
    let found = (0..BROKEN_RUNS).any(|seed| run(seed, 4).is_some());
    BROKEN.set(None);
    assert!(found, "the model has not noticed");
}

#[test]
fn a_server_whose_id_another_process_has_owns_nothing() {
    let mut store = ModelEtcd::default();
    let mut first = ModelServer::start(0, 1, 1);
    store.put(&format!("live/{}", first.id), "1");
    (0..3).for_each(|_| first.member.step(&mut store).unwrap());
    assert!(first.slots.owns_all());
    let mut second = ModelServer::start(0, 1, 2);
    second.member.step(&mut store).unwrap();
    assert!(matches!(first.member.step(&mut store), Err(MemberError::Replaced(_))));
    assert!(!first.slots.owns_slot(0), "it owns nothing any more");
    second.member.step(&mut store).unwrap();
    assert!(second.slots.owns_all());
}

#[test]
fn a_server_goes_on_while_the_store_is_away() {
    let mut store = ModelEtcd::default();
    let mut server = ModelServer::start(0, 1, 1);
    store.put(&format!("live/{}", server.id), "1");
    (0..3).for_each(|_| server.member.step(&mut store).unwrap());
    store.fates = vec![QuestionOutcome::QuestionLost];
    assert!(matches!(server.member.step(&mut store), Err(MemberError::NoAnswer(_))));
    assert!(server.slots.owns_all());
    store.put("slots", r#"{"format":2,"epoch":1,"ranges":[]}"#);
    assert!(matches!(server.member.step(&mut store), Err(MemberError::State(_))));
    assert!(server.slots.owns_all(), "a state that is not understood takes nothing away");
}
