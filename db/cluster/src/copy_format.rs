//! What the servers of a cluster say to each other when slots move: requests as JSON, answers as JSON and records.
//!
//! An answer is the length of its head (four bytes, little endian), the head as JSON, and the records, each with a
//! header of 41 bytes: kind (1: a record, 0: there is none), tenant (4), table (8), flags (4), version (8),
//! milliseconds of its end (8), lengths of key and value (4 each); then key and value.

use sandstorm_catalog::TableDurability;
use sandstorm_store::RestoredRecord;
use serde::{Deserialize, Serialize};

/// Bytes of a record's header.
const RECORD_HEADER_BYTES: usize = 49;

/// What is asked of the source of a move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum CopyAsk {
    /// Note from here on which keys change. The answer has the tables.
    Begin,
    /// The next records of a table: from the first one on (0), or what the answer before has said.
    Page { tenant: u32, table: u64, serial: u64, cursor: u64 },
    /// Records of the keys that have changed.
    Changes,
    /// Serve the slots no more. The answer has the tables with their highest versions.
    Freeze,
    /// Serve the slots again: this attempt goes on, and freezes them later. Earlier versions refuse it, which ends the
    /// attempt.
    Thaw,
    /// All is on the target's disk: hand the slots over.
    Ready,
    /// This attempt goes on: the target does something else now.
    Alive,
    /// This attempt is over: serve the slots.
    Abandon,
    /// The slots of this attempt are handed over: whether calls are made for all changes from before. Earlier versions
    /// do not know the question.
    Called,
}

/// A request of the target of a move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CopyRequest {
    /// The target's id.
    pub(crate) target: String,
    /// The move.
    pub(crate) move_id: u64,
    /// The target's number for this attempt.
    pub(crate) attempt: u64,
    pub(crate) ask: CopyAsk,
}

/// A table of the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CopiedTable {
    pub(crate) tenant: u32,
    pub(crate) table: u64,
    /// By which the servers tell it from another table that had its id.
    pub(crate) serial: u64,
    /// The highest version that it has given.
    pub(crate) version: u64,
    /// What tells its backing from another server's under the same URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) backing: Option<String>,
    /// What a crash may take of its records there, and its number in the log (0: none). Earlier versions do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) logged: Option<LoggedTable>,
}

/// How a table is logged at a server.
pub(crate) type LoggedTable = (TableDurability, u64);

/// A table that was emptied at the source while it is copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EmptiedTable {
    pub(crate) tenant: u32,
    pub(crate) table: u64,
    pub(crate) serial: u64,
}

/// The head of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CopyHead {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tables: Vec<CopiedTable>,
    /// Tables of which all that came before is to be removed, before the records of this answer are taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) emptied: Vec<EmptiedTable>,
    /// Where the next page begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<u64>,
    /// Whether there may be more keys that have changed.
    #[serde(default)]
    pub(crate) has_more: bool,
    /// Bytes of the keys that have changed and are not copied again yet.
    #[serde(default)]
    pub(crate) noted: u64,
    /// Whether nothing is frozen now: etcd does not answer the source, or it says why.
    #[serde(default)]
    pub(crate) waits: bool,
    /// Why nothing is frozen now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) waits_for: Option<String>,
    /// Whether the slots are handed over.
    #[serde(default)]
    pub(crate) handed_over: bool,
}

/// An answer, that of the records as they are sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopyAnswer {
    pub(crate) head: CopyHead,
    pub(crate) records: Vec<u8>,
}

/// A key of a table, with its record or without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopiedKey<'a> {
    pub(crate) tenant: u32,
    pub(crate) table: u64,
    pub(crate) serial: u64,
    pub(crate) key: &'a [u8],
    pub(crate) record: Option<RestoredRecord<'a>>,
}

impl CopyAnswer {
    /// Adds a key.
    pub(crate) fn push(&mut self, copied: &CopiedKey<'_>) {
        let none = RestoredRecord { version: 0, key: copied.key, value: b"", flags: 0, expires_at_ms: 0 };
        let record = copied.record.unwrap_or(none);
        let into = &mut self.records;
        into.push(u8::from(copied.record.is_some()));
        into.extend_from_slice(&copied.tenant.to_le_bytes());
        into.extend_from_slice(&copied.table.to_le_bytes());
        into.extend_from_slice(&copied.serial.to_le_bytes());
        into.extend_from_slice(&record.flags.to_le_bytes());
        into.extend_from_slice(&record.version.to_le_bytes());
        into.extend_from_slice(&record.expires_at_ms.to_le_bytes());
        into.extend_from_slice(&(copied.key.len() as u32).to_le_bytes());
        into.extend_from_slice(&(record.value.len() as u32).to_le_bytes());
        into.extend_from_slice(copied.key);
        into.extend_from_slice(record.value);
    }

