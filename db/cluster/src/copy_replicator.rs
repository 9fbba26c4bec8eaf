//! The threads that keep copies of this server's log on other servers or in streams: one that chooses them, and one for
//! each copy, which sends what is on the disk and asks again and again whether the copy would take more.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sandstorm_catalog::Directory;
use sandstorm_log::frame::FileKind;
use sandstorm_log::{ChangeLog, LogShipper, ReplicaBatch, ReplicaError, ReplicaState, boot_time};

use crate::copies_view::{CopiesStatus, CopyStatus, GenerationStatus};
use crate::copy_channel::CopyChannel;
use crate::copy_coordinator::{CopyCoordinator, CopyName, CopyPosition};
use crate::copy_links::{CopyLink, CopyLinks, candidate, held_of};
use crate::given_up_copies::GivenUpCopies;
use crate::limits::{
    COPIES_STALL, COPY_SWEEP_INTERVAL, COUNTED_LEASE, FULL_AGAIN, HEARTBEAT, KEEPER_INTERVAL, LEASE_ON_ARRIVAL,
    LOG_INTERVAL, REPLACE_AFTER, REPLACE_TAKEN_AFTER, REPLICA_PAUSE, SWEEP_MAP_AGE,
};
use crate::lost_place::end_loss;
use crate::move_coordinator::MoveCoordinator;
use crate::stream_copies::STREAM_HOLDER;
use crate::unneeded_streams::StreamCaretaker;

/// What the threads share.
pub(crate) struct CopyReplication {
    directory: Arc<Directory>,
    coordinator: Arc<MoveCoordinator>,
    copies: Arc<CopyCoordinator>,
    /// Copies that are wanted.
    wanted: usize,
    links: Mutex<CopyLinks>,
    /// Servers on which a new copy was given up.
    given_up: Mutex<GivenUpCopies>,
    is_stalled: AtomicBool,
    /// Wakes the links when there is more to send.
    progress: Mutex<()>,
    progressed: Condvar,
    /// The thread that chooses copies.
    chooser: OnceLock<Thread>,
    stop: AtomicBool,
}

/// The threads. Stop when dropped.
pub(crate) struct CopyReplicator {
    keeping: Arc<CopyReplication>,
    thread: Option<JoinHandle<()>>,
    _caretaker: Option<StreamCaretaker>,
}

impl std::fmt::Debug for CopyReplicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyReplicator").finish_non_exhaustive()
    }
}

impl CopyReplicator {
    pub(crate) fn start(
        directory: Arc<Directory>,
        coordinator: Arc<MoveCoordinator>,
        copies: Arc<CopyCoordinator>,
        wanted: usize,
    ) -> std::io::Result<CopyReplicator> {
        let keeping = Arc::new(CopyReplication {
            directory,
            coordinator,
            copies,
            wanted,
            links: Mutex::default(),
            given_up: Mutex::default(),
            is_stalled: AtomicBool::new(false),
            progress: Mutex::new(()),
            progressed: Condvar::new(),
            chooser: OnceLock::new(),
            stop: AtomicBool::new(false),
        });
        let told = Arc::downgrade(&keeping);
        keeping.directory.on_log_progress(Arc::new(move || {
            if let Some(keeping) = told.upgrade() {
                drop(keeping.progress.lock());
                keeping.progressed.notify_all();
            }
        }));
        let run = Arc::clone(&keeping);
        let thread = std::thread::Builder::new().name("copies".to_owned()).spawn(move || keep(&run))?;
        let _once = keeping.chooser.set(thread.thread().clone());
        keeping.copies.wake_with_the_map(thread.thread().clone());
        let of_links = Arc::downgrade(&keeping);
        let linked = Box::new(move || Some(of_links.upgrade()?.links.lock().keys().cloned().collect()));
        let _caretaker = StreamCaretaker::start(&keeping.copies, linked)?;
        Ok(CopyReplicator { keeping, thread: Some(thread), _caretaker })
    }
}

