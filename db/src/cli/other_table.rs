//! Objects as records of another table, of this server or another one, through the client that all use. A tag is the
//! record's version.

use std::sync::Arc;

use parking_lot::Mutex;
use sandstorm_client::blocking::Client;
use sandstorm_client::{ClientOpenError, Condition, Error, OpenOptions, PutOptions, PutOutcome};

use sandstorm_backing::limits::REQUEST_MOST;
use sandstorm_backing::{BackingError, ObjectStore, OtherTable, StoredObject, WriteCondition, too_long};

/// Records of another table.
struct TableObjects {
    place: OtherTable,
    token: String,
    /// The connection, and the table's id there; made by the first request, and anew after a failure.
    open: Mutex<Option<(Client, u64)>>,
}

impl std::fmt::Debug for TableObjects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TableObjects").field(&self.place).finish()
    }
}

/// Makes the objects of a table. Nothing is asked yet.
pub(super) fn open(place: &OtherTable, token: &str) -> Arc<dyn ObjectStore> {
    Arc::new(TableObjects::new(place.clone(), token))
}

fn not_opened(error: &ClientOpenError) -> BackingError {
    BackingError::Unavailable(error.to_string())
}

impl TableObjects {
    fn new(place: OtherTable, token: &str) -> TableObjects {
        TableObjects { place, token: token.trim().to_owned(), open: Mutex::new(None) }
    }

    fn connection(&self) -> Result<(Client, u64), BackingError> {
        let mut open = self.open.lock();
        if let Some(open) = &*open {
            return Ok(open.clone());
        }
        let OtherTable { server, tenant, table } = &self.place;
        let mut options = OpenOptions::new(server, tenant, &self.token);
        options.deadline = REQUEST_MOST;
        let client = Client::open_with(options).map_err(|error| not_opened(&error))?;
        let id = client.table(table).map_err(|error| not_opened(&error))?;
        Ok(open.insert((client, id)).clone())
    }

    /// Notes an error; after one that another connection may not have there is another one.
    fn failed(&self, error: Error) -> BackingError {
        match error {
            Error::Conflict => BackingError::Conflict,
            Error::OutOfMemory { .. } | Error::OverQuota { .. } | Error::TooLarge { .. } => {
                BackingError::Refused(error.to_string())
            }
            error => {
                *self.open.lock() = None;
                BackingError::Unavailable(error.to_string())
            }
        }
    }
}

/// Returns the version that a tag is.
fn version_of(tag: &str) -> u64 {
    tag.parse().unwrap_or(0)
}

impl ObjectStore for TableObjects {
    fn get(&self, name: &str, most_bytes: usize) -> Result<Option<StoredObject>, BackingError> {
        let (client, table) = self.connection()?;
        let found = client.get(table, name.as_bytes()).map_err(|error| self.failed(error))?;
        match found {
            Some(record) if record.value.len() > most_bytes => Err(too_long(record.value.len(), most_bytes)),
            found => Ok(found.map(|record| {
                let (bytes, tag) = (record.value.to_vec(), record.version.to_string());
                StoredObject { bytes, tag }
            })),
        }
    }

    fn put(&self, name: &str, bytes: &[u8], condition: &WriteCondition) -> Result<String, BackingError> {
        let (client, table) = self.connection()?;
        let options = match condition {
            WriteCondition::Always => PutOptions::default(),
            WriteCondition::Absent => PutOptions { condition: Condition::Absent, ..PutOptions::default() },
            WriteCondition::Tag(tag) => PutOptions::default().if_version(version_of(tag)),
        };
        match client.put_outcome(table, name.as_bytes(), bytes, &options).map_err(|error| self.failed(error))? {
            PutOutcome::Written { version } => Ok(version.to_string()),
            PutOutcome::Conflict { .. } => Err(BackingError::Conflict),
        }
    }

    fn delete(&self, name: &str, condition: &WriteCondition) -> Result<(), BackingError> {
        let (client, table) = self.connection()?;
        let deleted = match condition {
            WriteCondition::Always => client.delete(table, name.as_bytes()),
            WriteCondition::Absent => match client.get(table, name.as_bytes()) {
                Ok(None) => return Ok(()),
                Ok(Some(_)) => return Err(BackingError::Conflict),
                Err(error) => Err(error),
            },
            WriteCondition::Tag(tag) => client.delete_if_version(table, name.as_bytes(), version_of(tag)),
        };
        deleted.map(drop).map_err(|error| self.failed(error))
    }
}
