//! The operator's token: its stored digests, and its replacement while the server runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::now_ms;
use crate::config::{ConfigError, write_operator_token};
use sandstorm_accounts::TokenHash;
use sandstorm_accounts::token::{self as token, TokenDigest};
use sandstorm_catalog::TokenMatch;
use sandstorm_catalog::limits::OLD_TOKEN_GRACE_MAX;

/// The digests of the operator's token and of the one before it.
pub struct OperatorCredentials {
    keys: ArcSwap<OperatorTokenPair>,
    /// The state directory, where the token itself is for the command line on this machine.
    state: Option<PathBuf>,
    change_lock: Mutex<()>,
}

#[derive(Clone)]
struct OperatorTokenPair {
    current: TokenHash,
    old: Option<RetiringToken>,
}

#[derive(Clone)]
struct RetiringToken {
    token: TokenHash,
    ends: Instant,
}

impl RetiringToken {
    /// The end of its grace period by the current clock, in milliseconds since 1970; `None` when it is over.
    fn until_ms(&self) -> Option<u64> {
        let left = self.ends.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        Some(now_ms().saturating_add(u64::try_from(left.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl OperatorCredentials {
    /// The operator with that token. A new token is written into the state directory when it replaces this one.
    pub fn new(token: &str, state: Option<PathBuf>) -> OperatorCredentials {
        let keys = OperatorTokenPair { current: TokenHash::of(token.as_bytes()), old: None };
        OperatorCredentials { keys: ArcSwap::from_pointee(keys), state, change_lock: Mutex::default() }
    }

    /// The state directory, if there is one.
    pub(super) fn state_dir(&self) -> Option<&Path> {
        self.state.as_deref()
    }

    /// Returns which of the operator's tokens was presented. Compares with all of them, each in constant time.
    pub(super) fn shown(&self, presented: &TokenDigest) -> Option<TokenMatch> {
        let keys = self.keys.load();
        let current = keys.current.same(presented);
        let old = keys.old.as_ref().is_some_and(|old| old.token.same(presented) & (Instant::now() < old.ends));
        if current { Some(TokenMatch::Current) } else { old.then_some(TokenMatch::Old) }
    }

    /// Makes a new token, which works at once; the old one works until the grace period is over. Returns the token and
    /// the end of that period.
    pub(super) fn rotate(&self, grace: Duration) -> Result<(String, Option<u64>), ConfigError> {
        let _alone = self.change_lock.lock();
        let grace = grace.min(OLD_TOKEN_GRACE_MAX);
        let token = token::generate();
        // The file is first: a server that stops in between starts with a token that the operator can read.
        if let Some(state) = &self.state {
            write_operator_token(state, &token)?;
        }
        let replaced = self.keys.load().current;
        let old = (!grace.is_zero()).then(|| RetiringToken { token: replaced, ends: Instant::now() + grace });
        let until = old.as_ref().and_then(RetiringToken::until_ms);
        self.keys.store(Arc::new(OperatorTokenPair { current: TokenHash::of(token.as_bytes()), old }));
        tracing::info!(grace_s = grace.as_secs(), "the operator's token was replaced");
        Ok((token, until))
    }

    /// The end of the old token's grace period, in milliseconds since 1970; `None` if there is no old token.
    pub(super) fn old_expires_at_ms(&self) -> Option<u64> {
        self.keys.load().old.as_ref().and_then(RetiringToken::until_ms)
    }

    /// Ends the old token's grace period; `false` if there was none.
    pub(super) fn revoke_old(&self) -> bool {
        let _alone = self.change_lock.lock();
        let had = self.old_expires_at_ms().is_some();
        self.keys.store(Arc::new(OperatorTokenPair { current: self.keys.load().current, old: None }));
        had
    }

    /// Drops an old token whose grace period is over.
    pub(super) fn settle(&self) {
        if self.keys.load().old.is_some() && self.old_expires_at_ms().is_none() {
            self.revoke_old();
        }
    }
}

impl std::fmt::Debug for OperatorCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Operator(..)")
    }
}
