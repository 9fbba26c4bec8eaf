//! The versions of a tenant's extensions: the next push gets a higher one. An artifact of an earlier version is
//! refused, also after an unload, and after a restart.

use std::collections::BTreeMap;

use crate::limits::KEPT_VERSIONS;
use sandstorm_extension::CodeOrigin;
use serde::{Deserialize, Serialize};

/// Unloaded extensions of a tenant whose versions are remembered by name: as many as may be loaded at most. Beyond that
/// their highest version counts for every name.
const UNLOADED_NAMES: usize = 4_096;

/// The metadata of a version that is loaded, or kept beside the loaded one.
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
    /// The reason that it is not called although it is kept: a rule that it was found to break since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// A tenant's versions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtensionVersions {
    loaded: BTreeMap<Box<str>, LoadedVersion>,
    /// The other versions that are kept, by name, in the order of their numbers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    kept: BTreeMap<Box<str>, Vec<LoadedVersion>>,
    /// The highest version of each extension that was unloaded.
    unloaded: BTreeMap<Box<str>, u64>,
    /// The highest version of those unloaded extensions that are not remembered by name.
    floor: u64,
}

impl ExtensionVersions {
    /// The highest version of that name that was ever loaded for the tenant.
    pub fn highest(&self, name: &str) -> Option<u64> {
        let all = self.all_of(name).map(|known| known.version).max();
        all.max(self.unloaded.get(name).copied()).max(Some(self.floor).filter(|floor| *floor > 0))
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

    /// The loaded version of that name, and the others that are kept, in no order.
    pub fn all_of(&self, name: &str) -> impl Iterator<Item = &LoadedVersion> {
        self.loaded.get(name).into_iter().chain(self.kept(name))
    }

    /// All of them, by name.
    pub fn all(&self) -> impl Iterator<Item = (&str, &LoadedVersion)> {
        let kept = self.kept.iter().flat_map(|(name, versions)| versions.iter().map(move |kept| (&**name, kept)));
        self.loaded().chain(kept)
    }

    /// The versions beside the loaded one that are kept, in the order of their numbers.
    pub fn kept(&self, name: &str) -> &[LoadedVersion] {
        self.kept.get(name).map_or(&[], Vec::as_slice)
    }

    /// Notes that another version is called from now on; the one before is kept, and at most [`KEPT_VERSIONS`] in all.
    pub(super) fn replace(&mut self, name: &str, loaded: LoadedVersion) {
        let version = loaded.version;
        let before = self.loaded.insert(name.into(), loaded).filter(|before| before.version != version);
        let kept = self.kept.entry(name.into()).or_default();
        kept.retain(|one| one.version != version);
        kept.extend(before);
        self.settle_kept(name, None);
    }

    /// Notes that a version is kept, and not called yet; `needed` is not dropped for it.
    pub(super) fn stage(&mut self, name: &str, staged: LoadedVersion, needed: Option<u64>) {
        let version = staged.version;
        let kept = self.kept.entry(name.into()).or_default();
        kept.retain(|one| one.version != version);
        kept.push(staged);
        self.settle_kept(name, needed);
    }

    /// Drops the lowest versions beyond those that are kept, but not `needed`.
    fn settle_kept(&mut self, name: &str, needed: Option<u64>) {
        let Some(kept) = self.kept.get_mut(name) else { return };
        kept.sort_by_key(|one| one.version);
        while kept.len() >= KEPT_VERSIONS {
            let Some(at) = kept.iter().position(|one| Some(one.version) != needed) else { break };
            kept.remove(at);
        }
        if kept.is_empty() {
            self.kept.remove(name);
        }
    }

    /// The entry of a kept version.
    pub(super) fn kept_mut(&mut self, name: &str, version: u64) -> Option<&mut LoadedVersion> {
        self.kept.get_mut(name)?.iter_mut().find(|kept| kept.version == version)
    }

    /// Notes that an extension is unloaded. Returns its metadata.
    pub(super) fn unload(&mut self, name: &str) -> Option<LoadedVersion> {
        let highest = self.highest(name)?;
        let loaded = self.loaded.remove(name)?;
        self.kept.remove(name);
        if self.unloaded.contains_key(name) || self.unloaded.len() < UNLOADED_NAMES {
            self.unloaded.insert(name.into(), highest);
        } else {
            self.floor = self.floor.max(highest);
        }
        Some(loaded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_five_are_kept_whichever_of_them_is_called() {
        let mut versions = ExtensionVersions::default();
        let about = |version| LoadedVersion { version, ..LoadedVersion::default() };
        let kept =
            |versions: &ExtensionVersions| -> Vec<u64> { versions.kept("e").iter().map(|kept| kept.version).collect() };
        (1..=7).for_each(|version| versions.replace("e", about(version)));
        assert_eq!(kept(&versions), [3, 4, 5, 6], "and the seventh, which is called");
        versions.replace("e", about(4));
        assert_eq!((kept(&versions), versions.next("e")), (vec![3, 5, 6, 7], 8), "back to the fourth");
        versions.replace("e", about(8));
        assert_eq!(kept(&versions), [4, 5, 6, 7], "the lowest goes, not the one that was called last");
        versions.stage("e", about(9), None);
        assert_eq!((kept(&versions), versions.all_of("e").count()), (vec![5, 6, 7, 9], KEPT_VERSIONS));
        assert_eq!(versions.unload("e").map(|loaded| loaded.version), Some(8));
        assert_eq!((versions.all_of("e").count(), versions.highest("e")), (0, Some(9)), "no number comes twice");
    }

    #[test]
    fn no_version_comes_twice_however_many_names_are_unloaded() {
        let mut versions = ExtensionVersions::default();
        let load = |versions: &mut ExtensionVersions, name: &str, version| {
            versions.replace(name, LoadedVersion { version, ..LoadedVersion::default() });
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
