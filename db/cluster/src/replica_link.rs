//! Questions about a copy of this server's log to the server that has it, over its control port.

use sandstorm_log::{LogError, ReplicaBatch, ReplicaError, ReplicaState};

use crate::copy_desk::CopyName;
use crate::limits::{REPLICA_ANSWER_BYTES, REPLICA_TIMEOUT};
use crate::peer_link::{PEER_KEY_HEADER, peer_agent, read_answer};
use crate::replica_messages::{ReplicaAnswer, ReplicaAsk, ReplicaHead};
use crate::state::ServerState;

/// The path of the requests.
pub const REPLICA_PATH: &str = "/v1/cluster/replica";

/// The link to a copy.
pub(crate) struct ReplicaLink {
    agent: ureq::Agent,
    url: String,
    key: String,
    owner: String,
    copy: u64,
}

fn no_answer(why: &dyn std::fmt::Display) -> ReplicaError {
    ReplicaError::Log(LogError::unusable("the copy", &why.to_string()))
}

impl ReplicaLink {
    /// One to a server as it has told of itself.
    pub(crate) fn new(owner: &str, name: &CopyName, server: &ServerState, key: String) -> Result<ReplicaLink, String> {
        let agent = peer_agent(server, REPLICA_TIMEOUT)?;
        let url = format!("{}{REPLICA_PATH}", server.control.trim_end_matches('/'));
        Ok(ReplicaLink { agent, url, key, owner: owner.to_owned(), copy: name.1 })
    }

    fn ask(&self, epoch: u64, ask: ReplicaAsk, pieces: &[u8]) -> Result<Option<ReplicaState>, ReplicaError> {
        let head = ReplicaHead { owner: self.owner.clone(), copy: self.copy, epoch, ask };
        let question = head.encode(pieces).map_err(|error| no_answer(&error))?;
        let sent = self.agent.post(&self.url).header(PEER_KEY_HEADER, &self.key).send(&question[..]);
        let body = read_answer(sent, REPLICA_ANSWER_BYTES).map_err(|refusal| no_answer(&refusal))?;
        let answer: ReplicaAnswer = serde_json::from_slice(&body).map_err(|error| no_answer(&error))?;
        answer.read()
    }

    /// What it has. `makes`: it is made if there is none.
    pub(crate) fn state(&self, epoch: u64, makes: bool) -> Result<ReplicaState, ReplicaError> {
        self.ask(epoch, ReplicaAsk::State { makes }, b"").map(Option::unwrap_or_default)
    }

    /// Has pieces taken; none is a question whether they would be.
    pub(crate) fn append(&self, epoch: u64, batch: &ReplicaBatch) -> Result<(), ReplicaError> {
        self.ask(epoch, ReplicaAsk::Append, &batch.encode()).map(drop)
    }

    /// Has removed what a checkpoint makes superfluous.
    pub(crate) fn trim(&self, epoch: u64, (checkpoint, segment): (u64, u64)) -> Result<(), ReplicaError> {
        self.ask(epoch, ReplicaAsk::Trim { checkpoint, segment }, b"").map(drop)
    }
}
