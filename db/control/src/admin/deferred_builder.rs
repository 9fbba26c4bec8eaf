//! A substitute for a builder whose files could not be written at the start because the disk is full. The server runs
//! without the builder and loads the artifacts that it has signed before. The first push for which there is space
//! starts it.

use std::sync::Arc;

use parking_lot::Mutex;

use super::ArtifactBuilder;
use sandstorm_builder::protocol::BuildRequest;
use sandstorm_builder::{Artifact, BuildError, BuilderConfig, BuilderHandle, BuilderKey, Diagnostic, PublicKey};

/// See the head of this file.
pub(super) struct DeferredBuilder {
    config: BuilderConfig,
    key: PublicKey,
    started: Mutex<Option<Arc<BuilderHandle>>>,
}

impl DeferredBuilder {
    /// Replaces a builder that failed with `error`, if the disk was full and the builder has worked before.
    pub(super) fn instead(config: BuilderConfig, error: BuildError) -> Result<Arc<DeferredBuilder>, BuildError> {
        if !matches!(error, BuildError::Internal(_)) || disk_accepts_writes(&config) {
            return Err(error);
        }
        let Some(key) = BuilderKey::public_in(&config.state)? else { return Err(error) };
        tracing::error!(
            "{error}; the server runs without its builder until there is room: each push tries to start it"
        );
        Ok(Arc::new(DeferredBuilder { config, key, started: Mutex::default() }))
    }

    fn handle(&self) -> Result<Arc<BuilderHandle>, BuildError> {
        let mut started = self.started.lock();
        if let Some(handle) = &*started {
            return Ok(handle.clone());
        }
        let handle = BuilderHandle::start(self.config.clone())?;
        if handle.public_key() != self.key {
            return Err(BuildError::Internal("the builder came back with another key: restart the server".to_owned()));
        }
        Ok(started.insert(handle).clone())
    }
}

/// Whether the disks of the builder accept a file.
fn disk_accepts_writes(config: &BuilderConfig) -> bool {
    use std::io::Write as _;
    let write = |folder: &std::path::Path| {
        let mut file = tempfile::tempfile_in(folder)?;
        file.write_all(&[1; PROBE_BYTES])?;
        file.sync_all()
    };
    let full =
        |folder: &std::path::Path| write(folder).is_err_and(|error| sandstorm_catalog::journal::is_disk_full(&error));
    !full(&config.state) && !full(&std::env::temp_dir())
}

/// Bytes that are written to probe a disk: more than a file's last block may have left.
const PROBE_BYTES: usize = 64 << 10;

impl ArtifactBuilder for DeferredBuilder {
    fn build(&self, request: &BuildRequest) -> Result<(Artifact, Vec<Diagnostic>), BuildError> {
        self.handle()?.answer(request)
    }

    fn check(&self, request: &BuildRequest) -> Result<(), BuildError> {
        self.handle()?.check(request)
    }

    fn key(&self) -> Option<PublicKey> {
        Some(self.key)
    }

    fn compiler(&self) -> Option<u64> {
        self.started.lock().as_ref().map(|handle| handle.compiler())
    }

    fn release(&self) -> String {
        let started = self.started.lock().clone();
        started.map_or_else(|| "not started: the disk is full".to_owned(), |handle| ArtifactBuilder::release(&*handle))
    }

    fn slots(&self) -> usize {
        self.config.compilers.max(1)
    }
}
