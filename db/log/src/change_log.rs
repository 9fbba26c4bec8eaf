//! The log of a running server. Threads append changes; one thread writes what has gathered, and publishes how far the
//! log is on the disk. A change that a client waits for needs no timer: the writer takes what has gathered as soon as
//! the disk is free.

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::change::{LoggedChange, UnitBuilder, encode_single, single_unit_bytes, table_bit};
use crate::disk::LogDisk;
use crate::error::{LogError, LogRefusal};
use crate::limits::{
    BLOCK_BYTES, FOLLOWED_GATHER_TIME, FRAME_PAYLOAD_BYTES, GATHER_BYTES, PENDING_BYTES, SEAL_AFTER, SPARE_RETRY,
    STALL_AFTER,
};
use crate::options::LogOptions;
use crate::positions::{COPIED_BIT, CopiedPosition, PositionState, waits_for_copies};
use crate::recent_frames::RecentFrames;
use crate::recovery::{ChangeVisitor, LogEnd, ReplaySummary, read_log, remove_superfluous};
use crate::segment_writer::{SegmentStart, SegmentWriter, SpareSegment, make_spare_with_margin};

/// Called by the log's own thread after the durable position has moved, or the log was closed.
pub type ProgressHook = Box<dyn Fn() + Send + Sync>;

/// A log that was read, and goes on with [`RecoveredLog::start`].
pub struct RecoveredLog {
    disk: Arc<dyn LogDisk>,
    options: LogOptions,
    end: LogEnd,
}

/// What has gathered, under one lock.
#[derive(Default)]
struct GatheredChanges {
    bytes: Vec<u8>,
    /// The position behind the last change.
    end: u64,
    /// Whether a caller waits for one of them.
    is_urgent: bool,
    /// Whether one of them may be of a table that is followed.
    is_followed: bool,
    /// The time of the first of them.
    since: Option<Instant>,
    spare: Option<SpareSegment>,
    /// Whether there is a spare segment, here or in the writer's hands.
    has_spare: bool,
    /// Whether the log is to go on with a new segment.
    begins_segment: bool,
    is_stopping: bool,
}

/// The state that the log's threads and its users share.
pub(crate) struct SharedLog {
    pub(crate) disk: Arc<dyn LogDisk>,
    pub(crate) options: LogOptions,
    pub(crate) log_id: u64,
    gathered: Mutex<GatheredChanges>,
    /// Wakes the writer.
    writer_wakes: Condvar,
    /// Wakes the thread that makes spare segments.
    spare_wakes: Condvar,
    /// Wakes the threads that wait for the durable position.
    advanced: Condvar,
    durable: AtomicU64,
    /// The position behind the last change that a caller waits for.
    urgent_end: AtomicU64,
    /// The bits of the tables whose changes a follower reads from the log as they come: see [`table_bit`].
    followed: AtomicU64,
    /// Bytes that were appended and are not written.
    pending: AtomicU64,
    /// Bytes that are about to be appended.
    reserved: AtomicU64,
    /// Bytes for frames that the disk has for certain.
    room: AtomicU64,
    /// Whether the last attempt to make a spare segment has failed.
    is_disk_full: AtomicBool,
    closed: AtomicBool,
    /// Whether the disk has been at work on one batch for too long.
    is_stalled: AtomicBool,
    /// When the writer has taken the batch that it writes, in milliseconds since `made`; 0: it writes none.
    busy_since_ms: AtomicU64,
    made: Instant,
    failure: OnceLock<LogError>,
    hook: OnceLock<ProgressHook>,
    /// The number of the segment that is written.
    pub(crate) segment: AtomicU64,
    /// The number of the last checkpoint.
    pub(crate) checkpoint: AtomicU64,
    /// The position from which the log is needed.
    pub(crate) needed_from: AtomicU64,
    /// The position from which tails need the log; `u64::MAX`: they do not.
    pub(crate) retain_from: AtomicU64,
    /// The position from which replicas need the log; `u64::MAX`: they do not.
    pub(crate) ship_from: AtomicU64,
    pub(crate) copied: CopiedPosition,
    pub(crate) recent: Arc<RecentFrames>,
    /// Numbers and first positions of the segments that are there.
    pub(crate) first_positions: Mutex<Vec<(u64, u64)>>,
}

