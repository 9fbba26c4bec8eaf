//! Checks that docs/clients.md says of each client what its source does, and that clients have the same defaults.

use std::fs;
use std::time::Duration;

use sandstorm_client::limits::{
    CLUSTER_HOPS, CLUSTER_PAUSE, CLUSTER_SERVERS, REQUEST_DEADLINE, TRANSACTION_LONGEST_PAUSE, TRANSACTION_PAUSE,
    TRANSACTION_TRIES,
};
use sandstorm_net::limits::{FIRST_RTO_US, MAX_RTO_US};
use sandstorm_net::rpc::MAX_VALUE_LEN;

use super::root;

/// The number that a source gives a name, such as `DEFAULT_RETRIES = 2;`. Times are in milliseconds.
fn constant(path: &str, name: &str) -> u64 {
    let text = fs::read_to_string(root().join(path)).expect(path);
    let mut found = text.lines().filter_map(|line| {
        let (before, value) = line.split_once(" = ")?;
        let last =
            before.split([' ', ':', '\t']).rfind(|word| !word.is_empty() && *word != "float" && *word != "u64")?;
        (last == name).then(|| value.trim_end_matches([';', ',']).to_owned())
    });
    let value = found.next().unwrap_or_else(|| panic!("{path} has no {name}"));
    number(&value).unwrap_or_else(|| panic!("{path}: {name} is {value}"))
}

/// Such as `2_000`, `4 << 20`, `50 * time.Millisecond`, and Python's seconds, `2.0`.
fn number(text: &str) -> Option<u64> {
    let plain = |text: &str| text.replace('_', "").parse::<u64>().ok();
    if let Some((value, shift)) = text.split_once(" << ") {
        return Some(plain(value)? << plain(shift)?);
    }
    if let Some((value, unit)) = text.split_once(" * time.") {
        return Some(plain(value)? * if unit == "Second" { 1000 } else { 1 });
    }
    match text.strip_suffix(".0") {
        Some(seconds) => Some(plain(seconds)? * 1000),
        None => plain(text),
    }
}

/// A number that the clients in TypeScript and Go have in common.
fn of_both(typescript: (&str, &str), go: (&str, &str)) -> u64 {
    let place = |file: &str| format!("schema/src/generate/support/{file}");
    let (one, other) = (constant(&place(typescript.0), typescript.1), constant(&place(go.0), go.1));
    assert_eq!(one, other, "{typescript:?} and {go:?}");
    one
}

fn seconds(ms: u64) -> String {
    if ms.is_multiple_of(1000) { format!("{} s", ms / 1000) } else { format!("{ms} ms") }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).expect("no such long time")
}

#[test]
fn the_page_of_clients_says_what_their_sources_do() {
    let timeout = of_both(("transport.ts", "DEFAULT_TIMEOUT_MS"), ("transport.go", "defaultTimeout"));
    assert_eq!(timeout, ms(REQUEST_DEADLINE), "the generated clients wait as long as the Rust client");
    for file in ["client.py", "aio.py"] {
        assert_eq!(constant(&format!("clients/python/src/sandstorm/{file}"), "timeout"), timeout, "{file}");
    }
    let retries = of_both(("http_transport.ts", "DEFAULT_RETRIES"), ("http_transport.go", "defaultRetries"));
    let pause = of_both(("http_transport.ts", "RETRY_PAUSE_MS"), ("http_transport.go", "retryPause"));
    let largest = of_both(("http_transport.ts", "HTTP_ANSWER_BYTES"), ("http_transport.go", "httpAnswerBytes"));
    let largest_resp = of_both(("resp_reader.ts", "ANSWER_BYTES"), ("resp_reader.go", "respAnswerBytes"));
    let connections = of_both(("transport.ts", "DEFAULT_CONNECTIONS"), ("transport.go", "defaultConnections"));
    let hops = of_both(("resp_transport.ts", "CLUSTER_HOPS"), ("resp_transport.go", "clusterHops"));
    let cluster_pause = of_both(("resp_transport.ts", "CLUSTER_PAUSE_MS"), ("resp_transport.go", "clusterPause"));
    let servers = of_both(("resp_transport.ts", "CLUSTER_SERVERS"), ("resp_transport.go", "clusterServers"));
    assert_eq!((hops, cluster_pause), (u64::from(CLUSTER_HOPS), ms(CLUSTER_PAUSE)));
    let servers_http = of_both(("http_transport.ts", "HTTP_SERVERS"), ("http_transport.go", "httpServers"));
    assert_eq!((servers, servers_http), (CLUSTER_SERVERS as u64, CLUSTER_SERVERS as u64));
    let plain = constant("db/control/src/limits.rs", "HTTP_CALL_TIMEOUT_MS");
    let [first, last] = [FIRST_RTO_US, MAX_RTO_US].map(|us| seconds(us / 1000));
    let (value, mib) = (MAX_VALUE_LEN >> 20, |bytes: u64| format!("{} MiB", bytes >> 20));
    let by_caller = "by the caller";
    let same = |text: &str| format!("{text} | {text} | {text} | {by_caller}");
    let timeout = seconds(timeout);
    let rows = [
        format!("time of a request, connecting included | {timeout} | {timeout} | {timeout} | {}", seconds(plain)),
        format!("times that it is sent again | as often as its time allows | {retries} | 0 | {by_caller}"),
        format!(
            "pause before that | {first}, then twice as long, {last} at most | {}, then twice as long | - | {by_caller}",
            seconds(pause)
        ),
        format!("largest reply | {value} MiB | {} | {} | {value} MiB", mib(largest), mib(largest_resp)),
        format!(
            "connections at a time | one socket for each server | those of `fetch`, or of `Options.HTTP` | {connections} for each server | {by_caller}"
        ),
        format!("servers of a cluster that are asked, before the first one again | {}", same(&hops.to_string())),
        format!("pause while a slot changes its server | {}", same(&seconds(cluster_pause))),
        format!("servers of a cluster that are known | {CLUSTER_SERVERS} | {servers_http} | {servers} | {by_caller}"),
        format!("runs of a transaction that meets others | {TRANSACTION_TRIES} | - | - | -"),
    ];
    let page = fs::read_to_string(root().join("docs/clients.md")).expect("the page");
    let missing: Vec<&String> = rows.iter().filter(|row| !page.contains(&format!("| {row} |\n"))).collect();
    assert!(missing.is_empty(), "docs/clients.md lacks {missing:#?}");
}

#[test]
fn a_transaction_of_the_python_client_begins_anew_as_often_as_one_of_the_rust_client() {
    let state = "clients/python/src/sandstorm/transaction_state.py";
    let text = fs::read_to_string(root().join(state)).expect("the file");
    let (pause, longest) = (TRANSACTION_PAUSE.as_secs_f64(), TRANSACTION_LONGEST_PAUSE.as_secs_f64());
    let pauses = format!("PAUSES = [min({pause} * 2**tries, {longest}) for tries in range({})]", TRANSACTION_TRIES - 1);
    assert!(text.contains(&pauses), "{state} has no {pauses}");
}
