//! Tokens that were made for viewers: of the whole server, or of one tenant. A file of the state directory keeps them,
//! without the tokens themselves.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::now_ms;
use super::role::AccessRole;
use crate::checked_json::{self, JsonFormats, is_zero};
use crate::config::{ConfigError, write_private};
use crate::limits::{ACCESS_TOKEN_NAME_BYTES, ACCESS_TOKENS_MAX, ACCESS_TOKENS_PER_TENANT};
use sandstorm_accounts::TokenHash;
use sandstorm_accounts::token::{self, TokenDigest};
use sandstorm_catalog::{DirectorySnapshot, TenantAccount, TenantView};

/// Name of the file in the state directory.
const FILE: &str = "access-tokens.json";

/// The format that is written.
const FORMAT: u32 = 2;
/// The formats that are read. The first named none and had no checksum.
const FORMATS: JsonFormats = JsonFormats { oldest: 1, newest: FORMAT, first_checked: 2 };

/// The content of the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AccessTokenFile {
    #[serde(default)]
    format: u32,
    tokens: Vec<AccessToken>,
}

/// The tenant that a token is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AccessTokenTenant {
    /// Its name.
    pub(super) name: String,
    /// Its id.
    pub(super) id: u32,
    /// By which it is told from another tenant of its name and id ([`TenantAccount::made`]).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) made: u64,
}

impl AccessTokenTenant {
    /// The tenant that a token is to be about.
    pub(super) fn of(tenant: &TenantAccount) -> AccessTokenTenant {
        AccessTokenTenant { name: tenant.name.clone(), id: tenant.id, made: tenant.made }
    }

    /// Its view, if it is there still.
    pub(super) fn find<'s>(&self, snapshot: &'s DirectorySnapshot) -> Option<&'s Arc<TenantView>> {
        snapshot.tenant(self.id).filter(|view| AccessTokenTenant::of(&view.tenant) == *self)
    }
}

/// A token that was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AccessToken {
    /// Its name.
    pub(super) name: String,
    /// The tenant whose viewer has it; without one it is a viewer of the whole server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tenant: Option<AccessTokenTenant>,
    /// When it was made, in milliseconds since 1970.
    pub(super) created_ms: u64,
    /// When it ends, in milliseconds since 1970; `None`: when it is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) expires_ms: Option<u64>,
    token_hash: String,
}

/// The name of a token among all: its own, and its tenant's id.
pub(super) type AccessTokenKey = (Option<u32>, String);

/// A token, and none that is made under its name later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AccessTokenId {
    key: AccessTokenKey,
    token_hash: String,
}

impl AccessToken {
    /// What it stands for.
    pub(super) fn role(&self) -> AccessRole {
        if self.tenant.is_some() { AccessRole::TenantViewer } else { AccessRole::Viewer }
    }

    /// Its name among all.
    pub(super) fn key(&self) -> AccessTokenKey {
        (self.tenant.as_ref().map(|tenant| tenant.id), self.name.clone())
    }

    /// What tells it from all others.
    pub(super) fn id(&self) -> AccessTokenId {
        AccessTokenId { key: self.key(), token_hash: self.token_hash.clone() }
    }

    fn is_over(&self, now_ms: u64) -> bool {
        self.expires_ms.is_some_and(|expires_ms| expires_ms <= now_ms)
    }
}

/// A token that is to be made.
#[derive(Clone, Debug)]
pub(super) struct NewAccessToken {
    /// Its name.
    pub(super) name: String,
    /// The tenant whose viewer gets it.
    pub(super) tenant: Option<AccessTokenTenant>,
    /// Seconds until it ends.
    pub(super) expires_s: Option<u64>,
}

/// The reason that a token is not made or revoked.
#[derive(Debug, thiserror::Error)]
pub(super) enum AccessTokenError {
    /// The name cannot be used.
    #[error("{0:?} is no name for a token")]
    Name(String),
    /// There is one of that name.
    #[error("there is a token {0:?} already")]
    Exists(String),
    /// There is none of that name.
    #[error("there is no token {0:?}")]
    Unknown(String),
    /// The limit on their number is reached.
    #[error("there are {0} tokens, as many as there may be")]
    TooMany(usize),
    /// The tenant is gone.
    #[error("there is no tenant {0:?} any more")]
    TenantGone(String),
    /// The file cannot be written.
    #[error("{0}")]
    Unwritable(ConfigError),
}

