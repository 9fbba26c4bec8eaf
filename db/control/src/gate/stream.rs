//! The bytes of a connection: plain, or TLS whose handshake is driven by whoever reads, so that no
//! handshake holds up the next connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

use crate::limits::MAX_HEADER_BYTES;

/// First byte of a TLS handshake's record.
const HANDSHAKE: u8 = 22;

/// What plain HTTP gets on a port with TLS.
const NOT_TLS: &str = "{\"code\":\"tls\",\"message\":\"this port speaks TLS\",\"hint\":\"say https:// before the \
                       address, and how the certificate is known: --ca FILE or --fingerprint sha256:...\"}";

/// A connection's bytes.
pub(crate) enum Stream {
    /// As they come.
    Plain(TcpStream),
    /// Nothing has been read yet: it may be TLS, or somebody who does not know that it has to be.
    Fresh(TcpStream, TlsAcceptor),
    /// The handshake is under way.
    Shaking(Box<Accept<TcpStream>>),
    /// Sealed.
    Tls(Box<TlsStream<TcpStream>>),
    /// The handshake failed.
    Broken,
}

/// Why a connection came to nothing before its first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// What came was no TLS.
    NotTls,
    /// The handshake failed.
    Handshake,
}

impl Stream {
    /// Plain, or TLS if there is an acceptor.
    pub(crate) fn new(stream: TcpStream, acceptor: Option<&TlsAcceptor>) -> Stream {
        match acceptor {
            None => Stream::Plain(stream),
            Some(acceptor) => Stream::Fresh(stream, acceptor.clone()),
        }
    }

    /// Whether requests can come now: it is plain, or the handshake is done.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self, Stream::Plain(_) | Stream::Tls(_))
    }

    /// Goes on with the handshake. An error has been told to the other side as far as it understands.
    pub(crate) fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        loop {
            match std::mem::replace(self, Stream::Broken) {
                Stream::Fresh(stream, acceptor) => {
                    let mut first = [0];
                    match stream.poll_peek(cx, &mut ReadBuf::new(&mut first)) {
                        Poll::Pending => {
                            *self = Stream::Fresh(stream, acceptor);
                            return Poll::Pending;
                        }
                        Poll::Ready(Ok(1)) if first[0] == HANDSHAKE => {
                            *self = Stream::Shaking(Box::new(acceptor.accept(stream)));
                        }
                        Poll::Ready(Ok(1)) => {
                            say_that_it_is_tls(&stream);
                            return Poll::Ready(Err(Broken::NotTls));
                        }
                        Poll::Ready(_) => return Poll::Ready(Err(Broken::Handshake)),
                    }
                }
                Stream::Shaking(mut accept) => match Pin::new(&mut *accept).poll(cx) {
                    Poll::Pending => {
                        *self = Stream::Shaking(accept);
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(stream)) => *self = Stream::Tls(Box::new(stream)),
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(Broken::Handshake)),
                },
                Stream::Broken => return Poll::Ready(Err(Broken::Handshake)),
                done => {
                    *self = done;
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

/// Answers what is probably plain HTTP. Nothing waits for it: an empty socket takes so little at once, and one that does
/// not has another reader to complain to.
fn say_that_it_is_tls(stream: &TcpStream) {
    let mut asked = vec![0; MAX_HEADER_BYTES];
    // Read first: what is closed with unread bytes is reset, and the answer lost.
    let _whatever = stream.try_read(&mut asked);
    let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: ";
    let _unheard = stream.try_write(format!("{head}{}\r\n\r\n{NOT_TLS}", NOT_TLS.len()).as_bytes());
}

fn broken() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.is_ready() {
            ready!(self.poll_handshake(cx)).map_err(|_| broken())?;
        }
        match &mut *self {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_read(cx, buf),
            _ => Poll::Ready(Err(broken())),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_write(cx, bytes),
            _ => Poll::Ready(Err(broken())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_flush(cx),
            _ => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
            _ => Poll::Ready(Ok(())),
        }
    }
}
