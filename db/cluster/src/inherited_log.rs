//! The log of a server whose place this one takes: the copy of it that is here, or in a stream.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sandstorm_log::{LogError, LogReplica, LoggedChange, ReplicaFolder};

use crate::copy_coordinator::{CopyCoordinator, CopyName};
use crate::copy_store::CopyStore;
use crate::inherited_calls::BehindChangeVisit;
use crate::kept_changes::ChangeVisit;
use crate::limits::LEASE;
use crate::move_coordinator::MoveCoordinator;
use crate::stream_copies::StreamCopies;

/// See the head of this file.
pub(crate) enum InheritedLog {
    /// In the folder of copies.
    Folder(Arc<MoveCoordinator>),
    Stream(Box<StreamLog>),
}

/// A log in a stream; once it is read, in a folder as well, for as long as this lives.
pub(crate) struct StreamLog {
    streams: StreamCopies,
    staged: Option<(ReplicaFolder, PathBuf)>,
}

impl Drop for StreamLog {
    fn drop(&mut self) {
        if let Some((folder, path)) = self.staged.take() {
            drop(folder);
            if let Err(error) = std::fs::remove_dir_all(&path) {
                tracing::warn!("{} stays until the next start: {error}", path.display());
            }
        }
    }
}

/// The copies of other servers' logs that are here.
fn copy_store_of(coordinator: &MoveCoordinator) -> Result<&CopyStore, String> {
    Ok(coordinator.copies_view().copy_store().ok_or("there are no copies here")?)
}

impl InheritedLog {
    /// The copy of that name.
    ///
    /// # Errors
    /// One line: it is in a stream, and this server is told of none.
    pub(crate) fn of(
        copies: &CopyCoordinator,
        coordinator: &Arc<MoveCoordinator>,
        name: &CopyName,
    ) -> Result<InheritedLog, String> {
        if !copies.is_in_stream(name) {
            return Ok(InheritedLog::Folder(Arc::clone(coordinator)));
        }
        let streams = copies.streams().ok_or("its log is in a stream, and this server is told of none")?.clone();
        Ok(InheritedLog::Stream(Box::new(StreamLog { streams, staged: None })))
    }

    /// Seals it. Returns how long it is still to be waited before it may be read.
    ///
    /// # Errors
    /// One line: it is not there, or not known to be sealed.
    pub(crate) fn seal(&self, name: &CopyName) -> Result<Duration, String> {
        match self {
            InheritedLog::Folder(coordinator) => {
                copy_store_of(coordinator)?.seal(name).map_err(|error| error.to_string())
            }
            InheritedLog::Stream(log) => {
                log.streams.replica(&name.0, name.1).seal().map_err(|error| error.to_string())?;
                // Whatever its owner had confirmed is before the seal, and was sent before that.
                Ok(LEASE)
            }
        }
    }

    /// Shows each change, once it is sealed, in an order in which they may be made.
    ///
    /// # Errors
    /// One line: damage, among others; or what `visit` returns.
    pub(crate) fn read(&mut self, name: &CopyName, visit: &mut ChangeVisit<'_>) -> Result<(), String> {
        match self {
            InheritedLog::Folder(coordinator) => {
                copy_store_of(coordinator)?.read(name, visit).map_err(|error| error.to_string())
            }
            InheritedLog::Stream(log) => {
                let StreamLog { streams, staged } = &mut **log;
                let (folder, _) = match staged {
                    Some(staged) => staged,
                    None => {
                        let read = streams.replica(&name.0, name.1).stage().map_err(|error| error.to_string())?;
                        staged.insert((read, streams.staging(&name.0, name.1)))
                    }
                };
                let visit = &mut |change: &LoggedChange<'_>, _| {
                    visit(change).map_err(|why| LogError::unusable("the stream", &why))
                };
                folder.read(visit).map(drop).map_err(|error| error.to_string())
            }
        }
    }

    /// Shows each change behind a position, with the position behind its unit, also those that its checkpoint has and
    /// that are still there, once it was read. Returns the position from which on all were shown.
    ///
    /// # Errors
    /// As for [`InheritedLog::read`].
    pub(crate) fn read_behind(
        &self,
        name: &CopyName,
        position: u64,
        visit: &mut BehindChangeVisit<'_>,
    ) -> Result<u64, String> {
        match self {
            InheritedLog::Folder(coordinator) => {
                copy_store_of(coordinator)?.read_behind(name, position, visit).map_err(|error| error.to_string())
            }
            InheritedLog::Stream(log) => {
                let (folder, _) = log.staged.as_ref().ok_or("the stream was not read yet")?;
                let visit = &mut |end, change: &LoggedChange<'_>| {
                    visit(end, change).map_err(|why| LogError::unusable("the stream", &why))
                };
                sandstorm_log::read_behind(&folder.disk(), position, visit).map_err(|error| error.to_string())
            }
        }
    }

    /// Has the stream removed: its records are this server's own, and its owner's place is taken.
    pub(crate) fn remove(&self, name: &CopyName) {
        if let InheritedLog::Stream(log) = self {
            log.streams.remove_later(&name.0, name.1);
        }
    }
}
