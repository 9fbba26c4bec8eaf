//! Changes of a table while it is used: see [`super::table_settings`].

use std::sync::Arc;

use sandstorm_store::StorageMode;

use super::directory_state::{ChangeEffect, DirectoryState};
use super::error::{DirectoryError, check_name, unknown_table};
use super::snapshot::DirectorySnapshot;
use super::table_settings::TableDefinition;
use super::tenant_ref::TenantRef;
use super::{Directory, TableEntry, TenantView};
use crate::limits::MIN_TABLE_BYTES;

/// A change of a table; what is not given stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableAlteration {
    /// Its name.
    pub name: Option<String>,
    /// Its behaviour at its quota.
    pub mode: Option<StorageMode>,
    /// Bytes of records that it may hold.
    pub quota_bytes: Option<u64>,
}

impl Directory {
    /// Changes a table while it is used: all that is asked for, or nothing if one part is refused.
    ///
    /// # Errors
    /// No such tenant or table; a name that is taken or not allowed; a quota that does not fit into the tenant's, or is
    /// less than a store holds; a store with records that should become a cache.
    pub fn change_table<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        table: &str,
        change: &TableAlteration,
    ) -> Result<Arc<TableEntry>, DirectoryError> {
        let tenant = tenant.into();
        if let Some(name) = &change.name {
            check_name("table", name)?;
        }
        self.change(|next, snapshot| {
            let mut view = TenantView::clone(snapshot.find(tenant)?);
            let entry = view.table_by_name(table).ok_or_else(|| unknown_table(&view, table))?.clone();
            let before = view.settings.get(&entry.id).cloned().unwrap_or_else(|| TableDefinition::of(&entry));
            let settings = TableDefinition {
                name: change.name.as_deref().map_or_else(|| before.name.clone(), Into::into),
                mode: change.mode.unwrap_or(before.mode),
                quota_bytes: change.quota_bytes.unwrap_or(before.quota_bytes),
                ..before.clone()
            };
            check_mode(&entry, &before, &settings)?;
            check_quota(&view, &entry, &before, &settings)?;
            if settings.name != before.name {
                if view.table_names.contains_key(&*settings.name) {
                    let (tenant, table) = (view.tenant.name.clone(), settings.name.to_string());
                    return Err(DirectoryError::TableExists { tenant, table });
                }
                view.table_names.remove(table);
                view.table_names.insert((&*settings.name).into(), entry.id);
                rename_grants(next, snapshot, &mut view, &before.name, &settings.name);
            }
            view.settings.insert(entry.id, settings.clone());
            snapshot.tenants.insert(view.tenant.id, Arc::new(view));
            next.effects.push(ChangeEffect::Settings(entry.clone(), settings));
            Ok(entry)
        })
    }
}

/// A store may become a cache while it is empty: the order in which a cache evicts comes from writes.
fn check_mode(entry: &TableEntry, before: &TableDefinition, now: &TableDefinition) -> Result<(), DirectoryError> {
    if before.mode != now.mode && [before.mode, now.mode].contains(&StorageMode::Spill) {
        let (table, why) = (before.name.to_string(), "a table has the mode `spill` from its creation on, or never");
        return Err(DirectoryError::CannotSpill { table, why });
    }
    if before.mode != now.mode && entry.backing().is_some() {
        let (table, why) = (before.name.to_string(), "its mode is cache for its life".to_owned());
        return Err(DirectoryError::CannotBack { table, why });
    }
    let records = entry.table.stats().records;
    match (before.mode, now.mode) {
        (StorageMode::Store, StorageMode::Cache) if records > 0 => {
            Err(DirectoryError::NoCacheOfRecords { table: now.name.to_string(), records })
        }
        _ => Ok(()),
    }
}

fn check_quota(
    view: &TenantView,
    entry: &TableEntry,
    before: &TableDefinition,
    now: &TableDefinition,
) -> Result<(), DirectoryError> {
    let wanted = now.quota_bytes;
    if wanted == before.quota_bytes {
        return Ok(());
    }
    if wanted < MIN_TABLE_BYTES {
        return Err(DirectoryError::TableTooSmall { wanted, min: MIN_TABLE_BYTES });
    }
    let holds = entry.table.stats().bytes;
    if wanted < holds && now.mode == StorageMode::Store {
        return Err(DirectoryError::TableHoldsMore { wanted, holds });
    }
    let others = view.tables.values().filter(|other| other.id != entry.id);
    let reserved = others.fold(0u64, |sum, other| sum.saturating_add(other.quota_bytes()));
    let limit = view.tenant.quotas.memory_bytes;
    if wanted > before.quota_bytes && wanted > limit.saturating_sub(reserved) {
        return Err(DirectoryError::RecordMemory { tenant: view.tenant.name.clone(), wanted, reserved, limit });
    }
    Ok(())
}

