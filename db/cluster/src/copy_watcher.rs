//! The thread that watches the owners of the copies kept here. If one is gone, this server takes its place by itself,
//! where that loses no record and no obstacle is known.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sandstorm_catalog::Directory;
use sandstorm_log::boot_time;

use crate::copies_view::{FailoverNote, SuspectedServer};
use crate::copy_coordinator::{CopyCoordinator, CopyName, CopyOwner, MapObstacle, SuccessionRequest};
use crate::copy_store::CopyStore;
use crate::copy_watch::{CopyWatch, LifeAnswer, LifeQuestion, ObservedOwner, TickPace};
use crate::failover_mode::FailoverMode;
use crate::life_link::ask_life;
use crate::limits::{
    FAILED_TICKS, IDLE_WATCH_TICK, LEASE, PLACE_MAP_AGE, PLACE_WISH_AGE, PROBATION, STREAM_OWNER_TICKS, WATCH_TICK,
};
use crate::losing_tables::losing_tables;
use crate::move_coordinator::MoveCoordinator;
use crate::stream_copies::STREAM_HOLDER;

/// Names of tables that an obstacle has, at most.
const TABLES_SHOWN: usize = 3;
/// Ticks for which something stands in the way, until it is told to the log and as an event: two seconds. The next
/// looks at the map, or the end of another succession, take most of it away.
const HURDLE_TICKS: u32 = 100;
/// Ticks for which the answer of another server counts: a second.
const REACHED_TICKS: u64 = 50;

/// The thread. Stops when dropped.
#[derive(Debug)]
pub(crate) struct CopyWatcher {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl CopyWatcher {
    pub(crate) fn start(
        coordinator: Arc<MoveCoordinator>,
        copies: Arc<CopyCoordinator>,
        directory: Arc<Directory>,
        mode: FailoverMode,
    ) -> std::io::Result<CopyWatcher> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut run = WatcherLoop::new(coordinator, copies, directory, mode);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("copy-watch".to_owned()).spawn(move || run.run(&stopped))?;
        Ok(CopyWatcher { stop, thread: Some(thread) })
    }
}

impl Drop for CopyWatcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ended = thread.join();
        }
    }
}

/// Why this server does not take the place of an owner that is gone by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SuccessionObstacle {
    ByCommand,
    Map(MapObstacle),
    /// The copy that would be read has confirmed nothing since it was opened, or not what it was asked last.
    CopyIsUnsure,
    /// The copy that would be read is in a stream, and no stream confirms anything to this server now.
    StreamsAreSilent,
    /// Changes of tables are to be applied here first.
    DirectoryIsOld,
    LosesRecords(Vec<String>),
    /// No third server was heard of.
    IsCutOff,
    /// This server was to take its place, and does not live.
    SuccessorIsGone(String),
}

impl std::fmt::Display for SuccessionObstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match self {
            SuccessionObstacle::ByCommand => "failover is by command here",
            SuccessionObstacle::CopyIsUnsure => {
                "the copy here that would be read has confirmed nothing since this server has begun, was refused, or is \
                 damaged: it may have less than it had confirmed"
            }
            SuccessionObstacle::StreamsAreSilent => {
                "its log is in a stream, and the NATS servers confirm nothing to this server now"
            }
            SuccessionObstacle::DirectoryIsOld => "changes of tables are to be applied here first",
            SuccessionObstacle::LosesRecords(tables) => {
                let shown = tables.iter().take(TABLES_SHOWN).cloned().collect::<Vec<_>>().join(", ");
                return write!(f, "tables with another durability than `copies` would lose records: {shown}");
            }
            SuccessionObstacle::IsCutOff => "no third server answers this one: it may be cut off itself",
            SuccessionObstacle::SuccessorIsGone(successor) => {
                return write!(
                    f,
                    "server {successor} was to take it, and is gone: start that one, or have another take it"
                );
            }
            SuccessionObstacle::Map(obstacle) => match obstacle {
                MapObstacle::MapIsOld => "this server cannot read the cluster's state",
                MapObstacle::IsReplaced => "this server was removed or replaced itself",
                MapObstacle::IsNotKnown => "this server does not count as one that lives",
                MapObstacle::IsDraining => "this server is drained",
                MapObstacle::IsOnProbation => {
                    "this server's own place was taken lately: it has to be well for ten minutes, or to be added, first"
                }
                MapObstacle::WasStopped => "it was stopped in order: start it again",
                MapObstacle::HasChanged => "it begins again, or has other copies now",
                MapObstacle::OwnsNothing => "it owns no slots",
                MapObstacle::SuccessionUnderWay(of) => return write!(f, "the place of server {of} is taken first"),
                MapObstacle::NoThirdServer => "there is no third server that could have a copy of this one's log",
            },
        };
        f.write_str(text)
    }
}

