//! Changes of an existing trigger: which parts of its definition they name, and which they may not change.

use serde::Deserialize;

use super::definition::{TriggerDefinition, TriggerOp};

/// What of a trigger is to be another. What is left out stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TriggerChange {
    /// The extension that it calls; of several typed functions which one, after a dot.
    pub extension: Option<String>,
    /// Calls it so often, in place of the schedule that it has.
    pub every: Option<String>,
    /// Calls it by the five fields of cron, in place of the schedule that it has.
    pub cron: Option<String>,
    /// Its table, which cannot be another.
    pub table: Option<String>,
    /// For which changes; an empty list: all but expiries.
    pub ops: Option<Vec<TriggerOp>>,
    /// Changes of a call, at most; 0: each call has one, as it is.
    pub batch: Option<u32>,
    /// The arguments of calls by a schedule; JSON, if it calls a typed function.
    pub args: Option<String>,
    /// Times that a call which failed is made again.
    pub retries: Option<u32>,
}

impl TriggerChange {
    /// The definition with this change. What it then is, is checked as a new one's.
    ///
    /// # Errors
    /// Why this trigger cannot become that, and what to do instead.
    pub(super) fn of(self, known: &TriggerDefinition) -> Result<TriggerDefinition, String> {
        let TriggerChange { extension, every, cron, table, ops, batch, args, retries } = self;
        let (name, mut changed) = (&known.name, known.clone());
        let another = "create another trigger, and delete this one";
        match &known.table {
            Some(own) if table.as_ref().is_some_and(|table| table != own) => {
                return Err(format!(
                    "trigger {name:?} is one of table {own:?}: its position and dead letters are of that table; {another}"
                ));
            }
            Some(own) if every.is_some() || cron.is_some() => {
                return Err(format!(
                    "trigger {name:?} is one of table {own:?}, and becomes none of a schedule; {another}"
                ));
            }
            None if table.is_some() => {
                return Err(format!("trigger {name:?} is one of a schedule, and becomes none of a table; {another}"));
            }
            _ => {}
        }
        if every.is_some() || cron.is_some() {
            (changed.every, changed.cron) = (every, cron);
        }
        changed.extension = extension.unwrap_or(changed.extension);
        changed.ops = ops.unwrap_or(changed.ops);
        changed.batch = batch.map_or(changed.batch, |batch| (batch != 0).then_some(batch));
        changed.args = args.unwrap_or(changed.args);
        changed.retries = retries.unwrap_or(changed.retries);
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn changed(known: &Value, change: Value) -> Result<Value, String> {
        let known: TriggerDefinition = serde_json::from_value(known.clone()).expect("a definition");
        let change: TriggerChange = serde_json::from_value(change).map_err(|error| error.to_string())?;
        let changed = change.of(&known)?;
        changed.source()?;
        Ok(serde_json::to_value(changed).expect("JSON"))
    }

    #[test]
    fn what_is_left_out_stays_and_what_it_cannot_become_is_refused() {
        let clock = json!({"name": "c", "extension": "e.f", "every": "5s", "args": "x", "retries": 2});
        let table = json!({"name": "t", "extension": "e", "table": "orders", "ops": ["put"], "batch": 8, "retries": 2});
        let with = |known: &Value, more: Value| {
            let mut wanted = known.clone();
            wanted.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            wanted
        };
        assert_eq!(changed(&clock, json!({})), Ok(clock.clone()));
        assert_eq!(changed(&clock, json!({"every": "1m"})), Ok(with(&clock, json!({"every": "1m"}))));
        let by_cron = changed(&clock, json!({"cron": "0 3 * * *", "args": ""})).expect("a schedule");
        assert_eq!(by_cron, json!({"name": "c", "extension": "e.f", "cron": "0 3 * * *", "retries": 2}));
        let other = json!({"ops": ["put", "delete"], "retries": 5, "extension": "g", "table": "orders"});
        assert_eq!(changed(&table, other.clone()), Ok(with(&table, other)));
        let single = changed(&table, json!({"batch": 0, "ops": []})).expect("a table's");
        assert_eq!(single, json!({"name": "t", "extension": "e", "table": "orders", "retries": 2}));
        for (known, change, word) in [
            (&table, json!({"table": "items"}), "its position and dead letters are of that table; create another"),
            (&table, json!({"every": "5s"}), "becomes none of a schedule; create another"),
            (&clock, json!({"table": "orders"}), "becomes none of a table; create another"),
            (&clock, json!({"every": "5s", "cron": "0 3 * * *"}), "one of"),
            (&clock, json!({"ops": ["put"]}), "ops"),
            (&clock, json!({"batch": 2}), "batch"),
            (&table, json!({"args": "x"}), "args"),
            (&table, json!({"retries": 1_000_000}), "retries"),
            (&table, json!({"name": "u"}), "name"),
        ] {
            let why = changed(known, change.clone()).expect_err("refused");
            assert!(why.contains(word), "{change}: {why}");
        }
    }
}
