//! The servers of a cluster: a connection to each that was needed, and where keys were found.
//!
//! A client begins with one server, and asks it. A server that does not own a key names the one that does; from there
//! on the key's slot is asked for there. Without a cluster nothing is ever named, and nothing of this costs more than a
//! look at a flag.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::RwLock;
use sandstorm_net::rpc::{MessageHeader, RpcStatus};
use sandstorm_net::slots::{SLOTS, slot_of};

use crate::Error;
use crate::config::Config;
use crate::dispatcher::RequestDispatcher;
use crate::limits::{CLUSTER_HOPS, CLUSTER_LAST_HOP, CLUSTER_LAST_HOP_ONE_IN, CLUSTER_PAUSE, CLUSTER_SERVERS};
use crate::message::Message;

/// The connections of a client.
pub(crate) struct ServerLinks {
    config: Config,
    first: Arc<RequestDispatcher>,
    /// Whether a server has named another one.
    is_cluster: AtomicBool,
    found: RwLock<FoundServers>,
}

#[derive(Default)]
struct FoundServers {
    /// By slot: the epoch of the map, and the owner.
    owners: Vec<Option<(u64, SocketAddr)>>,
    others: Vec<(SocketAddr, Arc<RequestDispatcher>)>,
}

/// A server's word that it does not own a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyElsewhere {
    /// The epoch of the map of slots.
    epoch: u64,
    /// The owner; `None`: no server owns it at the moment.
    pub(crate) owner: Option<SocketAddr>,
}

impl KeyElsewhere {
    /// What a response of one operation says, and of which of its keys: a commit has several.
    fn of(response: &[u8]) -> Option<(&[u8], KeyElsewhere)> {
        let (_, mut operations) = MessageHeader::decode(response).ok()?;
        let answer = operations.next()?.ok()?;
        let elsewhere = KeyElsewhere::read(answer.number, answer.value);
        (answer.status == RpcStatus::WrongServer).then_some((answer.key, elsewhere))
    }

    /// The fields of an answer.
    pub(crate) fn read(epoch: u64, text: &[u8]) -> KeyElsewhere {
        let word = text.split(|byte| *byte == b' ').next().unwrap_or_default();
        KeyElsewhere { epoch, owner: std::str::from_utf8(word).ok().and_then(|word| word.parse().ok()) }
    }
}

impl ServerLinks {
    pub(crate) async fn connect(config: Config) -> Result<ServerLinks, Error> {
        let first = RequestDispatcher::connect(config.clone()).await?;
        Ok(ServerLinks { config, first, is_cluster: AtomicBool::new(false), found: RwLock::default() })
    }

    /// The connection to the server that the client began with.
    pub(crate) fn first(&self) -> &Arc<RequestDispatcher> {
        &self.first
    }

    /// Whether keys are known to be on several servers.
    pub(crate) fn is_cluster(&self) -> bool {
        self.is_cluster.load(Ordering::Relaxed)
    }

    /// Notes that keys are on several servers.
    pub(crate) fn note_cluster(&self) {
        self.is_cluster.store(true, Ordering::Relaxed);
    }

    /// Where a key was found; `None`: at the first server, or not known.
    pub(crate) fn owner(&self, key: &[u8]) -> Option<SocketAddr> {
        if !self.is_cluster() {
            return None;
        }
        self.found.read().owners.get(usize::from(slot_of(key))).copied().flatten().map(|(_, owner)| owner)
    }

    /// Notes where a key is.
    pub(crate) fn learn(&self, key: &[u8], elsewhere: KeyElsewhere) {
        self.note_cluster();
        let Some(owner) = elsewhere.owner else { return };
        let mut found = self.found.write();
        if found.owners.is_empty() {
            found.owners.resize(usize::from(SLOTS), None);
        }
        if let Some(known) = found.owners.get_mut(usize::from(slot_of(key)))
            && known.is_none_or(|(epoch, _)| epoch <= elsewhere.epoch)
        {
            *known = Some((elsewhere.epoch, owner));
        }
    }

    /// Forgets where a key was found: that server has not answered, and may have another address now.
    fn forget(&self, key: &[u8]) {
        if let Some(known) = self.found.write().owners.get_mut(usize::from(slot_of(key))) {
            *known = None;
        }
    }

