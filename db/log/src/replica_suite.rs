//! What each implementation of [`LogReplica`] has to do, for tests: [`conforms`] asks it in order, [`survives`] by a
//! seed with questions and answers that are lost, doubled and late, owners that start again, an owner of an earlier
//! epoch that goes on, and crashes. An error is one line that says what the replica has done.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::change::{ChangeKind, LoggedChange};
use crate::change_log::{ChangeLog, RecoveredLog};
use crate::checkpoint::CheckpointWriter;
use crate::disk::simulated::SimulatedDisk;
use crate::error::LogError;
use crate::frame::FileKind;
use crate::limits::GATHER_TIME;
use crate::options::LogOptions;
use crate::recovery::{ChangeVisitor, ReplaySummary};
use crate::replica::{LogReplica, ReplicaError, ReplicaState};
use crate::replica_format::{BatchItem, ReplicaBatch};
use crate::shipper::LogShipper;

/// The options of an owner's log: small segments, and all of it stays for the replica.
const OPTIONS: LogOptions = LogOptions {
    segment_bytes: 64 << 10,
    feed_bytes: 0,
    retained_bytes: 64 << 20,
    gather_time: GATHER_TIME,
    writer_begins: || {},
};
/// Time for a write of the owner's own log, which is in memory.
const PATIENCE: Duration = Duration::from_secs(60);
/// Steps of a run: two segments and some checkpoints.
const RUN_STEPS: u32 = 36;
/// Times that a successor asks for the seal, whose answers may be lost.
const SEAL_TRIES: u32 = 20;

/// A replica, as its owner and a successor reach it.
pub trait ReplicaHost {
    /// Returns a handle. All of them, also those of before a crash, are of the same replica.
    ///
    /// # Errors
    /// [`ReplicaError`].
    fn open(&mut self) -> Result<Box<dyn LogReplica>, ReplicaError>;

    /// Everything that keeps the replica stops at once, and starts again.
    fn crash(&mut self, seed: u64);
}

/// A server's log that goes on over restarts, each change with a key of its own.
pub struct SourceLog {
    disk: SimulatedDisk,
    options: LogOptions,
    /// The running log.
    pub log: Arc<ChangeLog>,
    /// Where the change of each key ends.
    pub ends: Vec<u64>,
}

impl std::fmt::Debug for SourceLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceLog").field("changes", &self.ends.len()).finish_non_exhaustive()
    }
}

fn put<'a>(key: &'a [u8], version: u64, value: &'a [u8]) -> LoggedChange<'a> {
    LoggedChange { kind: ChangeKind::Put, table: 1, version, expires_at_ms: 0, flags: 0, key, value }
}

fn start(disk: &SimulatedDisk, options: LogOptions) -> Arc<ChangeLog> {
    let read = RecoveredLog::read(Arc::new(disk.clone()), options, &mut |_, _| Ok(()));
    let started = read.and_then(RecoveredLog::start);
    started.unwrap_or_else(|error| panic!("the owner's own log is in memory: {error}"))
}

impl SourceLog {
    /// An empty one.
    pub fn new(options: LogOptions) -> SourceLog {
        let disk = SimulatedDisk::default();
        SourceLog { log: start(&disk, options), disk, options, ends: Vec::new() }
    }

    /// Writes a change, and waits until it is on the owner's disk.
    pub fn write(&mut self) {
        let number = self.ends.len() as u32;
        let value = vec![number as u8; if number.is_multiple_of(5) { 9_000 } else { 300 }];
        let end = self.log.append(&put(&number.to_le_bytes(), u64::from(number) + 1, &value), true);
        assert!(self.log.wait(end, PATIENCE), "the owner's own log is in memory");
        self.ends.push(end);
    }

    /// Writes a checkpoint of all changes.
    pub fn checkpoint(&self) {
        let write = || -> Result<(), LogError> {
            let mut writer = CheckpointWriter::begin(&self.log)?;
            for number in 0..self.ends.len() as u32 {
                writer.push(&put(&number.to_le_bytes(), u64::from(number) + 1, b"of the checkpoint"))?;
            }
            writer.finish().map(drop)
        };
        write().unwrap_or_else(|error| panic!("the owner's own log is in memory: {error}"));
    }

