//! Typed functions: `pub async fn transfer(db: Db<'_>, args: Transfer) -> Result<Balances, Error>` in place of the
//! plain `run`. Their types are read from the source, and the wrapper around it gets the code that turns bytes into
//! them. That code is safe Rust, and the compiler checks it against the tenant's types: what is misread here does not
//! compile.

mod source_types;
#[cfg(test)]
mod tests;
mod wrapper_code;

use sandstorm_schema::ExtensionSchema;

use super::check::with_a_deep_stack;
use super::{BuildError, PushedSource, ROOT_FILE};

/// What a source has of typed functions.
#[derive(Clone, Debug, PartialEq)]
struct TypedSource {
    schema: ExtensionSchema,
    /// Whether the type `Change` in it is the API's own.
    takes_changes: bool,
}

/// The schema of a source's typed functions; `None`: its entry is the plain `run`, or it has none.
///
/// # Errors
/// `Refused` with the place of each type that no client could give or take.
pub fn schema_of(source: &PushedSource) -> Result<Option<ExtensionSchema>, BuildError> {
    Ok(read(source)?.map(|found| found.schema))
}

fn read(source: &PushedSource) -> Result<Option<TypedSource>, BuildError> {
    let Some(root) = source.files.iter().find(|file| file.path == ROOT_FILE) else { return Ok(None) };
    let found = with_a_deep_stack(|| source_types::read(&root.text))?;
    found.map_err(BuildError::Refused)
}

/// The path of the entry in the wrapper, and what the wrapper has besides.
///
/// # Errors
/// As for [`schema_of`].
pub(super) fn entry_code(source: &PushedSource) -> Result<(&'static str, String), BuildError> {
    Ok(match read(source)? {
        Some(found) => (wrapper_code::ENTRY, wrapper_code::write(&found)),
        None => ("tenant::run", String::new()),
    })
}
