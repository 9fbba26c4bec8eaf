//! A control port as far as copies need one.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

use sandstorm_log::ReplicaBatch;

use crate::copy_stream::{COPY_STREAM_PATH, serve_copy_stream};
use crate::limits::LEASE;
use crate::move_coordinator::MoveCoordinator;
use crate::peer_link::PEER_KEY_HEADER;
use crate::replica_messages::ReplicaHead;

/// A server of these tests, as others reach it.
pub(super) struct ServedCopies<'a> {
    pub(super) coordinator: &'a MoveCoordinator,
    /// Whether its disk takes longer than a lease.
    pub(super) is_slow: &'a AtomicBool,
    /// Whether it answers over connections for questions, and not to requests alone.
    pub(super) has_streams: bool,
}

impl ServedCopies<'_> {
    fn answer(&self, question: &[u8]) -> Vec<u8> {
        let answer = self.coordinator.copies_view().copy_store().unwrap().answer(question).unwrap();
        let has_pieces = ReplicaHead::decode(question)
            .is_ok_and(|(_, pieces)| ReplicaBatch::decode(pieces).is_some_and(|batch| !batch.is_empty()));
        if has_pieces && self.is_slow.load(Ordering::Acquire) {
            std::thread::sleep(LEASE + LEASE / 4);
        }
        answer
    }

    /// Answers what comes over a connection, until it ends.
    pub(super) fn serve(&self, mut stream: &TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream);
        loop {
            let (mut length, mut key, mut first) = (0, String::new(), String::new());
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line)? == 0 {
                    return Ok(());
                }
                let line = line.trim_end();
                if line.is_empty() {
                    break;
                }
                match line.split_once(": ").map(|(name, value)| (name.to_ascii_lowercase(), value)) {
                    Some((name, value)) if name == "content-length" => length = value.parse().unwrap(),
                    Some((name, value)) if name == PEER_KEY_HEADER => value.clone_into(&mut key),
                    Some(_) => {}
                    None => line.clone_into(&mut first),
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            assert!(self.coordinator.is_peer_key(&key), "servers show each other the cluster's key");
            if !first.contains(COPY_STREAM_PATH) {
                let answer = self.answer(&body);
                write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", answer.len())?;
                stream.write_all(&answer)?;
            } else if self.has_streams {
                stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: sandstorm-copies\r\n\r\n")?;
                return serve_copy_stream(stream, |question| Some(Ok(self.answer(question))));
            } else {
                stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")?;
            }
        }
    }
}
