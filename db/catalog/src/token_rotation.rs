//! New tokens without downtime: during a grace period the old token works beside the new one, so that clients can be
//! told one after another. There is at most one old token: a second rotation ends the older one at once.
//!
//! A grace period runs by elapsed time, so setting the clock does not change its length. Its end is computed from the
//! current clock. Elapsed time is not measured across a restart, so both are persisted: the rest of the period, and its
//! end by the clock. The smaller of the two counts then. They are written again when the clock has been set, and when a
//! tenth of the period has passed. So a wrong clock while the server is down ends a period early, or extends it by a
//! tenth.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::error::DirectoryError;
use super::journal::{JournalOldToken, JournalToken};
use super::tenant_ref::TenantRef;
use super::token_match::TokenMatch;
use super::{Directory, TenantAccount};
use crate::limits::OLD_TOKEN_GRACE_MAX;
use sandstorm_accounts::token::TokenHash;

/// A token that has been replaced and still works until its grace period ends.
#[derive(Clone, Debug)]
pub struct OldToken {
    pub(super) token: TokenHash,
    /// The credential of the sessions that were authenticated with it.
    pub(super) credential: u64,
    /// The end of its grace period by the monotonic clock.
    ends: Instant,
    /// The persisted values: its end by the clock, in milliseconds since 1970, and the rest of its grace period.
    pub(super) recorded_ends_ms: u64,
    recorded_left_ms: u64,
}

/// A moment, by the monotonic clock and by the time of day.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockReading {
    elapsed: Instant,
    wall_ms: u64,
}

impl ClockReading {
    pub(super) fn now() -> ClockReading {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        ClockReading { elapsed: Instant::now(), wall_ms: ms(since) }
    }
}

impl OldToken {
    /// A token that still works for the time `left`.
    fn with_grace(token: TokenHash, credential: u64, left: Duration, now: ClockReading) -> OldToken {
        let (recorded_left_ms, ends) = (ms(left), now.elapsed + left);
        OldToken {
            token,
            credential,
            ends,
            recorded_ends_ms: now.wall_ms.saturating_add(recorded_left_ms),
            recorded_left_ms,
        }
    }

    /// The end of its grace period by the current clock, in milliseconds since 1970.
    pub fn until_ms(&self) -> u64 {
        self.until_ms_at(ClockReading::now())
    }

    fn until_ms_at(&self, now: ClockReading) -> u64 {
        now.wall_ms.saturating_add(ms(self.left(now)))
    }

    fn left(&self, now: ClockReading) -> Duration {
        self.ends.saturating_duration_since(now.elapsed)
    }

    /// Whether the persisted end is outdated: the clock was set, or a good part of the period has passed.
    fn needs_recording(&self, now: ClockReading) -> bool {
        let passed_ms = self.recorded_left_ms.saturating_sub(ms(self.left(now)));
        let was_set = self.until_ms_at(now).abs_diff(self.recorded_ends_ms) > CLOCK_SLACK_MS;
        was_set || passed_ms > CLOCK_SLACK_MS && passed_ms > self.recorded_left_ms / 10
    }

    pub(super) fn kept(&self) -> JournalOldToken {
        let (ends_ms, left_ms) = (self.recorded_ends_ms, Some(self.recorded_left_ms));
        JournalOldToken { token: JournalToken::of(&self.token), ends_ms, left_ms }
    }

    /// Restores a persisted token, if its grace period is not over. The clock may have been set meanwhile: no token
    /// gets more than was left, or than the longest period.
    pub(super) fn restored(kept: &JournalOldToken, credential: u64, now: ClockReading) -> Option<OldToken> {
        let left_ms = kept.ends_ms.saturating_sub(now.wall_ms).min(kept.left_ms.unwrap_or(u64::MAX));
        let left = Duration::from_millis(left_ms).min(OLD_TOKEN_GRACE_MAX);
        let token = kept.token.read().filter(|_| !left.is_zero())?;
        Some(OldToken::with_grace(token, credential, left, now))
    }
}

impl TenantAccount {
    /// Its old token, if that still works.
    pub fn old_token(&self) -> Option<&OldToken> {
        self.old.as_ref()
    }

