//! Tokens: 32 random bytes as text, shown once. The server stores only what is needed to recognise one, never the
//! token.
//!
//! A plain digest is enough because a generated token has 256 bits of entropy: there is nothing to guess offline.
//! Tokens that an operator writes into the configuration must be long (see [`TokenHash::of_chosen`]).

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use sandstorm_net::seal::keys::{self, TokenKeys, TokenVerifier};
use subtle::ConstantTimeEq;

/// Shortest token in bytes that an operator may choose himself.
pub const MIN_CHOSEN_TOKEN_LEN: usize = 20;

/// Longest token in bytes that is examined: bounds the work for a wrong one.
pub const MAX_TOKEN_LEN: usize = 256;

/// First word of a stored token's text form, and its version.
const TEXT_PREFIX: &str = "sandstorm-token-1";

/// The stored form of a token: a digest for comparison, and the server's half of the keys of sealed sessions. It does
/// not allow to act as the client.
#[derive(Clone, Copy)]
pub struct TokenHash {
    digest: TokenDigest,
    verifier: TokenVerifier,
}

/// The digest of a token: compares a presented token with a stored one.
#[derive(Clone, Copy)]
pub struct TokenDigest([u8; 32]);

impl TokenDigest {
    /// Whether both digests are of the same token. Takes constant time.
    #[inline]
    pub fn same(&self, other: &TokenDigest) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl TokenHash {
    /// The stored form of a token. Takes a curve operation: for tokens that are set, not for those that are presented.
    #[inline]
    pub fn of(token: &[u8]) -> TokenHash {
        TokenHash { digest: TokenDigest(keys::token_digest(token)), verifier: TokenKeys::of(token).verifier() }
    }

    /// The stored form of a token that a person chose. `None` if it is shorter than [`MIN_CHOSEN_TOKEN_LEN`], longer
    /// than [`MAX_TOKEN_LEN`], or not printable ASCII without blanks (it has to survive an HTTP header).
    #[inline]
    pub fn of_chosen(token: &str) -> Option<TokenHash> {
        let long_enough = (MIN_CHOSEN_TOKEN_LEN..=MAX_TOKEN_LEN).contains(&token.len());
        (long_enough && token.bytes().all(|b| b.is_ascii_graphic())).then(|| TokenHash::of(token.as_bytes()))
    }

    /// The digest of a presented token; `None` if it is longer than any token.
    #[inline]
    pub fn of_presented(token: &[u8]) -> Option<TokenDigest> {
        (token.len() <= MAX_TOKEN_LEN).then(|| TokenDigest(keys::token_digest(token)))
    }

    /// Whether the digest is of the same token. Takes constant time.
    #[inline]
    pub fn same(&self, presented: &TokenDigest) -> bool {
        self.digest.same(presented)
    }

    /// Does the work of a comparison for a presented token if there is none to compare it with. So the time of the
    /// answer does not tell whether the tenant exists.
    #[inline]
    pub fn refuse(token: &[u8]) {
        let unused = TokenDigest([0; 32]);
        let _same_time = std::hint::black_box(TokenHash::of_presented(token).map(|presented| presented.same(&unused)));
    }

    /// Whether `token` is the token of this stored form. Takes constant time.
    #[inline]
    pub fn matches(&self, token: &[u8]) -> bool {
        TokenHash::of_presented(token).is_some_and(|presented| self.same(&presented))
    }

    /// The server's half of the keys of sealed sessions.
    #[inline]
    pub fn verifier(&self) -> &TokenVerifier {
        &self.verifier
    }

    /// The text form, for a configuration without tokens. A reader of it can pose as this server to the tenant's
    /// clients, but not as the tenant.
    #[inline]
    pub fn to_text(&self) -> String {
        let parts = [self.digest.0, self.verifier.psk, self.verifier.public];
        parts.iter().fold(TEXT_PREFIX.to_owned(), |text, part| text + ":" + &HEXLOWER.encode(part))
    }

    /// A mark that tells it from other tokens, and tells nothing else about it.
    #[inline]
    pub fn mark(&self) -> String {
        HEXLOWER.encode(&keys::token_digest(self.to_text().as_bytes()))
    }

    /// Parses the text of [`TokenHash::to_text`]; `None` if it is malformed.
    #[inline]
    pub fn from_text(text: &str) -> Option<TokenHash> {
        let mut parts = text.strip_prefix(TEXT_PREFIX)?.strip_prefix(':')?.split(':').map(unhex);
        let (digest, psk, public) = (parts.next()??, parts.next()??, parts.next()??);
        let stored = TokenHash { digest: TokenDigest(digest), verifier: TokenVerifier { psk, public } };
        parts.next().is_none().then_some(stored)
    }
}

impl std::fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenHash(..)")
    }
}

impl std::fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenDigest(..)")
    }
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?.try_into().ok()
}

/// A new token: 64 hexadecimal digits of the operating system's randomness.
#[inline]
pub fn generate() -> String {
    HEXLOWER.encode(&rand::random::<[u8; 32]>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_recognised_and_no_other() {
        let stored = TokenHash::of(b"the token of alice");
        assert!(stored.matches(b"the token of alice"));
        assert!(
            !stored.matches(b"the token of alicf") && !stored.matches(b"") && !stored.matches(&[7; MAX_TOKEN_LEN + 1])
        );
    }

    #[test]
    fn the_text_form_holds_all_of_it_but_not_the_token() {
        let token = generate();
        let text = TokenHash::of_chosen(&token).expect("a good token").to_text();
        assert!(!text.contains(&token));
        let read = TokenHash::from_text(&text).expect("what was written");
        assert!(read.matches(token.as_bytes()) && *read.verifier() == TokenKeys::of(token.as_bytes()).verifier());
        for cut in 0..text.len() {
            assert!(TokenHash::from_text(&text[..cut]).is_none(), "cut at {cut}");
        }
        assert!(TokenHash::from_text(&(text.clone() + ":00")).is_none());
        assert!(TokenHash::from_text(&text.replace(':', "+")).is_none());
    }
}
