//! Tables that lose records where another server takes a server's place.

use std::sync::Arc;

use sandstorm_catalog::{Directory, TableDurability, TableEntry, TenantView};

/// The names of tables of which a failover loses the last writes, or all records: those that do not wait for copies,
/// and so all with a backing.
pub fn losing_tables(directory: &Directory) -> Vec<String> {
    let snapshot = directory.snapshot();
    let losing = |view: &Arc<TenantView>| -> Vec<String> {
        // What another server has changed may not hold here yet, and what is changed here may not hold there.
        let waits_for_copies = |entry: &&Arc<TableEntry>| {
            [entry.durability(), view.agreed_durability(entry)] == [TableDurability::Copies; 2]
        };
        let tables = view.tables.values().filter(|entry| !waits_for_copies(entry));
        tables.map(|entry| format!("{}/{}", view.tenant.name, entry.name())).collect()
    };
    let mut names: Vec<String> = snapshot.iter().flat_map(losing).collect();
    names.sort();
    names
}
