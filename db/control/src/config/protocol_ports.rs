//! Ports for clients of memcached and Redis: `[[memcached]]`, `[[redis]]`, `--memcached`, `--redis`.

use std::path::PathBuf;

use serde::Deserialize;

use super::exposure::is_public;
use super::{CONTROL_PORT, ConfigError, PROTOCOL_PORTS, PortTls, ServerSettings, TlsPort};
use sandstorm_dialects::{PortService, Protocol};
use sandstorm_server::limits::ports::SOCKET_MODE;
use sandstorm_server::workers::{ListenerConfig, PortAddress};

/// One port, as it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PortSection {
    address: String,
    tenant: Option<String>,
    table: Option<String>,
    udp: Option<bool>,
    mode: Option<String>,
}

fn name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Memcached => "memcached",
        Protocol::Redis => "redis",
    }
}

/// The forms of an address.
const ADDRESSES: &str = "HOST:PORT, tls:HOST:PORT or unix:/PATH";

/// Parses an address.
fn parse_port_address(text: &str) -> Result<PortAddress, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        let path = PathBuf::from(path);
        return match path.is_absolute() {
            true => Ok(PortAddress::Unix { path, mode: SOCKET_MODE }),
            false => Err(format!("the path of a Unix socket begins with /; an address is {ADDRESSES}")),
        };
    }
    let (is_tls, address) = text.strip_prefix("tls:").map_or((false, text), |address| (true, address));
    let address =
        address.parse().map_err(|error| format!("{error}; it is {ADDRESSES}, with =TENANT/TABLE or without"))?;
    Ok(if is_tls { PortAddress::Tls(address) } else { PortAddress::Tcp(address) })
}

/// The mode of a Unix socket, which decides which users may connect: a mode as `chmod` takes it.
///
/// # Errors
/// A text that names the valid forms.
pub fn parse_socket_mode(text: &str) -> Result<u32, String> {
    let digits = !text.is_empty() && text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit());
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| digits && *mode <= 0o777);
    mode.ok_or_else(|| format!("mode {text:?}: it is octal, as of chmod, from 0 to 777"))
}

/// Parses a port of the command line: an address, and perhaps `=TENANT` or `=TENANT/TABLE` behind it.
///
/// # Errors
/// A text that names the valid forms.
pub fn parse_listen(protocol: Protocol, text: &str) -> Result<ListenerConfig, String> {
    let (address, of) = text.split_once('=').map_or((text, None), |(address, of)| (address, Some(of)));
    let address = parse_port_address(address)?;
    let (tenant, table) = match of {
        None => (None, None),
        Some(of) => of.split_once('/').map_or((Some(of), None), |(tenant, table)| (Some(tenant), Some(table))),
    };
    if tenant == Some("") || table == Some("") {
        return Err("a name is missing; behind the address stands =TENANT or =TENANT/TABLE".to_owned());
    }
    Ok(listen_at(protocol, address, tenant.map(str::to_owned), table.map(str::to_owned), None))
}

fn listen_at(
    protocol: Protocol,
    address: PortAddress,
    tenant: Option<String>,
    table: Option<String>,
    udp: Option<bool>,
) -> ListenerConfig {
    let (public, plain) = match &address {
        PortAddress::Tcp(address) => (is_public(address.ip()), true),
        PortAddress::Tls(address) => (is_public(address.ip()), false),
        // No other machine reaches a Unix socket.
        PortAddress::Unix { .. } => (false, false),
    };
    // A datagram carries no token, and its sender's address may be forged, so that another host gets the answers.
    let udp = protocol == Protocol::Memcached && tenant.is_some() && udp.unwrap_or(plain && !public);
    ListenerConfig { address, udp, service: PortService { protocol, tenant, table, public } }
}

/// The keys of the ports of the file, in the order of [`build`].
pub(super) fn keys(memcached: &[PortSection], redis: &[PortSection]) -> Vec<String> {
    let keys =
        |section: &'static str, count: usize| (0..count).map(move |number| format!("{section}.{number}.address"));
    keys("memcached", memcached.len()).chain(keys("redis", redis.len())).collect()
}

