//! The thread of a server that is in a cluster: looks at the cluster's state, and says that the server lives.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sandstorm_catalog::Directory;
use sandstorm_store::slots::SlotOwnership;

use crate::copy_notes::CopyNotes;
use crate::copy_replicator::CopyReplicator;
use crate::copy_store::CopyStore;
use crate::copy_watcher::CopyWatcher;
use crate::etcd::EtcdStore;
use crate::failover_mode::FailoverMode;
use crate::limits::{
    COPY_SILENCE, LOG_INTERVAL, POLL_INTERVAL, RENEWAL_INTERVAL, SUCCESSION_POLL, SUCCESSION_POLLED, TARGET_SILENCE,
};
use crate::member::{ClusterMember, MemberAddresses, MemberError};
use crate::move_coordinator::MoveCoordinator;
use crate::slot_mover::SlotMover;
use crate::stream_copies::{StreamCopies, StreamSettings};
use crate::succession::SuccessorThread;
use crate::{ClusterAddress, EtcdEndpoint};

/// The reason that a server did not join its cluster.
#[derive(Debug, thiserror::Error)]
pub enum ClusterStartError {
    /// The state could not be read.
    #[error("cannot join {0}: {1}; a server that starts reads there what it owns, so etcd has to answer")]
    State(ClusterAddress, MemberError),
    /// The server was removed.
    #[error("cannot join {0}: {1}")]
    Removed(ClusterAddress, MemberError),
    /// Another process has the copies of the state directory.
    #[error("cannot join a cluster: {0}")]
    Copies(#[from] sandstorm_log::LogError),
    /// What it takes to reach the streams of copies is not what it should be.
    #[error("cannot join a cluster: {0}")]
    Streams(String),
    /// The file of what was copied from others is damaged.
    #[error("cannot join a cluster: {0}; without the file, what cancelled moves have left stays")]
    Notes(String),
    /// The thread could not be started.
    #[error("cannot join a cluster: {0}")]
    Thread(#[from] std::io::Error),
}

/// A server that has read what it owns, and has not announced itself yet.
pub struct JoiningServer {
    store: EtcdStore,
    member: ClusterMember,
    coordinator: Arc<MoveCoordinator>,
    notes: CopyNotes,
    copies: CopySettings,
}

/// What a server does about copies of logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopySettings {
    /// Copies of its log on other servers that are wanted.
    pub copies: usize,
    /// Whether it takes the places of others that are gone by itself.
    pub failover: FailoverMode,
    /// The streams in which its log has its copy, in place of other servers.
    pub streams: Option<StreamSettings>,
}

impl JoiningServer {
    /// Reads what this server owns. From here on its tables have these slots only. `state` is the state directory.
    ///
    /// # Errors
    /// [`ClusterStartError`].
    pub fn read(
        etcd: &EtcdEndpoint,
        founders: usize,
        slots: &Arc<SlotOwnership>,
        (state, copies): (&Path, CopySettings),
    ) -> Result<JoiningServer, ClusterStartError> {
        let notes = CopyNotes::read(state).map_err(ClusterStartError::Notes)?;
        let mut store = EtcdStore::new(etcd);
        let coordinator = Arc::new(MoveCoordinator::new(Arc::clone(slots), rand::random()));
        coordinator.copies_view().set_copy_store(CopyStore::lock(state)?);
        let mut member = ClusterMember::new(Arc::clone(&coordinator), founders);
        if let Some(settings) = &copies.streams {
            let streams = StreamCopies::open(settings, state).map_err(ClusterStartError::Streams)?;
            let _once = member.copies().streams.set(streams);
        }
        member.step(&mut store).map_err(|error| match error {
            MemberError::Removed(_) => ClusterStartError::Removed(etcd.address.clone(), error),
            error => ClusterStartError::State(etcd.address.clone(), error),
        })?;
        Ok(JoiningServer { store, member, coordinator, notes, copies })
    }

    /// The server's part in moves of slots.
    pub fn coordinator(&self) -> &Arc<MoveCoordinator> {
        &self.coordinator
    }

