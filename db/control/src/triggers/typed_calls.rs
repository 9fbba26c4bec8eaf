//! Calls of typed functions by triggers: the arguments of a schedule are JSON then, and the changes of a table have the
//! types that the API's `Change` has in a schema.

use sandstorm_api::change::{Change, ChangeOp, Changes};
use sandstorm_builder::ManifestTrigger;
use sandstorm_catalog::TenantView;
use sandstorm_schema::{ChangeArgument, ExtensionSchema, FunctionSchema};
use serde_json::Value;

use super::definition::{TriggerDefinition, TriggerSource};

/// The bytes of a call by the clock whose arguments are these: as they are, or of an extension with typed functions
/// those of the JSON. An extension that is not loaded gets them as they are: the call waits for it.
///
/// # Errors
/// What is wrong, for people.
fn call_bytes(view: &TenantView, spec: &TriggerDefinition, args: Vec<u8>) -> Result<Vec<u8>, String> {
    match view.extension(spec.called().0) {
        Some(loaded) => encode(loaded.library.schema().map(|schema| &**schema), spec, args),
        None => Ok(args),
    }
}

/// The bytes of a call for changes of a table: as they are, or of an extension with typed functions those of the
/// function's argument. An extension that is not loaded gets them as they are: the call waits for it.
///
/// # Errors
/// What is wrong, for people.
fn change_bytes(view: &TenantView, spec: &TriggerDefinition, changes: Vec<u8>) -> Result<Vec<u8>, String> {
    match view.extension(spec.called().0) {
        Some(loaded) => encode_changes(loaded.library.schema().map(|schema| &**schema), spec, changes),
        None => Ok(changes),
    }
}

/// The bytes of a call of a trigger, whichever it is.
///
/// # Errors
/// What is wrong, for people.
pub(super) fn bytes_of(view: &TenantView, spec: &TriggerDefinition, args: Vec<u8>) -> Result<Vec<u8>, String> {
    match &spec.table {
        Some(_) => change_bytes(view, spec, args),
        None => call_bytes(view, spec, args),
    }
}

fn encode_changes(
    schema: Option<&ExtensionSchema>,
    spec: &TriggerDefinition,
    changes: Vec<u8>,
) -> Result<Vec<u8>, String> {
    let Some((function, argument)) = change_function(schema, spec)? else { return Ok(changes) };
    let read = Changes::decode(&changes).map_err(|error| error.text().to_owned())?;
    let mut bytes = function.fingerprint.to_le_bytes().to_vec();
    bytes.reserve(changes.len());
    match argument {
        ChangeArgument::One if read.len() != 1 => return Err(takes_one(&function.name)),
        ChangeArgument::One => {}
        ChangeArgument::Several => put_len(&mut bytes, read.len()),
    }
    read.for_each(|change| put_change(&mut bytes, &change));
    Ok(bytes)
}

fn put_len(bytes: &mut Vec<u8>, len: usize) {
    // A call's changes have 64 KiB, or are one, whose key and value are shorter than 4 GiB.
    bytes.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
}

/// Writes a change as its type in schemas says.
fn put_change(bytes: &mut Vec<u8>, change: &Change<'_>) {
    bytes.push(match change.op {
        ChangeOp::Put => 0,
        ChangeOp::Delete => 1,
        ChangeOp::Clear => 2,
        ChangeOp::Expire => 3,
    });
    for part in [change.key, change.value] {
        put_len(bytes, part.len());
        bytes.extend_from_slice(part);
    }
    for number in [change.version, change.expires_at_ms, change.position] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
}

/// The typed function that a table's trigger calls, and what it takes; `None`: it calls a plain one.
fn change_function<'s>(
    schema: Option<&'s ExtensionSchema>,
    spec: &TriggerDefinition,
) -> Result<Option<(&'s FunctionSchema, ChangeArgument)>, String> {
    let Some(schema) = schema else {
        return if spec.called().1.is_some() { Err(not_typed(spec)) } else { Ok(None) };
    };
    let function = schema.find_function(spec.called().1).map_err(|error| error.to_string())?;
    let argument = schema.change_argument(function).ok_or_else(|| {
        format!(
            "a table's trigger gives changes, and {} takes {}: write `pub async fn {}(db: Db<'_>, change: Change<'_>)` \
             (or `Vec<Change<'_>>`) with `use sandstorm_api::change::Change`, or name another function or extension",
            function.name, function.args, function.name
        )
    })?;
    Ok(Some((function, argument)))
}

fn takes_one(function: &str) -> String {
    format!(
        "{function} takes one change, and the trigger has a batch: write `changes: Vec<Change<'_>>` there, or leave \
         the batch out"
    )
}

fn not_typed(spec: &TriggerDefinition) -> String {
    format!("extension {:?} has no typed functions: leave the dot out", spec.called().0)
}

/// The bytes of a call by the clock of an extension with these typed functions.
fn encode(schema: Option<&ExtensionSchema>, spec: &TriggerDefinition, args: Vec<u8>) -> Result<Vec<u8>, String> {
    match (schema, spec.called().1) {
        (Some(schema), function) => {
            let function = schema.find_function(function).map_err(|error| error.to_string())?;
            let json = if args.is_empty() { Ok(Value::Null) } else { serde_json::from_slice(&args) };
            let json =
                json.map_err(|error| format!("the arguments of a typed function are JSON, these not: {error}"))?;
            schema.encode_call(function, &json).map_err(|error| error.to_string())
        }
        (None, None) => Ok(args),
        (None, Some(_)) => Err(not_typed(spec)),
    }
}

