//! What a client has learned of a tenant's names from the control port.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sandstorm_schema::ExtensionSchema;

use crate::Error;
use crate::control::{ChangePage, Control, ControlError};

/// The reason why a client is not opened, or does not know a name. Its text says what is missing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientOpenError {
    /// The control port does not answer, or refuses.
    #[error("the control port at {server}: {source}")]
    Control {
        /// The control port.
        server: String,
        /// What it says.
        source: ControlError,
    },
    /// The tenant has no such table.
    #[error("tenant {tenant:?} has no table {table:?}; it has: {tables}. `sandstorm table create` makes one")]
    UnknownTable {
        /// The tenant.
        tenant: String,
        /// The name.
        table: String,
        /// The names that there are.
        tables: String,
    },
    /// The tenant has no such extension.
    #[error("tenant {tenant:?} has no extension {extension:?}; it has: {extensions}. `sandstorm ext push` makes one")]
    UnknownExtension {
        /// The tenant.
        tenant: String,
        /// The name.
        extension: String,
        /// The names that there are.
        extensions: String,
    },
    /// The server's data address cannot be used.
    #[error("the server says that its data are at {address:?}, which cannot be used: {reason}")]
    DataAddress {
        /// What it says.
        address: String,
        /// Why not.
        reason: String,
    },
    /// The data port does not answer, or refuses.
    #[error("the data port: {0}")]
    Data(#[from] Error),
    /// The client was made by [`crate::Client::connect`], from ids, and knows no control port.
    #[error("this client was made from ids (Client::connect): names are known to one of Client::open")]
    NotOpened,
}

/// What was learned of a tenant's names.
pub(crate) struct LearnedNames {
    pub(crate) control: Control,
    server: String,
    tenant: String,
    pub(crate) tables: Mutex<HashMap<String, u64>>,
    pub(crate) schemas: Mutex<HashMap<String, Option<Arc<ExtensionSchema>>>>,
}

impl LearnedNames {
    /// Nothing of that tenant yet.
    pub(crate) fn new(control: Control, server: &str, tenant: &str) -> LearnedNames {
        let (tables, schemas) = (Mutex::default(), Mutex::default());
        LearnedNames { control, server: server.to_owned(), tenant: tenant.to_owned(), tables, schemas }
    }

    pub(crate) fn control_error(&self, source: ControlError) -> ClientOpenError {
        ClientOpenError::Control { server: self.server.clone(), source }
    }

    pub(crate) fn find_table(&self, table: &str) -> Result<u64, ClientOpenError> {
        match self.control.table(&self.tenant, table) {
            Ok(found) => Ok(found.id),
            Err(ControlError::NotFound { .. }) => {
                let all = self.control.tables(&self.tenant).map_err(|error| self.control_error(error))?;
                let tables = names(all.into_iter().map(|table| table.name));
                Err(ClientOpenError::UnknownTable { tenant: self.tenant.clone(), table: table.to_owned(), tables })
            }
            Err(error) => Err(self.control_error(error)),
        }
    }

    /// A page of a table's changes: see [`Control::changes`].
    pub(crate) fn find_changes(
        &self,
        table: &str,
        after: Option<&str>,
        wait_s: u64,
    ) -> Result<ChangePage, ClientOpenError> {
        match self.control.changes(&self.tenant, table, after, wait_s) {
            Ok(page) => Ok(page),
            // Its name is wrong, or it was dropped: the error says which there are.
            Err(error @ ControlError::NotFound { .. }) => match self.find_table(table) {
                Err(unknown) => Err(unknown),
                Ok(_) => Err(self.control_error(error)),
            },
            Err(error) => Err(self.control_error(error)),
        }
    }

    pub(crate) fn find_schema(&self, extension: &str) -> Result<Option<Arc<ExtensionSchema>>, ClientOpenError> {
        match self.control.extension(&self.tenant, extension) {
            Ok(found) => Ok(found.schema.map(Arc::new)),
            Err(ControlError::NotFound { .. }) => {
                let all = self.control.extensions(&self.tenant).map_err(|error| self.control_error(error))?;
                let extensions = names(all.into_iter().map(|extension| extension.name));
                let (tenant, extension) = (self.tenant.clone(), extension.to_owned());
                Err(ClientOpenError::UnknownExtension { tenant, extension, extensions })
            }
            Err(error) => Err(self.control_error(error)),
        }
    }
}

fn names(all: impl Iterator<Item = String>) -> String {
    let mut all: Vec<String> = all.collect();
    all.sort();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}
