//! Promise: a caller that asks is told what its call cost, however the call ended; one that does not ask gets an answer
//! without a byte more.

use crate::common::{PATIENT, Wire, client, data_plane, get_args, load, tenant};
use sandstorm_client::{CallCost, Error, MeasuredCall};
use sandstorm_net::rpc::{OP_FLAG_COST, Operation, RpcStatus};

#[test]
fn only_who_asks_is_told_what_a_call_cost() {
    let plane = data_plane(1);
    let (id, _) = tenant(&plane, "alice", true);
    load(&plane, "alice", "get", 1);
    let mut wire = Wire::new(&plane, 0, id);
    assert_eq!(wire.one(Operation::put(1, b"a", b"four")).status, RpcStatus::Ok);
    let args = get_args(b"a");
    let invoke = Operation::invoke(b"get", &args);
    let asked = Operation { flags: OP_FLAG_COST, ..invoke };

    let plain = wire.one(invoke);
    assert_eq!((plain.flags, plain.key.len(), plain.text()), (0, 0, "four".to_owned()));
    // Beside others of its message, too.
    for told in [wire.one(asked), wire.ask(&[invoke, asked, invoke]).remove(1)] {
        assert_eq!((told.flags, told.text()), (OP_FLAG_COST, "four".to_owned()));
        let cost = CallCost::decode(&told.key).expect("a cost");
        assert_eq!((cost.reads, cost.read_bytes, cost.commit_tries), (1, 4, 0), "{cost:?}");
        assert!(cost.turns >= 1 && cost.cpu_ns > 0 && cost.cpu_ns <= cost.wall_ns, "{cost:?}");
        assert!(cost.first_turn_ns <= cost.wall_ns, "{cost:?}");
    }
    // What did not run cost nothing that could be told, and other operations know no such flag.
    let unknown = wire.one(Operation { flags: OP_FLAG_COST, ..Operation::invoke(b"nothing", b"") });
    assert_eq!((unknown.status, unknown.flags, unknown.key.len()), (RpcStatus::UnknownExtension, 0, 0));
    let got = wire.one(Operation { flags: OP_FLAG_COST, ..Operation::get(1, b"a") });
    assert_eq!((got.status, got.flags, got.key.len()), (RpcStatus::Ok, 0, 0));
}

#[test]
fn a_call_that_failed_or_was_killed_cost_something_too() {
    let plane = data_plane(1);
    let (id, _) = tenant(&plane, "alice", true);
    for extension in ["bad", "transfer"] {
        load(&plane, "alice", extension, 1);
    }
    let client = client(&plane, id).with_deadline(PATIENT);
    let MeasuredCall { result, cost } =
        client.invoke_measured("bad", 0, &[&1u64.to_le_bytes()[..], b"loop"].concat()).expect("an answer");
    let cost = cost.expect("a cost");
    assert!(matches!(result, Err(Error::Killed { .. })), "{result:?}");
    assert!(cost.cpu_ns >= 5_000_000 && cost.switches > 0 && cost.turns > cost.switches, "{cost:?}");

    let transfer =
        |amount: u64| [&1u64.to_le_bytes()[..], &amount.to_le_bytes(), &3u16.to_le_bytes(), b"annbob"].concat();
    client.put(1, b"ann", &10u64.to_le_bytes(), &Default::default()).expect("a write");
    let failed = client.invoke_measured("transfer", 0, &transfer(11)).expect("an answer");
    assert!(matches!(failed.result, Err(Error::Failed { .. })), "{failed:?}");
    assert_eq!(failed.cost.map(|cost| cost.commit_tries), Some(0), "it came to no commit");
    let moved = client.invoke_measured("transfer", 0, &transfer(4)).expect("an answer");
    assert_eq!(moved.result.as_deref(), Ok(&[6u64.to_le_bytes(), 4u64.to_le_bytes()].concat()[..]));
    assert_eq!(moved.cost.map(|cost| cost.commit_tries), Some(1));
}
