//! What a replica has and has promised, without a disk: which pieces it takes, by the same rules as
//! [`crate::ReplicaFolder`]. For replicas whose bytes are elsewhere: in memory, or in messages that are kept in order.

use std::collections::BTreeMap;

use crate::broken_rules::{ReplicaRule, is_replica_broken};
use crate::frame::{FRAME_HEADER_BYTES, FileHeader, FileKind, FrameHeader, FramePlace, frame_bytes};
use crate::limits::BLOCK_BYTES;
use crate::replica::{ReplicaError, ReplicaFileState, ReplicaState};
use crate::replica_format::{BatchItem, ReplicaBatch};

/// A file of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LedgerFile {
    state: ReplicaFileState,
    /// Whether a checkpoint's last frame is there.
    is_whole: bool,
    /// Its bytes, if the ledger keeps them.
    bytes: Vec<u8>,
    /// The mark at which it was begun.
    mark: u64,
}

/// The files of a kind: those that have their names, and those that are begun.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LedgerFiles {
    published: BTreeMap<u64, LedgerFile>,
    begun: BTreeMap<u64, LedgerFile>,
}

/// See the head of this file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaLedger {
    log_id: u64,
    epoch: u64,
    is_sealed: bool,
    keeps_bytes: bool,
    mark: u64,
    segments: LedgerFiles,
    checkpoints: LedgerFiles,
}

fn gap<T>(what: String) -> Result<T, ReplicaError> {
    Err(ReplicaError::Gap(what))
}

impl ReplicaLedger {
    /// One that keeps the bytes of the files, too.
    pub fn with_bytes() -> ReplicaLedger {
        ReplicaLedger { keeps_bytes: true, ..ReplicaLedger::default() }
    }

    fn files(&mut self, kind: FileKind) -> &mut LedgerFiles {
        match kind {
            FileKind::Segment => &mut self.segments,
            FileKind::Checkpoint => &mut self.checkpoints,
        }
    }

    /// Whether pieces of an epoch may be taken. From here on none of an earlier one are.
    ///
    /// # Errors
    /// [`ReplicaError::Sealed`], [`ReplicaError::OldEpoch`].
    pub fn enter(&mut self, epoch: u64) -> Result<(), ReplicaError> {
        if self.is_sealed && !is_replica_broken(ReplicaRule::SealsAreForGood) {
            return Err(ReplicaError::Sealed);
        }
        if epoch < self.epoch && !is_replica_broken(ReplicaRule::EarlierEpochsAreRefused) {
            return Err(ReplicaError::OldEpoch(self.epoch));
        }
        self.epoch = self.epoch.max(epoch);
        Ok(())
    }

    /// Returns what it has, to a sender that comes anew: files that were begun by an earlier one are begun again.
    pub fn told(&mut self) -> ReplicaState {
        self.segments.begun.clear();
        self.checkpoints.begun.clear();
        let all = self.segments.published.values().chain(self.checkpoints.published.values());
        ReplicaState { log_id: self.log_id, files: all.map(|found| found.state).collect() }
    }

    /// Sets the mark that files have which are begun from here on: where the message is that has their beginning.
    pub fn set_mark(&mut self, mark: u64) {
        self.mark = mark;
    }

    /// Returns the least mark of the files that are there: what is before it is needed no more. `None`: there are none.
    pub fn least_mark(&self) -> Option<u64> {
        let kinds = [&self.segments, &self.checkpoints];
        kinds
            .into_iter()
            .flat_map(|files| files.published.values().chain(files.begun.values()))
            .map(|found| found.mark)
            .min()
    }

    /// Returns the bytes of its files, about.
    pub fn bytes(&self) -> u64 {
        let kinds = [&self.segments, &self.checkpoints];
        let files = kinds.into_iter().flat_map(|files| files.published.values().chain(files.begun.values()));
        files.map(|found| found.state.offset).sum()
    }

    /// Returns whether it has a whole checkpoint.
    pub fn has_checkpoint(&self) -> bool {
        !self.checkpoints.published.is_empty()
    }

    /// Takes pieces of a log whose beginning was removed, and returns those that count: others are of files that were
    /// removed with it.
    ///
    /// # Errors
    /// [`ReplicaError::Gap`].
    pub fn take_known(&mut self, batch: &ReplicaBatch) -> Result<ReplicaBatch, ReplicaError> {
        let mut known = ReplicaBatch::default();
        for item in batch.items() {
            match item {
                Some(BatchItem::Begin(header)) => {
                    self.begin(&header)?;
                    known.begin(&header);
                }
                Some(BatchItem::Frame { kind, number, offset, bytes }) if self.knows(kind, number) => {
                    self.frame((kind, number), offset, bytes)?;
                    known.frame((kind, number), offset, bytes);
                }
                Some(BatchItem::Publish(kind, number)) if self.knows(kind, number) => {
                    self.publish(kind, number)?;
                    known.publish(kind, number);
                }
                Some(_) => {}
                None => return gap("a piece is malformed".to_owned()),
            }
        }
        Ok(known)
    }

    fn knows(&mut self, kind: FileKind, number: u64) -> bool {
        let files = self.files(kind);
        files.begun.contains_key(&number) || files.published.contains_key(&number)
    }

    /// Takes pieces in their order.
    ///
    /// # Errors
    /// [`ReplicaError::Gap`]; those before it are taken.
    pub fn take(&mut self, batch: &ReplicaBatch) -> Result<(), ReplicaError> {
        for item in batch.items() {
            match item {
                Some(BatchItem::Begin(header)) => self.begin(&header)?,
                Some(BatchItem::Frame { kind, number, offset, bytes }) => self.frame((kind, number), offset, bytes)?,
                Some(BatchItem::Publish(kind, number)) => self.publish(kind, number)?,
                None => return gap("a piece is malformed".to_owned()),
            }
        }
        Ok(())
    }

