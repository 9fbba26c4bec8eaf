//! Slots: the public partition of keys, as Redis Cluster computes it. A key's slot is the CRC-16 of its tag, modulo
//! 16,384. The tag is what stands between the key's first `{` and the next `}`, if that is not empty; else the key.

/// Number of slots.
pub const SLOTS: u16 = 16_384;

/// The table of the CRC-16 of XMODEM: polynomial 0x1021, most significant bit first.
const CRC_TABLE: [u16; 256] = crc_table();

const fn crc_table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ CRC_TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

/// The part of a key that decides its slot.
#[inline]
pub fn slot_tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    let behind = &key[open + 1..];
    match behind.iter().position(|byte| *byte == b'}') {
        None | Some(0) => key,
        Some(close) => &behind[..close],
    }
}

/// The slot of a key, below [`SLOTS`].
#[inline]
pub fn slot_of(key: &[u8]) -> u16 {
    crc16(slot_tag(key)) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis_cluster() {
        // The check value of the CRC, then what `CLUSTER KEYSLOT` of Redis 7.0.15 answers.
        assert_eq!(crc16(b"123456789"), 0x31C3);
        let known: [(&[u8], u16); 9] = [
            (b"", 0),
            (b"foo", 12182),
            (b"bar", 5061),
            (b"hello", 866),
            (b"somekey", 11058),
            (b"foo{hash_tag}", 2515),
            (b"{user1000}.following", 3443),
            (b"foo{}{bar}", 8363),
            (b"foo{{bar}}zap", 4015),
        ];
        for (key, slot) in known {
            assert_eq!(slot_of(key), slot, "{}", String::from_utf8_lossy(key));
        }
    }

    #[test]
    fn a_tag_brings_keys_together() {
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"{user1000}.followers"));
        assert_eq!(slot_tag(b"a{b}c{d}"), b"b");
        assert_eq!(slot_tag(b"a}b{c}"), b"c");
        for whole in [&b"a{}b"[..], b"a{b", b"ab}", b"{}"] {
            assert_eq!(slot_tag(whole), whole, "no tag, or an empty one: all of the key");
        }
    }
}
