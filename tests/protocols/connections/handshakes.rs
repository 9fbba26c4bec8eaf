//! TLS handshakes that have to wait, and unauthenticated connections: honest clients get in, and others reserve
//! nothing.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, connect as connect_to, socket};
use tokio_rustls::rustls::version::{TLS12, TLS13};

use super::ports::{Secure, Secured, at, read_from, secure};
use super::{metric, server};
use crate::common::eventually;
use crate::memcached::peer::{connect, read_until, text};

/// Opens so many clients that have all sent their hello, before the first of them continues.
fn greeters(server: &Secured, count: usize, tls12: bool) -> Vec<Secure> {
    let config = if tls12 { server.client(&[&TLS12]) } else { server.client(&[&TLS13]) };
    let mut streams: Vec<Secure> = (0..count).map(|_| secure(&config, server.memcached)).collect();
    for stream in &mut streams {
        while stream.conn.wants_write() {
            stream.conn.write_tls(&mut stream.sock).expect("said");
        }
    }
    streams
}

#[test]
fn a_handshake_that_waited_is_heard_at_its_home_worker_and_its_end_is_seen() {
    let server = Secured::start(2);
    for tls12 in [false, true] {
        // More than there is time for at once, so most wait with the second half of their handshake as well.
        let mut streams = greeters(&server, 150, tls12);
        for stream in &mut streams {
            stream.conn.complete_io(&mut stream.sock).expect("a handshake");
        }
        // All are on the home worker before one sends data: from then on only the home worker handles them.
        assert!(eventually(|| at(&server.plane, 1) == 150), "{}", at(&server.plane, 1));
        for stream in &mut streams {
            assert_eq!(read_from(stream, b"mn\r\n", b"\r\n"), "MN\r\n");
        }
        drop(streams);
        assert!(eventually(|| metric(&server.plane, "connections") == 0));
    }
}

#[test]
fn the_end_of_a_client_is_seen_while_its_handshake_waits() {
    let server = Secured::start(1);
    let begun = Instant::now();
    for stream in greeters(&server, 900, false) {
        stream.sock.peek(&mut [0]).expect("an answer");
    }
    let all_are_answered = begun.elapsed();
    assert!(eventually(|| metric(&server.plane, "connections") == 0));
    // Closed connections are not answered, so they cost no time.
    let begun = Instant::now();
    drop(greeters(&server, 900, false));
    assert!(eventually(|| metric(&server.plane, "connections") == 0));
    assert!(begun.elapsed() < all_are_answered / 2, "{:?} of {all_are_answered:?}", begun.elapsed());
    let mut stream = secure(&server.client(&[&TLS13]), server.memcached);
    assert_eq!(read_from(&mut stream, b"mn\r\n", b"\r\n"), "MN\r\n");
}

/// A connection from another address of this machine.
fn connect_from(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let stream = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&stream, &SocketAddr::from((from, 0))).expect("an address");
    connect_to(&stream, &to).expect("a connection");
    let stream = TcpStream::from(stream);
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    stream
}

#[test]
fn one_address_has_so_many_that_have_not_shown_whose_they_are() {
    let (plane, _, open) = server(2, 0);
    let mut silent: Vec<TcpStream> = (0..1_024).map(|_| connect(open)).collect();
    assert!(eventually(|| metric(&plane, "connections") == 1_024));
    let mut more = connect(open);
    let received = text(&read_until(&mut more, b"<closed>"));
    assert!(received.ends_with("<closed>"), "{received}");
    assert_eq!(metric(&plane, "connections_refused.full"), 1);
    let mut other = connect_from([127, 0, 0, 9], open);
    other.write_all(b"get a\r\n").expect("said");
    assert_eq!(text(&read_until(&mut other, b"\r\n")), "CLIENT_ERROR unauthenticated\r\n");
    // Authenticated connections no longer count, and neither do closed ones.
    let first = silent.first_mut().expect("one");
    assert_eq!(super::login(first, "shop the_token_of_the_shop"), "STORED\r\n");
    drop(silent.pop());
    // Counted in no worker while it moves to its home worker, so the count says nothing now; the next arrival does.
    for _ in 0..2 {
        assert!(eventually(|| {
            let mut again = connect(open);
            let is_admitted = again.write_all(b"get a\r\n").is_ok()
                && text(&read_until(&mut again, b"\r\n")) == "CLIENT_ERROR unauthenticated\r\n";
            silent.push(again);
            is_admitted
        }));
    }
    let refused = metric(&plane, "connections_refused.full");
    let mut more = connect(open);
    assert!(text(&read_until(&mut more, b"<closed>")).ends_with("<closed>"));
    assert_eq!(metric(&plane, "connections_refused.full"), refused + 1, "and no more than these");
}