/// Checks that what a trigger calls takes what the trigger gives, if it is loaded.
///
/// # Errors
/// What is wrong, for people.
pub(super) fn check(view: &TenantView, spec: &TriggerDefinition, source: &TriggerSource) -> Result<(), String> {
    match view.extension(spec.called().0) {
        Some(loaded) => check_built(loaded.library.schema().map(|schema| &**schema), spec, source),
        None => Ok(()),
    }
}

/// Checks the triggers that an extension's manifest declares, by all that a push refuses whatever tables and triggers
/// there are; `schema` is that of its typed functions.
///
/// # Errors
/// What is wrong with the first that is refused, for people.
pub fn check_manifest(
    extension: &str,
    triggers: &[ManifestTrigger],
    schema: Option<&ExtensionSchema>,
) -> Result<(), String> {
    triggers.iter().try_for_each(|one| {
        let checked = TriggerDefinition::declared(extension, one)
            .and_then(|spec| spec.source().and_then(|source| check_built(schema, &spec, &source)));
        checked.map_err(|why| format!("trigger {:?} of extension.toml: {why}", one.name))
    })
}

/// As [`check`], of a version that need not be loaded, with these typed functions.
///
/// # Errors
/// What is wrong, for people.
pub(super) fn check_built(
    schema: Option<&ExtensionSchema>,
    spec: &TriggerDefinition,
    source: &TriggerSource,
) -> Result<(), String> {
    let TriggerSource::Table(_) = source else {
        return encode(schema, spec, spec.args.clone().into_bytes()).map(drop);
    };
    match change_function(schema, spec)? {
        Some((function, ChangeArgument::One)) if spec.batch.is_some() => Err(takes_one(&function.name)),
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use sandstorm_schema::{ValueType, change_types};
    use serde_json::json;

    use super::*;

    fn schema() -> ExtensionSchema {
        let function = |name: &str, args: &str| FunctionSchema {
            name: name.to_owned(),
            args: args.parse().expect("a type"),
            reply: ValueType::Unit,
            fingerprint: 0,
            description: String::new(),
        };
        let functions = vec![function("one", "Change"), function("many", "Vec<Change>"), function("add", "u8")];
        ExtensionSchema::checked(functions, change_types().into()).expect("a schema")
    }

    fn spec(extension: &str, batch: Option<u32>) -> TriggerDefinition {
        let mut spec = json!({"name": "t", "extension": extension, "table": "orders"});
        if let Some(batch) = batch {
            spec["batch"] = batch.into();
        }
        serde_json::from_value(spec).expect("a definition")
    }

    fn change(op: ChangeOp, key: &[u8]) -> Change<'_> {
        Change { op, key, value: b"value", version: 3, expires_at_ms: 4, position: 5 }
    }

    /// A change has the bytes that its JSON has by the types of the schema.
    #[test]
    fn changes_have_the_bytes_of_their_types() {
        let schema = schema();
        let as_json = |change: &Change<'_>| {
            let text = |bytes: &[u8]| sandstorm_schema::Blob(bytes.to_vec());
            json!({"op": format!("{:?}", change.op), "key": text(change.key), "value": text(change.value),
                "version": change.version, "expires_at_ms": change.expires_at_ms, "position": change.position})
        };
        for op in [ChangeOp::Put, ChangeOp::Delete, ChangeOp::Clear, ChangeOp::Expire] {
            let one = change(op, b"a key");
            let bytes = encode_changes(Some(&schema), &spec("e.one", None), one.encode()).expect("one change");
            let function = schema.find_function(Some("one")).expect("it");
            assert_eq!(Ok(bytes), schema.encode_call(function, &as_json(&one)));
            let several = [one, change(ChangeOp::Put, b"")];
            let function = schema.find_function(Some("many")).expect("it");
            for changes in [&several[..1], &several] {
                let encoded = Changes::encode(changes);
                let bytes = encode_changes(Some(&schema), &spec("e.many", Some(8)), encoded).expect("changes");
                let list: Vec<Value> = changes.iter().map(as_json).collect();
                assert_eq!(Ok(bytes), schema.encode_call(function, &list.into()));
            }
            // Without a batch a change comes alone, to either.
            assert!(encode_changes(Some(&schema), &spec("e.many", None), one.encode()).is_ok());
            let error = encode_changes(Some(&schema), &spec("e.one", Some(8)), Changes::encode(&several)).unwrap_err();
            assert!(error.contains("Vec<Change<'_>>"), "{error}");
            assert_eq!(encode_changes(None, &spec("e", None), one.encode()), Ok(one.encode()));
        }
    }

    #[test]
    fn what_takes_no_changes_is_refused_with_what_to_write() {
        let schema = schema();
        let check = |schema: Option<&ExtensionSchema>, extension: &str, batch: Option<u32>| {
            let spec = spec(extension, batch);
            spec.source().and_then(|source| check_built(schema, &spec, &source))
        };
        for (extension, batch) in [("e.one", None), ("e.many", None), ("e.many", Some(8))] {
            assert_eq!(check(Some(&schema), extension, batch), Ok(()), "{extension}");
        }
        assert_eq!(check(None, "e", Some(8)), Ok(()));
        for (extension, batch, part) in [
            ("e.add", None, "add takes u8: write `pub async fn add(db: Db<'_>, change: Change<'_>)`"),
            ("e.one", Some(8), "takes one change, and the trigger has a batch"),
            ("e", None, "several functions"),
            ("e.none", None, "there are: one, many, add"),
        ] {
            let why = check(Some(&schema), extension, batch).unwrap_err();
            assert!(why.contains(part), "{extension}: {why}");
        }
        assert!(check(None, "e.one", None).unwrap_err().contains("leave the dot out"));
    }
}
