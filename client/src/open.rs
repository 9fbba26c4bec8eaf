//! Clients that learn ids and types by themselves: from the control port, once each.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use sandstorm_schema::{ExtensionSchema, SchemaError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::call_name::CallName;
use crate::client::Client;
use crate::control::{ChangePage, Control, Trust};
use crate::names::{ClientOpenError, LearnedNames};
use crate::{Config, Error, Sealing, limits};

/// How [`Client::open_with`] opens a client.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Host and port of the control port.
    pub server: String,
    /// The tenant's name.
    pub tenant: String,
    /// Its token.
    pub token: String,
    /// Which certificate of the control port is believed.
    pub trust: Trust,
    /// Time from a request to its answer.
    pub deadline: Duration,
    /// Policy for sealed packets.
    pub sealing: Sealing,
}

impl OpenOptions {
    /// All else by default.
    pub fn new(server: &str, tenant: &str, token: &str) -> OpenOptions {
        OpenOptions {
            server: server.to_owned(),
            tenant: tenant.to_owned(),
            token: token.to_owned(),
            trust: Trust::default(),
            deadline: limits::REQUEST_DEADLINE,
            sealing: Sealing::default(),
        }
    }
}

/// The reason why a typed call has no reply.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TypedCallError {
    /// The extension or its types are not known.
    #[error(transparent)]
    Open(#[from] ClientOpenError),
    /// Arguments or reply are not of the function's types.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The extension takes bytes: call it with [`Client::invoke`].
    #[error("the extension {0:?} has no typed functions: call it with bytes (`invoke`)")]
    Untyped(String),
    /// What the caller gave cannot be JSON: the call has not run.
    #[error("{0}")]
    Json(String),
    /// The reply is not of the type that the caller asked for: the call has run.
    #[error("{0}")]
    Reply(String),
    /// The call itself.
    #[error(transparent)]
    Request(#[from] Error),
}

impl TypedCallError {
    /// A word for programs: the name that the error has over HTTP, too, and in the clients of other languages.
    pub fn code(&self) -> &'static str {
        match self {
            TypedCallError::Open(error) => error.code(),
            TypedCallError::Request(error) => error.code(),
            TypedCallError::Schema(SchemaError::Function(_)) => "unknown_function",
            TypedCallError::Schema(SchemaError::Json { .. }) | TypedCallError::Json(_) => "invalid",
            TypedCallError::Schema(SchemaError::Bytes { .. }) | TypedCallError::Reply(_) => "reply",
            TypedCallError::Untyped(_) => "untyped",
        }
    }
}

/// Runs what blocks beside the runtime.
async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ClientOpenError> {
    let ended = tokio::task::spawn_blocking(work).await;
    ended.map_err(|_| {
        ClientOpenError::Data(Error::Protocol { text: "a request to the control port had a fault".to_owned() })
    })
}

/// Asks the control port for the tenant and the data address.
fn learn(options: &OpenOptions) -> Result<(LearnedNames, Config), ClientOpenError> {
    let OpenOptions { server, tenant, token, trust, deadline, sealing } = options;
    let control = Control::with_trust(server, Some(token), limits::CONTROL_TIMEOUT, trust);
    let names = LearnedNames::new(control, server, tenant);
    let id = names.control.tenant(tenant).map_err(|error| names.control_error(error))?.id;
    let said = names.control.health().map_err(|error| names.control_error(error))?.data_address;
    let wrong = |reason: &dyn std::fmt::Display| ClientOpenError::DataAddress {
        address: said.clone(),
        reason: reason.to_string(),
    };
    let mut address: SocketAddr = said.parse().map_err(|error| wrong(&error))?;
    if address.ip().is_unspecified() {
        // Bound to every address: the host is the one of the control port.
        let host = server.split_once("://").map_or(server.as_str(), |(_, host)| host).trim_end_matches('/');
        let mut hosts = host.to_socket_addrs().map_err(|error| wrong(&error))?;
        address.set_ip(hosts.next().ok_or_else(|| wrong(&"the server's name has no address"))?.ip());
    }
    let config = Config::new(address, id).token(token.clone()).deadline(*deadline).sealing(*sealing);
    Ok((names, config))
}

impl Client {
    /// Opens a client by names: the control port at `server` (`host:7399`) says where the data are and what the ids
    /// are. Tables and typed functions are then known by their names ([`Client::table`], [`Client::call`]).
    ///
    /// # Errors
    /// [`ClientOpenError`], which names what is missing.
    pub async fn open(server: &str, tenant: &str, token: &str) -> Result<Client, ClientOpenError> {
        Client::open_with(OpenOptions::new(server, tenant, token)).await
    }

    /// The same with more options.
    ///
    /// # Errors
    /// As for [`Client::open`].
    pub async fn open_with(options: OpenOptions) -> Result<Client, ClientOpenError> {
        let (names, config) = beside(move || learn(&options)).await??;
        Ok(Client::connect(config).await?.with_names(Arc::new(names)))
    }

