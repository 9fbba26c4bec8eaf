//! Promise: a thousand connections to the control port, with a viewer's token or none, some of which read nothing or
//! ask for nothing whole, keep neither the operator nor the data port from being served. The server has a bounded
//! number of them, and gives each of the others an answer or closes it.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use sandstorm_client::{Config, PutOptions, blocking::Client};
use sandstorm_control::limits::MAX_CONNECTIONS;

use crate::common::process::Server;
use crate::common::{PATIENT, Stop, eventually};

/// Connections of each kind.
const OF_EACH: usize = 200;
/// Requests that a connection which reads nothing sends at once.
const UNREAD: usize = 100;
/// Looks at all connections, at least.
const LOOKS_LEAST: usize = 5;
/// The pause between two rounds over all connections.
const PAUSE: Duration = Duration::from_millis(20);
/// Bytes that the server may have for each connection beside what it had: a header's and an answer's, with what the
/// allocator keeps.
const BYTES_OF_CONNECTION: u64 = 1 << 20;
/// Requests of the operator, and writes of a tenant, meanwhile.
const REQUESTS: usize = 20;
const WRITES: u32 = 500;

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ViewerKind {
    /// Asks for the page, over and over.
    Page,
    /// Asks for counters, over and over.
    Counters,
    /// Waits for events.
    Waits,
    /// Asks for all metrics many times, and reads nothing.
    ReadsNothing,
    /// Sends half a request.
    AsksHalf,
}

const KINDS: [ViewerKind; 5] =
    [ViewerKind::Page, ViewerKind::Counters, ViewerKind::Waits, ViewerKind::ReadsNothing, ViewerKind::AsksHalf];

/// A connection of a viewer.
struct ViewerConnection {
    kind: ViewerKind,
    stream: TcpStream,
    /// The beginning of what came.
    answer: Vec<u8>,
    is_closed: bool,
}

impl ViewerConnection {
    fn open(address: &str, token: &str, kind: ViewerKind) -> ViewerConnection {
        let stream = TcpStream::connect(address).expect("the kernel accepts it");
        let mut viewer = ViewerConnection { kind, stream, answer: Vec::new(), is_closed: false };
        viewer.ask(address, token);
        viewer.stream.set_nonblocking(true).expect("a socket");
        viewer
    }

    fn ask(&mut self, address: &str, token: &str) {
        let head = |path: &str| {
            format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\r\n").into_bytes()
        };
        let bytes = match self.kind {
            ViewerKind::Page => head("/"),
            ViewerKind::Counters => head("/v1/stat"),
            ViewerKind::Waits => head("/v1/events?after=1000000&wait_s=30"),
            ViewerKind::ReadsNothing => head("/metrics").repeat(UNREAD),
            ViewerKind::AsksHalf => head("/v1/stat")[..40].to_vec(),
        };
        self.note(self.stream.try_clone().expect("a socket").write(&bytes).map(|_| 1));
    }

    /// Reads what is there, and asks again, as its kind does.
    fn go_on(&mut self, address: &str, token: &str) {
        if self.kind == ViewerKind::ReadsNothing {
            // Whether it is closed is seen without a read.
            return;
        }
        let mut bytes = [0; 16 << 10];
        let mut has_read = false;
        while !self.is_closed {
            let read = self.stream.read(&mut bytes);
            let Ok(length @ 1..) = read else {
                self.note(read);
                break;
            };
            has_read = true;
            if self.answer.len() < 16 {
                self.answer.extend(&bytes[..length.min(16)]);
            }
        }
        if has_read && !self.is_closed && self.kind != ViewerKind::AsksHalf {
            self.ask(address, token);
        }
    }

    /// Notes an end of the connection.
    fn note(&mut self, result: std::io::Result<usize>) {
        self.is_closed |= match result {
            Ok(length) => length == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        };
    }
}

/// Connections to a port of this machine that a process has accepted, by the kernel.
fn accepted(port: &str) -> usize {
    let port: u16 = port.parse().expect("a port");
    let local = format!("0100007F:{port:04X}");
    let table = fs::read_to_string("/proc/self/net/tcp").expect("the kernel's table");
    let is_accepted = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.len() > 9 && fields[1] == local && fields[3] == "01" && fields[9] != "0"
    };
    table.lines().filter(is_accepted).count()
}

