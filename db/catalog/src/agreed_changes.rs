//! Changes that are agreed with the other servers of a cluster: see [`super::agreement`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Directory;
use super::agreement::{AgreedChange, AgreedNews, AgreedRevision, AgreedState, DirectoryAgreement, ProposalOutcome};
use super::change_log;
use super::directory_state::DirectoryState;
use super::error::DirectoryError;
use super::journal::{DirectoryImage, JournalTenant};
use super::persistence::{directory_image, journal_tenant};
use super::snapshot::DirectorySnapshot;
use crate::limits::AGREEMENT_TRIES;

/// What a server found that starts: all that is agreed.
#[derive(Clone, Debug, Default)]
pub struct AgreedImage {
    revision: AgreedRevision,
    /// The tenants, as a journal has them.
    pub image: DirectoryImage,
}

impl AgreedImage {
    /// Reads all that is agreed. Home workers are those of `own`, which this server had before; `None`: nothing is
    /// agreed yet.
    ///
    /// # Errors
    /// No answer, or one that is not understood.
    pub fn read(agreement: &dyn DirectoryAgreement, own: &DirectoryImage) -> Result<Option<AgreedImage>, String> {
        let Some(news) = agreement.news(AgreedRevision::default())? else { return Ok(None) };
        let mut tenants = tenants_of(&news)?;
        for tenant in tenants.values_mut() {
            if let Some(own) = own.tenants.get(&tenant.id) {
                (tenant.home_worker, tenant.home_fixed) = (own.home_worker, own.home_fixed);
            }
        }
        let image = DirectoryImage { tenants, next_tenant: news.next_tenant, next_home: own.next_home };
        Ok(Some(AgreedImage { revision: news.revision, image }))
    }
}

/// The tenants of news.
pub(super) fn tenants_of(news: &AgreedNews) -> Result<BTreeMap<u32, JournalTenant>, String> {
    let read = |(id, text): (&u32, &String)| {
        let tenant: JournalTenant = serde_json::from_str(text)
            .map_err(|error| format!("tenant {id} of the cluster, of a newer version or damaged: {error}"))?;
        if tenant.id == *id { Ok((*id, tenant)) } else { Err(format!("tenant {id} of the cluster has another id")) }
    };
    news.put.iter().map(read).collect()
}

/// What is agreed of a tenant: all but what depends on the server.
pub(super) fn agreed_form(mut tenant: JournalTenant) -> JournalTenant {
    (tenant.home_worker, tenant.home_fixed) = (0, false);
    // The end of a grace period is the same for all servers; what is left of it changes with each look.
    tenant.old_token.iter_mut().for_each(|old| old.left_ms = None);
    tenant
}

fn as_text(tenant: &JournalTenant) -> Result<String, DirectoryError> {
    serde_json::to_string(tenant).map_err(|error| DirectoryError::NoAgreement(error.to_string()))
}

impl Directory {
    /// Whether what is changed here is agreed with other servers.
    pub fn is_agreed(&self) -> bool {
        self.next.lock().agreed.is_some()
    }

    /// How the servers agree, in a cluster.
    pub fn agreement(&self) -> Option<Arc<dyn DirectoryAgreement>> {
        self.next.lock().agreed.as_ref().map(|agreed| Arc::clone(&agreed.agreement))
    }

    /// Has all changes agreed from now on, and those first that this start has made over what was found (`None`:
    /// nothing was agreed yet). Before other threads have the directory.
    ///
    /// # Errors
    /// [`DirectoryError::OutdatedChange`]: others have changed something since; the caller begins anew.
    /// [`DirectoryError::NoAgreement`].
    pub fn agree_with(
        &self,
        agreement: &Arc<dyn DirectoryAgreement>,
        found: Option<&AgreedImage>,
    ) -> Result<(), DirectoryError> {
        let mut next = self.next.lock();
        let now = directory_image(&next, &self.snapshot());
        let nothing = AgreedImage::default();
        let before = found.unwrap_or(&nothing);
        let form = |image: &DirectoryImage, id: &u32| image.tenants.get(id).cloned().map(agreed_form);
        let mut change = AgreedChange { next_tenant: now.next_tenant, ..AgreedChange::default() };
        for id in now.tenants.keys() {
            let form_now = form(&now, id);
            if let Some(tenant) = form_now.as_ref().filter(|_| form(&before.image, id) != form_now) {
                change.put.push((*id, as_text(tenant)?));
            }
        }
        let mut applied = before.revision;
        if found.is_none() || !change.put.is_empty() {
            match agreement.propose(applied, &change).map_err(DirectoryError::NoAgreement)? {
                ProposalOutcome::Made(revision) => applied = revision,
                ProposalOutcome::Outdated => return Err(DirectoryError::OutdatedChange),
            }
        }
        let agreement = Arc::clone(agreement);
        next.agreed = Some(AgreedState { agreement, applied, missed: None, unproposed: BTreeSet::new() });
        Ok(())
    }

    /// Applies what others have changed.
    ///
    /// # Errors
    /// [`DirectoryError::NoAgreement`]: no answer, or one that is not understood.
    pub fn catch_up(&self) -> Result<(), DirectoryError> {
        self.apply_news()?;
        self.propose_restrictions();
        Ok(())
    }

