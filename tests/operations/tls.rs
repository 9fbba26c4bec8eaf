//! Promise: the control port speaks TLS where that is configured. Only clients that are configured with its certificate
//! accept it, and it takes a new certificate without a restart. Clients that never finish a handshake do not block it.
//! Runs the real binary on free ports.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::certificates::certificate;
use crate::common::process::binary;
use rcgen::KeyPair;
use sandstorm_client::control::{Control, Trust};
use serde_json::Value;

/// A server process of the test's own; asked to end, and waited for, when dropped.
struct Server {
    process: Child,
    answer_text: Value,
    folder: tempfile::TempDir,
}

/// `serve` with a folder's state directory; its output is captured.
fn serve(folder: &Path, options: &[&str]) -> Command {
    let mut command = binary();
    command.args(["serve", "--json", "--no-pin", "--workers", "1", "--no-builder", "--data", "127.0.0.1:0"]);
    if !options.contains(&"--control") {
        command.args(["--control", "127.0.0.1:0"]);
    }
    command.args(options).arg("--state").arg(folder.join("state")).stdout(Stdio::piped());
    command
}

impl Server {
    fn start(options: &[&str]) -> Server {
        Server::start_in(tempfile::tempdir().unwrap(), options)
    }

    fn start_in(folder: tempfile::TempDir, options: &[&str]) -> Server {
        let mut process = serve(folder.path(), options).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let answer_text = serde_json::from_str(&line).expect("the server says where it is");
        Server { process, answer_text, folder }
    }

