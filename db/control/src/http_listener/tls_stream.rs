//! The bytes of a connection: plain, or TLS. The reader drives the handshake, so that no handshake delays the next
//! connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

use crate::limits::MAX_HEADER_BYTES;

/// First byte of a TLS handshake's record.
const TLS_HANDSHAKE_RECORD: u8 = 22;

/// The answer to plain HTTP on a port with TLS.
const NOT_TLS: &str = "{\"code\":\"tls\",\"message\":\"this port speaks TLS\",\"hint\":\"say https:// before the \
                       address, and how the certificate is known: --ca FILE or --fingerprint sha256:...\"}";

/// A connection's bytes.
pub(crate) enum MaybeTlsStream {
    /// Plain bytes.
    Plain(TcpStream),
    /// Nothing has been read yet: the client may speak TLS, or plain HTTP by mistake.
    Undetected(TcpStream, TlsAcceptor),
    /// The handshake is under way.
    Handshaking(Box<Accept<TcpStream>>),
    /// Encrypted bytes.
    Tls(Box<TlsStream<TcpStream>>),
    /// The handshake failed.
    Failed,
}

/// The reason that a connection failed before its first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeFailure {
    /// The client did not speak TLS.
    NotTls,
    /// The handshake failed.
    Failed,
}

impl MaybeTlsStream {
    /// Plain, or TLS if there is an acceptor.
    pub(crate) fn new(stream: TcpStream, acceptor: Option<&TlsAcceptor>) -> MaybeTlsStream {
        match acceptor {
            None => MaybeTlsStream::Plain(stream),
            Some(acceptor) => MaybeTlsStream::Undetected(stream, acceptor.clone()),
        }
    }

    /// Whether requests can be read: it is plain, or the handshake is done.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self, MaybeTlsStream::Plain(_) | MaybeTlsStream::Tls(_))
    }

    /// Continues the handshake. The client has been told of an error, as far as it understands.
    pub(crate) fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HandshakeFailure>> {
        loop {
            match std::mem::replace(self, MaybeTlsStream::Failed) {
                MaybeTlsStream::Undetected(stream, acceptor) => {
                    let mut first = [0];
                    match stream.poll_peek(cx, &mut ReadBuf::new(&mut first)) {
                        Poll::Pending => {
                            *self = MaybeTlsStream::Undetected(stream, acceptor);
                            return Poll::Pending;
                        }
                        Poll::Ready(Ok(1)) if first[0] == TLS_HANDSHAKE_RECORD => {
                            *self = MaybeTlsStream::Handshaking(Box::new(acceptor.accept(stream)));
                        }
                        Poll::Ready(Ok(1)) => {
                            reply_tls_required(&stream);
                            return Poll::Ready(Err(HandshakeFailure::NotTls));
                        }
                        Poll::Ready(_) => return Poll::Ready(Err(HandshakeFailure::Failed)),
                    }
                }
                MaybeTlsStream::Handshaking(mut accept) => match Pin::new(&mut *accept).poll(cx) {
                    Poll::Pending => {
                        *self = MaybeTlsStream::Handshaking(accept);
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(stream)) => *self = MaybeTlsStream::Tls(Box::new(stream)),
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(HandshakeFailure::Failed)),
                },
                MaybeTlsStream::Failed => return Poll::Ready(Err(HandshakeFailure::Failed)),
                done => {
                    *self = done;
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

/// Answers a client that probably speaks plain HTTP. It does not wait: an empty socket buffer takes so few bytes at
/// once, and a full one has an earlier answer to read.
fn reply_tls_required(stream: &TcpStream) {
    let mut asked = vec![0; MAX_HEADER_BYTES];
    // Read first: closing with unread bytes resets the connection, and the answer would be lost.
    let _whatever = stream.try_read(&mut asked);
    let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: ";
    let _unheard = stream.try_write(format!("{head}{}\r\n\r\n{NOT_TLS}", NOT_TLS.len()).as_bytes());
}

fn not_connected() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

impl AsyncRead for MaybeTlsStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.is_ready() {
            ready!(self.poll_handshake(cx)).map_err(|_| not_connected())?;
        }
        match &mut *self {
            MaybeTlsStream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            MaybeTlsStream::Tls(stream) => Pin::new(&mut **stream).poll_read(cx, buf),
            _ => Poll::Ready(Err(not_connected())),
        }
    }
}

impl AsyncWrite for MaybeTlsStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            MaybeTlsStream::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            MaybeTlsStream::Tls(stream) => Pin::new(&mut **stream).poll_write(cx, bytes),
            _ => Poll::Ready(Err(not_connected())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            MaybeTlsStream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            MaybeTlsStream::Tls(stream) => Pin::new(&mut **stream).poll_flush(cx),
            _ => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            MaybeTlsStream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            MaybeTlsStream::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
            _ => Poll::Ready(Ok(())),
        }
    }
}
