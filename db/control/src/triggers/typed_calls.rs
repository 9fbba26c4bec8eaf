//! Calls of typed functions by the clock: a trigger's arguments are JSON then.

use sandstorm_builder::ManifestTrigger;
use sandstorm_catalog::TenantView;
use sandstorm_schema::ExtensionSchema;
use serde_json::Value;

use super::definition::{TriggerDefinition, TriggerSource};

/// The bytes of a call by the clock whose arguments are these: as they are, or of an extension with typed functions
/// those of the JSON. An extension that is not loaded gets them as they are: the call waits for it.
///
/// # Errors
/// What is wrong, for people.
pub(super) fn call_bytes(view: &TenantView, spec: &TriggerDefinition, args: Vec<u8>) -> Result<Vec<u8>, String> {
    match view.extension(spec.called().0) {
        Some(loaded) => encode(loaded.library.schema().map(|schema| &**schema), spec, args),
        None => Ok(args),
    }
}

/// The bytes of a call by the clock of an extension with these typed functions.
fn encode(schema: Option<&ExtensionSchema>, spec: &TriggerDefinition, args: Vec<u8>) -> Result<Vec<u8>, String> {
    let (extension, function) = spec.called();
    match (schema, function) {
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
    match (view.extension(spec.called().0), source) {
        (Some(loaded), _) => check_built(loaded.library.schema().map(|schema| &**schema), spec, source),
        (None, TriggerSource::Table(_)) => check_built(None, spec, source),
        (None, TriggerSource::Schedule(_)) => Ok(()),
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
    if spec.called().1.is_some() || schema.is_some() {
        return Err(format!(
            "a table's trigger gives the change as bytes, which typed functions do not take: name an extension with \
             `pub async fn run(db: Db<'_>, args: &[u8])`, not {:?}",
            spec.extension
        ));
    }
    Ok(())
}
