//! The counters of sealed sessions.

/// Counters of a server's port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SealCounters {
    /// Packets opened.
    pub opened: u64,
    /// Packets sealed.
    pub sealed: u64,
    /// Handshakes done.
    pub handshakes: u64,
    /// Packets of a session, or of keys, that is not known.
    pub unknown: u64,
    /// Packets whose tag is wrong: forged or damaged.
    pub bad_tag: u64,
    /// Packets that came before.
    pub replayed: u64,
    /// Packets too far below the newest to tell.
    pub too_old: u64,
    /// Packets that were cut short.
    pub cut: u64,
    /// Packets of an unknown version, kind or length.
    pub malformed: u64,
    /// Hellos not made with the tenant's token, or of an unknown tenant.
    pub bad_hello: u64,
    /// Hellos that came before, or are older than the session's keys.
    pub old_hello: u64,
    /// Hellos whose time was too far from the server's.
    pub clock: u64,
    /// Hellos dropped because there were too many.
    pub rate: u64,
    /// Hellos that were sent a cookie, to come again with.
    pub no_cookie: u64,
    /// Rejects sent.
    pub rejects: u64,
    /// Packets not sent because their address was not proven.
    pub unproven: u64,
    /// Times that a client's address changed.
    pub moved: u64,
    /// Sessions that had to leave for others.
    pub evicted: u64,
    /// Sessions forgotten because they were idle, or their token was replaced.
    pub ended: u64,
    /// Packets not sent or taken because their keys had been used for as many as they may.
    pub spent: u64,
    /// Packets to a session that is gone.
    pub no_session: u64,
}

impl SealCounters {
    /// The reasons for which a packet is refused, in the order of [`SealCounters::refused_by_reason`].
    pub const REASONS: [&str; 12] = [
        "unknown",
        "bad_tag",
        "replayed",
        "too_old",
        "cut",
        "malformed",
        "bad_hello",
        "old_hello",
        "clock",
        "rate",
        "no_cookie",
        "spent",
    ];

    /// Packets that were refused, by reason.
    pub fn refused_by_reason(&self) -> [(&'static str, u64); 12] {
        let counts = [
            self.unknown,
            self.bad_tag,
            self.replayed,
            self.too_old,
            self.cut,
            self.malformed,
            self.bad_hello,
            self.old_hello,
            self.clock,
            self.rate,
            self.no_cookie,
            self.spent,
        ];
        let mut index = 0;
        Self::REASONS.map(|reason| {
            index += 1;
            (reason, counts[index - 1])
        })
    }

    /// The same, all together. It is asked for with each packet, so it is no more than a sum.
    #[inline]
    pub fn refused(&self) -> u64 {
        let of_packets = self.unknown + self.bad_tag + self.replayed + self.too_old + self.cut + self.malformed;
        let of_hellos = self.bad_hello + self.old_hello + self.clock + self.rate + self.no_cookie;
        of_packets + of_hellos + self.spent
    }
}

/// Counters of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientSealCounters {
    /// Packets opened.
    pub opened: u64,
    /// Packets sealed.
    pub sealed: u64,
    /// Handshakes done.
    pub handshakes: u64,
    /// Hellos sent.
    pub hellos: u64,
    /// Rejects received.
    pub rejects: u64,
    /// Cookies received.
    pub cookies: u64,
    /// Packets of another session, or of keys that are not known.
    pub foreign: u64,
    /// Packets or welcomes whose tag is wrong.
    pub bad_tag: u64,
    /// Packets that came before.
    pub replayed: u64,
    /// Packets that were cut short.
    pub cut: u64,
    /// Packets that are not sealed.
    pub plain: u64,
    /// Packets of an unknown version, kind or length.
    pub malformed: u64,
    /// Packets dropped because their keys had been used for as many as they may.
    pub spent: u64,
    /// Packets dropped because there was no session yet.
    pub unsealed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_refused_packets_are_those_of_every_reason() {
        let counters = SealCounters {
            unknown: 1,
            bad_tag: 2,
            replayed: 4,
            too_old: 8,
            cut: 16,
            malformed: 32,
            bad_hello: 64,
            old_hello: 128,
            clock: 256,
            rate: 512,
            no_cookie: 1024,
            spent: 2048,
            ..SealCounters::default()
        };
        assert_eq!(counters.refused(), 4095);
        assert_eq!(counters.refused(), counters.refused_by_reason().iter().map(|(_, count)| count).sum::<u64>());
    }
}