/// All ports: the file's, then the command line's.
pub(super) fn build(
    memcached: Vec<PortSection>,
    redis: Vec<PortSection>,
    over: &[ListenerConfig],
) -> Result<Vec<ListenerConfig>, ConfigError> {
    let memcached = memcached.into_iter().enumerate().map(|(number, listen)| (Protocol::Memcached, number, listen));
    let redis = redis.into_iter().enumerate().map(|(number, listen)| (Protocol::Redis, number, listen));
    let mut ports = Vec::new();
    for (protocol, number, listen) in memcached.chain(redis) {
        let PortSection { address, tenant, table, udp, mode } = listen;
        let what = name(protocol);
        let at = |key: &str| [format!("{what}.{number}.{key}")];
        let wrong = |key, text: String| ConfigError::new(format!("{what} address {address}: {text}")).at(&at(key));
        let mut place = parse_port_address(&address).map_err(|text| wrong("address", text))?;
        match (&mut place, mode) {
            (_, None) => {}
            (PortAddress::Unix { mode, .. }, Some(text)) => {
                *mode = parse_socket_mode(&text).map_err(|text| wrong("mode", text))?;
            }
            _ => return Err(wrong("mode", "mode is for Unix sockets; leave it out".to_owned())),
        }
        if udp == Some(true) && !matches!(place, PortAddress::Tcp(_)) {
            let text = "there are no datagrams with TLS or at a Unix socket; leave udp out";
            return Err(wrong("udp", text.to_owned()));
        }
        if udp == Some(true) && protocol == Protocol::Redis {
            return Err(
                ConfigError::new(format!("redis address {address}: Redis has no UDP; leave udp out")).at(&at("udp"))
            );
        }
        if udp == Some(true) && tenant.is_none() {
            return Err(ConfigError::new(format!(
                "{what} address {address}: a datagram carries no token, so udp = true needs a tenant"
            ))
            .at(&at("udp")));
        }
        if table.is_some() && tenant.is_none() {
            return Err(ConfigError::new(format!("{what} address {address}: a table needs its tenant; name both"))
                .at(&at("table")));
        }
        ports.push(listen_at(protocol, place, tenant, table, udp));
    }
    ports.extend_from_slice(over);
    Ok(ports)
}

/// Refuses a port that other machines reach unless it is allowed, and TLS without a certificate.
pub(super) fn check(config: &ServerSettings, port: &ListenerConfig) -> Result<(), ConfigError> {
    let ListenerConfig { address, service, .. } = port;
    let (what, is_tls) = (name(service.protocol), matches!(address, PortAddress::Tls(_)));
    if is_tls && !config.protocol_tls().1.is_on() {
        return Err(ConfigError::new(format!(
            "{what} address {address}: TLS needs a certificate; say --port-tls (or [port_tls] with certificate and key, or \
                 self_signed = true), or --control-tls, whose certificate these ports show unless they have one of their own"
        )));
    }
    if !service.public {
        return Ok(());
    }
    if !is_tls && !config.allow_plaintext {
        return Err(ConfigError::new(format!(
            "{what} address {address} is not on loopback: tokens and records would cross the network in the clear; say tls:{address}, \
                 bind it to 127.0.0.1 and use a tunnel, or say --allow-plaintext if that is meant"
        )));
    }
    if let Some(tenant) = service.tenant.as_ref().filter(|_| !config.allow_open) {
        return Err(ConfigError::new(format!(
            "{what} address {address} is reached from other machines, and speaks for tenant {tenant:?} without a token: \
                 anyone there could read and change its records; leave the tenant out, or say --allow-open if that is meant"
        )));
    }
    Ok(())
}

