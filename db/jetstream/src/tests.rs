//! The suite of all replicas, against a stream in memory that loses answers, takes messages late, and shows what it had
//! a moment ago.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sandstorm_log::disk::simulated::SimulatedDisk;
use sandstorm_log::replica_suite::{ReplicaHost, conforms, survives};
use sandstorm_log::{LogReplica, ReplicaError};

use crate::broken_rules::{StreamRule, break_rule};
use crate::stream_replica::StreamReplica;
use crate::stream_store::{MessageVisitor, StreamBounds, StreamError, StreamStore};

/// Runs of the suite by a seed.
const SUITE_RUNS: u64 = 200;
/// Bytes of a message of the stream in memory: most batches have several parts.
const SMALL_MESSAGES: usize = 5 << 10;

/// A message under way: what it is to be behind, its id, and its bytes.
type LateMessage = (u64, String, Vec<u8>);

struct StreamState {
    messages: BTreeMap<u64, Vec<u8>>,
    last: u64,
    /// Where the messages of these ids are: one that comes again is answered so, whatever it says.
    ids: BTreeMap<String, u64>,
    /// Messages without an answer that may come late.
    late: Vec<LateMessage>,
    random: SmallRng,
    /// One in so many requests meets a fault; 0: none does.
    faults: u32,
    /// Messages that were read.
    read: usize,
}

impl StreamState {
    fn meets_fault(&mut self) -> bool {
        self.faults > 0 && self.random.random_range(0..self.faults) == 0
    }

    fn add(&mut self, behind: u64, id: &str, message: &[u8]) -> Result<u64, StreamError> {
        if let Some(sequence) = self.ids.get(id) {
            return Ok(*sequence);
        }
        if behind != self.last {
            return Err(StreamError::OtherSequence);
        }
        self.last += 1;
        self.messages.insert(self.last, message.to_vec());
        self.ids.insert(id.to_owned(), self.last);
        Ok(self.last)
    }

    /// Some of what was under way arrives.
    fn deliver_late(&mut self) {
        if !self.late.is_empty() && self.random.random_bool(0.3) {
            let at = self.random.random_range(0..self.late.len());
            let (behind, id, message) = self.late.swap_remove(at);
            let _taken_or_not = self.add(behind, &id, &message);
        }
    }
}

/// A stream in memory. Clones are the same stream.
#[derive(Clone)]
struct MemoryStream(Arc<Mutex<StreamState>>);

fn no_answer() -> StreamError {
    StreamError::NoAnswer("it was lost".to_owned())
}

impl MemoryStream {
    fn new(seed: u64, faults: u32) -> MemoryStream {
        let random = SmallRng::seed_from_u64(seed);
        let (messages, last, ids, late) = (BTreeMap::new(), 0, BTreeMap::new(), Vec::new());
        MemoryStream(Arc::new(Mutex::new(StreamState { messages, last, ids, late, random, faults, read: 0 })))
    }
}

impl StreamStore for MemoryStream {
    fn bounds(&mut self) -> Result<StreamBounds, StreamError> {
        let mut state = self.0.lock();
        state.deliver_late();
        if state.meets_fault() {
            return Err(no_answer());
        }
        let first = state.messages.keys().next().copied().unwrap_or(state.last + 1);
        // One that is asked may not have heard of the last message yet.
        let is_late = state.meets_fault() && state.last > first;
        Ok(StreamBounds { first, last: state.last - u64::from(is_late) })
    }

    fn publish(&mut self, behind: u64, id: &str, message: &[u8]) -> Result<u64, StreamError> {
        let mut state = self.0.lock();
        state.deliver_late();
        if !state.meets_fault() {
            return state.add(behind, id, message);
        }
        match state.random.random_range(0..3) {
            0 => {}
            1 => drop(state.add(behind, id, message)),
            _ => state.late.push((behind, id.to_owned(), message.to_vec())),
        }
        Err(no_answer())
    }