/// The log: see the head of this file.
pub struct ChangeLog {
    shared: Arc<SharedLog>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for ChangeLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChangeLog").field("durable", &self.durable()).field("end", &self.end()).finish_non_exhaustive()
    }
}

/// The right to append so many bytes, for which there is room; it ends when this is dropped.
#[derive(Debug)]
#[must_use = "the room is reserved only as long as this lives"]
pub struct LogPermit {
    log: Arc<ChangeLog>,
    bytes: u64,
}

impl Drop for LogPermit {
    fn drop(&mut self) {
        self.log.shared.reserved.fetch_sub(self.bytes, Relaxed);
    }
}

impl RecoveredLog {
    /// Reads the log in a folder, and shows each change in an order in which they may be made, from the checkpoint or
    /// not. A folder without a log has none.
    ///
    /// # Errors
    /// [`LogError`]: damage, a newer format, or an error of the system; or one that `visit` returns.
    pub fn read(
        disk: Arc<dyn LogDisk>,
        options: LogOptions,
        visit: &mut ChangeVisitor<'_>,
    ) -> Result<RecoveredLog, LogError> {
        let end = read_log(&disk, visit)?;
        Ok(RecoveredLog { disk, options, end })
    }

    /// Returns what was read.
    pub fn summary(&self) -> ReplaySummary {
        self.end.summary
    }

    /// Goes on with the log: writes the end again that is not known to be on the disk, and starts the threads. Files
    /// that are not needed are removed.
    ///
    /// # Errors
    /// [`LogError`]: the disk takes no new segment, or the system gives no thread.
    pub fn start(self) -> Result<Arc<ChangeLog>, LogError> {
        let RecoveredLog { disk, options, end } = self;
        let log_id = if end.log_id == 0 { rand::random::<u64>().max(1) } else { end.log_id };
        let older = remove_superfluous(&*disk, &end)?;
        let number = end.next_segment();
        let start = SegmentStart { log_id, number, position: end.position, segment_bytes: options.segment_bytes };
        let writer = SegmentWriter::start(Arc::clone(&disk), start, &end.tail)?;
        let position = writer.durable();
        let mut first_positions: Vec<(u64, u64)> = older.into_iter().chain(end.segments).collect();
        first_positions.retain(|(segment, _)| *segment != number);
        first_positions.push((number, end.position));
        let gathered = GatheredChanges { end: position, ..GatheredChanges::default() };
        let shared = Arc::new(SharedLog {
            disk,
            options,
            log_id,
            gathered: Mutex::new(gathered),
            writer_wakes: Condvar::new(),
            spare_wakes: Condvar::new(),
            advanced: Condvar::new(),
            durable: AtomicU64::new(position),
            followed: AtomicU64::new(0),
            urgent_end: AtomicU64::new(position),
            pending: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            room: AtomicU64::new(writer.room()),
            is_disk_full: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            is_stalled: AtomicBool::new(false),
            busy_since_ms: AtomicU64::new(0),
            made: Instant::now(),
            failure: OnceLock::new(),
            hook: OnceLock::new(),
            segment: AtomicU64::new(number),
            checkpoint: AtomicU64::new(end.last_checkpoint),
            needed_from: AtomicU64::new(end.needed_from),
            retain_from: AtomicU64::new(u64::MAX),
            ship_from: AtomicU64::new(u64::MAX),
            copied: CopiedPosition::default(),
            recent: writer.recent(),
            first_positions: Mutex::new(first_positions),
        });
        let log = ChangeLog { shared: Arc::clone(&shared), threads: Mutex::default() };
        let failed = |error| LogError::system("start a thread for", shared.disk.path_of(""), &error);
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let writing = Arc::clone(&shared);
        log.threads.lock().push(named("log-writer").spawn(move || writing.write_on(writer)).map_err(failed)?);
        let making = Arc::clone(&shared);
        log.threads.lock().push(named("log-spare").spawn(move || making.make_spares()).map_err(failed)?);
        Ok(Arc::new(log))
    }
}