impl ServerSettings {
    /// The TLS settings of the ports for memcached and Redis: their own, or the control port's.
    pub fn protocol_tls(&self) -> (&'static TlsPort, &PortTls) {
        match self.port_tls.is_on() {
            true => (&PROTOCOL_PORTS, &self.port_tls),
            false => (&CONTROL_PORT, &self.control_tls),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CliOverrides, ServerSettings};

    fn config(text: &str, over: &[&str]) -> Result<Vec<ListenerConfig>, String> {
        let listen = over.iter().map(|text| parse_listen(Protocol::Memcached, text)).collect::<Result<_, _>>()?;
        let overrides = CliOverrides { listen, ..CliOverrides::default() };
        ServerSettings::parse(text, "c.toml", &overrides).map(|config| config.listen).map_err(|error| error.to_string())
    }

    #[test]
    fn ports_come_from_the_file_and_the_command_line() {
        let file =
            "[[redis]]\naddress = '127.0.0.1:6379'\n[[memcached]]\naddress = '[::1]:11211'\ntenant = 'a'\nudp = false";
        let ports = config(file, &["127.0.0.1:0=a/t", "127.0.0.1:1"]).unwrap();
        let what: Vec<_> = ports
            .iter()
            .map(|port| {
                (port.service.protocol, port.service.tenant.as_deref(), port.service.table.as_deref(), port.udp)
            })
            .collect();
        use Protocol::{Memcached, Redis};
        let expected = [
            (Memcached, Some("a"), None, false),
            (Redis, None, None, false),
            (Memcached, Some("a"), Some("t"), true),
            (Memcached, None, None, false),
        ];
        assert_eq!(what, expected);
    }

    #[test]
    fn what_cannot_be_or_should_not_is_refused() {
        for (file, over, said) in [
            ("", "127.0.0.1", "it is HOST:PORT, tls:HOST:PORT or unix:/PATH"),
            ("", "127.0.0.1:1=", "a name is missing"),
            ("", "127.0.0.1:1=a/", "a name is missing"),
            ("", "0.0.0.0:11211", "say --allow-plaintext if that is meant"),
            ("allow_plaintext = true", "0.0.0.0:11211=a", "say --allow-open if that is meant"),
            ("[[redis]]\naddress = '127.0.0.1:1'\nudp = true", "127.0.0.1:1", "Redis has no UDP"),
            ("[[memcached]]\naddress = '127.0.0.1:1'\nudp = true", "127.0.0.1:1", "needs a tenant"),
            ("[[memcached]]\naddress = '127.0.0.1:1'\ntable = 't'", "127.0.0.1:1", "a table needs its tenant"),
            ("", "unix:s", "begins with /"),
            ("", "tls:/s", "it is HOST:PORT, tls:HOST:PORT or unix:/PATH"),
            ("", "tls:127.0.0.1:1", "TLS needs a certificate; say --port-tls"),
            ("[port_tls]\nself_signed = true", "tls:0.0.0.0:1=a", "say --allow-open if that is meant"),
            ("[[redis]]\naddress = '127.0.0.1:1'\nmode = '700'", "127.0.0.1:1", "mode is for Unix sockets"),
            ("[[redis]]\naddress = 'unix:/s'\nmode = '1777'", "127.0.0.1:1", "it is octal, as of chmod"),
            ("[[redis]]\naddress = 'unix:/s'\nmode = '8'", "127.0.0.1:1", "it is octal, as of chmod"),
            ("[[memcached]]\naddress = 'unix:/s'\ntenant = 'a'\nudp = true", "127.0.0.1:1", "no datagrams"),
        ] {
            let error = config(file, &[over]).expect_err(over);
            assert!(error.contains(said), "{error}");
        }
        assert!(config("allow_plaintext = true\nallow_open = true", &["0.0.0.0:11211=a", "0.0.0.0:1"]).is_ok());
        // A port that is encrypted, or that other machines do not reach, needs no permission of the operator.
        for file in ["[port_tls]\nself_signed = true", "[control_tls]\nself_signed = true"] {
            assert!(config(file, &["tls:0.0.0.0:1", "unix:/s=a/t"]).is_ok());
        }
    }

    #[test]
    fn a_unix_socket_has_a_mode() {
        let file = "[[redis]]\naddress = 'unix:/run/a'\nmode = '0660'\ntenant = 'a'\n[[memcached]]\naddress = 'unix:/run/b'\ntenant = 'a'";
        let ports = config(file, &[]).unwrap();
        let what: Vec<_> = ports.iter().map(|port| (port.address.to_string(), port.udp, port.service.public)).collect();
        assert_eq!(what, [("unix:/run/b".to_owned(), false, false), ("unix:/run/a".to_owned(), false, false)]);
        let modes = ports.iter().map(|port| match port.address {
            PortAddress::Unix { mode, .. } => mode,
            _ => 0,
        });
        assert_eq!(modes.collect::<Vec<_>>(), [0o700, 0o660]);
    }
}
