//! Tasks: invocations in the run queue, with the targets of their answers.

use std::net::IpAddr;
use std::sync::Arc;

use sandstorm_catalog::TenantView;
use sandstorm_net::r2p2::PeerAddr;
use sandstorm_runtime::{InvocationHandle, PollOutcome};

use super::connections::connection_id::ConnectionId;
use super::response_assembly::ResponseId;

/// The target of an invocation's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyTarget {
    /// To the sender of a datagram.
    Datagram {
        /// The port of the request, and of its answer.
        port: u32,
        /// The operation's index in the request.
        operation: u32,
        /// Whether the answer tells what the call cost.
        with_cost: bool,
        /// The response that waits for it.
        response: ResponseId,
    },
    /// To a connection.
    Stream {
        /// The worker that has the connection.
        worker: u32,
        connection: ConnectionId,
        /// Whether the answer tells what the call cost.
        with_cost: bool,
    },
    /// To a caller in this process.
    Local {
        /// The number of its call.
        call: u64,
    },
}

/// The caller that an invocation is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct InvocationCaller {
    pub(super) target: ReplyTarget,
    /// A number of the peer that the answer goes to: mostly another one for another peer.
    pub(super) peer: u32,
    /// The number of the key that the call is about, if its caller names one beside the arguments.
    pub(super) key: Option<u64>,
    /// When the request was received, in the workers' nanoseconds.
    pub(super) received_ns: u64,
}

/// The number of a peer that is not known.
pub(super) const UNKNOWN_PEER: u32 = 0;

/// The number of a peer.
#[inline]
pub(super) fn peer_number(peer: PeerAddr) -> u32 {
    let address = match peer.ip() {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => address.to_bits() as u32,
    };
    // Clients of one machine differ by their ports, those of many machines by the ends of their addresses.
    address ^ u32::from(peer.port()) << 16
}

/// An invocation. Its reply target is stored in the invocation's user data: a task is moved with every poll, so it is
/// one word.
pub(super) struct InvocationTask {
    pub(super) invocation: InvocationHandle,
}

/// A task that ended and is not answered yet.
pub(super) struct FinishedTask {
    pub(super) task: InvocationTask,
    pub(super) outcome: PollOutcome,
}

/// Set in the first word of the user data if the reply goes to a connection.
const STREAM_FLAG: u64 = 1 << 63;
/// Set in the first word of the user data if the caller is in this process.
const LOCAL_FLAG: u64 = 1 << 62;
/// Set if the answer tells what the call cost: of a datagram beside an operation's index, which is far smaller.
const COST_FLAG: u32 = 1 << 31;

fn pack_u32s(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn unpack_u32s(pair: u64) -> (u32, u32) {
    ((pair >> 32) as u32, pair as u32)
}

impl ReplyTarget {
    fn words(self) -> [u64; 2] {
        match self {
            ReplyTarget::Datagram { port, operation, with_cost, response } => {
                let cost_flag = if with_cost { COST_FLAG } else { 0 };
                [pack_u32s(port, operation | cost_flag), response.word()]
            }
            ReplyTarget::Stream { worker, connection, with_cost } => {
                let cost_flag = if with_cost { COST_FLAG } else { 0 };
                [STREAM_FLAG | pack_u32s(worker, cost_flag), connection.word()]
            }
            ReplyTarget::Local { call } => [LOCAL_FLAG, call],
        }
    }

    /// The inverse of [`ReplyTarget::words`].
    fn from_words([first, second]: [u64; 2]) -> ReplyTarget {
        let (high, low) = unpack_u32s(first & !STREAM_FLAG);
        if first & LOCAL_FLAG != 0 {
            ReplyTarget::Local { call: second }
        } else if first & STREAM_FLAG == 0 {
            let (operation, with_cost) = (low & !COST_FLAG, low & COST_FLAG != 0);
            ReplyTarget::Datagram { port: high, operation, with_cost, response: ResponseId::from_u64(second) }
        } else {
            let with_cost = low & COST_FLAG != 0;
            ReplyTarget::Stream { worker: high, connection: ConnectionId::from_u64(second), with_cost }
        }
    }
}

impl InvocationTask {
    pub(super) fn new(mut invocation: InvocationHandle, target: ReplyTarget, received_ns: u64) -> InvocationTask {
        let [first, second] = target.words();
        invocation.set_user_data([first, second, received_ns]);
        InvocationTask { invocation }
    }

    /// The target of its answer.
    pub(super) fn reply_target(&self) -> ReplyTarget {
        let [first, second, _] = self.invocation.label();
        ReplyTarget::from_words([first, second])
    }

    /// When its request was received, in the workers' nanoseconds.
    pub(super) fn received_ns(&self) -> u64 {
        let [_, _, received_ns] = self.invocation.label();
        received_ns
    }

    /// Whether its answer leaves in the same burst as that of `other`, which has this view.
    pub(super) fn is_sent_with(&self, other: &InvocationTask, view: &Arc<TenantView>) -> bool {
        let port = |task: &InvocationTask| match task.reply_target() {
            ReplyTarget::Datagram { port, .. } => Some(port),
            ReplyTarget::Stream { .. } | ReplyTarget::Local { .. } => None,
        };
        self.invocation.view().is_some_and(|own| Arc::ptr_eq(own, view))
            && port(self).is_some_and(|own| port(other) == Some(own))
    }

    /// Its tenant's id and weight.
    pub(super) fn tenant_and_weight(&self) -> (u32, u32) {
        self.invocation.view().map_or((0, 1), |view| (view.tenant.id, view.tenant.quotas.weight))
    }

    /// Changes the number of invocations that its tenant has on a worker. Only that worker may call this.
    pub(super) fn count_live(&self, worker: usize, change: i64) {
        if let Some(view) = self.invocation.view() {
            let live = &view.tenant.usage.worker(worker).invocations_live;
            live.set(live.get().wrapping_add_signed(change));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_target_is_read_back_from_the_user_data() {
        for (one, two, three) in [(0, 0, 0), (1, 2, 3), (63, u32::MAX, 7), (5, 1 << 31, u32::MAX)] {
            let word = pack_u32s(two, three);
            let connection = ConnectionId::from_u64(word);
            let stream = |with_cost| ReplyTarget::Stream { worker: one, connection, with_cost };
            let (operation, response) = (two & !COST_FLAG, ResponseId::from_u64(word));
            let datagram = |with_cost| ReplyTarget::Datagram { port: one, operation, with_cost, response };
            let local = ReplyTarget::Local { call: word };
            for target in [datagram(false), datagram(true), stream(false), stream(true), local] {
                assert_eq!(ReplyTarget::from_words(target.words()), target);
            }
            assert_eq!((ResponseId::from_u64(word).word(), ConnectionId::from_u64(word).word()), (word, word));
        }
    }
}
