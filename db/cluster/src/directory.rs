//! The directory on which the servers of a cluster agree: tenants as texts under their ids, and one key that each
//! change touches.
//!
//! A change compares the revision of that key ([`DIRECTORY_KEY`]) with the one that the server has applied, so changes
//! are made one after another, each on top of all before. A server that reads takes all tenants that were changed
//! since, as they are at one moment: it misses none, whatever it has not seen meanwhile, and sees no half of a change.
//!
//! The key has the numbers of the last changes. A server whose answer was lost looks whether its change is among them.
//! If the key is still as it was, the change may be under way; the server then changes the key itself, so that the
//! comparison cannot hold any more.

use std::collections::{BTreeMap, VecDeque};

use data_encoding::{BASE64, HEXLOWER};
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use sandstorm_catalog::{AgreedChange, AgreedNews, AgreedRevision, DirectoryAgreement, ProposalOutcome};
use serde::{Deserialize, Serialize};

use crate::EtcdEndpoint;
use crate::etcd::EtcdStore;
use crate::limits::{
    ARTIFACT_BYTES, ARTIFACT_PART_BYTES, CHANGE_BYTES, CHANGE_TENANTS, REMEMBERED_CHANGES, SETTLE_TRIES, TENANT_BYTES,
    TENANTS_IN_ANSWER, VERSION_TRIES,
};
use crate::metadata::{MetadataChange, MetadataRange, MetadataStore, NoAnswer};
use crate::state::{ARTIFACTS, DIRECTORY_KEY, FORMAT, TENANTS, TENANTS_END, VERSIONS};

/// The value of the key that each change touches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredDirectory {
    /// The version of this format.
    format: u64,
    /// The id of the next tenant.
    next_tenant: u32,
    /// Changes so far.
    changes: u64,
    /// Those of them that have removed tenants. A reader that has not seen the last one reads all tenants.
    removals: u64,
    /// Random numbers of the last changes, the oldest first.
    recent: VecDeque<u64>,
}

/// The head of an artifact's parts.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredArtifact {
    bytes: usize,
    parts: usize,
    sha256: String,
}

/// A cluster's directory in the store of its state.
pub struct ClusterDirectory<S = EtcdStore> {
    store: Mutex<S>,
}

impl<S> std::fmt::Debug for ClusterDirectory<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClusterDirectory")
    }
}

impl ClusterDirectory {
    /// The directory of that cluster. Nothing is asked yet.
    pub fn new(etcd: &EtcdEndpoint) -> ClusterDirectory {
        ClusterDirectory { store: Mutex::new(EtcdStore::new(etcd)) }
    }
}

fn words(NoAnswer(why): NoAnswer) -> String {
    why
}

fn tenant_key(id: u32) -> String {
    format!("{TENANTS}{id:010}")
}

/// The range of one key alone.
fn key_alone(key: &str) -> (String, String) {
    (key.to_owned(), format!("{key}\0"))
}

/// The range of all keys that begin so.
fn keys_under(begins: &str) -> (String, String) {
    (begins.to_owned(), format!("{begins}\u{7f}"))
}

fn to_json(value: &impl Serialize) -> Result<String, String> {
    serde_json::to_string(value).map_err(|error| error.to_string())
}

fn read_directory(text: &str) -> Result<StoredDirectory, String> {
    let read: StoredDirectory = serde_json::from_str(text)
        .map_err(|error| format!("the cluster's tenants, of a newer version or damaged: {error}"))?;
    if read.format == FORMAT {
        Ok(read)
    } else {
        Err(format!("the cluster's tenants have format {}, and this server knows {FORMAT}", read.format))
    }
}

impl<S: MetadataStore> ClusterDirectory<S> {
    #[cfg(test)]
    pub(crate) fn over(store: S) -> ClusterDirectory<S> {
        ClusterDirectory { store: Mutex::new(store) }
    }

    /// A value and its revision: 0, if there is none.
    fn read(store: &mut S, key: &str, at: u64) -> Result<(u64, Option<String>), String> {
        let (from, to) = key_alone(key);
        let listed = store.list(MetadataRange { at, ..MetadataRange::of(&from, &to) }).map_err(words)?;
        Ok(listed.values.into_iter().next().map_or((0, None), |found| (found.revision, Some(found.value))))
    }

    fn read_head(store: &mut S, at: u64) -> Result<(u64, StoredDirectory), String> {
        match Self::read(store, DIRECTORY_KEY, at)? {
            (revision, Some(text)) => Ok((revision, read_directory(&text)?)),
            (_, None) => Ok((0, StoredDirectory { format: FORMAT, ..StoredDirectory::default() })),
        }
    }

