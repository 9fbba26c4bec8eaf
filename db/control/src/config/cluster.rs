//! `cluster`, `cluster_servers`, `cluster_host`, `cluster_copies`, `cluster_streams`, `cluster_failover`, `etcd` and
//! `nats`: the cluster that the server is one of.

use std::net::{IpAddr, SocketAddr};

use sandstorm_cluster::limits::COPIES_MOST;
use sandstorm_cluster::{
    ClusterAddress, CopySettings, EtcdAccess, EtcdAccessError, EtcdEndpoint, FailoverMode, NatsAccess, NatsAddress,
    StreamSettings,
};
use sandstorm_store::limits::CLUSTER_SERVERS;

use super::ConfigError;
use super::error::in_range;

/// The cluster that the server is one of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSettings {
    /// Where its state is.
    pub address: ClusterAddress,
    /// The servers among which its slots are divided when it is founded.
    pub founders: usize,
    /// The address under which others reach this server, where a port is bound to all of the host's.
    pub host: Option<IpAddr>,
    /// Copies of its log on other servers, for tables of durability `copies`, and whether it takes the places of others
    /// by itself.
    pub copies: CopySettings,
    /// What it takes to reach the etcd.
    pub etcd: EtcdAccess,
}

/// The keys, of the file or the command line.
#[derive(Clone, Debug, Default)]
pub struct ClusterOverrides {
    /// See [`ClusterSettings::address`].
    pub cluster: Option<String>,
    /// See [`ClusterSettings::founders`].
    pub servers: Option<usize>,
    /// See [`ClusterSettings::host`].
    pub host: Option<IpAddr>,
    /// See [`ClusterSettings::copies`].
    pub copies: Option<usize>,
    /// See [`ClusterSettings::copies`]: `automatic` or `by-command`.
    pub failover: Option<String>,
    /// See [`ClusterSettings::etcd`].
    pub etcd: EtcdAccess,
    /// See [`CopySettings::streams`].
    pub streams: Option<String>,
    /// See [`CopySettings::streams`].
    pub nats: NatsAccess,
}

/// Each key of the command line, or else of the file.
fn merged(file: EtcdAccess, over: &EtcdAccess) -> EtcdAccess {
    let over = over.clone();
    EtcdAccess {
        ca: over.ca.or(file.ca),
        certificate: over.certificate.or(file.certificate),
        key: over.key.or(file.key),
        user: over.user.or(file.user),
        password_file: over.password_file.or(file.password_file),
    }
}

/// The streams in which copies are, from the keys of the file and the command line.
fn streams(file: &ClusterOverrides, over: &ClusterOverrides) -> Result<Option<StreamSettings>, ConfigError> {
    let refused = |why: String, keys: &[&str]| Err(ConfigError::new(why).at(keys));
    let (in_file, given) = (file.nats.clone(), over.nats.clone());
    let access = NatsAccess {
        ca: given.ca.or(in_file.ca),
        user: given.user.or(in_file.user),
        password_file: given.password_file.or(in_file.password_file),
        monitors: if given.monitors.is_empty() { in_file.monitors } else { given.monitors },
    };
    let Some(text) = over.streams.as_ref().or(file.streams.as_ref()) else {
        return match access == NatsAccess::default() {
            true => Ok(None),
            false => refused("nats goes with cluster_streams: name the streams".to_owned(), &["nats"]),
        };
    };
    let address: NatsAddress = match text.parse() {
        Ok(address) => address,
        Err(why) => return refused(why, &["cluster_streams"]),
    };
    if over.copies.or(file.copies).is_some() {
        let why = "cluster_copies counts copies on other servers, and cluster_streams has the copy in NATS JetStream: \
                   leave one of them out";
        return refused(why.to_owned(), &["cluster_copies", "cluster_streams"]);
    }
    let is_url = |url: &String| url.starts_with("http://") || url.starts_with("https://");
    if access.monitors.is_empty() || !access.monitors.iter().all(is_url) {
        let why = "cluster_streams needs the monitoring ports of all NATS servers, which say whether they sync each \
                   message: nats = { monitors = ['http://HOST:8222', …] }";
        return refused(why.to_owned(), &["nats.monitors"]);
    }
    match access.check(&address) {
        Ok(()) => Ok(Some(StreamSettings { address, access })),
        Err(why) => refused(why, &["nats", "cluster_streams"]),
    }
}

impl From<EtcdAccessError> for ConfigError {
    fn from(error: EtcdAccessError) -> ConfigError {
        ConfigError::new(error.text).at(&error.keys)
    }
}