impl ChangeLog {
    /// Reserves room for a change with a key and a value of these lengths.
    ///
    /// # Errors
    /// [`LogRefusal`]: nothing is appended.
    #[inline]
    pub fn admit(self: &Arc<Self>, key_bytes: usize, value_bytes: usize) -> Result<LogPermit, LogRefusal> {
        self.admit_bytes(single_unit_bytes(key_bytes, value_bytes))
    }

    /// Reserves room for changes of so many bytes, each counted as [`single_unit_bytes`].
    ///
    /// # Errors
    /// [`LogRefusal`]: nothing is appended.
    #[inline]
    pub fn admit_bytes(self: &Arc<Self>, bytes: u64) -> Result<LogPermit, LogRefusal> {
        let shared = &self.shared;
        if shared.closed.load(Relaxed) {
            return Err(LogRefusal::Closed);
        }
        if shared.is_stalled.load(Relaxed) {
            return Err(LogRefusal::Stalled);
        }
        let held = shared.reserved.fetch_add(bytes, SeqCst) + bytes;
        let permit = LogPermit { log: Arc::clone(self), bytes };
        let held = held + shared.pending.load(SeqCst);
        if held > PENDING_BYTES {
            return Err(LogRefusal::Busy);
        }
        // Two batches are under way at most, each with its padding, and one may begin a segment.
        let frames = held / FRAME_PAYLOAD_BYTES as u64 + 4;
        if held + frames * 2 * BLOCK_BYTES > shared.room.load(SeqCst) {
            let is_full = shared.is_disk_full.load(Relaxed);
            return Err(if is_full { LogRefusal::Full } else { LogRefusal::Busy });
        }
        Ok(permit)
    }

    /// Appends a change; returns the position at which it is on the disk. `is_urgent`: a caller waits for that, as
    /// after [`ChangeLog::request`].
    pub fn append(&self, change: &LoggedChange<'_>, is_urgent: bool) -> u64 {
        self.shared.append(is_urgent, table_bit(change.table), |bytes| encode_single(change, bytes))
    }

    /// Appends a unit, as [`ChangeLog::append`].
    pub fn append_unit(&self, unit: &mut UnitBuilder, is_urgent: bool) -> u64 {
        self.shared.append(is_urgent, unit.tables(), |bytes| bytes.extend_from_slice(unit.encoded()))
    }

    /// Sets the followed tables: followers read their changes from the log as they come. These are gathered for
    /// [`FOLLOWED_GATHER_TIME`] only, which shortens the delay and changes no content.
    pub fn follow_tables(&self, tables: impl IntoIterator<Item = u64>) {
        let bits = tables.into_iter().fold(0, |bits, table| bits | table_bit(table));
        self.shared.followed.store(bits, Relaxed);
    }

    /// Asks for a position to be on the disk: the writer begins as soon as the disk is free.
    pub fn request(&self, position: u64) {
        let shared = &self.shared;
        let position = position & !COPIED_BIT;
        if shared.urgent_end.load(Relaxed) >= position {
            return;
        }
        let mut gathered = shared.gathered.lock();
        shared.urgent_end.fetch_max(position, Relaxed);
        // Else the writer has it in its hands already.
        if position > gathered.end - gathered.bytes.len() as u64 {
            gathered.is_urgent = true;
            shared.writer_wakes.notify_one();
        }
    }

