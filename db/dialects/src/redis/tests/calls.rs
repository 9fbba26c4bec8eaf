//! How calls of extensions end, as their callers read it.

use sandstorm_net::rpc::RpcStatus;

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
        client.session.answered(&InvocationResult { status, number, value: value.as_bytes() }, &mut out);
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}