impl Drop for CopyReplicator {
    fn drop(&mut self) {
        self.keeping.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ended = thread.join();
        }
    }
}

/// The thread that chooses copies.
fn keep(keeping: &Arc<CopyReplication>) {
    let (mut confirmed, mut swept, mut logged) = (Instant::now(), Instant::now(), None::<Instant>);
    let (mut looked_at, mut is_on) = (u64::MAX, false);
    while !keeping.stop.load(Ordering::Relaxed) {
        if keeping.copies.has_lost() && end_loss(&keeping.directory, &keeping.stop) {
            keeping.copies.end_loss();
        }
        let newest = keeping.directory.generation();
        if newest != looked_at {
            (looked_at, is_on) = (newest, keeping.directory.needs_copies());
        }
        let log = keeping.directory.change_log().filter(|_| is_on);
        if let Some(log) = &log {
            choose(keeping, log);
        } else {
            end_copies(keeping);
            confirmed = Instant::now();
        }
        if keeping.publish(log.as_ref()) {
            confirmed = Instant::now();
        }
        let is_stalled = log.is_some() && confirmed.elapsed() >= COPIES_STALL;
        if keeping.is_stalled.swap(is_stalled, Ordering::Relaxed) != is_stalled
            || is_stalled && logged.is_some_and(|at| at.elapsed() >= LOG_INTERVAL)
        {
            logged = Some(Instant::now());
            match is_stalled {
                true => tracing::error!(
                    "no copy of the log, on another server or in a stream, confirms what is written: writes to tables of \
                     durability copies are refused, and answers that wait for copies say that they do not know"
                ),
                false => tracing::warn!("copies of the log confirm what is written again"),
            }
        }
        show(keeping, log.as_ref());
        if swept.elapsed() >= COPY_SWEEP_INTERVAL {
            swept = Instant::now();
            sweep(keeping);
        }
        std::thread::park_timeout(KEEPER_INTERVAL);
    }
    stop_links(&mut keeping.links.lock(), |_| true);
}

/// No table needs copies any more: the generation ends, so that no other server takes this one's place with what a copy
/// had once, and nothing waits for copies.
fn end_copies(keeping: &CopyReplication) {
    stop_links(&mut keeping.links.lock(), |_| true);
    let Some(log) = keeping.directory.change_log() else { return };
    let (_, members) = keeping.copies.generation();
    if members.is_empty() {
        return;
    }
    log.keep_for_copies(None);
    if !log.are_copies_missing() {
        // Answers that wait say that they do not know.
        log.set_copied(log.copied(), Duration::ZERO, true);
    }
    if keeping.copies.want(Vec::new(), &BTreeMap::new()) {
        keeping.coordinator.wake_agent();
    }
}

/// Ends links, without waiting for their threads: a question that is under way may take its time.
fn stop_links(links: &mut CopyLinks, is_over: impl Fn(&CopyName) -> bool) {
    links.retain(|name, link| {
        let ends = is_over(name);
        if ends {
            link.stop.store(true, Ordering::Relaxed);
        }
        !ends
    });
}