    /// The process ends, and another one goes on.
    pub fn restart(&mut self) {
        self.log.close();
        self.disk = self.disk.after_kill();
        self.log = start(&self.disk, self.options);
    }
}

/// Sends all that there is; returns the position up to which the replica has confirmed it.
///
/// # Errors
/// [`ReplicaError`].
pub fn ship(shipper: &mut LogShipper, replica: &mut dyn LogReplica, epoch: u64) -> Result<Option<u64>, ReplicaError> {
    loop {
        let batch = shipper.next_batch(true)?;
        if batch.is_empty() {
            return Ok(shipper.held());
        }
        let sent = ReplicaBatch::decode(&batch.encode());
        replica.append(epoch, &sent.ok_or_else(|| ReplicaError::Gap("not as it was sent".to_owned()))?)?;
        shipper.acknowledge();
        if let Some((checkpoint, segment)) = shipper.take_trim() {
            replica.trim(epoch, checkpoint, segment)?;
        }
    }
}

/// The keys that a replica has.
fn keys(replica: &mut dyn LogReplica) -> Result<BTreeSet<u32>, String> {
    let mut found = BTreeSet::new();
    let visit = &mut |change: &LoggedChange<'_>, _| {
        found.insert(change.key.try_into().map_or(u32::MAX, u32::from_le_bytes));
        Ok(())
    };
    replica.read(visit).map_err(|error| format!("what was confirmed cannot be read: {error}"))?;
    Ok(found)
}

/// Whether a replica has all changes up to a position.
fn has_all(replica: &mut dyn LogReplica, source: &SourceLog, confirmed: u64) -> Result<(), String> {
    let there = keys(replica)?;
    let missing = |(number, end): &(usize, &u64)| **end <= confirmed && !there.contains(&(*number as u32));
    match source.ends.iter().enumerate().find(missing) {
        None => Ok(()),
        Some((number, _)) => Err(format!("change {number} is missing, though position {confirmed} was confirmed")),
    }
}

fn expect<T: std::fmt::Debug + PartialEq>(what: &str, found: T, expected: T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?} in place of {expected:?}")) }
}

fn is_gap<T: std::fmt::Debug>(what: &str, found: Result<T, ReplicaError>) -> Result<(), String> {
    if matches!(found, Err(ReplicaError::Gap(_))) { Ok(()) } else { Err(format!("{what}: {found:?}")) }
}

fn is_refused<T: std::fmt::Debug>(what: &str, found: Result<T, ReplicaError>, by: &ReplicaError) -> Result<(), String> {
    if found.as_ref().err() == Some(by) { Ok(()) } else { Err(format!("{what}: {found:?} in place of {by:?}")) }
}

fn said(what: &'static str) -> impl Fn(ReplicaError) -> String {
    move |error| format!("{what}: {error}")
}

fn begin(source: &SourceLog, state: &ReplicaState) -> Result<LogShipper, String> {
    let begun = LogShipper::begin(&source.log, state).map_err(|error| error.to_string())?;
    begun.ok_or_else(|| format!("what it has cannot be gone on with: {state:?}"))
}

/// Asks a new replica for each thing that it has to do, in order.
///
/// # Errors
/// One line: what it has not done.
pub fn conforms(host: &mut dyn ReplicaHost) -> Result<(), String> {
    let mut source = SourceLog::new(OPTIONS);
    source.log.keep_for_copies(Some(0));
    let mut replica = host.open().map_err(said("opened"))?;
    let held = takes_what_follows(&mut *replica, &mut source)?;
    let held = epochs_end_earlier_ones(host, &mut source, held)?;
    trims_what_is_superfluous(host, &mut source, held)?;
    seals_are_for_good(host, &mut source)
}

