//! A client's counters.

/// Counters of a connection; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests taken.
    pub requests: u64,
    /// Requests answered, well or not.
    pub answered: u64,
    /// Requests that timed out.
    pub timeouts: u64,
    /// Datagrams sent, retransmissions and acknowledgements included.
    pub datagrams_sent: u64,
    /// Packets sent again because no answer came.
    pub retransmissions: u64,
    /// Datagrams received.
    pub datagrams_received: u64,
    /// Times that the server had forgotten the session and it was begun anew.
    pub sessions_renewed: u64,
}
