//! Promise: over the wire, on two workers, transactions are all or nothing, however the calls among them end. Transfers
//! between accounts never change the sum that a concurrent reader computes. A call that conflicts each time returns
//! `Conflict`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{Wire, await_nothing_charged, client, client_at, data_plane, library_of, load, tenant};
use sandstorm_client::{Error, PutOptions};
use sandstorm_extension::BudgetOverride;
use sandstorm_instance::DataPlane;
use sandstorm_net::rpc::{Operation, RpcStatus};

const ACCOUNTS: u8 = 12;
const EACH: u64 = 1_000;

/// Adds all accounts up in a transaction, at one moment.
const SUM: &str = r#"
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let keys: Vec<&[u8]> = args.chunks(1).collect();
    let mut sum = 0_u64;
    for account in db.transaction().get_many(db.table("t")?, &keys).await?.into_iter().flatten() {
        sum += u64::from_le_bytes(account.value().try_into()?);
    }
    db.reply(&sum.to_le_bytes())
}
"#;

/// Takes from one account, then ends in some way before it gives to another one.
const CULPRIT: &str = r#"
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (table, tx) = (db.table("t")?, db.transaction());
    tx.get(table, &[0]).await?;
    tx.put(table, &[0], &0_u64.to_le_bytes())?;
    tx.delete(table, &[1]).await?;
    match args {
        b"loop" => loop { core::hint::black_box(args); },
        b"panic" => panic!("as asked"),
        b"yields" => loop { yield_now().await; },
        // Its own writes beside the transaction are others' to it.
        b"conflict" => db.put(table, &[2], b"").await.map(drop).and(tx.put(table, &[3], b"lost")),
        _ => Err(Error::new("as asked")),
    }
}
"#;

fn load_text(plane: &DataPlane, name: &str, text: &str, total_us: u64) {
    let budget = BudgetOverride { total_us: Some(total_us), ..BudgetOverride::default() };
    let extension = crate::common::loaded(name, 1, library_of(name, text), budget);
    plane.directory.put_extension("bank", Arc::new(extension)).expect("an extension is loaded");
}

fn counter(plane: &DataPlane, name: &str) -> u64 {
    let snapshot = plane.directory.snapshot();
    let usage = &snapshot.by_name("bank").expect("the tenant is there").tenant.usage;
    let workers = (0..plane.metrics.workers()).map(|worker| usage.worker(worker));
    let of_one = |counters: &sandstorm_metrics::TenantCounters| match name {
        "committed" => counters.transactions_committed.get(),
        _ => counters.transaction_conflicts.get(),
    };
    workers.map(of_one).sum()
}

fn balance(record: sandstorm_client::Record) -> u64 {
    u64::from_le_bytes(record.value[..].try_into().expect("8 bytes"))
}

fn transfer(amount: u64, from: u8, to: u8) -> Vec<u8> {
    [&1_u64.to_le_bytes()[..], &amount.to_le_bytes(), &1_u16.to_le_bytes(), &[from, to]].concat()
}

