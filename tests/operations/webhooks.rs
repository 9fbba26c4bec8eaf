//! Promise: a running server posts what happens to the places that its configuration names: signed, over TLS where the
//! address says so, once, and what happened while the receiver was away afterwards, over a restart too.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};

use serde_json::Value;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::common::EVENTUALLY;
use crate::common::certificates::certificate;
use crate::common::process::Server;

const SECRET: &str = "a secret that is long enough for a key";

/// What a receiver got: the lines of its head, in small letters, and the body.
struct Delivery {
    head: Vec<String>,
    body: Vec<u8>,
}

impl Delivery {
    fn header(&self, name: &str) -> &str {
        let line = self.head.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("{name} in {:?}", self.head))
    }

    /// The codes and subjects of its events, oldest first.
    fn events(&self) -> Vec<(String, String)> {
        let body: Value = serde_json::from_slice(&self.body).expect("JSON");
        let text = |event: &Value, name: &str| event[name].as_str().unwrap_or_default().to_owned();
        let events = body["events"].as_array().expect("a list").iter();
        events.map(|event| (text(event, "code"), text(event, "tenant"))).collect()
    }

    /// Whether it was signed with the secret.
    fn is_signed(&self) -> bool {
        let signature = self.header("sandstorm-signature");
        let (at_s, mac) = signature.trim_start_matches("t=").split_once(",v1=").expect("two parts");
        let text = [at_s.as_bytes(), b".", &self.body].concat();
        let expected = hmac_sha256::HMAC::mac(text, SECRET.as_bytes());
        expected.iter().map(|byte| format!("{byte:02x}")).collect::<String>() == mac
    }
}

/// A place that takes deliveries, unless it is told to refuse them.
struct HookReceiver {
    address: String,
    gets: Receiver<Delivery>,
    refuses: Arc<AtomicBool>,
}

fn take_delivery(mut stream: impl Read + Write, refuses: bool) -> Option<Delivery> {
    let mut reader = BufReader::new(&mut stream);
    let (mut head, mut length) = (Vec::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().ok()?;
        }
        head.push(line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let status = if refuses { "503 later" } else { "204 taken" };
    write!(stream, "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").ok()?;
    stream.flush().ok()?;
    Some(Delivery { head, body })
}

impl HookReceiver {
    fn start(tls: Option<Arc<ServerConfig>>) -> HookReceiver {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let (got, gets): (Sender<Delivery>, _) = channel();
        let refuses = Arc::new(AtomicBool::new(false));
        let is_refusing = Arc::clone(&refuses);
        let serve = move |stream: TcpStream| {
            let refuses = is_refusing.load(Relaxed);
            match &tls {
                Some(config) => {
                    let session = ServerConnection::new(Arc::clone(config)).ok()?;
                    take_delivery(StreamOwned::new(session, stream), refuses)
                }
                None => take_delivery(stream, refuses),
            }
        };
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if let Some(delivery) = serve(stream)
                    && got.send(delivery).is_err()
                {
                    return;
                }
            }
        });
        HookReceiver { address, gets, refuses }
    }

    fn next(&self) -> Delivery {
        self.gets.recv_timeout(EVENTUALLY).expect("a delivery")
    }

    /// What came before, of a sender that is gone. It is taken in the order in which it came.
    fn came(&self) -> Vec<Delivery> {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        write!(stream, "POST /last HTTP/1.1\r\ncontent-length: 0\r\n\r\n").expect("it is sent");
        let came = std::iter::from_fn(|| Some(self.next()));
        came.take_while(|delivery| delivery.head[0] != "post /last http/1.1").collect()
    }

    /// The next delivery that has an event of a tenant.
    fn next_about(&self, tenant: &str) -> Delivery {
        loop {
            let delivery = self.next();
            if delivery.events().iter().any(|(_, of)| of == tenant) {
                return delivery;
            }
        }
    }
}

fn tls(folder: &Path) -> Arc<ServerConfig> {
    let (certificate_file, key_file) = certificate(folder, "localhost", 2090);
    let certificate = CertificateDer::from_pem_file(certificate_file).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(key_file).expect("a key");
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().expect("versions").with_no_client_auth();
    Arc::new(builder.with_single_cert(vec![certificate], key).expect("they belong together"))
}

#[test]
fn a_running_server_posts_what_happens_signed_and_what_was_missed_after_a_restart() {
    let folder = Arc::new(tempfile::tempdir().expect("a folder"));
    let (plain, sealed) = (HookReceiver::start(None), HookReceiver::start(Some(tls(folder.path()))));
    let (_, port) = sealed.address.rsplit_once(':').expect("a port");
    let secret = folder.path().join("secret");
    fs::write(&secret, format!("{SECRET}\n")).expect("room");
    let certificate = folder.path().join("certificate.pem");
    let config = format!(
        "[[webhooks]]\nurl = 'http://{}/hook'\nsecret_file = '{secret}'\ncodes = ['tenant']\n\
         [[webhooks]]\nurl = 'https://localhost:{port}/hook'\nsecret_file = '{secret}'\nca = '{ca}'\n",
        plain.address,
        secret = secret.display(),
        ca = certificate.display(),
    );
    let file = folder.path().join("hooks.toml");
    fs::write(&file, config).expect("room");
    let file = file.display().to_string();
    let start = || {
        let options = ["--data", "127.0.0.1:0", "--workers", "1", "--no-pin", "--no-builder", "--config", &file];
        Server::start_in(None, Arc::clone(&folder), &options)
    };
    let server = start();
    server.json("tenant create first");
    server.json("table create items --tenant first");
    let delivery = plain.next();
    assert_eq!(delivery.events(), [("tenant.created".to_owned(), "first".to_owned())], "of its codes alone");
    assert!(delivery.is_signed(), "{:?}", delivery.head);
    assert_eq!(delivery.head[0], "post /hook http/1.1");
    // All codes go over TLS, to a certificate that its authority vouches for.
    let sent = sealed.next_about("first");
    assert!(sent.is_signed() && sent.header("sandstorm-delivery").contains('-'), "{:?}", sent.head);
    // One that is refused is sent again, with the same number and no other event: it was not taken.
    plain.refuses.store(true, Relaxed);
    server.json("tenant create second");
    let refused = plain.next();
    assert_eq!(refused.events(), [("tenant.created".to_owned(), "second".to_owned())]);
    let number = refused.header("sandstorm-delivery").to_owned();
    drop(server);
    // Those that were tried before it ended are of the same event.
    plain.came().iter().for_each(|again| assert_eq!(again.header("sandstorm-delivery"), number));
    plain.refuses.store(false, Relaxed);
    let server = start();
    let again = plain.next();
    assert_eq!((again.events(), again.header("sandstorm-delivery")), (refused.events(), number.as_str()));
    // Nothing of before comes twice.
    server.json("tenant create third");
    assert_eq!(plain.next().events(), [("tenant.created".to_owned(), "third".to_owned())]);
    let events = server.json("events --code webhook");
    assert!(events.to_string().contains("webhook.failing"), "{events}");
}