    /// Returns whether all changes up to a position are on the disk; with [`COPIED_BIT`], on the copies' disks, too.
    #[inline]
    pub fn state_of(&self, position: u64) -> PositionState {
        if waits_for_copies(position) {
            let position = position & !COPIED_BIT;
            return match self.state_of(position) {
                PositionState::OnDisk => self.shared.copied.state_of(position),
                state => state,
            };
        }
        // Behind what the caller has just told others, and the writer tells after it has published.
        if self.shared.durable.load(SeqCst) >= position {
            PositionState::OnDisk
        } else if self.shared.closed.load(Relaxed) || self.shared.is_stalled.load(Relaxed) {
            PositionState::Uncertain
        } else {
            PositionState::Waits
        }
    }

    /// Looks whether the disk has been at work on one batch for too long. While it is, changes are refused, and what
    /// waits for the disk is [`PositionState::Uncertain`]. Call it about once a second.
    pub fn look_for_stall(&self) {
        self.look_for_stall_of(STALL_AFTER);
    }

    pub(crate) fn look_for_stall_of(&self, at_least: Duration) {
        let shared = &self.shared;
        let since_ms = shared.busy_since_ms.load(Relaxed);
        let now_ms = shared.made.elapsed().as_millis() as u64;
        if since_ms == 0 || now_ms.saturating_sub(since_ms) < at_least.as_millis() as u64 {
            return;
        }
        if !shared.is_stalled.swap(true, SeqCst) {
            tracing::error!(
                "a write of the log takes longer than {} s: writes to tables with durability are refused, and answers \
                 that wait for the disk say that they do not know, until it has ended",
                at_least.as_secs()
            );
        }
        // Each time: a caller may have begun to wait just before the mark was set.
        if let Some(hook) = shared.hook.get() {
            hook();
        }
    }

    /// The log's number: a log that was begun anew has another one, and other positions.
    pub fn id(&self) -> u64 {
        self.shared.log_id
    }

    /// Returns the position up to which the log is on the disk.
    #[inline]
    pub fn durable(&self) -> u64 {
        self.shared.durable.load(Acquire)
    }

    /// Returns the position behind the last change.
    pub fn end(&self) -> u64 {
        self.shared.gathered.lock().end
    }

    /// Returns the bytes of changes since the last checkpoint began.
    pub fn bytes_since_checkpoint(&self) -> u64 {
        self.end().saturating_sub(self.shared.needed_from.load(Relaxed))
    }

    /// Has `hook` called after the durable position has moved, or the log was closed. Once.
    pub fn on_progress(&self, hook: ProgressHook) {
        let _only_once = self.shared.hook.set(hook);
    }

    /// Returns why the log was closed, if a write has failed.
    pub fn failure(&self) -> Option<&LogError> {
        self.shared.failure.get()
    }

    /// Waits until the log is on the disk up to `position`, with [`COPIED_BIT`] on the copies' disks, too. Returns
    /// whether it is; it is not if the log was closed, or the time was over.
    pub fn wait(&self, position: u64, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        let mut gathered = self.shared.gathered.lock();
        gathered.is_urgent |= !gathered.bytes.is_empty();
        self.shared.writer_wakes.notify_one();
        while self.state_of(position) != PositionState::OnDisk && !self.shared.closed.load(Relaxed) {
            if self.shared.advanced.wait_until(&mut gathered, until).timed_out() {
                break;
            }
        }
        self.state_of(position) == PositionState::OnDisk
    }

    /// Writes what has gathered, and stops. Nothing may be appended any more.
    pub fn close(&self) {
        self.shared.gathered.lock().is_stopping = true;
        self.shared.writer_wakes.notify_one();
        self.shared.spare_wakes.notify_one();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // The hook of its own thread may have had the last reference.
            if thread.thread().id() == std::thread::current().id() {
                continue;
            }
            if thread.join().is_err() {
                tracing::error!("a thread of the log had panicked");
            }
        }
    }

    pub(crate) fn shared(&self) -> &Arc<SharedLog> {
        &self.shared
    }
}

impl Drop for ChangeLog {
    fn drop(&mut self) {
        self.close();
    }
}