impl SuccessionObstacle {
    /// Whether an operator has to hear of it: the server is gone, and its place stays empty.
    fn needs_operator(&self) -> bool {
        use MapObstacle::{HasChanged, OwnsNothing, SuccessionUnderWay, WasStopped};
        !matches!(self, SuccessionObstacle::Map(OwnsNothing | WasStopped | HasChanged | SuccessionUnderWay(_)))
    }
}

/// An owner that is gone, and what stands in the way.
#[derive(Debug, Default)]
struct DeadOwner {
    /// What has stood in the way last, and for how many ticks.
    obstacle: Option<(SuccessionObstacle, u32)>,
    is_told: bool,
}

/// What a question is about.
#[derive(Clone)]
enum AskedServer {
    Owner(LifeQuestion),
    /// Any other one: is this server cut off?
    Other,
}

/// A question, and what came of it.
type LifeReply = (AskedServer, LifeAnswer);

struct WatcherLoop {
    coordinator: Arc<MoveCoordinator>,
    copies: Arc<CopyCoordinator>,
    directory: Arc<Directory>,
    mode: FailoverMode,
    watch: CopyWatch,
    gone: BTreeMap<String, DeadOwner>,
    /// Ticks so far, and the one in which an owner that was asked has answered last that it serves.
    ticks: u64,
    served: BTreeMap<String, u64>,
    answers: (Sender<LifeReply>, Receiver<LifeReply>),
    /// Ticks since a third server has answered, and whether some are asked.
    reached: Option<u64>,
    asks_others: usize,
    /// Ticks until others may be asked again.
    others_pause: u64,
    /// Tables that would lose records, with the number of the change of tables for which that was found.
    losing: Option<(u64, Vec<String>)>,
    well: WellTime,
}

/// For how long a server on probation is well.
#[derive(Debug)]
struct WellTime {
    /// The probation in which that was seen last.
    probation: Option<u64>,
    /// Since when, on the clock of leases.
    since: Duration,
}

impl WellTime {
    /// Whether it was well for as long as a probation takes: without a break, and all of that time on probation.
    fn is_over(&mut self, now: Duration, pace: TickPace, probation: Option<u64>) -> bool {
        if pace == TickPace::Slept || probation.is_none() || probation != self.probation {
            (self.probation, self.since) = (probation, now);
        }
        now.saturating_sub(self.since) >= PROBATION
    }
}

impl WatcherLoop {
    fn new(
        coordinator: Arc<MoveCoordinator>,
        copies: Arc<CopyCoordinator>,
        directory: Arc<Directory>,
        mode: FailoverMode,
    ) -> WatcherLoop {
        WatcherLoop {
            coordinator,
            copies,
            directory,
            mode,
            watch: CopyWatch::default(),
            gone: BTreeMap::new(),
            ticks: 0,
            served: BTreeMap::new(),
            answers: channel(),
            reached: None,
            asks_others: 0,
            others_pause: 0,
            losing: None,
            well: WellTime { probation: None, since: boot_time() },
        }
    }

    fn run(&mut self, stop: &AtomicBool) {
        let (mut ticked, mut interval) = (boot_time(), IDLE_WATCH_TICK);
        while !stop.load(Ordering::Relaxed) {
            let owners = self.copies.copy_owners();
            // By the clock of leases, which goes on while the machine sleeps.
            let now = boot_time();
            let pace = TickPace::of(now.saturating_sub(ticked), interval);
            ticked = now;
            self.tick(pace, &owners);
            self.copies.set_well(|probation| self.well.is_over(now, pace, probation));
            interval = if owners.is_empty() { IDLE_WATCH_TICK } else { WATCH_TICK };
            let until = Instant::now() + interval.saturating_sub(boot_time().saturating_sub(now));
            while Instant::now() < until && !stop.load(Ordering::Relaxed) {
                std::thread::park_timeout(until.saturating_duration_since(Instant::now()));
            }
        }
        self.copies.request_succession(None);
    }

