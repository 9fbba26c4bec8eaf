//! How calls of extensions end, as their callers read it.

use sandstorm_net::rpc::{CallCost, RpcStatus};

use super::*;
use crate::InvocationResult;

#[test]
fn an_extension_is_called_and_its_end_is_told() {
    let world = World::new();
    let mut client = world.client(Some("shop"));
    for (status, number, value, expected) in [
        (RpcStatus::Ok, 1, "sum", "$3\r\nsum\r\n"),
        (RpcStatus::Failed, 4, "no such record", "-FAILED (out_of_memory) no such record\r\n"),
        (RpcStatus::Killed, 2, "it exceeded its CPU budget", "-KILLED (total_budget) it exceeded its CPU budget\r\n"),
        (RpcStatus::Killed, 77, "of a later version", "-KILLED (unknown) of a later version\r\n"),
        (RpcStatus::TooLarge, 0, "the arguments do not fit", "-TOOLARGE the arguments do not fit\r\n"),
        (RpcStatus::OverQuota, 0, "concurrent_invocations", "-OVERQUOTA concurrent_invocations\r\n"),
    ] {
        let mut out = Vec::new();
        let ended = InvocationResult { status, number, value: value.as_bytes(), cost: None };
        client.session.answered(&ended, &mut out);
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
    // What it cost stands before it, whatever it is.
    let cost = Some(CallCost { cpu_ns: 7, turns: 2, read_bytes: u64::MAX, ..CallCost::default() });
    let mut out = Vec::new();
    client.session.answered(&InvocationResult { status: RpcStatus::Killed, number: 3, value: b"why", cost }, &mut out);
    let fields = [
        "cpu_ns",
        "7",
        "wall_ns",
        "0",
        "first_turn_ns",
        "0",
        "turns",
        "2",
        "switches",
        "0",
        "reads",
        "0",
        "read_bytes",
        "9223372036854775807",
        "commit_tries",
        "0",
    ];
    let field = |[name, value]: &[&str; 2]| format!("${}\r\n{name}\r\n:{value}\r\n", name.len());
    let fields: String = fields.as_chunks().0.iter().map(field).collect();
    assert_eq!(String::from_utf8_lossy(&out), format!("*2\r\n*16\r\n{fields}-KILLED (panic) why\r\n"));
}
