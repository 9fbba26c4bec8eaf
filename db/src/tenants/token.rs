//! Tokens: 32 random bytes as text, shown once, kept as a SHA-256 digest.
//!
//! A plain digest is enough because a generated token has 256 bits of entropy: there is nothing to guess offline. Tokens
//! that an operator writes into the configuration must be long (see [`TokenHash::of_chosen`]).

use sha2::{Digest, Sha256};

/// Shortest token in bytes that an operator may choose himself.
pub const MIN_CHOSEN_TOKEN_LEN: usize = 20;

/// Longest token in bytes that is looked at: bounds the work of a wrong one.
pub const MAX_TOKEN_LEN: usize = 256;

/// The digest of a token: what the server keeps.
#[derive(Clone, Copy)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// The digest of a token.
    pub fn of(token: &[u8]) -> TokenHash {
        TokenHash(Sha256::digest(token).into())
    }

    /// The digest of a token that a person chose; `None` if it is shorter than [`MIN_CHOSEN_TOKEN_LEN`], longer than
    /// [`MAX_TOKEN_LEN`], or holds anything but printable ASCII without blanks (it has to survive an HTTP header).
    pub fn of_chosen(token: &str) -> Option<TokenHash> {
        let long_enough = (MIN_CHOSEN_TOKEN_LEN..=MAX_TOKEN_LEN).contains(&token.len());
        (long_enough && token.bytes().all(|b| b.is_ascii_graphic())).then(|| TokenHash::of(token.as_bytes()))
    }

    /// The digest of a token that someone presents; `None` if it is longer than any token.
    pub fn of_presented(token: &[u8]) -> Option<TokenHash> {
        (token.len() <= MAX_TOKEN_LEN).then(|| TokenHash::of(token))
    }

    /// Whether both are of the same token. Takes the same time wherever they differ.
    pub fn same(&self, other: &TokenHash) -> bool {
        same_bytes(&self.0, &other.0)
    }

    /// Whether `token` is the one this digest was made of. Takes the same time wherever they differ.
    pub fn matches(&self, token: &[u8]) -> bool {
        TokenHash::of_presented(token).is_some_and(|presented| self.same(&presented))
    }
}

impl std::fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenHash(..)")
    }
}

/// Compares all bytes, whatever the first ones say.
fn same_bytes(left: &[u8; 32], right: &[u8; 32]) -> bool {
    let difference = left.iter().zip(right).fold(0u8, |sum, (l, r)| std::hint::black_box(sum | (l ^ r)));
    difference == 0
}

/// A new token: 64 hexadecimal digits of the operating system's randomness.
pub fn generate() -> String {
    let bytes: [u8; 32] = rand::random();
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
