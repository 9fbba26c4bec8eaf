//! Promise: a copy on another server does what every replica has to do, asked as its owner and its successor ask it.

use sandstorm_log::replica_suite::{ReplicaHost, conforms, survives};
use sandstorm_log::{ChangeVisitor, ReplaySummary};

use super::*;

/// Runs of the suite by a seed, each with a hundred writes of a real disk or so.
const SUITE_RUNS: u64 = 12;

/// A server that has a copy. When it crashes, another process has its folder.
struct StoreHost {
    store: Arc<CopyStore>,
    name: CopyName,
}

/// A connection to it.
struct StoreHandle {
    store: Arc<CopyStore>,
    name: CopyName,
}

impl StoreHandle {
    /// Asks as the messages between servers do.
    fn ask(&self, epoch: u64, ask: ReplicaAsk, pieces: &[u8]) -> Result<Option<ReplicaState>, ReplicaError> {
        let (owner, copy) = self.name.clone();
        let head = ReplicaHead { owner, copy, epoch, ask, lease_ms: LEASE_MS };
        let answer = self.store.answer(&head.encode(pieces).unwrap()).unwrap();
        serde_json::from_slice::<ReplicaAnswer>(&answer).unwrap().read()
    }
}

impl LogReplica for StoreHandle {
    fn state(&mut self, epoch: u64) -> Result<ReplicaState, ReplicaError> {
        self.ask(epoch, ReplicaAsk::State { makes: true }, b"").map(Option::unwrap_or_default)
    }

    fn append(&mut self, epoch: u64, batch: &ReplicaBatch) -> Result<(), ReplicaError> {
        self.ask(epoch, ReplicaAsk::Append, &batch.encode()).map(drop)
    }

    fn trim(&mut self, epoch: u64, checkpoint: u64, segment: u64) -> Result<(), ReplicaError> {
        self.ask(epoch, ReplicaAsk::Trim { checkpoint, segment }, b"").map(drop)
    }

    fn seal(&mut self) -> Result<(), ReplicaError> {
        self.store.seal(&self.name).map(drop)
    }

    fn read(&mut self, visit: &mut ChangeVisitor<'_>) -> Result<ReplaySummary, ReplicaError> {
        let visit = &mut |change: &LoggedChange<'_>| visit(change, false).map_err(|error| error.to_string());
        self.store.read(&self.name, visit).map(|()| ReplaySummary::default())
    }
}

impl ReplicaHost for StoreHost {
    fn open(&mut self) -> Result<Box<dyn LogReplica>, ReplicaError> {
        Ok(Box::new(StoreHandle { store: Arc::clone(&self.store), name: self.name.clone() }))
    }

    fn crash(&mut self, _seed: u64) {
        // The process ends: what it has written is there, and nothing that it knew.
        self.store.close(&self.name);
    }
}

#[test]
fn a_copy_on_another_server_does_what_every_replica_has_to_do() {
    for seed in 0..=SUITE_RUNS {
        let (folder, store, head) = copy_store(&format!("suite-{seed}"));
        let mut host = StoreHost { store: Arc::new(store), name: (head.owner, head.copy) };
        let done = if seed == SUITE_RUNS { conforms(&mut host) } else { survives(&mut host, seed) };
        done.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        let _left = std::fs::remove_dir_all(folder);
    }
}
