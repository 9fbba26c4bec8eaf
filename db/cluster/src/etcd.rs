//! etcd, through the JSON gateway that each of its members has on its client port.

use std::time::Duration;

use data_encoding::BASE64;
use serde_json::{Value, json};

use crate::ClusterAddress;
use crate::access::{EtcdEndpoint, EtcdUser};
use crate::limits::{ANSWER_BYTES, LEASE_S, REQUEST_TIMEOUT};
use crate::metadata::{ListedValues, MetadataChange, MetadataRange, MetadataStore, NoAnswer, StoredValue};

/// What etcd says before it does anything, where a token has run out or rights have changed since it was given.
const OLD_TOKEN: [&str; 2] = ["invalid auth token", "revision of auth store is old"];

/// Characters of an answer that is not understood which are shown.
const ERROR_CHARS: usize = 200;

/// A question that was not answered.
struct RefusedQuestion {
    text: String,
    is_old_token: bool,
}

/// The connection to an etcd.
pub struct EtcdStore {
    agent: ureq::Agent,
    address: ClusterAddress,
    user: Option<EtcdUser>,
    /// What the etcd has given for the user's password. It forgets it some minutes after its last use.
    token: Option<String>,
    prefix: String,
    /// The member that answered last.
    current: usize,
    lease: Option<String>,
}

impl EtcdStore {
    pub(crate) fn new(endpoint: &EtcdEndpoint) -> EtcdStore {
        EtcdStore::with_timeout(endpoint, REQUEST_TIMEOUT)
    }

    fn with_timeout(endpoint: &EtcdEndpoint, timeout: Duration) -> EtcdStore {
        let EtcdEndpoint { address, tls, user } = endpoint.clone();
        let config = ureq::Agent::config_builder()
            .tls_config(tls.unwrap_or_default())
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0)
            .user_agent(concat!("sandstorm/", env!("CARGO_PKG_VERSION")));
        EtcdStore {
            agent: config.build().new_agent(),
            prefix: address.prefix(),
            address,
            user,
            token: None,
            current: 0,
            lease: None,
        }
    }

    fn encode(&self, key: &str) -> String {
        BASE64.encode(format!("{}{key}", self.prefix).as_bytes())
    }

    /// Asks one member after the other, from the one that answered last.
    fn ask(&mut self, path: &str, body: &Value) -> Result<Value, NoAnswer> {
        let members = self.address.endpoints.len();
        let mut why = String::new();
        for _ in 0..members {
            match self.ask_member(path, body) {
                Ok(answer) => return Ok(answer),
                Err(error) => why = format!("etcd at {}: {error}", self.address.endpoints[self.current]),
            }
            self.current = (self.current + 1) % members;
        }
        Err(NoAnswer(why))
    }

    fn ask_member(&mut self, path: &str, body: &Value) -> Result<Value, String> {
        let Some(user) = self.user.clone() else { return self.post(path, body).map_err(|refused| refused.text) };
        if self.token.is_none() {
            self.authenticate(&user)?;
        }
        match self.post(path, body) {
            // Refused before anything was done, so it may be asked again, also a change.
            Err(refused) if refused.is_old_token => {
                self.authenticate(&user)?;
                self.post(path, body).map_err(|refused| refused.text)
            }
            done => done.map_err(|refused| refused.text),
        }
    }

    fn authenticate(&mut self, user: &EtcdUser) -> Result<(), String> {
        self.token = None;
        let asked = json!({ "name": user.name, "password": user.password });
        let answer = self.post("auth/authenticate", &asked);
        let answer = answer.map_err(|refused| format!("the user {:?} is not let in: {}", user.name, refused.text))?;
        let token = answer["token"].as_str().ok_or("no token for the user")?;
        self.token = Some(token.to_owned());
        Ok(())
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value, RefusedQuestion> {
        let scheme = if self.address.is_encrypted { "https" } else { "http" };
        let url = format!("{scheme}://{}/v3/{path}", self.address.endpoints[self.current]);
        let mut request = self.agent.post(&url);
        if let Some(token) = &self.token {
            request = request.header("Authorization", token);
        }
        let failed = |text: String| RefusedQuestion { text, is_old_token: false };
        let unsent = |error: ureq::Error| match error {
            // A server that asks for certificates says so behind its part of the handshake: often unread.
            ureq::Error::Io(error) if self.address.is_encrypted => {
                failed(format!("io: {error} (does it ask for a certificate that it trusts? --etcd-certificate)"))
            }
            error => failed(error.to_string()),
        };
        let mut response = request.send_json(body).map_err(unsent)?;
        let status = response.status();
        let text = response.body_mut().with_config().limit(ANSWER_BYTES).read_to_string();
        let text = text.map_err(|error| failed(format!("{status}: {error}")))?;
        // Not all that it refuses is JSON.
        let not_json = |_| failed(format!("{status}: {}", text.trim().chars().take(ERROR_CHARS).collect::<String>()));
        let answer: Value = serde_json::from_str(&text).map_err(not_json)?;
        match answer.get("error") {
            None if status.is_success() => Ok(answer),
            None => Err(failed(status.to_string())),
            Some(error) => {
                let words = error.as_str().unwrap_or("no text");
                let is_old_token = OLD_TOKEN.iter().any(|known| words.contains(known));
                Err(RefusedQuestion { text: format!("{status}: {words}"), is_old_token })
            }
        }
    }

    /// Says that this server lives: puts a key that vanishes some time after the last such word.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub(crate) fn keep_alive(&mut self, key: &str, value: &str) -> Result<(), NoAnswer> {
        if let Some(lease) = self.lease.take() {
            let answer = self.ask("lease/keepalive", &json!({ "ID": lease }))?;
            // A lease that has run out has no time left.
            if answer["result"]["TTL"].as_str().is_some_and(|left| left != "0") {
                self.lease = Some(lease);
                return Ok(());
            }
        }
        let granted = self.ask("lease/grant", &json!({ "TTL": LEASE_S.to_string() }))?;
        let lease = granted["ID"].as_str().ok_or_else(|| NoAnswer("etcd: a lease without an id".to_owned()))?;
        let put = json!({ "key": self.encode(key), "value": BASE64.encode(value.as_bytes()), "lease": lease });
        self.ask("kv/put", &put)?;
        self.lease = Some(lease.to_owned());
        Ok(())
    }

    /// Says that this server stops.
    pub(crate) fn end_life(&mut self) {
        if let Some(lease) = self.lease.take() {
            // It runs out by itself, too.
            let _ended = self.ask("lease/revoke", &json!({ "ID": lease }));
        }
    }
}

