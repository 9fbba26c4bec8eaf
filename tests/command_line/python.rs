//! Promise: the Python client is installed from its wheel and does what its page says. Without Python it is left out.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread::Scope;
use std::time::Duration;

use super::typed::bank;
use crate::common::process::Server;

/// The system's Python, if it is there and new enough.
pub(super) fn python() -> Option<Command> {
    let asked =
        Command::new("python3").args(["-c", "import sys, ctypes; sys.exit(sys.version_info < (3, 9))"]).output();
    if asked.is_ok_and(|output| output.status.success()) {
        return Some(Command::new("python3"));
    }
    println!("left out: there is no python3 of version 3.9 or later with ctypes");
    None
}

/// The library that cargo has built beside this program, since its crate is a dependency.
fn library() -> PathBuf {
    let _linked = sandstorm_c::interface::sandstorm_interface();
    let program = std::env::current_exe().expect("this program");
    let path = program.with_file_name("libsandstorm_c.so");
    assert!(path.exists(), "cargo has not made {}", path.display());
    path
}

fn succeeds(command: &mut Command) -> String {
    let output = command.output().expect("a program that runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Makes the wheel, and installs it into a folder.
pub(super) fn installed(folder: &Path) -> PathBuf {
    let builder = super::common::root().join("clients/python/build_wheel.py");
    let make = |out: &Path| {
        let mut command = python().expect("Python is there");
        let made = succeeds(command.arg(&builder).arg("--out").arg(out).arg("--library").arg(library()));
        PathBuf::from(made.trim())
    };
    let wheel = make(&folder.join("wheels"));
    let again = make(&folder.join("again"));
    assert!(std::fs::read(&wheel).unwrap() == std::fs::read(again).unwrap(), "the same library makes the same wheel");
    let target = folder.join("site");
    let mut pip = python().expect("Python is there");
    pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-cache-dir", "--target"]);
    if succeeds(
        python().expect("Python is there").args(["-c", "import importlib.util as i; print(i.find_spec('pip'))"]),
    )
    .trim()
        == "None"
    {
        // A wheel is a zip archive.
        succeeds(python().expect("Python is there").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&target));
    } else {
        succeeds(pip.arg(&target).arg(&wheel));
    }
    target
}

#[test]
fn the_python_client_is_installed_from_its_wheel_and_keeps_its_promises() {
    let Some(mut python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let site = installed(folder.path());
    let (server, token) = bank();
    server.json("ext push ../ext/bad");
    server.json("table create items");
    server.json("table create words --ordered");
    for table in ["feed", "waits", "async", "large"] {
        server.json(&format!("table create {table}"));
    }
    server.json("table create memory --durability none");
    let address = server.control.trim_start_matches("http://");
    let given = serde_json::json!([address, "shop", token]).to_string();
    let tests = super::common::root().join("clients/python/tests/test_client.py");
    succeeds(python.arg(tests).env("PYTHONPATH", site).env("PYTHONWARNINGS", "error").env("SANDSTORM_TEST", given));
}

/// A network between a client and a server with one worker, of which each first answer to a request is lost.
struct LossyNetwork {
    control: TcpListener,
    data: UdpSocket,
    server: UdpSocket,
    client: Mutex<Option<SocketAddr>>,
    /// The server's addresses, and what a client is told instead of that of the data.
    real: (String, String),
    told: String,
    lost: AtomicUsize,
    is_over: AtomicBool,
}

/// How often it looks whether the test is over.
const LOOKS_EVERY: Duration = Duration::from_millis(20);

impl LossyNetwork {
    fn new(server: &Server) -> LossyNetwork {
        // As many digits as the server's, so that no length changes.
        let data = std::iter::repeat_with(|| UdpSocket::bind("127.0.0.1:0").unwrap())
            .find(|socket| socket.local_addr().unwrap().to_string().len() == server.data.len())
            .unwrap();
        let told = data.local_addr().unwrap().to_string();
        let up = UdpSocket::bind("127.0.0.1:0").unwrap();
        up.connect(&server.data).unwrap();
        for socket in [&data, &up] {
            socket.set_read_timeout(Some(LOOKS_EVERY)).unwrap();
        }
        let control = TcpListener::bind("127.0.0.1:0").unwrap();
        control.set_nonblocking(true).unwrap();
        let real = (server.control.trim_start_matches("http://").to_owned(), server.data.clone());
        let (client, lost, is_over) = (Mutex::default(), AtomicUsize::new(0), AtomicBool::new(false));
        LossyNetwork { control, data, server: up, client, real, told, lost, is_over }
    }

    /// Carries requests until it is over.
    fn carry_requests(&self) {
        let mut bytes = vec![0; 1 << 16];
        while !self.is_over.load(Relaxed) {
            let Ok((length, from)) = self.data.recv_from(&mut bytes) else { continue };
            *self.client.lock().unwrap() = Some(from);
            self.server.send(&bytes[..length]).unwrap();
        }
    }

    /// Carries answers, but the first one to each request.
    fn carry_answers(&self) {
        let (mut answered, mut bytes) = (HashSet::new(), vec![0; 1 << 16]);
        while !self.is_over.load(Relaxed) {
            let Ok(length) = self.server.recv(&mut bytes) else { continue };
            let packet = &bytes[..length];
            // R2P2: the type is the high half of the third byte, 1 of a response; the request's id is behind the flags.
            let is_response = length >= 8 && packet[0] == 0xCC && packet[2] >> 4 == 1;
            if is_response && answered.insert([packet[4], packet[5]]) {
                self.lost.fetch_add(1, Relaxed);
                continue;
            }
            let client = self.client.lock().unwrap().expect("a client that has asked");
            self.data.send_to(packet, client).unwrap();
        }
    }

    /// Carries connections to the control port until it is over.
    fn carry_connections<'s>(&'s self, scope: &'s Scope<'s, '_>) {
        while !self.is_over.load(Relaxed) {
            match self.control.accept() {
                Ok((client, _)) => drop(scope.spawn(move || self.carry_connection(client))),
                Err(_) => std::thread::sleep(LOOKS_EVERY),
            }
        }
    }

    /// Carries a connection until either has closed it. Answers name the network's own data port.
    fn carry_connection(&self, mut client: TcpStream) {
        client.set_nonblocking(false).unwrap();
        let mut server = TcpStream::connect(&self.real.0).unwrap();
        let (mut from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let _copied = std::io::copy(&mut from_client, &mut to_server);
                let _shut = to_server.shutdown(Shutdown::Write);
            });
            let mut bytes = vec![0; 1 << 16];
            while let Ok(length @ 1..) = server.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..length]).replace(&self.real.1, &self.told);
                if client.write_all(text.as_bytes()).is_err() {
                    break;
                }
            }
            let _shut = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
        });
    }
}

