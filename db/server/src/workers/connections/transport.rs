//! The transport of a connection: its socket, or TLS over it. Neither ever waits.
//!
//! TLS is driven from here with the worker's own buffers. Input is decrypted record by record, for a slice of time at
//! most. The rest waits here, and the connection is queued for it, since the selector does not know of it. Output is
//! encrypted at most two records ahead.

use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use sandstorm_net::driver::{StreamProgress, StreamSocket};
use tokio_rustls::rustls::{ServerConfig, ServerConnection};

use super::records::Records;
use crate::limits::ports::{
    TLS_BARE_RECORD_BYTES, TLS_BARE_RECORD_WORK, TLS_BARE_RECORDS, TLS_BUFFER_BYTES, TLS_HANDSHAKE_BYTES,
    TLS_IDLE_BYTES, TLS_RECORD_WORK, TLS_SEND_BYTES, TLS_SLICE_WORK,
};
use sandstorm_dialects::limits::protocols::BYTES_PER_REQUEST;

/// The transport of a connection.
pub(super) enum ConnectionTransport {
    Plain(StreamSocket),
    Tls(Box<TlsTransport>),
}

/// TLS over a socket.
pub(super) struct TlsTransport {
    stream: StreamSocket,
    session: ServerConnection,
    /// Whether nothing more will come: the client has closed its side, has gone, or has sent bytes that are no TLS.
    ended: bool,
    /// Bytes that came before there were keys.
    handshake_bytes: usize,
    records: Records,
    /// Input that is not decrypted yet. Without an allocation while there is none.
    rest: Vec<u8>,
    /// Bytes received with keys since the last plaintext: the library may keep them.
    idle_bytes: usize,
    /// Records without plaintext, beyond those that plaintext made up for.
    bare: usize,
    /// Plaintext that has not made up for a record yet, bytes.
    brought: usize,
    /// Work of decryption since the last [`ConnectionTransport::take_work`], in plain requests.
    work: u32,
}

impl ConnectionTransport {
    /// A transport, with TLS if there is a configuration for it. None if the library refuses it.
    pub(super) fn new(stream: StreamSocket, tls: Option<&Arc<ServerConfig>>) -> Option<ConnectionTransport> {
        let Some(config) = tls else { return Some(ConnectionTransport::Plain(stream)) };
        let mut session = ServerConnection::new(Arc::clone(config)).ok()?;
        session.set_buffer_limit(Some(TLS_SEND_BYTES));
        Some(ConnectionTransport::Tls(Box::new(TlsTransport {
            stream,
            session,
            ended: false,
            handshake_bytes: 0,
            records: Records::default(),
            rest: Vec::new(),
            idle_bytes: 0,
            bare: 0,
            brought: 0,
            work: 0,
        })))
    }

    /// Reads received bytes, as many as fit into `into`.
    #[inline]
    pub(super) fn receive(&mut self, into: &mut [u8]) -> StreamProgress {
        match self {
            ConnectionTransport::Plain(stream) => stream.receive(into),
            ConnectionTransport::Tls(tls) => tls.receive(into),
        }
    }

    /// Sends as much of `bytes` as fits; `bytes` may be empty if there are unsent bytes. A result of 0 bytes does not
    /// mean that nothing left.
    #[inline]
    pub(super) fn send(&mut self, bytes: &[u8]) -> StreamProgress {
        match self {
            ConnectionTransport::Plain(stream) => stream.send(bytes),
            ConnectionTransport::Tls(tls) => tls.send(bytes),
        }
    }

