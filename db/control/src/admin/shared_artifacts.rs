//! Artifacts and sources that the servers of a cluster share: a push at one of them is loaded at all.

use std::sync::Arc;

use sandstorm_catalog::DirectoryAgreement;
use sandstorm_net::CodeTier;

/// Where the servers of a cluster keep artifacts for each other; nowhere, without a cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedArtifacts(Option<Arc<dyn DirectoryAgreement>>);

/// What a server has kept for the others.
pub(super) struct SharedArtifact {
    /// The signed library.
    pub(super) artifact: Vec<u8>,
    /// What it was built from, if that is known.
    pub(super) source: Option<Vec<u8>>,
}

/// The tiers, each of which an artifact may be of.
const TIERS: [CodeTier; 2] = [CodeTier::Sandboxed, CodeTier::Native];

fn artifact_name(tenant: u32, name: &str, version: u64, tier: CodeTier) -> String {
    format!("{tenant}-{version}-{name}-{}.artifact", tier.name())
}

fn source_name(tenant: u32, name: &str, version: u64) -> String {
    format!("{tenant}-{version}-{name}.source")
}

impl SharedArtifacts {
    pub(super) fn of(agreement: Option<Arc<dyn DirectoryAgreement>>) -> SharedArtifacts {
        SharedArtifacts(agreement)
    }

    /// Keeps an artifact for the others.
    ///
    /// # Errors
    /// One line: etcd does not answer, or it is too large.
    pub(super) fn keep(&self, of: (u32, &str, u64), tier: CodeTier, artifact: &[u8]) -> Result<(), String> {
        let Some(agreement) = &self.0 else { return Ok(()) };
        agreement.put_artifact(&artifact_name(of.0, of.1, of.2, tier), artifact)
    }

    /// Keeps a source for the others.
    ///
    /// # Errors
    /// As [`SharedArtifacts::keep`].
    pub(super) fn keep_source(&self, of: (u32, &str, u64), source: &[u8]) -> Result<(), String> {
        let Some(agreement) = &self.0 else { return Ok(()) };
        agreement.put_artifact(&source_name(of.0, of.1, of.2), source)
    }

    /// What another server has kept: the artifact, and the source if there is one.
    ///
    /// # Errors
    /// One line: etcd does not answer, or what it has is damaged.
    pub(super) fn find(&self, of: (u32, &str, u64), tier: CodeTier) -> Result<Option<SharedArtifact>, String> {
        let Some(agreement) = &self.0 else { return Ok(None) };
        let Some(artifact) = agreement.artifact(&artifact_name(of.0, of.1, of.2, tier))? else { return Ok(None) };
        let source = agreement.artifact(&source_name(of.0, of.1, of.2))?;
        Ok(Some(SharedArtifact { artifact, source }))
    }

    /// Removes what was kept of a version. If etcd does not answer, it stays there, and costs its bytes.
    pub(super) fn forget(&self, (tenant, name, version): (u32, &str, u64)) {
        let Some(agreement) = &self.0 else { return };
        let artifacts = TIERS.map(|tier| artifact_name(tenant, name, version, tier));
        for kept in artifacts.iter().chain([&source_name(tenant, name, version)]) {
            if let Err(error) = agreement.remove_artifact(kept) {
                tracing::warn!("{kept} stays in the cluster's etcd: {error}");
                return;
            }
        }
    }

    /// The number of the next version of an extension, which no other server is given; `least` without a cluster.
    ///
    /// # Errors
    /// One line: etcd does not answer.
    pub(super) fn reserve_version(&self, tenant: u32, name: &str, least: u64) -> Result<u64, String> {
        self.0.as_ref().map_or(Ok(least), |agreement| agreement.reserve_version(tenant, name, least))
    }
}
