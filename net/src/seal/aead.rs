//! The keys of a session, one for each direction, and their use: AES-256-GCM in place with the packet's header as
//! associated data and its number as nonce.
//!
//! snow's own transport state would do the same, but knows no associated data and copies every packet; so its split
//! keys are handed to `ring`, which is what snow uses, too.

use super::limits::{HEADER_LEN, PACKETS_PER_KEY, REKEY_AFTER_PACKETS, REKEY_AFTER_US, TAG_LEN};
use super::packet::{SEAL_OVERHEAD, SealHeader};
use super::replay_window::{ReplayError, ReplayWindow};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

/// The two keys that a handshake ends with: one for each direction.
pub(super) struct DirectionKeys {
    pub(super) from_client: [u8; 32],
    pub(super) from_server: [u8; 32],
}

/// The reason why a packet was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenError {
    Replay(ReplayError),
    /// Its number is above those that these keys are used for.
    KeyExhausted,
    BadTag,
}

/// One side's keys from one handshake.
pub(super) struct SessionKeys {
    pub(super) epoch: u64,
    opening: LessSafeKey,
    sealing: LessSafeKey,
    pub(super) window: ReplayWindow,
    /// Packets sent: the next one's number.
    pub(super) sent: u64,
    made_us: u64,
}

/// Noise's nonce for AES-GCM: four zero bytes, then the number in big-endian.
fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

fn key(bytes: &[u8; 32]) -> Option<LessSafeKey> {
    UnboundKey::new(&AES_256_GCM, bytes).ok().map(LessSafeKey::new)
}

impl SessionKeys {
    fn new(epoch: u64, opening: &[u8; 32], sealing: &[u8; 32], now_us: u64) -> Option<Box<SessionKeys>> {
        let (opening, sealing) = (key(opening)?, key(sealing)?);
        Some(Box::new(SessionKeys {
            epoch,
            opening,
            sealing,
            window: ReplayWindow::default(),
            sent: 0,
            made_us: now_us,
        }))
    }

    pub(super) fn for_client(epoch: u64, split: &DirectionKeys, now_us: u64) -> Option<Box<SessionKeys>> {
        SessionKeys::new(epoch, &split.from_server, &split.from_client, now_us)
    }

    pub(super) fn for_server(epoch: u64, split: &DirectionKeys, now_us: u64) -> Option<Box<SessionKeys>> {
        SessionKeys::new(epoch, &split.from_client, &split.from_server, now_us)
    }

    /// Returns the phase in the flags of packets under these keys.
    pub(super) fn phase(&self) -> u8 {
        self.epoch as u8
    }

    /// Returns whether it is time for new keys.
    pub(super) fn need_rekey(&self, now_us: u64) -> bool {
        self.sent >= REKEY_AFTER_PACKETS
            || self.window.next() >= REKEY_AFTER_PACKETS
            || now_us.saturating_sub(self.made_us) >= REKEY_AFTER_US
    }

    /// Opens a datagram in place: the inner packet then follows the header. Returns its length. The number counts as
    /// seen only if the packet is genuine. A packet that is not genuine is overwritten.
    #[inline]
    pub(super) fn open(&mut self, number: u64, datagram: &mut [u8]) -> Result<usize, OpenError> {
        if number >= PACKETS_PER_KEY {
            return Err(OpenError::KeyExhausted);
        }
        self.window.check(number).map_err(OpenError::Replay)?;
        let (head, body) = datagram.split_at_mut_checked(HEADER_LEN).ok_or(OpenError::BadTag)?;
        let plain = self.opening.open_in_place(nonce(number), Aad::from(head), body).map_err(|_| OpenError::BadTag)?;
        self.window.take(number);
        Ok(plain.len())
    }

    /// The number of the next packet; `None` when these keys have sealed as many as they may. Each is given once.
    #[inline]
    pub(super) fn next_packet_number(&mut self) -> Option<u64> {
        let number = self.sent;
        (number < PACKETS_PER_KEY).then(|| {
            self.sent += 1;
            number
        })
    }

    /// Seals in place the bytes between header and tag of a datagram that has room for both. `number` came from
    /// [`SessionKeys::next_packet_number`], and stands in the header.
    #[inline]
    pub(super) fn seal(&self, number: u64, datagram: &mut [u8]) {
        let Some((head, rest)) = datagram.split_at_mut_checked(HEADER_LEN) else { return };
        let Some((body, tag)) = rest.len().checked_sub(TAG_LEN).and_then(|at| rest.split_at_mut_checked(at)) else {
            return;
        };
        match self.sealing.seal_in_place_separate_tag(nonce(number), Aad::from(&*head), body) {
            Ok(made) => tag.copy_from_slice(made.as_ref()),
            // Only for lengths of 64 GiB and more. Nothing that is not sealed may leave.
            Err(_) => body.fill(0),
        }
    }
}

/// A sealed packet of a few bytes.
pub(super) fn seal_small(keys: &mut SessionKeys, head: SealHeader, inner: [u8; 8]) -> Option<[u8; SEAL_OVERHEAD + 8]> {
    let number = keys.next_packet_number()?;
    let mut datagram = [0; SEAL_OVERHEAD + 8];
    datagram[..HEADER_LEN].copy_from_slice(&SealHeader { flags: keys.phase(), number, ..head }.encode());
    datagram[HEADER_LEN..HEADER_LEN + 8].copy_from_slice(&inner);
    keys.seal(number, &mut datagram);
    Some(datagram)
}
