//! Libraries of one source that differ by a constant: each is code of its own to the server, and only one is compiled.
//!
//! A source gets a text of eight digits into one of its constants before it is built. In the built library these digits
//! are exchanged for others: the same library that a compiler would have made of a source with the other digits.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use sandstorm_builder::{BuilderConfig, InProcessBuilder, PushedSource, SourceFile, api_fingerprint};
use sandstorm_extension::{BudgetOverride, ExtensionLibrary, LoadError, LoadedExtension};
use sandstorm_net::CodeTier;
use sandstorm_terminal::output::CliError;

use super::local_server::ExampleExtension;
use super::sysroot_cache;

/// The digits of the source that is built.
const DIGITS: &[u8; 8] = b"90817263";
/// The constant that gets the digits: each example has it, and can answer with it.
const CONSTANT: &str = "const FORMAT: &str = \"";

/// Builds each example once for each tier, and makes libraries of the builds.
pub(super) struct DistinctLibraries {
    builder: InProcessBuilder,
    /// The builder's folder, for as long as it lives.
    folder: tempfile::TempDir,
    /// By the names of the example and of the tier.
    built: HashMap<(&'static str, &'static str), Vec<u8>>,
    made: u32,
}

impl DistinctLibraries {
    /// Starts a builder in a folder of its own.
    pub(super) fn new() -> Result<DistinctLibraries, CliError> {
        let folder = tempfile::tempdir()?;
        sysroot_cache::take(folder.path());
        let state = folder.path().join("builder");
        let builder = InProcessBuilder::open(&BuilderConfig { state, ..BuilderConfig::default() }).map_err(failed)?;
        Ok(DistinctLibraries { builder, folder, built: HashMap::new(), made: 0 })
    }

    /// Loads a further library of an example: no other one has its bytes.
    pub(super) fn load(&mut self, example: &ExampleExtension, tier: CodeTier) -> Result<LoadedExtension, CliError> {
        let built = match self.built.entry((example.name, tier.name())) {
            Entry::Occupied(built) => built.into_mut(),
            Entry::Vacant(place) => place.insert(build(&self.builder, example, tier)?),
        };
        self.made += 1;
        let library = load(&with_digits(built, self.made)?, tier).map_err(failed)?;
        Ok(LoadedExtension::new(example.name, 1, library, BudgetOverride::default()).in_tier(tier))
    }
}

impl Drop for DistinctLibraries {
    fn drop(&mut self) {
        sysroot_cache::give(self.folder.path());
    }
}

fn failed(error: impl std::fmt::Display) -> CliError {
    CliError::new(error.to_string())
}

fn load(image: &[u8], tier: CodeTier) -> Result<Arc<ExtensionLibrary>, LoadError> {
    match tier {
        CodeTier::Native => ExtensionLibrary::load(image, api_fingerprint()),
        CodeTier::Sandboxed => ExtensionLibrary::load_sandboxed(image, api_fingerprint()),
    }
}

/// Builds an example with the digits in its constant.
fn build(builder: &InProcessBuilder, example: &ExampleExtension, tier: CodeTier) -> Result<Vec<u8>, CliError> {
    let pushed = example.push();
    let with_digits = format!("{CONSTANT}{}: ", String::from_utf8_lossy(DIGITS));
    let file = |file: sandstorm_client::control::ExtensionSourceFile| SourceFile {
        text: file.text.replace(CONSTANT, &with_digits),
        path: file.path,
    };
    let source = PushedSource::new(&pushed.manifest, pushed.files.into_iter().map(file).collect()).map_err(failed)?;
    builder.build(1, 1, source, tier).map(|(artifact, _)| artifact.elf).map_err(failed)
}

/// Returns the library with another number for the digits.
fn with_digits(library: &[u8], number: u32) -> Result<Vec<u8>, CliError> {
    let mut library = library.to_vec();
    let digits = format!("{number:08}");
    let places: Vec<usize> =
        library.windows(DIGITS.len()).enumerate().filter(|(_, bytes)| bytes == DIGITS).map(|(at, _)| at).collect();
    if places.is_empty() || digits.len() != DIGITS.len() {
        return Err(CliError::new("a library cannot be made distinct: the constant of its source is not in it"));
    }
    for at in places {
        library[at..at + DIGITS.len()].copy_from_slice(digits.as_bytes());
    }
    Ok(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digits_of_a_library_are_exchanged_wherever_they_are_and_nothing_else_is() {
        let library = [b"ab".as_slice(), DIGITS, b"cd", DIGITS].concat();
        assert_eq!(with_digits(&library, 1024).unwrap(), b"ab00001024cd00001024");
        assert!(with_digits(b"nothing", 1).is_err(), "a library without them is not another one");
        assert!(with_digits(&library, 1_000_000_000).is_err(), "nor is one that would change its length");
    }
}