    fn tick(&mut self, pace: TickPace, owners: &[CopyOwner]) {
        if pace == TickPace::Slept {
            self.reached = None;
        }
        self.reached = self.reached.map(|ticks| ticks + 1).filter(|ticks| *ticks < REACHED_TICKS);
        self.others_pause = self.others_pause.saturating_sub(1);
        let coordinator = Arc::clone(&self.coordinator);
        let Some(copy_store) = coordinator.copies_view().copy_store() else { return };
        self.ticks += 1;
        if pace == TickPace::Slept {
            self.served.clear();
        }
        let (ticks, served) = (self.ticks, &self.served);
        let seen = |one: &CopyOwner| {
            let (owner, boot) = (one.owner.clone(), one.boot);
            // One whose log is in a stream asks nothing here: it is asked now and then.
            if one.in_stream {
                let is_asking = served.get(&owner).is_some_and(|at| ticks < at + STREAM_OWNER_TICKS);
                return ObservedOwner { owner, boot, questions: 0, is_asking };
            }
            let heard = copy_store.heard(&(one.owner.clone(), one.copy));
            ObservedOwner { owner, boot, questions: heard.questions, is_asking: heard.asking > 0 }
        };
        let seen: Vec<ObservedOwner> = owners.iter().map(seen).collect();
        for question in self.watch.tick(pace, &seen) {
            let owner = question.owner.clone();
            match self.copies.server(&owner) {
                Some((server, key)) => {
                    self.ask(AskedServer::Owner(question), move || ask_life(&owner, &server, &key));
                }
                // It has told of no address yet.
                None => self.watch.answer(&question, LifeAnswer::Unclear),
            }
        }
        while let Ok((asked, answer)) = self.answers.1.try_recv() {
            match asked {
                AskedServer::Owner(question) => {
                    self.watch.answer(&question, answer);
                    if answer == LifeAnswer::Serves && pace != TickPace::Slept {
                        self.served.insert(question.owner, self.ticks);
                    }
                }
                AskedServer::Other => {
                    self.asks_others = self.asks_others.saturating_sub(1);
                    // What was asked before this server has slept says nothing.
                    if answer == LifeAnswer::Serves && pace != TickPace::Slept {
                        self.reached = Some(0);
                    }
                }
            }
        }
        self.judge(copy_store, self.coordinator.directory_revision());
        self.show();
    }

    /// Looks at each owner that is gone, and wants the first place that nothing speaks against.
    /// `directory_revision` was read before tables are looked at: where one is changed in between, it is another one.
    fn judge(&mut self, copy_store: &CopyStore, directory_revision: u64) {
        let gone: Vec<(String, u64)> = self.watch.gone().map(|(owner, boot)| (owner.to_owned(), boot)).collect();
        let stalled = self.copies.stalled_succession();
        let is_stalled = |owner: &String| stalled.as_ref().is_some_and(|(of, _)| of == owner);
        self.gone.retain(|known, _| is_stalled(known) || gone.iter().any(|(owner, _)| owner == known));
        let mut request = None;
        for (owner, boot) in &gone {
            // The one that is read, which may be of another log than the one that is watched.
            let copy = self.copies.place_copy(owner);
            let doubt = self.doubt_of(copy.as_ref(), copy_store);
            let copy = copy.filter(|_| doubt.is_none());
            let obstacle = self.obstacle((owner, *boot), doubt, directory_revision);
            if let Some(copy) = copy.filter(|_| obstacle.is_none() && request.is_none()) {
                let (until, silent_ms) = (Instant::now() + PLACE_WISH_AGE, self.silent_ms(owner));
                let (owner, boot) = (owner.clone(), *boot);
                request = Some(SuccessionRequest { owner, copy, boot, directory_revision, until, silent_ms });
            }
            self.note(owner, obstacle);
        }
        // A server that could go on with it requests it above, long before the successor counts as gone.
        if let Some((owner, successor)) = stalled {
            self.note(&owner, Some(SuccessionObstacle::SuccessorIsGone(successor)));
        }
        let is_wished = request.is_some();
        if self.copies.request_succession(request) && is_wished {
            self.coordinator.wake_agent();
        }
    }

