//! Records as objects: their names, and their bytes.
//!
//! ```text
//! "SSRB" | format u8 = 1 | 3 zeros | writer u64 | version u64 | expires_at_ms u64 | flags u32
//! | key_len u32 | value_len u32 | crc32c u32 of all that is before it and behind it | key | value
//! ```
//! All numbers are little-endian. The checksum covers the key, so an object under a wrong name is found. `writer` and
//! `version` tell a server its own writes from those of others. In the format `raw` an object is the value alone.

use crate::limits::NAME_BYTES;

const MAGIC: [u8; 4] = *b"SSRB";
const FORMAT: u8 = 1;
const CHECKSUM_AT: usize = 44;

/// Bytes of an object beside key and value.
pub(crate) const OBJECT_HEADER_BYTES: usize = 48;

/// A record as an object has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectRecord<'a> {
    /// The table that wrote it, by a random number.
    pub writer: u64,
    /// The record's version there.
    pub version: u64,
    /// Milliseconds since the Unix epoch from which on it counts as absent; 0: never.
    pub expires_at_ms: u64,
    /// The caller's flags.
    pub flags: u32,
    /// Its key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
}

impl<'a> ObjectRecord<'a> {
    /// Returns the record as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(OBJECT_HEADER_BYTES + self.key.len() + self.value.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[FORMAT, 0, 0, 0]);
        bytes.extend_from_slice(&self.writer.to_le_bytes());
        bytes.extend_from_slice(&self.version.to_le_bytes());
        bytes.extend_from_slice(&self.expires_at_ms.to_le_bytes());
        bytes.extend_from_slice(&self.flags.to_le_bytes());
        bytes.extend_from_slice(&(self.key.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(self.value.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(self.key);
        bytes.extend_from_slice(self.value);
        let checksum = checksum(&bytes);
        bytes[CHECKSUM_AT..OBJECT_HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads an object that should have the record of `key`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &'a [u8], key: &[u8]) -> Result<ObjectRecord<'a>, &'static str> {
        if bytes.len() < OBJECT_HEADER_BYTES || bytes[..4] != MAGIC {
            return Err("it is no record of Sandstorm; a table for objects of others has format=raw");
        }
        if bytes[4] != FORMAT {
            return Err("its format is of another version of this program");
        }
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
        let (key_len, value_len) = (u32_at(36) as usize, u32_at(40) as usize);
        let key_end = OBJECT_HEADER_BYTES + key_len;
        if bytes.len() != key_end.saturating_add(value_len) {
            return Err("its length is wrong");
        }
        if u32_at(CHECKSUM_AT) != checksum(bytes) {
            return Err("its checksum is wrong");
        }
        if bytes[OBJECT_HEADER_BYTES..key_end] != *key {
            return Err("it is the record of another key");
        }
        let (writer, version, expires_at_ms, flags) = (u64_at(8), u64_at(16), u64_at(24), u32_at(32));
        let (key, value) = (&bytes[OBJECT_HEADER_BYTES..key_end], &bytes[key_end..]);
        Ok(ObjectRecord { writer, version, expires_at_ms, flags, key, value })
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..CHECKSUM_AT]), &bytes[OBJECT_HEADER_BYTES..])
}

/// Returns the name of a key's object: letters, digits, `-` and `_` as they are, a dot that is not the first, and all
/// other bytes as `=` and two hexadecimal digits; a key whose name would be longer has `=-` and its SHA-256.
pub fn object_name(key: &[u8]) -> String {
    let mut name = String::with_capacity(key.len());
    for (at, byte) in key.iter().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(*byte)),
            b'.' if at > 0 => name.push('.'),
            _ => name.push_str(&format!("={byte:02X}")),
        }
        if name.len() > NAME_BYTES {
            return format!("=-{}", hex(&hmac_sha256::Hash::hash(key)));
        }
    }
    if name.is_empty() { "=".to_owned() } else { name }
}

/// Returns bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RECORD: ObjectRecord<'static> =
        ObjectRecord { writer: 7, version: 9, expires_at_ms: 11, flags: 3, key: b"a/key", value: b"value" };

    #[test]
    fn a_record_comes_back_and_each_flipped_bit_or_lost_byte_is_found() {
        let bytes = RECORD.encode();
        assert_eq!(ObjectRecord::decode(&bytes, b"a/key"), Ok(RECORD));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            ObjectRecord::decode(&flipped, b"a/key").expect_err("a bit is wrong");
        }
        for len in 0..bytes.len() {
            ObjectRecord::decode(&bytes[..len], b"a/key").expect_err("it is too short");
        }
        ObjectRecord::decode(&[&bytes[..], b"x"].concat(), b"a/key").expect_err("it is too long");
        assert_eq!(ObjectRecord::decode(&bytes, b"b/key"), Err("it is the record of another key"));
    }

    #[test]
    fn an_object_of_format_1_is_what_was_written_and_is_read_as_what_it_was() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/object-format-1.bin");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(path, RECORD.encode()).expect("written");
        }
        let golden = std::fs::read(path).expect("the file of that format");
        assert!(golden == RECORD.encode(), "the format has changed: give it a new number, and keep reading this one");
        assert_eq!(ObjectRecord::decode(&golden, RECORD.key), Ok(RECORD));
        let newer = [&golden[..4], &[FORMAT + 1], &golden[5..]].concat();
        assert_eq!(ObjectRecord::decode(&newer, RECORD.key), Err("its format is of another version of this program"));
    }

    proptest! {
        #[test]
        fn anything_is_decoded_without_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            key in proptest::collection::vec(any::<u8>(), 0..20),
        ) {
            let _either = ObjectRecord::decode(&bytes, &key);
            // As far as its lengths are looked at, too.
            let begins = [&MAGIC[..], &[FORMAT], &bytes].concat();
            prop_assert!(ObjectRecord::decode(&begins, &key).is_err(), "its checksum would have to be right");
        }

        #[test]
        fn a_record_comes_back_and_with_anything_overwritten_is_none(
            (writer, version, expires_at_ms, flags) in any::<(u64, u64, u64, u32)>(),
            key in proptest::collection::vec(any::<u8>(), 0..300),
            value in proptest::collection::vec(any::<u8>(), 0..300),
            (at, other) in any::<(prop::sample::Index, [u8; 6])>(),
        ) {
            let record = ObjectRecord { writer, version, expires_at_ms, flags, key: &key, value: &value };
            let bytes = record.encode();
            prop_assert_eq!(ObjectRecord::decode(&bytes, &key), Ok(record));
            let mut changed = bytes.clone();
            changed.iter_mut().skip(at.index(bytes.len())).zip(other).for_each(|(byte, other)| *byte = other);
            prop_assert!(changed == bytes || ObjectRecord::decode(&changed, &key).is_err());
        }
    }

    #[test]
    fn names_differ_for_keys_that_differ_and_are_names_of_files() {
        let keys = (0..=u16::MAX).map(|two| two.to_be_bytes().to_vec()).chain((0..=255).map(|one| vec![one]));
        let keys = keys.chain([b"".to_vec(), b"../".to_vec(), vec![b'a'; 201], vec![b'a'; 202], vec![0; 9_000]]);
        let mut names = std::collections::BTreeSet::new();
        for key in keys {
            let name = object_name(&key);
            assert!(!name.starts_with('.') && !name.contains('/') && !name.is_empty() && name.len() <= 255, "{name}");
            assert!(names.insert(name.clone()), "{name} twice");
        }
        assert_eq!(object_name(b"user.1/name"), "user.1=2Fname");
    }
}
