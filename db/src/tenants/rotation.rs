//! New tokens without downtime: for a while, its grace, the old token works beside the new one, so that clients can be told
//! one after another. One old token at most: rotating again within the grace ends the older one's at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::error::DirectoryError;
use super::kept::{KeptOldToken, KeptToken};
use super::snapshot::TenantRef;
use super::token::TokenHash;
use super::{Directory, Tenant};
use crate::limits::tenants::OLD_TOKEN_GRACE_MAX;

/// A token that has been replaced and works on until its grace ends.
#[derive(Clone, Debug)]
pub struct OldToken {
    pub(super) token: TokenHash,
    /// The number that sessions have which were authenticated with it.
    pub(super) credential: u64,
    /// By a clock that nobody sets.
    pub(super) ends: Instant,
    /// The same for people, in milliseconds since 1970.
    pub ends_ms: u64,
}

impl OldToken {
    pub(super) fn kept(&self) -> KeptOldToken {
        KeptOldToken { token: KeptToken::of(&self.token), ends_ms: self.ends_ms }
    }
}

/// Which of a tenant's tokens was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The one that it has now.
    Current,
    /// The one before, within its grace.
    Old,
}

impl Tenant {
    /// Its old token, if that still works.
    pub fn old_token(&self) -> Option<&OldToken> {
        self.old.as_ref()
    }

    /// Which of its tokens this is. Compares with all of them, each in constant time.
    pub fn shown(&self, token: &[u8]) -> Option<Shown> {
        let presented = TokenHash::of_presented(token)?;
        let current = self.token.same(&presented);
        let old = self.old.as_ref().is_some_and(|old| old.token.same(&presented));
        if current { Some(Shown::Current) } else { old.then_some(Shown::Old) }
    }

    /// The credential that a session gets which shows `token`; `None` if it is not this tenant's.
    pub fn credential_of(&self, token: &[u8]) -> Option<u64> {
        match self.shown(token)? {
            Shown::Current => Some(self.credential),
            Shown::Old => self.old.as_ref().map(|old| old.credential),
        }
    }

    /// The credentials under which sessions may act now: the current token's, then the old one's within its grace.
    #[inline]
    pub fn credentials(&self) -> impl Iterator<Item = u64> + '_ {
        std::iter::once(self.credential).chain(self.old.as_ref().map(|old| old.credential))
    }

    /// Whether it is one of these.
    #[inline]
    pub fn has_credential(&self, credential: u64) -> bool {
        self.credential == credential || self.old.as_ref().is_some_and(|old| old.credential == credential)
    }

    /// What is kept of the tokens that work now, each with the credential of its sessions.
    pub fn verifiers(&self) -> impl Iterator<Item = (u64, &TokenHash)> {
        let current = std::iter::once((self.credential, &self.token));
        current.chain(self.old.as_ref().map(|old| (old.credential, &old.token)))
    }
}

impl Directory {
    /// Gives a tenant a new token and ends its sessions; gives the token.
    ///
    /// # Errors
    /// No such tenant.
    pub fn rotate_token<'a>(&self, tenant: impl Into<TenantRef<'a>>) -> Result<String, DirectoryError> {
        self.rotate_with_grace(tenant, Duration::ZERO)
    }

    /// Gives a tenant a new token, which works at once; the old one, and the sessions that have shown it, work until
    /// `grace` (30 days at most) is over. Gives the token.
    ///
    /// # Errors
    /// No such tenant.
    pub fn rotate_with_grace<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        grace: Duration,
    ) -> Result<String, DirectoryError> {
        let grace = grace.min(OLD_TOKEN_GRACE_MAX);
        let (token, hash) = self.new_token(None)?;
        self.change_tenant(tenant, |next, tenant| {
            let replaced = std::mem::replace(&mut tenant.token, hash);
            let credential = std::mem::replace(&mut tenant.credential, next.credential());
            let (ends, ends_ms) = (Instant::now() + grace, ms_from_now(grace));
            tenant.old = (!grace.is_zero()).then_some(OldToken { token: replaced, credential, ends, ends_ms });
            Ok(())
        })?;
        // After it can be seen: whoever looks for graces and misses this one looks again.
        self.graces.store(true, Ordering::Release);
        Ok(token)
    }

    /// Ends the grace of a tenant's old token now; `false` if there was none.
    ///
    /// # Errors
    /// No such tenant.
    pub fn revoke_old_token<'a>(&self, tenant: impl Into<TenantRef<'a>>) -> Result<bool, DirectoryError> {
        let tenant = tenant.into();
        if self.snapshot().find(tenant)?.tenant.old.is_none() {
            return Ok(false);
        }
        self.change_tenant(tenant, |_, tenant| Ok(tenant.old.take().is_some()))
    }

    /// Ends the graces that are over. Called from time to time; costs one load while no token is being rotated.
    pub fn end_graces(&self) {
        if !self.graces.swap(false, Ordering::AcqRel) {
            return;
        }
        let now = Instant::now();
        let over = |tenant: &Tenant| tenant.old.as_ref().map(|old| old.ends <= now);
        for view in self.snapshot().iter() {
            match over(&view.tenant) {
                None => continue,
                Some(false) => self.graces.store(true, Ordering::Release),
                // It may have been deleted, or rotated anew, since the snapshot was taken.
                Some(true) => {
                    // On a full disk, too: what is kept says when the grace ends.
                    let _gone = self.restrict_view(view.tenant.id, |_, view| {
                        if over(&view.tenant) == Some(true) {
                            Arc::make_mut(&mut view.tenant).old = None;
                        }
                        Ok(())
                    });
                }
            }
        }
    }
}

/// The time in `grace` from now, in milliseconds since 1970.
fn ms_from_now(grace: Duration) -> u64 {
    let since = (SystemTime::now() + grace).duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
