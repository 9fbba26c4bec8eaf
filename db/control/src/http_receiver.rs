//! For tests: a receiver of what the server posts.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

/// What a receiver got: its headers, and the body.
pub(crate) type Received = (String, Vec<u8>);
/// An answer: its status, further headers with their ends of lines, and its body. Status 0: none.
pub(crate) type ReceiverAnswer = (u16, &'static str, &'static str);

/// Reads one request.
fn receive(stream: &TcpStream) -> Option<Received> {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line == "\r\n" {
            break;
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((head, body))
}

/// A receiver that answers each request with the next of these answers, on a connection each. Returns its address, and
/// what it gets.
pub(crate) fn receiver(answers: Receiver<ReceiverAnswer>) -> (String, Receiver<Received>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}/hook", listener.local_addr().expect("an address"));
    let (got, gets): (Sender<Received>, _) = channel();
    std::thread::spawn(move || {
        let mut hanging = Vec::new();
        for stream in listener.incoming().flatten() {
            let Some(received) = receive(&stream) else { continue };
            let Ok((status, headers, body)) = answers.recv() else { return };
            if status == 0 {
                hanging.push(stream);
            } else {
                let (mut stream, length) = (stream, body.len());
                let _closed = write!(
                    stream,
                    "HTTP/1.1 {status} x\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
                );
            }
            let _ended = got.send(received);
        }
    });
    (url, gets)
}
