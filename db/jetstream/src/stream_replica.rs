//! A replica in a stream: each message is a step of it, so a reader of all knows what it has, and its bytes.
//!
//! A message is added behind the one that its sender has read last, or not at all. So a sender knows all that was taken
//! before its own message, and what is taken is decided by the stream alone: nothing of an earlier epoch comes behind
//! the message that begins a later one, and nothing at all behind the seal. A message whose answer was lost may come
//! late: then its place is taken, or no other sender has added anything.

use std::sync::Arc;

use sandstorm_log::disk::LogDisk;
use sandstorm_log::{
    ChangeVisitor, LogError, LogReplica, ReplaySummary, ReplicaBatch, ReplicaError, ReplicaFolder, ReplicaLedger,
    ReplicaState,
};

use crate::broken_rules::{StreamRule, is_broken};
use crate::limits::{
    BATCH_BYTES, PART_BYTES, PART_MARGIN_BYTES, QUESTION_BYTES, RACE_TRIES, STAGING_FREE_BYTES, WORN_BYTES,
};
use crate::staging_disk::StagingDisk;
use crate::stream_message::{MessageHead, MessageKind, decode_trim, encode_trim};
use crate::stream_store::{StreamBounds, StreamError, StreamStore};

/// Makes an empty folder, into which a replica is written before it is read.
pub type StagingFolder = Box<dyn FnMut() -> Result<Arc<dyn LogDisk>, LogError> + Send>;

/// A batch of which not all parts were read yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PartialBatch {
    /// The sequence of its first part.
    first: u64,
    writer: u64,
    next: u32,
    bytes: Vec<u8>,
}

/// What the messages up to one of them come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ReplicaProgress {
    ledger: ReplicaLedger,
    /// The sequence of the last message, and its checksum; `None` as checksum: that message was not read.
    applied: u64,
    chain: Option<u32>,
    /// Whether the stream's beginning was removed before it was read.
    is_cut: bool,
    partial: Option<PartialBatch>,
    /// Questions since the last trim: messages that stay, and have nothing of the log.
    questions: u64,
}

/// What a message was.
enum StreamStep {
    /// Nothing that a folder would have.
    Nothing,
    /// A sender came anew: what was begun, and has no name yet, is begun again.
    Entered,
    /// The end of a batch: the pieces of it that count.
    Pieces(ReplicaBatch),
}

/// See the head of this file.
pub struct StreamReplica<S> {
    store: S,
    staging: StagingFolder,
    writer: u64,
    /// Messages that were made: each has an id of its own, also where two of them are for one place.
    made: u64,
    progress: ReplicaProgress,
    /// Whether more may be in the stream than was read.
    is_behind: bool,
    /// The last message that the stream has told of.
    ends_at: u64,
}

impl<S> std::fmt::Debug for StreamReplica<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamReplica").field("applied", &self.progress.applied).finish_non_exhaustive()
    }
}

/// Why a message was not added.
enum NotAdded {
    /// Another one was before: what it says is to be read.
    Forestalled,
    Failed(ReplicaError),
}

impl ReplicaProgress {
    /// Makes the step that a message is.
    fn apply(&mut self, sequence: u64, bytes: &[u8]) -> Result<StreamStep, String> {
        let (head, payload, crc) = MessageHead::decode(bytes).map_err(|why| format!("message {sequence}: {why}"))?;
        let wrong = |why: &str| Err(format!("message {sequence}: {why}"));
        if head.behind + 1 != sequence {
            return wrong("it was written for another place");
        }
        if self.chain.is_some_and(|chain| chain != head.chain) || self.applied != 0 && self.applied + 1 != sequence {
            return wrong("it does not follow the message before");
        }
        (self.applied, self.chain) = (sequence, Some(crc));
        if head.kind != MessageKind::Pieces {
            // A batch of which not all parts were added counts for nothing.
            self.partial = None;
        }
        let refused = |error: ReplicaError| format!("message {sequence}: {error}");
        if head.kind != MessageKind::Seal {
            self.ledger.enter(head.epoch).map_err(refused)?;
        }
        match head.kind {
            MessageKind::Question => {
                self.questions += 1;
                Ok(StreamStep::Nothing)
            }
            MessageKind::Enter => {
                let _told = self.ledger.told();
                Ok(StreamStep::Entered)
            }
            MessageKind::Seal => {
                self.ledger.seal();
                Ok(StreamStep::Nothing)
            }
            MessageKind::Trim => {
                let Some((checkpoint, segment)) = decode_trim(payload) else {
                    return wrong("it is no trim");
                };
                // What is before the oldest file that stays is purged then.
                self.questions = 0;
                match self.ledger.trim(checkpoint, segment) {
                    // What it has left was removed by a later one, with what was before.
                    Err(_) if self.is_cut => Ok(StreamStep::Nothing),
                    trimmed => trimmed.map(|()| StreamStep::Nothing).map_err(refused),
                }
            }
            MessageKind::Pieces => self.apply_part(sequence, &head, payload).map_err(refused),
        }
    }

