//! A connection of the port without its runtime: what has changed its protocol is served by a thread of its own, which
//! waits for bytes itself.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto::upgrade::downcast;
use tokio_rustls::rustls::{ServerConnection, StreamOwned};

use super::connection_limit::ConnectionPermit;
use super::listener::HttpConnection;
use super::tls_stream::MaybeTlsStream;

/// A connection whose reads and writes wait. It keeps its slot of the port, and is evicted for no other one.
pub(crate) struct BlockingStream {
    bytes: StreamKind,
    /// Released with it.
    _permit: ConnectionPermit,
}

enum StreamKind {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ServerConnection, TcpStream>>),
}

impl BlockingStream {
    /// Takes a connection out of the runtime, in one of its tasks. A read that brings nothing for `idle` has failed.
    ///
    /// # Errors
    /// The client has sent bytes before it was told that the protocol is another one; or the system refuses.
    pub(crate) fn take(upgraded: Upgraded, idle: Duration) -> io::Result<BlockingStream> {
        let parts = downcast::<TokioIo<HttpConnection>>(upgraded);
        let parts = parts.map_err(|_| io::Error::other("it is no connection of this port"))?;
        if !parts.read_buf.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "bytes came before the protocol was changed"));
        }
        let (stream, permit) = parts.io.into_inner().into_parts();
        permit.visit().serve(true);
        if permit.visit().is_evicted() {
            // For another one, between its answer and this.
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let blocking = |stream: tokio::net::TcpStream| {
            let stream = stream.into_std()?;
            stream.set_nonblocking(false)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(idle))?;
            stream.set_write_timeout(Some(idle))?;
            io::Result::Ok(stream)
        };
        let bytes = match stream {
            MaybeTlsStream::Plain(stream) => StreamKind::Plain(blocking(stream)?),
            MaybeTlsStream::Tls(stream) => {
                let (stream, conn) = stream.into_inner();
                StreamKind::Tls(Box::new(StreamOwned { conn, sock: blocking(stream)? }))
            }
            _ => return Err(io::ErrorKind::NotConnected.into()),
        };
        Ok(BlockingStream { bytes, _permit: permit })
    }
}

impl Read for BlockingStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.bytes {
            StreamKind::Plain(stream) => stream.read(into),
            StreamKind::Tls(stream) => stream.read(into),
        }
    }
}

impl Write for BlockingStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.bytes {
            StreamKind::Plain(stream) => stream.write(bytes),
            StreamKind::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.bytes {
            StreamKind::Plain(stream) => stream.flush(),
            StreamKind::Tls(stream) => stream.flush(),
        }
    }
}