/// Each request is answered, and its first answer is lost: it is sent again, and has run once.
const LOST_ANSWERS: &str = r#"
import sandstorm

with sandstorm.Client(SERVER, "shop", TOKEN, timeout=60, sealing="never") as client:
    for number in range(20):
        assert client.increment("items", "sum") == number + 1
    for number in range(20):
        assert client.call("bank.deposit", {"name": "ann", "balance": 1}) == number + 1
    version = client.put("items", "once", "1", if_absent=True)
    assert client.delete("items", "once", if_version=version)
    with client.transaction() as transaction:
        transaction.increment("items", "sum", 100)
    client.put_many("items", {f"k{number}": "v" for number in range(300)})
    assert client.get("items", "sum") == b"120"
print("done")
"#;

#[test]
fn a_request_whose_answer_is_lost_is_not_run_twice_through_python() {
    let Some(mut python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let site = installed(folder.path());
    let (server, token) = bank();
    server.json("table create items");
    let network = LossyNetwork::new(&server);
    let address = network.control.local_addr().unwrap().to_string();
    let program = LOST_ANSWERS.replace("SERVER", &format!("{address:?}")).replace("TOKEN", &format!("{token:?}"));
    std::thread::scope(|scope| {
        scope.spawn(|| network.carry_requests());
        scope.spawn(|| network.carry_answers());
        scope.spawn(|| network.carry_connections(scope));
        let output = python.args(["-c", &program]).env("PYTHONPATH", site).output();
        network.is_over.store(true, Relaxed);
        let output = output.unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n", "{}", String::from_utf8_lossy(&output.stderr));
    });
    assert!(network.lost.load(Relaxed) >= 45, "{:?} answers were lost", network.lost);
    let sum = String::from_utf8(server.output("get items sum --raw").stdout).unwrap();
    assert_eq!(sum, "120", "each has run once");
}