/// Chooses copies: each of the generation has a link, new ones are filled where some are missing, and those that
/// confirm nothing are replaced.
fn choose(keeping: &Arc<CopyReplication>, log: &Arc<ChangeLog>) {
    let peers = keeping.copies.peers();
    let acknowledged = keeping.copies.note_log(log.end());
    let (_, members) = keeping.copies.generation();
    let needed = keeping.copies.needed();
    let links = &mut *keeping.links.lock();
    for name in &needed {
        if !links.contains_key(name) {
            links.insert(name.clone(), start_link(keeping, name.clone(), false));
        }
    }
    let is_new = |name: &CopyName| !needed.contains(name);
    let in_stream = keeping.copies.streams().is_some();
    // Where copies are to be elsewhere from this start on, what there is stays until they are.
    let is_elsewhere = |name: &CopyName| in_stream != (name.0 == STREAM_HOLDER);
    let gone = |name: &CopyName| is_elsewhere(name) || !in_stream && !peers.servers.contains_key(&name.0);
    let earlier = &mut *keeping.given_up.lock();
    let mut given_up = Vec::new();
    for (name, link) in links.iter().filter(|(name, link)| is_new(name) && (link.is_given_up(&name.0) || gone(name))) {
        earlier.note(&name.0, link.overfull(), Instant::now());
        given_up.push(name.clone());
    }
    stop_links(links, |name| given_up.contains(name));
    let patience = |name: &CopyName| match peers.map.is_out_of_its_place(&name.0) {
        true => REPLACE_TAKEN_AFTER,
        false => REPLACE_AFTER,
    };
    let is_well = |name: &CopyName| {
        let link = links.get(name);
        let is_well = |link: &CopyLink| !link.is_over && !link.is_full && !link.is_worn;
        !gone(name) && link.is_some_and(|link| is_well(link) && !link.is_silent(patience(name)))
    };
    let well: Vec<CopyName> = members.iter().filter(|name| is_well(name)).take(keeping.wanted).cloned().collect();
    let filled = |name: &CopyName, link: &CopyLink| {
        is_new(name) && is_well(name) && link.held.held.is_some_and(|held| held >= acknowledged)
    };
    let mut next = well.clone();
    next.extend(links.iter().filter(|(name, link)| filled(name, link)).map(|(name, _)| name.clone()));
    next.truncate(keeping.wanted);
    // The copies that there are stay where no other one could take their place.
    if !next.is_empty() && next != members && keeping.copies.want(next, &held_of(links)) {
        keeping.coordinator.wake_agent();
    }
    if well.len() >= keeping.wanted {
        stop_links(links, is_new);
        well.iter().for_each(|(server, _)| earlier.forget(server));
    }
    let filling = links.keys().filter(|name| is_new(name)).count();
    if well.len() + filling < keeping.wanted
        && let Some(server) = candidate(keeping.copies.own_id(), (&peers, in_stream), links, earlier)
    {
        let name = (server, rand::random::<u64>() >> 1);
        links.insert(name.clone(), start_link(keeping, name, true));
    }
    log.keep_for_copies(links.values().map(|link| link.needs_from).min());
}

fn start_link(keeping: &Arc<CopyReplication>, name: CopyName, is_new: bool) -> CopyLink {
    let stop = Arc::new(AtomicBool::new(false));
    let (run, stopped) = (Arc::clone(keeping), Arc::clone(&stop));
    let thread = std::thread::Builder::new().name("copy-link".to_owned());
    let thread = thread.spawn(move || run_link(&run, &name, &stopped));
    let trouble = thread.as_ref().err().map(ToString::to_string);
    let (held, begun, confirmed) = (CopyPosition::default(), Instant::now(), None);
    let (needs_from, behind, is_over, is_full, is_worn) = (0, 0, trouble.is_some(), false, false);
    CopyLink { held, begun, is_new, confirmed, needs_from, behind, trouble, is_over, is_full, is_worn, stop }
}

/// The thread of a copy.
fn run_link(keeping: &CopyReplication, name: &CopyName, stop: &AtomicBool) {
    let mut channel = None;
    run_until_stopped(keeping, name, stop, &mut channel);
    if stop.load(Ordering::Relaxed) && !keeping.stop.load(Ordering::Relaxed) {
        remove_given_up(keeping, name, channel);
    }
}

/// Has the server remove a copy that no generation has had: what was copied takes its room. Links that have ended are
/// never begun again. If there is no answer, the server removes it once no question for it has come for long.
fn remove_given_up(keeping: &CopyReplication, name: &CopyName, channel: Option<CopyChannel>) {
    if keeping.copies.needed().contains(name) {
        return;
    }
    let known = channel.filter(CopyChannel::outlives_trouble).map(Ok);
    if let Ok(mut link) = known.unwrap_or_else(|| CopyChannel::once(&keeping.copies, name)) {
        let _later = link.remove(keeping.epoch());
    }
}

