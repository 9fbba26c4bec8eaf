//! The messages of a cluster's servers about copies of logs. A question is the length of its head (four
//! bytes, little endian), the head as JSON, and the pieces of a log; an answer is JSON.

use sandstorm_log::frame::{FileHeader, FileKind};
use sandstorm_log::{LogError, ReplicaError, ReplicaFileState, ReplicaState};
use serde::{Deserialize, Serialize};

use crate::limits::LEASE;

/// What is asked of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum ReplicaAsk {
    /// What it has. `makes`: it is made if there is none.
    State { makes: bool },
    /// To take the pieces that follow.
    Append,
    /// To remove what is before a checkpoint and a segment.
    Trim { checkpoint: u64, segment: u64 },
    /// To remove a copy that no generation has had, nor will. Earlier versions do not understand it.
    Remove,
}

impl ReplicaAsk {
    /// Whether an answer that it was done says that the copy misses nothing; `None`: it says nothing of that.
    pub(crate) fn confirms(&self) -> Option<bool> {
        match self {
            // What it has is compared by the owner, and then it is sent more.
            ReplicaAsk::State { .. } => Some(false),
            ReplicaAsk::Append => Some(true),
            ReplicaAsk::Trim { .. } | ReplicaAsk::Remove => None,
        }
    }
}

/// The head of a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReplicaHead {
    /// The id of the server whose log it is.
    pub(crate) owner: String,
    /// The number of the copy.
    pub(crate) copy: u64,
    pub(crate) epoch: u64,
    pub(crate) ask: ReplicaAsk,
    /// The leases that the owner needs, in milliseconds; 0: it is of a version that does not say that.
    #[serde(default)]
    pub(crate) lease_ms: u64,
}

/// The leases of this version, as a question names them.
pub(crate) const LEASE_MS: u64 = LEASE.as_millis() as u64;

/// What a server says to a question that it does not understand: also one of an earlier version to each of this one's.
pub(crate) const DAMAGED_QUESTION: &str = "the question about a copy is damaged";

/// A file of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ToldFile {
    is_checkpoint: bool,
    format: u32,
    log_id: u64,
    number: u64,
    first_position: u64,
    made_ms: u64,
    offset: u64,
    position: u64,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReplicaAnswer {
    State { log_id: u64, files: Vec<ToldFile> },
    Done,
    Sealed,
    Missing,
    OldEpoch(u64),
    Gap(String),
    Damaged(String),
    Full(String),
    Failed(String),
}

impl ReplicaHead {
    /// Refuses leases other than those that a copy here gives.
    ///
    /// # Errors
    /// One line, which names the owner.
    pub(crate) fn check_lease(&self) -> Result<(), String> {
        let needs = match self.lease_ms {
            LEASE_MS => return Ok(()),
            0 => "does not say which leases it needs".to_owned(),
            lease_ms => format!("needs leases of {lease_ms} ms"),
        };
        let owner = &self.owner;
        Err(format!(
            "server {owner} {needs}, and this one gives leases of {LEASE_MS} ms: servers of these two versions have no \
             copies of each other's logs"
        ))
    }

