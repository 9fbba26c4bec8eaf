//! Where the keys of a load are, in a cluster: a connection of its own to each server that has some.
//!
//! A load begins with one server. Once that has named another one, each request goes to the server that has its key,
//! in a message with others of the same server. Without a cluster nothing is ever named, and this is a look at a flag.

use crate::links::KeyElsewhere;
use crate::message::Message;
use crate::raw::Connection;
use crate::{Config, Error};
use sandstorm_net::slots::{SLOTS, slot_of};
use std::net::SocketAddr;

/// The server that a load began with.
pub(super) const FIRST: usize = 0;
/// Times that a request is sent on from server to server before it waits for a moment.
pub(super) const MOST_HOPS: u8 = 8;

/// The connections of one sender of a load.
pub(super) struct LoadRoutes {
    config: Config,
    first: Connection,
    /// The others that were named: the first one's number is 1.
    others: Vec<(SocketAddr, Connection)>,
    /// By slot: the epoch of the map, and the number of the connection. Empty until another server was named.
    owners: Vec<(u64, usize)>,
}

impl LoadRoutes {
    pub(super) fn connect(config: &Config) -> Result<LoadRoutes, Error> {
        let first = Connection::connect(config)?;
        Ok(LoadRoutes { config: config.clone(), first, others: Vec::new(), owners: Vec::new() })
    }

    /// Whether keys are on several servers.
    #[inline]
    pub(super) fn is_cluster(&self) -> bool {
        !self.owners.is_empty()
    }

    /// The connection that it began with.
    #[inline]
    pub(super) fn first(&self) -> &Connection {
        &self.first
    }

    /// All of them.
    #[inline]
    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Connection> {
        std::iter::once(&mut self.first).chain(self.others.iter_mut().map(|(_, connection)| connection))
    }

    /// The least number of messages that one of them has room for.
    #[inline]
    pub(super) fn free_slots(&self) -> usize {
        let others = self.others.iter().map(|(_, connection)| connection.free_slots());
        others.fold(self.first.free_slots(), usize::min)
    }

    pub(super) fn retransmissions(&self) -> u64 {
        let of = |connection: &Connection| connection.counters().retransmissions;
        of(&self.first) + self.others.iter().map(|(_, connection)| of(connection)).sum::<u64>()
    }

    /// One of them by its number.
    #[inline]
    pub(super) fn connection(&mut self, number: usize) -> &mut Connection {
        match number.checked_sub(1).and_then(|place| self.others.get_mut(place)) {
            Some((_, connection)) => connection,
            None => &mut self.first,
        }
    }

    /// Which of them has a key. What names no key, as calls do, goes to the first.
    pub(super) fn owner(&self, key: &[u8]) -> usize {
        let slot = usize::from(slot_of(key));
        if key.is_empty() { FIRST } else { self.owners.get(slot).map_or(FIRST, |(_, number)| *number) }
    }

    /// Notes where a key is, as a server has said. Connects to that server, if it is new.
    ///
    /// # Errors
    /// That server cannot be reached, or no server has the key.
    pub(super) fn learn(&mut self, key: &[u8], epoch: u64, text: &str) -> Result<(), Error> {
        let unknown = || Error::WrongServer { epoch, text: text.to_owned() };
        let owner = KeyElsewhere::read(epoch, text.as_bytes()).owner.filter(|_| !key.is_empty());
        let owner = owner.ok_or_else(unknown)?;
        let number = match self.others.iter().position(|(address, _)| *address == owner) {
            Some(place) => place + 1,
            None if owner == self.config.address => FIRST,
            None => {
                let config = Config { address: owner, ..self.config.clone() };
                self.others.push((owner, Connection::connect(&config)?));
                self.others.len()
            }
        };
        if self.owners.is_empty() {
            self.owners.resize(usize::from(SLOTS), (0, FIRST));
        }
        if let Some(slot) = self.owners.get_mut(usize::from(slot_of(key)))
            && slot.0 <= epoch
        {
            *slot = (epoch, number);
        }
        Ok(())
    }
}

/// The key of a message's first operation; empty if it names none, or several.
pub(super) fn key_of(message: Message) -> Vec<u8> {
    let mut each = message.each(&[]).unwrap_or_default();
    if each.is_empty() { Vec::new() } else { each.swap_remove(0).0 }
}