    /// The id of a table of that name, or of one that another tenant granted (`owner/table`). It is asked for once.
    ///
    /// # Errors
    /// [`ClientOpenError::UnknownTable`] with the names that there are.
    pub async fn table(&self, name: &str) -> Result<u64, ClientOpenError> {
        let names = self.names().ok_or(ClientOpenError::NotOpened)?;
        let ask = async || {
            let (asked, table) = (Arc::clone(names), name.to_owned());
            beside(move || asked.find_table(&table)).await?
        };
        names.tables.get_or_ask(name, ask).await
    }

    /// Changes of a table behind a position, in their order, as they are on the disk; `None` gives the end of the log,
    /// where to begin. If there is none yet, the answer comes with the next one, or after `wait_s` seconds. Go on from
    /// `next` of the page, or from the `position` of a change behind which there is no other of the same position.
    ///
    /// # Errors
    /// [`ClientOpenError::UnknownTable`] with the names that there are. [`ClientOpenError::Control`] with the code
    /// `too_old`: the log does not go back so far; `not_logged`: the table has durability `none`; `busy`: as many feeds
    /// wait as a tenant may have.
    pub async fn changes(&self, table: &str, after: Option<&str>, wait_s: u64) -> Result<ChangePage, ClientOpenError> {
        let names = self.names().ok_or(ClientOpenError::NotOpened)?;
        let (asked, table, after) = (Arc::clone(names), table.to_owned(), after.map(str::to_owned));
        beside(move || asked.find_changes(&table, after.as_deref(), wait_s)).await?
    }

    /// The types of an extension's functions; `None`: it takes and gives bytes. It is asked for once.
    ///
    /// # Errors
    /// [`ClientOpenError::UnknownExtension`] with the names that there are.
    pub async fn schema(&self, extension: &str) -> Result<Option<Arc<ExtensionSchema>>, ClientOpenError> {
        self.schema_of((extension, 0), extension).await
    }

    /// The types of the functions of a version (0: the newest), which is known by that name.
    async fn schema_of(
        &self,
        (extension, version): (&str, u64),
        known_as: &str,
    ) -> Result<Option<Arc<ExtensionSchema>>, ClientOpenError> {
        let names = self.names().ok_or(ClientOpenError::NotOpened)?;
        let ask = async || {
            let (asked, name) = (Arc::clone(names), extension.to_owned());
            beside(move || asked.find_schema(&name, version)).await?
        };
        names.schemas.get_or_ask(known_as, ask).await
    }

    /// Has the next call ask for the types of an extension.
    fn forget_schema(&self, extension: &str) {
        if let Some(names) = self.names() {
            names.schemas.forget(extension);
        }
    }

    /// Calls a typed function: `extension`, or `extension.function` where it has several, and of a kept version
    /// `extension.function@7`. Arguments and reply are of any types whose JSON is that of the function's
    /// (docs/types.md); they travel as bytes.
    ///
    /// # Errors
    /// [`TypedCallError`]: of the arguments with their place, before anything is sent.
    pub async fn call<A: Serialize + ?Sized, R: DeserializeOwned>(
        &self,
        name: &str,
        args: &A,
    ) -> Result<R, TypedCallError> {
        self.call_version(name, 0, args).await
    }

    /// Calls that version of a typed function, by the types that this version has. 0: the version that the name has,
    /// such as `bank.transfer@7`, or else the newest.
    ///
    /// # Errors
    /// As for [`Client::call`], and [`ClientOpenError::UnknownVersion`] with the versions that can be called.
    pub async fn call_version<A: Serialize + ?Sized, R: DeserializeOwned>(
        &self,
        name: &str,
        version: u64,
        args: &A,
    ) -> Result<R, TypedCallError> {
        let CallName { extension, function, version: named } = CallName::parse(name);
        let version = if version == 0 { named } else { version };
        let of_version = (version != 0).then(|| format!("{extension}@{version}"));
        let known_as = of_version.as_deref().unwrap_or(extension);
        let Some(schema) = self.schema_of((extension, version), known_as).await? else {
            self.forget_schema(known_as);
            return Err(TypedCallError::Untyped(known_as.to_owned()));
        };
        // One that is not there may be pushed by the next call.
        let function = schema.find_function(function).inspect_err(|_| self.forget_schema(known_as))?;
        let args = serde_json::to_value(args).map_err(|error| TypedCallError::Json(error.to_string()))?;
        let reply = self.invoke_version(extension, version, &schema.encode_call(function, &args)?).await;
        if matches!(&reply, Err(Error::Failed { code: INVALID, .. })) {
            // Perhaps another version was pushed, with other types: the next call asks for them.
            self.forget_schema(known_as);
        }
        let reply = schema.decode_reply(function, &reply?)?;
        serde_json::from_value(reply).map_err(|error| TypedCallError::Reply(format!("the reply of {name}: {error}")))
    }
}

/// The kind of an error about a call's arguments.
const INVALID: u32 = 8;