    /// Has a server asked, by a thread of its own: this one goes on with its ticks.
    fn ask(&self, asked: AskedServer, ask: impl FnOnce() -> LifeAnswer + Send + 'static) {
        let sender = self.answers.0.clone();
        let thread = std::thread::Builder::new().name("copy-ask".to_owned());
        let of = asked.clone();
        let run = move || {
            // Also where it panics: without an answer, that server would never be asked again.
            let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(ask)).unwrap_or(LifeAnswer::Unclear);
            drop(sender.send((asked, answer)));
        };
        if thread.spawn(run).is_err() {
            // Without a thread for it, nothing is known.
            let _kept = self.answers.0.send((of, LifeAnswer::Unclear));
        }
    }

    /// What speaks against a copy that would be read.
    fn doubt_of(&self, copy: Option<&CopyName>, copy_store: &CopyStore) -> Option<SuccessionObstacle> {
        let Some(copy) = copy else { return Some(SuccessionObstacle::CopyIsUnsure) };
        if !self.copies.is_in_stream(copy) {
            return (!copy_store.heard(copy).confirms).then_some(SuccessionObstacle::CopyIsUnsure);
        }
        // What a stream had confirmed, it has. While none can be read, no server would serve a place that is taken.
        let status = self.coordinator.copies_view().status();
        let confirms = status.copies.iter().any(|copy| copy.server == STREAM_HOLDER && copy.confirms());
        (!confirms).then_some(SuccessionObstacle::StreamsAreSilent)
    }

    /// Why this server does not take a place by itself.
    fn obstacle(
        &mut self,
        (owner, boot): (&str, u64),
        doubt: Option<SuccessionObstacle>,
        directory_revision: u64,
    ) -> Option<SuccessionObstacle> {
        if self.mode == FailoverMode::ByCommand {
            return Some(SuccessionObstacle::ByCommand);
        }
        let now = Instant::now();
        let since = now.checked_sub(PLACE_MAP_AGE).unwrap_or(now);
        if let Some(obstacle) = self.copies.place_hurdle(owner, boot, since) {
            return Some(SuccessionObstacle::Map(obstacle));
        }
        if doubt.is_some() {
            return doubt;
        }
        if self.directory.is_behind(directory_revision) {
            return Some(SuccessionObstacle::DirectoryIsOld);
        }
        let newest = self.directory.generation();
        if self.losing.as_ref().is_none_or(|(known, _)| *known != newest) {
            self.losing = Some((newest, losing_tables(&self.directory)));
        }
        if let Some((_, tables)) = self.losing.as_ref().filter(|(_, tables)| !tables.is_empty()) {
            return Some(SuccessionObstacle::LosesRecords(tables.clone()));
        }
        (!self.reaches_others(owner)).then_some(SuccessionObstacle::IsCutOff)
    }

    /// Whether a third server has been heard a moment ago. If none of those that have copies of this one's log was,
    /// others are asked.
    fn reaches_others(&mut self, owner: &str) -> bool {
        let status = self.coordinator.copies_view().status();
        let is_fresh = |silent_ms: u64| u128::from(silent_ms) < LEASE.as_millis();
        // NATS is no server of the cluster: that it answers does not tell that this one hears the others. Where there
        // are no others it is all that there is.
        let has_third = self.copies.others().0.iter().any(|(id, _)| id != owner);
        let counts = |server: &str| server != owner && !(has_third && server == STREAM_HOLDER);
        let confirms = status.copies.iter().any(|copy| counts(&copy.server) && copy.silent_ms.is_some_and(is_fresh));
        if confirms || self.reached.is_some() {
            return true;
        }
        // One question to each at a time, and a pause where they fail at once.
        if self.asks_others == 0 && self.others_pause == 0 {
            self.others_pause = FAILED_TICKS;
            let (others, key) = self.copies.others();
            for (id, server) in others.into_iter().filter(|(id, _)| id != owner) {
                let key = key.clone();
                self.asks_others += 1;
                self.ask(AskedServer::Other, move || ask_life(&id, &server, &key));
            }
        }
        false
    }

    /// Milliseconds for which nothing was heard of an owner.
    fn silent_ms(&self, owner: &str) -> u64 {
        let silent = self.watch.suspected().find(|(known, _)| *known == owner).map_or(0, |(_, ticks)| ticks);
        silent * WATCH_TICK.as_millis() as u64
    }

    /// Tells of an owner that is gone what stands in the way for long.
    fn note(&mut self, owner: &str, obstacle: Option<SuccessionObstacle>) {
        let known = self.gone.entry(owner.to_owned()).or_default();
        let before = known.obstacle.take();
        let Some(obstacle) = obstacle else { return };
        let ticks = before.filter(|(before, _)| *before == obstacle).map_or(1, |(_, ticks)| ticks + 1);
        if ticks >= HURDLE_TICKS && obstacle.needs_operator() && !known.is_told {
            known.is_told = true;
            tracing::error!("server {owner} is gone, and this one does not take its place: {obstacle}");
            self.coordinator.copies_view().note_failover(FailoverNote::not_possible(owner, &obstacle.to_string()));
        }
        known.obstacle = Some((obstacle, ticks));
    }

    fn show(&self) {
        let silent: Vec<(&str, u64)> = self.watch.suspected().collect();
        // The one whose place is being taken is watched no more.
        let others = self.gone.keys().map(|owner| (owner.as_str(), 0));
        let others = others.filter(|(owner, _)| silent.iter().all(|(known, _)| known != owner));
        let shown = silent.iter().copied().chain(others).map(|(owner, ticks)| {
            let gone = self.gone.get(owner);
            SuspectedServer {
                server: owner.to_owned(),
                silent_ms: ticks * WATCH_TICK.as_millis() as u64,
                is_gone: gone.is_some(),
                obstacle: gone.and_then(|gone| gone.obstacle.as_ref().map(|(obstacle, _)| obstacle.to_string())),
                needs_operator: gone.is_some_and(|gone| {
                    gone.obstacle
                        .as_ref()
                        .is_some_and(|(obstacle, ticks)| obstacle.needs_operator() && *ticks >= HURDLE_TICKS)
                }),
            }
        });
        self.coordinator.copies_view().set_suspected(shown.collect());
    }
}

#[cfg(test)]
mod tests;
