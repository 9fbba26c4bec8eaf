//! The address of a cluster: `etcd://HOST:PORT[,HOST:PORT]/NAME`, or `etcds://` over TLS.

use std::str::FromStr;

use crate::limits::ENDPOINTS;

/// Longest name of a cluster in bytes.
const NAME_BYTES: usize = 64;
const PLAIN: &str = "etcd://";
/// Over TLS.
const ENCRYPTED: &str = "etcds://";

/// The address of a cluster: the etcd that has its state, and its name there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterAddress {
    /// The members of the etcd, each `HOST:PORT`.
    pub endpoints: Vec<String>,
    /// Whether they are asked over TLS.
    pub is_encrypted: bool,
    /// The cluster's name.
    pub name: String,
}

impl ClusterAddress {
    /// The beginning of all of the cluster's keys in etcd.
    pub fn prefix(&self) -> String {
        format!("/sandstorm/{}/", self.name)
    }

    /// Whether no member of the etcd is on another machine.
    pub(crate) fn is_on_this_machine(&self) -> bool {
        let host = |endpoint: &str| endpoint.rsplit_once(':').map_or(String::new(), |(host, _)| host.to_owned());
        let is_loopback = |host: String| {
            let address = host.trim_start_matches('[').trim_end_matches(']');
            address == "localhost" || address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
        };
        self.endpoints.iter().all(|endpoint| is_loopback(host(endpoint)))
    }

    fn scheme(&self) -> &'static str {
        if self.is_encrypted { ENCRYPTED } else { PLAIN }
    }
}

impl std::fmt::Display for ClusterAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}/{}", self.scheme(), self.endpoints.join(","), self.name)
    }
}

impl FromStr for ClusterAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<ClusterAddress, String> {
        let refused = |why: &str| format!("{text:?} is no address of a cluster: {why}; write etcd://HOST:2379/NAME");
        let encrypted = text.strip_prefix(ENCRYPTED);
        let rest = encrypted.or_else(|| text.strip_prefix(PLAIN));
        let rest = rest.ok_or_else(|| refused("it begins with etcd:// or etcds://"))?;
        let (hosts, name) = rest.split_once('/').ok_or_else(|| refused("the cluster's name is missing"))?;
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
        if name.is_empty() || name.len() > NAME_BYTES || !name.chars().all(is_plain) {
            return Err(refused("its name has 1 to 64 letters, digits, '-', '_' and '.'"));
        }
        let endpoints: Vec<String> = hosts.split(',').map(str::to_owned).collect();
        if endpoints.len() > ENDPOINTS {
            return Err(refused("it names more than 7 members of the etcd"));
        }
        let has_port = |endpoint: &String| match endpoint.rsplit_once(':') {
            Some((host, port)) => {
                !host.is_empty() && !host.contains(['@', ' ']) && port.parse::<u16>().is_ok_and(|port| port != 0)
            }
            None => false,
        };
        if !endpoints.iter().all(has_port) {
            return Err(refused("each member of the etcd is HOST:PORT"));
        }
        Ok(ClusterAddress { endpoints, is_encrypted: encrypted.is_some(), name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_members_and_a_name() {
        for good in ["etcd://127.0.0.1:2379/shop", "etcds://a:2379/shop", "etcd://a:2379,b:2379,[::1]:2380/eu-1.shop_2"]
        {
            assert_eq!(good.parse::<ClusterAddress>().map(|address| address.to_string()), Ok(good.to_owned()));
        }
        assert_eq!(
            "etcd://a:1/x".parse::<ClusterAddress>().map(|address| address.prefix()),
            Ok("/sandstorm/x/".into())
        );
    }

    #[test]
    fn a_bad_address_is_refused_with_the_reason() {
        for (bad, why) in [
            ("http://a:1/x", "begins with etcd://"),
            ("etcd://a:1", "name is missing"),
            ("etcd://a:1/", "1 to 64 letters"),
            ("etcd://a:1/x/y", "1 to 64 letters"),
            ("etcd://a/x", "HOST:PORT"),
            ("etcd://a:0/x", "HOST:PORT"),
            ("etcd://a:70000/x", "HOST:PORT"),
            ("etcd://:1/x", "HOST:PORT"),
            ("etcd://user@a:1/x", "HOST:PORT"),
            ("etcd://a:1,/x", "HOST:PORT"),
            ("etcd://a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1/x", "more than 7"),
        ] {
            let refused = bad.parse::<ClusterAddress>().unwrap_err();
            assert!(refused.contains(why) && refused.contains("etcd://HOST:2379/NAME"), "{refused}");
        }
    }
}