    fn text(&self, name: &str) -> String {
        self.answer_text[name].as_str().unwrap_or_else(|| panic!("{name} in {}", self.answer_text)).to_owned()
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// Runs a command on the server's machine, without any options.
    fn here(&self, line: &str) -> Output {
        binary().args(line.split_whitespace()).env("SANDSTORM_STATE", self.state()).output().unwrap()
    }

    /// Runs a command as on another machine: with the operator's token, but without the state directory.
    fn afar(&self, url: &str, options: &[&str]) -> Output {
        let token = fs::read_to_string(self.state().join("operator-token")).unwrap();
        let mut command = binary();
        command.args(["tenant", "list", "--server", url, "--token", token.trim()]).args(options);
        command.arg("--state").arg(self.folder.path().join("elsewhere")).output().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let stopped = self.here("stop");
        if !stopped.status.success() {
            let _ended_already = self.process.kill();
        }
        let _status = self.process.wait();
    }
}

fn good(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The error of a command that must fail.
fn fails(output: &Output) -> String {
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("error: ") && text.contains("hint: "), "{text}");
    text
}

#[test]
fn a_made_certificate_is_believed_here_by_its_file_and_by_its_fingerprint_and_not_otherwise() {
    let server = Server::start(&["--control-tls"]);
    let url = server.text("control_url");
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    good(&server.here("tenant create shop"));
    assert!(good(&server.here("tenant list")).contains("shop"), "on the server's machine nothing has to be typed");
    good(&server.here("table create carts"));
    good(&server.here("put carts k v"));

    let (file, fingerprint) = (server.text("certificate"), server.text("fingerprint"));
    assert!(good(&server.afar(&url, &["--ca", &file])).contains("shop"));
    assert!(good(&server.afar(&url, &["--fingerprint", &fingerprint])).contains("shop"));
    let colons: Vec<String> = fingerprint.as_bytes()["sha256:".len()..]
        .chunks(2)
        .map(|two| String::from_utf8_lossy(two).to_uppercase())
        .collect();
    good(&server.afar(&url, &["--fingerprint", &format!("SHA256:{}", colons.join(":"))]));

    let nobody = fails(&server.afar(&url, &[]));
    assert!(nobody.contains("no trusted authority has signed") && nobody.contains("--fingerprint"), "{nobody}");
    let other = fails(&server.afar(&url, &["--fingerprint", &format!("sha256:{}", "ab".repeat(32))]));
    assert!(other.contains("not the one that is pinned"), "{other}");
    let plain = fails(&server.afar(&url.replace("https://", "http://"), &[]));
    assert!(plain.contains("this port speaks TLS") && plain.contains("https://"), "{plain}");
    let bad = server.afar(&url, &["--ca", "/nowhere"]);
    assert!(String::from_utf8_lossy(&bad.stderr).contains("cannot be read"), "{bad:?}");

    for name in ["control-key.pem", "control-certificate.pem", "operator-token", "control.json"] {
        let mode = fs::metadata(server.state().join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{name}");
    }
    // A second start shows the same certificate: clients' pins stay valid.
    let Server { ref folder, .. } = server;
    let kept = fs::read(folder.path().join("state/control-certificate.pem")).unwrap();
    let again = tempfile::tempdir().unwrap();
    fs::create_dir(again.path().join("state")).unwrap();
    fs::set_permissions(again.path().join("state"), PermissionsExt::from_mode(0o700)).unwrap();
    for name in ["control-key.pem", "control-certificate.pem"] {
        fs::copy(server.state().join(name), again.path().join("state").join(name)).unwrap();
    }
    let second = Server::start_in(again, &["--control-tls"]);
    assert_eq!(second.text("fingerprint"), fingerprint);
    assert_eq!(fs::read(second.state().join("control-certificate.pem")).unwrap(), kept);
}

#[test]
fn wrong_names_dates_and_plain_servers_have_each_their_own_words() {
    let folder = tempfile::tempdir().unwrap();
    let (file, key) = certificate(folder.path(), "db.example", 2060);
    let (file, key) = (file.to_str().unwrap().to_owned(), key.to_str().unwrap().to_owned());
    let server = Server::start_in(folder, &["--control-certificate", &file, "--control-key", &key]);
    let url = server.text("control_url");
    let name = fails(&server.afar(&url, &["--ca", &file]));
    assert!(name.contains("is for another name") && name.contains("--control-name"), "{name}");
    good(&server.here("tenant list"));
    good(&server.afar(&url, &["--fingerprint", &server.text("fingerprint")]));

    let folder = tempfile::tempdir().unwrap();
    let (file, key) = certificate(folder.path(), "127.0.0.1", 2001);
    let (file, key) = (file.to_str().unwrap().to_owned(), key.to_str().unwrap().to_owned());
    let expired = Server::start_in(folder, &["--control-certificate", &file, "--control-key", &key]);
    let answer_text = fails(&expired.afar(&expired.text("control_url"), &["--ca", &file]));
    assert!(answer_text.contains("certificate has expired") && answer_text.contains("renew it"), "{answer_text}");

    let plain = Server::start(&[]);
    let answer_text = fails(&plain.afar(&plain.text("control_url").replace("http://", "https://"), &[]));
    assert!(answer_text.contains("does not speak TLS") && answer_text.contains("http://"), "{answer_text}");
    let pinned = format!("sha256:{}", "00".repeat(32));
    let answer_text = fails(&plain.afar(&plain.text("control"), &["--fingerprint", &pinned]));
    assert!(answer_text.contains("does not speak TLS"), "a pin means TLS: {answer_text}");
}

#[test]
fn a_renewed_certificate_is_shown_without_a_restart_and_a_broken_one_never() {
    let folder = tempfile::tempdir().unwrap();
    let (file, key) = certificate(folder.path(), "127.0.0.1", 2060);
    let options = ["--control-certificate", file.to_str().unwrap(), "--control-key", key.to_str().unwrap()];
    let server = Server::start_in(folder, &options);
    let (url, first) = (server.text("control_url"), server.text("fingerprint"));
    let ca = file.to_str().unwrap();
    good(&server.afar(&url, &["--ca", ca]));

    // Half of a replacement: the key no longer fits. The server continues with the old pair.
    let good_key = fs::read(&key).unwrap();
    fs::write(&key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
    hang_up(&server);
    good(&server.afar(&url, &["--fingerprint", &first]));
    fs::write(&key, good_key).unwrap();

    certificate(server.folder.path(), "127.0.0.1", 2061);
    hang_up(&server);
    let waited = Instant::now();
    while !server.afar(&url, &["--ca", ca]).status.success() {
        assert!(waited.elapsed() < crate::common::EVENTUALLY, "the new certificate is not shown");
    }
    assert!(fails(&server.afar(&url, &["--fingerprint", &first])).contains("not the one that is pinned"));
    while !server.here("tenant list").status.success() {
        assert!(
            waited.elapsed() < crate::common::EVENTUALLY,
            "the command line here does not know the new certificate"
        );
    }
}

/// Sends SIGHUP.
fn hang_up(server: &Server) {
    let sent = Command::new("kill").args(["-HUP", &server.process.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn what_may_not_be_is_refused_at_the_start_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let (file, key) = certificate(folder.path(), "localhost", 2060);
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (file, key) = (text(&file), text(&key));
    let other = tempfile::tempdir().unwrap();
    let (_, other_key) = certificate(other.path(), "localhost", 2060);
    let (other_key, open_key) = (text(&other_key), text(&folder.path().join("open.pem")));
    fs::copy(&key, &open_key).unwrap();
    fs::set_permissions(&open_key, PermissionsExt::from_mode(0o644)).unwrap();
    let group_key = text(&folder.path().join("group.pem"));
    fs::copy(&key, &group_key).unwrap();
    fs::set_permissions(&group_key, PermissionsExt::from_mode(0o660)).unwrap();
    let no_key = text(&folder.path().join("empty.pem"));
    fs::write(&no_key, "").unwrap();
    fs::set_permissions(&no_key, PermissionsExt::from_mode(0o600)).unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&["--control", "0.0.0.0:0"], "--control-tls"),
        (&["--control", "[::]:0"], "--allow-plain-control"),
        (&["--control-certificate", &file, "--control-key", "/nowhere"], "/nowhere"),
        (&["--control-certificate", &key, "--control-key", &key], "holds no certificate"),
        (&["--control-certificate", &file, "--control-key", &no_key], "holds no private key"),
        (&["--control-certificate", &file, "--control-key", &other_key], "is not the key of"),
        (&["--control-certificate", &file, "--control-key", &open_key], "others could read the key; run: chmod 600"),
        (&["--control-certificate", &file, "--control-key", &group_key], "its group could replace the key"),
        (&["--control-tls", "--control-name", "not a name!"], "neither a host's name nor an address"),
    ];
    for (options, expected) in cases {
        let output = serve(other.path(), options).output().unwrap();
        let answer_text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && answer_text.contains(expected), "{options:?}: {answer_text}");
    }
    fs::set_permissions(&group_key, PermissionsExt::from_mode(0o640)).unwrap();
    let shared = Server::start(&["--control-certificate", &file, "--control-key", &group_key]);
    assert!(good(&shared.here("health")).contains("version"), "a key that its group may read");
    let named = Server::start(&["--control", "0.0.0.0:0", "--control-tls", "--control-name", "db.example"]);
    assert!(good(&named.here("health")).contains("version"), "found although it is bound to every address");
}

#[test]
fn handshakes_that_never_end_block_no_other_and_time_out() {
    let server = Server::start(&["--control-tls"]);
    let address = server.text("control");
    // More than there are slots: idle ones, ones with the beginning of a handshake, ones that speak another protocol.
    let hello = [22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3];
    let idle: Vec<TcpStream> = (0..300)
        .map(|n| {
            let mut stream = TcpStream::connect(&address).unwrap();
            if n % 2 == 0 {
                let _closed = stream.write_all(&hello);
            }
            stream
        })
        .collect();
    let waited = Instant::now();
    good(&server.here("tenant list"));
    assert!(waited.elapsed() < Duration::from_secs(10), "it waits for no patience: {:?}", waited.elapsed());
    let token = fs::read_to_string(server.state().join("operator-token")).unwrap();
    let trust = Trust::in_file(Path::new(&server.text("certificate"))).unwrap();
    let control = Control::with_trust(&server.text("control_url"), Some(token.trim()), Duration::from_secs(60), &trust);
    // A connection that was admitted late has not timed out yet; those that close on their own do not count.
    let slow = || control.stat().unwrap().counters["control_too_slow"];
    while slow() < 100 {
        assert!(waited.elapsed() < Duration::from_secs(80), "only {} were too slow", slow());
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(idle);

    let mut plain = TcpStream::connect(&address).unwrap();
    plain.write_all(b"GET /v1/health HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    let mut answer = String::new();
    plain.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("this port speaks TLS"), "{answer}");
    let mut junk = TcpStream::connect(&address).unwrap();
    junk.write_all(&[22, 3, 3, 0, 4, 1, 2, 3, 4]).unwrap();
    let mut rest = Vec::new();
    let _reset = junk.read_to_end(&mut rest);
    assert!(rest.len() < 64, "at most an alert: {rest:?}");
    let counters = control.stat().unwrap().counters;
    for name in ["control_not_tls", "control_handshakes_failed"] {
        assert!(counters[name] >= 1, "{name}: {}", counters[name]);
    }
}

#[test]
fn half_requests_hold_the_operator_up_neither_in_headers_nor_in_bodies() {
    let server = Server::start(&[]);
    let address = server.text("control");
    let token = fs::read_to_string(server.state().join("operator-token")).unwrap();
    good(&server.here("tenant create shop"));
    let halves = [
        "G".to_owned(),
        "GET /v1/tenants HTTP/1.1\r\nhost: a\r\n".to_owned(),
        "POST /v1/tenants HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n{".to_owned(),
        "PUT /v1/tenants/shop/extensions/e HTTP/1.1\r\nhost: a\r\nauthorization: Bearer x\r\ncontent-length: 100000\r\n\r\n".to_owned(),
        // The operator's own token before a body that never arrives.
        format!(
            "POST /v1/tenants HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {}\r\ncontent-length: 1000\r\n\r\n{{",
            token.trim()
        ),
        // Complete, and kept open.
        "GET /v1/health HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
    ];
    for half in halves {
        for number in [32, 300] {
            let held: Vec<TcpStream> = (0..number)
                .map(|_| {
                    let mut stream = TcpStream::connect(&address).unwrap();
                    // It may have been shed already.
                    let _sent = stream.write_all(half.as_bytes());
                    stream
                })
                .collect();
            let begun = Instant::now();
            assert!(good(&server.here("tenant list")).contains("shop"));
            assert!(begun.elapsed() < Duration::from_secs(10), "{number} of {half:?}: {:?}", begun.elapsed());
            drop(held);
        }
    }
    let control = Control::new(&server.text("control_url"), Some(token.trim()));
    assert!(control.stat().unwrap().counters["control_shed"] > 0);
}

#[test]
fn who_has_no_token_learns_of_no_tenant_table_or_extension() {
    let server = Server::start(&[]);
    good(&server.here("tenant create shop"));
    good(&server.here("table create t --tenant shop"));
    let ask = |method: &str, path: &str, token: &str| {
        let mut stream = TcpStream::connect(server.text("control")).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n{token}connection: close\r\n\r\n{{}}"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 401"), "{method} {path}: {answer}");
        let dated = answer.lines().filter(|line| !line.starts_with("date: "));
        dated.collect::<Vec<_>>().join("\n")
    };
    let pairs = [
        ("GET", "", ""),
        ("PATCH", "", ""),
        ("DELETE", "", ""),
        ("POST", "/rotate", "/rotate"),
        ("GET", "/tables/t", "/tables/nosuch"),
        ("DELETE", "/tables/t", "/tables/nosuch"),
        ("GET", "/extensions/e", "/extensions/f"),
    ];
    // With an invalid token the answers are delayed, but the same: only a few are requested.
    for (token, count) in [("", pairs.len()), ("authorization: Bearer a_token_that_is_nobodys\r\n", 2)] {
        for (method, there, absent) in &pairs[..count] {
            let told = ask(method, &format!("/v1/tenants/shop{there}"), token);
            assert_eq!(told, ask(method, &format!("/v1/tenants/nosuch{there}"), token));
            assert_eq!(told, ask(method, &format!("/v1/tenants/shop{absent}"), token));
        }
    }
}

#[test]
fn with_all_descriptors_taken_the_operator_is_answered_still() {
    let folder = tempfile::tempdir().unwrap();
    // As few as a server needs, and some for clients.
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 80 && exec \"$@\"", "sh"]).arg(binary().get_program());
    let server = serve(folder.path(), &["--memcached", "127.0.0.1:0"]);
    limited.args(server.get_args()).stdout(Stdio::piped());
    let mut process = limited.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let server = Server { process, answer_text: serde_json::from_str(&line).expect("it starts"), folder };
    let data = server.answer_text["memcached"][0].as_str().unwrap().to_owned();
    let clients: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(&data).unwrap()).collect();
    let halves: Vec<TcpStream> = (0..300)
        .map(|_| {
            let mut stream = TcpStream::connect(server.text("control")).unwrap();
            let _sent = stream.write_all(b"GET / HTTP/1.1\r\n");
            stream
        })
        .collect();
    for line in ["health", "tenant create shop", "table create t --tenant shop", "stat --all", "tenant list"] {
        let begun = Instant::now();
        good(&server.here(line));
        assert!(begun.elapsed() < Duration::from_secs(10), "{line}: {:?}", begun.elapsed());
    }
    drop((clients, halves));
}

#[test]
fn a_server_that_does_not_answer_is_given_up_with_a_reason() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    for line in ["health", "tenant list", "stop"] {
        let mut command = binary();
        command
            .args(line.split_whitespace())
            .args(["--server", &address, "--timeout", "1", "--state"])
            .arg(folder.path());
        let answer_text = fails(&command.output().unwrap());
        assert!(answer_text.contains(&format!("no answer from http://{address} for 1 s")), "{answer_text}");
        assert!(answer_text.contains("overloaded") && answer_text.contains("--timeout"), "{answer_text}");
    }
    let mut command = binary();
    let output = command.args(["health", "--timeout", "0", "--server", &address]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "no time at all is none");
}
