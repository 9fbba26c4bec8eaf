//! Which tenant pays for reads of the disk, and which tenant waits for whose quota.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cold::{ColdTable, cold_table};
use crate::WriteOptions;
use crate::spill::{ColdMiss, ColdTicket, SpillQuota};

/// Records, most of them cold.
const RECORDS: u32 = 2_000;
/// One read, and then none for ever.
const ONE_READ: SpillQuota = SpillQuota { reads_per_second: 0, bytes_per_second: u64::MAX };

fn filled() -> ColdTable {
    let mut cold = cold_table(256 << 10, 64 << 20);
    for number in 0..RECORDS {
        cold.put(&number.to_le_bytes(), &[1; 500], &WriteOptions::default(), 1).expect("room");
        cold.pool.drive(&mut cold.participant);
    }
    cold
}

/// What a get of a record meets, if that is cold.
fn get(cold: &ColdTable, number: u32) -> Option<Vec<ColdMiss>> {
    let key = number.to_le_bytes();
    let found = cold.table.get(&cold.participant.guard(), cold.table.hash(&key), &key, 1).is_some();
    (!found).then(|| cold.participant.shown().take_cold())
}

fn met(cold: &ColdTable, number: u32) -> Vec<ColdMiss> {
    get(cold, number).expect("it is cold")
}

fn reads(cold: &ColdTable) -> u64 {
    cold.table.spill_stats().expect("of mode spill").reads
}

/// Uses up a tenant's quota by a record that is cold. The threads have been started.
fn use_up(cold: &mut ColdTable, tenant: u32, number: u32) {
    cold.pool.set_quota(tenant, ONE_READ);
    let ticket = ColdMiss::fetch(met(cold, number), tenant, || {});
    wait_for(cold, &ticket);
}

fn wait_for(cold: &mut ColdTable, ticket: &Arc<ColdTicket>) {
    let patience = Instant::now() + Duration::from_secs(60);
    while !ticket.is_done() {
        assert!(Instant::now() < patience, "a tenant waits for the quota of another one");
        cold.participant.quiescent();
        std::thread::yield_now();
    }
}

#[test]
fn a_tenant_over_its_quota_waits_and_others_do_not() {
    let mut cold = filled();
    cold.pool.set_quota(1, SpillQuota { reads_per_second: 1_000, bytes_per_second: u64::MAX });
    let begun = Instant::now();
    for number in 0..200_u32 {
        assert!(cold.get(&number.to_le_bytes(), 1).is_ok());
    }
    // A tenth of a second's reads at once, and the others at the rate.
    assert!(begun.elapsed().as_millis() >= 90, "{:?}", begun.elapsed());
}

#[test]
fn a_read_is_charged_to_the_tenant_that_reads_and_one_without_quota_left_holds_up_no_other() {
    let mut cold = filled();
    cold.pool.start(&cold.epochs).expect("threads");
    use_up(&mut cold, 2, 2);
    let before = reads(&cold);
    let (first, second) = (met(&cold, 0), met(&cold, 1));
    // The tenant that may not read asks first, for both; the owner asks for one of them.
    let waits = [first.clone(), second].map(|misses| ColdMiss::fetch(misses, 2, || {}));
    let owners = ColdMiss::fetch(first, 1, || {});
    wait_for(&mut cold, &owners);
    assert!(waits[0].is_done(), "who waits for the same record has it, too");
    assert!(!waits[1].is_done(), "and for another one it still waits");
    assert_eq!(reads(&cold) - before, 1);
    cold.pool.stop();
}

#[test]
fn a_record_that_two_tenants_wait_for_is_read_once() {
    let mut cold = filled();
    let first = met(&cold, 0);
    let waits = [1, 2].map(|tenant| ColdMiss::fetch(first.clone(), tenant, || {}));
    cold.participant.quiescent();
    let before = reads(&cold);
    cold.pool.drive(&mut cold.participant);
    assert!(waits.iter().all(|wait| wait.is_done()));
    assert_eq!(reads(&cold) - before, 1);
}

#[test]
fn a_read_that_waited_for_a_quota_is_not_taken_for_a_later_one_of_the_same_record() {
    let mut cold = filled();
    cold.pool.start(&cold.epochs).expect("threads");
    use_up(&mut cold, 2, 2);
    let first = met(&cold, 0);
    let held = ColdMiss::fetch(first.clone(), 2, || {});
    let owners = ColdMiss::fetch(first, 1, || {});
    wait_for(&mut cold, &owners);
    assert!(held.is_done());
    // It leaves memory again; the read of the other tenant still waits for its quota.
    use_up(&mut cold, 1, 3);
    let before = reads(&cold);
    let again = (RECORDS..50 * RECORDS).find_map(|number| {
        while cold.put(&number.to_le_bytes(), &[1; 500], &WriteOptions::default(), 1).is_err() {
            cold.participant.quiescent();
            std::thread::yield_now();
        }
        get(&cold, 0)
    });
    let again = again.expect("it was not read since");
    let again = ColdMiss::fetch(again, 1, || {});
    cold.pool.set_quota(2, SpillQuota::UNLIMITED);
    let others = ColdMiss::fetch(met(&cold, 1), 2, || {});
    wait_for(&mut cold, &others);
    assert!(!again.is_done(), "the old read has woken who waits for a new one");
    assert_eq!(reads(&cold) - before, 1, "and nothing was read for it");
    cold.pool.stop();
}
