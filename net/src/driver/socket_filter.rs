//! Early drop: a program (classic BPF) that the kernel runs on every datagram before it takes room in the socket's
//! buffer. It is made for the senders that exceed their share at the moment.
//!
//! It reads two things of a datagram: its sender's address, and the tenant that it names. A request of one packet names
//! it in bytes 12..16, a sealed one in bytes 4..8; the packets of longer messages name none. A named tenant can be
//! forged, so a tenant is throttled by its name, but no datagram is let in by name. When unauthenticated senders exceed
//! their share, only addresses that have shown a tenant's token pass. Addresses are looked up by a keyed hash, so that
//! no attacker can search for another that passes.
//!
//! While there is a program, datagrams too short for its reads are dropped: no packet is so short.

use crate::r2p2::PeerAddr;
use crate::r2p2::header::{MAGIC, SINGLE_HEADER_LEN};
use std::net::IpAddr;

#[cfg(test)]
mod tests;

/// One instruction, as the kernel takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BpfInstruction {
    /// The operation.
    pub code: u16,
    /// Instructions to skip if a jump's condition holds.
    pub jt: u8,
    /// The same if it does not.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

/// Longest program that the kernel takes.
pub const MAX_INSTRUCTIONS: usize = 4096;
/// Tenants that one program throttles, at most.
pub const MAX_THROTTLED_TENANTS: usize = 128;
/// Addresses that one program knows, at most: with the tenants' part they fit in [`MAX_INSTRUCTIONS`].
pub const MAX_VERIFIED_PEERS: usize = 1024;

/// Accepted fraction of datagrams, in units of 2^-32.
pub type AcceptFraction = u32;

/// The tenants and senders that are throttled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EarlyDropFilter {
    /// Tenants, and the accepted fraction of the datagrams that name each.
    pub tenants: Vec<(u32, AcceptFraction)>,
    /// The accepted fraction of datagrams from addresses outside `known`; `None`: all.
    pub unauthenticated: Option<AcceptFraction>,
    /// Addresses that have shown a token, of tenants that are not throttled.
    pub known: Vec<PeerAddr>,
    /// Keys of the hash over addresses: random and kept for oneself.
    pub keys: [u32; 5],
}

