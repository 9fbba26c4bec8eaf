//! Counters of a server's endpoint, and its memory in use.

use super::MalformedCounters;

/// An endpoint's counters since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct R2p2ServerCounters {
    /// Datagrams taken.
    pub datagrams: u64,
    /// Datagrams that were no packets for a server.
    pub malformed: MalformedCounters,
    /// Requests of one packet delivered.
    pub single_requests: u64,
    /// Longer requests delivered.
    pub long_requests: u64,
    /// Packets of longer requests that had been received before.
    pub duplicates: u64,
    /// Packets of longer requests that were complete already: answered with an ack, or with the response.
    pub repeated: u64,
    /// Packets of a transmission that a newer one of the same request has replaced, or of another shape.
    pub outdated: u64,
    /// Requests refused with a drop for lack of room.
    pub requests_dropped: u64,
    /// Responses refused with a drop for lack of room.
    pub responses_dropped: u64,
    /// Requests under reassembly given up because no packet came.
    pub partials_timed_out: u64,
    /// Messages under way, in or out, that had to begin anew because their owner had more of them than another that
    /// needed room.
    pub evicted: u64,
    /// Responses of one packet sent.
    pub single_responses: u64,
    /// Longer responses begun.
    pub long_responses: u64,
    /// Longer responses that were under way already when they were handed over again.
    pub responses_in_flight: u64,
    /// Packets of responses resent.
    pub retransmissions: u64,
    /// Longer responses given up because they were not acked.
    pub responses_timed_out: u64,
    /// Acks sent.
    pub acks_sent: u64,
    /// Acks for a response that is not under way.
    pub stray_acks: u64,
}

/// Memory in use by an endpoint; all zero when nothing is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerUsage {
    /// Requests under reassembly.
    pub partials: usize,
    /// Their bytes.
    pub partial_bytes: usize,
    /// Responses that wait for acks.
    pub outgoing: usize,
    /// Their bytes.
    pub outgoing_bytes: usize,
    /// Complete longer requests that are remembered.
    pub completed: usize,
    /// Peers with anything of the above but `completed`.
    pub peers: usize,
}
