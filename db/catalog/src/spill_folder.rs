//! The files of tables larger than memory: a folder that is emptied at each start, and the threads that read and write
//! there.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use sandstorm_store::spill::SpillPool;

/// The folder, once it is open, and its threads.
#[derive(Default)]
pub(super) struct SpillFolder {
    pub(super) open: OnceLock<(PathBuf, Arc<SpillPool>)>,
    /// Files made so far: each has a name of its own.
    pub(super) files: AtomicU64,
}

impl Drop for SpillFolder {
    fn drop(&mut self) {
        if let Some((_, pool)) = self.open.get() {
            pool.stop();
        }
    }
}
