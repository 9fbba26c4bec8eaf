//! Hashes: a checksum, a fast one for tables, one that callers cannot steer. For SHA-256 and HMAC there is the vetted
//! library `hmac-sha256`.
//!
//! ```
//! use sandstorm_api::hash::{crc32, sip13, xxh64};
//!
//! assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
//! assert_eq!(xxh64(b"", 0), 0xef46_db37_51d8_e999);
//! assert_ne!(sip13(b"key", [1, 2]), sip13(b"key", [1, 3]));
//! ```

const CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let (mut sum, mut bit) = (at as u32, 0);
        while bit < 8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
            bit += 1;
        }
        table[at] = sum;
        at += 1;
    }
    table
};

/// CRC-32 as in zip, gzip and PNG (IEEE 802.3): finds damage, and does not prevent forging.
///
/// ```
/// assert_eq!(sandstorm_api::hash::crc32(b"123456789"), 0xcbf4_3926);
/// ```
pub fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, byte| CRC_TABLE[usize::from(sum as u8 ^ byte)] ^ sum >> 8)
}

const PRIME_1: u64 = 0x9e37_79b1_85eb_ca87;
const PRIME_2: u64 = 0xc2b2_ae3d_27d4_eb4f;
const PRIME_3: u64 = 0x1656_67b1_9e37_79f9;
const PRIME_4: u64 = 0x85eb_ca77_c2b2_ae63;
const PRIME_5: u64 = 0x27d4_eb2f_1656_67c5;

fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |first| u64::from_le_bytes(*first))
}

fn xxh_round(sum: u64, input: u64) -> u64 {
    sum.wrapping_add(input.wrapping_mul(PRIME_2)).rotate_left(31).wrapping_mul(PRIME_1)
}

/// XXH64: several bytes a cycle, good for shards, samples and Bloom filters. A caller that knows the seed finds inputs
/// of equal hashes.
///
/// ```
/// assert_eq!(sandstorm_api::hash::xxh64(b"", 0), 0xef46_db37_51d8_e999);
/// ```
pub fn xxh64(bytes: &[u8], seed: u64) -> u64 {
    let mut blocks = bytes.chunks_exact(32);
    let mut sum = if bytes.len() < 32 {
        seed.wrapping_add(PRIME_5)
    } else {
        let mut lanes = [
            seed.wrapping_add(PRIME_1).wrapping_add(PRIME_2),
            seed.wrapping_add(PRIME_2),
            seed,
            seed.wrapping_sub(PRIME_1),
        ];
        for block in &mut blocks {
            for (lane, part) in lanes.iter_mut().zip(block.chunks_exact(8)) {
                *lane = xxh_round(*lane, word(part));
            }
        }
        let turned = [1, 7, 12, 18].iter().zip(lanes).map(|(bits, lane)| lane.rotate_left(*bits));
        let merged = turned.fold(0, u64::wrapping_add);
        lanes.iter().fold(merged, |sum, lane| (sum ^ xxh_round(0, *lane)).wrapping_mul(PRIME_1).wrapping_add(PRIME_4))
    };
    sum = sum.wrapping_add(bytes.len() as u64);
    let mut rest = blocks.remainder();
    while rest.len() >= 8 {
        sum = (sum ^ xxh_round(0, word(rest))).rotate_left(27).wrapping_mul(PRIME_1).wrapping_add(PRIME_4);
        rest = &rest[8..];
    }
    if let Some(four) = rest.first_chunk() {
        let input = u64::from(u32::from_le_bytes(*four)).wrapping_mul(PRIME_1);
        sum = (sum ^ input).rotate_left(23).wrapping_mul(PRIME_2).wrapping_add(PRIME_3);
        rest = &rest[4..];
    }
    for byte in rest {
        sum = (sum ^ u64::from(*byte).wrapping_mul(PRIME_5)).rotate_left(11).wrapping_mul(PRIME_1);
    }
    sum = (sum ^ sum >> 33).wrapping_mul(PRIME_2);
    sum = (sum ^ sum >> 29).wrapping_mul(PRIME_3);
    sum ^ sum >> 32
}

fn sip_round(state: &mut [u64; 4]) {
    let [mut a, mut b, mut c, mut d] = *state;
    a = a.wrapping_add(b);
    c = c.wrapping_add(d);
    b = b.rotate_left(13) ^ a;
    d = d.rotate_left(16) ^ c;
    a = a.rotate_left(32);
    c = c.wrapping_add(b);
    a = a.wrapping_add(d);
    b = b.rotate_left(17) ^ c;
    d = d.rotate_left(21) ^ a;
    c = c.rotate_left(32);
    *state = [a, b, c, d];
}

/// SipHash-1-3: a caller that does not know the key cannot choose inputs whose hashes collide.
///
/// ```
/// use sandstorm_api::hash::sip13;
/// assert_ne!(sip13(b"apple", [1, 2]), sip13(b"apple", [1, 3]), "the key matters");
/// ```
pub fn sip13(bytes: &[u8], key: [u64; 2]) -> u64 {
    let mut state = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let mut blocks = bytes.chunks_exact(8);
    let mut take = |input: u64| {
        state[3] ^= input;
        sip_round(&mut state);
        state[0] ^= input;
    };
    for block in &mut blocks {
        take(word(block));
    }
    let mut last = [0; 8];
    last[..blocks.remainder().len()].copy_from_slice(blocks.remainder());
    last[7] = bytes.len() as u8;
    take(u64::from_le_bytes(last));
    state[2] ^= 0xff;
    for _ in 0..3 {
        sip_round(&mut state);
    }
    state[0] ^ state[1] ^ state[2] ^ state[3]
}