    /// Finds out whether a change was made whose answer was lost, and keeps it from being made later.
    fn settle(store: &mut S, base: AgreedRevision, id: u64, why: &str) -> Result<ProposalOutcome, String> {
        for _ in 0..SETTLE_TRIES {
            let Ok((revision, head)) = Self::read_head(store, 0) else { continue };
            if revision == base.revision {
                let mut fenced = head;
                fenced.changes += 1;
                remember(&mut fenced.recent, rand::random());
                let change = MetadataChange {
                    compared: vec![(DIRECTORY_KEY.to_owned(), revision)],
                    put: vec![(DIRECTORY_KEY.to_owned(), to_json(&fenced)?)],
                    removed: Vec::new(),
                };
                // It shows at the next look whether it or the first change was made.
                let _unless_lost = store.change(&change);
                continue;
            }
            if head.recent.contains(&id) {
                // Others' changes may be on top of it: all since the base is read again.
                return Ok(ProposalOutcome::Made(base));
            }
            if head.changes.saturating_sub(base.changes) <= head.recent.len() as u64 {
                return Ok(ProposalOutcome::Outdated);
            }
            break;
        }
        Err(format!("{why}; whether the change was made shows once etcd answers"))
    }

    fn checked(change: &AgreedChange) -> Result<Vec<(String, String)>, String> {
        let bytes: usize = change.put.iter().map(|(_, text)| text.len()).sum();
        let touched = change.put.len() + change.gone.len();
        if touched > CHANGE_TENANTS || bytes > CHANGE_BYTES {
            return Err(format!(
                "the change touches {touched} tenants of {bytes} bytes: in a cluster at most {CHANGE_TENANTS}, and \
                 {CHANGE_BYTES} bytes, are changed at a time"
            ));
        }
        if let Some((id, text)) = change.put.iter().find(|(_, text)| text.len() > TENANT_BYTES) {
            return Err(format!(
                "tenant {id} would take {} bytes: in a cluster a tenant's settings, tables, grants and versions take at \
                 most {TENANT_BYTES}",
                text.len()
            ));
        }
        Ok(change.put.iter().map(|(id, text)| (tenant_key(*id), text.clone())).collect())
    }

    /// All tenants whose last change is of that revision or a later one, as they were at one moment. Returns that, too.
    fn tenants(store: &mut S, since: u64) -> Result<(u64, BTreeMap<u32, String>), String> {
        let (mut from, mut at, mut tenants) = (TENANTS.to_owned(), 0, BTreeMap::new());
        loop {
            let range = MetadataRange { from: &from, to: TENANTS_END, since, at, most: TENANTS_IN_ANSWER };
            let listed = store.list(range).map_err(words)?;
            at = listed.revision;
            let last = listed.values.last().map(|last| format!("{}\0", last.key));
            for found in listed.values {
                let id = found.key.strip_prefix(TENANTS).and_then(|id| id.parse().ok());
                let id = id.ok_or_else(|| format!("the cluster's key {:?} names no tenant", found.key))?;
                tenants.insert(id, found.value);
            }
            match last.filter(|_| listed.has_more) {
                Some(last) => from = last,
                None => return Ok((at, tenants)),
            }
        }
    }
}

fn remember(recent: &mut VecDeque<u64>, id: u64) {
    recent.push_back(id);
    while recent.len() > REMEMBERED_CHANGES {
        recent.pop_front();
    }
}

impl<S: MetadataStore + Send> DirectoryAgreement for ClusterDirectory<S> {
    fn propose(&self, base: AgreedRevision, change: &AgreedChange) -> Result<ProposalOutcome, String> {
        let mut put = Self::checked(change)?;
        let store = &mut *self.store.lock();
        let (revision, mut head) = Self::read_head(store, 0)?;
        if revision != base.revision {
            return Ok(ProposalOutcome::Outdated);
        }
        let id = rand::random();
        head.next_tenant = change.next_tenant;
        head.changes += 1;
        head.removals += u64::from(!change.gone.is_empty());
        remember(&mut head.recent, id);
        put.push((DIRECTORY_KEY.to_owned(), to_json(&head)?));
        let compared = match is_broken(DirectoryRule::ProposalCompares) {
            true => Vec::new(),
            false => vec![(DIRECTORY_KEY.to_owned(), revision)],
        };
        let removed = change.gone.iter().map(|id| key_alone(&tenant_key(*id))).collect();
        match store.change(&MetadataChange { compared, put, removed }) {
            Ok(Some(revision)) => {
                let (changes, removals) = (head.changes, head.removals);
                Ok(ProposalOutcome::Made(AgreedRevision { revision, changes, removals }))
            }
            Ok(None) => Ok(ProposalOutcome::Outdated),
            Err(_) if is_broken(DirectoryRule::LostAnswersAreSettled) => Ok(ProposalOutcome::Outdated),
            Err(NoAnswer(why)) => Self::settle(store, base, id, &why),
        }
    }

