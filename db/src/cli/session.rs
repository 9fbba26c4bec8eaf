//! The server, user and tenant of a command: on the server's own machine nothing has to be typed.

use std::cell::OnceCell;
use std::fs;
use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandstorm_client::blocking::Client;
use sandstorm_client::control::{self, Control, TenantStatus, Trust};
use sandstorm_client::{Config, Sealing};
use sandstorm_control::config::{ControlFile, DEFAULT_CONTROL, default_state_dir, read_operator_token};

use super::GlobalArgs;
use super::output::{CliError, summarize_names};

/// The folder of the state directory for tokens of tenants that were created from here.
const TOKENS_FOLDER: &str = "tokens";

/// A command's view of the server.
pub(super) struct CliSession {
    /// Host and port.
    server: String,
    /// The same with its scheme.
    url: String,
    trust: Trust,
    token: Option<String>,
    tenant: Option<String>,
    state: PathBuf,
    /// The state directory named the server.
    is_of_state_directory: bool,
    sealing: Sealing,
    timeout: Duration,
    control: OnceCell<Control>,
}

impl CliSession {
    /// Reads and sends nothing yet.
    pub(super) fn new(global: &GlobalArgs) -> CliSession {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let state = global.state.clone().unwrap_or_else(default_state_dir);
        let named = given(&global.server);
        let found = ControlFile::read(&state);
        let trust = global.fingerprint.clone().or_else(|| global.ca.clone());
        let (url, found) = locate_control_port(named.as_deref(), found, trust.is_some());
        let is_of_state_directory = found.is_some();
        let pinned = || found.and_then(|found| found.fingerprint).and_then(|text| Trust::pin(&text));
        CliSession {
            server: host_of(&url).to_owned(),
            trust: trust.or_else(pinned).unwrap_or_default(),
            url,
            token: given(&global.token),
            tenant: given(&global.tenant),
            state,
            is_of_state_directory,
            sealing: global.sealed,
            timeout: Duration::from_secs(global.timeout),
            control: OnceCell::new(),
        }
    }

    /// The state directory.
    pub(super) fn state(&self) -> &Path {
        &self.state
    }

    /// Whether the state directory is that of the server, which runs on this machine.
    pub(super) fn is_of_state_directory(&self) -> bool {
        self.is_of_state_directory
    }

    /// Host and port of the control port.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// The control port's address with its scheme.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The control port: with the given token, else the operator's if it can be read, else the tenant's.
    pub(super) fn control(&self) -> &Control {
        self.control.get_or_init(|| {
            let saved = || self.tenant.as_deref().and_then(|tenant| self.saved_token(tenant));
            let token = self.token.clone().or_else(|| read_operator_token(&self.state).ok()).or_else(saved);
            Control::with_trust(&self.url, token.as_deref(), self.timeout, &self.trust)
        })
    }

    /// The control port for what is the tenant's own: with the given token, else the tenant's that is saved here, else
    /// the operator's.
    pub(super) fn control_as(&self, tenant: &str) -> Control {
        let operator = || read_operator_token(&self.state).ok();
        let token = self.token.clone().or_else(|| self.saved_token(tenant)).or_else(operator);
        Control::with_trust(&self.url, token.as_deref(), self.timeout, &self.trust)
    }

    /// The tenant that was named on the command line.
    pub(super) fn named_tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    /// The name of the intended tenant: the given one, or the only one that the token can access.
    pub(super) fn tenant(&self) -> Result<String, CliError> {
        if let Some(tenant) = &self.tenant {
            return Ok(tenant.clone());
        }
        let mut names: Vec<String> = self.control().tenants()?.into_iter().map(|tenant| tenant.name).collect();
        match (names.len(), names.pop()) {
            (1, Some(name)) => Ok(name),
            (0, _) => {
                Err(CliError::new("there is no tenant yet").hint("sandstorm tenant create NAME").code("not_found"))
            }
            (_, last) => {
                names.extend(last);
                Err(CliError::new("which tenant?").hint(format!("--tenant NAME, one of: {}", summarize_names(&names))))
            }
        }
    }

    /// The server's status of the intended tenant.
    pub(super) fn show_tenant(&self) -> Result<TenantStatus, CliError> {
        Ok(self.control().tenant(&self.tenant()?)?)
    }

    /// The id of a table.
    pub(super) fn table_id(&self, tenant: &str, table: &str) -> Result<u64, CliError> {
        Ok(self.control().table(tenant, table)?.id)
    }

    /// A data connection as the tenant.
    pub(super) fn data(&self) -> Result<(Client, TenantStatus), CliError> {
        let tenant = self.show_tenant()?;
        let config = self.config(self.data_address()?, &tenant)?;
        Ok((Client::connect(config)?, tenant))
    }

    /// The client configuration for a tenant's data: with the given token, or the one that is saved here.
    pub(super) fn config(&self, address: SocketAddr, tenant: &TenantStatus) -> Result<Config, CliError> {
        let token = self.token.clone().or_else(|| self.saved_token(&tenant.name));
        if token.is_none() && !tenant.open {
            return Err(CliError::new(format!("no token of tenant {:?} is known here", tenant.name))
                .hint("give --token or SANDSTORM_TOKEN; the operator makes a new one with `sandstorm tenant token`")
                .code("unauthenticated"));
        }
        Ok(self.config_with(address, tenant, token.unwrap_or_default()))
    }

