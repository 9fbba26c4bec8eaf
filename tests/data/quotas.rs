//! Promise: every quota of a tenant has a default, and a status or error that names it when it is reached. If it is
//! used up rather than passed, its account also returns to zero. A tenant that takes all it can leaves room for the
//! others.

use std::sync::Arc;

use crate::common;
use crate::common::{Answer, Wire, await_nothing_charged, data_plane, load, load_with, tenant, tenant_with};
use sandstorm_catalog::{NewTable, QuotaChanges, Quotas};
use sandstorm_extension::BudgetOverride;
use sandstorm_instance::DataPlane;
use sandstorm_net::rpc::{KillCause, OpKind, Operation, RpcStatus, encode_message};

/// Arguments of `ext/bad`.
fn bad(name: &str) -> Vec<u8> {
    [&1u64.to_le_bytes()[..], name.as_bytes()].concat()
}

/// Creates a tenant whose quota `name` is `value`. Its kills have no consequences unless they are the quota under test.
fn limited(plane: &DataPlane, name: &str, value: u64) -> u32 {
    let mut quotas =
        QuotaChanges { slow_after_kills: Some(0), suspend_after_kills: Some(0), ..QuotaChanges::default() };
    assert!(quotas.set(name, value), "there is a quota {name}");
    let (id, _) = tenant_with(plane, name, true, quotas);
    load_with(plane, name, "bad", 1, BudgetOverride::default());
    id
}

fn call(plane: &DataPlane, tenant: u32, extension: &str, args: &[u8]) -> Answer {
    Wire::new(plane, 0, tenant).one(Operation::invoke(extension.as_bytes(), args))
}

fn refused(answer: &Answer, status: RpcStatus, name: &str) {
    assert_eq!(answer.status, status, "{name}: {}", answer.text());
    assert!(answer.text().contains(name), "the text names {name}: {}", answer.text());
}

fn killed(answer: &Answer, cause: KillCause, name: &str) {
    assert_eq!((answer.status, answer.number), (RpcStatus::Killed, cause as u64), "{name}: {}", answer.text());
    assert!(answer.text().contains(name), "the text names {name}: {}", answer.text());
}

fn denied<T>(result: Result<T, sandstorm_catalog::DirectoryError>, name: &str) {
    let text = result.err().expect("at its quota").to_string();
    assert!(text.contains(name), "the error names {name}: {text}");
}

/// A budget that is long enough for the page faults of filling memory.
fn patient(plane: &DataPlane, tenant: &str) {
    let budget = BudgetOverride { slice_us: Some(5_000_000), total_us: Some(5_000_000), ..BudgetOverride::default() };
    plane.directory.set_budget(tenant, "bad", budget).expect("a budget");
}

/// Whether a quota has a largest value. Tests of their own reach it (`spill.rs`).
fn is_bounded(name: &str) -> bool {
    let mut changes = QuotaChanges::default();
    changes.set(name, 1 << 60) && changes.apply(&Quotas::default()).is_err()
}