/// Of the pieces of a batch those of its last segment, which begins there, without the one that publishes it.
fn last_file_unpublished(batch: &ReplicaBatch) -> ReplicaBatch {
    let mut part = ReplicaBatch::default();
    for item in batch.items().flatten() {
        match item {
            BatchItem::Begin(header) if header.kind == FileKind::Segment => {
                part = ReplicaBatch::default();
                part.begin(&header);
            }
            BatchItem::Frame { kind: FileKind::Segment, number, offset, bytes } => {
                part.frame((FileKind::Segment, number), offset, bytes);
            }
            BatchItem::Begin(_) | BatchItem::Frame { .. } | BatchItem::Publish(..) => {}
        }
    }
    part
}

/// It has what it was sent, tells it, and takes nothing that does not follow.
fn takes_what_follows(replica: &mut dyn LogReplica, source: &mut SourceLog) -> Result<u64, String> {
    (0..30).for_each(|_| source.write());
    expect("a new one has nothing", replica.state(3), Ok(ReplicaState::default()))?;
    let mut shipper = begin(source, &ReplicaState::default())?;
    let first = ship(&mut shipper, replica, 3).map_err(said("appended"))?;
    expect("all is there", first, source.ends.last().copied())?;
    expect("all is read", keys(replica)?.len(), 30)?;
    let state = replica.state(3).map_err(said("asked"))?;
    expect("where it ends", state.files.last().map(|file| file.position), first)?;
    let mut again = begin(source, &ReplicaState::default())?;
    let all = again.next_batch(true).map_err(|error| error.to_string())?;
    is_gap("all of it once more", replica.append(3, &all))?;
    expect("a refusal changes nothing", replica.state(3), Ok(state))?;
    // What follows would go into that file, and be confirmed, and the state knows no file that was not published.
    is_gap("the last file once more, late and not to its end", replica.append(3, &last_file_unpublished(&all)))?;
    source.write();
    let more = shipper.next_batch(true).map_err(|error| error.to_string())?;
    replica.append(3, &more).map_err(said("appended"))?;
    shipper.acknowledge();
    is_gap("the same frames twice", replica.append(3, &more))?;
    let state = replica.state(3).map_err(said("asked"))?;
    let held = shipper.held();
    expect("frames that were sent twice are there once", state.files.last().map(|file| file.position), held)?;
    held.ok_or_else(|| "nothing is confirmed".to_owned())
}

/// A later epoch, of whatever handle, ends the earlier one, also over a crash.
fn epochs_end_earlier_ones(host: &mut dyn ReplicaHost, source: &mut SourceLog, held: u64) -> Result<u64, String> {
    let mut earlier = host.open().map_err(said("opened"))?;
    let mut shipper = begin(source, &earlier.state(3).map_err(said("asked"))?)?;
    expect("it has what it had", shipper.held(), Some(held))?;
    source.write();
    let more = shipper.next_batch(true).map_err(|error| error.to_string())?;
    let mut later = host.open().map_err(said("opened"))?;
    later.append(4, &ReplicaBatch::default()).map_err(said("asked whether it would take more"))?;
    let ended = ReplicaError::OldEpoch(4);
    for seed in 0..2 {
        is_refused("what it has, in an earlier epoch", earlier.state(3), &ended)?;
        is_refused("pieces of an earlier epoch", earlier.append(3, &more), &ended)?;
        is_refused("a question of an earlier epoch", earlier.append(3, &ReplicaBatch::default()), &ended)?;
        is_refused("a trim of an earlier epoch", earlier.trim(3, 1, 1), &ended)?;
        host.crash(seed);
        earlier = host.open().map_err(said("opened after a crash"))?;
    }
    let mut later = host.open().map_err(said("opened"))?;
    let mut shipper = begin(source, &later.state(4).map_err(said("asked"))?)?;
    let held = ship(&mut shipper, &mut *later, 4).map_err(said("appended in the later epoch"))?;
    expect("the later epoch goes on", held, source.ends.last().copied())?;
    held.ok_or_else(|| "nothing is confirmed".to_owned())
}