    /// As [`Self::config`], with this token.
    pub(super) fn config_with(&self, address: SocketAddr, tenant: &TenantStatus, token: String) -> Config {
        Config::new(address, tenant.id).token(token).sealing(self.sealing)
    }

    /// The data address that the server reports. Where it is bound to every address, the host is the one of the control
    /// port.
    pub(super) fn data_address(&self) -> Result<SocketAddr, CliError> {
        let named = &self.control().health()?.data_address;
        let unknown = |reason: &dyn std::fmt::Display| {
            CliError::new(format!("the server's data address {named:?} cannot be used: {reason}"))
        };
        let mut address: SocketAddr = named.parse().map_err(|error| unknown(&error))?;
        if address.ip().is_unspecified() {
            let mut hosts = self.server.to_socket_addrs().map_err(|error| unknown(&error))?;
            address.set_ip(hosts.next().ok_or_else(|| unknown(&"the server's name has no address"))?.ip());
        }
        Ok(address)
    }

    /// File of a tenant's saved token. It depends on the server, since names are unique per server only.
    fn token_file(&self, tenant: &str) -> PathBuf {
        let plain = |text: &str| {
            text.chars()
                .map(|c| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '_' })
                .collect::<String>()
        };
        self.state.join(TOKENS_FOLDER).join(plain(&self.server)).join(plain(tenant))
    }

    /// The saved token of a tenant.
    pub(super) fn saved_token(&self, tenant: &str) -> Option<String> {
        let text = fs::read_to_string(self.token_file(tenant)).ok()?;
        Some(text.trim().to_owned()).filter(|token| !token.is_empty())
    }

    /// Saves a tenant's token (mode 0600), so that it need not be typed on this machine; `false` if that fails.
    pub(super) fn save_token(&self, tenant: &str, token: &str) -> bool {
        let path = self.token_file(tenant);
        let Some(folder) = path.parent() else { return false };
        let write = || {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            let mut options = fs::OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path)?;
            file.write_all(format!("{token}\n").as_bytes())
        };
        let written: std::io::Result<()> = write();
        written.is_ok()
    }

    /// Deletes the saved token of a deleted tenant.
    pub(super) fn forget_token(&self, tenant: &str) {
        // It may never have been saved.
        let _absent = fs::remove_file(self.token_file(tenant));
    }
}

/// Host and port of an address that may have a scheme.
fn host_of(url: &str) -> &str {
    url.split_once("://").map_or(url, |(_, host)| host).trim_end_matches('/')
}

/// The address of the control port with its scheme, and the state directory's information about it. The address is
/// `named` on the command line, or found in the state directory, or the default. Without a scheme, the state
/// directory's entry for this address decides, else [`control::url`].
fn locate_control_port(
    named: Option<&str>,
    found: Option<ControlFile>,
    has_trust: bool,
) -> (String, Option<ControlFile>) {
    let Some(named) = named else {
        let url = found.as_ref().map_or_else(|| format!("http://{DEFAULT_CONTROL}"), |found| found.address.clone());
        return (url, found);
    };
    let found = found.filter(|found| host_of(&found.address) == host_of(named));
    if named.contains("://") {
        return (control::url(named, has_trust), found);
    }
    if let Some(found) = found {
        return (found.address.clone(), Some(found));
    }
    (control::url(named, has_trust), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_found_and_its_scheme_is_never_plain_by_mistake() {
        let file = |address: &str| ControlFile { address: address.into(), fingerprint: Some("sha256:1".into()) };
        let url = |named: Option<&str>, found: Option<&str>, trust| {
            let (url, found) = locate_control_port(named, found.map(file), trust);
            (url, found.is_some())
        };
        let own = Some("https://127.0.0.1:7000");
        for (named, found, trust, expected, known) in [
            (None, None, false, "http://127.0.0.1:7399", false),
            (None, own, false, "https://127.0.0.1:7000", true),
            (Some("127.0.0.1:7000"), own, false, "https://127.0.0.1:7000", true),
            (Some("127.0.0.1:7001"), own, false, "http://127.0.0.1:7001", false),
            (Some("http://127.0.0.1:7000/"), own, false, "http://127.0.0.1:7000", true),
            (Some("127.0.0.1:7000"), None, true, "https://127.0.0.1:7000", false),
            (Some("localhost:1"), None, false, "http://localhost:1", false),
            (Some("[::1]:1"), None, false, "http://[::1]:1", false),
            (Some("db.example:1"), own, false, "https://db.example:1", false),
            (Some("10.0.0.1:1"), None, false, "https://10.0.0.1:1", false),
            (Some("http://10.0.0.1:1"), None, false, "http://10.0.0.1:1", false),
        ] {
            assert_eq!(url(named, found, trust), (expected.to_owned(), known), "{named:?} {found:?} {trust}");
        }
    }
}