#[test]
fn sums_stay_whatever_ends_the_calls_among_the_transfers() {
    let plane = data_plane(2);
    let (id, _) = tenant(&plane, "bank", true);
    load(&plane, "bank", "transfer", 1);
    load_text(&plane, "sum", SUM, 10_000_000);
    load_text(&plane, "culprit", CULPRIT, 1_000);
    let first = client(&plane, id);
    for account in 0..ACCOUNTS {
        first.put(1, &[account], &EACH.to_le_bytes(), &PutOptions::default()).expect("an account");
    }
    let under_way = AtomicUsize::new(2);
    std::thread::scope(|scope| {
        for seed in 0..2_u64 {
            let (plane, under_way) = (&plane, &under_way);
            scope.spawn(move || {
                let client = client_at(plane, id, seed as usize);
                for number in 0..1_500_u64 {
                    let random = number.wrapping_add(seed << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
                    let (from, to) = (random as u8 % ACCOUNTS, (random >> 8) as u8 % ACCOUNTS);
                    match client.invoke("transfer", &transfer(random >> 16 & 0x1ff, from, to)) {
                        Ok(_) | Err(Error::Failed { .. } | Error::Conflict) => {}
                        Err(error) => panic!("transfer {number}: {error}"),
                    }
                }
                under_way.fetch_sub(1, Ordering::SeqCst);
            });
        }
        scope.spawn(|| {
            let client = client(&plane, id);
            while under_way.load(Ordering::SeqCst) > 0 {
                for kind in ["loop", "panic", "yields", "fail"] {
                    let ended = client.invoke("culprit", kind.as_bytes());
                    assert!(
                        matches!(ended, Err(Error::Killed { .. } | Error::Failed { .. } | Error::Conflict)),
                        "{kind}: {ended:?}"
                    );
                }
            }
        });
        let accounts: Vec<u8> = (0..ACCOUNTS).collect();
        let mut sums = 0;
        while under_way.load(Ordering::SeqCst) > 0 || sums == 0 {
            match first.invoke("sum", &accounts) {
                Ok(sum) => assert_eq!(sum[..], (u64::from(ACCOUNTS) * EACH).to_le_bytes()),
                Err(Error::Conflict) => {}
                Err(error) => panic!("{error}"),
            }
            let keys: Vec<_> = accounts.iter().map(|account| [*account]).collect();
            let at_once = first.snapshot(1, &keys).expect("an answer");
            assert_eq!(at_once.into_iter().flatten().map(balance).sum::<u64>(), u64::from(ACCOUNTS) * EACH);
            sums += 1;
        }
    });
    let accounts = (0..ACCOUNTS).filter_map(|account| first.get(1, &[account]).expect("an answer"));
    assert_eq!(accounts.map(balance).sum::<u64>(), u64::from(ACCOUNTS) * EACH);
    assert!(counter(&plane, "committed") > 0);
    await_nothing_charged(&plane, id);
}

#[test]
fn who_meets_others_each_time_is_told_conflict() {
    let plane = data_plane(1);
    let (id, _) = tenant(&plane, "bank", true);
    load_text(&plane, "culprit", &CULPRIT.replace("tx.get(table, &[0])", "tx.get(table, &[2])"), 10_000_000);
    let mut wire = Wire::new(&plane, 0, id);
    let answer = wire.one(Operation::invoke(b"culprit", b"conflict"));
    assert_eq!(answer.status, RpcStatus::Conflict, "{}", answer.text());
    assert!(answer.text().contains("nothing was written"), "{}", answer.text());
    for key in [0, 1, 3] {
        assert_eq!(wire.one(Operation::get(1, &[key])).status, RpcStatus::NotFound, "nothing of the transaction");
    }
    assert_eq!(client(&plane, id).invoke("culprit", b"conflict"), Err(Error::Conflict));
    assert_eq!(counter(&plane, "conflicts"), 2);
}

/// An account's key, in the form of workloads' record keys.
fn account(number: u64) -> Vec<u8> {
    format!("k{number:05}").into_bytes()
}

/// The numbers that a call of the closed economy returns; `None` where it conflicted each time.
fn economy(client: &sandstorm_client::blocking::Client, command: u8, rest: &[&[u8]]) -> Option<Vec<u8>> {
    let args = [&1_u64.to_le_bytes()[..], &[command], &rest.concat()].concat();
    match client.invoke("ycsb_t", &args) {
        Ok(reply) => Some(reply.to_vec()),
        Err(Error::Conflict) => None,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn no_money_is_made_or_lost_in_the_closed_economy() {
    let plane = data_plane(2);
    let (id, _) = tenant(&plane, "bank", true);
    load(&plane, "bank", "ycsb_t", 1);
    let first = client(&plane, id);
    for number in 0..u64::from(ACCOUNTS) {
        let value = [&EACH.to_le_bytes()[..], &[7; 92]].concat();
        first.put(1, &account(number), &value, &PutOptions::default()).expect("an account");
    }
    let under_way = AtomicUsize::new(2);
    std::thread::scope(|scope| {
        for seed in 0..2_u64 {
            let (plane, under_way) = (&plane, &under_way);
            scope.spawn(move || {
                let client = client_at(plane, id, seed as usize);
                for number in 0..1_000_u64 {
                    let random = number.wrapping_add(seed << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
                    let from = random % u64::from(ACCOUNTS);
                    let to = (from + 1 + (random >> 8) % (u64::from(ACCOUNTS) - 1)) % u64::from(ACCOUNTS);
                    let (from, amount) = (account(from), (random >> 16 & 0x3ff).to_le_bytes());
                    let from_len = (from.len() as u16).to_le_bytes();
                    economy(&client, 1, &[&amount, &from_len, &from, &account(to)]);
                }
                under_way.fetch_sub(1, Ordering::SeqCst);
            });
        }
        let expected = [&(u64::from(ACCOUNTS) * EACH).to_le_bytes()[..], &u32::from(ACCOUNTS).to_le_bytes(), &[0; 4]];
        let mut audits = 0;
        while under_way.load(Ordering::SeqCst) > 0 || audits == 0 {
            if let Some(found) = economy(&first, 2, &[&u32::from(ACCOUNTS).to_le_bytes(), &account(0)]) {
                assert_eq!(found, expected.concat());
                audits += 1;
            }
        }
    });
    let balances = (0..u64::from(ACCOUNTS)).filter_map(|number| economy(&first, 0, &[&account(number)]));
    let sum: u64 = balances.map(|balance| u64::from_le_bytes(balance.try_into().expect("8 bytes"))).sum();
    assert_eq!(sum, u64::from(ACCOUNTS) * EACH);
    assert!(counter(&plane, "committed") > 0);
    await_nothing_charged(&plane, id);
}
