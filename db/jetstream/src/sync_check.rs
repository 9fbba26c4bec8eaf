//! Whether the servers that have a stream sync each message to their disks. The protocol does not tell it; a server's
//! monitoring port does (`/varz`).

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::connection::version_of;
use crate::limits::{CONNECT_TIMEOUT, OLDEST_VERSION, VARZ_BYTES};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct JetStreamConfigTold {
    sync_always: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct JetStreamTold {
    config: Option<JetStreamConfigTold>,
}

/// What a monitoring port tells.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct VarzTold {
    server_name: String,
    version: String,
    jetstream: JetStreamTold,
}

/// What of a server's settings loses messages; `None`: nothing.
fn fault_of(told: &VarzTold) -> Option<String> {
    let [major, minor] = OLDEST_VERSION;
    if version_of(&told.version).is_none_or(|version| version < OLDEST_VERSION) {
        return Some(format!("has version {:?}: {major}.{minor} or newer is needed", told.version));
    }
    match &told.jetstream.config {
        None => Some("has no JetStream".to_owned()),
        Some(config) if !config.sync_always => {
            Some("does not sync each message: set `sync_interval: always` in its `jetstream` section".to_owned())
        }
        Some(_) => None,
    }
}

/// What the monitoring ports tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MonitorsReport {
    /// The names of the servers that sync each message.
    confirmed: BTreeSet<String>,
    /// The ports that did not answer, each with the reason.
    silent: Vec<String>,
}

impl MonitorsReport {
    /// Asks the monitoring ports (`http://HOST:8222`) whether their servers sync each message.
    ///
    /// # Errors
    /// One line: a server does not.
    pub fn ask(monitors: &[String]) -> Result<MonitorsReport, String> {
        let config = ureq::Agent::config_builder().timeout_global(Some(CONNECT_TIMEOUT)).proxy(None).max_redirects(0);
        let agent = config.build().new_agent();
        let mut report = MonitorsReport::default();
        for monitor in monitors {
            let url = format!("{}/varz", monitor.trim_end_matches('/'));
            let body = agent
                .get(&url)
                .call()
                .and_then(|mut answer| answer.body_mut().with_config().limit(VARZ_BYTES).read_to_vec());
            let told: Result<VarzTold, String> = body
                .map_err(|error| error.to_string())
                .and_then(|body| serde_json::from_slice(&body).map_err(|error| error.to_string()));
            match told {
                Ok(told) => match fault_of(&told) {
                    Some(fault) => {
                        return Err(format!("the NATS server {} ({url}) {fault}", told.server_name));
                    }
                    None => drop(report.confirmed.insert(told.server_name)),
                },
                Err(why) => report.silent.push(format!("{url}: {why}")),
            }
        }
        Ok(report)
    }

    /// Whether so many servers sync each message, and no port is silent: a stream that is made now is on servers that
    /// do.
    ///
    /// # Errors
    /// One line: they are fewer, or one is away.
    pub fn check_all(&self, servers: u32) -> Result<(), String> {
        match self.silent.is_empty() && self.confirmed.len() >= servers as usize {
            true => Ok(()),
            false => Err(format!(
                "a stream is made only while the monitoring ports of all NATS servers answer, {servers} at least: {} do{}",
                self.confirmed.len(),
                self.told_silent()
            )),
        }
    }

    /// Whether each of the named servers, which have a new stream, syncs each message. No name: one server alone,
    /// which one of the ports is of.
    ///
    /// # Errors
    /// One line: no port tells of one of them.
    pub fn check_new(&self, peers: &[String]) -> Result<(), String> {
        let missing = self.missing(peers);
        match missing.is_empty() && !self.confirmed.is_empty() {
            true => Ok(()),
            false => Err(self.refused(&missing)),
        }
    }