/// Reaches the quota of that name, and compares the answer with the documentation.
fn reach(plane: &DataPlane, name: &str) {
    match name {
        "invocation_memory_bytes" => {
            let id = limited(plane, name, 1 << 20);
            patient(plane, name);
            killed(&call(plane, id, "bad", &bad("allocation")), KillCause::OutOfMemory, name);
            killed(&call(plane, id, "bad", &bad("reply")), KillCause::OutOfMemory, name);
            await_nothing_charged(plane, id);
        }
        "arena_bytes" => {
            let id = limited(plane, name, 64 << 10);
            patient(plane, name);
            killed(&call(plane, id, "bad", &bad("allocation")), KillCause::OutOfMemory, name);
        }
        "concurrent_invocations" => {
            let id = limited(plane, name, 1);
            // Both begin before one is polled.
            let (ok, args) = (bad("ok"), bad("ok"));
            let answers =
                Wire::new(plane, 0, id).ask(&[Operation::invoke(b"bad", &ok), Operation::invoke(b"bad", &args)]);
            assert_eq!(answers[0].status, RpcStatus::Ok);
            refused(&answers[1], RpcStatus::OverQuota, name);
        }
        "requests_per_s" => {
            let id = limited(plane, name, 1);
            let mut wire = Wire::new(plane, 0, id);
            // From rest the message passes whole; its cost is then paid back for half a minute.
            let many = vec![Operation::new(OpKind::Ping); 30];
            assert!(wire.ask(&many).iter().all(|answer| answer.status == RpcStatus::Ok));
            let answers = wire.ask(&many);
            let last = answers.last().expect("thirty answers");
            refused(
                answers.iter().find(|answer| answer.status != RpcStatus::Ok).unwrap_or(last),
                RpcStatus::OverQuota,
                name,
            );
        }
        "memory_bytes" | "tables" | "extensions" | "pushes_per_hour" => reach_in_directory(plane, name),
        "reply_bytes" => {
            let id = limited(plane, name, 10);
            let answer = call(plane, id, "bad", &bad("reply"));
            assert_eq!((answer.status, answer.number), (RpcStatus::Failed, 5), "{}", answer.text());
        }
        "total_us" => {
            let id = limited(plane, name, 2_000);
            killed(&call(plane, id, "bad", &bad("yields")), KillCause::TotalBudget, name);
        }
        "slow_after_kills" => {
            let id = limited(plane, name, 3);
            refused(&kill_until(plane, id, |answer| answer.status == RpcStatus::OverQuota), RpcStatus::OverQuota, name);
        }
        "suspend_after_kills" => {
            let id = limited(plane, name, 3);
            refused(&kill_until(plane, id, |answer| answer.status == RpcStatus::Suspended), RpcStatus::Suspended, name);
        }
        // Weights are tested in `workers::run_queue::tests`, slices in the tests of preemption, the window in
        // `tenants::conduct`. Grants and waiting pushes are tested with their limits.
        "weight" | "slice_us" | "kill_window_s" | "waiting_pushes" | "grants_given" | "grants_received"
        | "cold_reads_per_s" => {
            let mut changes = QuotaChanges::default();
            assert!(
                changes.set(name, 1 << 33) && changes.apply(&Quotas::default()).is_err() || !changes.set(name, 1 << 33)
            );
        }
        "spill_bytes" | "cold_bytes_per_s" => assert!(is_bounded(name)),
        _ => panic!("a quota {name} without a test that reaches it"),
    }
}

/// Reaches a quota of the directory's objects.
fn reach_in_directory(plane: &DataPlane, name: &str) {
    match name {
        "memory_bytes" => {
            limited(plane, name, 1 << 20);
            denied(
                plane.directory.create_table(name, NewTable { quota_bytes: Some(2 << 20), ..NewTable::named("u") }),
                name,
            );
        }
        "tables" => {
            limited(plane, name, 1);
            denied(plane.directory.create_table(name, NewTable::named("u")), name);
        }
        "extensions" => {
            limited(plane, name, 1);
            let other = common::loaded("other", 1, common::library("get"), BudgetOverride::default());
            denied(plane.directory.put_extension(name, Arc::new(other)), name);
        }
        "pushes_per_hour" => {
            limited(plane, name, 1);
            plane.directory.admit_push(name, "x", 1).expect("the first");
            denied(plane.directory.admit_push(name, "x", 2), name);
        }
        _ => panic!("{name} is no quota of the directory's"),
    }
}