    /// The connection to a server.
    pub(crate) async fn link(&self, address: Option<SocketAddr>) -> Result<Arc<RequestDispatcher>, Error> {
        let Some(address) = address.filter(|address| *address != self.config.address) else {
            return Ok(Arc::clone(&self.first));
        };
        let known =
            |found: &FoundServers| found.others.iter().find(|(at, _)| *at == address).map(|(_, link)| link.clone());
        if let Some(link) = known(&self.found.read()) {
            return Ok(link);
        }
        let link = RequestDispatcher::connect(Config { address, ..self.config.clone() }).await?;
        let mut found = self.found.write();
        // Another request may have been quicker.
        if let Some(link) = known(&found) {
            return Ok(link);
        }
        if found.others.len() >= CLUSTER_SERVERS {
            found.others.remove(0);
        }
        found.others.push((address, Arc::clone(&link)));
        Ok(link)
    }

    /// Sends a message with one operation to the server that owns its key; of several the first. If that server says
    /// that another one of them is elsewhere, no server has all: that is the response.
    pub(crate) async fn request(
        &self,
        key: &[u8],
        build: impl Fn() -> Message,
        deadline: Duration,
    ) -> Result<Bytes, Error> {
        let until = Instant::now() + deadline;
        let last_hop = CLUSTER_LAST_HOP.min(deadline / CLUSTER_LAST_HOP_ONE_IN);
        let mut at = self.owner(key);
        for hop in 1_u32.. {
            let left = until.saturating_duration_since(Instant::now());
            let asked = match self.link(at).await {
                Ok(link) => link.request(build(), left).await,
                Err(error) => Err(error),
            };
            let response = match asked {
                Ok(response) => response,
                Err(error) => {
                    if at.is_some() {
                        self.forget(key);
                    }
                    return Err(error);
                }
            };
            let Some((named, elsewhere)) = KeyElsewhere::of(&response) else { return Ok(response) };
            let is_another = !named.is_empty() && named != key;
            self.learn(if is_another { named } else { key }, elsewhere);
            match elsewhere.owner {
                Some(_) if is_another => return Ok(response),
                // Servers that learn of a change at different times send on to each other for a moment.
                Some(owner) if at != Some(owner) && hop % CLUSTER_HOPS != 0 => at = Some(owner),
                // Its owner is changing, or there is none: the first server knows when that is over.
                // With less time left the error would be a timeout, which hides that no server has the key.
                _ if Instant::now() + CLUSTER_PAUSE + last_hop < until => {
                    tokio::time::sleep(CLUSTER_PAUSE).await;
                    at = None;
                }
                _ => return Ok(response),
            }
        }
        Err(Error::WrongServer { epoch: 0, text: String::new() })
    }
}

/// A future, until it has its result.
enum SideTask<F: Future> {
    Running(Pin<Box<F>>),
    Done(F::Output),
}

/// Runs futures side by side; their results in order.
pub(crate) async fn side_by_side<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut tasks: Vec<SideTask<F>> = futures.map(|future| SideTask::Running(Box::pin(future))).collect();
    poll_fn(|context| {
        let mut is_done = true;
        for task in &mut tasks {
            let SideTask::Running(future) = task else { continue };
            match future.as_mut().poll(context) {
                Poll::Ready(output) => *task = SideTask::Done(output),
                Poll::Pending => is_done = false,
            }
        }
        if is_done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let output = |task| match task {
        SideTask::Done(output) => Some(output),
        SideTask::Running(_) => None,
    };
    tasks.into_iter().filter_map(output).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_where_a_key_is() {
        let owner = |text: &str| KeyElsewhere::read(3, text.as_bytes()).owner.map(|owner| owner.to_string());
        assert_eq!(owner("10.0.0.2:7400 owns slot 5 of the key").as_deref(), Some("10.0.0.2:7400"));
        assert_eq!(owner("[::1]:7400 owns slot 5 of the key").as_deref(), Some("[::1]:7400"));
        assert_eq!(owner("- slot 5 is changing its server; ask again"), None);
        assert_eq!(owner(""), None);
    }
}
