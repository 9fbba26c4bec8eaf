//! Promise: a trigger with another definition goes on where it was.

use sandstorm_catalog::{Directory, DirectoryOptions, NewTable, NewTenant, TableDurability};
use sandstorm_store::Epochs;

use super::*;

fn trigger(spec: TriggerDefinition) -> ActiveTrigger {
    let (tenant_name, paused, dead_letters) = ("shop".to_owned(), String::new(), Vec::new());
    let stored = StoredTrigger {
        tenant: 1,
        tenant_name,
        spec,
        position: 40,
        log_id: 9,
        last_due_ms: 1_000,
        paused,
        agreed: None,
        dead_letters,
    };
    let mut made = ActiveTrigger::of(stored).unwrap();
    (made.counts.succeeded, made.last_error) = (3, "it failed".to_owned());
    made
}

fn of(every: Option<&str>, table: Option<&str>, retries: u32) -> TriggerDefinition {
    TriggerDefinition {
        name: "t".to_owned(),
        extension: "count".to_owned(),
        every: every.map(str::to_owned),
        cron: None,
        table: table.map(str::to_owned),
        ops: Vec::new(),
        batch: None,
        args: String::new(),
        retries,
    }
}

/// Whether a manifest or a command changes it: only what the change is about begins anew.
#[test]
fn a_trigger_with_another_definition_goes_on_where_it_was() {
    let daily = trigger(of(Some("24h"), None, 8));
    let same_time = daily.redefined(of(Some("24h"), None, 2), 0, 5_000).unwrap();
    assert_eq!((same_time.next_due_ms(), same_time.counts.succeeded), (daily.next_due_ms(), 3));
    assert_eq!((&*same_time.last_error, same_time.epoch == daily.epoch), ("it failed", false));
    let hourly = daily.redefined(of(Some("1h"), None, 8), 0, 5_000).unwrap();
    assert_eq!(hourly.next_due_ms(), Some(5_000 + 3_600_000));

    let items = trigger(of(None, Some("items"), 8));
    assert_eq!(items.redefined(of(None, Some("items"), 2), 70, 5_000).unwrap().position(), 40);
    assert_eq!(items.redefined(of(None, Some("other"), 8), 70, 5_000).unwrap().position(), 70);
}

/// Events and lists are read far from the trigger: the text names it, and the commands that go on.
#[test]
fn a_trigger_that_pauses_itself_says_which_one_it_is_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let options = DirectoryOptions { can_keep_records: true, ..DirectoryOptions::default() };
    let directory = Directory::with_options(Epochs::new(), options);
    directory.restore_records(&folder.path().join("log"), 1, |log| log.start()).unwrap();
    directory.create_tenant(NewTenant::named("shop")).unwrap();
    let table = NewTable { durability: Some(TableDurability::Interval), ..NewTable::named("items") };
    let entry = directory.create_table("shop", table).unwrap();
    let (log, number) = (directory.change_log().unwrap(), entry.table.log_number().unwrap());

    let mut other_log = trigger(of(None, Some("items"), 8));
    assert!(other_log.read_log(&log, number));
    assert!(other_log.paused.starts_with("the log is not the one of which trigger \"t\" "), "{}", other_log.paused);
    for part in ["`sandstorm trigger resume t`", "`sandstorm trigger replay t --from POSITION`"] {
        assert!(other_log.paused.contains(part), "{}", other_log.paused);
    }
    let mut full = trigger(of(None, Some("items"), 8));
    let letters = (1..).find(|_| full.bury(&TriggerCall::plain(vec![7]), 1));
    assert_eq!(letters, Some(TRIGGER_DEAD_LETTERS));
    for part in ["trigger \"t\"", "trigger replay t`", "dead-letters t --discard`", "trigger resume t`"] {
        assert!(full.paused.contains(part), "{}", full.paused);
    }
    let missed = unread_text("t", 40, &TailError::TooOld { oldest: 70 });
    assert!(missed.starts_with("trigger \"t\" has missed changes: "), "{missed}");
    assert!(missed.contains("`sandstorm trigger replay t --from 70`") && missed.contains("resume t`"), "{missed}");
    assert!(unread_text("t", 40, &TailError::NoPosition(40)).starts_with("trigger \"t\" cannot read the log"));
}