/// A checkpoint makes what is before it superfluous; what is not there is not trimmed for.
fn trims_what_is_superfluous(host: &mut dyn ReplicaHost, source: &mut SourceLog, held: u64) -> Result<(), String> {
    let mut replica = host.open().map_err(said("opened"))?;
    let mut shipper = begin(source, &replica.state(4).map_err(said("asked"))?)?;
    is_gap("a trim for a checkpoint that is not there", replica.trim(4, 7, 2))?;
    has_all(&mut *replica, source, held)?;
    for _ in 0..2 {
        source.checkpoint();
        (0..20).for_each(|_| source.write());
        let held = ship(&mut shipper, &mut *replica, 4).map_err(said("appended"))?;
        expect("all is there beside a checkpoint", held, source.ends.last().copied())?;
    }
    let files = replica.state(4).map_err(said("asked"))?.files;
    let checkpoints = files.iter().filter(|file| file.header.kind == FileKind::Checkpoint).count();
    expect("one checkpoint stays", checkpoints, 1)?;
    if files.iter().any(|file| file.header.kind == FileKind::Segment && file.header.number == 1) {
        return Err(format!("what a checkpoint makes superfluous stays: {files:?}"));
    }
    host.crash(2);
    let mut replica = host.open().map_err(said("opened after a crash"))?;
    expect("a trim outlives a crash", replica.state(4).map_err(said("asked"))?.files, files)?;
    expect("all is read behind a checkpoint", keys(&mut *replica)?.len(), source.ends.len())
}

/// Sealed by one handle, it takes nothing of any, for good, and all that was confirmed is read.
fn seals_are_for_good(host: &mut dyn ReplicaHost, source: &mut SourceLog) -> Result<(), String> {
    let mut owner = host.open().map_err(said("opened"))?;
    let mut shipper = begin(source, &owner.state(4).map_err(said("asked"))?)?;
    let all = source.ends.len();
    let mut successor = host.open().map_err(said("opened"))?;
    expect("a seal, twice", (successor.seal(), successor.seal()), (Ok(()), Ok(())))?;
    source.write();
    let more = shipper.next_batch(true).map_err(|error| error.to_string())?;
    for seed in 0..3 {
        for epoch in [1, 4, 5, u64::MAX] {
            let what = "behind a seal";
            is_refused(what, owner.state(epoch), &ReplicaError::Sealed)?;
            is_refused(what, owner.append(epoch, &more), &ReplicaError::Sealed)?;
            is_refused(what, owner.append(epoch, &ReplicaBatch::default()), &ReplicaError::Sealed)?;
            is_refused(what, owner.trim(epoch, 1, 1), &ReplicaError::Sealed)?;
        }
        expect("a seal once more", successor.seal(), Ok(()))?;
        expect("all that was confirmed is read", keys(&mut *successor)?.len(), all)?;
        host.crash(seed);
        owner = host.open().map_err(said("opened after a crash"))?;
        successor = host.open().map_err(said("opened after a crash"))?;
    }
    Ok(())
}

/// A fault that a question meets on its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkFault {
    QuestionLost,
    AnswerLost,
    Doubled,
}

/// The way to a replica: it may meet a fault, once.
struct FaultyLink<'r> {
    replica: &'r mut dyn LogReplica,
    fault: Option<LinkFault>,
    /// The last pieces that were sent: they may come once more, late.
    sent: &'r mut Option<(u64, ReplicaBatch)>,
}

impl FaultyLink<'_> {
    fn ask<T>(&mut self, ask: impl Fn(&mut dyn LogReplica) -> Result<T, ReplicaError>) -> Result<T, ReplicaError> {
        let no_answer = || ReplicaError::Log(LogError::unusable("the link", "no answer"));
        match self.fault.take() {
            None => ask(self.replica),
            Some(LinkFault::QuestionLost) => Err(no_answer()),
            Some(LinkFault::AnswerLost) => {
                let _lost = ask(self.replica);
                Err(no_answer())
            }
            Some(LinkFault::Doubled) => {
                let _first = ask(self.replica);
                ask(self.replica)
            }
        }
    }
}