fn run_until_stopped(keeping: &CopyReplication, name: &CopyName, stop: &AtomicBool, channel: &mut Option<CopyChannel>) {
    while !stop.load(Ordering::Relaxed) && !keeping.stop.load(Ordering::Relaxed) {
        let ended = ship(keeping, name, stop, channel);
        let mut links = keeping.links.lock();
        let Some(link) = links.get_mut(name) else { return };
        match ended {
            Ok(()) => return,
            Err(LinkEnd::Over(why)) => {
                (link.is_over, link.trouble) = (true, Some(why));
                return;
            }
            Err(LinkEnd::Again(why)) => link.trouble = Some(why),
            Err(LinkEnd::Full(why)) => (link.is_full, link.trouble) = (true, Some(why)),
        }
        drop(links);
        std::thread::sleep(REPLICA_PAUSE);
    }
}

/// Why a link has ended.
enum LinkEnd {
    /// It may go on.
    Again(String),
    /// Its server has no room for more now: another one is wanted.
    Full(String),
    /// What the copy has cannot be gone on with: another one is needed.
    Over(String),
}

impl From<ReplicaError> for LinkEnd {
    fn from(error: ReplicaError) -> LinkEnd {
        match &error {
            ReplicaError::Sealed | ReplicaError::Missing | ReplicaError::OldEpoch(_) | ReplicaError::Damaged(_) => {
                LinkEnd::Over(error.to_string())
            }
            ReplicaError::Full(_) => LinkEnd::Full(error.to_string()),
            ReplicaError::Gap(_) | ReplicaError::Log(_) => LinkEnd::Again(error.to_string()),
        }
    }
}

/// The position up to which a copy has the log.
fn ends_at(state: &ReplicaState) -> u64 {
    let segments = state.files.iter().filter(|file| file.header.kind == FileKind::Segment);
    segments.map(|file| file.position).max().unwrap_or(0)
}

/// Sends the log to a copy until there is trouble, or the link is to stop.
fn ship(
    keeping: &CopyReplication,
    name: &CopyName,
    stop: &AtomicBool,
    channel: &mut Option<CopyChannel>,
) -> Result<(), LinkEnd> {
    let again = |why: String| LinkEnd::Again(why);
    let broken = |error: sandstorm_log::LogError| LinkEnd::Again(error.to_string());
    let link = match channel {
        Some(known) if known.outlives_trouble() => known,
        _ => channel.insert(CopyChannel::begin(&keeping.copies, name).map_err(again)?),
    };
    let log = keeping.directory.change_log().ok_or_else(|| again("there is no log yet".to_owned()))?;
    let state = link.state(keeping.epoch(), keeping.makes(name))?;
    if keeping.copies.needed().contains(name) && ends_at(&state) < log.copied() {
        // Its folder is an earlier one. Filled up in silence it could be chosen in this server's place meanwhile.
        return Err(LinkEnd::Over("it has less of the log than it has confirmed".to_owned()));
    }
    let begun = LogShipper::begin(&log, &state).map_err(broken)?;
    let mut shipper = begun.ok_or_else(|| LinkEnd::Over("it has something else than the log".to_owned()))?;
    let mut is_quiet = false;
    while !stop.load(Ordering::Relaxed) && !keeping.stop.load(Ordering::Relaxed) {
        let batch = shipper.next_batch(is_quiet).map_err(broken)?;
        let Some(asked_ns) = send(keeping, name, (&mut *link, &log), (&shipper, &batch), stop)? else { break };
        shipper.acknowledge();
        keeping.confirm(name, &log, &shipper, asked_ns);
        if !batch.is_empty() && boot_time() >= Duration::from_nanos(asked_ns) + LEASE_ON_ARRIVAL {
            // Its disk has taken most of the lease, or all of it. A question that writes nothing gets a new one.
            let asked_ns = boot_time().as_nanos() as u64;
            link.append(keeping.epoch(), &ReplicaBatch::default())?;
            keeping.confirm(name, &log, &shipper, asked_ns);
        }
        if let Some(trim) = shipper.take_trim() {
            link.trim(keeping.epoch(), trim)?;
        }
        keeping.note_worn(name, link.is_worn());
        // Not asked again at once: what is written meanwhile would wait for the answer.
        is_quiet = (batch.is_empty() || !shipper.has_more()) && keeping.rest(&log, shipper.sent(), stop);
    }
    Ok(())
}

