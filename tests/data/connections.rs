//! Promise: a program may have hundreds of connections, and an answer's handler may poll another one of them.

use std::time::Duration;

use crate::common::alone::ran_alone;
use crate::common::{data_plane, eventually, tenant};
use sandstorm_client::{Config, raw};
use sandstorm_instance::DataPlane;

/// Connections of the first test. With receive buffers of its own each would take 2 MiB.
const CONNECTIONS: usize = 256;
/// Address space that these connections may take, KiB: a quarter of what they took.
const MOST_KIB: u64 = 128 << 10;

fn connect(plane: &DataPlane, id: u32, token: &str) -> raw::Connection {
    let config = Config::new(plane.address(), id).token(token).deadline(Duration::from_secs(60));
    raw::Connection::connect(&config).expect("a connection")
}

/// Address space of this process, KiB.
fn address_space_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the process's status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("its size");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

fn wait_for(what: &str, done: impl FnMut() -> bool) {
    assert!(eventually(done), "{what}");
}

fn send_increment(connection: &mut raw::Connection) {
    let mut message = connection.message();
    message.increment(1, b"n", 1);
    connection.send(0, message).expect("room");
}

#[test]
fn hundreds_of_connections_share_their_receive_buffers() {
    if ran_alone(module_path!(), "hundreds_of_connections_share_their_receive_buffers") {
        return;
    }
    let plane = data_plane(1);
    let (id, token) = tenant(&plane, "alice", false);
    // What the first one takes with the server's answer to it does not count.
    drop(connect(&plane, id, &token));
    let before_kib = address_space_kib();
    let mut connections: Vec<_> = (0..CONNECTIONS).map(|_| connect(&plane, id, &token)).collect();
    connections.iter_mut().for_each(send_increment);
    let mut answered = 0;
    wait_for("every connection has its answer", || {
        for connection in &mut connections {
            answered += connection.poll(|_, answer| drop(answer.expect("an answer")));
        }
        answered == CONNECTIONS
    });
    let taken_kib = address_space_kib().saturating_sub(before_kib);
    assert!(taken_kib < MOST_KIB, "{CONNECTIONS} connections take {taken_kib} KiB");
}

#[test]
fn a_handler_may_poll_another_connection() {
    let plane = data_plane(1);
    let (id, token) = tenant(&plane, "alice", false);
    let [mut first, mut second] = [(); 2].map(|()| connect(&plane, id, &token));
    for _ in 0..20 {
        send_increment(&mut first);
        send_increment(&mut second);
        let (mut of_first, mut of_second) = (0, 0);
        wait_for("both have their answers", || {
            of_first += first.poll(|_, answer| {
                of_second += second.poll(|_, inner| drop(inner.expect("an answer")));
                drop(answer.expect("the first's answer is there after the second was polled"));
            });
            of_second += second.poll(|_, answer| drop(answer.expect("an answer")));
            (of_first, of_second) == (1, 1)
        });
    }
    send_increment(&mut first);
    let mut last = None;
    wait_for("the last one has its answer", || {
        first.poll(|_, answer| last = Some(answer.expect("an answer").len())) == 1
    });
    assert!(last.is_some());
}
