//! The internet checksum: the inverted sum, with the carry added back, of 16-bit words.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A sum in progress.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::stack) struct InternetChecksum {
    /// The sum of words in the machine's byte order: the result is in that order, too.
    total: u64,
    /// An odd number of bytes was added.
    odd: bool,
}

impl InternetChecksum {
    /// Adds bytes that follow those before.
    #[inline]
    pub(in crate::stack) fn add(&mut self, bytes: &[u8]) {
        let mut total = 0u64;
        let mut words = bytes.chunks_exact(4);
        for word in &mut words {
            // A packet has at most 2^16 words: no overflow.
            total += u64::from(word.try_into().map_or(0, u32::from_ne_bytes));
        }
        let mut last = [0; 4];
        let rest = words.remainder();
        if let Some(tail) = last.get_mut(..rest.len()) {
            tail.copy_from_slice(rest);
        }
        total += u64::from(u32::from_ne_bytes(last));
        // Bytes that begin within a word are summed as if they did not; then the sum's bytes are swapped.
        let folded = fold(total);
        self.total += u64::from(if self.odd { folded.swap_bytes() } else { folded });
        self.odd ^= bytes.len() % 2 == 1;
    }

    /// Adds one number.
    #[inline]
    pub(in crate::stack) fn add_u16(&mut self, number: u16) {
        self.total += u64::from(number.to_be());
    }

    /// Starts a sum with the pseudo header of a payload of `len` bytes.
    #[inline]
    pub(in crate::stack) fn pseudo_header(from: IpAddr, to: IpAddr, protocol: u8, len: usize) -> InternetChecksum {
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => InternetChecksum::pseudo_header_v4(from, to, protocol, len),
            (IpAddr::V6(from), IpAddr::V6(to)) => InternetChecksum::pseudo_header_v6(from, to, protocol, len),
            _ => InternetChecksum::default(),
        }
    }

    /// See [`InternetChecksum::pseudo_header`].
    #[inline]
    pub(in crate::stack) fn pseudo_header_v4(
        from: Ipv4Addr,
        to: Ipv4Addr,
        protocol: u8,
        len: usize,
    ) -> InternetChecksum {
        let words = |ip: Ipv4Addr| u64::from(u32::from_ne_bytes(ip.octets()));
        let mut sum = InternetChecksum { total: words(from) + words(to), odd: false };
        sum.add_u16(u16::from(protocol));
        sum.add_u16(len as u16);
        sum
    }

    /// See [`InternetChecksum::pseudo_header`].
    #[inline]
    pub(in crate::stack) fn pseudo_header_v6(
        from: Ipv6Addr,
        to: Ipv6Addr,
        protocol: u8,
        len: usize,
    ) -> InternetChecksum {
        let mut sum = InternetChecksum::default();
        sum.add(&from.octets());
        sum.add(&to.octets());
        sum.add_u16(u16::from(protocol));
        sum.add_u16(len as u16);
        sum
    }

    /// Returns the folded sum: all ones over bytes that contain their checksum.
    #[inline]
    pub(in crate::stack) fn folded(self) -> u16 {
        u16::from_be(fold(self.total))
    }

    /// Returns the checksum to be written.
    #[inline]
    pub(in crate::stack) fn checksum(self) -> u16 {
        !self.folded()
    }
}

#[inline]
fn fold(mut sum: u64) -> u16 {
    sum = (sum & 0xFFFF_FFFF) + (sum >> 32);
    sum = (sum & 0xFFFF_FFFF) + (sum >> 32);
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum as u16
}

/// Returns the checksum of bytes whose checksum field holds zero.
#[cfg(any(test, feature = "fuzzing"))]
pub(in crate::stack) fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = InternetChecksum::default();
    sum.add(bytes);
    sum.checksum()
}

/// Returns whether bytes that contain their checksum have the right one.
#[inline]
pub(in crate::stack) fn is_valid(bytes: &[u8]) -> bool {
    let mut sum = InternetChecksum::default();
    sum.add(bytes);
    sum.folded() == 0xFFFF
}