/// A number as the gateway writes it.
fn number(value: &Value) -> Option<u64> {
    value.as_str()?.parse().ok()
}

impl MetadataStore for EtcdStore {
    fn list(&mut self, range: MetadataRange<'_>) -> Result<ListedValues, NoAnswer> {
        let MetadataRange { from, to, since, at, most } = range;
        let mut asked = json!({ "key": self.encode(from), "range_end": self.encode(to), "limit": most.to_string() });
        if since > 0 {
            asked["min_mod_revision"] = since.to_string().into();
        }
        if at > 0 {
            asked["revision"] = at.to_string().into();
        }
        let answer = self.ask("kv/range", &asked)?;
        let text = |value: &Value| String::from_utf8(BASE64.decode(value.as_str()?.as_bytes()).ok()?).ok();
        let read = |one: &Value| {
            let key = text(&one["key"])?.strip_prefix(&self.prefix)?.to_owned();
            let value = if one["value"].is_null() { String::new() } else { text(&one["value"])? };
            Some(StoredValue { key, value, revision: number(&one["mod_revision"])? })
        };
        let found = answer["kvs"].as_array().map(Vec::as_slice).unwrap_or_default();
        let found: Option<Vec<StoredValue>> = found.iter().map(read).collect();
        let not_understood = || NoAnswer("etcd: a list that is not understood".to_owned());
        Ok(ListedValues {
            values: found.ok_or_else(not_understood)?,
            revision: if at > 0 { at } else { number(&answer["header"]["revision"]).ok_or_else(not_understood)? },
            has_more: answer["more"].as_bool().unwrap_or(false),
        })
    }