    /// Tells the others of this server, and starts its thread. `digest` gives the number of the newest change of its
    /// tenants, and if that is not the one that it is called with, the digest after it. `follow` is called with the
    /// revision of the cluster's newest change of tenants, at each look. `directory` has the tables.
    ///
    /// # Errors
    /// [`ClusterStartError`].
    pub fn start(
        self,
        addresses: &MemberAddresses,
        directory: &Arc<Directory>,
        digest: impl Fn(u64) -> (u64, Option<String>) + Send + 'static,
        follow: impl Fn(u64) -> Result<(), String> + Send + 'static,
    ) -> Result<ClusterAgent, ClusterStartError> {
        let JoiningServer { store, mut member, coordinator, notes, copies } = self;
        let of_log = Arc::clone(member.copies());
        member.set_addresses(addresses);
        let stop = Arc::new(AtomicBool::new(false));
        let run = AgentLoop {
            store,
            member,
            coordinator: Arc::clone(&coordinator),
            digest: Box::new(digest),
            follow: Box::new(follow),
            digest_of: u64::MAX,
            renewed: None,
            logged: None,
            pace: LookPace::default(),
            stop: Arc::clone(&stop),
        };
        let thread = std::thread::Builder::new().name("cluster".to_owned()).spawn(move || run.run())?;
        coordinator.set_agent(thread.thread().clone());
        let mut agent =
            ClusterAgent { stop, thread: Some(thread), mover: None, keeper: None, successor: None, watcher: None };
        agent.mover = Some(SlotMover::start(Arc::clone(&coordinator), Arc::clone(directory), notes)?);
        let CopySettings { copies, failover, streams } = copies;
        // A stream is on three servers.
        let copies = if streams.is_some() { 1 } else { copies };
        agent.keeper =
            Some(CopyReplicator::start(Arc::clone(directory), Arc::clone(&coordinator), Arc::clone(&of_log), copies)?);
        let (own, known) = (Arc::clone(&coordinator), Arc::clone(&of_log));
        agent.successor = Some(SuccessorThread::start(own, known, Arc::clone(directory))?);
        agent.watcher = Some(CopyWatcher::start(coordinator, of_log, Arc::clone(directory), failover)?);
        Ok(agent)
    }
}

/// The thread of a member. Stops when dropped.
#[derive(Debug)]
pub struct ClusterAgent {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    mover: Option<SlotMover>,
    keeper: Option<CopyReplicator>,
    successor: Option<SuccessorThread>,
    watcher: Option<CopyWatcher>,
}

impl Drop for ClusterAgent {
    fn drop(&mut self) {
        self.watcher = None;
        // It says that this server stops, before the others hear no more of it.
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ended = thread.join();
        }
        (self.successor, self.keeper, self.mover) = (None, None, None);
    }
}

struct AgentLoop {
    store: EtcdStore,
    member: ClusterMember,
    coordinator: Arc<MoveCoordinator>,
    digest: Box<dyn Fn(u64) -> (u64, Option<String>) + Send>,
    follow: Box<dyn Fn(u64) -> Result<(), String> + Send>,
    /// The change of the digest that was told.
    digest_of: u64,
    /// The time of the last word that the server lives.
    renewed: Option<Instant>,
    /// The time of the last line in the log about trouble.
    logged: Option<Instant>,
    pace: LookPace,
    stop: Arc<AtomicBool>,
}

/// How soon the next look is.
#[derive(Debug, Default)]
struct LookPace {
    /// The succession that was seen last, and when it was seen first.
    succession: Option<((String, u64), Instant)>,
}

impl LookPace {
    /// The pause before the next look, where the last one has seen this succession, or none.
    fn pause(&mut self, succession: Option<(String, u64)>, now: Instant) -> Duration {
        let known = self.succession.take();
        self.succession = succession.map(|seen| match known {
            Some((known, since)) if known == seen => (known, since),
            _ => (seen, now),
        });
        match &self.succession {
            Some((_, since)) if now.saturating_duration_since(*since) < SUCCESSION_POLLED => SUCCESSION_POLL,
            _ => POLL_INTERVAL,
        }
    }
}

