//! Calls of typed functions by the clock: a trigger's arguments are JSON then.

use sandstorm_catalog::TenantView;
use serde_json::Value;

use super::definition::{TriggerDefinition, TriggerSource};

/// The bytes of a call by the clock whose arguments are these: as they are, or of an extension with typed functions
/// those of the JSON. An extension that is not loaded gets them as they are: the call waits for it.
///
/// # Errors
/// What is wrong, for people.
pub(super) fn call_bytes(view: &TenantView, spec: &TriggerDefinition, args: Vec<u8>) -> Result<Vec<u8>, String> {
    let (extension, function) = spec.called();
    let Some(loaded) = view.extension(extension) else { return Ok(args) };
    match (loaded.library.schema(), function) {
        (Some(schema), function) => {
            let function = schema.find_function(function).map_err(|error| error.to_string())?;
            let json = if args.is_empty() { Ok(Value::Null) } else { serde_json::from_slice(&args) };
            let json =
                json.map_err(|error| format!("the arguments of a typed function are JSON, these not: {error}"))?;
            schema.encode_call(function, &json).map_err(|error| error.to_string())
        }
        (None, None) => Ok(args),
        (None, Some(_)) => Err(format!("extension {extension:?} has no typed functions: leave the dot out")),
    }
}

/// Checks that what a trigger calls takes what the trigger gives, if it is loaded.
///
/// # Errors
/// What is wrong, for people.
pub(super) fn check(view: &TenantView, spec: &TriggerDefinition, source: &TriggerSource) -> Result<(), String> {
    let TriggerSource::Table(_) = source else {
        return call_bytes(view, spec, spec.args.clone().into_bytes()).map(drop);
    };
    let (extension, function) = spec.called();
    let is_typed = view.extension(extension).is_some_and(|loaded| loaded.library.schema().is_some());
    if function.is_some() || is_typed {
        return Err(format!(
            "a table's trigger gives the change as bytes, which typed functions do not take: name an extension with \
             `pub async fn run(db: Db<'_>, args: &[u8])`, not {:?}",
            spec.extension
        ));
    }
    Ok(())
}
