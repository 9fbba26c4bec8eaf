//! Promise: values that stay in the packet buffers in which they arrived are read, replaced, sent and deleted like any
//! others. They are copied once the limit of kept buffers is reached, and all their buffers are returned. A tenant that
//! takes all the buffers it can get leaves some for the next. Over rings of DPDK, in packets of 9000 bytes, against a
//! model.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::common;
use crate::common::alone::ran_alone;
use crate::common::{PATIENT, eventually, load, tenant};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use sandstorm_client::Config;
use sandstorm_client::blocking::Client;
use sandstorm_control::config;
use sandstorm_control::config::{CliOverrides, DriverName, NetOverrides, NetSettings};
use sandstorm_instance::DataPlane;
use sandstorm_metrics::DeviceState;
use sandstorm_net::dpdk::{ClientDevice, RingPair};

const EAL: &str = "--no-huge --no-pci --no-shconf -m 512";
/// Buffers that may be kept: fewer than there are large values.
const BUFFERS: u32 = 48;
const KEYS: u64 = 120;
/// Longest value: of one packet, and of two.
const LONGEST: usize = 12_000;
/// Buffers that one tenant alone may keep: twice the number that it leaves free.
const PART: u64 = BUFFERS as u64 * 2 / 3;
/// A value that is large enough to keep its buffer.
const LARGE: usize = 8000;
/// Steps of the model.
const STEPS: u64 = 12_000;

/// A server at one end of a cable, and its client's device at the other.
fn start() -> (DataPlane, Arc<ClientDevice>, RingPair) {
    let arguments: Vec<String> = EAL.split_whitespace().map(str::to_owned).collect();
    let cable = RingPair::new(&arguments, "kept").expect("a cable");
    let at = |end: usize| NetOverrides {
        driver: Some(DriverName::Dpdk),
        eal: Some(EAL.to_owned()),
        device: Some(cable.ends()[end].clone()),
        address: vec![format!("10.96.0.{}/24", end + 1)],
        mtu: Some(9000),
        // The buffers that the server receives over a cable are its client's.
        kept_buffers: Some(BUFFERS),
        ..NetOverrides::default()
    };
    let overrides = CliOverrides {
        data: Some(([127, 0, 0, 1], 7400).into()),
        control: Some(([127, 0, 0, 1], 0).into()),
        state: Some(std::env::temp_dir().join(format!("sandstorm-kept-{}", std::process::id()))),
        ephemeral: Some(true),
        allow_open: Some(true),
        allow_plaintext: Some(true),
        code: Some(sandstorm_catalog::testing::code()),
        net: at(0),
        ..CliOverrides::default()
    };
    let config = config::ServerSettings::parse("workers = 1\npin = false\n", "the test's configuration", &overrides);
    let plane = DataPlane::start(&config.expect("a good configuration")).expect("a data plane starts");
    let settings = NetSettings::of(&at(1)).expect("good addresses");
    let device = ClientDevice::open(&settings.device_options(0, 1), plane.address(), None).expect("the other end");
    (plane, Arc::new(device), cable)
}

fn device(plane: &DataPlane) -> DeviceState {
    plane.metrics.device().expect("there is a device")
}

fn value(random: &mut SmallRng) -> Vec<u8> {
    let longest = [100, 3000, 8900, LONGEST][random.random_range(0..4)];
    (0..random.random_range(0..longest)).map(|_| random.random()).collect()
}

/// A client of a new open tenant, after its first answer.
fn client(plane: &DataPlane, other: &Arc<ClientDevice>, name: &str) -> Client {
    let (id, _) = tenant(plane, name, true);
    let config = Config::new(plane.address(), id).drivers(Arc::clone(other) as _).deadline(PATIENT);
    let client = Client::connect(config).expect("a connection");
    client.ping().expect("an answer");
    client
}

/// Large values of a tenant that were copied because it had reached its part of the buffers.
fn not_kept(plane: &DataPlane, name: &str) -> u64 {
    plane.directory.snapshot().by_name(name).expect("it is there").tenant.usage.worker(0).rx_copied.get()
}

