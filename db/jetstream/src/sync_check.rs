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

/// Asks the monitoring ports (`http://HOST:8222`) whether each of the named servers syncs each message. No name: one
/// server alone, which one of the ports is of.
///
/// # Errors
/// One line: a server does not, or no port tells of it.
pub fn check_sync(monitors: &[String], peers: &[String]) -> Result<(), String> {
    let config = ureq::Agent::config_builder().timeout_global(Some(CONNECT_TIMEOUT)).proxy(None).max_redirects(0);
    let agent = config.build().new_agent();
    let (mut confirmed, mut silent) = (BTreeSet::new(), Vec::new());
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
                None => drop(confirmed.insert(told.server_name)),
            },
            Err(why) => silent.push(format!("{url}: {why}")),
        }
    }
    let missing: Vec<&str> = peers.iter().map(String::as_str).filter(|name| !confirmed.contains(*name)).collect();
    if missing.is_empty() && !confirmed.is_empty() {
        return Ok(());
    }
    let of = if missing.is_empty() {
        "the NATS server".to_owned()
    } else {
        format!("the NATS servers {}", missing.join(", "))
    };
    let silent = if silent.is_empty() { String::new() } else { format!(" ({})", silent.join("; ")) };
    Err(format!(
        "no monitoring port says that {of} sync each message{silent}: name the ports of all that have the stream"
    ))
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

    #[test]
    fn only_servers_that_say_so_sync_each_message() {
        let well = r#"{"server_name":"a","version":"2.15.3","jetstream":{"config":{"sync_always":true}}}"#;
        let peers = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(check_sync(&[monitor(well)], &peers(&["a"])), Ok(()));
        assert_eq!(check_sync(&[monitor(well)], &[]), Ok(()));
        for (body, names, why) in [
            (well, vec!["a", "b"], "servers b sync"),
            (r#"{"server_name":"a","version":"2.14.9","jetstream":{"config":{"sync_always":true}}}"#, vec![], "2.15"),
            (r#"{"server_name":"a","version":"2.15.3","jetstream":{}}"#, vec!["a"], "no JetStream"),
            (r#"{"server_name":"a","version":"2.15.3","jetstream":{"config":{}}}"#, vec!["a"], "sync_interval: always"),
            ("no JSON", vec![], "no monitoring port"),
        ] {
            let refused = check_sync(&[monitor(body)], &peers(&names)).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
        assert!(check_sync(&[], &peers(&["a"])).unwrap_err().contains("no monitoring port"));
    }
}