    fn read(&mut self, from: u64, to: u64, visit: &mut MessageVisitor<'_>) -> Result<(), StreamError> {
        let found: Vec<(u64, Vec<u8>)> = {
            let mut state = self.0.lock();
            if state.meets_fault() {
                return Err(no_answer());
            }
            let found: Vec<(u64, Vec<u8>)> =
                state.messages.range(from..=to).map(|(sequence, message)| (*sequence, message.clone())).collect();
            state.read += found.len();
            found
        };
        if found.len() as u64 != to + 1 - from {
            return Err(StreamError::OtherSequence);
        }
        found.iter().try_for_each(|(sequence, message)| visit(*sequence, message)).map_err(StreamError::Refused)
    }

    fn purge_before(&mut self, sequence: u64) -> Result<(), StreamError> {
        let mut state = self.0.lock();
        if state.meets_fault() {
            return Err(no_answer());
        }
        state.messages = state.messages.split_off(&sequence);
        Ok(())
    }

    fn message_bytes(&self) -> usize {
        SMALL_MESSAGES
    }
}

fn replica(stream: &MemoryStream) -> StreamReplica<MemoryStream> {
    StreamReplica::new(stream.clone(), Box::new(|| Ok(Arc::new(SimulatedDisk::default()))))
}

/// A replica in a stream in memory. A crash takes none of its messages.
struct StreamHost(MemoryStream);

impl ReplicaHost for StreamHost {
    fn open(&mut self) -> Result<Box<dyn LogReplica>, ReplicaError> {
        Ok(Box::new(AgainReplica(replica(&self.0))))
    }

    fn crash(&mut self, _seed: u64) {}
}

/// A replica that is read again if the stream has not answered.
struct AgainReplica(StreamReplica<MemoryStream>);

impl LogReplica for AgainReplica {
    fn state(&mut self, epoch: u64) -> Result<sandstorm_log::ReplicaState, ReplicaError> {
        self.0.state(epoch)
    }

    fn append(&mut self, epoch: u64, batch: &sandstorm_log::ReplicaBatch) -> Result<(), ReplicaError> {
        self.0.append(epoch, batch)
    }

    fn trim(&mut self, epoch: u64, checkpoint: u64, segment: u64) -> Result<(), ReplicaError> {
        self.0.trim(epoch, checkpoint, segment)
    }

    fn seal(&mut self) -> Result<(), ReplicaError> {
        self.0.seal()
    }

    fn read(
        &mut self,
        visit: &mut sandstorm_log::ChangeVisitor<'_>,
    ) -> Result<sandstorm_log::ReplaySummary, ReplicaError> {
        // Nothing is asked to be lost here: the run itself is over, and what is read has to be there.
        self.0.store().0.lock().faults = 0;
        self.0.read(visit)
    }
}

fn suite(runs: u64, faults: u32) -> Result<(), String> {
    conforms(&mut StreamHost(MemoryStream::new(0, 0)))?;
    (0..runs).try_for_each(|seed| {
        let stream = MemoryStream::new(seed, faults);
        survives(&mut StreamHost(stream), seed).map_err(|why| format!("seed {seed}: {why}"))
    })
}