/// Sends the shipper's last batch, and again where the copy's server has no room for it: what the copy has it confirms
/// meanwhile, so that this server shows its records. Returns when the question was asked that took it; `None`: the link
/// is to stop.
fn send(
    keeping: &CopyReplication,
    name: &CopyName,
    (link, log): (&mut CopyChannel, &Arc<ChangeLog>),
    (shipper, batch): (&LogShipper, &ReplicaBatch),
    stop: &AtomicBool,
) -> Result<Option<u64>, LinkEnd> {
    let mut refused: Option<Instant> = None;
    while !stop.load(Ordering::Relaxed) && !keeping.stop.load(Ordering::Relaxed) {
        if refused.is_none_or(|at| at.elapsed() >= FULL_AGAIN) {
            let asked_ns = boot_time().as_nanos() as u64;
            match link.append(keeping.epoch(), batch) {
                Ok(()) => return Ok(Some(asked_ns)),
                Err(error @ ReplicaError::Full(_)) => keeping.note_full(name, &error),
                Err(error) => return Err(error.into()),
            }
            refused = Some(Instant::now());
        }
        let asked_ns = boot_time().as_nanos() as u64;
        link.append(keeping.epoch(), &ReplicaBatch::default())?;
        keeping.confirm_held(name, log, CopyPosition { held: shipper.held(), asked_ns });
        std::thread::sleep(HEARTBEAT);
    }
    Ok(None)
}

impl CopyReplication {
    /// The generation's number: what is sent to a copy has it.
    fn epoch(&self) -> u64 {
        self.copies.generation_number().max(1)
    }

    /// Whether a missing copy is made. A copy that has confirmed something, or that is in a generation, is never made
    /// again: it has made promises that a new one does not know of, and may have been sealed.
    fn makes(&self, name: &CopyName) -> bool {
        let is_new = self.links.lock().get(name).is_some_and(|link| link.is_new && link.confirmed.is_none());
        is_new && !self.copies.needed().contains(name)
    }

    /// Waits until the log has more than was sent, or it is time to ask again. Returns whether there is nothing.
    fn rest(&self, log: &ChangeLog, sent: u64, stop: &AtomicBool) -> bool {
        let until = Instant::now() + HEARTBEAT;
        let mut guard = self.progress.lock();
        while log.durable() <= sent && !stop.load(Ordering::Relaxed) {
            if self.progressed.wait_until(&mut guard, until).timed_out() {
                return log.durable() <= sent;
            }
        }
        false
    }

    /// Notes what a copy has confirmed, and acknowledges what all have.
    fn confirm(&self, name: &CopyName, log: &Arc<ChangeLog>, shipper: &LogShipper, asked_ns: u64) {
        {
            let mut links = self.links.lock();
            let Some(link) = links.get_mut(name) else { return };
            link.held = CopyPosition { held: shipper.held(), asked_ns };
            (link.confirmed, link.trouble, link.is_full) = (Some(Instant::now()), None, false);
            (link.needs_from, link.behind) = (shipper.needs_from(), shipper.behind());
        }
        self.publish(Some(log));
        if !self.copies.needed().contains(name)
            && let Some(chooser) = self.chooser.get()
        {
            // Perhaps it is filled, and writes wait for a copy.
            chooser.unpark();
        }
    }

