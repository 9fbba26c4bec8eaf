//! What a trigger is: when it calls which extension with what.

use serde::{Deserialize, Serialize};

use super::schedule::Schedule;
use crate::limits::{TRIGGER_ARGS_BYTES, TRIGGER_BATCH, TRIGGER_RETRIES, TRIGGER_RETRIES_MAX};
use sandstorm_builder::ManifestTrigger;
use sandstorm_catalog::{MAX_NAME_LEN, check_extension_name, check_name};

/// A kind of change that a trigger may be called for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TriggerOp {
    /// A record was written.
    Put,
    /// A record was deleted, or evicted.
    Delete,
    /// All records were removed.
    Clear,
    /// The time of a record was over. Its table logs that while a trigger names it, so it is never one of "all".
    Expire,
}

/// A trigger, as its tenant defines it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TriggerDefinition {
    /// Its name.
    pub name: String,
    /// The extension that it calls; of several typed functions which one, after a dot.
    pub extension: String,
    /// Calls it so often, such as `5s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<String>,
    /// Calls it by the five fields of cron, in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// Calls it for changes of this table, with the change as its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// For which changes; if there is none, all but expiries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ops: Vec<TriggerOp>,
    /// Changes of a call, at most: its arguments are several ones, which succeed or fail together. `None`: each call
    /// has one, as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u32>,
    /// The arguments of calls by a schedule; JSON, if it calls a typed function.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub args: String,
    /// Times that a call which failed is made again.
    #[serde(default = "default_retries")]
    pub retries: u32,
}

fn default_retries() -> u32 {
    TRIGGER_RETRIES
}

/// When a trigger calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TriggerSource {
    /// By a schedule.
    Schedule(Schedule),
    /// For changes of the table of that name.
    Table(String),
}

impl TriggerDefinition {
    /// The trigger that the manifest of an extension declares.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub(crate) fn declared(extension: &str, one: &ManifestTrigger) -> Result<TriggerDefinition, String> {
        let ManifestTrigger { name, function, every, cron, on, ops, batch, args, retries } = one.clone();
        let op =
            |op: String| serde_json::from_value(serde_json::Value::String(op)).map_err(|error| format!("ops: {error}"));
        let ops = ops.into_iter().map(op).collect::<Result<_, _>>()?;
        let retries = retries.unwrap_or(TRIGGER_RETRIES);
        let extension = function.map_or_else(|| extension.to_owned(), |function| format!("{extension}.{function}"));
        Ok(TriggerDefinition { name, extension, every, cron, table: on, ops, batch, args, retries })
    }

    /// Checks it.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub(crate) fn source(&self) -> Result<TriggerSource, String> {
        check_name("trigger", &self.name).map_err(|error| error.to_string())?;
        let (extension, function) = self.called();
        check_extension_name(extension).map_err(|error| error.to_string())?;
        if let Some(function) = function {
            check_function(function)?;
        }
        if self.retries > TRIGGER_RETRIES_MAX {
            return Err(format!("{} retries: {TRIGGER_RETRIES_MAX} at most", self.retries));
        }
        if self.args.len() > TRIGGER_ARGS_BYTES {
            return Err(format!("the arguments have {} bytes: {TRIGGER_ARGS_BYTES} at most", self.args.len()));
        }
        if self.table.is_none() && !self.ops.is_empty() {
            return Err("`ops` are those of a `table`: a schedule has none".to_owned());
        }
        match self.batch {
            Some(_) if self.table.is_none() => {
                return Err("a `batch` is of the changes of a `table`: a schedule has none".to_owned());
            }
            Some(changes) if changes == 0 || changes > TRIGGER_BATCH => {
                return Err(format!("a batch of {changes} changes: 1 to {TRIGGER_BATCH}"));
            }
            Some(_) | None => {}
        }
        match (&self.every, &self.cron, &self.table) {
            (Some(every), None, None) => Schedule::every(every).map(TriggerSource::Schedule),
            (None, Some(cron), None) => Schedule::cron(cron).map(TriggerSource::Schedule),
            (None, None, Some(_)) if !self.args.is_empty() => {
                Err("`args` are those of a schedule: the arguments of a table's trigger are the change".to_owned())
            }
            (None, None, Some(table)) => Ok(TriggerSource::Table(table.clone())),
            _ => Err("a trigger has one of `every`, `cron` and `table` (`--every`, `--cron`, `--on`)".to_owned()),
        }
    }

    /// The extension that it calls, and the typed function, if it names one.
    pub(crate) fn called(&self) -> (&str, Option<&str>) {
        match self.extension.split_once('.') {
            Some((extension, function)) => (extension, Some(function)),
            None => (&self.extension, None),
        }
    }

    /// Whether it calls for such a change.
    pub(crate) fn wants(&self, op: TriggerOp) -> bool {
        self.ops.contains(&op) || self.ops.is_empty() && op != TriggerOp::Expire
    }
}

