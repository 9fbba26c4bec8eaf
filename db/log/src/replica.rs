//! A replica: the copy of another server's log, file by file, as that server has them. What recovers a log reads a
//! replica.
//!
//! It takes pieces of an epoch, and none of an earlier one. Once it is *sealed* it takes nothing any more: so the
//! server that seals it has everything that it ever confirmed. Both promises are on its disk before it answers.
//! What was confirmed is on the disk; a write or sync that fails is never repeated, and ends the replica.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::broken_rules::{ReplicaRule, is_replica_broken};
use crate::disk::{LogDisk, LogFile};
use crate::error::LogError;
use crate::file_reader::{FrameRead, LogFileReader};
use crate::frame::{FRAME_HEADER_BYTES, FileHeader, FileKind, FrameHeader, FramePlace, frame_bytes};
use crate::limits::BLOCK_BYTES;
use crate::recovery::{ChangeVisitor, LogFileNumbers, ReplaySummary, read_log};
use crate::replica_file::{BATCH_PAYLOAD_BYTES, ReplicaFile};
use crate::replica_format::{BatchItem, PROMISE_FILE, ReplicaBatch, ReplicaPromise};
use crate::segment_writer::NEW_PREFIX;

/// Why a replica has not taken something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaError {
    /// It is sealed: another server takes the owner's place, or has.
    #[error("the copy is sealed, and takes nothing any more")]
    Sealed,
    /// It was asked in a later epoch before.
    #[error("the copy has promised to take nothing of an epoch before {0}")]
    OldEpoch(u64),
    /// There is no such copy, or not any more: another one has to be made.
    #[error("the copy is not there")]
    Missing,
    /// The pieces do not follow what it has: its state says what does.
    #[error("the copy has something else: {0}")]
    Gap(String),
    /// A file of it is damaged: it has not all that it has confirmed, and another one has to be made.
    #[error("the copy is damaged: {0}")]
    Damaged(String),
    /// Its disk is nearly full: it has what it had, and takes no more as long as that is so.
    #[error("the disk of the copy is nearly full: {0}")]
    Full(String),
    /// A write or sync has failed, or a file is damaged: the replica is at its end.
    #[error(transparent)]
    Log(#[from] LogError),
}

/// A file of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaFileState {
    /// Its header.
    pub header: FileHeader,
    /// The offset behind its last frame.
    pub offset: u64,
    /// The position behind its last frame.
    pub position: u64,
}

/// What a replica has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaState {
    /// The log of which it is one; 0: of none yet.
    pub log_id: u64,
    /// Its segments, then its whole checkpoints, each in the order of their numbers.
    pub files: Vec<ReplicaFileState>,
}

/// The copy of a log, wherever it is. What holds of each implementation is in `replica_suite`. A missing answer says
/// nothing: the sender asks for the state next.
pub trait LogReplica {
    /// Returns what it has, to a sender that comes anew: files that an earlier one has begun, and that have no names
    /// yet, are begun again.
    ///
    /// # Errors
    /// [`ReplicaError`].
    fn state(&mut self, epoch: u64) -> Result<ReplicaState, ReplicaError>;

    /// Takes pieces: they are on its disk when this returns. Nothing at all is a question whether it would.
    ///
    /// # Errors
    /// [`ReplicaError`]; some of the pieces may have been taken.
    fn append(&mut self, epoch: u64, batch: &ReplicaBatch) -> Result<(), ReplicaError>;

    /// Removes what a whole checkpoint makes superfluous: earlier checkpoints, and the segments before one.
    ///
    /// # Errors
    /// [`ReplicaError`].
    fn trim(&mut self, epoch: u64, checkpoint: u64, segment: u64) -> Result<(), ReplicaError>;

    /// Takes nothing any more, for good. Again: nothing happens.
    ///
    /// # Errors
    /// [`ReplicaError`]: whether it is sealed is not known.
    fn seal(&mut self) -> Result<(), ReplicaError>;

