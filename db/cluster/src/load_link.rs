//! Questions to the other servers about their loads, all at the same time.

use std::thread;

use crate::limits::{LOAD_ANSWER_BYTES, LOAD_WINDOW, PEER_TIMEOUT};
use crate::move_coordinator::MoveCoordinator;
use crate::peer_link::{PEER_KEY_HEADER, peer_agent, read_answer};
use crate::slot_balance::ServerLoadReport;
use crate::state::ServerState;

/// The path of the question.
pub const LOAD_PATH: &str = "/v1/cluster/load";

/// What a server has told of its load, or why it has not.
pub type ToldLoad = (String, Result<ServerLoadReport, String>);

/// Asks a server for its load, or for that of one tenant's tables.
fn ask(server: &ServerState, key: &str, tenant: Option<u32>) -> Result<ServerLoadReport, String> {
    let agent = peer_agent(server, LOAD_WINDOW + PEER_TIMEOUT)?;
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", server.control);
    let query = tenant.map(|id| format!("?tenant={id}")).unwrap_or_default();
    let url = format!("{}{LOAD_PATH}{query}", server.control.trim_end_matches('/'));
    let sent = agent.get(&url).header(PEER_KEY_HEADER, key).call();
    let body = read_answer(sent, LOAD_ANSWER_BYTES).map_err(|refusal| failed(&refusal))?;
    serde_json::from_slice(&body).map_err(|error| failed(&error))
}

/// Asks all other servers that live for their loads. It takes [`LOAD_WINDOW`] and a request.
pub fn loads_of_others(coordinator: &MoveCoordinator) -> Vec<ToldLoad> {
    let (others, key) = coordinator.live_others();
    thread::scope(|scope| {
        let asked: Vec<_> = others
            .into_iter()
            .map(|(id, server)| {
                let key = &key;
                (id, scope.spawn(move || ask(&server, key, None)))
            })
            .collect();
        let joined = asked.into_iter().map(|(id, thread)| {
            let told = thread.join().unwrap_or_else(|_| Err("the question was not asked".to_owned()));
            (id, told)
        });
        joined.collect()
    })
}

/// Refuses the report of a server that has looked at all tenants where one was meant.
fn check_tenant(report: ServerLoadReport, tenant: Option<u32>) -> Result<ServerLoadReport, String> {
    match report.tenant == tenant {
        true => Ok(report),
        false => {
            Err("its version does not know the load of one tenant: leave the tenant out, or upgrade it".to_owned())
        }
    }
}

/// Asks another server that lives for its load, or for that of one tenant's tables. It takes [`LOAD_WINDOW`] and a
/// request.
///
/// # Errors
/// One line: it is silent, or does not tell.
pub fn load_of(coordinator: &MoveCoordinator, server: &str, tenant: Option<u32>) -> Result<ServerLoadReport, String> {
    let (others, key) = coordinator.live_others();
    match others.iter().find(|(id, _)| id == server) {
        Some((_, asked)) => {
            let told = ask(asked, &key, tenant).and_then(|report| check_tenant(report, tenant));
            told.map_err(|why| format!("server {server} does not tell its load: {why}"))
        }
        None => Err(format!("server {server} is silent, or of another cluster: `sandstorm cluster status` shows them")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_looks_at_all_tenants_where_one_is_meant_is_refused() {
        let earlier = r#"{"workers":1,"busy_workers":0.5,"memory_limit_bytes":1,"slots":[]}"#;
        let report: ServerLoadReport = serde_json::from_str(earlier).unwrap();
        assert!(check_tenant(report.clone(), None).is_ok());
        assert!(check_tenant(report.clone(), Some(7)).unwrap_err().contains("upgrade"));
        let report = ServerLoadReport { tenant: Some(7), ..report };
        let sent = serde_json::to_string(&report).unwrap();
        assert_eq!(check_tenant(serde_json::from_str(&sent).unwrap(), Some(7)), Ok(report));
    }
}
