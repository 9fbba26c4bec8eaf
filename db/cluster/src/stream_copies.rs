//! Copies of logs in streams of NATS JetStream, in place of those on other servers. A stream is on three of its
//! servers, so one is enough; each server of the cluster can read it, and take the place of the one whose log it has.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sandstorm_jetstream::limits::STREAM_REPLICAS;
use sandstorm_jetstream::{
    MonitorsReport, NatsAccess, NatsAddress, NatsEndpoint, NatsStream, StreamError, StreamReplica,
};
use sandstorm_log::{LogError, LogFolder, ReplicaError};

use crate::limits::{COPIES_FOLDER, GONE_PREFIX};
use crate::state::is_server_id;

/// Time for a look which streams there are: it is made again soon, by a thread that has more to do.
const LOOK_PATIENCE: Duration = Duration::from_secs(1);

/// What the name of a copy in a stream has in place of a server's id.
pub const STREAM_HOLDER: &str = "nats";

/// Where the streams are, and what it takes to reach them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSettings {
    /// The servers, and what the names of the streams begin with.
    pub address: NatsAddress,
    /// TLS, a user, and the monitoring ports.
    pub access: NatsAccess,
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub(crate) struct StreamCopies {
    endpoint: NatsEndpoint,
    monitors: Vec<String>,
    /// The folder of copies: a stream is written to a folder there before it is read.
    folder: PathBuf,
    findings: Arc<Mutex<StreamFindings>>,
}

/// What the threads tell each other about streams.
#[derive(Debug, Default)]
struct StreamFindings {
    /// Why a stream that is in use keeps less than it has to, by the copy's number: it confirms nothing meanwhile.
    faults: BTreeMap<u64, String>,
    /// Streams that are needed no more, by owner and number, until they are removed.
    unneeded: BTreeSet<(String, u64)>,
}

impl StreamCopies {
    /// Reads the files that it takes to reach the streams. `state` is the state directory.
    ///
    /// # Errors
    /// One line: a file is not what it should be.
    pub(crate) fn open(settings: &StreamSettings, state: &Path) -> Result<StreamCopies, String> {
        let (endpoint, monitors) = (settings.access.read(&settings.address)?, settings.access.monitors.clone());
        Ok(StreamCopies { endpoint, monitors, folder: state.join(COPIES_FOLDER), findings: Arc::default() })
    }

    fn stream(&self, owner: &str, copy: u64) -> NatsStream {
        NatsStream::new(self.endpoint.clone(), owner, &format!("{copy:016x}"))
    }

    /// The folder to which the copy of a log is written before it is read. What is left of one after a stop is removed
    /// with the folders of copies whose removal was not ended.
    pub(crate) fn staging(&self, owner: &str, copy: u64) -> PathBuf {
        self.folder.join(format!("{GONE_PREFIX}stream-{owner}-{copy:016x}"))
    }

    /// The copy of a log, which is not asked for yet.
    pub(crate) fn replica(&self, owner: &str, copy: u64) -> StreamReplica<NatsStream> {
        let path = self.staging(owner, copy);
        let staging = move || {
            if path.exists() {
                let failed =
                    |error: std::io::Error| LogError::unusable(&path.display().to_string(), &error.to_string());
                std::fs::remove_dir_all(&path).map_err(failed)?;
            }
            let folder: Arc<dyn sandstorm_log::disk::LogDisk> = Arc::new(LogFolder::lock(&path)?);
            Ok(folder)
        };
        StreamReplica::new(self.stream(owner, copy), Box::new(staging))
    }