/// Gives the grants of a table its new name, on both sides.
fn rename_grants(
    next: &mut DirectoryState,
    snapshot: &mut DirectorySnapshot,
    view: &mut TenantView,
    before: &str,
    now: &Arc<str>,
) {
    let owner = view.tenant.name.clone();
    for given in view.given.iter_mut().filter(|given| *given.table == *before) {
        given.table = (&**now).into();
        let Some(grant) = given.grant.as_ref().filter(|grant| grant.access().is_some()) else { continue };
        let name: Arc<str> = format!("{owner}/{now}").into();
        next.effects.push(ChangeEffect::GrantName(grant.clone(), name.clone()));
        if let Some(grantee) = snapshot.tenants.get(&grant.grantee_id) {
            let mut grantee = TenantView::clone(grantee);
            grantee.granted_names.remove(&*grant.name());
            grantee.granted_names.insert((&*name).into(), grant.id);
            // Its own part of the journal is written as the grant will be named.
            grantee.renamed.insert(grant.id, name);
            snapshot.tenants.insert(grant.grantee_id, Arc::new(grantee));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GrantAccess, GrantIssuer, NewTable, NewTenant, QuotaChanges};
    use sandstorm_store::{Epochs, WriteOptions};

    fn directory() -> Arc<Directory> {
        let directory = Directory::new(Epochs::new());
        let quotas = QuotaChanges { memory_bytes: Some(64 << 20), ..QuotaChanges::default() };
        directory.create_tenant(NewTenant { quotas, ..NewTenant::named("shop") }).unwrap();
        directory.create_tenant(NewTenant::named("guest")).unwrap();
        directory
    }

    fn view(directory: &Directory, name: &str) -> Arc<TenantView> {
        directory.snapshot().by_name(name).unwrap().clone()
    }

    #[test]
    fn a_quota_changes_within_the_tenants_and_never_below_what_a_store_holds() {
        let directory = directory();
        let quota = |bytes| TableAlteration { quota_bytes: Some(bytes), ..TableAlteration::default() };
        let entry = directory.create_table("shop", NewTable::named("items")).unwrap();
        assert_eq!(entry.quota_bytes(), 8 << 20, "an eighth of the tenant's");
        assert_eq!(directory.create_table("shop", NewTable::named("more")).unwrap().quota_bytes(), 8 << 20);
        directory.change_table("shop", "items", &quota(56 << 20)).unwrap();
        assert_eq!(entry.quota_bytes(), 56 << 20, "who holds the table sees it");
        let refused = directory.change_table("shop", "items", &quota((56 << 20) + 1)).unwrap_err();
        assert!(matches!(refused, DirectoryError::RecordMemory { reserved: 0x80_0000, .. }), "{refused}");
        let participant = directory.participant();
        for key in 0..100_u8 {
            let options = WriteOptions::default();
            entry.table.put(&participant, entry.table.hash(&[key]), &[key], &[0; 1_000], &options, 1).unwrap();
        }
        let refused = directory.change_table("shop", "items", &quota(64 << 10)).unwrap_err();
        assert!(refused.to_string().contains("holds") && refused.hint().contains("delete"), "{refused}");
        let cache = TableAlteration { mode: Some(StorageMode::Cache), ..TableAlteration::default() };
        let refused = directory.change_table("shop", "items", &cache).unwrap_err();
        assert!(
            refused.to_string().contains("100 records") && refused.hint().contains("sandstorm export"),
            "{refused}"
        );
        directory.change_table("shop", "more", &cache).unwrap();
        assert_eq!(view(&directory, "shop").table_by_name("more").unwrap().mode(), StorageMode::Cache);
        let both = TableAlteration { name: Some("m2".into()), ..quota(1) };
        directory.change_table("shop", "more", &both).expect_err("too small");
        assert!(view(&directory, "shop").table_by_name("m2").is_none(), "nothing of it is done");
    }

    #[test]
    fn a_renamed_table_keeps_its_id_its_records_and_its_grants() {
        let directory = directory();
        let entry = directory.create_table("shop", NewTable::named("items")).unwrap();
        directory.create_table("shop", NewTable::named("other")).unwrap();
        directory.grant("shop", "items", "guest", GrantAccess::Read, GrantIssuer::Owner).unwrap();
        let granted = view(&directory, "guest").id_of("shop/items").unwrap();
        let name = |name: &str| TableAlteration { name: Some(name.to_owned()), ..TableAlteration::default() };
        directory.change_table("shop", "items", &name("other")).expect_err("it is taken");
        directory.change_table("shop", "items", &name("a b")).expect_err("it is none");
        directory.change_table("shop", "items", &name("goods")).unwrap();
        let now = view(&directory, "shop");
        assert!(Arc::ptr_eq(now.table_by_name("goods").unwrap(), &entry) && now.table_by_name("items").is_none());
        let guest = view(&directory, "guest");
        assert_eq!((guest.id_of("shop/goods"), guest.id_of("shop/items")), (Some(granted), None));
        assert_eq!(&*guest.granted[&granted].name(), "shop/goods");
        directory.revoke("shop", "items", "guest").expect_err("there is none of that name");
        directory.revoke("shop", "goods", "guest").unwrap();
        assert_eq!(view(&directory, "guest").id_of("shop/goods"), None);
        assert_eq!(directory.create_table("shop", NewTable::named("items")).unwrap().id, 3, "the old name is free");
    }
}