    /// Returns which of its tokens this is. Compares with all of them, each in constant time.
    pub fn shown(&self, token: &[u8]) -> Option<TokenMatch> {
        let presented = TokenHash::of_presented(token)?;
        let current = self.token.same(&presented);
        let old = self.old.as_ref().is_some_and(|old| old.token.same(&presented));
        if current { Some(TokenMatch::Current) } else { old.then_some(TokenMatch::Old) }
    }

    /// The credential of a session with `token`; `None` if it is not this tenant's.
    pub fn credential_of(&self, token: &[u8]) -> Option<u64> {
        match self.shown(token)? {
            TokenMatch::Current => Some(self.credential),
            TokenMatch::Old => self.old.as_ref().map(|old| old.credential),
        }
    }

    /// The credentials under which sessions may act now: the current token's, then the old one's within its grace.
    #[inline]
    pub fn credentials(&self) -> impl Iterator<Item = u64> + '_ {
        std::iter::once(self.credential).chain(self.old.as_ref().map(|old| old.credential))
    }

    /// Whether `credential` is one of these.
    #[inline]
    pub fn has_credential(&self, credential: u64) -> bool {
        self.credential == credential || self.old.as_ref().is_some_and(|old| old.credential == credential)
    }

    /// The stored forms of the tokens that work now, each with the credential of its sessions.
    pub fn verifiers(&self) -> impl Iterator<Item = (u64, &TokenHash)> {
        let current = std::iter::once((self.credential, &self.token));
        current.chain(self.old.as_ref().map(|old| (old.credential, &old.token)))
    }
}