impl SharedLog {
    fn append(&self, is_urgent: bool, tables: u64, encode: impl FnOnce(&mut Vec<u8>)) -> u64 {
        let is_followed = self.followed.load(Relaxed) & tables != 0;
        let mut gathered = self.gathered.lock();
        let before = gathered.bytes.len();
        if before == 0 {
            gathered.since = Some(Instant::now());
        }
        encode(&mut gathered.bytes);
        let bytes = (gathered.bytes.len() - before) as u64;
        self.pending.fetch_add(bytes, SeqCst);
        gathered.end += bytes;
        if is_urgent {
            gathered.is_urgent = true;
            self.urgent_end.fetch_max(gathered.end, Relaxed);
            self.writer_wakes.notify_one();
        } else if before == 0
            || is_followed && !gathered.is_followed
            || before < GATHER_BYTES && gathered.bytes.len() >= GATHER_BYTES
        {
            // The time for gathering begins, is shorter from here on, or ends.
            self.writer_wakes.notify_one();
        }
        gathered.is_followed |= is_followed;
        gathered.end
    }

    /// The writer's thread.
    fn write_on(&self, mut writer: SegmentWriter) {
        (self.options.writer_begins)();
        let (mut batch, mut is_sealed) = (Vec::new(), true);
        loop {
            let Some((mut spare, begins_segment)) = self.take_batch(&mut batch, is_sealed) else { return };
            is_sealed = batch.is_empty();
            let had_spare = spare.is_some();
            self.busy_since_ms.store((self.made.elapsed().as_millis() as u64).max(1), Relaxed);
            let begun = if begins_segment { writer.roll(&mut spare) } else { Ok(()) };
            if let Err(error) = begun.and_then(|()| writer.write(&batch, &mut spare)) {
                return self.fail(error);
            }
            self.written(&mut writer, (batch.len(), had_spare), spare);
            batch.clear();
            batch.shrink_to(2 * FRAME_PAYLOAD_BYTES);
        }
    }

    /// Waits for changes, and takes them; nothing of them when it is time for an empty frame. `None`: the log stops.
    /// Returns also whether a new segment is to begin, for which there is a spare one then.
    fn take_batch(&self, batch: &mut Vec<u8>, is_sealed: bool) -> Option<(Option<SpareSegment>, bool)> {
        let mut gathered = self.gathered.lock();
        let begun = Instant::now();
        loop {
            let is_stopping = gathered.is_stopping;
            if gathered.bytes.is_empty() {
                if is_stopping && is_sealed {
                    return None;
                }
                let begins_segment = gathered.begins_segment && gathered.spare.is_some();
                if begins_segment || !is_sealed && (is_stopping || begun.elapsed() >= SEAL_AFTER) {
                    break;
                }
                if is_sealed {
                    // There is nothing to do until the next append, however long that takes.
                    self.writer_wakes.wait(&mut gathered);
                } else {
                    self.writer_wakes.wait_until(&mut gathered, begun + SEAL_AFTER);
                }
                continue;
            }
            let gathers_for = if gathered.is_followed { FOLLOWED_GATHER_TIME } else { self.options.gather_time };
            let until = gathered.since.unwrap_or(begun) + gathers_for;
            let is_enough = gathered.is_urgent || gathered.bytes.len() >= GATHER_BYTES;
            if is_enough || is_stopping || Instant::now() >= until {
                break;
            }
            self.writer_wakes.wait_until(&mut gathered, until);
        }
        std::mem::swap(&mut gathered.bytes, batch);
        (gathered.is_urgent, gathered.is_followed, gathered.since) = (false, false, None);
        let spare = gathered.spare.take();
        let begins_segment = spare.is_some() && std::mem::take(&mut gathered.begins_segment);
        Some((spare, begins_segment))
    }

    /// Has the log go on with a new segment, as soon as there is a spare one.
    pub(crate) fn begin_segment(&self) {
        self.gathered.lock().begins_segment = true;
        self.writer_wakes.notify_one();
    }

