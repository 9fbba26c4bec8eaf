//! A model of the directory's agreement: several servers that change and read tenants, over a store that loses
//! questions and answers, makes changes late, and forgets old revisions. Each change that a server was told of is there
//! once, each that it was told not of is not there, and each server has a state that there was.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sandstorm_catalog::{AgreedChange, AgreedRevision, DirectoryAgreement, ProposalOutcome};

use crate::directory::{BROKEN, ClusterDirectory, DirectoryRule};
use crate::limits::{ARTIFACT_PART_BYTES, CHANGE_TENANTS, REMEMBERED_CHANGES, TENANT_BYTES};
use crate::metadata::{ListedValues, MetadataChange, MetadataRange, MetadataStore, NoAnswer, StoredValue};

const RUNS: u64 = 150;
/// Runs in which a broken rule has to be noticed.
const BROKEN_RUNS: u64 = 2_000;
const STEPS: usize = 120;
/// Tenants that are never removed. They are more than one answer has.
const LASTING: u32 = 20;
/// Tenants that come and go, from this id on.
const PASSING: std::ops::Range<u32> = 100..104;

type Values = BTreeMap<String, (String, u64)>;

/// The store, with all its revisions.
#[derive(Default)]
struct ModelMetadata {
    values: Values,
    revision: u64,
    history: BTreeMap<u64, Values>,
    /// Revisions before this one are forgotten.
    compacted: u64,
    /// Changes that were sent, given up, and may still be made.
    late: Vec<MetadataChange>,
    random: Option<StdRng>,
}

impl ModelMetadata {
    fn is_chance(&mut self, one_in: u32) -> bool {
        self.random.as_mut().is_some_and(|random| random.random_ratio(1, one_in))
    }

    fn apply(&mut self, change: &MetadataChange) -> Option<u64> {
        let revision = |key: &String| self.values.get(key).map_or(0, |(_, revision)| *revision);
        if !change.compared.iter().all(|(key, wanted)| revision(key) == *wanted) {
            return None;
        }
        self.revision += 1;
        for (from, to) in &change.removed {
            self.values.retain(|key, _| key < from || key >= to);
        }
        for (key, value) in &change.put {
            self.values.insert(key.clone(), (value.clone(), self.revision));
        }
        self.history.insert(self.revision, self.values.clone());
        Some(self.revision)
    }

    /// Other servers' questions, late changes and compactions come between.
    fn between(&mut self) {
        if !self.late.is_empty() && self.is_chance(3) {
            let change = self.late.remove(0);
            self.apply(&change);
        }
        if self.is_chance(40) {
            self.compacted = self.revision;
        }
    }
}

#[derive(Clone, Default)]
pub(crate) struct SharedStore(Arc<Mutex<ModelMetadata>>);

impl MetadataStore for SharedStore {
    fn list(&mut self, range: MetadataRange<'_>) -> Result<ListedValues, NoAnswer> {
        let mut store = self.0.lock();
        store.between();
        if store.is_chance(12) {
            return Err(NoAnswer("lost".into()));
        }
        let at = if range.at == 0 { store.revision } else { range.at };
        if range.at != 0 && range.at < store.compacted {
            return Err(NoAnswer("required revision has been compacted".into()));
        }
        let values = if at == store.revision { Some(&store.values) } else { store.history.get(&at) };
        let in_range = values.into_iter().flat_map(|values| values.range(range.from.to_owned()..range.to.to_owned()));
        let mut found: Vec<StoredValue> = in_range
            .filter(|(_, (_, revision))| *revision >= range.since)
            .map(|(key, (value, revision))| StoredValue { key: key.clone(), value: value.clone(), revision: *revision })
            .collect();
        let has_more = range.most > 0 && found.len() > range.most;
        if has_more {
            found.truncate(range.most);
        }
        Ok(ListedValues { values: found, revision: at, has_more })
    }

    fn change(&mut self, change: &MetadataChange) -> Result<Option<u64>, NoAnswer> {
        let mut store = self.0.lock();
        store.between();
        if store.is_chance(8) {
            store.late.push(change.clone());
            return Err(NoAnswer("lost".into()));
        }
        let made = store.apply(change);
        if store.is_chance(8) { Err(NoAnswer("lost".into())) } else { Ok(made) }
    }
}

