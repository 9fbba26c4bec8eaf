//! Promise: a builder on another host speaks TLS where that is configured. A server accepts the configured certificate
//! and no other, and takes a renewed one without a restart. When the two do not fit, the error says what is wrong and
//! what to do. Runs the real binary on free ports.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::common;
use sandstorm_builder::protocol::BuildRequest;
use sandstorm_builder::{BuilderConfig, PushedSource, RemoteBuilder, RemoteCertificate, RemoteConfig, SourceFile};
use sandstorm_control::config::{CliOverrides, ServerSettings};
use sandstorm_net::CodeTier;
use serde_json::Value;

/// A builder of the test's own; asked to end, and waited for, when dropped.
struct Service {
    process: Child,
    answer_text: Value,
    state: PathBuf,
}

/// `builder serve` with a folder's state directory.
fn serve(folder: &Path, options: &[&str]) -> Command {
    let config = folder.join("builder.toml");
    // The kernel of the machine that runs the tests may offer no sandbox; the tests of the sandbox itself say so.
    fs::write(&config, "[builder]\nallow_unsandboxed = true\ncompilers = 1\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandstorm-under-test"));
    command.args(["builder", "serve", "--json"]).arg("--config").arg(config).arg("--state").arg(folder.join("state"));
    if !options.contains(&"--listen") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    command.args(options).stdout(Stdio::piped()).env_remove("RUST_LOG");
    command
}

impl Service {
    fn start(folder: &Path, options: &[&str]) -> Service {
        let mut process = serve(folder, options).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let answer_text = serde_json::from_str(&line).expect("the builder says where it is");
        Service { process, answer_text, state: folder.join("state") }
    }

    fn text(&self, name: &str) -> String {
        self.answer_text[name].as_str().unwrap_or_else(|| panic!("{name} in {}", self.answer_text)).to_owned()
    }

    /// The error of a server that asks the builder for its hello, or for a build; `None`: it was built.
    fn answer(&self, url: &str, certificate: RemoteCertificate) -> Option<String> {
        let token_file = self.state.join("builder/builder-token");
        let remote = RemoteConfig { url: url.to_owned(), token_file, certificate };
        let builder = RemoteBuilder::open(&remote, &BuilderConfig::default()).expect("a remote builder");
        builder.answer(&request()).err().map(|error| error.to_string())
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.process.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.signal("-TERM");
        let _status = self.process.wait();
    }
}

fn request() -> BuildRequest {
    let text = "#![no_std]\nuse sandstorm_api::prelude::*;\n\
                pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {\n    db.reply(args)\n}\n";
    let file = SourceFile { path: "src/lib.rs".to_owned(), text: text.into() };
    let source = PushedSource::new("name = \"test\"", vec![file]).expect("a source");
    BuildRequest {
        tenant: 7,
        version: 1,
        source: source.into(),
        tier: CodeTier::Native,
        denied: Vec::new(),
        check_only: false,
    }
}

/// A certificate and its key, as options of the command line.
fn certificate(folder: &Path, name: &str, last_year: i32) -> (String, String) {
    let (file, key) = common::certificates::certificate(folder, name, last_year);
    (file.display().to_string(), key.display().to_string())
}

fn pinned(fingerprint: &str) -> RemoteCertificate {
    RemoteCertificate::Fingerprint(fingerprint.to_owned())
}

#[test]
fn a_server_builds_at_a_builder_whose_certificate_it_was_told_and_at_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path(), &["--tls"]);
    let (url, fingerprint) = (service.text("url"), service.text("fingerprint"));
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    assert_eq!(service.answer(&url, pinned(&fingerprint)), None, "built over TLS, by fingerprint");
    let file = PathBuf::from(service.text("certificate"));
    assert_eq!(service.answer(&url, RemoteCertificate::Ca(file.clone())), None, "and by the certificate's file");
    for private in [file.clone(), file.with_file_name("tls-key.pem")] {
        assert_eq!(fs::metadata(private).unwrap().permissions().mode() & 0o777, 0o600);
    }

    let other =
        service.answer(&url, pinned(&format!("sha256:{}", "ab".repeat(32)))).expect("not the one that is pinned");
    assert!(other.contains("not the one that is pinned") && other.contains("remote_fingerprint"), "{other}");
    let nobody = service.answer(&url, RemoteCertificate::Public).expect("nobody vouches for it");
    assert!(nobody.contains("no trusted authority") && nobody.contains("remote_fingerprint"), "{nobody}");
    let plain = RemoteConfig {
        url: url.replace("https://", "http://"),
        token_file: service.state.join("builder/builder-token"),
        certificate: RemoteCertificate::Public,
    };
    let plain = RemoteBuilder::open(&plain, &BuilderConfig::default()).expect("a remote builder");
    let answer_text = plain.answer(&request()).expect_err("it speaks TLS").to_string();
    assert!(
        answer_text.contains("it speaks TLS; say https://") && answer_text.contains("remote_fingerprint"),
        "{answer_text}"
    );
    drop(service);
    let again = Service::start(folder.path(), &["--tls"]);
    assert_eq!(again.text("fingerprint"), fingerprint, "a second start shows the same certificate");
}

