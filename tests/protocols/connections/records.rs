//! TLS records that cost more than they are worth: new keys, halves of messages, a byte at a time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::cipher::{MessageEncrypter, OutboundChunks, OutboundPlainMessage};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    ClientConfig, ConnectionTrafficSecrets, ContentType, ProtocolVersion, SupportedCipherSuite,
};

use super::metric;
use super::ports::{Secure, Secured, read_from, secure};

/// A client with a finished handshake that makes its records itself.
struct Hand {
    socket: TcpStream,
    encrypter: Box<dyn MessageEncrypter>,
    sequence: u64,
}

impl Hand {
    fn new(server: &Secured) -> Hand {
        let mut config = ClientConfig::clone(&server.client(&[&TLS13]));
        config.enable_secret_extraction = true;
        let mut stream = secure(&Arc::new(config), server.memcached);
        stream.conn.complete_io(&mut stream.sock).expect("a handshake");
        let (conn, socket) = stream.into_parts();
        let Some(SupportedCipherSuite::Tls13(suite)) = conn.negotiated_cipher_suite() else { panic!("not TLS 1.3") };
        let (sequence, secrets) = conn.dangerous_extract_secrets().expect("secrets").tx;
        let (ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv }) = secrets
        else {
            panic!("another suite")
        };
        Hand { socket, encrypter: suite.aead_alg.encrypter(key, iv), sequence }
    }

    fn record(&mut self, typ: ContentType, bytes: &[u8]) -> Vec<u8> {
        let payload = OutboundChunks::Single(bytes);
        let plain = OutboundPlainMessage { typ, version: ProtocolVersion::TLSv1_2, payload };
        let record = self.encrypter.encrypt(plain, self.sequence).expect("a record").encode();
        self.sequence += 1;
        record
    }

    /// Returns whether the server has closed it; otherwise the server has sent something.
    fn has_ended(&mut self) -> bool {
        let mut received = [0; 4096];
        loop {
            match self.socket.read(&mut received) {
                Ok(0) => return true,
                // Tickets, and the reason for the close.
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }
}

#[test]
fn half_of_a_message_that_never_ends_is_not_kept() {
    let server = Secured::start(1);
    let mut hand = Hand::new(&server);
    let message = [&[24, 0, 0xfd, 0xe8][..], &[0; 64_900]].concat();
    for part in message.chunks(16_384) {
        let record = hand.record(ContentType::Handshake, part);
        let _may_be_closed = hand.socket.write_all(&record);
    }
    assert!(hand.has_ended());
    assert_eq!(metric(&server.plane, "connections_refused.protocol"), 1);
    // A large record that arrives in small parts does not count as one.
    let mut hand = Hand::new(&server);
    let value = [&b"set a 0 0 16000\r\n"[..], &[b'x'; 16_000], b"\r\n"].concat();
    let record = hand.record(ContentType::ApplicationData, &value);
    for part in record.chunks(1_000) {
        hand.socket.write_all(part).expect("said");
    }
    let mut stream = secure(&server.client(&[&TLS13]), server.memcached);
    while read_from(&mut stream, b"mg a s\r\n", b"\r\n") != "HD s16000\r\n" {}
}

#[test]
fn who_changes_keys_without_end_is_ended() {
    let server = Secured::start(1);
    let config = server.client(&[&TLS13]);
    let change = |stream: &mut Secure, times: usize| {
        for time in 0..times {
            stream.conn.refresh_traffic_keys().expect("new keys");
            if time % 20 == 0 {
                // The library allows so many key changes for each byte of data.
                stream.conn.writer().write_all(b"mn\r\n").expect("said");
            }
            let _may_be_closed = stream.conn.complete_io(&mut stream.sock);
        }
    };
    let mut stream = secure(&config, server.memcached);
    stream.conn.complete_io(&mut stream.sock).expect("a handshake");
    change(&mut stream, 100);
    assert_eq!(
        read_from(&mut stream, b"mn\r\n", "MN\r\n".repeat(6).as_bytes()),
        "MN\r\n".repeat(6),
        "some are no harm"
    );
    change(&mut stream, 300);
    assert!(read_from(&mut stream, b"mn\r\n", b"<closed>").ends_with("<closed>"));
    assert_eq!(metric(&server.plane, "connections_refused.protocol"), 1);
}

#[test]
fn records_of_a_byte_are_decrypted_in_slices_and_all_are_heard() {
    let server = Secured::start(2);
    let mut hand = Hand::new(&server);
    let times = 2_000;
    let mut sent = Vec::new();
    for byte in b"set a 0 0 1 noreply\r\nx\r\n".repeat(times / 24) {
        sent.extend(hand.record(ContentType::ApplicationData, &[byte]));
    }
    sent.extend(hand.record(ContentType::ApplicationData, b"set b 0 0 1\r\ny\r\n"));
    let before = metric(&server.plane, "connection_batches");
    hand.socket.write_all(&sent).expect("said");
    let mut stream = secure(&server.client(&[&TLS13]), server.memcached);
    while !read_from(&mut stream, b"get b\r\n", b"END\r\n").contains("VALUE b") {}
    let batches = metric(&server.plane, "connection_batches") - before;
    assert!(batches > times as u64 / 100, "{batches}");
    assert_eq!(read_from(&mut stream, b"get a\r\n", b"END\r\n"), "VALUE a 0 1\r\nx\r\nEND\r\n");
}
