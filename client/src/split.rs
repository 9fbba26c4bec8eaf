//! Messages whose keys are on several servers: each server gets its part.

use std::net::SocketAddr;

use crate::Error;
use crate::client::Client;
use crate::limits;
use crate::links::{KeyElsewhere, side_by_side};
use crate::message::{Message, Record, Reply};

/// Rounds in which a server's part is sent in one message. In the first one not all owners need be known.
const ROUNDS: usize = 2;

impl Client {
    /// Sends the operations of a message that have no reply yet to the servers that own their keys. Those on one key
    /// stay in their order.
    pub(crate) async fn send_parts(
        &self,
        message: Message,
        mut replies: Vec<Option<Result<Reply, Error>>>,
    ) -> Result<Vec<Result<Reply, Error>>, Error> {
        let operations = message.each(self.calls_key())?;
        replies.resize_with(operations.len(), || None);
        for _ in 0..ROUNDS {
            let mut parts: Vec<(Option<SocketAddr>, Vec<usize>, Message)> = Vec::new();
            for (place, (key, operation)) in
                operations.iter().enumerate().filter(|(place, _)| replies[*place].is_none())
            {
                let at = if key.is_empty() { self.place() } else { self.links.owner(key) };
                match parts.iter_mut().find(|(known, ..)| *known == at) {
                    None => parts.push((at, vec![place], operation.clone())),
                    Some((_, places, part)) => {
                        places.push(place);
                        part.append(operation);
                    }
                }
            }
            if parts.is_empty() {
                break;
            }
            let ask = |(at, _, part): &(Option<SocketAddr>, Vec<usize>, Message)| {
                let (client, part) = (self.at(*at), part.clone());
                async move { client.all(part).await }
            };
            let asked = side_by_side(parts.iter().map(ask)).await;
            for ((_, places, _), found) in parts.iter().zip(asked) {
                for (place, reply) in places.iter().zip(found?) {
                    replies[*place] = self.settled(&operations[*place].0, reply);
                }
            }
        }
        let mut all = Vec::with_capacity(replies.len());
        for ((key, operation), reply) in operations.iter().zip(replies) {
            all.push(match reply {
                Some(reply) => reply,
                None => self.keyed(key, || operation.clone()).await,
            });
        }
        Ok(all)
    }

    /// A reply, unless it says that the key is elsewhere, which is noted.
    pub(crate) fn settled(&self, key: &[u8], reply: Result<Reply, Error>) -> Option<Result<Reply, Error>> {
        match reply {
            Err(Error::WrongServer { epoch, text }) if !key.is_empty() => {
                self.links.learn(key, KeyElsewhere::read(epoch, text.as_bytes()));
                None
            }
            reply => Some(reply),
        }
    }

    /// Reads records whose keys may be on several servers.
    pub(crate) async fn multi_get_parts<K: AsRef<[u8]>>(
        &self,
        table: u64,
        keys: &[K],
    ) -> Result<Vec<Option<Record>>, Error> {
        let mut parts: Vec<(Option<SocketAddr>, Vec<usize>)> = Vec::new();
        for (place, key) in keys.iter().enumerate() {
            let owner = self.links.owner(key.as_ref());
            match parts.iter_mut().find(|(at, _)| *at == owner) {
                Some((_, places)) => places.push(place),
                None => parts.push((owner, vec![place])),
            }
        }
        let asked = side_by_side(parts.iter().map(|(at, places)| self.part(*at, table, keys, places))).await;
        let mut records = vec![None; keys.len()];
        for ((_, places), found) in parts.iter().zip(asked) {
            for (place, record) in places.iter().zip(found?) {
                records[*place] = record;
            }
        }
        Ok(records)
    }

    /// Reads the keys at these places, which are thought to be at one server; each alone if they are not.
    async fn part<K: AsRef<[u8]>>(
        &self,
        at: Option<SocketAddr>,
        table: u64,
        keys: &[K],
        places: &[usize],
    ) -> Result<Vec<Option<Record>>, Error> {
        let part: Vec<&[u8]> = places.iter().filter_map(|place| keys.get(*place)).map(AsRef::as_ref).collect();
        let message = Message::of(|message| message.multi_get(table, &part));
        let at = self.at(at);
        match at.records(message, part.len()).await {
            Err(Error::WrongServer { .. }) => {}
            other => return other,
        }
        let mut records = Vec::with_capacity(part.len());
        for some in part.chunks(limits::CLUSTER_KEYS) {
            for record in side_by_side(some.iter().map(|key| self.get(table, key))).await {
                records.push(record?);
            }
        }
        Ok(records)
    }
}