    fn apply_part(&mut self, sequence: u64, head: &MessageHead, payload: &[u8]) -> Result<StreamStep, ReplicaError> {
        if head.part == 0 {
            let first = PartialBatch { first: sequence, writer: head.writer, next: 0, bytes: Vec::new() };
            self.partial = Some(first);
        }
        // The rest of a batch whose beginning was removed counts for nothing.
        let Some(mut partial) = self.partial.take() else {
            return Ok(StreamStep::Nothing);
        };
        if partial.next != head.part || partial.writer != head.writer {
            return Err(ReplicaError::Gap("a part of a batch is missing before it".to_owned()));
        }
        if partial.bytes.len() + payload.len() > BATCH_BYTES {
            return Err(ReplicaError::Gap("a batch is too long".to_owned()));
        }
        partial.bytes.extend_from_slice(payload);
        partial.next += 1;
        if partial.next < head.parts {
            self.partial = Some(partial);
            return Ok(StreamStep::Nothing);
        }
        let batch = ReplicaBatch::decode(&partial.bytes);
        let batch = batch.ok_or_else(|| ReplicaError::Gap("a batch is damaged".to_owned()))?;
        self.ledger.set_mark(partial.first);
        if self.is_cut {
            return self.ledger.take_known(&batch).map(StreamStep::Pieces);
        }
        self.ledger.take(&batch)?;
        Ok(StreamStep::Pieces(batch))
    }
}

impl<S: StreamStore> StreamReplica<S> {
    /// One in a stream that is there. A replica that is read is written to a `staging` folder first.
    pub fn new(store: S, staging: StagingFolder) -> StreamReplica<S> {
        let progress = ReplicaProgress::default();
        let (writer, made, is_behind, ends_at) = (rand::random(), 0, true, 0);
        StreamReplica { store, staging, writer, made, progress, is_behind, ends_at }
    }

    /// Returns the stream.
    pub fn store(&mut self) -> &mut S {
        &mut self.store
    }

    /// Returns whether the stream has so many questions, beside its log, that another one is to take its place: a
    /// stream of a server on which nothing is written would grow for ever.
    pub fn is_worn(&self) -> bool {
        let asked = self.progress.questions.saturating_mul(QUESTION_BYTES);
        asked >= WORN_BYTES.max(self.progress.ledger.bytes() / 2)
    }

    /// Reads what is in the stream behind what was read.
    fn catch_up(&mut self) -> Result<(), ReplicaError> {
        let bounds = self.store.bounds()?;
        self.ends_at = bounds.last;
        let next = self.progress.applied + 1;
        if bounds.first > next {
            // Its beginning was removed, or what comes next was.
            self.progress = ReplicaProgress { is_cut: bounds.first > 1, ..ReplicaProgress::default() };
        }
        let from = bounds.first.max(self.progress.applied + 1);
        if bounds.last >= from {
            let progress = &mut self.progress;
            let visit = &mut |sequence: u64, bytes: &[u8]| progress.apply(sequence, bytes).map(drop);
            self.store.read(from, bounds.last, visit).map_err(|error| match error {
                StreamError::Refused(why) => ReplicaError::Damaged(why),
                error => error.into(),
            })?;
        } else if self.progress.applied == 0 {
            // All of it was removed, or there was nothing yet.
            self.progress.applied = bounds.last;
        }
        self.check_whole(bounds)?;
        self.is_behind = false;
        Ok(())
    }

    /// A stream whose beginning is gone has a checkpoint, unless another program has removed it.
    fn check_whole(&self, bounds: StreamBounds) -> Result<(), ReplicaError> {
        match bounds.first > 1 && !self.progress.ledger.has_checkpoint() {
            true => Err(ReplicaError::Damaged(format!(
                "the stream begins with message {}, and no checkpoint is behind it: somebody has purged it",
                bounds.first
            ))),
            false => Ok(()),
        }
    }