    /// Whether some of the accepted bytes have not left.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        matches!(self, ConnectionTransport::Tls(tls) if tls.session.wants_write())
    }

    /// Whether it has ended; the selector may not report it again.
    #[inline]
    pub(super) fn has_ended(&self) -> bool {
        matches!(self, ConnectionTransport::Tls(tls) if tls.ended)
    }

    /// Whether received bytes wait to be decrypted; the selector does not report them.
    #[inline]
    pub(super) fn has_rest(&self) -> bool {
        matches!(self, ConnectionTransport::Tls(tls) if !tls.rest.is_empty())
    }

    /// Whether it was ended because of records without plaintext.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self, ConnectionTransport::Tls(tls) if tls.is_refused())
    }

    /// Takes the work of the records since the last call, beside their bytes, in plain requests.
    #[inline]
    pub(super) fn take_work(&mut self) -> u32 {
        match self {
            ConnectionTransport::Plain(_) => 0,
            ConnectionTransport::Tls(tls) => mem::take(&mut tls.work),
        }
    }

    /// Whether the handshake is not complete yet.
    #[inline]
    pub(super) fn is_handshaking(&self) -> bool {
        matches!(self, ConnectionTransport::Tls(tls) if tls.session.is_handshaking())
    }

    /// Whether any bytes of its client have come.
    #[inline]
    pub(super) fn saw_end(&self) -> bool {
        !matches!(self, ConnectionTransport::Tls(tls) if tls.handshake_bytes == 0)
    }

    /// Bytes that it may use, beside the kernel's.
    #[inline]
    pub(super) fn used_bytes(&self) -> usize {
        match self {
            ConnectionTransport::Plain(_) => 0,
            ConnectionTransport::Tls(tls) => {
                let idle_bytes = if tls.session.is_handshaking() { tls.handshake_bytes } else { tls.idle_bytes };
                let leaves = if tls.session.wants_write() { TLS_SEND_BYTES } else { 0 };
                TLS_IDLE_BYTES + idle_bytes + tls.rest.capacity() + leaves
            }
        }
    }

    /// The work of `bytes`, as bytes that are copied.
    pub(super) fn work(&self, bytes: usize) -> usize {
        match self {
            ConnectionTransport::Plain(_) => 0,
            ConnectionTransport::Tls(_) => bytes,
        }
    }

    /// The socket.
    pub(super) fn stream(&self) -> &StreamSocket {
        match self {
            ConnectionTransport::Plain(stream) => stream,
            ConnectionTransport::Tls(tls) => &tls.stream,
        }
    }

    /// Tells the client that nothing more will come, if that is possible now.
    pub(super) fn close(&mut self) {
        if let ConnectionTransport::Tls(tls) = self {
            tls.session.send_close_notify();
            let _or_it_sees_that_the_socket_is_closed = tls.flush();
        }
    }
}

impl AsFd for ConnectionTransport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream().as_fd()
    }
}

/// A socket as a writer for the library.
struct TlsSocketWriter<'s>(&'s StreamSocket);