impl ClusterSettings {
    /// Checks the keys.
    pub(super) fn build(
        file: ClusterOverrides,
        over: &ClusterOverrides,
    ) -> Result<Option<ClusterSettings>, ConfigError> {
        let founders = in_range("cluster_servers", over.servers.or(file.servers).unwrap_or(1), 1, CLUSTER_SERVERS)?;
        let host = over.host.or(file.host);
        let streams = streams(&file, over)?;
        let copies = in_range("cluster_copies", over.copies.or(file.copies).unwrap_or(1), 1, COPIES_MOST)?;
        let failover: FailoverMode = match over.failover.as_ref().or(file.failover.as_ref()) {
            Some(text) => text.parse().map_err(|why: String| {
                ConfigError::new(format!("cluster_failover: {why}")).at(&["cluster_failover"])
            })?,
            None => FailoverMode::default(),
        };
        if let Some(host) = host.filter(IpAddr::is_unspecified) {
            let text = format!("cluster_host {host} is no address that others can reach: name one of this host's");
            return Err(ConfigError::new(text).at(&["cluster_host"]));
        }
        let Some(address) = over.cluster.clone().or(file.cluster) else { return Ok(None) };
        let address: ClusterAddress = address.parse().map_err(|why: String| ConfigError::new(why).at(&["cluster"]))?;
        let etcd = merged(file.etcd, &over.etcd);
        etcd.check(&address)?;
        let copies = CopySettings { copies, failover, streams };
        Ok(Some(ClusterSettings { address, founders, host, copies, etcd }))
    }

    /// The etcd, with the files that it takes to reach it.
    ///
    /// # Errors
    /// One of them cannot be read, or is not what it should be.
    pub fn endpoint(&self) -> Result<EtcdEndpoint, ConfigError> {
        Ok(self.etcd.read(&self.address)?)
    }

    /// Checks them beside the server's others.
    pub(super) fn check(&self, data: SocketAddr, ephemeral: bool) -> Result<(), ConfigError> {
        if ephemeral {
            let text = "a server of a cluster keeps its identity over restarts: leave ephemeral out, or cluster";
            return Err(ConfigError::new(text).at(&["cluster", "ephemeral"]));
        }
        if data.ip().is_unspecified() && self.host.is_none() {
            let text = format!(
                "data address {data} is no address that the cluster's others can reach: name one with --cluster-host"
            );
            return Err(ConfigError::new(text).at(&["cluster_host", "cluster", "data"]));
        }
        Ok(())
    }

    /// An address as the others reach it.
    pub fn reached(&self, bound: SocketAddr) -> SocketAddr {
        match self.host {
            Some(host) if bound.ip().is_unspecified() => SocketAddr::new(host, bound.port()),
            _ => bound,
        }
    }
}

#[cfg(test)]
mod tests {
    use sandstorm_cluster::{CopySettings, FailoverMode};

    use super::super::tests::parse;

    #[test]
    fn a_cluster_needs_an_identity_and_an_address() {
        for (text, why) in [
            ("cluster = 'x'", "begins with etcd://"),
            ("cluster = 'etcd://a:1/x'\nephemeral = true", "keeps its identity"),
            ("cluster = 'etcd://a:1/x'\ndata = '0.0.0.0:7400'\nallow_open = true", "--cluster-host"),
            ("cluster_host = '0.0.0.0'", "no address that others can reach"),
            ("cluster_servers = 65", "64"),
            ("cluster_copies = 5", "4"),
            ("cluster_failover = 'never'", "by-command"),
            ("cluster_streams = 'nats:a'", "nats://HOST:4222/NAME"),
            ("cluster_streams = 'nats://a/x'", "monitoring ports"),
            ("cluster_streams = 'nats://a/x'\nnats = { monitors = ['a:8222'] }", "monitoring ports"),
            ("cluster_streams = 'nats://a/x'\ncluster_copies = 1\nnats = { monitors = ['http://a'] }", "leave one"),
            ("cluster_streams = 'nats://a/x'\nnats = { monitors = ['http://a'], ca = 'a' }", "natss://"),
            ("nats = { user = 'a' }", "goes with cluster_streams"),
            ("cluster = 'etcd://a:1/x'\netcd = { ca = 'ca.pem' }", "etcds://"),
            ("cluster = 'etcds://a:1/x'\netcd = { key = 'key.pem' }", "go together"),
        ] {
            let refused = parse(text).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
        assert_eq!(parse("cluster_servers = 3").unwrap().cluster, None);
        let cluster =
            parse("cluster = 'etcd://a:1/x'\ncluster_servers = 3\ncluster_host = '10.0.0.1'").unwrap().cluster.unwrap();
        assert_eq!((cluster.founders, cluster.address.name.as_str()), (3, "x"));
        assert_eq!(cluster.copies, CopySettings { copies: 1, failover: FailoverMode::Automatic, streams: None });
        let chosen = parse("cluster = 'etcd://a:1/x'\ncluster_failover = 'by-command'").unwrap().cluster.unwrap();
        assert_eq!(chosen.copies.failover, FailoverMode::ByCommand);
        let text = "cluster = 'etcd://a:1/x'\ncluster_streams = 'nats://a/x'\nnats = { monitors = ['http://a'] }";
        let streams = parse(text).unwrap().cluster.unwrap().copies.streams.unwrap();
        assert_eq!((streams.address.to_string(), streams.access.monitors.len()), ("nats://a:4222/x".to_owned(), 1));
        assert_eq!(cluster.reached("0.0.0.0:5".parse().unwrap()), "10.0.0.1:5".parse().unwrap());
        assert_eq!(cluster.reached("127.0.0.1:5".parse().unwrap()), "127.0.0.1:5".parse().unwrap());
    }
}