    /// Adds a message behind the last one that was read.
    fn add(
        &mut self,
        kind: MessageKind,
        epoch: u64,
        (part, parts): (u32, u32),
        payload: &[u8],
    ) -> Result<(), NotAdded> {
        let (behind, writer) = (self.progress.applied, self.writer);
        let chain = self.progress.chain.unwrap_or_default();
        let (bytes, _) = MessageHead { kind, epoch, writer, behind, part, parts, chain }.encode(payload);
        // Not the place alone: where an attempt without an answer was taken, and another message follows for the same
        // place, JetStream would answer that this one is there.
        self.made += 1;
        let id = format!("{writer:016x}-{}", self.made);
        let compared = match is_broken(StreamRule::MessagesAreCompared) {
            true => self.store.bounds().map_or(behind, |bounds| bounds.last),
            false => behind,
        };
        let added = self.store.publish(compared, &id, &bytes);
        match added {
            Ok(sequence) if sequence == behind + 1 => {}
            // An earlier attempt may have been taken, and its answer lost.
            Ok(_) | Err(StreamError::OtherSequence | StreamError::NoAnswer(_)) => {
                self.is_behind = true;
                if !self.is_there(behind + 1, &bytes) {
                    return Err(match added {
                        Err(error @ StreamError::NoAnswer(_)) => NotAdded::Failed(error.into()),
                        _ => NotAdded::Forestalled,
                    });
                }
                self.is_behind = false;
            }
            Err(error) => return Err(NotAdded::Failed(error.into())),
        }
        let applied = self.progress.apply(behind + 1, &bytes);
        applied.map(drop).map_err(|why| NotAdded::Failed(ReplicaError::Damaged(why)))
    }

    /// Whether a message is what was sent.
    fn is_there(&mut self, sequence: u64, bytes: &[u8]) -> bool {
        let mut is_same = false;
        let read = self.store.read(sequence, sequence, &mut |_, found| {
            is_same = found == bytes;
            Ok(())
        });
        read.is_ok() && is_same
    }

    /// Adds a message that may come behind any other one, if the epoch may.
    fn add_anywhere(&mut self, kind: MessageKind, epoch: u64) -> Result<(), ReplicaError> {
        for _ in 0..RACE_TRIES {
            if self.is_behind {
                self.catch_up()?;
            }
            match kind {
                MessageKind::Seal if self.progress.ledger.is_sealed() => return Ok(()),
                MessageKind::Seal => {}
                _ => self.progress.ledger.clone().enter(epoch)?,
            }
            match self.add(kind, epoch, (0, 1), b"") {
                Ok(()) => return Ok(()),
                Err(NotAdded::Forestalled) => {}
                Err(NotAdded::Failed(error)) => return Err(error),
            }
        }
        Err(self.outrun())
    }

    /// Why a message is never the next one.
    fn outrun(&mut self) -> ReplicaError {
        let (ends_at, applied) = (self.ends_at, self.progress.applied);
        match ends_at < applied {
            true => {
                // What was read does not hold any more: the next question reads what there is.
                (self.progress, self.is_behind) = (ReplicaProgress::default(), true);
                let why = format!("it ends with message {ends_at}, though {applied} had been taken: messages are lost");
                ReplicaError::Log(LogError::unusable("the stream", &why))
            }
            false => ReplicaError::Gap("another sender was faster".to_owned()),
        }
    }

    /// Has read what is in the stream, and checks whether the epoch may take more.
    fn enter(&mut self, epoch: u64) -> Result<(), ReplicaError> {
        if self.is_behind {
            // What was taken since may be what was sent without an answer: the sender has to ask what is there.
            let before = self.progress.applied;
            self.catch_up()?;
            self.progress.ledger.clone().enter(epoch)?;
            if self.progress.applied != before {
                return Err(ReplicaError::Gap("more was taken than this sender knows of".to_owned()));
            }
        }
        self.progress.ledger.clone().enter(epoch)
    }

    /// A message was forestalled: says why.
    fn forestalled(&mut self, epoch: u64) -> ReplicaError {
        let found = self.catch_up().and_then(|()| self.progress.ledger.clone().enter(epoch));
        match found {
            Err(error) => error,
            Ok(()) => self.outrun(),
        }
    }

    /// Bytes of a part of a batch.
    fn part_bytes(&self) -> usize {
        self.store.message_bytes().saturating_sub(PART_MARGIN_BYTES).clamp(PART_MARGIN_BYTES, PART_BYTES)
    }

