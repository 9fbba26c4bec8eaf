//! Derives keys from a token. The client holds the token, and so all of them. The server keeps only the digest, the
//! shared key and the *public* half of the key pair. A thief of the server's state can therefore not act as a client.
//!
//! Keys are HMAC-SHA256 under a label for each purpose: none reveals anything of another, or of the token. That
//! suffices because a token has much entropy (32 random bytes, or one that an operator was made to choose long); it is
//! not for passwords.

use ring::hmac;
use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use std::fmt;

const DIGEST_LABEL: &[u8] = b"sandstorm token digest 1";
const PSK_LABEL: &[u8] = b"sandstorm session psk 1";
const PRIVATE_LABEL: &[u8] = b"sandstorm session key 1";

/// HMAC-SHA256.
pub(super) fn hmac_sha256(key: &[u8], message: &[u8]) -> [u8; 32] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message);
    tag.as_ref().first_chunk().copied().unwrap_or_default()
}

/// The digest by which a token is compared with another.
pub fn token_digest(token: &[u8]) -> [u8; 32] {
    hmac_sha256(token, DIGEST_LABEL)
}

/// The part of a token that a server keeps in order to shake hands with its owner.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenVerifier {
    /// Key shared with the client: without it not even the first message of a handshake can be made.
    pub psk: [u8; 32],
    /// The client's X25519 public key.
    pub public: [u8; 32],
}

/// The keys that a client derives from its token in order to shake hands.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenKeys {
    /// Key shared with the server.
    pub psk: [u8; 32],
    /// The client's X25519 private key.
    pub private: [u8; 32],
}

impl TokenKeys {
    /// The keys of a token: two hashes.
    pub fn of(token: &[u8]) -> TokenKeys {
        TokenKeys { psk: hmac_sha256(token, PSK_LABEL), private: hmac_sha256(token, PRIVATE_LABEL) }
    }

    /// The server's half of them. Takes one curve operation, about 20 us.
    pub fn verifier(&self) -> TokenVerifier {
        let mut public = [0; 32];
        // The default resolver has this curve: it is one of the crate's features that this workspace asks for.
        if let Some(mut dh) = DefaultResolver.resolve_dh(&DHChoice::Curve25519) {
            dh.set(&self.private);
            public.copy_from_slice(dh.pubkey());
        }
        TokenVerifier { psk: self.psk, public }
    }
}

impl fmt::Debug for TokenVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verifier(..)")
    }
}

impl fmt::Debug for TokenKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKeys(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Digests made by the crate hmac-sha256: the states of earlier servers hold such.
    #[test]
    fn digests_that_earlier_servers_have_kept_are_good() {
        let digest = data_encoding::HEXLOWER.encode(&token_digest(b"a token"));
        assert_eq!(digest, "85677fce6cafeb3eba2497ef667aa055a668d8144dd087e71a5dcc35cbbf3188");
    }

    #[test]
    fn each_part_is_its_own_and_the_same_every_time() {
        let (one, other) = (TokenKeys::of(b"a token"), TokenKeys::of(b"another token"));
        assert!(one == TokenKeys::of(b"a token") && one.verifier() == one.verifier());
        let parts =
            [one.psk, one.private, one.verifier().public, token_digest(b"a token"), [0; 32], other.psk, other.private];
        for (index, part) in parts.iter().enumerate() {
            assert!(parts.iter().skip(index + 1).all(|later| later != part), "part {index} is its own");
        }
        assert!(!format!("{one:?} {:?}", one.verifier()).contains(&format!("{:?}", one.psk[0])));
    }
}
