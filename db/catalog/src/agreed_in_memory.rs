//! The agreement of a cluster's servers, in memory: for tests.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::agreement::{AgreedChange, AgreedNews, AgreedRevision, DirectoryAgreement, ProposalOutcome};

/// See the head of this file.
#[derive(Debug, Default)]
pub struct AgreedInMemory(Mutex<AgreedMemory>);

impl AgreedInMemory {
    /// Has it answer nothing, or answer again.
    pub fn set_away(&self, is_away: bool) {
        self.0.lock().is_away = is_away;
    }
}

#[derive(Debug, Default)]
struct AgreedMemory {
    at: AgreedRevision,
    tenants: BTreeMap<u32, (String, u64)>,
    next_tenant: u32,
    is_away: bool,
}

impl DirectoryAgreement for AgreedInMemory {
    fn propose(&self, base: AgreedRevision, change: &AgreedChange) -> Result<ProposalOutcome, String> {
        let mut all = self.0.lock();
        if all.is_away {
            return Err("away".to_owned());
        }
        if all.at != base {
            return Ok(ProposalOutcome::Outdated);
        }
        let revision = base.revision + 1;
        let removals = base.removals + u64::from(!change.gone.is_empty());
        all.at = AgreedRevision { revision, changes: revision, removals };
        all.next_tenant = change.next_tenant;
        all.tenants.retain(|id, _| !change.gone.contains(id));
        all.tenants.extend(change.put.iter().map(|(id, text)| (*id, (text.clone(), revision))));
        Ok(ProposalOutcome::Made(all.at))
    }

    fn news(&self, base: AgreedRevision) -> Result<Option<AgreedNews>, String> {
        let all = self.0.lock();
        if all.is_away {
            return Err("away".to_owned());
        }
        let is_whole = base.revision == 0 || base.removals != all.at.removals;
        let is_new = |(_, (_, revision)): &(&u32, &(String, u64))| is_whole || *revision > base.revision;
        let put = all.tenants.iter().filter(is_new).map(|(id, (text, _))| (*id, text.clone())).collect();
        let news = AgreedNews { revision: all.at, is_whole, put, next_tenant: all.next_tenant };
        Ok((all.at != base).then_some(news))
    }

    fn reserve_version(&self, _tenant: u32, _extension: &str, least: u64) -> Result<u64, String> {
        Ok(least)
    }

    fn put_artifact(&self, _name: &str, _bytes: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn artifact(&self, _name: &str) -> Result<Option<Vec<u8>>, String> {
        Ok(None)
    }

    fn remove_artifact(&self, _name: &str) -> Result<(), String> {
        Ok(())
    }
}