struct KnownToken {
    about: AccessToken,
    hash: TokenHash,
}

/// See the head of this file.
pub(super) struct AccessTokens {
    known: ArcSwap<Vec<KnownToken>>,
    path: Option<PathBuf>,
    change_lock: Mutex<()>,
}

impl AccessTokens {
    /// Tokens that are kept in memory alone.
    pub(super) fn in_memory() -> AccessTokens {
        AccessTokens { known: ArcSwap::default(), path: None, change_lock: Mutex::default() }
    }

    /// Reads the file of a state directory.
    ///
    /// # Errors
    /// One line: it cannot be read, or is not what was written.
    pub(super) fn open(state: &Path) -> Result<AccessTokens, ConfigError> {
        let path = state.join(FILE);
        let unusable = |error: &dyn std::fmt::Display| {
            let shown = path.display();
            ConfigError::new(format!(
                "{shown} cannot be used: {error}; put it back from a backup, or move it away: tokens of viewers are \
                 void then, and have to be made again"
            ))
        };
        let file: AccessTokenFile = match fs::read(&path) {
            Ok(bytes) => {
                let (_, json) = checked_json::decode(&bytes, FORMATS).map_err(|why| unusable(&why))?;
                serde_json::from_slice(json).map_err(|error| unusable(&error))?
            }
            // A server on a full disk starts with the file as it is.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if let Err(error) = write(&path, Vec::new()) {
                    tracing::warn!(%error, "there are no tokens of viewers");
                }
                AccessTokenFile::default()
            }
            Err(error) => return Err(unusable(&error)),
        };
        let mut known = Vec::new();
        for about in file.tokens {
            let hash = TokenHash::from_text(&about.token_hash);
            let hash = hash.ok_or_else(|| unusable(&format!("the token_hash of {:?} is none", about.name)))?;
            known.push(KnownToken { about, hash });
        }
        let known = ArcSwap::from_pointee(known);
        Ok(AccessTokens { known, path: Some(path), change_lock: Mutex::default() })
    }

    /// The token that was presented, unless it is over. Compares with all of them, each in constant time.
    pub(super) fn shown(&self, presented: &TokenDigest) -> Option<AccessToken> {
        let (known, now_ms) = (self.known.load(), now_ms());
        let mut found = None;
        for token in known.iter() {
            if token.hash.same(presented) {
                found = Some(&token.about);
            }
        }
        found.filter(|about| !about.is_over(now_ms)).cloned()
    }

    /// Whether a token holds still.
    pub(super) fn has(&self, id: &AccessTokenId) -> bool {
        let (known, now_ms) = (self.known.load(), now_ms());
        known.iter().any(|token| token.about.id() == *id && !token.about.is_over(now_ms))
    }

    /// All tokens, or those of one tenant, in the order in which they were made.
    pub(super) fn listed(&self, tenant: Option<u32>) -> Vec<AccessToken> {
        let is_asked =
            |about: &AccessToken| tenant.is_none() || about.tenant.as_ref().map(|tenant| tenant.id) == tenant;
        self.known.load().iter().map(|token| &token.about).filter(|about| is_asked(about)).cloned().collect()
    }

    /// Makes a token, which works at once. `is_there` tells whether the tenant still is.
    pub(super) fn create(
        &self,
        new: NewAccessToken,
        is_there: impl Fn(&AccessTokenTenant) -> bool,
    ) -> Result<(AccessToken, String), AccessTokenError> {
        let _alone = self.change_lock.lock();
        let NewAccessToken { name, tenant, expires_s } = new;
        let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if name.is_empty() || name.len() > ACCESS_TOKEN_NAME_BYTES || !is_name(&name) {
            return Err(AccessTokenError::Name(name));
        }
        if let Some(gone) = tenant.as_ref().filter(|tenant| !is_there(tenant)) {
            return Err(AccessTokenError::TenantGone(gone.name.clone()));
        }
        let now_ms = now_ms();
        // What another tenant of that id has left is void.
        let is_left = |of: &AccessTokenTenant| tenant.as_ref().is_some_and(|now| now.id == of.id && now != of);
        let mut tokens: Vec<AccessToken> = self.listed(None);
        tokens.retain(|about| !about.is_over(now_ms) && !about.tenant.as_ref().is_some_and(is_left));
        let of_tenant = tokens.iter().filter(|about| about.tenant.is_some() && about.tenant == tenant).count();
        if of_tenant >= ACCESS_TOKENS_PER_TENANT {
            return Err(AccessTokenError::TooMany(ACCESS_TOKENS_PER_TENANT));
        }
        if tokens.len() >= ACCESS_TOKENS_MAX {
            return Err(AccessTokenError::TooMany(ACCESS_TOKENS_MAX));
        }
        let token = token::generate();
        let token_hash = TokenHash::of(token.as_bytes()).to_text();
        let expires_ms = expires_s.map(|expires_s| now_ms.saturating_add(expires_s.saturating_mul(1_000)));
        let about = AccessToken { name, tenant, created_ms: now_ms, expires_ms, token_hash };
        if tokens.iter().any(|other| other.key() == about.key()) {
            return Err(AccessTokenError::Exists(about.name));
        }
        tokens.push(about.clone());
        self.replace(tokens)?;
        Ok((about, token))
    }

    /// Revokes a token, and returns which it was.
    pub(super) fn revoke(&self, key: &AccessTokenKey) -> Result<AccessTokenId, AccessTokenError> {
        let _alone = self.change_lock.lock();
        let mut tokens = self.listed(None);
        let at = tokens.iter().position(|about| about.key() == *key);
        let revoked = tokens.remove(at.ok_or_else(|| AccessTokenError::Unknown(key.1.clone()))?);
        self.replace(tokens)?;
        Ok(revoked.id())
    }

    /// Deletes a tenant, with all tokens of its viewers: another tenant may get its name and its id. Nothing is deleted
    /// if that cannot be written.
    pub(super) fn delete_with_tenant<T, E: From<AccessTokenError>>(
        &self,
        tenant: u32,
        delete: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let _alone = self.change_lock.lock();
        let before = self.listed(None);
        let is_other = |about: &&AccessToken| about.tenant.as_ref().is_none_or(|of| of.id != tenant);
        let left: Vec<AccessToken> = before.iter().filter(is_other).cloned().collect();
        let has_some = left.len() < before.len();
        if has_some {
            self.replace(left)?;
        }
        let deleted = delete();
        if let (true, Err(_)) = (has_some, &deleted) {
            // They stay in memory even if the disk has just filled up.
            if let Err(error) = self.replace(before) {
                tracing::error!(%error, "tokens of viewers are void from the next start on");
            }
        }
        deleted
    }

    /// Drops the tokens of viewers of tenants that another server of the cluster has deleted. They are void even if
    /// that cannot be written.
    pub(super) fn drop_of_gone(&self, is_gone: impl Fn(&AccessTokenTenant) -> bool) {
        let _alone = self.change_lock.lock();
        let before = self.listed(None);
        let is_left = |about: &&AccessToken| !about.tenant.as_ref().is_some_and(&is_gone);
        let left: Vec<AccessToken> = before.iter().filter(is_left).cloned().collect();
        if left.len() < before.len()
            && let Err(error) = self.replace(left.clone())
        {
            tracing::error!(%error, "tokens of viewers of a deleted tenant are void, and stay in their file");
            self.put_in_use(left);
        }
    }

    /// Writes the tokens, then uses them.
    fn replace(&self, tokens: Vec<AccessToken>) -> Result<(), AccessTokenError> {
        if let Some(path) = &self.path {
            write(path, tokens.clone()).map_err(AccessTokenError::Unwritable)?;
        }
        self.put_in_use(tokens);
        Ok(())
    }

    fn put_in_use(&self, tokens: Vec<AccessToken>) {
        let hashed =
            |about: AccessToken| TokenHash::from_text(&about.token_hash).map(|hash| KnownToken { about, hash });
        self.known.store(Arc::new(tokens.into_iter().filter_map(hashed).collect()));
    }
}

fn write(path: &Path, tokens: Vec<AccessToken>) -> Result<(), ConfigError> {
    let file = AccessTokenFile { format: FORMAT, tokens };
    let json = serde_json::to_vec_pretty(&file).map_err(|error| ConfigError::new(error.to_string()))?;
    write_private(path, &checked_json::with_checksum(json))
}

impl std::fmt::Debug for AccessTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccessTokens").field("path", &self.path).finish_non_exhaustive()
    }
}
