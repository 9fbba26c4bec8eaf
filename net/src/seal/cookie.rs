//! Cookies: with one a client shows, before the server computes anything for it, that it receives at the address that
//! its hello seems to come from.
//!
//! A hello is cheap to make up, and telling it from a genuine one takes hashes. As long as few come, each is checked.
//! Under a flood, half of a port's checks is kept for hellos with a cookie, which the port sends to the address that a
//! hello came from. No address has more than its part of that half. So a sender that forges addresses is left with the
//! other half, and a sender with few addresses has little. Nothing is remembered of a hello that is sent a cookie.

use super::keys::hmac_sha256;
use super::limits::{COOKIE_ADDRESSES, COOKIE_LEN, COOKIE_LIFETIME_US};
use super::session_table::SealSessionId;
use crate::r2p2::PeerAddr;
use crate::rate_limiter::{RateLimit, RateLimiter};
use hashbrown::HashMap;
use ring::rand::{SecureRandom, SystemRandom};
use std::net::IpAddr;

pub(super) type HelloCookie = [u8; COOKIE_LEN];

/// Makes a port's cookies, and tracks the addresses that have brought some.
pub(super) struct CookieIssuer {
    /// The keys of this period and of the one before, each with its period: even ones first. A cookie's first bit says
    /// which.
    keys: [Option<(u64, [u8; 32])>; 2],
    /// The rate of hellos that may still be checked for each address.
    addresses: HashMap<IpAddr, RateLimiter>,
    address_limit: RateLimit,
}

impl CookieIssuer {
    pub(super) fn new(address_limit: RateLimit) -> CookieIssuer {
        CookieIssuer { keys: [None; 2], addresses: HashMap::new(), address_limit }
    }

    /// The cookie of a session's hello from this address. `None` if the system has no random numbers.
    pub(super) fn make(
        &mut self,
        now_us: u64,
        from: PeerAddr,
        name: SealSessionId,
        random: &SystemRandom,
    ) -> Option<HelloCookie> {
        let period = now_us / COOKIE_LIFETIME_US;
        let which = (period & 1) as usize;
        let slot = self.keys.get_mut(which)?;
        if slot.is_none_or(|(of, _)| of != period) {
            let mut key = [0; 32];
            random.fill(&mut key).ok()?;
            *slot = Some((period, key));
        }
        self.of(which, from, name)
    }

    /// Returns whether a cookie is that of this session's hello from this address, made in this period or the one
    /// before.
    pub(super) fn knows(&self, now_us: u64, from: PeerAddr, name: SealSessionId, cookie: &HelloCookie) -> bool {
        let period = now_us / COOKIE_LIFETIME_US;
        let which = usize::from(cookie[0] & 1);
        let lately = self.keys[which].is_some_and(|(of, _)| period.wrapping_sub(of) <= 1);
        let Some(made) = self.of(which, from, name).filter(|_| lately) else { return false };
        made.iter().zip(cookie).fold(0, |differs, (one, other)| differs | (one ^ other)) == 0
    }

    /// Takes one of the checks that the address may have. The address has proven that it exists, so a sender cannot
    /// fill this list with those of others.
    pub(super) fn may_check(&mut self, now_us: u64, from: PeerAddr) -> bool {
        if self.addresses.len() >= COOKIE_ADDRESSES {
            self.addresses.retain(|_, rate| !rate.is_at_rest(now_us));
            if self.addresses.len() >= COOKIE_ADDRESSES {
                self.addresses.clear();
            }
        }
        self.addresses.entry(source_network(from)).or_default().admit(&self.address_limit, now_us)
    }

    fn of(&self, which: usize, from: PeerAddr, name: SealSessionId) -> Option<HelloCookie> {
        let (_, key) = self.keys.get(which)?.as_ref()?;
        let mut named = [0; 30];
        let ip = match from.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        named[..16].copy_from_slice(&ip.octets());
        named[16..18].copy_from_slice(&from.port().to_le_bytes());
        named[18..22].copy_from_slice(&name.0.to_le_bytes());
        named[22..].copy_from_slice(&name.1.to_le_bytes());
        let mut cookie: HelloCookie = *hmac_sha256(key, &named).first_chunk()?;
        cookie[0] = cookie[0] & !1 | which as u8;
        Some(cookie)
    }
}

/// Returns the network that an address is counted under: for IPv6 the 64 bits that one machine is given.
fn source_network(peer: PeerAddr) -> IpAddr {
    match peer.ip().to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() >> 64 << 64).into()),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_good_for_its_address_and_session_and_for_its_life() {
        let random = SystemRandom::new();
        let (at, name) = (PeerAddr::from(([192, 0, 2, 1], 9)), (7, 70));
        let mut cookies = CookieIssuer::new(RateLimit::per_second(10));
        assert!(!cookies.knows(0, at, name, &[0; COOKIE_LEN]) && !cookies.knows(0, at, name, &[1; COOKIE_LEN]));
        let cookie = cookies.make(0, at, name, &random).unwrap();
        assert!(cookies.knows(0, at, name, &cookie));
        let elsewhere = [PeerAddr::from(([192, 0, 2, 1], 10)), PeerAddr::from(([192, 0, 2, 2], 9))];
        assert!(elsewhere.iter().all(|other| !cookies.knows(0, *other, name, &cookie)));
        assert!(!cookies.knows(0, at, (8, 70), &cookie) && !cookies.knows(0, at, (7, 71), &cookie));
        for bit in 0..8 * COOKIE_LEN {
            let mut forged = cookie;
            forged[bit / 8] ^= 1 << (bit % 8);
            assert!(!cookies.knows(0, at, name, &forged), "bit {bit}");
        }
        assert!(cookies.knows(COOKIE_LIFETIME_US, at, name, &cookie), "the key before the present one is still good");
        let next = cookies.make(COOKIE_LIFETIME_US, at, name, &random).unwrap();
        assert!(next != cookie && cookies.knows(COOKIE_LIFETIME_US, at, name, &next));
        assert!(!cookies.knows(2 * COOKIE_LIFETIME_US, at, name, &cookie), "older ones are not");
        assert!(
            cookies.knows(2 * COOKIE_LIFETIME_US, at, name, &next)
                && !cookies.knows(9 * COOKIE_LIFETIME_US, at, name, &next)
        );
    }

    #[test]
    fn an_address_has_its_part_and_the_list_of_them_has_an_end() {
        let mut cookies = CookieIssuer::new(RateLimit::per_second(10));
        let at: PeerAddr = "[2001:db8::1]:9".parse().unwrap();
        let near: PeerAddr = "[2001:db8::ffff:2]:10".parse().unwrap();
        assert_eq!((0..100).filter(|_| cookies.may_check(0, at)).count(), 10);
        assert!(!cookies.may_check(0, near), "it has the same part");
        for other in 0..5 * COOKIE_ADDRESSES as u32 {
            assert!(cookies.may_check(0, PeerAddr::from((std::net::Ipv4Addr::from_bits(other), 1))));
            assert!(cookies.addresses.len() <= COOKIE_ADDRESSES);
        }
    }
}
