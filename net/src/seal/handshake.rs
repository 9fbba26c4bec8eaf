//! The handshake, `Noise_KNpsk0_25519_AESGCM_SHA256`: one round trip.
//!
//! ```text
//! -> psk, e          the hello: it cannot be made without the token; its check costs the server only hashes
//! <- e, ee, se       the welcome: the server shows that it knows the shared key, the client that it has the private one
//! ```
//! Because of `ee` a token stolen later opens nothing that was recorded before. The server has no key pair of its own:
//! a thief of its state can pose as this server, but not as a client.

use super::aead::DirectionKeys;
use super::keys::{TokenKeys, TokenVerifier};
use super::limits::{HEADER_LEN, HELLO_LEN, TAG_LEN, WELCOME_LEN};

use snow::params::NoiseParams;
use snow::{Builder, HandshakeState};
use std::sync::OnceLock;

/// The name of the handshake.
pub const NOISE_PATTERN: &str = "Noise_KNpsk0_25519_AESGCM_SHA256";
/// The beginning of the handshake's prologue; the hello's header follows, so no byte of it can be changed.
const PROLOGUE: &[u8; 16] = b"sandstorm seal 1";

/// Bytes of the hello's sealed payload: the client's time in milliseconds, u64, and 8 bytes of 0.
pub(super) const HELLO_PAYLOAD_LEN: usize = 16;
/// Bytes of the welcome's sealed payload: the server's time in milliseconds, u64.
pub(super) const WELCOME_PAYLOAD_LEN: usize = 8;

fn params() -> Option<NoiseParams> {
    static PARAMS: OnceLock<Option<NoiseParams>> = OnceLock::new();
    PARAMS.get_or_init(|| NOISE_PATTERN.parse().ok()).clone()
}

fn prologue(head: &[u8; HEADER_LEN]) -> [u8; 16 + HEADER_LEN] {
    let mut bytes = [0; 16 + HEADER_LEN];
    bytes[..16].copy_from_slice(PROLOGUE);
    bytes[16..].copy_from_slice(head);
    bytes
}

/// The client's side. Nothing here fails unless the library lacks what it is built with; the answers are optional
/// because neither side may panic over a packet.
pub(super) struct NoiseInitiator(Box<HandshakeState>);

impl NoiseInitiator {
    /// Begins a handshake. `ephemeral` fixes the key that is otherwise random: for documentation and tests.
    pub(super) fn new(
        keys: &TokenKeys,
        head: &[u8; HEADER_LEN],
        payload: &[u8; HELLO_PAYLOAD_LEN],
        ephemeral: Option<&[u8; 32]>,
    ) -> Option<(NoiseInitiator, [u8; HELLO_LEN])> {
        let prologue = prologue(head);
        let mut builder = Builder::new(params()?).prologue(&prologue).ok()?;
        builder = builder.local_private_key(&keys.private).ok()?.psk(0, &keys.psk).ok()?;
        if let Some(ephemeral) = ephemeral {
            builder = builder.fixed_ephemeral_key_for_testing_only(ephemeral);
        }
        let mut state = Box::new(builder.build_initiator().ok()?);
        let mut hello = [0; HELLO_LEN];
        hello[..HEADER_LEN].copy_from_slice(head);
        let written = state.write_message(payload, hello.get_mut(HEADER_LEN..)?).ok()?;
        (written == HELLO_LEN - HEADER_LEN).then_some((NoiseInitiator(state), hello))
    }

    /// Takes the welcome's part behind its header. The keys, and the payload. A welcome that is not genuine changes
    /// nothing.
    pub(super) fn read(&mut self, message: &[u8]) -> Option<(DirectionKeys, [u8; WELCOME_PAYLOAD_LEN])> {
        let mut payload = [0; WELCOME_PAYLOAD_LEN + TAG_LEN];
        let read = self.0.read_message(message, &mut payload).ok()?;
        if read != WELCOME_PAYLOAD_LEN || !self.0.is_handshake_finished() {
            return None;
        }
        Some((direction_keys(&mut self.0), *payload.first_chunk()?))
    }
}

/// The server's side, after the hello was found to be made with the token.
pub(super) struct NoiseResponder(Box<HandshakeState>);

impl NoiseResponder {
    /// Reads a hello's part behind its header: hashes and one AES, no curve operation. `None` if it was not made with
    /// the token; else also its payload.
    pub(super) fn read(
        verifier: &TokenVerifier,
        head: &[u8; HEADER_LEN],
        message: &[u8],
        ephemeral: Option<&[u8; 32]>,
    ) -> Option<(NoiseResponder, [u8; HELLO_PAYLOAD_LEN])> {
        let prologue = prologue(head);
        let mut builder = Builder::new(params()?).prologue(&prologue).ok()?;
        builder = builder.remote_public_key(&verifier.public).ok()?.psk(0, &verifier.psk).ok()?;
        if let Some(ephemeral) = ephemeral {
            builder = builder.fixed_ephemeral_key_for_testing_only(ephemeral);
        }
        let mut state = Box::new(builder.build_responder().ok()?);
        let mut payload = [0; HELLO_PAYLOAD_LEN + TAG_LEN];
        let read = state.read_message(message, &mut payload).ok()?;
        if read != HELLO_PAYLOAD_LEN {
            return None;
        }
        Some((NoiseResponder(state), *payload.first_chunk()?))
    }

    /// Ends the handshake: three curve operations. The welcome with this header, and the keys.
    pub(super) fn answer(
        mut self,
        head: &[u8; HEADER_LEN],
        payload: &[u8; WELCOME_PAYLOAD_LEN],
    ) -> Option<([u8; WELCOME_LEN], DirectionKeys)> {
        let mut welcome = [0; WELCOME_LEN];
        welcome[..HEADER_LEN].copy_from_slice(head);
        let written = self.0.write_message(payload, welcome.get_mut(HEADER_LEN..)?).ok()?;
        (written == WELCOME_LEN - HEADER_LEN).then(|| (welcome, direction_keys(&mut self.0)))
    }
}

fn direction_keys(state: &mut HandshakeState) -> DirectionKeys {
    let (from_client, from_server) = state.dangerously_get_raw_split();
    DirectionKeys { from_client, from_server }
}