    /// Notes whether another copy is to take the place of one that confirms all.
    fn note_worn(&self, name: &CopyName, is_worn: bool) {
        if let Some(link) = self.links.lock().get_mut(name) {
            link.is_worn = is_worn;
        }
    }

    /// Notes that a copy's server has no room for more.
    fn note_full(&self, name: &CopyName, why: &ReplicaError) {
        if let Some(link) = self.links.lock().get_mut(name) {
            (link.is_full, link.trouble) = (true, Some(why.to_string()));
        }
    }

    /// Notes that a copy which takes no more has what it had. The log's files that it needs stay as they were.
    fn confirm_held(&self, name: &CopyName, log: &Arc<ChangeLog>, held: CopyPosition) {
        {
            let mut links = self.links.lock();
            // A copy that cannot be read yet confirms nothing.
            let Some(link) = links.get_mut(name).filter(|_| held.held.is_some()) else { return };
            (link.held, link.confirmed) = (held, Some(Instant::now()));
        }
        self.publish(Some(log));
    }

    /// Acknowledges what all copies have. Returns whether all have confirmed it within a lease.
    fn publish(&self, log: Option<&Arc<ChangeLog>>) -> bool {
        let links = self.links.lock();
        let needed = self.copies.needed();
        let takes_more = !links.iter().any(|(name, link)| link.is_full && needed.contains(name));
        let copied = self.copies.publish(&held_of(&links));
        let Some(log) = log else { return true };
        let asked = Duration::from_nanos(copied.asked_ns);
        let lease_end = if copied.asked_ns == 0 { Duration::ZERO } else { asked + COUNTED_LEASE };
        // Under the lock, so that what is newer is set later.
        log.set_copied(copied.position, lease_end, self.is_stalled.load(Ordering::Relaxed));
        takes_more && boot_time() < lease_end
    }
}

fn show(keeping: &CopyReplication, log: Option<&Arc<ChangeLog>>) {
    let needed = keeping.copies.needed();
    let shown = |(name, link): (&CopyName, &CopyLink)| CopyStatus {
        server: name.0.clone(),
        copy: name.1,
        is_needed: needed.contains(name),
        held: link.held.held,
        behind: link.behind,
        silent_ms: link.confirmed.map(|at| at.elapsed().as_millis() as u64),
        trouble: link.trouble.clone(),
    };
    let mut copies: Vec<CopyStatus> = keeping.links.lock().iter().map(shown).collect();
    for (server, why) in keeping.given_up.lock().paused(Instant::now()) {
        if !copies.iter().any(|copy| copy.server == server) {
            copies.push(CopyStatus { server, trouble: Some(why), ..CopyStatus::default() });
        }
    }
    let generations = keeping.copies.generations().into_iter().map(|(owner, one)| GenerationStatus {
        owner,
        number: one.number,
        servers: one.copies.into_iter().map(|(server, _)| server).collect(),
        successor: one.successor,
    });
    keeping.coordinator.copies_view().set_status(CopiesStatus {
        is_on: log.is_some(),
        wanted: keeping.wanted,
        generation: keeping.copies.generation_number(),
        is_stalled: keeping.is_stalled.load(Ordering::Relaxed),
        position: log.map_or(0, |log| log.copied()),
        copies,
        generations: generations.collect(),
    });
}

/// Removes copies of others' logs that no generation has.
fn sweep(keeping: &CopyReplication) {
    let peers = keeping.copies.peers();
    let Some(read_at) = peers.read_at.filter(|at| at.elapsed() < SWEEP_MAP_AGE) else { return };
    let Some(copy_store) = keeping.coordinator.copies_view().copy_store() else { return };
    let own = keeping.copies.own_id();
    let is_needed = |(owner, copy): &CopyName| {
        let known = peers.map.generations.get(owner);
        known.is_some_and(|one| one.copies.iter().any(|(server, number)| server == own && number == copy))
    };
    copy_store.remove_unneeded(is_needed, read_at);
}
