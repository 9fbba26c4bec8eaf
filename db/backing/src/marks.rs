//! Marks of dirty keys. They are records of a table of their own, which is in the log of changes where the table's
//! records are. A mark is made before its change, so a crash leaves no change without one.

use crate::object_store::WriteCondition;

/// A mark: what the change is, so that a start knows what it found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DirtyMark {
    /// Whether the key is deleted.
    pub(crate) is_delete: bool,
    /// The time at which the record counts as absent; 0: never.
    pub(crate) expires_at_ms: u64,
    /// What the backing had when the key became dirty.
    pub(crate) base: WriteCondition,
}

impl DirtyMark {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, tag) = match &self.base {
            WriteCondition::Always => (0, ""),
            WriteCondition::Absent => (1, ""),
            WriteCondition::Tag(tag) => (2, &**tag),
        };
        let mut bytes = vec![u8::from(self.is_delete), kind];
        bytes.extend_from_slice(&self.expires_at_ms.to_le_bytes());
        bytes.extend_from_slice(tag.as_bytes());
        bytes
    }

    /// Reads a mark; `None`: it is not a mark.
    pub(crate) fn decode(bytes: &[u8]) -> Option<DirtyMark> {
        let (head, tag) = bytes.split_at_checked(10)?;
        let base = match head[1] {
            0 => WriteCondition::Always,
            1 => WriteCondition::Absent,
            2 => WriteCondition::Tag(String::from_utf8(tag.to_vec()).ok()?),
            _ => return None,
        };
        let expires_at_ms = u64::from_le_bytes(head[2..].try_into().ok()?);
        Some(DirtyMark { is_delete: head[0] == 1, expires_at_ms, base })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_come_back_and_anything_else_is_none_or_one() {
        for base in [WriteCondition::Always, WriteCondition::Absent, WriteCondition::Tag("\"a-tag\"".to_owned())] {
            for (is_delete, expires_at_ms) in [(false, 0), (true, 5), (false, u64::MAX)] {
                let mark = DirtyMark { is_delete, expires_at_ms, base: base.clone() };
                assert_eq!(DirtyMark::decode(&mark.encode()), Some(mark));
            }
        }
        for len in 0..10 {
            assert_eq!(DirtyMark::decode(&vec![0; len]), None);
        }
        assert_eq!(DirtyMark::decode(&[9; 12]), None);
    }
}
