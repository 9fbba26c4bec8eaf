//! Sources that are part of the binary: the extension API and the vetted libraries (see `db/builder/build.rs`).

use super::artifact::Sha256;

/// One vetted library as published.
pub(super) struct EmbeddedLibrary {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    pub(super) edition: &'static str,
    /// Path under the crate's `src/`, text.
    pub(super) files: &'static [(&'static str, &'static str)],
}

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// Fingerprint of the extension API: the first 8 bytes, little-endian, of the SHA-256 over its embedded sources. An
/// extension and the server must be built against the same API. The stand-in for tests is no part of it.
pub fn api_fingerprint() -> u64 {
    let built_in = API.iter().filter(|(path, _)| *path != "testing.rs" && !path.starts_with("testing/"));
    fingerprint(built_in)
}

/// Fingerprint of everything between a source and a library: the checker, the audit, the compiler's flags and the
/// vetted libraries, all by their sources, and the versions of the parser packages. An artifact of other rules may
/// contain what these refuse.
pub fn checker_fingerprint() -> u64 {
    fingerprint(RULES.iter().chain(LIBRARIES.iter().flat_map(|library| library.files)))
}

fn fingerprint<'a>(files: impl Iterator<Item = &'a (&'a str, &'a str)>) -> u64 {
    let mut hasher = Sha256::new();
    for (path, text) in files {
        for part in [path, text] {
            hasher.update_with_length(part.as_bytes());
        }
    }
    hasher.finish().first_chunk::<8>().map_or(0, |first| u64::from_le_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_libraries_lists_those_that_are_embedded() {
        let page = include_str!("../../../docs/libraries.md");
        let (_, vetted) = page.split_once("## Vetted libraries").expect("the page has that part");
        let (table, _) = vetted.split_once("## To vet").expect("the page has that part");
        let listed: Vec<&str> = table.lines().filter(|line| line.starts_with("| `")).collect();
        assert_eq!(listed.len(), LIBRARIES.len(), "{listed:?}");
        for library in LIBRARIES {
            let row = format!("| `{}` | {} |", library.name, library.version);
            assert!(listed.iter().any(|line| line.starts_with(&row)), "{row}");
        }
    }

    #[test]
    fn every_file_that_refuses_is_in_the_fingerprint() {
        let names: Vec<&str> = RULES.iter().map(|(name, _)| *name).collect();
        let wanted =
            ["rules.rs", "lists.rs", "walk.rs", "projections.rs", "indexing.rs", "audit.rs", "compile.rs", "syn"];
        assert!(wanted.iter().all(|one| names.contains(one)) && !names.contains(&"tests.rs"), "{names:?}");
        assert_ne!(checker_fingerprint(), api_fingerprint());
        let base = checker_fingerprint();
        for at in 0..RULES.len() {
            let mut changed = RULES.to_vec();
            changed[at].1 = "other";
            let libraries = LIBRARIES.iter().flat_map(|library| library.files);
            assert_ne!(fingerprint(changed.iter().chain(libraries)), base, "{}", RULES[at].0);
        }
    }
}
