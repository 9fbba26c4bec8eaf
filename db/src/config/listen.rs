//! Ports for clients of memcached and Redis: `[[memcached]]`, `[[redis]]`, `--memcached`, `--redis`.

use std::net::SocketAddr;

use serde::Deserialize;

use super::ConfigError;
use super::exposure::is_public;
use crate::protocols::{Entrance, Protocol};
use crate::workers::ListenAt;

/// One port, as it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileListen {
    address: SocketAddr,
    tenant: Option<String>,
    table: Option<String>,
    udp: Option<bool>,
}

fn name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Memcached => "memcached",
        Protocol::Redis => "redis",
    }
}

/// A port as the command line has it: `HOST:PORT`, `HOST:PORT=TENANT` or `HOST:PORT=TENANT/TABLE`.
///
/// # Errors
/// A text that says what it should be.
pub fn parse_listen(protocol: Protocol, text: &str) -> Result<ListenAt, String> {
    let (address, of) = text.split_once('=').map_or((text, None), |(address, of)| (address, Some(of)));
    let address = address.parse().map_err(|error| format!("{error}; it is HOST:PORT or HOST:PORT=TENANT/TABLE"))?;
    let (tenant, table) = match of {
        None => (None, None),
        Some(of) => of.split_once('/').map_or((Some(of), None), |(tenant, table)| (Some(tenant), Some(table))),
    };
    if tenant == Some("") || table == Some("") {
        return Err("a name is missing; it is HOST:PORT=TENANT or HOST:PORT=TENANT/TABLE".to_owned());
    }
    Ok(listen_at(protocol, address, tenant.map(str::to_owned), table.map(str::to_owned), None))
}

fn listen_at(
    protocol: Protocol,
    address: SocketAddr,
    tenant: Option<String>,
    table: Option<String>,
    udp: Option<bool>,
) -> ListenAt {
    let public = is_public(address.ip());
    // A datagram carries no token, and its sender's address may be forged, so that somebody else gets the answers.
    let udp = protocol == Protocol::Memcached && tenant.is_some() && udp.unwrap_or(!public);
    ListenAt { address, udp, entrance: Entrance { protocol, tenant, table, public } }
}

/// The keys of the ports of the file, in the order of [`build`].
pub(super) fn keys(memcached: &[FileListen], redis: &[FileListen]) -> Vec<String> {
    let keys =
        |section: &'static str, count: usize| (0..count).map(move |number| format!("{section}.{number}.address"));
    keys("memcached", memcached.len()).chain(keys("redis", redis.len())).collect()
}

/// All ports: the file's, then the command line's.
pub(super) fn build(
    memcached: Vec<FileListen>,
    redis: Vec<FileListen>,
    over: &[ListenAt],
) -> Result<Vec<ListenAt>, ConfigError> {
    let memcached = memcached.into_iter().enumerate().map(|(number, listen)| (Protocol::Memcached, number, listen));
    let redis = redis.into_iter().enumerate().map(|(number, listen)| (Protocol::Redis, number, listen));
    let mut ports = Vec::new();
    for (protocol, number, listen) in memcached.chain(redis) {
        let FileListen { address, tenant, table, udp } = listen;
        let what = name(protocol);
        let at = |key: &str| [format!("{what}.{number}.{key}")];
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
        ports.push(listen_at(protocol, address, tenant, table, udp));
    }
    ports.extend_from_slice(over);
    Ok(ports)
}

/// Refuses what other machines would reach unless it is named.
pub(super) fn check(ports: &[ListenAt], allow_plaintext: bool, allow_open: bool) -> Result<(), ConfigError> {
    for ListenAt { address, entrance, .. } in ports.iter().filter(|port| port.entrance.public) {
        let what = name(entrance.protocol);
        if !allow_plaintext {
            return Err(ConfigError::new(format!(
                "{what} address {address} is not on loopback: tokens and records would cross the network in the clear; bind it to \
                 127.0.0.1 and use a tunnel, or say --allow-plaintext if that is meant"
            )));
        }
        if let Some(tenant) = entrance.tenant.as_ref().filter(|_| !allow_open) {
            return Err(ConfigError::new(format!(
                "{what} address {address} is reached from other machines, and speaks for tenant {tenant:?} without a token: \
                 anyone there could read and change its records; leave the tenant out, or say --allow-open if that is meant"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Overrides};

    fn config(text: &str, over: &[&str]) -> Result<Vec<ListenAt>, String> {
        let listen = over.iter().map(|text| parse_listen(Protocol::Memcached, text)).collect::<Result<_, _>>()?;
        let overrides = Overrides { listen, ..Overrides::default() };
        Config::parse(text, "c.toml", &overrides).map(|config| config.listen).map_err(|error| error.to_string())
    }

    #[test]
    fn ports_come_from_the_file_and_the_command_line() {
        let file =
            "[[redis]]\naddress = '127.0.0.1:6379'\n[[memcached]]\naddress = '[::1]:11211'\ntenant = 'a'\nudp = false";
        let ports = config(file, &["127.0.0.1:0=a/t", "127.0.0.1:1"]).unwrap();
        let what: Vec<_> = ports
            .iter()
            .map(|port| {
                (port.entrance.protocol, port.entrance.tenant.as_deref(), port.entrance.table.as_deref(), port.udp)
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
            ("", "127.0.0.1", "it is HOST:PORT or HOST:PORT=TENANT/TABLE"),
            ("", "127.0.0.1:1=", "a name is missing"),
            ("", "127.0.0.1:1=a/", "a name is missing"),
            ("", "0.0.0.0:11211", "say --allow-plaintext if that is meant"),
            ("allow_plaintext = true", "0.0.0.0:11211=a", "say --allow-open if that is meant"),
            ("[[redis]]\naddress = '127.0.0.1:1'\nudp = true", "127.0.0.1:1", "Redis has no UDP"),
            ("[[memcached]]\naddress = '127.0.0.1:1'\nudp = true", "127.0.0.1:1", "needs a tenant"),
            ("[[memcached]]\naddress = '127.0.0.1:1'\ntable = 't'", "127.0.0.1:1", "a table needs its tenant"),
        ] {
            let error = config(file, &[over]).expect_err(over);
            assert!(error.contains(said), "{error}");
        }
        assert!(config("allow_plaintext = true\nallow_open = true", &["0.0.0.0:11211=a", "0.0.0.0:1"]).is_ok());
    }
}