    /// Shows each change, as a recovery does. Only of a sealed one is this all that it ever confirmed.
    ///
    /// # Errors
    /// [`ReplicaError`]: damage, among others.
    fn read(&mut self, visit: &mut ChangeVisitor<'_>) -> Result<ReplaySummary, ReplicaError>;
}

type ReplicaFiles = BTreeMap<u64, ReplicaFile>;

/// A replica in a folder. The process that opens it has the folder to itself.
pub struct ReplicaFolder {
    disk: Arc<dyn LogDisk>,
    promise: ReplicaPromise,
    segments: ReplicaFiles,
    checkpoints: ReplicaFiles,
    /// Files without their names yet.
    new_segments: ReplicaFiles,
    new_checkpoints: ReplicaFiles,
    /// Why nothing can be written any more.
    failure: Option<LogError>,
}

fn new_name(kind: FileKind, number: u64) -> String {
    format!("{NEW_PREFIX}{}", kind.file_name(number))
}

impl ReplicaFolder {
    /// Opens a replica, or begins one in an empty folder. What an earlier process may not have had on the disk is
    /// written again. Damage that cannot come from a stop of the machine is refused; of a sealed one it is found when
    /// it is read.
    ///
    /// # Errors
    /// [`LogError`].
    pub fn open(disk: Arc<dyn LogDisk>) -> Result<ReplicaFolder, LogError> {
        let names = LogFileNumbers::list(&*disk)?;
        let (segments, checkpoints) = (BTreeMap::new(), BTreeMap::new());
        let (new_segments, new_checkpoints, failure) = (BTreeMap::new(), BTreeMap::new(), None);
        let promise = ReplicaPromise::default();
        let mut replica =
            ReplicaFolder { disk, promise, segments, checkpoints, new_segments, new_checkpoints, failure };
        match replica.read_promise()? {
            Some(promise) => replica.promise = promise,
            None if names.segments.is_empty() && names.checkpoints.is_empty() => {}
            None => {
                let path = replica.disk.path_of(PROMISE_FILE);
                return Err(LogError::damaged(&path, 0, "it is not there, though there are files of a copy"));
            }
        }
        replica.remove_all(names.unfinished)?;
        for (kind, numbers) in [(FileKind::Checkpoint, names.checkpoints), (FileKind::Segment, names.segments)] {
            for number in numbers {
                let found = replica.look_at(kind, number)?;
                replica.files(kind).insert(number, found);
            }
        }
        if !replica.promise.is_sealed {
            replica.check_damage()?;
            replica.write_last_again()?;
        }
        Ok(replica)
    }

    /// Reads the promise on the disk; `None`: there is none.
    fn read_promise(&self) -> Result<Option<ReplicaPromise>, LogError> {
        let path = self.disk.path_of(PROMISE_FILE);
        let failed = |error| LogError::system("read", path.clone(), &error);
        let file = match self.disk.open(PROMISE_FILE) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        file.forget_cached();
        let mut bytes = vec![0; file.bytes().map_err(failed)?.min(BLOCK_BYTES) as usize];
        let read = file.read_at(0, &mut bytes).map_err(failed)?;
        ReplicaPromise::decode(bytes.get(..read).unwrap_or_default(), &path).map(Some)
    }

    fn files(&mut self, kind: FileKind) -> &mut ReplicaFiles {
        match kind {
            FileKind::Segment => &mut self.segments,
            FileKind::Checkpoint => &mut self.checkpoints,
        }
    }

    fn new_files(&mut self, kind: FileKind) -> &mut ReplicaFiles {
        match kind {
            FileKind::Segment => &mut self.new_segments,
            FileKind::Checkpoint => &mut self.new_checkpoints,
        }
    }

    fn failed(&self, action: &'static str, name: &str, error: &std::io::Error) -> LogError {
        LogError::system(action, self.disk.path_of(name), error)
    }

    fn remove_all(&self, names: impl IntoIterator<Item = String>) -> Result<(), LogError> {
        let remove = |name: String| self.disk.remove(&name).map_err(|error| self.failed("remove", &name, &error));
        names.into_iter().try_for_each(remove)
    }