    /// The bytes that are sent.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, String> {
        let head = serde_json::to_vec(&self.head).map_err(|error| error.to_string())?;
        let mut bytes = Vec::with_capacity(4 + head.len() + self.records.len());
        bytes.extend_from_slice(&(head.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(&self.records);
        Ok(bytes)
    }

    /// Reads what was sent.
    pub(crate) fn decode(bytes: &[u8]) -> Result<CopyAnswer, String> {
        let damaged = || "the source's answer is damaged".to_owned();
        let (length, rest) = bytes.split_at_checked(4).ok_or_else(damaged)?;
        let length = u32_at(length, 0) as usize;
        let (head, records) = rest.split_at_checked(length).ok_or_else(damaged)?;
        let head = serde_json::from_slice(head).map_err(|_| damaged())?;
        Ok(CopyAnswer { head, records: records.to_vec() })
    }

    /// Its keys. A damaged key is an error, and the last item.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Result<CopiedKey<'_>, String>> {
        let mut rest = self.records.as_slice();
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let read = read_key(rest);
            rest = read.map_or(&[], |(_, rest)| rest);
            Some(read.map(|(key, _)| key).ok_or_else(|| "the source's answer is damaged".to_owned()))
        })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// A key from the front of `bytes`, and the rest.
fn read_key(bytes: &[u8]) -> Option<(CopiedKey<'_>, &[u8])> {
    let (header, rest) = bytes.split_at_checked(RECORD_HEADER_BYTES)?;
    let (key, rest) = rest.split_at_checked(u32_at(header, 41) as usize)?;
    let (value, rest) = rest.split_at_checked(u32_at(header, 45) as usize)?;
    let record = RestoredRecord {
        version: u64_at(header, 25),
        key,
        value,
        flags: u32_at(header, 21),
        expires_at_ms: u64_at(header, 33),
    };
    let record = match header.first()? {
        0 => None,
        1 => Some(record),
        _ => return None,
    };
    let (tenant, table, serial) = (u32_at(header, 1), u64_at(header, 5), u64_at(header, 13));
    Some((CopiedKey { tenant, table, serial, key, record }, rest))
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn answers_come_back_as_they_were_and_damage_is_said() {
        let mut random = StdRng::seed_from_u64(5);
        for _ in 0..200 {
            let words: Vec<Vec<u8>> =
                (0..12).map(|_| (0..random.random_range(0..40)).map(|_| random.random()).collect()).collect();
            let key = |pair: &[Vec<u8>], random: &mut StdRng| {
                let (version, expires_at_ms, flags) = (random.random(), random.random(), random.random());
                (
                    random.random(),
                    random.random(),
                    pair.to_vec(),
                    random.random::<bool>().then_some((version, expires_at_ms, flags)),
                )
            };
            let keys: Vec<_> = words.chunks(2).map(|pair| key(pair, &mut random)).collect();
            let keys: Vec<CopiedKey<'_>> = keys
                .iter()
                .map(|(tenant, table, pair, record)| CopiedKey {
                    tenant: *tenant,
                    table: *table,
                    serial: table.rotate_left(7),
                    key: &pair[0],
                    record: record.map(|(version, expires_at_ms, flags)| RestoredRecord {
                        version,
                        key: &pair[0],
                        value: &pair[1],
                        flags,
                        expires_at_ms,
                    }),
                })
                .collect();
            let mut answer =
                CopyAnswer { head: CopyHead { next: Some(7), ..CopyHead::default() }, ..Default::default() };
            keys.iter().for_each(|key| answer.push(key));
            let bytes = answer.encode().unwrap();
            let read = CopyAnswer::decode(&bytes).unwrap();
            assert_eq!(read.keys().collect::<Result<Vec<_>, _>>().as_deref(), Ok(keys.as_slice()));
            let cut = random.random_range(0..bytes.len());
            let short = CopyAnswer::decode(&bytes[..cut]);
            if let Ok(short) = short {
                let read: Vec<_> = short.keys().collect();
                assert!(
                    read.len() <= keys.len()
                        && read.iter().zip(&keys).all(|(read, key)| match read {
                            Ok(read) => read == key,
                            Err(_) => true,
                        })
                );
            }
            let mut flipped = bytes.clone();
            let at = random.random_range(0..flipped.len());
            flipped[at] ^= 1 << random.random_range(0..8);
            // Whatever it says, it ends, and nothing panics.
            let _whatever = CopyAnswer::decode(&flipped).map(|answer| answer.keys().count());
        }
    }
}
