//! Maps the library of a verified artifact. Only this module knows how the libraries of each tier are loaded.

use std::sync::Arc;

use sandstorm_builder::{Artifact, api_fingerprint};
use sandstorm_extension::{ExtensionLibrary, LoadError};
use sandstorm_net::CodeTier;

/// Maps the library of an artifact whose signature and header have been verified.
pub type LibraryLoader = fn(&Artifact) -> Result<Arc<ExtensionLibrary>, LoadError>;

/// The loader of a server.
///
/// # Errors
/// [`LoadError`]; a library of the sandboxed tier is never mapped as a native one.
pub(super) fn load_library(artifact: &Artifact) -> Result<Arc<ExtensionLibrary>, LoadError> {
    let library = match artifact.header.tier {
        CodeTier::Native => ExtensionLibrary::load(&artifact.elf, api_fingerprint()),
        CodeTier::Sandboxed => ExtensionLibrary::load_sandboxed(&artifact.elf, api_fingerprint()),
    }?;
    if let Some(schema) = &artifact.header.schema {
        library.set_schema(Arc::clone(schema));
    }
    Ok(library)
}