    /// Finds the end of a file.
    fn look_at(&self, kind: FileKind, number: u64) -> Result<ReplicaFile, LogError> {
        let mut reader = LogFileReader::open(&*self.disk, kind, number)?;
        let header = reader.header;
        let mut position = if kind == FileKind::Segment { header.first_position } else { 0 };
        let mut is_whole = false;
        while let FrameRead::Frame(frame, _) = reader.next_frame(position)? {
            position += u64::from(frame.payload_bytes);
            is_whole = frame.is_last;
        }
        let mut found = ReplicaFile::new(header, None, reader.offset, position);
        found.is_whole = is_whole;
        Ok(found)
    }

    /// Refuses damage of what was on the disk before an answer. A checkpoint, and each segment before the last one, was
    /// whole when it got its name. In the last one only the frames of one batch may be missing: the next batch came
    /// when those were on the disk. A hole without a frame so far behind it may be either, and ends the segment.
    fn check_damage(&self) -> Result<(), LogError> {
        let damaged = |found: &ReplicaFile, what: &str| {
            let name = found.header.kind.file_name(found.header.number);
            Err(LogError::damaged(&self.disk.path_of(&name), found.offset, what))
        };
        if let Some(found) = self.checkpoints.values().find(|found| !found.is_whole) {
            return damaged(found, "the checkpoint ends here, though it was whole");
        }
        for (found, next) in self.segments.values().zip(self.segments.values().skip(1)) {
            if found.position < next.header.first_position {
                return damaged(found, "the segment ends here, though the next one begins later");
            }
        }
        let Some(last) = self.segments.values().next_back() else { return Ok(()) };
        let mut reader = LogFileReader::open(&*self.disk, FileKind::Segment, last.header.number)?;
        reader.offset = last.offset;
        while reader.offset < reader.bytes {
            if let FrameRead::Frame(frame, _) = reader.next_frame_anywhere()?
                && frame.position >= last.position + BATCH_PAYLOAD_BYTES
            {
                return damaged(last, "there is no frame, though there are frames of later batches");
            }
        }
        Ok(())
    }

    /// Writes the last segment to a new file in its place: what is read of it may be in the system's memory only, after
    /// a sync that had failed. The segments before it were synced before it was made.
    fn write_last_again(&mut self) -> Result<(), LogError> {
        let Some((number, last)) = self.segments.last_key_value() else { return Ok(()) };
        let reader = LogFileReader::open(&*self.disk, FileKind::Segment, *number)?;
        let bytes = reader.bytes_at(0, last.offset as usize)?;
        let file = self.write_new(&FileKind::Segment.file_name(*number), &bytes)?;
        if let Some(mut last) = self.segments.last_entry() {
            last.get_mut().file = Some(file);
        }
        Ok(())
    }

    /// Writes a whole file, which has its name once all of it is on the disk.
    fn write_new(&self, name: &str, bytes: &[u8]) -> Result<Box<dyn LogFile>, LogError> {
        let new = format!("{NEW_PREFIX}{name}");
        let file = self.disk.create(&new).map_err(|error| self.failed("make", &new, &error))?;
        self.write(&*file, &new, 0, bytes)?;
        file.sync().map_err(|error| self.failed("sync", &new, &error))?;
        self.rename(&new, name)?;
        Ok(file)
    }

    fn write(&self, file: &dyn LogFile, name: &str, offset: u64, bytes: &[u8]) -> Result<(), LogError> {
        let written = file.write_at(offset, bytes).map_err(|error| self.failed("write", name, &error))?;
        match written == bytes.len() {
            true => Ok(()),
            false => Err(self.failed("write", name, &std::io::ErrorKind::StorageFull.into())),
        }
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), LogError> {
        self.disk.rename(from, to).map_err(|error| self.failed("rename", from, &error))?;
        self.disk.sync_folder().map_err(|error| self.failed("sync", "", &error))
    }

    fn set_promise(&mut self, promise: ReplicaPromise) -> Result<(), LogError> {
        if promise == self.promise {
            return Ok(());
        }
        if !is_replica_broken(ReplicaRule::PromisesAreOnDisk) || self.promise.log_id != promise.log_id {
            self.write_new(PROMISE_FILE, &promise.encode())?;
        }
        self.promise = promise;
        Ok(())
    }

    /// Notes a failure of the disk, which ends the replica.
    fn ends<T>(&mut self, done: Result<T, LogError>) -> Result<T, ReplicaError> {
        done.map_err(|error| {
            self.failure = Some(error.clone());
            ReplicaError::Log(error)
        })
    }