    fn news(&self, base: AgreedRevision) -> Result<Option<AgreedNews>, String> {
        let store = &mut *self.store.lock();
        let (revision, head) = Self::read_head(store, 0)?;
        if revision == base.revision {
            return Ok(None);
        }
        let has_removed =
            |head: &StoredDirectory| head.removals != base.removals && !is_broken(DirectoryRule::RemovalsAreRead);
        let mut is_whole = base.revision == 0 || has_removed(&head);
        let (mut at, mut put) = Self::tenants(store, if is_whole { 0 } else { base.revision + 1 })?;
        // What the moment of the tenants is, the head's has to be.
        let (mut revision, mut head) = Self::read_head(store, at)?;
        if !is_whole && has_removed(&head) {
            is_whole = true;
            (at, put) = Self::tenants(store, 0)?;
            (revision, head) = Self::read_head(store, at)?;
        }
        let StoredDirectory { next_tenant, changes, removals, .. } = head;
        let revision = AgreedRevision { revision, changes, removals };
        Ok(Some(AgreedNews { revision, is_whole, put, next_tenant }))
    }

    fn reserve_version(&self, tenant: u32, extension: &str, least: u64) -> Result<u64, String> {
        let store = &mut *self.store.lock();
        let key = format!("{VERSIONS}{tenant}/{extension}");
        for _ in 0..VERSION_TRIES {
            let (revision, known) = Self::read(store, &key, 0)?;
            let known: u64 = known.and_then(|text| text.parse().ok()).unwrap_or(0);
            let version = least.max(known.saturating_add(1));
            let change = MetadataChange {
                compared: vec![(key.clone(), revision)],
                put: vec![(key.clone(), version.to_string())],
                removed: Vec::new(),
            };
            // A number whose answer was lost is never used.
            if let Ok(Some(_)) = store.change(&change) {
                return Ok(version);
            }
        }
        Err(format!("other servers push {extension:?} at the same moment"))
    }

    fn put_artifact(&self, name: &str, bytes: &[u8]) -> Result<(), String> {
        if bytes.len() > ARTIFACT_BYTES {
            let found = bytes.len();
            return Err(format!("{name} has {found} bytes: servers of a cluster share at most {ARTIFACT_BYTES}"));
        }
        let store = &mut *self.store.lock();
        let mut put = |key: String, value: String| {
            let change = MetadataChange { put: vec![(key, value)], ..MetadataChange::default() };
            store.change(&change).map_err(words)
        };
        let parts = bytes.chunks(ARTIFACT_PART_BYTES);
        let sha256 = HEXLOWER.encode(digest(&SHA256, bytes).as_ref());
        let head = StoredArtifact { bytes: bytes.len(), parts: parts.len(), sha256 };
        for (number, part) in parts.enumerate() {
            put(format!("{ARTIFACTS}{name}/{number:04}"), BASE64.encode(part))?;
        }
        // The head last: a reader that finds it finds all parts.
        put(format!("{ARTIFACTS}{name}"), to_json(&head)?)?;
        Ok(())
    }

    fn artifact(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        let store = &mut *self.store.lock();
        let (_, Some(text)) = Self::read(store, &format!("{ARTIFACTS}{name}"), 0)? else { return Ok(None) };
        let damaged = || format!("{name} in etcd is damaged");
        let head: StoredArtifact = serde_json::from_str(&text).map_err(|_| damaged())?;
        let mut bytes = Vec::new();
        for number in 0..head.parts {
            let (_, part) = Self::read(store, &format!("{ARTIFACTS}{name}/{number:04}"), 0)?;
            let part = part.and_then(|part| BASE64.decode(part.as_bytes()).ok()).ok_or_else(damaged)?;
            bytes.extend_from_slice(&part);
            if bytes.len() > head.bytes.min(ARTIFACT_BYTES) {
                return Err(damaged());
            }
        }
        let is_whole = bytes.len() == head.bytes && HEXLOWER.encode(digest(&SHA256, &bytes).as_ref()) == head.sha256;
        if is_whole { Ok(Some(bytes)) } else { Err(damaged()) }
    }

    fn remove_artifact(&self, name: &str) -> Result<(), String> {
        let key = format!("{ARTIFACTS}{name}");
        let removed = vec![key_alone(&key), keys_under(&format!("{key}/"))];
        let change = MetadataChange { removed, ..MetadataChange::default() };
        self.store.lock().change(&change).map_err(words)?;
        Ok(())
    }
}

/// A rule of the agreement that the model breaks on purpose, to show that it finds what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectoryRule {
    /// A change compares the revision on which it stands.
    ProposalCompares,
    /// A lost answer is not taken for a change that was not made.
    LostAnswersAreSettled,
    /// A reader that has not seen a removal reads all.
    RemovalsAreRead,
}

#[cfg(test)]
thread_local! {
    pub(crate) static BROKEN: std::cell::Cell<Option<DirectoryRule>> = const { std::cell::Cell::new(None) };
}

#[cfg(test)]
fn is_broken(rule: DirectoryRule) -> bool {
    BROKEN.get() == Some(rule)
}

#[cfg(not(test))]
fn is_broken(_rule: DirectoryRule) -> bool {
    false
}