    /// Looks whether a stream keeps what it has: it is on three servers, and each syncs each message. `makes`: it is
    /// made if it is not there, while all servers are.
    ///
    /// # Errors
    /// [`ReplicaError`]: it does not, or is not there; or it is not known.
    pub(crate) fn check(&self, stream: &mut NatsStream, makes: bool) -> Result<(), ReplicaError> {
        let refused = |why: String| ReplicaError::from(LogError::unusable("the stream", &why));
        let report = MonitorsReport::ask(&self.monitors).map_err(refused)?;
        if makes {
            // While one is away a stream would have no leader for long, or be on a server that does not sync.
            report.check_all(STREAM_REPLICAS).map_err(refused)?;
            stream.make(STREAM_REPLICAS)?;
            report.check_new(&stream.peers()?).map_err(refused)
        } else {
            stream.check(STREAM_REPLICAS)?;
            report.check_known(&stream.peers()?).map_err(refused)
        }
    }

    /// Looks again at the streams of this server's log that are in use, and notes which keep less than they have to.
    /// One that cannot be looked at is as it was.
    pub(crate) fn look_again(&self, owner: &str, copies: &[u64]) {
        let synced = if copies.is_empty() { Ok(()) } else { MonitorsReport::ask(&self.monitors).map(drop) };
        let fault = |copy: &u64| {
            let checked = self.stream(owner, *copy).with_patience(LOOK_PATIENCE).check(STREAM_REPLICAS);
            let why = match (checked, &synced) {
                (Err(StreamError::Refused(why)), _) => why,
                (_, Err(why)) => why.clone(),
                (Err(_), Ok(())) => self.fault(*copy)?,
                (Ok(()), Ok(())) => return None,
            };
            Some((*copy, why))
        };
        let faults: BTreeMap<u64, String> = copies.iter().filter_map(fault).collect();
        let known = std::mem::replace(&mut self.findings.lock().faults, faults.clone());
        for why in faults.iter().filter(|(copy, _)| !known.contains_key(copy)).map(|(_, why)| why) {
            tracing::error!("the stream with the copy of this server's log keeps less than it has to: {why}");
        }
    }

    /// What was found wrong with a stream that is in use, by the copy's number.
    pub(crate) fn fault(&self, copy: u64) -> Option<String> {
        self.findings.lock().faults.get(&copy).cloned()
    }

    /// Whether a stream that is in use keeps less than it has to.
    pub(crate) fn has_faults(&self) -> bool {
        !self.findings.lock().faults.is_empty()
    }

    /// Has the stream of a copy removed that is needed no more.
    pub(crate) fn remove_later(&self, owner: &str, copy: u64) {
        self.findings.lock().unneeded.insert((owner.to_owned(), copy));
    }

    /// Removes the streams that are needed no more. Those of which there is no answer are tried again.
    pub(crate) fn remove_unneeded(&self) {
        let unneeded = self.findings.lock().unneeded.clone();
        for (owner, copy) in unneeded {
            match self.remove(&owner, copy) {
                Ok(()) => {
                    self.findings.lock().unneeded.remove(&(owner.clone(), copy));
                    tracing::info!("a stream that is needed no more was removed: of server {owner}, {copy:016x}");
                }
                Err(error) => tracing::debug!("a stream of server {owner} that is needed no more stays: {error}"),
            }
        }
    }

    /// Removes the stream of a copy; nothing happens if there is none.
    ///
    /// # Errors
    /// [`StreamError`].
    pub(crate) fn remove(&self, owner: &str, copy: u64) -> Result<(), StreamError> {
        match self.stream(owner, copy).with_patience(LOOK_PATIENCE).remove() {
            Ok(()) | Err(StreamError::Missing) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The copies that have streams, each by its owner and number.
    ///
    /// # Errors
    /// [`StreamError`].
    pub(crate) fn all(&self) -> Result<Vec<(String, u64)>, StreamError> {
        let names = self.stream("", 0).with_patience(LOOK_PATIENCE).all_copies()?;
        let known = |(owner, copy): (String, String)| {
            let number = u64::from_str_radix(&copy, 16).ok().filter(|_| copy.len() == 16 && is_server_id(&owner))?;
            Some((owner, number))
        };
        Ok(names.into_iter().filter_map(known).collect())
    }
}
