//! Promise: a trigger with another definition goes on where it was.

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

/// Whether a manifest or a command changes it: only what the change is about begins anew.
#[test]
fn a_trigger_with_another_definition_goes_on_where_it_was() {
    let of = |every: Option<&str>, table: Option<&str>, retries: u32| TriggerDefinition {
        name: "t".to_owned(),
        extension: "count".to_owned(),
        every: every.map(str::to_owned),
        cron: None,
        table: table.map(str::to_owned),
        ops: Vec::new(),
        batch: None,
        args: String::new(),
        retries,
    };
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