/// Calls code that is killed until an answer is as expected. The control thread checks a few times a second.
fn kill_until(plane: &DataPlane, tenant: u32, expected: impl Fn(&Answer) -> bool) -> Answer {
    let mut wire = Wire::new(plane, 0, tenant);
    for _ in 0..100_000 {
        let answer = wire.one(Operation::invoke(b"bad", &bad("panic")));
        if expected(&answer) {
            return answer;
        }
        assert!(matches!(answer.status, RpcStatus::Killed | RpcStatus::OverQuota), "{}", answer.text());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("as many kills as one likes");
}

#[test]
fn every_quota_is_reached_with_an_answer_that_names_it() {
    let plane = data_plane(1);
    for name in QuotaChanges::NAMES {
        reach(&plane, name);
    }
}

#[test]
fn a_suspended_extension_says_why_and_is_resumed_and_the_neighbour_does_not_notice() {
    let plane = data_plane(1);
    let (hostile, _) = tenant_with(
        &plane,
        "hostile",
        true,
        QuotaChanges { slow_after_kills: Some(2), suspend_after_kills: Some(5), ..QuotaChanges::default() },
    );
    let (neighbour, _) = tenant(&plane, "neighbour", true);
    load(&plane, "hostile", "bad", 1);
    load(&plane, "hostile", "get", 1);
    load(&plane, "neighbour", "bad", 1);
    let told = kill_until(&plane, hostile, |answer| answer.status == RpcStatus::Suspended).text();
    for part in ["since 20", "calls within 60 s were killed", "panic", "suspend_after_kills: 5", "ext resume bad"] {
        assert!(told.contains(part), "{part:?} in {told:?}");
    }
    let view = plane.directory.snapshot().by_name("hostile").expect("there").clone();
    // Workers refuse it as soon as they see the new directory; the notice comes after that.
    let noticed = || view.tenant.usage.policy_events().first().is_some_and(|notice| notice.what == "suspended");
    assert!(common::eventually(noticed), "{:?}", view.tenant.usage.policy_events());
    assert!(view.is_suspended("bad") && !view.is_suspended("get"));
    assert_eq!(call(&plane, neighbour, "bad", &bad("ok")).status, RpcStatus::Ok);
    plane.directory.set_suspended("hostile", "bad", false, false).expect("resumed");
    // It is still slowed down: its kills are of the last minute.
    let mut wire = Wire::new(&plane, 0, hostile);
    let called = || wire.one(Operation::invoke(b"bad", &bad("ok"))).status == RpcStatus::Ok;
    assert!(common::eventually(called), "it is called again");
    assert!(!plane.directory.snapshot().by_name("hostile").expect("there").is_suspended("bad"));
}

#[test]
fn a_tenant_with_all_permits_leaves_some_for_others_and_returns_all() {
    let plane = data_plane(1);
    let quotas = QuotaChanges {
        concurrent_invocations: Some(10_000),
        suspend_after_kills: Some(0),
        slow_after_kills: Some(0),
        total_us: Some(5_000),
        slice_us: Some(1_000),
        ..QuotaChanges::default()
    };
    let (hostile, _) = tenant_with(&plane, "hostile", true, quotas);
    let (neighbour, _) = tenant(&plane, "neighbour", true);
    load(&plane, "hostile", "bad", 1);
    load(&plane, "neighbour", "bad", 1);
    // Calls that yield until their budget is spent, more than there are slots; as many in a message as fit a packet.
    let mut wire = Wire::new(&plane, 0, hostile);
    let args = bad("yields");
    let calls = vec![Operation::invoke(b"bad", &args); 25];
    for _ in 0..72 {
        let header = wire.header(calls.len());
        let mut message = Vec::new();
        encode_message(&header, &calls, &mut message);
        wire.send(header.sequence as u16, &message);
    }
    let refused = || {
        plane.metrics.read().into_iter().find(|r| r.metric.name == "responses").expect("there").values
            [RpcStatus::Overloaded as usize]
    };
    let mut other = Wire::new(&plane, 0, neighbour);
    for _ in 0..1_000 {
        assert_eq!(other.one(Operation::invoke(b"bad", &bad("ok"))).status, RpcStatus::Ok, "the neighbour gets in");
        if refused() > 0 {
            break;
        }
    }
    assert!(refused() > 0, "the places were taken");
    let live =
        plane.directory.snapshot().by_name("hostile").expect("there").tenant.usage.worker(0).invocations_live.get();
    assert!(live <= 1024, "{live} places: more than one tenant may hold");
    assert_eq!(other.one(Operation::invoke(b"bad", &bad("ok"))).status, RpcStatus::Ok, "and gets in still");
    await_nothing_charged(&plane, neighbour);
    await_nothing_charged(&plane, hostile);
}

/// However long a tenant's calls may run: a server that is to stop does not wait for them, and none goes on once its
/// tenant is deleted. Their callers are told.
#[test]
fn a_stopping_server_and_a_deleted_tenant_end_calls_that_may_run_for_an_hour() {
    const HOUR_US: u64 = 3_600_000_000;
    for is_stopping in [false, true] {
        let plane = data_plane(1);
        let (id, _) = tenant(&plane, "long", true);
        load(&plane, "long", "bad", 1);
        let hour = BudgetOverride { total_us: Some(HOUR_US), ..BudgetOverride::default() };
        plane.directory.set_budget("long", "bad", hour).expect("a budget");
        let usage = Arc::clone(&plane.directory.snapshot().tenant(id).expect("the tenant").tenant.usage);
        let callers: Vec<_> = ["yields", "loop"]
            .into_iter()
            .map(|mode| {
                let client = common::client(&plane, id);
                std::thread::spawn(move || client.invoke("bad", &bad(mode)))
            })
            .collect();
        assert!(common::eventually(|| usage.running() as usize == callers.len()), "both run");
        if is_stopping {
            drop(plane);
        } else {
            plane.directory.delete_tenant("long").expect("the tenant");
        }
        for caller in callers {
            let ended = caller.join().expect("no panic");
            match &ended {
                Err(sandstorm_client::Error::Killed { cause: KillCause::Unloaded, text }) => {
                    assert!(text.contains(if is_stopping { "the server stopped" } else { "deleted" }), "{text}");
                }
                // A client asks again, and the session is one of a tenant that is gone.
                Err(sandstorm_client::Error::Stale) if !is_stopping => {}
                other => panic!("{other:?}"),
            }
        }
        assert!(common::eventually(|| usage.running() == 0), "nothing of it runs on");
    }
}
