//! Questions to the other servers about their loads, all at the same time.

use std::thread;
use std::time::Duration;

use crate::limits::{LOAD_ANSWER_BYTES, LOAD_WINDOW, PEER_TIMEOUT};
use crate::move_coordinator::MoveCoordinator;
use crate::peer_link::{PEER_KEY_HEADER, peer_agent, read_answer};
use crate::slot_balance::ServerLoadReport;
use crate::state::ServerState;

/// The path of the question.
pub const LOAD_PATH: &str = "/v1/cluster/load";

/// What a server has told of its load, or why it has not.
pub type ToldLoad = (String, Result<ServerLoadReport, String>);

fn ask(server: &ServerState, key: &str, timeout: Duration) -> Result<ServerLoadReport, String> {
    let agent = peer_agent(server, timeout)?;
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", server.control);
    let url = format!("{}{LOAD_PATH}", server.control.trim_end_matches('/'));
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
                (id, scope.spawn(move || ask(&server, key, LOAD_WINDOW + PEER_TIMEOUT)))
            })
            .collect();
        let joined = asked.into_iter().map(|(id, thread)| {
            let told = thread.join().unwrap_or_else(|_| Err("the question was not asked".to_owned()));
            (id, told)
        });
        joined.collect()
    })
}