impl LogReplica for FaultyLink<'_> {
    fn state(&mut self, epoch: u64) -> Result<ReplicaState, ReplicaError> {
        self.ask(|replica| replica.state(epoch))
    }

    fn append(&mut self, epoch: u64, batch: &ReplicaBatch) -> Result<(), ReplicaError> {
        *self.sent = Some((epoch, batch.clone()));
        self.ask(|replica| replica.append(epoch, batch))
    }

    fn trim(&mut self, epoch: u64, checkpoint: u64, segment: u64) -> Result<(), ReplicaError> {
        self.ask(|replica| replica.trim(epoch, checkpoint, segment))
    }

    fn seal(&mut self) -> Result<(), ReplicaError> {
        self.ask(|replica| replica.seal())
    }

    fn read(&mut self, visit: &mut ChangeVisitor<'_>) -> Result<ReplaySummary, ReplicaError> {
        self.replica.read(visit)
    }
}

/// A run of an owner.
struct OwnerRun<'h> {
    host: &'h mut dyn ReplicaHost,
    random: SmallRng,
    source: SourceLog,
    epoch: u64,
    /// The epoch in which the replica has answered last.
    entered: u64,
    confirmed: u64,
    link: Option<(Box<dyn LogReplica>, LogShipper)>,
    /// Handles of earlier starts, with their epochs, that go on.
    earlier: Vec<(Box<dyn LogReplica>, u64, ReplicaBatch)>,
    sent: Option<(u64, ReplicaBatch)>,
    late: Vec<(u64, ReplicaBatch)>,
}

/// Runs an owner by a seed, and a successor that seals the replica and reads it at the end.
///
/// # Errors
/// One line: what was confirmed is not there, or something was taken that may not be.
pub fn survives(host: &mut dyn ReplicaHost, seed: u64) -> Result<(), String> {
    let (random, source) = (SmallRng::seed_from_u64(seed), SourceLog::new(OPTIONS));
    let (epoch, entered, confirmed, link) = (1, 0, 0, None);
    let (earlier, sent, late) = (Vec::new(), None, Vec::new());
    let mut run = OwnerRun { host, random, source, epoch, entered, confirmed, link, earlier, sent, late };
    for _ in 0..RUN_STEPS {
        run.step()?;
    }
    run.ends()
}

