//! The key that a call of an extension is about, as a number.

/// A number of a key, spread evenly: what a request says of the key that its call is about, and what calls are divided
/// by between the versions of an extension. It is the same in each protocol and in each version of the server.
pub fn call_key(bytes: &[u8]) -> u64 {
    // FNV-1a, then the finalizer of SplitMix64: its low digits are even.
    let sum = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    let mixed = (sum ^ (sum >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_keys_are_part_of_the_protocol() {
        // Computed apart from this code; docs/wire.md has the first two.
        let known: [(&[u8], u64); 4] = [
            (b"", 0xf52a_15e9_a9b5_e89b),
            (b"ann", 0x8096_e52a_d559_ed80),
            (b"user-7", 0x9e12_4c98_a398_664e),
            (b"\x00\xff", 0xa70b_ee94_c6c8_447b),
        ];
        for (key, number) in known {
            assert_eq!(call_key(key), number, "{}", String::from_utf8_lossy(key));
        }
    }
}