    fn begin(&mut self, header: &FileHeader) -> Result<(), ReplicaError> {
        let FileHeader { kind, number, log_id, .. } = *header;
        if self.log_id != 0 && self.log_id != log_id {
            return gap("it is of another log".to_owned());
        }
        self.log_id = log_id;
        let last = self.files(kind).published.last_key_value().map(|(number, _)| *number);
        let follows = match kind {
            FileKind::Segment => last.is_none_or(|last| number == last || number == last + 1),
            FileKind::Checkpoint => last.is_none_or(|last| number > last),
        };
        if !follows {
            return gap(format!("{} does not follow its files", kind.file_name(number)));
        }
        // As in a folder: what follows would go into a file without a name.
        if self.files(kind).published.get(&number).is_some_and(|known| known.state.header == *header)
            && !is_replica_broken(ReplicaRule::ReplacementsEndNoEarlier)
        {
            return gap(format!("{} is there already", kind.file_name(number)));
        }
        let position = if kind == FileKind::Segment { header.first_position } else { 0 };
        let bytes = if self.keeps_bytes { header.encode() } else { Vec::new() };
        let state = ReplicaFileState { header: *header, offset: BLOCK_BYTES, position };
        let mark = self.mark;
        self.files(kind).begun.insert(number, LedgerFile { state, is_whole: false, bytes, mark });
        Ok(())
    }

    fn frame(&mut self, (kind, number): (FileKind, u64), offset: u64, bytes: &[u8]) -> Result<(), ReplicaError> {
        let (log_id, keeps_bytes) = (self.log_id, self.keeps_bytes);
        let refused = |what: &str| gap(format!("{what} at byte {offset} of file {number}"));
        let files = self.files(kind);
        let is_last = files.published.last_key_value().is_some_and(|(last, _)| *last == number);
        let found = match files.begun.get_mut(&number) {
            Some(begun) => begun,
            None if is_last && kind == FileKind::Segment => match files.published.get_mut(&number) {
                Some(published) => published,
                None => return refused("it writes no such file"),
            },
            None => return refused("it writes no such file"),
        };
        let place = FramePlace { kind, log_id, number, offset };
        let frame = FrameHeader::decode(bytes, &place).filter(|_| FrameHeader::is_intact(bytes, kind));
        let Some(frame) = frame.filter(|frame| bytes.len() == FRAME_HEADER_BYTES + frame.payload_bytes as usize) else {
            return refused("there is no intact frame");
        };
        let follows = (found.state.offset, found.state.position) == (offset, frame.position) && !found.is_whole;
        if !follows && !is_replica_broken(ReplicaRule::FramesFollow) {
            return refused("the frame does not follow what it has");
        }
        let whole = frame_bytes(frame.payload_bytes as usize);
        if keeps_bytes {
            let end = found.bytes.len() + whole as usize;
            found.bytes.extend_from_slice(bytes);
            found.bytes.resize(end, 0);
        }
        found.is_whole = frame.is_last;
        found.state.offset += whole;
        found.state.position += u64::from(frame.payload_bytes);
        Ok(())
    }

    fn publish(&mut self, kind: FileKind, number: u64) -> Result<(), ReplicaError> {
        let files = self.files(kind);
        let Some(begun) = files.begun.get(&number) else {
            return gap(format!("file {number} was not begun"));
        };
        if kind == FileKind::Checkpoint && !begun.is_whole {
            return gap(format!("checkpoint {number} is not whole"));
        }
        let (header, ends_at) = (begun.state.header, begun.state.position);
        let is_shorter = |earlier: &LedgerFile| earlier.state.header == header && ends_at < earlier.state.position;
        if files.published.get(&number).is_some_and(is_shorter)
            && !is_replica_broken(ReplicaRule::ReplacementsEndNoEarlier)
        {
            files.begun.remove(&number);
            return gap(format!("file {number} ends earlier than it did"));
        }
        if let Some(begun) = files.begun.remove(&number) {
            files.published.insert(number, begun);
        }
        Ok(())
    }

    /// Removes what a whole checkpoint makes superfluous.
    ///
    /// # Errors
    /// [`ReplicaError::Gap`]: what is to stay is not there.
    pub fn trim(&mut self, checkpoint: u64, segment: u64) -> Result<(), ReplicaError> {
        let first_position = |files: &LedgerFiles, number| {
            files.published.get(&number).map(|found: &LedgerFile| found.state.header.first_position)
        };
        let holds_from = first_position(&self.checkpoints, checkpoint);
        let first = first_position(&self.segments, segment);
        let stays = matches!((holds_from, first), (Some(from), Some(first)) if first <= from);
        if !stays && !is_replica_broken(ReplicaRule::TrimsLeaveACheckpoint) {
            return gap("what is to stay is not there".to_owned());
        }
        self.checkpoints.published.retain(|number, _| *number >= checkpoint);
        self.segments.published.retain(|number, _| *number >= segment);
        Ok(())
    }

    /// Takes nothing any more.
    pub fn seal(&mut self) {
        self.is_sealed = true;
    }

    /// Returns whether it is sealed.
    pub fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    /// Returns the epoch before which it takes nothing.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the names and bytes of the files that have their names, if it keeps them.
    pub fn contents(&self) -> impl Iterator<Item = (String, &[u8])> {
        let all = self.segments.published.iter().chain(&self.checkpoints.published);
        all.map(|(number, found)| (found.state.header.kind.file_name(*number), found.bytes.as_slice()))
    }
}