/// Lets a tenant that has reached its part put more, and then another one, which still gets some.
fn share(plane: &DataPlane, client: &Client, next: &Client) {
    let kept = || device(plane).rx_retained;
    let put = |client: &Client| {
        for key in 0..KEYS {
            client.put(1, &key.to_le_bytes(), &[7; LARGE], &Default::default()).expect("room");
        }
    };
    // Buffers of replaced values return a moment later.
    let is_full = eventually(|| {
        put(client);
        kept() >= PART
    });
    assert!(is_full && not_kept(plane, "a") > 0, "{} are kept", kept());
    let before = not_kept(plane, "b");
    assert!(kept() < u64::from(BUFFERS) && before == 0, "{} are kept of one tenant", kept());
    put(next);
    // The same rule, for the rest: a little more than two thirds of it.
    let has_some = eventually(|| {
        next.ping().expect("an answer");
        (PART + 8..u64::from(BUFFERS)).contains(&kept())
    });
    assert!(has_some && not_kept(plane, "b") > 0, "{} are kept", kept());
    for key in 0..KEYS {
        let key = key.to_le_bytes();
        for client in [client, next] {
            let found = client.get(1, &key).expect("an answer").expect("a record");
            assert!(*found.value == [7; LARGE]);
        }
        next.delete(1, &key).expect("an answer");
    }
}

#[test]
fn values_that_stay_in_their_packets_are_like_any_others_and_give_their_buffers_back() {
    if ran_alone(module_path!(), "values_that_stay_in_their_packets_are_like_any_others_and_give_their_buffers_back") {
        return;
    }
    let (plane, other, _cable) = start();
    let (client, next) = (client(&plane, &other, "a"), client(&plane, &other, "b"));
    load(&plane, "a", "get", 1);
    let resting = (plane.packet_buffers().expect("a device"), other.buffers_in_use());
    let mut random = SmallRng::seed_from_u64(8);
    let mut model: BTreeMap<[u8; 8], Vec<u8>> = BTreeMap::new();
    let mut most = 0;
    for step in 0..STEPS {
        let key = random.random_range(0..KEYS).to_le_bytes();
        match random.random_range(0..12) {
            0..=3 => {
                let value = value(&mut random);
                client.put(1, &key, &value, &Default::default()).expect("room");
                model.insert(key, value);
            }
            4 => {
                let was_there = client.delete(1, &key).expect("an answer");
                assert_eq!(was_there, model.remove(&key).is_some());
            }
            5 => {
                client.put(1, &key, b"41", &Default::default()).expect("room");
                assert_eq!(client.increment(1, &key, 1), Ok(42));
                model.insert(key, b"42".to_vec());
            }
            6 => {
                let found = client.invoke("get", &common::get_args(&key));
                match model.get(&key) {
                    Some(value) => assert!(found.expect("an answer") == value[..]),
                    None => assert!(found.is_err()),
                }
            }
            7 => {
                let keys: Vec<[u8; 8]> = (0..3).map(|_| random.random_range(0..KEYS).to_le_bytes()).collect();
                let found = client.multi_get(1, &keys).expect("an answer");
                assert!(keys.iter().zip(found).all(|(key, found)| {
                    found.as_ref().map(|record| &record.value[..]) == model.get(key).map(|value| &value[..])
                }));
            }
            _ => {
                let found = client.get(1, &key).expect("an answer");
                assert!(found.as_ref().map(|record| &record.value[..]) == model.get(&key).map(|value| &value[..]));
            }
        }
        if step % 16 == 0 {
            most = most.max(device(&plane).rx_retained);
        }
    }
    let state = device(&plane);
    assert!((PART..u64::from(BUFFERS)).contains(&most), "{most} were kept at most, then copied: {state:?}");
    share(&plane, &client, &next);
    for key in 0..KEYS {
        client.delete(1, &key.to_le_bytes()).expect("an answer");
    }
    let back = eventually(|| {
        client.ping().expect("an answer");
        std::thread::sleep(Duration::from_millis(2));
        let out = (plane.packet_buffers().expect("a device"), other.buffers_in_use());
        device(&plane).rx_retained == 0 && out.0 <= resting.0 && out.1 <= resting.1
    });
    let out = (plane.packet_buffers(), other.buffers_in_use());
    assert!(back, "{out:?} buffers are out, of {resting:?} at rest: {:?}", device(&plane));
}
