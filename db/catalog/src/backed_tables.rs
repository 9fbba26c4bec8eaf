//! Tenants' tables with a backing: which are allowed, what is kept of them, and their threads.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use sandstorm_backing::{
    BackedTable, BackingPolicy, BackingSettings, BackingUrl, ConflictChoice, FlushError, NewBackedTable, ObjectStore,
    UnreachableObjects, open_objects,
};
use sandstorm_store::{SpilledTable, StorageMode};

use super::directory_state::ChangeEffect;
use super::error::{DirectoryError, unknown_table};
use super::table_backing::{BackingAlteration, EntryBacking, TableBacking, check_policy, refused};
use super::table_settings::TableDefinition;
use super::tenant_ref::TenantRef;
use super::{Directory, NewTable, TableDurability, TableEntry, TenantView};

impl Directory {
    /// Has threads started that ask backings of tables, with the first such table.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open_backings(&self) -> io::Result<()> {
        self.backings.start(&self.epochs)
    }

    /// Ends these threads. What is not written yet is in the log.
    pub fn close_backings(&self) {
        self.backings.stop();
    }

    /// Has `hook` called when a backing has, or refuses, what answers wait for.
    pub fn on_backing_progress(&self, hook: Arc<dyn Fn() + Send + Sync>) {
        self.backings.on_ended(hook);
    }

    /// Refuses a table with a backing and properties that it cannot have. Returns its durability.
    pub(super) fn check_backing(
        &self,
        new: &NewTable,
        durability: TableDurability,
    ) -> Result<TableDurability, DirectoryError> {
        let Some(backing) = &new.backing else { return Ok(durability) };
        BackingUrl::parse(&backing.url).map_err(|error| refused(&new.name, error))?;
        if new.mode != StorageMode::Cache {
            return Err(refused(&new.name, "its mode is cache: records leave memory, and the backing has them"));
        }
        if new.ordered {
            return Err(refused(&new.name, "it is ordered, and a range would show only what is in memory"));
        }
        let may_choose = new.durability.is_none() && self.options().can_keep_records;
        let durability = if may_choose && backing.policy == BackingPolicy::WriteBack && durability.is_none() {
            TableDurability::Interval
        } else {
            durability
        };
        check_policy(&new.name, backing.policy, durability)?;
        Ok(durability)
    }

    /// Opens the objects of a backing with the credentials that the tenant has in a secret.
    fn open(
        view: &TenantView,
        table: &str,
        settings: &BackingSettings,
    ) -> Result<(Arc<dyn ObjectStore>, bool), DirectoryError> {
        let url = BackingUrl::parse(&settings.url).map_err(|error| refused(table, error))?;
        let secret = match &settings.secret {
            None => None,
            Some(name) => {
                let found = view.secrets.get(name).and_then(|secret| String::from_utf8(secret.to_vec()).ok());
                Some(found.ok_or_else(|| refused(table, format!("the tenant has no secret {name:?} with text")))?)
            }
        };
        let objects = open_objects(&url, secret.as_deref()).map_err(|error| refused(table, error))?;
        Ok((objects, url.is_raw))
    }

    /// Puts a new table in front of its backing.
    pub(super) fn attach_backing(
        &self,
        view: &TenantView,
        entry: &Arc<TableEntry>,
        backing: &TableBacking,
        full_name: &str,
    ) -> Result<(), DirectoryError> {
        let (objects, is_raw) = Directory::open(view, &entry.name(), &backing.settings)?;
        self.connect(entry, backing, objects, is_raw);
        self.attach_marks(entry, full_name)
    }

    /// Has the marks of a table with a backing logged, if the table is.
    pub(super) fn attach_marks(&self, entry: &Arc<TableEntry>, full_name: &str) -> Result<(), DirectoryError> {
        if let Some(made) = entry.backing.get().filter(|_| !entry.durability().is_none()) {
            let name = format!("{full_name} changed records");
            let attached = self.log.attach(made.table.marks(), (made.marks, &name), entry.durability());
            attached.map_err(|error| DirectoryError::JournalUnavailable(error.to_string()))?;
        }
        Ok(())
    }

    /// As above at a start: one whose backing cannot be opened is there, and says why it has nothing.
    pub(super) fn restore_backing(&self, view: &TenantView, entry: &Arc<TableEntry>, backing: &TableBacking) {
        let (objects, is_raw) = Directory::open(view, &entry.name(), &backing.settings).unwrap_or_else(|error| {
            tracing::error!(table = &*entry.name(), %error, "the backing of a table cannot be opened");
            let unreachable: Arc<dyn ObjectStore> = Arc::new(UnreachableObjects(error.to_string()));
            (unreachable, false)
        });
        self.connect(entry, backing, objects, is_raw);
    }

    fn connect(&self, entry: &Arc<TableEntry>, backing: &TableBacking, objects: Arc<dyn ObjectStore>, is_raw: bool) {
        let owner: Weak<TableEntry> = Arc::downgrade(entry);
        let new = NewBackedTable {
            owner: owner as Weak<dyn SpilledTable>,
            objects,
            settings: backing.settings.clone(),
            is_raw,
            writer: backing.writer,
            most_bytes: (self.options().max_key_len, self.options().max_value_len),
        };
        let table = BackedTable::new(new, &self.epochs, &self.backings);
        entry.table.attach_backing(Arc::clone(&table) as Arc<_>);
        let _once = entry.backing.set(EntryBacking { table, marks: backing.marks });
    }

    /// Changes how a table uses its backing, while it is used.
    ///
    /// # Errors
    /// No such tenant or table; it has no backing; the policy needs another durability; no such secret; the journal
    /// cannot be written.
    pub fn set_backing<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        table: &str,
        change: &BackingAlteration,
    ) -> Result<Arc<TableEntry>, DirectoryError> {
        let mut reopened = None;
        let entry = self.change_view(tenant, |next, view| {
            let entry = Arc::clone(view.table_by_name(table).ok_or_else(|| unknown_table(view, table))?);
            let before = view.settings.get(&entry.id).cloned().unwrap_or_else(|| TableDefinition::of(&entry));
            let Some(mut backing) = before.backing.clone() else {
                return Err(refused(table, "it has no backing; one is given when a table is created"));
            };
            let settings = &mut backing.settings;
            settings.policy = change.policy.unwrap_or(settings.policy);
            settings.fresh_ms = change.fresh_ms.unwrap_or(settings.fresh_ms);
            settings.stale_ms = change.stale_ms.unwrap_or(settings.stale_ms);
            settings.absent_ms = change.absent_ms.unwrap_or(settings.absent_ms);
            settings.flush_after_ms = change.flush_after_ms.unwrap_or(settings.flush_after_ms);
            settings.dirty_limit_bytes = change.dirty_limit_bytes.unwrap_or(settings.dirty_limit_bytes);
            check_policy(table, settings.policy, before.durability)?;
            if let Some(secret) = &change.secret {
                settings.secret = Some(secret.clone());
                reopened = Some(Directory::open(view, table, settings)?.0);
            }
            let now = TableDefinition { backing: Some(backing), ..before };
            view.settings.insert(entry.id, now.clone());
            next.effects.push(ChangeEffect::Settings(Arc::clone(&entry), now));
            Ok(entry)
        })?;
        if let Some((objects, backing)) = reopened.zip(entry.backing()) {
            backing.reopen(objects);
        }
        Ok(entry)
    }

    /// Writes what the backing of a table does not have yet, and returns when it has it: the number of objects.
    ///
    /// # Errors
    /// No such tenant or table, or no backing; not in time, or conflicts.
    pub fn flush_backing<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        table: &str,
        choice: ConflictChoice,
        most: Duration,
    ) -> Result<u64, DirectoryError> {
        let snapshot = self.snapshot();
        let view = snapshot.find(tenant)?;
        let entry = view.table_by_name(table).ok_or_else(|| unknown_table(view, table))?;
        let backing = entry.backing().ok_or_else(|| refused(table, "it has no backing"))?;
        let flushed = backing.flush(&mut self.epochs.register(), choice, most);
        flushed.map_err(|error| match error {
            FlushError::Conflicts(_) => {
                refused(table, format!("{error}; `sandstorm table flush --conflicts ours|theirs` decides"))
            }
            FlushError::NotInTime { .. } => DirectoryError::BackingUnavailable(error.to_string()),
        })
    }
}