    /// Whether pieces of an epoch may be taken. From here on none of an earlier one are.
    fn enter(&mut self, epoch: u64) -> Result<(), ReplicaError> {
        if let Some(error) = &self.failure {
            return Err(ReplicaError::Log(error.clone()));
        }
        if self.promise.is_sealed && !is_replica_broken(ReplicaRule::SealsAreForGood) {
            return Err(ReplicaError::Sealed);
        }
        if epoch < self.promise.epoch && !is_replica_broken(ReplicaRule::EarlierEpochsAreRefused) {
            return Err(ReplicaError::OldEpoch(self.promise.epoch));
        }
        let epoch = epoch.max(self.promise.epoch);
        let raised = self.set_promise(ReplicaPromise { epoch, ..self.promise });
        self.ends(raised)
    }

    fn begin(&mut self, header: &FileHeader) -> Result<(), ReplicaError> {
        let FileHeader { kind, number, log_id, .. } = *header;
        if self.promise.log_id == 0 {
            let named = self.set_promise(ReplicaPromise { log_id, ..self.promise });
            self.ends(named)?;
        }
        if self.promise.log_id != log_id {
            return Err(ReplicaError::Gap("it is of another log".to_owned()));
        }
        let last = self.files(kind).last_key_value().map(|(number, _)| *number);
        let follows = match kind {
            FileKind::Segment => last.is_none_or(|last| number == last || number == last + 1),
            FileKind::Checkpoint => last.is_none_or(|last| number > last),
        };
        if !follows {
            return Err(ReplicaError::Gap(format!("{} does not follow its files", kind.file_name(number))));
        }
        // A sender goes on with a file that the state shows. A question that comes late, behind the one that was sent
        // again and the next ones, would take what follows into a file without a name.
        if self.files(kind).get(&number).is_some_and(|known| known.header == *header)
            && !is_replica_broken(ReplicaRule::ReplacementsEndNoEarlier)
        {
            return Err(ReplicaError::Gap(format!("{} is there already", kind.file_name(number))));
        }
        let name = new_name(kind, number);
        let made = self.disk.create(&name).map_err(|error| self.failed("make", &name, &error));
        let made = made.and_then(|file| self.write(&*file, &name, 0, &header.encode()).map(|()| file));
        let file = Some(self.ends(made)?);
        let position = if kind == FileKind::Segment { header.first_position } else { 0 };
        let mut new = ReplicaFile::new(*header, file, BLOCK_BYTES, position);
        new.is_dirty = true;
        self.new_files(kind).insert(number, new);
        Ok(())
    }

    fn frame(&mut self, (kind, number): (FileKind, u64), offset: u64, bytes: &[u8]) -> Result<(), ReplicaError> {
        let gap = |what: &str| Err(ReplicaError::Gap(format!("{what} at byte {offset} of file {number}")));
        let is_new = self.new_files(kind).contains_key(&number);
        let log_id = self.promise.log_id;
        let name = if is_new { new_name(kind, number) } else { kind.file_name(number) };
        let disk = Arc::clone(&self.disk);
        let is_last = self.files(kind).last_key_value().is_some_and(|(last, _)| *last == number);
        let files = if is_new { self.new_files(kind) } else { self.files(kind) };
        let Some(found) = files.get_mut(&number).filter(|_| is_new || is_last && kind == FileKind::Segment) else {
            return gap("it writes no such file");
        };
        let place = FramePlace { kind, log_id, number, offset };
        let frame = FrameHeader::decode(bytes, &place).filter(|_| FrameHeader::is_intact(bytes, kind));
        let Some(frame) = frame.filter(|frame| bytes.len() == FRAME_HEADER_BYTES + frame.payload_bytes as usize) else {
            return gap("there is no intact frame");
        };
        let follows = (found.offset, found.position) == (offset, frame.position) && !found.is_whole;
        if !follows && !is_replica_broken(ReplicaRule::FramesFollow) {
            return gap("the frame does not follow what it has");
        }
        let Some(file) = &found.file else { return gap("it does not write the file any more") };
        let written = match kind {
            FileKind::Segment => {
                found.add(bytes);
                Ok(())
            }
            FileKind::Checkpoint => {
                let mut whole = bytes.to_vec();
                whole.resize(frame_bytes(frame.payload_bytes as usize) as usize, 0);
                found.is_dirty = true;
                found.offset += whole.len() as u64;
                file.write_at(offset, &whole).and_then(|taken| match taken == whole.len() {
                    true => Ok(()),
                    false => Err(std::io::ErrorKind::StorageFull.into()),
                })
            }
        };
        (found.is_whole, found.position) = (frame.is_last, found.position + u64::from(frame.payload_bytes));
        let written = written.map_err(|error| LogError::system("write", disk.path_of(&name), &error));
        self.ends(written)
    }