    /// The bytes that are sent.
    pub(crate) fn encode(&self, pieces: &[u8]) -> Result<Vec<u8>, String> {
        let head = serde_json::to_vec(self).map_err(|error| error.to_string())?;
        let mut bytes = Vec::with_capacity(4 + head.len() + pieces.len());
        bytes.extend_from_slice(&(head.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(pieces);
        Ok(bytes)
    }

    /// Reads what was sent: the head, and the pieces.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(ReplicaHead, &[u8]), String> {
        let damaged = || DAMAGED_QUESTION.to_owned();
        let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(damaged)?;
        let (head, pieces) = rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(damaged)?;
        Ok((serde_json::from_slice(head).map_err(|_| damaged())?, pieces))
    }
}

impl From<&ReplicaFileState> for ToldFile {
    fn from(file: &ReplicaFileState) -> ToldFile {
        let FileHeader { format, kind, log_id, number, first_position, made_ms } = file.header;
        let is_checkpoint = kind == FileKind::Checkpoint;
        let ReplicaFileState { offset, position, .. } = *file;
        ToldFile { is_checkpoint, format, log_id, number, first_position, made_ms, offset, position }
    }
}

impl ToldFile {
    fn read(&self) -> ReplicaFileState {
        let ToldFile { format, log_id, number, first_position, made_ms, offset, position, .. } = *self;
        let kind = if self.is_checkpoint { FileKind::Checkpoint } else { FileKind::Segment };
        ReplicaFileState {
            header: FileHeader { format, kind, log_id, number, first_position, made_ms },
            offset,
            position,
        }
    }
}

impl From<Result<Option<ReplicaState>, ReplicaError>> for ReplicaAnswer {
    fn from(done: Result<Option<ReplicaState>, ReplicaError>) -> ReplicaAnswer {
        match done {
            Ok(None) => ReplicaAnswer::Done,
            Ok(Some(state)) => {
                ReplicaAnswer::State { log_id: state.log_id, files: state.files.iter().map(ToldFile::from).collect() }
            }
            Err(ReplicaError::Sealed) => ReplicaAnswer::Sealed,
            Err(ReplicaError::Missing) => ReplicaAnswer::Missing,
            Err(ReplicaError::OldEpoch(epoch)) => ReplicaAnswer::OldEpoch(epoch),
            Err(ReplicaError::Gap(why)) => ReplicaAnswer::Gap(why),
            Err(ReplicaError::Damaged(why)) => ReplicaAnswer::Damaged(why),
            Err(ReplicaError::Full(why)) => ReplicaAnswer::Full(why),
            Err(ReplicaError::Log(error)) => ReplicaAnswer::Failed(error.to_string()),
        }
    }
}

impl ReplicaAnswer {
    /// What it says; `None`: it is done.
    pub(crate) fn read(self) -> Result<Option<ReplicaState>, ReplicaError> {
        match self {
            ReplicaAnswer::Done => Ok(None),
            ReplicaAnswer::State { log_id, files } => {
                let files = files.iter().map(ToldFile::read).collect();
                Ok(Some(ReplicaState { log_id, files }))
            }
            ReplicaAnswer::Sealed => Err(ReplicaError::Sealed),
            ReplicaAnswer::Missing => Err(ReplicaError::Missing),
            ReplicaAnswer::OldEpoch(epoch) => Err(ReplicaError::OldEpoch(epoch)),
            ReplicaAnswer::Gap(why) => Err(ReplicaError::Gap(why)),
            ReplicaAnswer::Damaged(why) => Err(ReplicaError::Damaged(why)),
            ReplicaAnswer::Full(why) => Err(ReplicaError::Full(why)),
            ReplicaAnswer::Failed(why) => Err(ReplicaError::Log(LogError::unusable("the copy", &why))),
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn questions_and_answers_come_as_they_were_and_anything_else_is_refused() {
        let mut random = StdRng::seed_from_u64(3);
        for ask in [
            ReplicaAsk::State { makes: true },
            ReplicaAsk::Append,
            ReplicaAsk::Trim { checkpoint: 3, segment: u64::MAX },
        ] {
            let (owner, lease_ms) = ("a".repeat(40), LEASE_MS);
            let head = ReplicaHead { owner, copy: random.random(), epoch: random.random(), ask, lease_ms };
            let pieces: Vec<u8> = (0..random.random_range(0..90)).map(|_| random.random()).collect();
            let sent = head.encode(&pieces).unwrap();
            assert_eq!(ReplicaHead::decode(&sent), Ok((head, pieces.as_slice())));
            for _ in 0..200 {
                let mut other = sent.clone();
                let at = random.random_range(0..other.len());
                other[at] ^= 1 << random.random_range(0..8);
                // Whatever it says, nothing panics.
                let _whatever = ReplicaHead::decode(&other).is_ok();
                let _short = ReplicaHead::decode(&sent[..at]).is_ok();
            }
        }
        let header = FileHeader {
            format: 2,
            kind: FileKind::Checkpoint,
            log_id: u64::MAX,
            number: 7,
            first_position: 1 << 60,
            made_ms: 9,
        };
        let state =
            ReplicaState { log_id: u64::MAX, files: vec![ReplicaFileState { header, offset: 4096, position: 5 }] };
        for done in [
            Ok(None),
            Ok(Some(state)),
            Err(ReplicaError::Sealed),
            Err(ReplicaError::OldEpoch(4)),
            Err(ReplicaError::Gap("x".to_owned())),
            Err(ReplicaError::Damaged("x".to_owned())),
            Err(ReplicaError::Full("x".to_owned())),
        ] {
            let sent = serde_json::to_vec(&ReplicaAnswer::from(done.clone())).unwrap();
            let answer: ReplicaAnswer = serde_json::from_slice(&sent).unwrap();
            assert_eq!(answer.read(), done);
        }
    }
}