impl Directory {
    /// Gives a tenant a new token, which is returned, and ends its sessions.
    ///
    /// # Errors
    /// No such tenant.
    pub fn rotate_token<'a>(&self, tenant: impl Into<TenantRef<'a>>) -> Result<String, DirectoryError> {
        self.rotate_with_grace(tenant, Duration::ZERO)
    }

    /// Gives a tenant a new token, which works at once and is returned. The old one, and its sessions, work until
    /// `grace` (30 days at most) is over.
    ///
    /// # Errors
    /// No such tenant.
    pub fn rotate_with_grace<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        grace: Duration,
    ) -> Result<String, DirectoryError> {
        self.rotate_at(tenant, grace, ClockReading::now())
    }

    fn rotate_at<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        grace: Duration,
        now: ClockReading,
    ) -> Result<String, DirectoryError> {
        let grace = grace.min(OLD_TOKEN_GRACE_MAX);
        let (token, hash) = self.new_token(None)?;
        self.change_tenant(tenant, |next, tenant| {
            let replaced = std::mem::replace(&mut tenant.token, hash);
            let credential = std::mem::replace(&mut tenant.credential, next.credential());
            tenant.old = (!grace.is_zero()).then(|| OldToken::with_grace(replaced, credential, grace, now));
            Ok(())
        })?;
        // Set after it is visible: a check for grace periods that misses this one is repeated.
        self.has_graces.store(true, Ordering::Release);
        Ok(token)
    }

    /// Ends the grace period of a tenant's old token now; `false` if there was none.
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

    /// Ends expired grace periods, and persists the rest of others. Called periodically; costs one load while there is
    /// no old token.
    pub fn expire_graces(&self) {
        if self.has_graces.load(Ordering::Acquire) {
            self.expire_graces_at(ClockReading::now());
        }
    }

    fn expire_graces_at(&self, now: ClockReading) {
        if !self.has_graces.swap(false, Ordering::AcqRel) {
            return;
        }
        let over = |tenant: &TenantAccount| tenant.old.as_ref().map(|old| old.ends <= now.elapsed);
        for view in self.snapshot().iter() {
            match over(&view.tenant) {
                None => continue,
                Some(false) => {
                    self.has_graces.store(true, Ordering::Release);
                    if view.tenant.old.as_ref().is_some_and(|old| old.needs_recording(now)) {
                        // A period that cannot be written now is written the next time.
                        let _tried = self.change_tenant(view.tenant.id, |_, tenant| {
                            tenant.old = tenant.old.take().map(|old| {
                                let left = old.left(now);
                                OldToken::with_grace(old.token, old.credential, left, now)
                            });
                            Ok(())
                        });
                    }
                }
                // The tenant may have been deleted, or rotated again, since the snapshot was taken.
                Some(true) => {
                    // On a full disk, too: the persisted state has the end of the grace period.
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

/// Deviation of the clock above which it counts as set: time servers slew it all the time.
const CLOCK_SLACK_MS: u64 = 1_000;

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NewTenant;
    use sandstorm_store::Epochs;

    const HOUR_MS: u64 = 3_600_000;
    const GRACE: Duration = Duration::from_secs(3600);

    /// A running clock that can be set.
    struct Clocks(ClockReading);

    impl Clocks {
        fn pass(&mut self, minutes: u64) {
            self.0.elapsed += Duration::from_secs(60 * minutes);
            self.0.wall_ms += 60_000 * minutes;
        }
    }

    /// A tenant whose token was rotated under a clock that is ten hours ahead.
    fn rotated(clocks: &Clocks) -> std::sync::Arc<Directory> {
        let directory = Directory::new(Epochs::new());
        directory.create_tenant(NewTenant::named("shop")).expect("a tenant");
        directory.rotate_at("shop", GRACE, clocks.0).expect("rotated");
        directory
    }

    fn old(directory: &Directory) -> Option<OldToken> {
        directory.snapshot().by_name("shop").expect("it is there").tenant.old.clone()
    }

    /// The rest of its grace period after a restart, in milliseconds.
    fn left_after_restart(directory: &Directory, clocks: &Clocks) -> Option<u64> {
        let kept = old(directory)?.kept();
        Some(ms(OldToken::restored(&kept, 1, clocks.0)?.left(clocks.0)))
    }

    #[test]
    fn a_grace_that_began_under_a_wrong_clock_is_shown_and_kept_as_long_as_it_is() {
        let true_ms = 1_800_000_000_000;
        for wrong_ms in [true_ms + 10 * HOUR_MS, true_ms - 10 * HOUR_MS] {
            let mut clocks = Clocks(ClockReading { elapsed: Instant::now(), wall_ms: wrong_ms });
            let directory = rotated(&clocks);
            clocks.pass(10);
            clocks.0.wall_ms = true_ms;
            let shown = old(&directory).expect("its grace").until_ms_at(clocks.0);
            assert_eq!(shown - true_ms, 50 * 60_000, "by the clock as it stands now");
            directory.expire_graces_at(clocks.0);
            assert_eq!(left_after_restart(&directory, &clocks), Some(50 * 60_000), "and a restart makes it no other");
            clocks.pass(49);
            directory.expire_graces_at(clocks.0);
            assert!(old(&directory).is_some());
            clocks.pass(1);
            directory.expire_graces_at(clocks.0);
            assert!(old(&directory).is_none(), "it ends when its time has elapsed");
        }
    }

    #[test]
    fn a_clock_that_is_set_while_the_server_is_down_makes_a_grace_hardly_longer() {
        let mut clocks = Clocks(ClockReading { elapsed: Instant::now(), wall_ms: 1_800_000_000_000 });
        let directory = rotated(&clocks);
        for _minute in 0..50 {
            clocks.pass(1);
            directory.expire_graces_at(clocks.0);
        }
        assert_eq!(left_after_restart(&directory, &clocks), Some(10 * 60_000));
        clocks.0.wall_ms -= 100 * HOUR_MS;
        let left_ms = left_after_restart(&directory, &clocks).expect("not over");
        assert!((10 * 60_000..=12 * 60_000).contains(&left_ms), "{left_ms} ms, and not an hour anew");
        clocks.0.wall_ms += 200 * HOUR_MS;
        assert_eq!(left_after_restart(&directory, &clocks), None, "by that clock it is over");
    }

    #[test]
    fn what_was_kept_before_this_was_told_counts_by_the_clock() {
        let clocks = Clocks(ClockReading { elapsed: Instant::now(), wall_ms: 1_800_000_000_000 });
        let kept = JournalOldToken { left_ms: None, ..old(&rotated(&clocks)).expect("its grace").kept() };
        let left = OldToken::restored(&kept, 1, clocks.0).map(|old| old.left(clocks.0));
        assert_eq!(left, Some(GRACE));
    }
}
