//! The input of `analysis` and `auth`: rows and a decision tree, users and their passwords. All follow from ids, and so
//! do the replies.

use super::keys::mix64;
use hmac_sha256::HMAC;
use std::collections::BTreeMap;

/// Numbers of a row.
const FEATURES: u64 = 8;
/// Numbers of rows and thresholds of the tree lie below this.
const NUMBER_LIMIT: u64 = 1000;
/// Decisions from the tree's root to a leaf.
const TREE_DEPTH: u32 = 6;
/// Nodes of the tree that decide; as many and one more are leaves.
const INNER_NODES: u64 = (1 << TREE_DEPTH) - 1;
/// Stands for the feature of a leaf.
const LEAF: u16 = u16::MAX;

fn row_number(id: u64, feature: u64) -> i64 {
    (mix64(id.wrapping_mul(FEATURES).wrapping_add(feature)) % NUMBER_LIMIT).cast_signed()
}

fn node_threshold(node: u64) -> i64 {
    (mix64(!node) % NUMBER_LIMIT).cast_signed()
}

/// Writes row `id`: numbers, i64 each.
pub(super) fn write_row(id: u64, value: &mut Vec<u8>) {
    value.clear();
    for feature in 0..FEATURES {
        value.extend_from_slice(&row_number(id, feature).to_le_bytes());
    }
}

/// Writes the tree, a full one: `feature u16 | left u16 | right u16 | class u16 | threshold i64` for each node.
pub(super) fn write_tree(value: &mut Vec<u8>) {
    value.clear();
    for node in 0..=2 * INNER_NODES {
        let (feature, left, right, class) = if node < INNER_NODES {
            ((node % FEATURES) as u16, (2 * node + 1) as u16, (2 * node + 2) as u16, 0)
        } else {
            (LEAF, 0, 0, (node - INNER_NODES) as u16)
        };
        for part in [feature, left, right, class] {
            value.extend_from_slice(&part.to_le_bytes());
        }
        value.extend_from_slice(&node_threshold(node).to_le_bytes());
    }
}

/// The class that the tree gives row `id`.
pub(super) fn expected_class(id: u64) -> u16 {
    let mut node = 0;
    while node < INNER_NODES {
        let left = row_number(id, node % FEATURES) <= node_threshold(node);
        node = 2 * node + if left { 1 } else { 2 };
    }
    (node - INNER_NODES) as u16
}

/// The class that the tree gives the row of that value, if it has all numbers that are asked for.
pub(super) fn classify(value: &[u8]) -> Option<u16> {
    let (numbers, _odd) = value.as_chunks::<8>();
    let mut node = 0;
    while node < INNER_NODES {
        let left = i64::from_le_bytes(*numbers.get((node % FEATURES) as usize)?) <= node_threshold(node);
        node = 2 * node + if left { 1 } else { 2 };
    }
    Some((node - INNER_NODES) as u16)
}

/// Returns the reply of `analysis` for these rows: `classified u64 | skipped u64`, then `class u16 | count u64`,
/// ascending.
pub(super) fn encode_analysis(rows: impl Iterator<Item = Option<u16>>) -> Vec<u8> {
    let (mut classes, mut skipped) = (BTreeMap::<u16, u64>::new(), 0u64);
    for class in rows {
        match class {
            Some(class) => *classes.entry(class).or_default() += 1,
            None => skipped += 1,
        }
    }
    let mut reply = [classes.values().sum::<u64>(), skipped].map(u64::to_le_bytes).concat();
    for (class, count) in classes {
        reply.extend_from_slice(&class.to_le_bytes());
        reply.extend_from_slice(&count.to_le_bytes());
    }
    reply
}

/// The password of user `id`, or one that is not.
pub(super) fn password(id: u64, right: bool) -> String {
    format!("{} of user {id}", if right { "password" } else { "no password" })
}

/// Writes the record of user `id` as `auth` stores it: `rounds u32 | salt_len u8 | salt | hash`.
pub(super) fn write_user(id: u64, rounds: u32, value: &mut Vec<u8>) {
    let salt = mix64(id ^ 0x5A17).to_le_bytes();
    value.clear();
    value.extend_from_slice(&rounds.to_le_bytes());
    value.push(salt.len() as u8);
    value.extend_from_slice(&salt);
    value.extend_from_slice(&pbkdf2(password(id, true).as_bytes(), &salt, rounds));
}

/// Returns whether a user's record matches that password.
pub(super) fn verify_password(record: &[u8], password: &[u8]) -> bool {
    let parts = record.split_first_chunk::<4>().and_then(|(rounds, rest)| {
        let (len, rest) = rest.split_first()?;
        let (salt, hash) = rest.split_at_checked(usize::from(*len))?;
        Some((u32::from_le_bytes(*rounds), salt, hash))
    });
    parts.is_some_and(|(rounds, salt, hash)| pbkdf2(password, salt, rounds).as_slice() == hash)
}

/// PBKDF2 with HMAC-SHA256, one block of output (RFC 8018).
fn pbkdf2(password: &[u8], salt: &[u8], rounds: u32) -> [u8; 32] {
    let keyed = HMAC::new(password);
    let of = |parts: [&[u8]; 2]| {
        let mut mac = keyed.clone();
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize()
    };
    let mut last = of([salt, &1u32.to_be_bytes()]);
    let mut hash = last;
    for _ in 1..rounds {
        last = of([&last, &[]]);
        hash.iter_mut().zip(last).for_each(|(to, from)| *to ^= from);
    }
    hash
}

/// The arithmetic of `aggregate`.
pub(super) fn lcg_rounds(number: u64, rounds: u32) -> u64 {
    (0..rounds).fold(number, |x, _| x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passwords_hash_is_the_published_one() {
        // RFC 7914, section 11: password "passwd", salt "salt", one round; the first block.
        let hash = pbkdf2(b"passwd", b"salt", 1);
        assert_eq!(hash[..8], [0x55, 0xac, 0x04, 0x6e, 0x56, 0xe3, 0x08, 0x9f]);
        let mut record = Vec::new();
        write_user(7, 3, &mut record);
        assert!(verify_password(&record, password(7, true).as_bytes()));
        assert!(!verify_password(&record, password(7, false).as_bytes()) && !verify_password(&record[..9], b""));
    }

    #[test]
    fn the_tree_that_is_written_gives_the_classes_that_are_expected() {
        let (mut tree, mut row) = (Vec::new(), Vec::new());
        write_tree(&mut tree);
        let u16_at = |at: usize| u16::from_le_bytes([tree[at], tree[at + 1]]);
        let i64_at = |bytes: &[u8], at: usize| i64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
        let mut classes = BTreeMap::new();
        for id in 0..1000 {
            write_row(id, &mut row);
            let mut at = 0;
            while u16_at(at) != LEAF {
                let left = i64_at(&row, 8 * usize::from(u16_at(at))) <= i64_at(&tree, at + 8);
                at = 16 * usize::from(u16_at(at + if left { 2 } else { 4 }));
            }
            assert_eq!((u16_at(at + 6), Some(expected_class(id))), (expected_class(id), classify(&row)));
            *classes.entry(expected_class(id)).or_insert(0u64) += 1;
        }
        assert!(classes.len() > 10, "rows are told apart: {classes:?}");
        let reply = encode_analysis((0..1000).map(|id| Some(expected_class(id))));
        assert_eq!((reply[..8].to_vec(), reply.len()), (1000u64.to_le_bytes().to_vec(), 16 + 10 * classes.len()));
    }
}