    /// The same for a stream that is in use, all of whose servers have said so once: some of them, fewer than half, may
    /// be away now, with their monitoring ports.
    ///
    /// # Errors
    /// One line: no port tells of one of them.
    pub fn check_known(&self, peers: &[String]) -> Result<(), String> {
        let missing = self.missing(peers);
        let is_borne = missing.len() <= self.silent.len() && 2 * missing.len() < peers.len();
        match missing.is_empty() && !self.confirmed.is_empty() || is_borne {
            true => Ok(()),
            false => Err(self.refused(&missing)),
        }
    }

    fn missing<'p>(&self, peers: &'p [String]) -> Vec<&'p str> {
        peers.iter().map(String::as_str).filter(|name| !self.confirmed.contains(*name)).collect()
    }

    fn told_silent(&self) -> String {
        if self.silent.is_empty() { String::new() } else { format!(" ({})", self.silent.join("; ")) }
    }

    fn refused(&self, missing: &[&str]) -> String {
        let of = match missing.is_empty() {
            true => "the NATS server".to_owned(),
            false => format!("the NATS servers {}", missing.join(", ")),
        };
        format!(
            "no monitoring port says that {of} sync each message{}: name the ports of all that have the stream",
            self.told_silent()
        )
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// A monitoring port that answers once.
    fn monitor(body: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 4096];
            let _read = stream.read(&mut asked).unwrap();
            let length = body.len();
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}").unwrap();
        });
        url
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    const WELL: &str = r#"{"server_name":"a","version":"2.15.3","jetstream":{"config":{"sync_always":true}}}"#;
    const ALSO: &str = r#"{"server_name":"b","version":"2.16.0","jetstream":{"config":{"sync_always":true}}}"#;

    #[test]
    fn only_servers_that_say_so_sync_each_message() {
        let check = |body, peers: &[&str]| MonitorsReport::ask(&[monitor(body)])?.check_new(&names(peers));
        assert_eq!(check(WELL, &["a"]), Ok(()));
        assert_eq!(check(WELL, &[]), Ok(()));
        for (body, peers, why) in [
            (WELL, vec!["a", "b"], "servers b sync"),
            (r#"{"server_name":"a","version":"2.14.9","jetstream":{"config":{"sync_always":true}}}"#, vec![], "2.15"),
            (r#"{"server_name":"a","version":"2.15.3","jetstream":{}}"#, vec!["a"], "no JetStream"),
            (r#"{"server_name":"a","version":"2.15.3","jetstream":{"config":{}}}"#, vec!["a"], "sync_interval: always"),
            ("no JSON", vec![], "no monitoring port"),
        ] {
            let refused = check(body, &peers).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
        let refused = MonitorsReport::ask(&[]).unwrap().check_new(&names(&["a"])).unwrap_err();
        assert!(refused.contains("no monitoring port"), "{refused}");
    }

    #[test]
    fn a_server_that_is_away_is_borne_by_a_stream_that_there_is_and_by_no_new_one() {
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let gone = format!("http://{gone}");
        let all = names(&["a", "b", "c"]);
        let one_away = MonitorsReport::ask(&[monitor(WELL), monitor(ALSO), gone.clone()]).unwrap();
        assert_eq!(one_away.check_known(&all), Ok(()));
        assert!(one_away.check_new(&all).unwrap_err().contains("servers c sync"));
        let refused = one_away.check_all(2).unwrap_err();
        assert!(refused.contains("2 do") && refused.contains(&gone), "{refused}");
        // Two of three away, and one of which no port was named.
        let two_away = MonitorsReport::ask(&[monitor(WELL), gone.clone(), gone]).unwrap();
        assert!(two_away.check_known(&all).unwrap_err().contains("servers b, c sync"));
        let unnamed = MonitorsReport::ask(&[monitor(WELL), monitor(ALSO)]).unwrap();
        assert!(unnamed.check_known(&all).unwrap_err().contains("servers c sync"));
        assert_eq!((unnamed.check_all(2), unnamed.check_all(3).is_err()), (Ok(()), true));
    }
}
