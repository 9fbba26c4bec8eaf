//! Counters of a worker's stack.

use super::wire::FrameDropReason;

/// Counters of a worker's stack since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackCounters {
    refused: [u64; FrameDropReason::ALL.len()],
    /// Frames received.
    pub frames_in: u64,
    /// Frames sent that carry no datagram: answers and questions of the stack itself.
    pub frames_own: u64,
    /// Frames of the stack itself that were lost because the queue was full.
    pub frames_lost: u64,
    /// Questions for an address of this interface that were answered.
    pub questions_answered: u64,
    /// Echoes answered.
    pub echoes_answered: u64,
    /// Datagrams to closed ports that were answered.
    pub closed_answered: u64,
    /// Accepted messages of routers that a packet was too large for a link behind them.
    pub too_big_received: u64,
    /// Datagrams handed over to another worker.
    pub handed_over: u64,
    /// Datagrams not sent because they do not fit a packet of the interface.
    pub too_large: u64,
    /// Datagrams not sent because there is no route to their address.
    pub no_route: u64,
    /// Datagrams that waited for a neighbour's address.
    pub awaiting_neighbour: u64,
    /// Datagrams not sent because the neighbour is silent, or too many waited for it.
    pub unresolved: u64,
}

/// The reason why a datagram is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendDropReason {
    /// It does not fit a packet of the interface.
    TooLarge,
    /// There is no route to its address.
    NoRoute,
    /// Its neighbour is silent, or too many wait for it.
    Unresolved,
}

impl StackCounters {
    pub(super) fn drop(&mut self, why: SendDropReason) {
        match why {
            SendDropReason::TooLarge => self.too_large += 1,
            SendDropReason::NoRoute => self.no_route += 1,
            SendDropReason::Unresolved => self.unresolved += 1,
        }
    }

    #[inline]
    pub(super) fn refuse(&mut self, why: FrameDropReason) {
        if let Some(counter) = self.refused.get_mut(why as usize) {
            *counter += 1;
        }
    }

    pub(super) fn count_drops(&mut self, why: FrameDropReason, count: usize) {
        if let Some(counter) = self.refused.get_mut(why as usize) {
            *counter += count as u64;
        }
    }

    /// Returns the number of frames dropped for this reason.
    pub fn refused(&self, why: FrameDropReason) -> u64 {
        self.refused.get(why as usize).copied().unwrap_or(0)
    }

    /// Returns the number of frames dropped, by reason.
    pub fn by_reason(&self) -> impl Iterator<Item = (FrameDropReason, &'static str, u64)> {
        FrameDropReason::ALL.iter().zip(self.refused).map(|((why, name), count)| (*why, *name, count))
    }

    /// Returns the number of frames that no sound neighbour sends.
    pub fn malformed(&self) -> u64 {
        self.by_reason().filter(|(why, ..)| why.is_malformed()).map(|(.., count)| count).sum()
    }

    /// Returns the number of frames dropped, for whatever reason.
    pub fn total_dropped(&self) -> u64 {
        self.refused.iter().sum()
    }

    /// Returns the number of datagrams not sent.
    pub fn unsent(&self) -> u64 {
        self.too_large + self.no_route + self.unresolved
    }

    /// Returns all counters, by name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let named = [
            ("frames_in", self.frames_in),
            ("frames_own", self.frames_own),
            ("frames_lost", self.frames_lost),
            ("questions_answered", self.questions_answered),
            ("echoes_answered", self.echoes_answered),
            ("closed_answered", self.closed_answered),
            ("too_big_heard", self.too_big_received),
            ("handed_over", self.handed_over),
            ("too_large", self.too_large),
            ("no_route", self.no_route),
            ("held", self.awaiting_neighbour),
            ("unresolved", self.unresolved),
        ];
        named.into_iter().chain(self.by_reason().map(|(_, name, count)| (name, count)))
    }
}
