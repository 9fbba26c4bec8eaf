//! The versions of a tenant's extensions: the next push gets a higher one. An artifact of an earlier version is
//! refused, also after an unload, and after a restart.

use std::collections::BTreeMap;

use sandstorm_extension::CodeOrigin;
use serde::{Deserialize, Serialize};

/// Unloaded extensions of a tenant whose versions are remembered by name: as many as may be loaded at most. Beyond that
/// their highest version counts for every name.
const UNLOADED_NAMES: usize = 4_096;

/// The metadata of a loaded version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadedVersion {
    /// Its number.
    pub version: u64,
    /// The version that its manifest names.
    pub manifest_version: String,
    /// The time of its first loading, in milliseconds since 1970.
    pub loaded_at_ms: u64,
    /// What it was built from. Journals of servers that knew no modules do not say it: it was source.
    #[serde(default, skip_serializing_if = "CodeOrigin::is_source")]
    pub origin: CodeOrigin,
}

/// A tenant's versions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtensionVersions {
    loaded: BTreeMap<Box<str>, LoadedVersion>,
    /// The highest version of each extension that was unloaded.
    unloaded: BTreeMap<Box<str>, u64>,
    /// The highest version of those unloaded extensions that are not remembered by name.
    floor: u64,
}

impl ExtensionVersions {
    /// The highest version of that name that was ever loaded for the tenant.
    pub fn highest(&self, name: &str) -> Option<u64> {
        let loaded = self.loaded.get(name).map(|loaded| loaded.version);
        loaded.max(self.unloaded.get(name).copied()).max(Some(self.floor).filter(|floor| *floor > 0))
    }

    /// The version that the next push of that name gets.
    pub fn next(&self, name: &str) -> u64 {
        self.highest(name).unwrap_or(0).saturating_add(1)
    }

    /// The versions of the extensions that are loaded, or that a restart could not load again, by name.
    pub fn loaded(&self) -> impl Iterator<Item = (&str, &LoadedVersion)> {
        self.loaded.iter().map(|(name, loaded)| (&**name, loaded))
    }

    /// What the loaded version of that name was built from; source if there is none.
    pub fn origin(&self, name: &str) -> CodeOrigin {
        self.loaded.get(name).map(|loaded| loaded.origin).unwrap_or_default()
    }

    pub(super) fn load(&mut self, name: &str, loaded: LoadedVersion) {
        self.loaded.insert(name.into(), loaded);
    }

    /// Notes that an extension is unloaded. Returns its metadata.
    pub(super) fn unload(&mut self, name: &str) -> Option<LoadedVersion> {
        let loaded = self.loaded.remove(name)?;
        if self.unloaded.contains_key(name) || self.unloaded.len() < UNLOADED_NAMES {
            self.unloaded.insert(name.into(), loaded.version);
        } else {
            self.floor = self.floor.max(loaded.version);
        }
        Some(loaded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_version_comes_twice_however_many_names_are_unloaded() {
        let mut versions = ExtensionVersions::default();
        let load = |versions: &mut ExtensionVersions, name: &str, version| {
            versions.load(name, LoadedVersion { version, ..LoadedVersion::default() });
        };
        assert_eq!((versions.highest("a"), versions.next("a")), (None, 1));
        load(&mut versions, "a", 7);
        assert_eq!((versions.highest("a"), versions.next("a")), (Some(7), 8));
        assert_eq!(versions.unload("a").map(|loaded| loaded.version), Some(7));
        assert_eq!((versions.highest("a"), versions.unload("a")), (Some(7), None));
        for name in 0..UNLOADED_NAMES {
            load(&mut versions, &format!("n{name}"), 3);
            versions.unload(&format!("n{name}"));
        }
        load(&mut versions, "late", 9);
        versions.unload("late");
        assert_eq!((versions.unloaded.len(), versions.highest("late")), (UNLOADED_NAMES, Some(9)));
        assert_eq!(versions.highest("unheard"), Some(9), "beyond what is remembered by name, all count");
        load(&mut versions, "a", 10);
        versions.unload("a");
        assert_eq!(versions.highest("a"), Some(10), "a name that is remembered stays so");
    }
}