    /// Publishes that a batch is on the disk.
    fn written(&self, writer: &mut SegmentWriter, (bytes, had_spare): (usize, bool), spare: Option<SpareSegment>) {
        let begun = writer.take_begun();
        if !begun.is_empty() {
            self.segment.store(writer.number(), Relaxed);
            self.first_positions.lock().extend(begun.iter().copied());
        }
        let mut gathered = self.gathered.lock();
        if !begun.is_empty() {
            // It was asked for while the disk was at work on one.
            gathered.begins_segment = false;
        }
        if had_spare {
            gathered.has_spare = spare.is_some();
            gathered.spare = spare;
        }
        if !gathered.has_spare {
            self.spare_wakes.notify_one();
        }
        let spare_room = if gathered.has_spare { self.options.segment_bytes - BLOCK_BYTES } else { 0 };
        self.room.store(writer.room() + spare_room, SeqCst);
        self.pending.fetch_sub(bytes as u64, SeqCst);
        self.busy_since_ms.store(0, Relaxed);
        if self.is_stalled.swap(false, SeqCst) {
            tracing::warn!("the log's disk has ended its long write: writes are taken again");
        }
        self.durable.store(writer.durable(), SeqCst);
        self.advanced.notify_all();
        drop(gathered);
        if let Some(hook) = self.hook.get() {
            hook();
        }
    }

    /// Closes the log: nothing that was not durable will be.
    fn fail(&self, error: LogError) {
        tracing::error!(
            "{error}. The log is closed: writes to tables with durability are refused, and no answer that waits for \
             the log is sent"
        );
        let _first = self.failure.set(error);
        self.closed.store(true, SeqCst);
        let _gathered = self.gathered.lock();
        self.advanced.notify_all();
        if let Some(hook) = self.hook.get() {
            hook();
        }
    }

    /// Keeps the last frames in memory while copies or tails read them.
    pub(crate) fn want_recent(&self) {
        self.recent.want(|| self.retain_from.load(Relaxed).min(self.ship_from.load(Relaxed)) != u64::MAX);
    }

    /// Wakes the callers that wait for a position, so that they look again.
    pub(crate) fn tell_progress(&self) {
        drop(self.gathered.lock());
        self.advanced.notify_all();
        if let Some(hook) = self.hook.get() {
            hook();
        }
    }

    /// The thread that makes spare segments.
    fn make_spares(&self) {
        let (mut number, mut was_full, mut pause) = (0, false, SPARE_RETRY);
        loop {
            {
                let mut gathered = self.gathered.lock();
                while gathered.has_spare && !gathered.is_stopping {
                    self.spare_wakes.wait(&mut gathered);
                }
                if gathered.is_stopping {
                    return;
                }
            }
            number += 1;
            match make_spare_with_margin(&*self.disk, number, self.options.segment_bytes, &mut pause) {
                Ok(spare) => {
                    let mut gathered = self.gathered.lock();
                    (gathered.spare, gathered.has_spare) = (Some(spare), true);
                    if gathered.begins_segment {
                        self.writer_wakes.notify_one();
                    }
                    let room = self.options.segment_bytes - BLOCK_BYTES;
                    self.room.fetch_add(room, SeqCst);
                    self.is_disk_full.store(false, Relaxed);
                    if std::mem::take(&mut was_full) {
                        tracing::warn!("the log has room on its disk again");
                    }
                }
                Err(error) => {
                    if !std::mem::replace(&mut was_full, true) {
                        tracing::error!(
                            "{error}. Writes to tables with durability are refused once the current segment is full"
                        );
                    }
                    self.is_disk_full.store(true, Relaxed);
                    let mut gathered = self.gathered.lock();
                    // Each batch wakes this thread; the pause is whole nevertheless.
                    let until = Instant::now() + pause;
                    while !gathered.is_stopping && !self.spare_wakes.wait_until(&mut gathered, until).timed_out() {}
                }
            }
        }
    }
}