/// A server: what it has applied.
#[derive(Default)]
struct ModelDirectory {
    applied: AgreedRevision,
    tenants: BTreeMap<u32, String>,
    /// Its own last change is on top of `applied`, until it reads again.
    is_ahead: bool,
}

impl ModelDirectory {
    fn catch_up(&mut self, cluster: &ClusterDirectory<SharedStore>) {
        let Ok(Some(news)) = cluster.news(self.applied) else { return };
        if news.is_whole {
            self.tenants.clear();
        }
        self.tenants.extend(news.put);
        (self.applied, self.is_ahead) = (news.revision, false);
    }

    /// A change of a lasting tenant, which gets a tag, and perhaps of one that comes or goes.
    fn change(&self, random: &mut StdRng, tag: &str) -> AgreedChange {
        let id = random.random_range(0..LASTING);
        let text = self.tenants.get(&id).map_or_else(|| tag.to_owned(), |text| format!("{text},{tag}"));
        let mut change = AgreedChange { put: vec![(id, text)], gone: Vec::new(), next_tenant: 1 };
        let other = random.random_range(PASSING);
        match random.random_range(0..3) {
            0 if self.tenants.contains_key(&other) => change.gone.push(other),
            1 => change.put.push((other, tag.to_owned())),
            _ => {}
        }
        change
    }

    fn apply(&mut self, change: AgreedChange) {
        change.gone.iter().for_each(|id| drop(self.tenants.remove(id)));
        self.tenants.extend(change.put);
    }
}

/// What the store has.
fn stored(store: &SharedStore) -> BTreeMap<u32, String> {
    let values = &store.0.lock().values;
    let tenant =
        |(key, (text, _)): (&String, &(String, u64))| Some((key.strip_prefix("tenants/")?.parse().ok()?, text.clone()));
    values.iter().filter_map(tenant).collect()
}

/// One run. Returns what is wrong, if anything is.
fn run(seed: u64) -> Option<String> {
    let mut random = StdRng::seed_from_u64(seed);
    let store = SharedStore::default();
    store.0.lock().random = Some(StdRng::seed_from_u64(!seed));
    let clusters: Vec<_> = (0..3).map(|_| ClusterDirectory::over(store.clone())).collect();
    let mut servers: Vec<ModelDirectory> = (0..3).map(|_| ModelDirectory::default()).collect();
    let (mut made, mut refused) = (Vec::new(), Vec::new());
    for step in 0..STEPS {
        let at = random.random_range(0..servers.len());
        let (server, cluster) = (&mut servers[at], &clusters[at]);
        if random.random_ratio(1, 3) {
            server.catch_up(cluster);
            continue;
        }
        let tag = format!("t{step}");
        let change = server.change(&mut random, &tag);
        match cluster.propose(server.applied, &change) {
            Ok(ProposalOutcome::Made(revision)) => {
                server.is_ahead = revision == server.applied;
                server.applied = revision;
                server.apply(change);
                made.push(tag);
            }
            Ok(ProposalOutcome::Outdated) => {
                refused.push(tag);
                server.catch_up(cluster);
            }
            // It may have been made, and is seen if it was.
            Err(_) => {}
        }
        let server = &servers[at];
        let history = store.0.lock().history.get(&server.applied.revision).cloned();
        if let Some(history) = history.filter(|_| !server.is_ahead) {
            let then = SharedStore(Arc::new(Mutex::new(ModelMetadata { values: history, ..ModelMetadata::default() })));
            if stored(&then) != server.tenants {
                return Some(format!("step {step}: a server has a state that there never was"));
            }
        }
    }
    store.0.lock().random = None;
    let late = std::mem::take(&mut store.0.lock().late);
    for change in &late {
        let _made_or_not = store.0.lock().apply(change);
    }
    let all = stored(&store);
    let count = |tag: &String| {
        (0..LASTING).filter_map(|id| all.get(&id)).flat_map(|text| text.split(',')).filter(|one| one == tag).count()
    };
    if let Some(tag) = made.iter().find(|tag| count(tag) != 1) {
        return Some(format!("{tag} was made, and is there {} times", count(tag)));
    }
    if let Some(tag) = refused.iter().find(|tag| count(tag) != 0) {
        return Some(format!("{tag} was refused, and is there"));
    }
    for (server, cluster) in servers.iter_mut().zip(&clusters) {
        server.catch_up(cluster);
        if server.tenants != all {
            return Some("a server has other tenants at the end".to_owned());
        }
    }
    None
}

