//! The control plane of a server: state directory, operator's token, builder, control port.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Admin, Build, Control, Pushing};
use crate::builder::{BuildError, BuilderConfig, BuilderHandle, RemoteBuilder};
use crate::config::{Config, ConfigError, OPERATOR_TOKEN_FILE, operator_token, prepare_state_dir};
use crate::metrics::Metrics;
use crate::tenants::Directory;

/// Why the control plane did not start: one line.
#[derive(Debug, thiserror::Error)]
pub enum ControlStartError {
    /// The state directory or the operator's token.
    #[error(transparent)]
    State(#[from] ConfigError),
    /// The builder.
    #[error("no builder: {0}; or start without pushes: --no-builder")]
    Builder(BuildError),
    /// The port is another's.
    #[error("control port {0} is taken: does another server run? choose another with --control")]
    Taken(SocketAddr),
    /// The port cannot be bound.
    #[error("cannot serve the control port {0}: {1}")]
    Port(SocketAddr, std::io::Error),
}

/// The running control plane; stops when dropped.
#[derive(Debug)]
pub struct ControlPlane {
    admin: Admin,
    control: Arc<Control>,
    token_file: PathBuf,
    operator: String,
}

/// What the control plane is put before: the parts of the data plane that it sees.
#[derive(Clone, Debug)]
pub struct Served {
    /// Tenants, tables and extensions.
    pub directory: Arc<Directory>,
    /// What the workers count.
    pub metrics: Arc<Metrics>,
    /// The address of the first worker's port, as it was bound.
    pub data: SocketAddr,
}

impl ControlPlane {
    /// Prepares the state directory, starts the builder (unless it is switched off), serves the control port. `stop` is
    /// called when the operator asks for a shutdown; it must not block.
    ///
    /// # Errors
    /// [`ControlStartError`]; nothing is left running.
    pub fn start(
        config: &Config,
        served: Served,
        stop: impl Fn() + Send + Sync + 'static,
    ) -> Result<ControlPlane, ControlStartError> {
        ControlPlane::start_with(config, config.builder_config(), served, stop)
    }

    /// The same with another configuration of the builder, such as another program for its process.
    ///
    /// # Errors
    /// As [`ControlPlane::start`].
    pub fn start_with(
        config: &Config,
        builder: BuilderConfig,
        served: Served,
        stop: impl Fn() + Send + Sync + 'static,
    ) -> Result<ControlPlane, ControlStartError> {
        if config.control_tls.is_on() {
            return Err(ConfigError::new("control_tls: this server serves its control port without TLS only").into());
        }
        prepare_state_dir(&config.state)?;
        let operator = operator_token(&config.state)?;
        let builder: Result<Arc<dyn Build>, String> = match &config.builder {
            settings if !settings.enabled => Err("the server was started without one".to_owned()),
            settings => match &settings.remote {
                Some(remote) => Ok(RemoteBuilder::open(remote, &builder).map_err(ControlStartError::Builder)?),
                None => Ok(BuilderHandle::start(builder).map_err(ControlStartError::Builder)?),
            },
        };
        let pushing = Pushing { builder, trusted_keys: config.builder.trusted_keys.clone() };
        let control = Control::new(served.directory, served.metrics, pushing, served.data, &operator, stop);
        let admin = Admin::start(config.control, control.clone()).map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => ControlStartError::Taken(config.control),
            _ => ControlStartError::Port(config.control, error),
        })?;
        Ok(ControlPlane { admin, control, token_file: config.state.join(OPERATOR_TOKEN_FILE), operator })
    }

    /// The control port's address, as it was bound.
    pub fn address(&self) -> SocketAddr {
        self.admin.address()
    }

    /// Where the operator's token is.
    pub fn token_file(&self) -> &std::path::Path {
        &self.token_file
    }

    /// The operator's token.
    pub fn operator_token(&self) -> &str {
        &self.operator
    }

    /// What the control port sees of the server.
    pub fn control(&self) -> &Arc<Control> {
        &self.control
    }
}
