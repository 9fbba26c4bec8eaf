//! Promise: however many operations ran, and however many connections ended with answers in flight, all packet buffers
//! return to their pools, on both sides. A million operations, or as many as `SANDSTORM_LEAK_OPERATIONS` says.

use std::time::{Duration, Instant};

use crate::common;
use crate::common::alone::ran_alone;
use crate::common::{data_plane_over_memif, eventually, load, network, tenant};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use sandstorm_client::Config;
use sandstorm_client::blocking::Client;
use sandstorm_client::raw::Connection;
use sandstorm_net::rpc::RpcStatus;

/// Operations in a message, and messages in flight.
const BATCH: usize = 32;
const DEPTH: usize = 16;
/// Messages of one connection.
const LIFE: u64 = 600;
/// Keys of each tenant.
const KEYS: u32 = 2000;
/// Values are from zero bytes to a few packets long.
const LONGEST: usize = 6000;
/// Timeout of an answer, on a machine that stalls now and then.
const PATIENCE: Duration = Duration::from_secs(120);

/// One connection's life: puts, gets and calls; it ends with requests in flight. Returns the number of answered
/// operations.
fn live(config: &Config, random: &mut SmallRng) -> u64 {
    let mut connection = Connection::connect(config).expect("a connection");
    let (value, messages) = (vec![7; LONGEST], random.random_range(1..=LIFE));
    let (mut sent, mut answered, mut operations, mut right) = (0, 0, 0, 0);
    let begun = Instant::now();
    while answered < messages {
        assert!(begun.elapsed() < PATIENCE, "{answered} of {messages} answered");
        while connection.in_flight() < DEPTH && sent < messages + DEPTH as u64 {
            let mut message = connection.message();
            // Large values in messages of one packet stay in their buffers.
            let alone = random.random_bool(0.3);
            for _ in 0..if alone { 1 } else { BATCH } {
                let key = random.random_range(0..KEYS).to_le_bytes();
                match random.random_range(0..16) {
                    0..8 if alone => {
                        message.put(1, &key, &value[..random.random_range(900..1400)], &Default::default())
                    }
                    0 => message.put(1, &key, &value[..random.random_range(0..LONGEST)], &Default::default()),
                    1..=3 => message.put(1, &key, &value[..random.random_range(0..200)], &Default::default()),
                    4 => message.invoke("get", 0, &common::get_args(&key)),
                    _ => message.get(1, &key),
                };
            }
            connection.send(sent, message).expect("room");
            sent += 1;
        }
        answered += connection.poll(|_, answer| {
            let answer = answer.expect("an answer");
            // Calls may come too fast for the tenant's quota; a refusal is an answer, too.
            let well =
                [RpcStatus::Ok, RpcStatus::NotFound, RpcStatus::Failed, RpcStatus::OverQuota, RpcStatus::Overloaded];
            for one in answer.operations() {
                operations += 1;
                right += u64::from(well.contains(&one.expect("well-formed").status));
            }
        }) as u64;
    }
    assert_eq!(right, operations);
    right
}

#[test]
fn every_packet_buffer_comes_back() {
    if ran_alone(module_path!(), "every_packet_buffer_comes_back") {
        return;
    }
    let wanted =
        std::env::var("SANDSTORM_LEAK_OPERATIONS").ok().map_or(1_000_000, |text| text.parse().expect("a number"));
    let plane = data_plane_over_memif("workers = 2\npin = false\n[net]\nkept_buffers = 300\n");
    let device = network::memif::client(&plane).expect("the other end");
    let tenants = [("a", 0), ("b", 1)].map(|(name, seed)| {
        // One is sealed; values of the open one may stay in their packets.
        let is_open = seed == 1;
        let (id, token) = tenant(&plane, name, is_open);
        load(&plane, name, "get", 1);
        let config = network::config(&plane, id).deadline(common::PATIENT);
        (if is_open { config } else { config.token(token) }, SmallRng::seed_from_u64(seed))
    });
    // The idle state: the rings have their buffers from the start, and each side has returned what it received last.
    let buffers = || (plane.packet_buffers().expect("a device"), device.buffers_in_use());
    let look = |what: &str, resting: (u32, u32)| {
        let back = eventually(|| {
            // The client's side returns what it received last when it polls again.
            drop(Connection::connect(&tenants[0].0).expect("a connection"));
            std::thread::sleep(Duration::from_millis(5));
            let out = buffers();
            out.0 <= resting.0 && out.1 <= resting.1
        });
        assert!(back, "{what}: {:?} buffers are out, of {resting:?} at rest", buffers());
    };
    let resting = buffers();
    println!("at rest {resting:?}");
    let total: u64 = std::thread::scope(|scope| {
        let threads = tenants.clone().map(|(config, mut random)| {
            scope.spawn(move || {
                let mut done = 0;
                while done < wanted / 2 {
                    done += live(&config, &mut random);
                }
                done
            })
        });
        threads.map(|thread| thread.join().expect("no panic")).iter().sum()
    });
    assert!(total >= wanted - 1, "{total}");
    // Records keep some.
    let kept = || plane.metrics.device().expect("a device").rx_retained;
    assert!(kept() > 0, "values stayed in their packets");
    for (config, _) in &tenants {
        let client = Client::connect(config.clone()).expect("a connection");
        for key in 0..KEYS {
            client.delete(1, &key.to_le_bytes()).expect("an answer");
        }
    }
    assert!(eventually(|| kept() == 0), "{} buffers are kept for nothing", kept());
    look("after all of it", resting);
}
