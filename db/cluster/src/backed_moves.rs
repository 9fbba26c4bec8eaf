//! Moves of slots of tables with a backing. Their records are in the backing, so none are copied. Before the source
//! gives the slots away it flushes the dirty keys there, deletes included, and stops writing. If the backing does not
//! take them, the slots stay.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sandstorm_catalog::{Directory, TableEntry};
use sandstorm_store::slots::SlotSpan;

use crate::limits::BACKING_POLL;

/// The tables with a backing, with their tenants' names.
fn backed_tables(directory: &Directory) -> Vec<(String, Arc<TableEntry>)> {
    let snapshot = directory.snapshot();
    let views = snapshot.sorted();
    let tables = views.iter().flat_map(|view| {
        let backed = view.tables.values().filter(|entry| entry.backing().is_some());
        backed.map(|entry| (format!("{}/{}", view.tenant.name, entry.name()), Arc::clone(entry)))
    });
    tables.collect()
}

/// Why slots cannot be moved: a table whose objects are in one server's memory, by its name.
pub fn unmovable(directory: &Directory) -> Option<String> {
    let is_in_memory = |entry: &TableEntry| entry.backing().is_some_and(|backing| backing.is_in_memory());
    let (name, _) = backed_tables(directory).into_iter().find(|(_, entry)| is_in_memory(entry))?;
    Some(format!(
        "the backing of table {name} is in each server's own memory: slots cannot be moved while there is such a table, \
         since each has keys in all slots"
    ))
}

/// What the backings of tables do not have yet of some slots: how many keys, and the first such table in words.
///
/// # Errors
/// One line: an operator has to decide something first.
fn unwritten(directory: &Directory, span: SlotSpan, hurries: bool) -> Result<(usize, String), String> {
    let (mut keys, mut first) = (0, String::new());
    for (name, entry) in backed_tables(directory) {
        let Some(backing) = entry.backing() else { continue };
        if hurries {
            backing.hurry();
        }
        let found = backing.dirty_in(span);
        if found.conflicted > 0 {
            return Err(format!(
                "{} keys of table {name} were changed in its backing by another writer, too: `sandstorm table flush {} \
                 --conflicts ours|theirs` decides",
                found.conflicted,
                entry.name()
            ));
        }
        if found.keys > 0 && keys == 0 {
            let error = backing.stats().last_error.map_or_else(String::new, |error| format!(" ({error})"));
            first = format!("the backing of table {name} does not have {} changed keys yet{error}", found.keys);
        }
        keys += found.keys;
    }
    Ok((keys, first))
}

/// Has written what the backings of tables do not have yet of some slots, until it is so many keys or fewer. Not to be
/// called by a participant that is online: it waits for disks and networks.
///
/// # Errors
/// One line: it takes longer than that.
pub(crate) fn write_slots(
    directory: &Directory,
    span: SlotSpan,
    (left, most): (usize, Duration),
) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let (keys, first) = unwritten(directory, span, true)?;
        if keys <= left {
            return Ok(());
        }
        if begun.elapsed() >= most {
            return Err(first);
        }
        std::thread::sleep(BACKING_POLL);
    }
}

/// Makes sure that the backings of tables have all of some slots.
///
/// # Errors
/// One line: they do not.
pub(crate) fn check_written(directory: &Directory, span: SlotSpan) -> Result<(), String> {
    match unwritten(directory, span, false)? {
        (0, _) => Ok(()),
        (_, first) => Err(first),
    }
}