#[test]
fn old_and_foreign_certificates_and_plain_builders_have_each_their_own_words() {
    let folder = tempfile::tempdir().unwrap();
    let (file, key) = certificate(folder.path(), "127.0.0.1", 2001);
    let options = ["--tls-certificate", &file, "--tls-key", &key];
    let service = Service::start(folder.path(), &options);
    let (url, by_file) = (service.text("url"), || RemoteCertificate::Ca(PathBuf::from(&file)));
    let expired = service.answer(&url, by_file()).expect("it has expired");
    assert!(expired.contains("has expired") && expired.contains("without a restart"), "{expired}");

    certificate(folder.path(), "builder.example", 2060);
    service.signal("-HUP");
    let waited = Instant::now();
    let renewed = loop {
        let answer_text = service.answer(&url, by_file()).expect("it is for another name");
        if !answer_text.contains("no trusted authority") && !answer_text.contains("has expired") {
            break answer_text;
        }
        assert!(waited.elapsed() < crate::common::EVENTUALLY, "the new certificate is not shown: {answer_text}");
    };
    assert!(renewed.contains("is for another name") && renewed.contains("--tls-name"), "{renewed}");
    drop(service);

    let service = Service::start(folder.path(), &[]);
    let url = service.text("url");
    assert!(url.starts_with("http://"), "{url}");
    let answer_text =
        service.answer(&url.replace("http://", "https://"), RemoteCertificate::Public).expect("it is plain");
    assert!(answer_text.contains("does not speak TLS") && answer_text.contains("--tls"), "{answer_text}");
}

#[test]
fn what_may_not_be_is_refused_at_the_start_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let (file, key) = certificate(folder.path(), "localhost", 2060);
    let cases: &[(&[&str], &str)] = &[
        (&["--listen", "0.0.0.0:0"], "say --tls"),
        (&["--listen", "[::]:0"], "--allow-plain"),
        (&["--tls-certificate", &file, "--tls-key", "/nowhere"], "builder_tls: /nowhere"),
        (&["--tls-certificate", &key, "--tls-key", &key], "holds no certificate"),
        (&["--tls", "--tls-name", "not a name!"], "neither a host's name nor an address"),
    ];
    for (options, expected) in cases {
        let output = serve(folder.path(), options).output().unwrap();
        let answer_text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && answer_text.contains(expected), "{options:?}: {answer_text}");
    }
    let pin = format!("sha256:{}", "ab".repeat(32));
    let config = |lines: &str| {
        let key = "66".repeat(31);
        let head = format!("[builder]\ntrusted_keys = [\"58{key}\"]\nremote_token_file = \"t\"\n");
        ServerSettings::parse(&(head + lines), "f", &CliOverrides::default()).map_err(|error| error.to_string())
    };
    let https = "remote = \"https://builder:7398\"\n";
    let good = config(&format!("{https}remote_fingerprint = \"{pin}\"\n"));
    let remote = good.expect("a good configuration").builder.remote.expect("a remote builder");
    assert_eq!(remote.certificate, pinned(&pin));
    for (lines, expected) in [
        (format!("{https}remote_fingerprint = \"sha256:ab\"\n"), "64 hexadecimal digits"),
        (format!("{https}remote_fingerprint = \"{pin}\"\nremote_ca = \"f\"\n"), "leave one out"),
        (format!("remote = \"http://127.0.0.1:1\"\nremote_fingerprint = \"{pin}\"\n"), "say https://"),
    ] {
        let refused = config(&lines).expect_err("refused");
        assert!(refused.contains(expected), "{refused}");
    }
}