/// The tenant that a datagram names, as the program finds it.
#[inline]
pub fn claimed_tenant(datagram: &[u8]) -> Option<u32> {
    const PLAIN: usize = (TENANT_AT - UDP_HEADER_LEN) as usize;
    const SEALED: usize = (SEALED_TENANT_AT - UDP_HEADER_LEN) as usize;
    let at = match datagram {
        [MAGIC, header_len, ..] if usize::from(*header_len) == SINGLE_HEADER_LEN => PLAIN,
        [MAGIC, ..] | [] => return None,
        _ => SEALED,
    };
    let bytes = datagram.get(at..at + 4)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

// Operations of classic BPF (linux/bpf_common.h).
const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const LOAD_X_SCRATCH: u16 = 0x61;
const STORE: u16 = 0x02;
const MULTIPLY: u16 = 0x24;
const XOR: u16 = 0xa4;
const XOR_X: u16 = 0xac;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

/// Offsets from here on stand for values that the kernel has beside the datagram (`SKF_AD_OFF`).
const ANCILLARY: u32 = 0xffff_f000;
/// The protocol of the network layer.
const PROTOCOL: u32 = ANCILLARY;
/// A random word.
const RANDOM: u32 = ANCILLARY + 56;
/// Offsets from here on stand for the network header (`SKF_NET_OFF`).
const NETWORK: u32 = 0xfff0_0000;
const PROTOCOL_IPV4: u32 = 0x0800;
/// Offset of the sender's address in a header of IPv4 and of IPv6.
const IPV4_SOURCE: u32 = 12;
const IPV6_SOURCE: u32 = 8;
/// A filter of a UDP socket sees the UDP header first, and in it the sender's port.
const UDP_HEADER_LEN: u32 = 8;
/// Offset of the tenant in a request of one packet: behind R2P2's header, four bytes into the message's.
const TENANT_AT: u32 = UDP_HEADER_LEN + SINGLE_HEADER_LEN as u32 + 4;
/// Offset of the tenant in a sealed packet.
const SEALED_TENANT_AT: u32 = UDP_HEADER_LEN + 4;

/// Addresses that are compared one by one at the end of a search.
const SEARCH_LEAF_LEN: usize = 8;

fn statement(code: u16, k: u32) -> BpfInstruction {
    BpfInstruction { code, jt: 0, jf: 0, k }
}

fn jump(code: u16, k: u32, jt: u8, jf: u8) -> BpfInstruction {
    BpfInstruction { code, jt, jf, k }
}

/// Lets in the fraction `share` of the datagrams that come here.
fn accept_some(share: AcceptFraction) -> [BpfInstruction; 4] {
    [statement(LOAD_WORD, RANDOM), jump(JUMP_AT_LEAST, share, 0, 1), statement(RETURN, 0), statement(RETURN, u32::MAX)]
}

impl EarlyDropFilter {
    /// Returns whether no sender is throttled.
    pub fn is_idle(&self) -> bool {
        self.tenants.is_empty() && self.unauthenticated.is_none()
    }

    /// Returns the program; empty if no sender is throttled. Tenants over [`MAX_THROTTLED_TENANTS`] are let in. With
    /// more than [`MAX_VERIFIED_PEERS`] known addresses all unknown ones are let in: a program that does not know every
    /// verified address would keep some of those out.
    pub fn program(&self) -> Vec<BpfInstruction> {
        let unauthenticated = self.unauthenticated.filter(|_| self.known.len() <= MAX_VERIFIED_PEERS);
        if self.tenants.is_empty() && unauthenticated.is_none() {
            return Vec::new();
        }
        let mut program = Vec::new();
        if !self.tenants.is_empty() {
            self.push_tenant_rules(&mut program);
        }
        match unauthenticated {
            None => program.push(statement(RETURN, u32::MAX)),
            Some(share) => {
                self.push_peer_hash(&mut program);
                let mut known: Vec<u32> = self.known.iter().map(|peer| self.hash(*peer)).collect();
                known.sort_unstable();
                known.dedup();
                push_peer_search(&known, share, &mut program);
            }
        }
        debug_assert!(program.len() <= MAX_INSTRUCTIONS);
        program
    }

    /// Finds the tenant that the datagram names, if it does, and decides over those that are throttled.
    fn push_tenant_rules(&self, program: &mut Vec<BpfInstruction>) {
        let tenants = self.tenants.get(..MAX_THROTTLED_TENANTS).unwrap_or(&self.tenants);
        let body = tenants.len() as u32 * 5;
        program.extend([
            statement(LOAD_BYTE, UDP_HEADER_LEN),
            jump(JUMP_EQUAL, u32::from(MAGIC), 2, 0),
            statement(LOAD_WORD, SEALED_TENANT_AT),
            statement(JUMP, 4),
            statement(LOAD_BYTE, UDP_HEADER_LEN + 1),
            jump(JUMP_EQUAL, SINGLE_HEADER_LEN as u32, 1, 0),
            statement(JUMP, body + 1),
            statement(LOAD_WORD, TENANT_AT),
        ]);
        for (tenant, share) in tenants {
            // Numbers travel little-endian; the kernel loads words in the other byte order.
            program.push(jump(JUMP_EQUAL, tenant.swap_bytes(), 0, 4));
            program.extend(accept_some(*share));
        }
    }

    /// Leaves the hash of the sender's address in the accumulator.
    fn push_peer_hash(&self, program: &mut Vec<BpfInstruction>) {
        let [first, second, third, fourth, port] = self.keys.map(|key| key | 1);
        let of_ipv4 = [
            statement(LOAD_WORD, NETWORK + IPV4_SOURCE),
            statement(MULTIPLY, fourth),
            // The words before it, were it written as an address of IPv6.
            statement(XOR, 0xffffu32.wrapping_mul(third)),
            statement(STORE, 0),
        ];
        let mut of_ipv6 =
            vec![statement(LOAD_WORD, NETWORK + IPV6_SOURCE), statement(MULTIPLY, first), statement(STORE, 0)];
        for (word, key) in (1..).zip([second, third, fourth]) {
            of_ipv6.extend([
                statement(LOAD_WORD, NETWORK + IPV6_SOURCE + 4 * word),
                statement(MULTIPLY, key),
                statement(LOAD_X_SCRATCH, 0),
                statement(XOR_X, 0),
                statement(STORE, 0),
            ]);
        }
        program.push(statement(LOAD_WORD, PROTOCOL));
        program.push(jump(JUMP_EQUAL, PROTOCOL_IPV4, 0, of_ipv4.len() as u8 + 1));
        program.extend(of_ipv4);
        program.push(statement(JUMP, of_ipv6.len() as u32));
        program.extend(of_ipv6);
        program.extend([
            statement(LOAD_HALF, 0),
            statement(MULTIPLY, port),
            statement(LOAD_X_SCRATCH, 0),
            statement(XOR_X, 0),
        ]);
    }

    /// Returns the hash that the program computes of an address.
    fn hash(&self, peer: PeerAddr) -> u32 {
        let keys = self.keys.map(|key| key | 1);
        let octets = match peer.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        let words =
            octets.chunks_exact(4).map(|word| word.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)));
        words.chain([u32::from(peer.port())]).zip(keys).fold(0, |hash, (word, key)| hash ^ word.wrapping_mul(key))
    }
}

/// Lets in the addresses whose hash is among `known` (sorted), and the fraction `share` of all others. The program is a
/// tree of comparisons, so that a datagram passes few.
fn push_peer_search(known: &[u32], share: AcceptFraction, program: &mut Vec<BpfInstruction>) {
    if known.len() <= SEARCH_LEAF_LEN {
        for (index, hash) in (0..).zip(known) {
            // This jumps to the last instruction of the verdict, which lets in.
            let left = known.len() as u8 - 1 - index;
            program.push(jump(JUMP_EQUAL, *hash, left + 3, 0));
        }
        program.extend(accept_some(share));
        return;
    }
    let (below, above) = known.split_at(known.len() / 2);
    let Some(middle) = above.first() else { return };
    let mut left = Vec::new();
    push_peer_search(below, share, &mut left);
    program.push(jump(JUMP_AT_LEAST, *middle, 0, 1));
    program.push(statement(JUMP, left.len() as u32));
    program.extend(left);
    push_peer_search(above, share, program);
}
