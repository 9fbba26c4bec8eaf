//! The messages of a stream that is a replica.
//!
//! ```text
//! message: magic "SJET" | format u32 | kind u8 | zero, 3 bytes | epoch u64 | writer u64 | behind u64
//!   | part u32 | parts u32 | CRC-32C of the message before u32 | payload | CRC-32C of all before u32
//! ```
//! Numbers are little-endian. `behind` is the sequence of the message before; `writer` is the random number of the
//! handle that has sent it. Kinds: 1, an epoch begins, or goes on with another sender; 2, a part of a batch; 3, a trim
//! (payload: checkpoint u64, segment u64); 4, a question whether it would take more; 5, the seal.

/// The format that is written here. Another one is refused.
const FORMAT: u32 = 1;
const MAGIC: &[u8; 4] = b"SJET";
const HEAD_BYTES: usize = 48;
const CRC_BYTES: usize = 4;

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// An epoch begins, or another sender goes on in it.
    Enter,
    /// A part of a batch.
    Pieces,
    /// What a checkpoint makes superfluous is gone.
    Trim,
    /// A question whether more would be taken.
    Question,
    /// Nothing is taken any more.
    Seal,
}

const KINDS: [MessageKind; 5] =
    [MessageKind::Enter, MessageKind::Pieces, MessageKind::Trim, MessageKind::Question, MessageKind::Seal];

/// The head of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageHead {
    pub(crate) kind: MessageKind,
    pub(crate) epoch: u64,
    pub(crate) writer: u64,
    /// The sequence of the message before.
    pub(crate) behind: u64,
    /// The number of this part of a batch, and that of all.
    pub(crate) part: u32,
    pub(crate) parts: u32,
    /// The checksum of the message before.
    pub(crate) chain: u32,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

impl MessageHead {
    /// Returns the bytes that are sent, and their checksum.
    pub(crate) fn encode(&self, payload: &[u8]) -> (Vec<u8>, u32) {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + payload.len() + CRC_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        let kind = KINDS.iter().position(|kind| *kind == self.kind).map_or(0, |at| at as u8 + 1);
        bytes.extend_from_slice(&[kind, 0, 0, 0]);
        for number in [self.epoch, self.writer, self.behind] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for number in [self.part, self.parts, self.chain] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(payload);
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        (bytes, crc)
    }

    /// Reads a message: its head, its payload and its checksum.
    ///
    /// # Errors
    /// One line: it is damaged, of another format, or none of ours.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(MessageHead, &[u8], u32), String> {
        let damaged = || "a message is damaged, or none of Sandstorm's".to_owned();
        let (checked, crc) = bytes.split_at_checked(bytes.len().saturating_sub(CRC_BYTES)).ok_or_else(damaged)?;
        let crc = u32_at(crc, 0).ok_or_else(damaged)?;
        if !checked.starts_with(MAGIC) || checked.len() < HEAD_BYTES || crc32c::crc32c(checked) != crc {
            return Err(damaged());
        }
        match u32_at(checked, 4) {
            Some(FORMAT) => {}
            format => {
                let format = format.unwrap_or_default();
                return Err(format!(
                    "a message has format {format}, which another version of this program has written"
                ));
            }
        }
        let kind = usize::from(checked[8]).checked_sub(1).and_then(|at| KINDS.get(at)).copied();
        let (kind, zeros) = (kind.ok_or_else(damaged)?, &checked[9..12]);
        if zeros != [0; 3] {
            return Err(damaged());
        }
        let numbers = |at| u64_at(checked, at).unwrap_or_default();
        let small = |at| u32_at(checked, at).unwrap_or_default();
        let head = MessageHead {
            kind,
            epoch: numbers(12),
            writer: numbers(20),
            behind: numbers(28),
            part: small(36),
            parts: small(40),
            chain: small(44),
        };
        Ok((head, &checked[HEAD_BYTES..], crc))
    }
}

/// The payload of a trim.
pub(crate) fn encode_trim(checkpoint: u64, segment: u64) -> Vec<u8> {
    [checkpoint.to_le_bytes(), segment.to_le_bytes()].concat()
}

/// Reads it: the checkpoint and the segment that stay.
pub(crate) fn decode_trim(payload: &[u8]) -> Option<(u64, u64)> {
    Some((u64_at(payload, 0)?, u64_at(payload, 8)?)).filter(|_| payload.len() == 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_and_whatever_changes_of_it_is_found() {
        for kind in KINDS {
            let head =
                MessageHead { kind, epoch: u64::MAX, writer: 7, behind: 1 << 40, part: 1, parts: 3, chain: 0xdead };
            let (bytes, crc) = head.encode(b"payload");
            assert_eq!(MessageHead::decode(&bytes), Ok((head, b"payload".as_slice(), crc)));
            for at in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[at / 8] ^= 1 << (at % 8);
                assert!(MessageHead::decode(&flipped).is_err(), "bit {at}");
            }
            for end in 0..bytes.len() {
                assert!(MessageHead::decode(&bytes[..end]).is_err(), "cut off at {end}");
            }
        }
    }

    #[test]
    fn another_format_is_refused_by_its_number() {
        let head = MessageHead { kind: MessageKind::Seal, epoch: 1, writer: 2, behind: 3, part: 0, parts: 1, chain: 0 };
        let (mut bytes, _) = head.encode(b"");
        bytes[4] = 2;
        let end = bytes.len() - 4;
        let crc = crc32c::crc32c(&bytes[..end]).to_le_bytes();
        bytes[end..].copy_from_slice(&crc);
        assert!(MessageHead::decode(&bytes).unwrap_err().contains("format 2"));
    }

    #[test]
    fn a_trim_is_two_numbers_and_nothing_else() {
        assert_eq!(decode_trim(&encode_trim(7, u64::MAX)), Some((7, u64::MAX)));
        assert_eq!((decode_trim(&[0; 15]), decode_trim(&[0; 17])), (None, None));
    }
}