    /// Gives a file its name, once it and all before it is on the disk.
    fn publish(&mut self, kind: FileKind, number: u64) -> Result<(), ReplicaError> {
        let Some(found) = self.new_files(kind).get(&number) else {
            return Err(ReplicaError::Gap(format!("file {number} was not begun")));
        };
        if kind == FileKind::Checkpoint && !found.is_whole {
            return Err(ReplicaError::Gap(format!("checkpoint {number} is not whole")));
        }
        // A question that comes late, behind one that was sent again, would take back what was confirmed since.
        // A file that another start of its owner has made in its place may be shorter: half a unit is dropped there.
        let (header, ends_at) = (found.header, found.position);
        let is_shorter = |earlier: &ReplicaFile| earlier.header == header && ends_at < earlier.position;
        if self.files(kind).get(&number).is_some_and(is_shorter)
            && !is_replica_broken(ReplicaRule::ReplacementsEndNoEarlier)
        {
            self.new_files(kind).remove(&number);
            let why = format!("file {number} ends earlier than it did");
            return Err(ReplicaError::Gap(why));
        }
        self.sync_all()?;
        let renamed = self.rename(&new_name(kind, number), &kind.file_name(number));
        self.ends(renamed)?;
        if let Some(mut published) = self.new_files(kind).remove(&number) {
            if kind == FileKind::Checkpoint {
                published.file = None;
            }
            let files = self.files(kind);
            files.values_mut().for_each(ReplicaFile::close);
            files.insert(number, published);
        }
        Ok(())
    }

    /// Waits until all that was written is on the disk: published files first.
    fn sync_all(&mut self) -> Result<(), ReplicaError> {
        let mut synced = Ok(());
        let all = [&mut self.segments, &mut self.checkpoints, &mut self.new_segments, &mut self.new_checkpoints];
        for found in all.into_iter().flat_map(|files| files.values_mut()) {
            let done = found.flush();
            synced = synced.and(done);
        }
        let synced = synced.map_err(|error| self.failed("sync", "", &error));
        self.ends(synced)
    }

    fn take(&mut self, batch: &ReplicaBatch) -> Result<(), ReplicaError> {
        for item in batch.items() {
            match item {
                Some(BatchItem::Begin(header)) => self.begin(&header)?,
                Some(BatchItem::Frame { kind, number, offset, bytes }) => self.frame((kind, number), offset, bytes)?,
                Some(BatchItem::Publish(kind, number)) => self.publish(kind, number)?,
                None => return Err(ReplicaError::Gap("a piece is malformed".to_owned())),
            }
        }
        Ok(())
    }

    /// Returns the files that have their names: header, and offset and position behind the last frame.
    pub(crate) fn published(&self) -> impl Iterator<Item = (FileHeader, u64, u64)> {
        let all = self.segments.values().chain(self.checkpoints.values());
        all.map(|found| (found.header, found.offset, found.position))
    }

    /// Whether a write or sync has failed: it takes nothing any more, and what is on its disk is not known.
    pub fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Whether an owner of this epoch may have it removed, also where its disk has failed: nothing is written for that.
    ///
    /// # Errors
    /// [`ReplicaError::Sealed`], [`ReplicaError::OldEpoch`].
    pub fn may_be_removed(&self, epoch: u64) -> Result<(), ReplicaError> {
        match self.promise {
            ReplicaPromise { is_sealed: true, .. } => Err(ReplicaError::Sealed),
            ReplicaPromise { epoch: promised, .. } if epoch < promised => Err(ReplicaError::OldEpoch(promised)),
            ReplicaPromise { .. } => Ok(()),
        }
    }