fn resident_bytes(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.process.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// The operator and a tenant are served.
fn are_served(server: &Server, client: &Client, table: u64) {
    for number in 0..REQUESTS {
        assert_eq!(server.json("stat --all")["counters"]["tenants"], 1, "request {number} of the operator");
    }
    for number in 0..WRITES {
        let key = number.to_le_bytes();
        client.put(table, &key, b"value", &PutOptions::default()).expect("it is served");
        assert!(client.get(table, &key).expect("it is served").is_some());
    }
}

#[test]
fn a_thousand_viewers_keep_neither_the_operator_nor_tenants_from_being_served() {
    let server = Server::start_as(&["--no-builder", "--no-pin", "--workers", "1"]);
    let made = server.json("tenant create shop");
    let id = u32::try_from(made["tenant"]["id"].as_u64().expect("an id")).expect("an id");
    let config = Config::new(server.data.parse().expect("an address"), id).deadline(PATIENT);
    let client = Client::connect(config.token(made["token"].as_str().expect("a token"))).expect("a connection");
    let table = server.json("table create items --tenant shop")["id"].as_u64().expect("an id");
    let token = server.json("token create viewer")["token"].as_str().expect("a token").to_owned();
    are_served(&server, &client, table);
    let address = server.control.trim_start_matches("http://").to_owned();
    let port = address.rsplit_once(':').expect("a port").1;
    let before = resident_bytes(&server);

    let over = AtomicBool::new(false);
    let (viewers, most) = std::thread::scope(|scope| {
        let (address, token, over) = (&address, &token, &over);
        let crowd = scope.spawn(move || {
            let kinds = KINDS.iter().cycle().take(KINDS.len() * OF_EACH);
            let mut viewers: Vec<_> = kinds.map(|kind| ViewerConnection::open(address, token, *kind)).collect();
            let (mut most, mut looks) = (0, 0);
            // Some looks also where all else was over before the last connection was opened.
            while looks < LOOKS_LEAST || !over.load(Relaxed) {
                looks += 1;
                viewers.iter_mut().filter(|viewer| !viewer.is_closed).for_each(|viewer| viewer.go_on(address, token));
                most = most.max(accepted(port));
                std::thread::sleep(PAUSE);
            }
            (viewers, most)
        });
        let ends = Stop(over);
        // They are there: the later ones have closed earlier ones.
        let shed = || server.json("stat --all")["counters"]["control_shed"].as_u64().expect("a number");
        assert!(eventually(|| shed() > 0), "a thousand are more than there is room for");
        are_served(&server, &client, table);
        drop(ends);
        crowd.join().expect("no panic")
    });
    // One more is accepted before another one is closed.
    assert!(most <= MAX_CONNECTIONS + 1 && most > MAX_CONNECTIONS / 2, "{most} of {MAX_CONNECTIONS} connections");
    let grown = resident_bytes(&server).saturating_sub(before);
    assert!(grown <= MAX_CONNECTIONS as u64 * BYTES_OF_CONNECTION, "{grown} bytes more");
    for kind in [ViewerKind::Page, ViewerKind::Counters] {
        let answered = viewers.iter().filter(|viewer| viewer.kind == kind && viewer.answer.starts_with(b"HTTP/1.1 "));
        assert!(answered.count() > 0, "some of {kind:?} are answered");
    }
    let wrong = viewers.iter().find(|viewer| !viewer.answer.is_empty() && !viewer.answer.starts_with(b"HTTP/1.1 "));
    assert!(wrong.is_none(), "{:?}", wrong.map(|viewer| (viewer.kind, &viewer.answer)));
    // Refused clients know it: all connections but those that there is room for are closed.
    let open = viewers.iter().filter(|viewer| viewer.kind != ViewerKind::ReadsNothing && !viewer.is_closed).count();
    assert!(open <= MAX_CONNECTIONS, "{open} wait for what never comes");
    drop(viewers);
    assert!(eventually(|| accepted(port) < MAX_CONNECTIONS / 8), "{} are left", accepted(port));
    are_served(&server, &client, table);
}
