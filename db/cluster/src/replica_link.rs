//! Questions about a copy of this server's log to the server that has it, over its control port: by a connection for
//! them, or by requests where it has none.

use sandstorm_log::{LogError, ReplicaBatch, ReplicaError, ReplicaState};

use crate::copy_coordinator::CopyName;
use crate::copy_stream::CopyStream;
use crate::limits::{REPLICA_ANSWER_BYTES, REPLICA_TIMEOUT};
use crate::peer_link::{PEER_KEY_HEADER, PeerRefusal, peer_agent, read_answer};
use crate::replica_messages::{DAMAGED_QUESTION, LEASE_MS, ReplicaAnswer, ReplicaAsk, ReplicaHead};
use crate::state::ServerState;

/// The path of the requests.
pub const REPLICA_PATH: &str = "/v1/cluster/replica";

/// The link to a copy.
pub(crate) struct ReplicaLink {
    /// `None`: its server answers requests only.
    stream: Option<CopyStream>,
    agent: ureq::Agent,
    url: String,
    key: String,
    owner: String,
    /// The server that has the copy.
    holder: String,
    copy: u64,
}

fn no_answer(why: &dyn std::fmt::Display) -> ReplicaError {
    ReplicaError::Log(LogError::unusable("the copy", &why.to_string()))
}

impl ReplicaLink {
    /// One to a server as it has told of itself, for a question or two.
    pub(crate) fn new(owner: &str, name: &CopyName, server: &ServerState, key: String) -> Result<ReplicaLink, String> {
        let agent = peer_agent(server, REPLICA_TIMEOUT)?;
        let url = format!("{}{REPLICA_PATH}", server.control.trim_end_matches('/'));
        let (stream, owner) = (None, owner.to_owned());
        Ok(ReplicaLink { stream, agent, url, key, owner, holder: name.0.clone(), copy: name.1 })
    }

    /// One for many questions: over a connection of their own, if the server has such.
    pub(crate) fn begin(
        owner: &str,
        name: &CopyName,
        server: &ServerState,
        key: String,
    ) -> Result<ReplicaLink, String> {
        let stream = CopyStream::begin(server, &key)?;
        Ok(ReplicaLink { stream, ..ReplicaLink::new(owner, name, server, key)? })
    }

    /// What a refusal says. A version that knows nothing of leases in questions does not understand them.
    fn refused(&self, refusal: &PeerRefusal) -> ReplicaError {
        match refusal {
            PeerRefusal::Said(said) if said == DAMAGED_QUESTION => no_answer(&format!(
                "server {} does not understand what this one asks: it is of a version with other leases than {LEASE_MS} \
                 ms, and servers of these two versions have no copies of each other's logs",
                self.holder
            )),
            _ => no_answer(refusal),
        }
    }

    fn ask(&mut self, epoch: u64, ask: ReplicaAsk, pieces: &[u8]) -> Result<Option<ReplicaState>, ReplicaError> {
        let head = ReplicaHead { owner: self.owner.clone(), copy: self.copy, epoch, ask, lease_ms: LEASE_MS };
        let question = head.encode(pieces).map_err(|error| no_answer(&error))?;
        let answered = match &mut self.stream {
            Some(stream) => stream.ask(&question),
            None => {
                let sent = self.agent.post(&self.url).header(PEER_KEY_HEADER, &self.key).send(&question[..]);
                read_answer(sent, REPLICA_ANSWER_BYTES)
            }
        };
        let body = answered.map_err(|refusal| self.refused(&refusal))?;
        let answer: ReplicaAnswer = serde_json::from_slice(&body).map_err(|error| no_answer(&error))?;
        answer.read()
    }

    /// What it has. `makes`: it is made if there is none.
    pub(crate) fn state(&mut self, epoch: u64, makes: bool) -> Result<ReplicaState, ReplicaError> {
        self.ask(epoch, ReplicaAsk::State { makes }, b"").map(Option::unwrap_or_default)
    }

    /// Has pieces taken; none is a question whether they would be.
    pub(crate) fn append(&mut self, epoch: u64, batch: &ReplicaBatch) -> Result<(), ReplicaError> {
        self.ask(epoch, ReplicaAsk::Append, &batch.encode()).map(drop)
    }

    /// Has removed what a checkpoint makes superfluous.
    pub(crate) fn trim(&mut self, epoch: u64, (checkpoint, segment): (u64, u64)) -> Result<(), ReplicaError> {
        self.ask(epoch, ReplicaAsk::Trim { checkpoint, segment }, b"").map(drop)
    }

    /// Has a copy removed that no generation has had, nor will.
    pub(crate) fn remove(&mut self, epoch: u64) -> Result<(), ReplicaError> {
        self.ask(epoch, ReplicaAsk::Remove, b"").map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// What is made of a refusal of a server, and whether the question names its leases.
    fn refused(message: &'static str) -> (String, bool) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let control = format!("http://{}", listener.local_addr().unwrap());
        let served = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut asked, mut buffer) = (String::new(), [0; 4096]);
            while !(asked.contains("lease_ms") && asked.ends_with('}')) {
                let read = stream.read(&mut buffer).unwrap();
                assert!(read > 0, "{asked}");
                asked.push_str(&String::from_utf8_lossy(&buffer[..read]));
            }
            let body = serde_json::json!({ "code": "not_copied", "message": message }).to_string();
            let length = body.len();
            write!(stream, "HTTP/1.1 409 Conflict\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
                .unwrap();
            asked.contains(&format!("\"lease_ms\":{LEASE_MS}"))
        });
        let server = ServerState { control, ..ServerState::example() };
        let mut link = ReplicaLink::new(&"a".repeat(40), &("b".repeat(40), 7), &server, String::new()).unwrap();
        let refused = link.state(1, true).unwrap_err().to_string();
        (refused, served.join().unwrap())
    }

    #[test]
    fn a_server_of_a_version_with_other_leases_is_named_where_it_does_not_understand() {
        let (why, names_leases) = refused(DAMAGED_QUESTION);
        assert!(names_leases);
        assert!(why.contains(&"b".repeat(40)) && why.contains("other leases than 250 ms"), "{why}");
        let (why, _) = refused("this server has no place for copies");
        assert!(why.contains("no place for copies") && !why.contains("leases"), "{why}");
    }
}
