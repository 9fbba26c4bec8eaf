//! Merges the configured tenants with the persisted ones. The file overrides the settings that it names, and all others
//! stay.

use super::{ConfigError, ServerSettings, TableSettings, TenantSettings};
use sandstorm_accounts::TokenHash;
use sandstorm_catalog::journal::{DirectoryImage, JournalTenant, JournalToken};
use sandstorm_catalog::limits::MIN_TABLE_BYTES;
use sandstorm_catalog::{Directory, DirectoryError, TenantOrigin};

impl ServerSettings {
    /// Restores the directory for the start: the persisted tenants with the file's overrides, and the new tenants of
    /// the file. Returns a line about each tenant that the file no longer names.
    ///
    /// # Errors
    /// An id that the file has changed, or a setting that the directory refuses.
    pub fn restore_tenants(&self, mut kept: DirectoryImage, directory: &Directory) -> Result<Vec<String>, ConfigError> {
        let mut left = Vec::new();
        for tenant in kept.tenants.values_mut() {
            let named = self.tenants.iter().position(|settings| settings.name == tenant.name);
            match named.and_then(|number| Some((number, self.tenants.get(number)?))) {
                Some((number, settings)) => {
                    settings.over(number, tenant).map_err(|error| self.places.name(error))?;
                }
                None if tenant.origin == TenantOrigin::Made => {}
                None => {
                    if tenant.origin == TenantOrigin::Configured {
                        left.push(format!(
                            "tenant {0:?} is no longer in the configuration, and stays with what it has; \
                             `sandstorm tenant delete {0}` removes it",
                            tenant.name
                        ));
                    }
                    tenant.origin = TenantOrigin::Left;
                }
            }
        }
        directory.restore(&kept).map_err(|(tenant, error)| {
            ConfigError::new(format!("tenant {tenant:?}, which was kept: {error}; {}", error.hint()))
        })?;
        self.create_tenants(directory)?;
        Ok(left)
    }
}

impl TenantSettings {
    /// Overrides the persisted settings of a tenant with the file's. `number` is its index in the file.
    fn over(&self, number: usize, kept: &mut JournalTenant) -> Result<(), ConfigError> {
        let refused = |key: &str, what: String| {
            let error = ConfigError::new(format!("configured tenant {:?}: {what}", self.name));
            error.at(&[format!("tenants.{number}.{key}")])
        };
        if let Some(id) = self.id.filter(|id| *id != kept.id) {
            let what = format!(
                "it has id {} from an earlier start, and id {id} in the configuration: ids do not change; write {0} there, \
                 or delete the tenant and start again",
                kept.id
            );
            return Err(refused("id", what));
        }
        kept.origin = TenantOrigin::Configured;
        kept.open = self.open;
        kept.home_worker = self.home_worker.unwrap_or(kept.home_worker);
        kept.home_fixed |= self.home_worker.is_some();
        kept.code = self.code.or(kept.code);
        kept.quotas = kept.quotas.and(&self.quotas);
        match self.verifier().map_err(|what| refused("token", what))? {
            None => kept.configured_token = None,
            // A token that was replaced since the file's was set stays replaced: the file's may be the one that leaked.
            Some(hash) if kept.configured_token.as_ref() == Some(&hash.mark()) => {}
            Some(hash) => {
                kept.configured_token = Some(hash.mark());
                (kept.token, kept.old_token) = (JournalToken::of(&hash), None);
            }
        }
        for (place, table) in self.tables.iter().enumerate() {
            let Some(known) = kept.tables.iter_mut().find(|known| known.name == table.name) else { continue };
            let TableSettings { name, id, mode, quota_bytes, ordered, durability, backing } = table;
            if let Some(id) = id.filter(|id| *id != known.id) {
                let known = known.id;
                let what = format!("table {name:?} has id {known} from an earlier start, not {id}; write {known}");
                return Err(refused(&format!("tables.{place}.id"), what));
            }
            if let Some(settings) = backing {
                known.set_backing(settings).map_err(|what| refused(&format!("tables.{place}.backing"), what))?;
            }
            durability.iter().for_each(|durability| known.set_durability(*durability));
            // A table with a backing is a cache for its life, and not ordered.
            if known.backing.is_none() {
                known.ordered = *ordered;
                known.set_mode((*mode).into());
            }
            if let Some(wanted) = quota_bytes.filter(|bytes| *bytes < MIN_TABLE_BYTES) {
                let error = DirectoryError::TableTooSmall { wanted, min: MIN_TABLE_BYTES };
                return Err(refused(&format!("tables.{place}.quota_bytes"), error.to_string()));
            }
            known.quota_bytes = quota_bytes.unwrap_or(known.quota_bytes);
        }
        Ok(())
    }

    /// The stored form of the file's token, if it has one.
    fn verifier(&self) -> Result<Option<TokenHash>, String> {
        match (&self.token, &self.token_hash) {
            (Some(token), _) => match TokenHash::of_chosen(token) {
                Some(hash) => Ok(Some(hash)),
                None => Err(DirectoryError::InvalidToken.to_string()),
            },
            (None, Some(text)) => Ok(TokenHash::from_text(text)),
            (None, None) => Ok(None),
        }
    }
}