#[test]
fn servers_agree_whatever_is_lost() {
    for seed in 0..RUNS {
        assert_eq!(run(seed), None, "seed {seed}");
    }
}

#[test]
fn each_rule_that_is_broken_is_found() {
    for rule in [DirectoryRule::ProposalCompares, DirectoryRule::LostAnswersAreSettled, DirectoryRule::RemovalsAreRead]
    {
        BROKEN.set(Some(rule));
        let found = (0..BROKEN_RUNS).any(|seed| run(seed).is_some());
        BROKEN.set(None);
        assert!(found, "the model has not noticed {rule:?}");
    }
}

#[test]
fn a_change_whose_answer_was_lost_among_very_many_is_not_guessed_about() {
    let store = SharedStore::default();
    let cluster = ClusterDirectory::over(store);
    let change = AgreedChange { put: vec![(1, "a".into())], gone: Vec::new(), next_tenant: 2 };
    let mut at = AgreedRevision::default();
    for _ in 0..=REMEMBERED_CHANGES {
        let Ok(ProposalOutcome::Made(made)) = cluster.propose(at, &change) else { panic!("nobody is in the way") };
        at = made;
    }
    assert_eq!(cluster.propose(AgreedRevision::default(), &change), Ok(ProposalOutcome::Outdated));
    assert_eq!(cluster.news(at), Ok(None));
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_sent() {
    let cluster = ClusterDirectory::over(SharedStore::default());
    let many = (0..=CHANGE_TENANTS as u32).map(|id| (id, String::new())).collect();
    let large = vec![(1, "x".repeat(TENANT_BYTES + 1))];
    for (put, why) in [(many, "101 tenants"), (large, "tenant 1 would take")] {
        let change = AgreedChange { put, gone: Vec::new(), next_tenant: 2 };
        let refused = cluster.propose(AgreedRevision::default(), &change).unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
    assert_eq!(cluster.news(AgreedRevision::default()), Ok(None));
}

#[test]
fn artifacts_travel_in_parts_and_versions_are_given_once() {
    let store = SharedStore::default();
    let (here, there) = (ClusterDirectory::over(store.clone()), ClusterDirectory::over(store.clone()));
    let bytes: Vec<u8> = (0..ARTIFACT_PART_BYTES * 2 + 7).map(|at| (at % 251) as u8).collect();
    here.put_artifact("1-2-sum.artifact", &bytes).unwrap();
    assert_eq!(there.artifact("1-2-sum.artifact"), Ok(Some(bytes)));
    assert_eq!(there.artifact("1-2-sum"), Ok(None));
    there.put_artifact("1-2-sum.source", b"").unwrap();
    assert_eq!(here.artifact("1-2-sum.source"), Ok(Some(Vec::new())));
    let part = "artifacts/1-2-sum.artifact/0001".to_owned();
    store.0.lock().values.insert(part, ("AAAA".into(), 1));
    assert!(here.artifact("1-2-sum.artifact").unwrap_err().contains("damaged"));
    here.remove_artifact("1-2-sum.artifact").unwrap();
    assert_eq!(there.artifact("1-2-sum.artifact"), Ok(None));
    assert!(store.0.lock().values.keys().all(|key| !key.contains("sum.artifact")));
    let versions =
        [(&here, 1), (&there, 1), (&here, 7), (&there, 2)].map(|(one, least)| one.reserve_version(1, "sum", least));
    assert_eq!(versions, [1, 2, 7, 8].map(Ok));
}
