//! `nats://HOST:PORT,HOST:PORT/NAME`: the servers of a NATS cluster, and the name of the streams there.

use std::fmt;
use std::str::FromStr;

use crate::limits::ADDRESSES;

/// The port of a NATS server that is told nothing else.
const DEFAULT_PORT: u16 = 4222;
/// Characters of a name, at most: it begins the names of streams, which are names of files there.
const NAME_CHARACTERS: usize = 32;

/// Where streams are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsAddress {
    /// Hosts and ports.
    pub servers: Vec<(String, u16)>,
    /// The name that the names of streams begin with.
    pub name: String,
    /// Whether they are spoken to over TLS (`natss://`).
    pub is_encrypted: bool,
}

impl NatsAddress {
    /// Whether all of the servers are on this machine.
    pub fn is_on_this_machine(&self) -> bool {
        let is_here = |host: &str| {
            let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
            host == "localhost" || address.is_ok_and(|address| address.is_loopback())
        };
        self.servers.iter().all(|(host, _)| is_here(host))
    }
}

impl fmt::Display for NatsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<String> = self.servers.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        let scheme = if self.is_encrypted { "natss" } else { "nats" };
        write!(f, "{scheme}://{}/{}", servers.join(","), self.name)
    }
}

fn server(text: &str) -> Option<(String, u16)> {
    let is_bare_ipv6 = text.ends_with(']');
    let (host, port) = match text.rsplit_once(':').filter(|_| !is_bare_ipv6) {
        Some((host, port)) => (host, port.parse().ok()?),
        None => (text, DEFAULT_PORT),
    };
    let is_ipv6 =
        host.starts_with('[') && host.ends_with(']') && host[1..host.len() - 1].parse::<std::net::Ipv6Addr>().is_ok();
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let is_host = !host.is_empty() && host.bytes().all(is_name);
    (is_ipv6 || is_host).then(|| (host.to_owned(), port))
}

impl FromStr for NatsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<NatsAddress, String> {
        let (is_encrypted, rest) = match (text.strip_prefix("nats://"), text.strip_prefix("natss://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => {
                return Err(format!("{text:?} begins with neither nats:// nor natss://: write nats://HOST:4222/NAME"));
            }
        };
        let (servers, name) = rest.split_once('/').unwrap_or((rest, ""));
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if name.is_empty() || name.len() > NAME_CHARACTERS || !name.bytes().all(is_of_name) {
            return Err(format!(
                "{text:?} has no name of at most {NAME_CHARACTERS} letters, digits, - and _ behind the servers: write \
                 nats://HOST:4222/NAME"
            ));
        }
        let found: Option<Vec<(String, u16)>> = servers.split(',').map(server).collect();
        match found {
            Some(servers) if servers.len() <= ADDRESSES => {
                Ok(NatsAddress { servers, name: name.to_owned(), is_encrypted })
            }
            Some(_) => Err(format!("{text:?} names more than {ADDRESSES} servers")),
            None => Err(format!("{text:?} names a server that is no HOST:PORT")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_servers_and_a_name_and_says_what_is_wrong_otherwise() {
        let address: NatsAddress = "nats://a:1,b.c,[::1]:3/shop".parse().unwrap();
        assert_eq!(address.to_string(), "nats://a:1,b.c:4222,[::1]:3/shop");
        assert!(!address.is_encrypted && !address.is_on_this_machine());
        let here: NatsAddress = "natss://127.0.0.1:1,localhost,[::1]:3/s".parse().unwrap();
        assert!(here.is_encrypted && here.is_on_this_machine());
        for (text, why) in [
            ("http://a/b", "begins with neither"),
            ("nats://a:1", "no name"),
            ("nats://a:1/b.c", "no name"),
            ("nats:///b", "no HOST:PORT"),
            ("nats://a:x/b", "no HOST:PORT"),
            ("nats://a b:1/b", "no HOST:PORT"),
            ("nats://a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a/b", "more than 16"),
        ] {
            assert!(text.parse::<NatsAddress>().unwrap_err().contains(why), "{text}");
        }
    }
}
