//! Profiles of extensions' code.

use serde::{Deserialize, Serialize};

use crate::control::CodePlaceReport;

/// `GET /v1/tenants/{tenant}/extensions/{name}/profile`: where an extension's code was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProfileReport {
    /// The extension.
    pub extension: String,
    /// Its version.
    pub version: u64,
    /// Seconds for which it was sampled.
    pub seconds: u64,
    /// Samples of each worker a second.
    pub samples_per_s: u64,
    /// Samples that found its code, or the host's for it.
    pub samples: u64,
    /// Those of them at a known function and line.
    pub named: u64,
    /// Those of them at stacks that are not listed.
    pub unlisted: u64,
    /// Calls that ended meanwhile.
    pub calls: u64,
    /// Their CPU time, in microseconds.
    pub cpu_us: u64,
    /// The rest of their time, in microseconds: they waited for their turns and for memory.
    pub waiting_us: u64,
    /// Where the samples were, the most frequent first.
    pub stacks: Vec<ProfiledStackReport>,
    /// The places that stacks name by their number here.
    pub places: Vec<CodePlaceReport>,
}

/// Samples at one place, reached in one way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProfiledStackReport {
    /// The number of samples.
    pub samples: u64,
    /// Whether one of the host's functions ran, which the innermost place had called.
    pub in_host: bool,
    /// The numbers of the places, the innermost first.
    pub places: Vec<usize>,
}

impl ProfileReport {
    /// The places of a stack, the innermost first.
    pub fn places_of<'a>(
        &'a self,
        stack: &'a ProfiledStackReport,
    ) -> impl DoubleEndedIterator<Item = &'a CodePlaceReport> {
        stack.places.iter().filter_map(|number| self.places.get(*number))
    }
}