    /// Looks whether a sealed copy misses frames that it had confirmed: an open one was refused for that, and this one
    /// was opened nevertheless, since others may need what is left of it.
    ///
    /// # Errors
    /// [`LogError`]: it does, or cannot be read.
    pub fn check_sealed(&self) -> Result<(), LogError> {
        if self.promise.is_sealed && !self.has_failed() { self.check_damage() } else { Ok(()) }
    }

    /// Looks whether the promise on the disk is what was promised. Once a write or sync has failed that is not known.
    ///
    /// # Errors
    /// [`LogError`]: it is not, or cannot be read.
    pub fn check_promise(&self) -> Result<(), LogError> {
        if self.has_failed() {
            return Ok(());
        }
        match self.read_promise()? {
            found if found == Some(self.promise) || found.is_none() && self.promise == ReplicaPromise::default() => {
                Ok(())
            }
            _ => Err(LogError::damaged(&self.disk.path_of(PROMISE_FILE), 0, "the promise of this copy is another one")),
        }
    }

    /// Returns the bytes of its files.
    pub fn bytes(&self) -> u64 {
        let all = [&self.segments, &self.checkpoints, &self.new_segments, &self.new_checkpoints];
        all.into_iter().flat_map(|files| files.values()).map(|found| found.offset).sum()
    }

    /// Returns the folder, to read what is sealed while others look at it.
    pub fn disk(&self) -> Arc<dyn LogDisk> {
        Arc::clone(&self.disk)
    }

    /// Returns whether it is sealed.
    pub fn is_sealed(&self) -> bool {
        self.promise.is_sealed
    }
}

impl LogReplica for ReplicaFolder {
    fn state(&mut self, epoch: u64) -> Result<ReplicaState, ReplicaError> {
        self.enter(epoch)?;
        // What an earlier sender has begun is begun again: its frames would go on in a file that no list names.
        self.new_segments.clear();
        self.new_checkpoints.clear();
        let shown = |found: &ReplicaFile| ReplicaFileState {
            header: found.header,
            offset: found.offset,
            position: found.position,
        };
        let files = self.segments.values().chain(self.checkpoints.values()).map(shown).collect();
        Ok(ReplicaState { log_id: self.promise.log_id, files })
    }

    fn append(&mut self, epoch: u64, batch: &ReplicaBatch) -> Result<(), ReplicaError> {
        self.enter(epoch)?;
        let taken = self.take(batch);
        // Also of a batch that was refused in its middle: what the state shows is on the disk.
        self.sync_all().and(taken)
    }

    fn trim(&mut self, epoch: u64, checkpoint: u64, segment: u64) -> Result<(), ReplicaError> {
        self.enter(epoch)?;
        let holds_from = self.checkpoints.get(&checkpoint).map(|found| found.header.first_position);
        let first = self.segments.get(&segment).map(|found| found.header.first_position);
        let stays = matches!((holds_from, first), (Some(from), Some(first)) if first <= from);
        if !stays && !is_replica_broken(ReplicaRule::TrimsLeaveACheckpoint) {
            return Err(ReplicaError::Gap("what is to stay is not there".to_owned()));
        }
        // The first segments first, so that a crash leaves no gap; a checkpoint before what it needs.
        for (kind, before) in [(FileKind::Checkpoint, checkpoint), (FileKind::Segment, segment)] {
            let gone: Vec<u64> = self.files(kind).range(..before).map(|(number, _)| *number).collect();
            for number in gone {
                let removed = self.remove_all([kind.file_name(number)]);
                self.ends(removed)?;
                self.files(kind).remove(&number);
            }
        }
        Ok(())
    }

    fn seal(&mut self) -> Result<(), ReplicaError> {
        // Also one whose disk has failed: it confirms nothing any more in any case.
        let sealed = self.set_promise(ReplicaPromise { is_sealed: true, ..self.promise });
        self.ends(sealed)
    }

    fn read(&mut self, visit: &mut ChangeVisitor<'_>) -> Result<ReplaySummary, ReplicaError> {
        Ok(read_log(&self.disk, visit)?.summary)
    }
}