    /// Writes all that the stream has to an empty folder, as a copy there would have it. What is written is not waited
    /// for: the folder is read once, and the stream stays.
    ///
    /// # Errors
    /// [`ReplicaError`].
    fn write_to(&mut self, disk: Arc<dyn LogDisk>) -> Result<ReplicaFolder, ReplicaError> {
        self.catch_up()?;
        let bounds = self.store.bounds()?;
        let (from, to) = (bounds.first, self.progress.applied);
        let mut folder = ReplicaFolder::open(Arc::new(StagingDisk::new(Arc::clone(&disk))))?;
        let mut free_bytes = u64::MAX;
        let mut progress = ReplicaProgress { is_cut: from > 1, ..ReplicaProgress::default() };
        let visit = &mut |sequence: u64, bytes: &[u8]| {
            let step = progress.apply(sequence, bytes)?;
            let epoch = progress.ledger.epoch();
            let done = match step {
                StreamStep::Nothing => return Ok(()),
                StreamStep::Entered => folder.state(epoch).map(drop),
                StreamStep::Pieces(batch) => {
                    free_bytes = disk.free_bytes().unwrap_or(u64::MAX);
                    if free_bytes < STAGING_FREE_BYTES {
                        return Err("no room".to_owned());
                    }
                    folder.append(epoch, &batch)
                }
            };
            done.map_err(|error| format!("message {sequence}: {error}"))
        };
        if to >= from {
            let read = self.store.read(from, to, visit);
            if free_bytes < STAGING_FREE_BYTES {
                let [free, stays_free] = [free_bytes, STAGING_FREE_BYTES].map(|bytes| bytes >> 20);
                let why = format!("{free} MiB are free to read a stream into, and {stays_free} MiB have to stay");
                return Err(ReplicaError::Full(why));
            }
            read.map_err(|error| match error {
                StreamError::Refused(why) => ReplicaError::Damaged(why),
                error => error.into(),
            })?;
        }
        self.check_whole(bounds)?;
        Ok(folder)
    }
}

impl<S: StreamStore> StreamReplica<S> {
    /// Returns all that the stream has, which is sealed, as a copy in a staging folder: it is read as often as it is
    /// needed.
    ///
    /// # Errors
    /// [`ReplicaError`]; [`ReplicaError::Gap`]: the seal is not there, or not known yet to the server that was asked.
    pub fn stage(&mut self) -> Result<ReplicaFolder, ReplicaError> {
        self.catch_up()?;
        if !self.progress.ledger.is_sealed() {
            return Err(ReplicaError::Gap("its end was not shown, which is the seal".to_owned()));
        }
        let disk = (self.staging)()?;
        self.write_to(disk)
    }
}

impl<S: StreamStore> LogReplica for StreamReplica<S> {
    fn state(&mut self, epoch: u64) -> Result<ReplicaState, ReplicaError> {
        self.is_behind = true;
        self.add_anywhere(MessageKind::Enter, epoch)?;
        Ok(self.progress.ledger.told())
    }

    fn append(&mut self, epoch: u64, batch: &ReplicaBatch) -> Result<(), ReplicaError> {
        if batch.is_empty() {
            return self.add_anywhere(MessageKind::Question, epoch);
        }
        self.enter(epoch)?;
        // Nothing is sent that would not be taken.
        self.progress.ledger.clone().take(batch)?;
        let bytes = batch.encode();
        let most = self.part_bytes();
        let parts = bytes.len().div_ceil(most) as u32;
        for (part, payload) in bytes.chunks(most).enumerate() {
            match self.add(MessageKind::Pieces, epoch, (part as u32, parts), payload) {
                Ok(()) => {}
                Err(NotAdded::Forestalled) => return Err(self.forestalled(epoch)),
                Err(NotAdded::Failed(error)) => return Err(error),
            }
        }
        Ok(())
    }

    fn trim(&mut self, epoch: u64, checkpoint: u64, segment: u64) -> Result<(), ReplicaError> {
        self.enter(epoch)?;
        self.progress.ledger.clone().trim(checkpoint, segment)?;
        match self.add(MessageKind::Trim, epoch, (0, 1), &encode_trim(checkpoint, segment)) {
            Ok(()) => {}
            Err(NotAdded::Forestalled) => return Err(self.forestalled(epoch)),
            Err(NotAdded::Failed(error)) => return Err(error),
        }
        let needed = self.progress.ledger.least_mark();
        let before = if is_broken(StreamRule::PurgesLeaveWhatIsNeeded) { Some(self.progress.applied) } else { needed };
        if let Some(before) = before
            && let Err(error) = self.store.purge_before(before)
        {
            // The next one removes it.
            tracing::info!("what a checkpoint makes superfluous stays in the stream until the next one: {error}");
        }
        Ok(())
    }

    fn seal(&mut self) -> Result<(), ReplicaError> {
        self.is_behind = true;
        self.add_anywhere(MessageKind::Seal, 0)
    }

    fn read(&mut self, visit: &mut ChangeVisitor<'_>) -> Result<ReplaySummary, ReplicaError> {
        let disk = (self.staging)()?;
        self.write_to(disk)?.read(visit)
    }
}
