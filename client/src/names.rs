//! What a client has learned of a tenant's names from the control port.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sandstorm_schema::ExtensionSchema;
use tokio::sync::OnceCell;

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

impl ClientOpenError {
    /// A word for programs: `unknown_table`, `unknown_extension`, `control`, `data_address`, `open`; or that of the
    /// data port's error.
    pub fn code(&self) -> &'static str {
        match self {
            ClientOpenError::Control { .. } => "control",
            ClientOpenError::UnknownTable { .. } => "unknown_table",
            ClientOpenError::UnknownExtension { .. } => "unknown_extension",
            ClientOpenError::DataAddress { .. } => "data_address",
            ClientOpenError::Data(error) => error.code(),
            ClientOpenError::NotOpened => "open",
        }
    }
}

/// What was learned of a tenant's names.
pub(crate) struct LearnedNames {
    pub(crate) control: Control,
    server: String,
    tenant: String,
    pub(crate) tables: AnswersByName<u64>,
    pub(crate) schemas: AnswersByName<Option<Arc<ExtensionSchema>>>,
}

/// The control port's answers about names. Those who ask for a name while the same question is under way wait for that
/// one's answer: a thousand first requests of a table would else be a thousand connections, of which the port evicts
/// some.
pub(crate) struct AnswersByName<T>(Mutex<HashMap<String, Arc<OnceCell<T>>>>);

impl<T: Clone> AnswersByName<T> {
    fn new() -> AnswersByName<T> {
        AnswersByName(Mutex::default())
    }

    /// The answer about that name; `ask` gets it if it is not known yet. An error is not kept: the next one asks again.
    pub(crate) async fn get_or_ask<E, F>(&self, name: &str, ask: impl FnOnce() -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let known = self.0.lock().get(name).cloned();
        let answer = known.unwrap_or_else(|| Arc::clone(self.0.lock().entry(name.to_owned()).or_default()));
        let asked = answer.get_or_try_init(ask).await.cloned();
        if asked.is_err() {
            let mut all = self.0.lock();
            // Another may be asking by now, and be waited for.
            if Arc::strong_count(&answer) <= 2 && !answer.initialized() {
                all.remove(name);
            }
        }
        asked
    }

    /// Has the next one ask again.
    pub(crate) fn forget(&self, name: &str) {
        self.0.lock().remove(name);
    }
}

impl LearnedNames {
    /// Nothing of that tenant yet.
    pub(crate) fn new(control: Control, server: &str, tenant: &str) -> LearnedNames {
        let (tables, schemas) = (AnswersByName::new(), AnswersByName::new());
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::AnswersByName;

    /// Answers with how often it was asked; the first time it fails.
    async fn ask(asked: &Cell<usize>) -> Result<usize, &'static str> {
        let before = asked.get();
        asked.set(before + 1);
        tokio::task::yield_now().await;
        if before == 0 { Err("no connection") } else { Ok(before) }
    }

    #[tokio::test]
    async fn a_name_is_asked_for_once_however_many_want_it_at_a_time() {
        let shared = Rc::new((AnswersByName::new(), Cell::new(0)));
        let mut wanted = Vec::new();
        let local = tokio::task::LocalSet::new();
        for _ in 0..1000 {
            let shared = Rc::clone(&shared);
            wanted.push(local.spawn_local(async move { shared.0.get_or_ask("items", || ask(&shared.1)).await }));
        }
        local.await;
        let (mut failed, mut known) = (0, 0);
        for answer in wanted {
            match answer.await.expect("it ends") {
                Ok(1) => known += 1,
                Err("no connection") => failed += 1,
                other => panic!("{other:?}"),
            }
        }
        // One of those that waited asked again, and the others have its answer.
        assert_eq!((failed, known), (1, 999));
        let (answers, asked) = &*shared;
        assert_eq!(answers.get_or_ask("items", || ask(asked)).await, Ok(1));
        answers.forget("items");
        assert_eq!(answers.get_or_ask("items", || ask(asked)).await, Ok(2));
        assert_eq!(answers.get_or_ask("none", async || Err("unknown")).await, Err("unknown"));
        assert!(!answers.0.lock().contains_key("none"), "names that are not there take no memory");
    }
}