impl AgentLoop {
    fn run(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            match self.turn() {
                Ok(()) => {
                    if self.coordinator.slots().trouble().is_some() {
                        tracing::warn!("the cluster's state can be read again");
                    }
                    (self.logged, _) = (None, self.coordinator.slots().set_trouble(None));
                    self.coordinator.slots().note_look();
                }
                Err(error) => self.note(&error),
            }
            let succession = self.member.copies().succession();
            std::thread::park_timeout(self.pace.pause(succession, Instant::now()));
        }
        if let Err(error) = self.member.say_stopped(&mut self.store) {
            tracing::warn!("the others of the cluster are not told that this server stops: {error}");
        }
        self.store.end_life();
    }

    fn turn(&mut self) -> Result<(), MemberError> {
        // Also where etcd does not answer.
        self.coordinator.end_silent(COPY_SILENCE, TARGET_SILENCE);
        if self.renewed.is_none_or(|at| at.elapsed() >= RENEWAL_INTERVAL) {
            let key = self.member.live_key();
            self.store.keep_alive(&key, "1")?;
            self.renewed = Some(Instant::now());
        }
        let (change, digest) = (self.digest)(self.digest_of);
        self.digest_of = change;
        digest.iter().for_each(|digest| self.member.set_directory(digest));
        self.member.step(&mut self.store)?;
        let revision = self.member.directory_revision();
        (self.follow)(revision).map_err(MemberError::State)?;
        // Told at once: the answer to what takes rights away waits for it.
        if self.member.set_taken_over(revision) { self.member.step(&mut self.store) } else { Ok(()) }
    }

    fn note(&mut self, error: &MemberError) {
        let text = match error {
            MemberError::Replaced(_) | MemberError::Removed(_) => error.to_string(),
            _ => format!("{error}; the server goes on with what it owns"),
        };
        if self.logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            tracing::error!("{text}");
            self.logged = Some(Instant::now());
        }
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        self.coordinator.slots().set_trouble(Some((now_ms, text)));
        // Nothing is handed over now: what is frozen is served, unless a hand-over was sent.
        self.coordinator.end_silent(COPY_SILENCE, Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_succession_that_hangs_is_looked_at_often_for_a_bounded_time() {
        let (mut pace, begun) = (LookPace::default(), Instant::now());
        let of = |number| Some(("a".to_owned(), number));
        assert_eq!(pace.pause(None, begun), POLL_INTERVAL);
        assert_eq!(pace.pause(of(1), begun), SUCCESSION_POLL);
        assert_eq!(pace.pause(of(1), begun + SUCCESSION_POLLED / 2), SUCCESSION_POLL);
        let later = begun + SUCCESSION_POLLED;
        assert_eq!(pace.pause(of(1), later), POLL_INTERVAL);
        assert_eq!(pace.pause(of(2), later), SUCCESSION_POLL, "another server takes it");
        assert_eq!((pace.pause(None, later), pace.pause(of(2), later)), (POLL_INTERVAL, SUCCESSION_POLL));
    }

    #[test]
    fn a_second_process_on_a_state_directory_is_refused_before_the_cluster_is_asked() {
        let folder = std::env::temp_dir().join(format!("sandstorm-agent-{}", std::process::id()));
        let _left = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        // Nothing answers there.
        let (address, slots) = ("etcd://127.0.0.1:1/shop".parse().unwrap(), SlotOwnership::new("a".repeat(40)));
        let (etcd, slots) = (EtcdEndpoint { address, tls: None, user: None }, Arc::new(slots));
        let settings = CopySettings { copies: 1, failover: FailoverMode::ByCommand, streams: None };
        let start =
            || JoiningServer::read(&etcd, 3, &slots, (folder.as_path(), settings.clone())).map(drop).unwrap_err();
        let first = CopyStore::lock(&folder).unwrap();
        assert!(matches!(start(), ClusterStartError::Copies(sandstorm_log::LogError::Locked(_))));
        drop(first);
        // A server that could not join leaves nothing locked.
        assert!(matches!(start(), ClusterStartError::State(..)));
        assert!(CopyStore::lock(&folder).is_ok());
        let _left = std::fs::remove_dir_all(folder);
    }
}