impl OwnerRun<'_> {
    fn step(&mut self) -> Result<(), String> {
        (0..self.random.random_range(1..3)).for_each(|_| self.source.write());
        self.source.log.keep_for_copies(Some(0));
        if self.random.random_bool(0.12) {
            self.source.checkpoint();
        }
        if self.random.random_bool(0.1) {
            self.restart();
        }
        if self.random.random_bool(0.08) {
            self.host.crash(self.random.random());
            // Its owner finds that the connection has ended.
            self.link = None;
        }
        let fault = match self.random.random_range(0..12) {
            0 => Some(LinkFault::QuestionLost),
            1 => Some(LinkFault::AnswerLost),
            2 => Some(LinkFault::Doubled),
            _ => None,
        };
        self.ask(fault)?;
        if let Some(sent) = self.sent.take()
            && self.random.random_bool(0.3)
        {
            self.late.push(sent);
        }
        if self.random.random_bool(0.3) && !self.late.is_empty() {
            let (epoch, batch) = self.late.swap_remove(self.random.random_range(0..self.late.len()));
            let mut handle = self.host.open().map_err(said("opened"))?;
            let taken = handle.append(epoch, &batch);
            if taken.is_ok() && epoch < self.entered {
                return Err(format!("a late question of epoch {epoch} was taken in epoch {}", self.entered));
            }
        }
        self.earlier_owners_go_on()
    }

    /// The owner's process ends, and another one goes on in the next epoch; the handle of the first one still asks.
    fn restart(&mut self) {
        if let Some((replica, mut shipper)) = self.link.take()
            && let Ok(batch) = shipper.next_batch(true)
        {
            self.earlier.push((replica, self.epoch, batch));
        }
        self.source.restart();
        self.epoch += 1;
    }

    /// Sends the next pieces. After a missing answer the owner asks for the replica's state again.
    fn ask(&mut self, fault: Option<LinkFault>) -> Result<(), String> {
        let mut fault = fault;
        let (mut replica, mut shipper) = match self.link.take() {
            Some(link) => link,
            None => {
                let mut replica = self.host.open().map_err(said("opened"))?;
                let mut link = FaultyLink { replica: &mut *replica, fault: fault.take(), sent: &mut self.sent };
                let state = match link.state(self.epoch) {
                    Ok(state) => state,
                    Err(error) => return self.trouble(&error),
                };
                self.entered = self.entered.max(self.epoch);
                let ends = state.files.iter().filter(|file| file.header.kind == FileKind::Segment);
                let ends_at = ends.map(|file| file.position).max().unwrap_or(0);
                if ends_at < self.confirmed {
                    return Err(format!("it ends at {ends_at}, though {} was confirmed", self.confirmed));
                }
                let shipper = begin(&self.source, &state)?;
                (replica, shipper)
            }
        };
        let mut link = FaultyLink { replica: &mut *replica, fault, sent: &mut self.sent };
        match ship(&mut shipper, &mut link, self.epoch) {
            Ok(held) => {
                self.entered = self.entered.max(self.epoch);
                self.confirmed = self.confirmed.max(held.unwrap_or(0));
                self.link = Some((replica, shipper));
                Ok(())
            }
            Err(error) => self.trouble(&error),
        }
    }

    fn trouble(&self, error: &ReplicaError) -> Result<(), String> {
        match error {
            ReplicaError::Sealed => Err("it is sealed, and nobody has sealed it".to_owned()),
            ReplicaError::OldEpoch(epoch) => {
                Err(format!("epoch {} is refused for {epoch}, which nobody has begun", self.epoch))
            }
            ReplicaError::Missing | ReplicaError::Damaged(_) => Err(format!("nothing was damaged: {error}")),
            ReplicaError::Gap(_) | ReplicaError::Full(_) | ReplicaError::Log(_) => Ok(()),
        }
    }

    /// What earlier starts send is refused once the replica has answered a later one.
    fn earlier_owners_go_on(&mut self) -> Result<(), String> {
        for (replica, epoch, batch) in &mut self.earlier {
            if *epoch < self.entered && self.random.random_bool(0.2) {
                let pieces = if self.random.random() { batch.clone() } else { ReplicaBatch::default() };
                let taken = replica.append(*epoch, &pieces);
                if taken.is_ok() {
                    return Err(format!("pieces of epoch {epoch} were taken in epoch {}", self.entered));
                }
            }
        }
        Ok(())
    }

    /// A successor seals the replica and reads it.
    fn ends(&mut self) -> Result<(), String> {
        let mut tries = 0;
        let mut successor = loop {
            let mut successor = self.host.open().map_err(said("opened"))?;
            tries += 1;
            let fault = self.random.random_bool(0.3).then_some(LinkFault::AnswerLost);
            let mut link = FaultyLink { replica: &mut *successor, fault, sent: &mut self.sent };
            match link.seal() {
                Ok(()) => break successor,
                Err(error) if tries == SEAL_TRIES => return Err(format!("not sealed: {error}")),
                Err(_) => {}
            }
        };
        self.source.write();
        if let Some((mut owner, mut shipper)) = self.link.take() {
            let taken = ship(&mut shipper, &mut *owner, self.epoch);
            if taken.is_ok() {
                return Err("pieces were taken behind the seal".to_owned());
            }
        }
        self.host.crash(self.random.random());
        has_all(&mut *successor, &self.source, self.confirmed)?;
        let mut again = self.host.open().map_err(said("opened"))?;
        is_refused("behind a seal", again.state(u64::MAX), &ReplicaError::Sealed)?;
        has_all(&mut *again, &self.source, self.confirmed)
    }
}