    fn apply_news(&self) -> Result<(), DirectoryError> {
        let known = self.next.lock().agreed.as_ref().map(|agreed| (Arc::clone(&agreed.agreement), agreed.applied));
        let Some((agreement, base)) = known else { return Ok(()) };
        let Some(news) = agreement.news(base).map_err(DirectoryError::NoAgreement)? else { return Ok(()) };
        let tenants = tenants_of(&news).map_err(DirectoryError::NoAgreement)?;
        self.apply_agreed(base, &news, &tenants)
    }

    /// Whether other servers have made a change that this one has not applied, or are to learn of one of this server's:
    /// `newest` is the revision of the cluster's last change.
    pub fn is_behind(&self, newest: u64) -> bool {
        let next = self.next.lock();
        next.agreed.as_ref().is_some_and(|agreed| agreed.applied.revision != newest || !agreed.unproposed.is_empty())
    }

    /// Proposes what was restricted while nothing could be agreed.
    fn propose_restrictions(&self) {
        let pending = self.next.lock().agreed.as_ref().is_some_and(|agreed| !agreed.unproposed.is_empty());
        if pending {
            // It changes nothing here; what is pending goes with it.
            let _tried_again_later = self.change_and_record(true, change_log::log_changes, |_, _| Ok(()));
        }
    }

    /// Has a change agreed. Called under the lock for changes, before the change is visible; `must`: one that cannot be
    /// agreed is refused.
    pub(super) fn agree(
        &self,
        next: &mut DirectoryState,
        before: &DirectorySnapshot,
        after: &DirectorySnapshot,
        must: bool,
    ) -> Result<(), DirectoryError> {
        let Some(agreed) = &next.agreed else { return Ok(()) };
        let Some(change) = agreed.change_of(next, (before, after))? else { return Ok(()) };
        match (self.known_trouble(), &mut next.agreed) {
            (Some(why), _) if must => Err(DirectoryError::NoAgreement(why)),
            // A restriction does not wait for etcd.
            (Some(_), Some(agreed)) => {
                agreed.postpone(&change);
                Ok(())
            }
            (None, Some(agreed)) => agreed.propose(&change, must),
            (_, None) => Ok(()),
        }
    }

    /// The reason that etcd is known not to answer: changes do not wait for it then.
    fn known_trouble(&self) -> Option<String> {
        self.slots.get().and_then(|slots| slots.trouble()).map(|(_, why)| why)
    }

    /// Up to where what was agreed is applied here.
    fn applied(&self) -> Option<AgreedRevision> {
        self.next.lock().agreed.as_ref().map(|agreed| agreed.applied)
    }

    /// Whether others' changes have been applied since then, by whichever thread.
    fn has_news_since(&self, before: Option<AgreedRevision>) -> bool {
        if self.known_trouble().is_none() {
            // Without an answer nothing is applied.
            let _no_answer = self.apply_news();
        }
        self.applied() != before
    }

    /// Runs a change until no other server's comes between; [`AGREEMENT_TRIES`] times at most.
    pub(super) fn until_agreed<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, DirectoryError>,
    ) -> Result<T, DirectoryError> {
        for _ in 0..AGREEMENT_TRIES {
            let before = self.applied();
            match attempt() {
                Err(DirectoryError::OutdatedChange) => {
                    self.apply_news()?;
                }
                // What it was refused for may be over.
                Err(error) if error.depends_on_state() && self.has_news_since(before) => {}
                done => return done,
            }
        }
        Err(DirectoryError::OutdatedChange)
    }
}

impl AgreedState {
    /// What the others have to know of a change.
    fn change_of(
        &self,
        next: &DirectoryState,
        (before, after): (&DirectorySnapshot, &DirectorySnapshot),
    ) -> Result<Option<AgreedChange>, DirectoryError> {
        let mut change = AgreedChange { next_tenant: next.tenant, ..AgreedChange::default() };
        change.gone = before.tenants.keys().filter(|id| !after.tenants.contains_key(*id)).copied().collect();
        for (id, view) in &after.tenants {
            let old = before.tenants.get(id);
            let is_pending = self.unproposed.contains(id);
            if !is_pending && old.is_some_and(|old| Arc::ptr_eq(old, view)) {
                continue;
            }
            let now = agreed_form(journal_tenant(next, view));
            if is_pending || old.is_none_or(|old| agreed_form(journal_tenant(next, old)) != now) {
                change.put.push((*id, as_text(&now)?));
            }
        }
        Ok(Some(change).filter(|change| !change.put.is_empty() || !change.gone.is_empty()))
    }

    fn propose(&mut self, change: &AgreedChange, must: bool) -> Result<(), DirectoryError> {
        match self.agreement.propose(self.applied, change) {
            Ok(ProposalOutcome::Made(revision)) => {
                (self.applied, self.unproposed) = (revision, BTreeSet::new());
                Ok(())
            }
            Ok(ProposalOutcome::Outdated) => Err(DirectoryError::OutdatedChange),
            Err(why) if must => Err(DirectoryError::NoAgreement(why)),
            Err(why) => {
                tracing::warn!("a restriction holds at this server alone until etcd answers: {why}");
                self.postpone(change);
                Ok(())
            }
        }
    }

    /// Has a restriction proposed later: it holds at this server alone until then.
    fn postpone(&mut self, change: &AgreedChange) {
        self.unproposed.extend(change.put.iter().map(|(id, _)| *id));
    }
}
