//! The way to a copy of this server's log, wherever it is: on another server, or in a stream.

use sandstorm_jetstream::{NatsStream, StreamReplica};
use sandstorm_log::{LogError, LogReplica, ReplicaBatch, ReplicaError, ReplicaState};

use crate::copy_coordinator::{CopyCoordinator, CopyName};
use crate::replica_link::ReplicaLink;
use crate::stream_copies::{STREAM_HOLDER, StreamCopies};

/// A copy in a stream.
pub(crate) struct StreamChannel {
    streams: StreamCopies,
    replica: StreamReplica<NatsStream>,
    owner: String,
    copy: u64,
    /// Whether the stream was found to keep what it has.
    is_checked: bool,
}

/// See the head of this file.
pub(crate) enum CopyChannel {
    Server(Box<ReplicaLink>),
    Stream(Box<StreamChannel>),
}

impl CopyChannel {
    /// One to a copy by its name, for many questions: to a server over a connection of their own, if it has such.
    ///
    /// # Errors
    /// One line: its server is not known, or streams are not.
    pub(crate) fn begin(copies: &CopyCoordinator, name: &CopyName) -> Result<CopyChannel, String> {
        CopyChannel::open(copies, name, true)
    }

    /// One for a question or two.
    ///
    /// # Errors
    /// As [`CopyChannel::begin`].
    pub(crate) fn once(copies: &CopyCoordinator, name: &CopyName) -> Result<CopyChannel, String> {
        CopyChannel::open(copies, name, false)
    }

    fn open(copies: &CopyCoordinator, name: &CopyName, is_for_many: bool) -> Result<CopyChannel, String> {
        if name.0 == STREAM_HOLDER {
            let streams = copies.streams().ok_or("it is in a stream, and this server is told of none")?.clone();
            let (owner, copy, is_checked) = (copies.own_id().to_owned(), name.1, false);
            let replica = streams.replica(&owner, copy);
            let channel = StreamChannel { streams, replica, owner, copy, is_checked };
            return Ok(CopyChannel::Stream(Box::new(channel)));
        }
        let peers = copies.peers();
        let server = peers.servers.get(&name.0).ok_or("its server has told of no address")?;
        let own = copies.own_id();
        let link = match is_for_many {
            true => ReplicaLink::begin(own, name, server, peers.peer_key),
            false => ReplicaLink::new(own, name, server, peers.peer_key),
        };
        link.map(|link| CopyChannel::Server(Box::new(link)))
    }

    /// Whether it is gone on with after trouble: what was read of a stream is not read again. A server may be elsewhere
    /// by then.
    pub(crate) fn outlives_trouble(&self) -> bool {
        matches!(self, CopyChannel::Stream(_))
    }

    /// What it has. `makes`: it is made if there is none.
    pub(crate) fn state(&mut self, epoch: u64, makes: bool) -> Result<ReplicaState, ReplicaError> {
        match self {
            CopyChannel::Server(link) => link.state(epoch, makes),
            CopyChannel::Stream(channel) => channel.state(epoch, makes),
        }
    }

    /// Has pieces taken; none is a question whether they would be.
    pub(crate) fn append(&mut self, epoch: u64, batch: &ReplicaBatch) -> Result<(), ReplicaError> {
        match self {
            CopyChannel::Server(link) => link.append(epoch, batch),
            CopyChannel::Stream(channel) => {
                channel.check_fault()?;
                channel.replica.append(epoch, batch)
            }
        }
    }

    /// Has removed what a checkpoint makes superfluous.
    pub(crate) fn trim(&mut self, epoch: u64, (checkpoint, segment): (u64, u64)) -> Result<(), ReplicaError> {
        match self {
            CopyChannel::Server(link) => link.trim(epoch, (checkpoint, segment)),
            CopyChannel::Stream(channel) => channel.replica.trim(epoch, checkpoint, segment),
        }
    }

    /// Has a copy removed that no generation has, nor will.
    pub(crate) fn remove(&mut self, epoch: u64) -> Result<(), ReplicaError> {
        match self {
            CopyChannel::Server(link) => link.remove(epoch),
            CopyChannel::Stream(channel) => {
                // One that is sealed, or that a later start has, stays.
                channel.replica.state(epoch)?;
                channel.streams.remove(&channel.owner, channel.copy).map_err(Into::into)
            }
        }
    }

    /// Whether another copy is to take its place, though it confirms all: see [`StreamReplica::is_worn`].
    pub(crate) fn is_worn(&self) -> bool {
        matches!(self, CopyChannel::Stream(channel) if channel.replica.is_worn())
    }
}

impl StreamChannel {
    fn state(&mut self, epoch: u64, makes: bool) -> Result<ReplicaState, ReplicaError> {
        self.check_fault()?;
        if !self.is_checked {
            self.streams.check(self.replica.store(), makes)?;
            self.is_checked = true;
        }
        self.replica.state(epoch)
    }

    /// A stream that keeps less than it has to is asked for nothing: what it took it might lose.
    fn check_fault(&self) -> Result<(), ReplicaError> {
        self.streams.fault(self.copy).map_or(Ok(()), |why| Err(LogError::unusable("the stream", &why).into()))
    }
}