/// Checks what follows the dot of a called extension: the name of a function in Rust.
fn check_function(name: &str) -> Result<(), String> {
    let may_be = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if name.is_empty() || name.len() > MAX_NAME_LEN || !name.bytes().all(may_be) {
        return Err(format!("function {name:?}: 1 to {MAX_NAME_LEN} letters, digits and '_'"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_trigger_has_one_source_and_what_belongs_to_it() {
        let spec = |more: Value| {
            let mut spec = json!({"name": "t", "extension": "e"});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value::<TriggerDefinition>(spec).map_err(|error| error.to_string())?.source()
        };
        assert!(matches!(spec(json!({"every": "5s", "args": "x"})), Ok(TriggerSource::Schedule(_))));
        assert!(matches!(spec(json!({"cron": "* * * * *"})), Ok(TriggerSource::Schedule(_))));
        assert!(matches!(spec(json!({"table": "t", "ops": ["put", "delete"]})), Ok(TriggerSource::Table(_))));
        assert!(matches!(spec(json!({"table": "t", "batch": TRIGGER_BATCH})), Ok(TriggerSource::Table(_))));
        let longest = "e".repeat(MAX_NAME_LEN);
        let both = format!("{longest}.{longest}");
        assert!(matches!(spec(json!({"every": "5s", "extension": both})), Ok(TriggerSource::Schedule(_))));
        for (more, word) in [
            (json!({"every": "5s", "extension": format!("{longest}e.add")}), "longer than 64"),
            (json!({"every": "5s", "extension": format!("e.{longest}e")}), "1 to 64"),
            (json!({"every": "5s", "extension": "e."}), "function \"\""),
            (json!({"every": "5s", "extension": ".add"}), "empty"),
            (json!({"every": "5s", "extension": "e.add.more"}), "add.more"),
            (json!({}), "one of"),
            (json!({"every": "5s", "cron": "* * * * *"}), "one of"),
            (json!({"every": "5s", "table": "t"}), "one of"),
            (json!({"every": "5s", "ops": ["put"]}), "ops"),
            (json!({"table": "t", "args": "x"}), "args"),
            (json!({"every": "5s", "batch": 8}), "batch"),
            (json!({"table": "t", "batch": 0}), "batch"),
            (json!({"table": "t", "batch": TRIGGER_BATCH + 1}), "batch"),
            (json!({"table": "t", "ops": ["vanish"]}), "vanish"),
            (json!({"table": "t", "retries": 1000}), "retries"),
            (json!({"every": "5s", "name": "a b"}), "a b"),
            (json!({"every": "5s", "args": "x".repeat(TRIGGER_ARGS_BYTES + 1)}), "bytes"),
            (json!({"every": "5s", "on": "t"}), "on"),
        ] {
            let why = spec(more.clone()).unwrap_err();
            assert!(why.contains(word), "{more}: {why}");
        }
    }
}