impl io::Write for TlsSocketWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        match self.0.send(bytes) {
            StreamProgress::Bytes(bytes) => Ok(bytes),
            StreamProgress::WouldBlock => Err(io::ErrorKind::WouldBlock.into()),
            StreamProgress::Closed => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TlsTransport {
    /// Reads the socket once, or takes the rest of the last read, and decrypts for a slice of time at most. It reads to
    /// the end of `into`, so that all of it, and the incomplete record, fits before.
    fn receive(&mut self, into: &mut [u8]) -> StreamProgress {
        if self.ended {
            return StreamProgress::Closed;
        }
        // Handshake bytes that did not fit before.
        if self.session.wants_write() && self.flush() == StreamProgress::Closed {
            self.ended = true;
            return StreamProgress::Closed;
        }
        let (plain, sealed) = into.split_at_mut(into.len() - into.len() / 4);
        let mut rest = mem::take(&mut self.rest);
        let is_new = rest.is_empty();
        let received = if is_new {
            match self.stream.receive(sealed) {
                StreamProgress::Bytes(bytes) => sealed.get(..bytes).unwrap_or_default(),
                other => {
                    self.ended = other == StreamProgress::Closed;
                    return other;
                }
            }
        } else {
            rest.as_slice()
        };
        let (fed, filled) = self.feed(received, plain);
        if fed < received.len() && !self.ended {
            if is_new {
                self.rest = received.get(fed..).unwrap_or_default().to_vec();
            } else {
                rest.drain(..fed);
                self.rest = rest;
            }
        }
        // Handshake bytes, or the alert that it failed.
        if self.session.wants_write() && self.flush() == StreamProgress::Closed {
            self.ended = true;
        }
        match filled {
            0 if self.ended => StreamProgress::Closed,
            0 => StreamProgress::WouldBlock,
            bytes => StreamProgress::Bytes(bytes),
        }
    }

    /// Decrypts records, for a slice of time at most. Returns the number of bytes that were decrypted, and of their
    /// plaintext.
    fn feed(&mut self, received: &[u8], plain: &mut [u8]) -> (usize, usize) {
        let (mut fed, mut filled) = (0, 0);
        while let Some(rest) = received.get(fed..).filter(|rest| !rest.is_empty())
            && !self.ended
            && self.work < TLS_SLICE_WORK
        {
            let (len, is_whole) = self.records.front(rest);
            let mut record = rest.get(..len).unwrap_or_default();
            let (shakes, before) = (self.session.is_handshaking(), filled);
            while !record.is_empty() && !self.ended {
                let is_fed = self.session.read_tls(&mut record).is_ok_and(|bytes| bytes > 0);
                let closes = match self.session.process_new_packets() {
                    Ok(state) => state.peer_has_closed(),
                    Err(_) => true,
                };
                self.ended = closes || !is_fed;
                filled += self.take(plain.get_mut(filled..).unwrap_or_default());
            }
            fed += len;
            if shakes {
                // The library keeps an incomplete handshake message.
                self.handshake_bytes += len;
                self.ended |= self.handshake_bytes > TLS_HANDSHAKE_BYTES;
            } else {
                self.count(len, is_whole, filled - before);
            }
        }
        (fed, filled)
    }

    /// Counts a record, or a part of one, that came with keys.
    fn count(&mut self, len: usize, is_whole: bool, brought: usize) {
        self.idle_bytes += len;
        if brought > 0 {
            self.brought += brought;
            self.bare = self.bare.saturating_sub(self.brought / TLS_BARE_RECORD_BYTES);
            self.brought %= TLS_BARE_RECORD_BYTES;
            // The plaintext is charged when it is taken; the rest of the record is charged here.
            self.work += TLS_RECORD_WORK + (self.idle_bytes.saturating_sub(brought) / BYTES_PER_REQUEST) as u32;
            self.idle_bytes = 0;
        } else if is_whole {
            self.bare += 1;
            self.work += TLS_BARE_RECORD_WORK + (len / BYTES_PER_REQUEST) as u32;
        }
        self.ended |= self.is_refused();
    }

    fn is_refused(&self) -> bool {
        self.idle_bytes > TLS_BUFFER_BYTES || self.bare > TLS_BARE_RECORDS
    }

    /// Takes decrypted bytes.
    fn take(&mut self, into: &mut [u8]) -> usize {
        let mut taken = 0;
        while let Some(free) = into.get_mut(taken..).filter(|free| !free.is_empty()) {
            match io::Read::read(&mut self.session.reader(), free) {
                Ok(bytes) if bytes > 0 => taken += bytes,
                _ => break,
            }
        }
        debug_assert!(taken < into.len() || into.is_empty(), "there is room for all that one read brings");
        taken
    }

    /// Sends encrypted bytes. `Bytes`: all have left.
    fn flush(&mut self) -> StreamProgress {
        let mut left = 0;
        while self.session.wants_write() {
            match self.session.write_tls(&mut TlsSocketWriter(&self.stream)) {
                Ok(bytes) => left += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return if left > 0 { StreamProgress::Bytes(left) } else { StreamProgress::WouldBlock };
                }
                Err(_) => return StreamProgress::Closed,
            }
        }
        StreamProgress::Bytes(left)
    }

    fn send(&mut self, bytes: &[u8]) -> StreamProgress {
        let (mut taken, mut moves) = (0, false);
        loop {
            match self.flush() {
                StreamProgress::Closed => return StreamProgress::Closed,
                StreamProgress::Bytes(left) => moves |= left > 0,
                StreamProgress::WouldBlock => {}
            }
            let rest = bytes.get(taken..).unwrap_or_default();
            if self.session.wants_write() || rest.is_empty() {
                break;
            }
            match io::Write::write(&mut self.session.writer(), rest) {
                Ok(bytes) if bytes > 0 => taken += bytes,
                _ => return StreamProgress::Closed,
            }
        }
        if taken > 0 || moves { StreamProgress::Bytes(taken) } else { StreamProgress::WouldBlock }
    }
}