    fn change(&mut self, change: &MetadataChange) -> Result<Option<u64>, NoAnswer> {
        let compare = |(key, revision): &(String, u64)| json!({ "key": self.encode(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string() });
        let put = |(key, value): &(String, String)| json!({ "request_put": { "key": self.encode(key), "value": BASE64.encode(value.as_bytes()) } });
        let remove = |(from, to): &(String, String)| json!({ "request_delete_range": { "key": self.encode(from), "range_end": self.encode(to) } });
        let asked = json!({
            "compare": change.compared.iter().map(compare).collect::<Vec<_>>(),
            "success": change.removed.iter().map(remove).chain(change.put.iter().map(put)).collect::<Vec<_>>(),
        });
        // Only once: a change that was made and repeated would be told to have failed.
        let endpoint = self.address.endpoints[self.current].clone();
        match self.ask_member("kv/txn", &asked) {
            // What is false is left out.
            Ok(answer) if answer["succeeded"].as_bool() == Some(true) => match number(&answer["header"]["revision"]) {
                Some(revision) => Ok(Some(revision)),
                None => Err(NoAnswer("etcd: a change without a revision".to_owned())),
            },
            Ok(_) => Ok(None),
            Err(error) => {
                self.current = (self.current + 1) % self.address.endpoints.len();
                Err(NoAnswer(format!("etcd at {endpoint}: {error}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// A member that gives one answer to each connection, and tells what it was asked.
    fn member(answers: Vec<&'static str>) -> (String, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serve = move || {
            let mut asked = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let (mut text, mut buffer) = (String::new(), [0; 4096]);
                while !text.ends_with('}') {
                    let read = stream.read(&mut buffer).unwrap();
                    assert!(read > 0, "it is gone before it has asked: {text}");
                    text.push_str(&String::from_utf8_lossy(&buffer[..read]));
                }
                asked.push(text);
                let length = answer.len();
                write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{answer}")
                    .unwrap();
            }
            asked
        };
        (address, std::thread::spawn(serve))
    }

    fn store(endpoints: &[&str]) -> EtcdStore {
        let address: ClusterAddress = format!("etcd://{}/x", endpoints.join(",")).parse().unwrap();
        EtcdStore::with_timeout(&address.into(), Duration::from_secs(10))
    }

    #[test]
    fn a_users_token_is_asked_for_and_asked_for_again_when_it_has_run_out() {
        let made = r#"{"header":{"revision":"8"},"succeeded":true}"#;
        let old = r#"{"error":"etcdserver: invalid auth token","code":16}"#;
        let denied = r#"{"error":"etcdserver: permission denied","code":7}"#;
        let (first, second) = (r#"{"token":"first.1"}"#, r#"{"token":"second.2"}"#);
        let wrong = r#"{"error":"etcdserver: authentication failed, invalid user ID or password","code":3}"#;
        let (address, served) = member(vec![first, made, old, second, made, denied, old, wrong]);
        let mut store = store(&[&address]);
        store.user = Some(EtcdUser { name: "server".to_owned(), password: "secret".to_owned() });
        let change = MetadataChange { put: vec![("a".into(), "b".into())], ..MetadataChange::default() };
        assert_eq!(store.change(&change), Ok(Some(8)));
        assert_eq!(store.change(&change), Ok(Some(8)), "asked again with a new token");
        assert!(store.change(&change).is_err_and(|NoAnswer(why)| why.ends_with("permission denied")));
        let refused = store.change(&change).unwrap_err().0;
        assert!(refused.contains("\"server\" is not let in") && !refused.contains("secret"), "{refused}");
        let asked = served.join().unwrap();
        let token = |at: usize| {
            let line = asked[at].lines().find_map(|line| line.strip_prefix("authorization: ").map(str::to_owned));
            line.unwrap_or_default()
        };
        let tokens: Vec<String> = (0..asked.len()).map(token).collect();
        assert_eq!(tokens, ["", "first.1", "first.1", "", "second.2", "second.2", "second.2", ""]);
    }

    #[test]
    fn values_are_listed_without_the_clusters_prefix() {
        let kvs = r#"{"header":{"revision":"9"},"kvs":[{"key":"L3NhbmRzdG9ybS94L3Nsb3Rz","mod_revision":"7","value":"e30="},
            {"key":"L3NhbmRzdG9ybS94L2E=","mod_revision":"9"}],"count":"2"}"#;
        let none = r#"{"header":{"revision":"9"}}"#;
        let (address, served) = member(vec![kvs, none]);
        let mut store = store(&[&address]);
        let value = |key: &str, value: &str, revision| StoredValue { key: key.into(), value: value.into(), revision };
        let values = vec![value("slots", "{}", 7), value("a", "", 9)];
        let listed = ListedValues { values, revision: 9, has_more: false };
        assert_eq!(store.list(MetadataRange::of("a", "t")), Ok(listed));
        assert_eq!(
            store.list(MetadataRange::of("b", "c")),
            Ok(ListedValues { revision: 9, ..ListedValues::default() })
        );
        let asked = served.join().unwrap();
        let (from, to) = (BASE64.encode(b"/sandstorm/x/a"), BASE64.encode(b"/sandstorm/x/t"));
        assert!(asked[0].starts_with("POST /v3/kv/range ") && asked[0].contains(&from) && asked[0].contains(&to));
    }

    #[test]
    fn another_member_is_asked_if_one_does_not_answer() {
        let (address, served) = member(vec![r#"{"header":{"revision":"3"}}"#]);
        // A port that was free a moment ago: nothing listens there.
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let mut store = store(&[&gone, &address]);
        assert_eq!(store.list(MetadataRange::of("a", "b")).map(|listed| listed.revision), Ok(3));
        served.join().unwrap();
        assert!(
            store.list(MetadataRange::of("a", "b")).is_err_and(|NoAnswer(why)| why.starts_with("etcd at 127.0.0.1:"))
        );
    }

    #[test]
    fn a_change_is_asked_for_once_and_never_of_two_members() {
        let (address, served) = member(vec![
            r#"{"header":{"revision":"8"},"succeeded":true}"#,
            "{}",
            r#"{"error":"etcdserver: no leader"}"#,
        ]);
        let mut store = store(&[&address, &address]);
        let change = MetadataChange {
            compared: vec![("a".into(), 5)],
            put: vec![("a".into(), "b".into())],
            removed: vec![("c/".into(), "c0".into())],
        };
        assert_eq!(store.change(&change), Ok(Some(8)));
        assert_eq!(store.change(&change), Ok(None));
        assert!(store.change(&change).is_err_and(|NoAnswer(why)| why.ends_with("no leader")));
        let asked = served.join().unwrap();
        assert!(asked[0].starts_with("POST /v3/kv/txn ") && asked[0].contains("\"mod_revision\""), "{}", asked[0]);
    }
}
