//! Tenants' tables larger than memory: which are allowed, their files, and the quotas of cold reads.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use hashbrown::HashMap;
use sandstorm_store::spill::{ColdReadCounts, SpillFolderFile, SpillPool, SpillQuota};
use sandstorm_store::{RecordTable, SpilledTable, StorageMode};

use super::{Directory, DirectoryError, Quotas, TableEntry, TenantAccount, TenantView};

impl SpilledTable for TableEntry {
    fn records(&self) -> &RecordTable {
        &self.table
    }
}

impl Quotas {
    fn spill_quota(&self) -> SpillQuota {
        let unless_0 = |limit: u64| if limit == 0 { u64::MAX } else { limit };
        SpillQuota {
            reads_per_second: unless_0(self.cold_reads_per_s.into()),
            bytes_per_second: unless_0(self.cold_bytes_per_s),
        }
    }
}

impl Directory {
    /// Makes the folder of spill files, or empties it, and starts their threads. Before the first table is made.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open_spill_folder(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        for file in fs::read_dir(path)? {
            let file = file?.path();
            if file.extension().is_some_and(|extension| extension == SPILL_EXTENSION) {
                fs::remove_file(file)?;
            }
        }
        let pool = SpillPool::new();
        pool.start(&self.epochs)?;
        let _once = self.spill.open.set((path.to_owned(), pool));
        Ok(())
    }

    /// Ends the threads of spill files. What waits for cold records gets errors.
    pub fn close_spill_folder(&self) {
        if let Some((_, pool)) = self.spill.open.get() {
            pool.stop();
        }
    }

    /// The cold reads of each tenant that has made any, by its id.
    pub fn cold_reads(&self) -> HashMap<u32, ColdReadCounts> {
        self.spill.open.get().map(|(_, pool)| pool.cold_reads()).unwrap_or_default()
    }

    /// Refuses a table of mode `spill` with properties that it cannot have.
    pub(super) fn check_spill(&self, table: &str, (mode, ordered): (StorageMode, bool)) -> Result<(), DirectoryError> {
        let why = match mode {
            StorageMode::Store | StorageMode::Cache => return Ok(()),
            StorageMode::Spill if ordered => {
                "it is ordered, and ranges do not wait for the disk: keep the keys in an ordered table in store mode, \
                 and their large values in this one"
            }
            StorageMode::Spill if self.spill.open.get().is_none() => "the server keeps nothing on disk (--ephemeral)",
            StorageMode::Spill => return Ok(()),
        };
        Err(DirectoryError::CannotSpill { table: table.to_owned(), why })
    }

    /// Gives a new table of mode `spill` its file.
    pub(super) fn attach_spill(&self, tenant: &TenantAccount, entry: &Arc<TableEntry>) -> io::Result<()> {
        let Some((path, pool)) = self.spill.open.get().filter(|_| entry.mode() == StorageMode::Spill) else {
            return Ok(());
        };
        let number = self.spill.files.fetch_add(1, Relaxed);
        let file = path.join(format!("{}-{}-{number}.{SPILL_EXTENSION}", tenant.id, entry.id));
        let device = Box::new(SpillFolderFile::create(&file)?);
        let owner: Weak<TableEntry> = Arc::downgrade(entry);
        entry.table.attach_spill(owner, device, tenant.quotas.spill_bytes, (pool, tenant.id));
        self.set_spill_quota(tenant);
        Ok(())
    }

    /// Has a tenant's quota of the disk hold from now on, for the tables that it has.
    pub(super) fn set_spill_limits(view: &TenantView) {
        let limit_bytes = view.tenant.quotas.spill_bytes;
        view.tables.values().for_each(|entry| entry.table.set_spill_limit(limit_bytes));
    }

    /// The threads of spill files, if there are any.
    #[cfg(test)]
    pub(crate) fn spill_pool(&self) -> Option<&Arc<SpillPool>> {
        self.spill.open.get().map(|(_, pool)| pool)
    }

    /// Has a tenant's quotas of cold reads hold from now on.
    pub(super) fn set_spill_quota(&self, tenant: &TenantAccount) {
        if let Some((_, pool)) = self.spill.open.get() {
            pool.set_quota(tenant.id, tenant.quotas.spill_quota());
        }
    }
}

const SPILL_EXTENSION: &str = "spill";