#[test]
fn a_stream_does_what_every_replica_has_to_do_also_where_answers_are_lost_and_messages_late() {
    suite(SUITE_RUNS / 2, 0).unwrap_or_else(|why| panic!("without faults: {why}"));
    suite(SUITE_RUNS, 12).unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn each_rule_of_streams_that_is_broken_on_purpose_is_found() {
    for rule in [StreamRule::MessagesAreCompared, StreamRule::PurgesLeaveWhatIsNeeded] {
        break_rule(Some(rule));
        let found = suite(SUITE_RUNS, 12);
        break_rule(None);
        assert!(found.is_err(), "{rule:?} may be broken, and nothing notices");
    }
}

#[test]
fn a_stream_that_somebody_has_purged_or_changed_is_not_read_as_an_empty_one() {
    let stream = MemoryStream::new(1, 0);
    replica(&stream).state(1).unwrap();
    replica(&stream).append(2, &sandstorm_log::ReplicaBatch::default()).unwrap();
    stream.clone().purge_before(2).unwrap();
    let read = replica(&stream).read(&mut |_, _| Ok(()));
    assert!(matches!(&read, Err(ReplicaError::Damaged(why)) if why.contains("purged")), "{read:?}");
    stream.clone().purge_before(9).unwrap();
    let state = replica(&stream).state(3);
    assert!(matches!(&state, Err(ReplicaError::Damaged(why)) if why.contains("purged")), "{state:?}");
    let stream = MemoryStream::new(1, 0);
    replica(&stream).state(1).unwrap();
    if let Some(message) = stream.0.lock().messages.get_mut(&1) {
        message[20] ^= 1;
    }
    let state = replica(&stream).state(1);
    assert!(matches!(&state, Err(ReplicaError::Damaged(why)) if why.contains("message 1")), "{state:?}");
}

#[test]
fn a_stream_is_staged_only_where_its_end_is_shown() {
    let stream = MemoryStream::new(1, 0);
    let mut owner = replica(&stream);
    owner.state(1).unwrap();
    // The server that is asked may not have heard of the last messages: without the seal these may not be all.
    assert!(matches!(replica(&stream).stage().map(drop), Err(ReplicaError::Gap(why)) if why.contains("seal")));
    owner.seal().unwrap();
    assert!(replica(&stream).stage().is_ok());
}

#[test]
fn a_stream_of_a_server_on_which_nothing_is_written_is_worn_by_questions() {
    let stream = MemoryStream::new(1, 0);
    let mut owner = replica(&stream);
    owner.state(1).unwrap();
    let most = crate::limits::WORN_BYTES / crate::limits::QUESTION_BYTES;
    for _ in 0..most {
        owner.append(1, &sandstorm_log::ReplicaBatch::default()).unwrap();
        assert!(!owner.is_worn());
    }
    owner.append(1, &sandstorm_log::ReplicaBatch::default()).unwrap();
    assert!(owner.is_worn());
    // A reader knows that as well.
    let mut again = replica(&stream);
    again.state(1).unwrap();
    assert!(again.is_worn());
}

#[test]
fn a_stream_that_has_lost_its_end_is_said_to() {
    let stream = MemoryStream::new(1, 0);
    let mut replica = replica(&stream);
    replica.state(1).unwrap();
    {
        let mut state = stream.0.lock();
        state.messages.clear();
        state.last = 0;
    }
    let why = replica.append(1, &sandstorm_log::ReplicaBatch::default()).unwrap_err().to_string();
    assert!(why.contains("messages are lost"), "{why}");
}

#[test]
fn a_sender_that_asks_again_reads_what_is_new_and_all_of_it_only_where_the_end_is_lost() {
    let stream = MemoryStream::new(1, 0);
    let read = || std::mem::take(&mut stream.0.lock().read);
    let empty = sandstorm_log::ReplicaBatch::default();
    let mut owner = replica(&stream);
    owner.state(1).unwrap();
    (0..20).for_each(|_| owner.append(1, &empty).unwrap());
    assert_eq!(read(), 0);
    owner.state(1).unwrap();
    assert_eq!(read(), 0, "it has added all that is there itself");
    let mut other = replica(&stream);
    other.state(1).unwrap();
    assert_eq!(read(), 22);
    owner.state(1).unwrap();
    assert_eq!(read(), 1, "the other one's message");
    {
        let mut state = stream.0.lock();
        state.last -= 4;
        let last = state.last;
        state.messages.retain(|sequence, _| *sequence <= last);
    }
    let why = owner.append(1, &empty).unwrap_err().to_string();
    assert!(why.contains("messages are lost"), "{why}");
    let _tried = read();
    owner.state(1).unwrap();
    assert_eq!(read(), 20);
    owner.append(1, &empty).unwrap();
}
