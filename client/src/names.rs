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
    /// The extension has no such version that can be called.
    #[error(
        "tenant {tenant:?} has no version {version} of extension {extension:?} that can be called; there are: \
         {versions}. `sandstorm ext versions` shows why"
    )]
    UnknownVersion {
        /// The tenant.
        tenant: String,
        /// The extension's name.
        extension: String,
        /// The version.
        version: u64,
        /// The versions that there are.
        versions: String,
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
    /// A word for programs: `unauthenticated`, `unknown_table`, `unknown_extension`, `control`, `data_address`, `open`;
    /// or that of the data port's error.
    pub fn code(&self) -> &'static str {
        match self {
            ClientOpenError::Control { source: ControlError::Unauthenticated { .. }, .. } => "unauthenticated",
            ClientOpenError::Control { .. } => "control",
            ClientOpenError::UnknownTable { .. } => "unknown_table",
            ClientOpenError::UnknownExtension { .. } | ClientOpenError::UnknownVersion { .. } => "unknown_extension",
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

/// The control port's answers about names. Requests for a name while the same question is under way wait for its
/// answer: a thousand first requests of a table would else be a thousand connections, of which the port evicts some.
pub(crate) struct AnswersByName<T>(Mutex<HashMap<String, AnswerCell<T>>>);

/// The answer about a name; `None`: the question failed, and each request that waited for it asks for itself.
type AnswerCell<T> = Arc<OnceCell<Option<T>>>;

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
        if let Some(Some(answer)) = known.as_ref().and_then(|cell| cell.get()) {
            return Ok(answer.clone());
        }
        let cell = known.unwrap_or_else(|| Arc::clone(self.0.lock().entry(name.to_owned()).or_default()));
        let question = NameQuestion { all: self, name, cell };
        let (mut ask, mut failed) = (Some(ask), None);
        let first = async {
            let ask = ask.take()?;
            ask().await.map_err(|error| failed = Some(error)).ok()
        };
        let answer = question.cell.get_or_init(|| first).await.clone();
        match (answer, failed, ask) {
            (Some(answer), ..) => Ok(answer),
            (None, Some(error), _) => Err(error),
            // Another one has asked, and has failed.
            (None, None, Some(ask)) => ask().await,
            (None, None, None) => unreachable!("a question ends with an answer or an error"),
        }
    }

    /// Has the next one ask again.
    pub(crate) fn forget(&self, name: &str) {
        self.0.lock().remove(name);
    }
}

/// A question about a name. When it ends, also where its caller gave it up, a name without an answer takes no memory.
struct NameQuestion<'q, T> {
    all: &'q AnswersByName<T>,
    name: &'q str,
    cell: AnswerCell<T>,
}

impl<T> Drop for NameQuestion<'_, T> {
    fn drop(&mut self) {
        let is_over = match self.cell.get() {
            Some(Some(_)) => return,
            Some(None) => true,
            // The map and this one: no other waits.
            None => Arc::strong_count(&self.cell) <= 2,
        };
        let mut all = self.all.0.lock();
        if is_over && all.get(self.name).is_some_and(|known| Arc::ptr_eq(known, &self.cell)) {
            all.remove(self.name);
        }
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

    pub(crate) fn find_schema(
        &self,
        extension: &str,
        version: u64,
    ) -> Result<Option<Arc<ExtensionSchema>>, ClientOpenError> {
        match self.control.extension(&self.tenant, extension) {
            Ok(found) => match found.schema_of(version) {
                Ok(schema) => Ok(schema.cloned().map(Arc::new)),
                Err(there) => {
                    let versions = names(there.iter().map(u64::to_string));
                    let (tenant, extension) = (self.tenant.clone(), extension.to_owned());
                    Err(ClientOpenError::UnknownVersion { tenant, extension, version, versions })
                }
            },
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

    /// Answers, but for the first time.
    async fn ask(asked: &Cell<usize>) -> Result<usize, &'static str> {
        let before = asked.get();
        asked.set(before + 1);
        tokio::task::yield_now().await;
        if before == 0 { Err("no connection") } else { Ok(1) }
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
        // The others ask for themselves where the question that they waited for has failed.
        assert_eq!((failed, known), (1, 999));
        let (answers, asked) = &*shared;
        assert_eq!(asked.get(), 1_000);
        let all = (0..1_000).map(|_| answers.get_or_ask("items", || ask(asked)));
        for answer in all {
            assert_eq!(answer.await, Ok(1));
        }
        assert_eq!(asked.get(), 1_001, "an answer is kept");
        answers.forget("items");
        assert_eq!(answers.get_or_ask("items", || ask(asked)).await, Ok(1));
        assert_eq!(asked.get(), 1_002);
    }

    #[tokio::test]
    async fn many_that_ask_at_a_time_are_one_question_and_one_without_an_answer_leaves_nothing() {
        let shared = Rc::new((AnswersByName::new(), Cell::new(1)));
        let local = tokio::task::LocalSet::new();
        for _ in 0..1_000 {
            let shared = Rc::clone(&shared);
            drop(local.spawn_local(async move {
                assert_eq!(shared.0.get_or_ask("items", || ask(&shared.1)).await, Ok(1));
            }));
        }
        local.await;
        let (answers, asked) = &*shared;
        assert_eq!(asked.get(), 2, "asked for once");
        assert_eq!(answers.get_or_ask("none", async || Err("unknown")).await, Err("unknown"));
        {
            // It is given up while it waits.
            let mut given_up = std::pin::pin!(answers.get_or_ask("slow", || ask(asked)));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(given_up.as_mut().poll(&mut context).is_pending());
        }
        assert_eq!(answers.0.lock().keys().collect::<Vec<_>>(), ["items"], "names without an answer take no memory");
    }
}
