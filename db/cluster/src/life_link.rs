//! Asks another server whether it is alive, over its control port. It is asked when nothing else is heard of that
//! server, and so has little time.

use std::io;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::copy_watch::LifeAnswer;
use crate::limits::{ASK_TIMEOUT, LIFE_ANSWER_BYTES};
use crate::move_coordinator::MoveCoordinator;
use crate::peer_link::{PEER_KEY_HEADER, peer_agent};
use crate::state::ServerState;

/// The path of the question.
pub const LIFE_PATH: &str = "/v1/cluster/life";

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LifeReport {
    /// The id of the server.
    server: String,
    /// A random number of its start.
    boot: u64,
}

impl MoveCoordinator {
    /// What this server answers to others that ask whether it is there.
    ///
    /// # Errors
    /// One line.
    pub fn answer_life(&self) -> Result<Vec<u8>, String> {
        let report = LifeReport { server: self.slots().own_id().to_owned(), boot: self.boot() };
        serde_json::to_vec(&report).map_err(|error| error.to_string())
    }
}

/// What is known of a server, to which a question has failed.
fn of_failure(error: &ureq::Error) -> LifeAnswer {
    match error {
        ureq::Error::Timeout(_) => LifeAnswer::Silent,
        ureq::Error::Io(error) => of_io_failure(error),
        // It has answered, and not what it was asked; or it cannot be asked as it has told of itself.
        ureq::Error::BodyExceedsLimit(_) | ureq::Error::BadUri(_) | ureq::Error::Http(_) => LifeAnswer::Unclear,
        // TLS, among others.
        _ => LifeAnswer::Failed,
    }
}

fn of_io_failure(error: &io::Error) -> LifeAnswer {
    match Errno::from_io_error(error) {
        // This server has no memory, file or port for a question. That says nothing of the other one.
        Some(Errno::NFILE | Errno::MFILE | Errno::NOMEM | Errno::NOBUFS | Errno::ADDRNOTAVAIL) => LifeAnswer::Unclear,
        _ => match error.kind() {
            io::ErrorKind::ConnectionRefused => LifeAnswer::Refused,
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => LifeAnswer::Silent,
            _ => LifeAnswer::Failed,
        },
    }
}

/// Asks a server.
pub(crate) fn ask_life(id: &str, server: &ServerState, key: &str) -> LifeAnswer {
    // A server that has published no certificate cannot be asked.
    let Ok(agent) = peer_agent(server, ASK_TIMEOUT) else { return LifeAnswer::Unclear };
    let url = format!("{}{LIFE_PATH}", server.control.trim_end_matches('/'));
    let mut response = match agent.get(&url).header(PEER_KEY_HEADER, key).call() {
        Ok(response) => response,
        Err(error) => return of_failure(&error),
    };
    if !response.status().is_success() {
        return LifeAnswer::Unclear;
    }
    let body = match response.body_mut().with_config().limit(LIFE_ANSWER_BYTES).read_to_vec() {
        Ok(body) => body,
        Err(error) => return of_failure(&error),
    };
    match serde_json::from_slice::<LifeReport>(&body) {
        Ok(report) if report.server == id && report.boot == server.boot => LifeAnswer::Serves,
        // Another server has its port now.
        Ok(report) if report.server != id => LifeAnswer::Refused,
        // Another start of it: the map will tell soon.
        _ => LifeAnswer::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// What is made of an answer; `None`: the connection is closed.
    fn asked(answer: Option<(&'static str, String)>) -> LifeAnswer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let control = format!("http://{}", listener.local_addr().unwrap());
        let served = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut asked, mut buffer) = (String::new(), [0; 4096]);
            while !asked.contains("\r\n\r\n") {
                let read = stream.read(&mut buffer).unwrap();
                assert!(read > 0, "{asked}");
                asked.push_str(&String::from_utf8_lossy(&buffer[..read]));
            }
            assert!(asked.contains("sandstorm-peer-key: secret"), "{asked}");
            if let Some((status, body)) = answer {
                let length = body.len();
                write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
                    .unwrap();
            }
        });
        let server = ServerState { control, ..ServerState::example() };
        let answer = ask_life("a", &server, "secret");
        served.join().unwrap();
        answer
    }

    #[test]
    fn only_that_start_of_that_server_is_there_and_only_a_refusal_says_at_once_that_it_is_not() {
        let report =
            |server: &str, boot| serde_json::to_string(&LifeReport { server: server.to_owned(), boot }).unwrap();
        let ok = |server, boot| asked(Some(("200 OK", report(server, boot))));
        // Of a machine that has no processor for the answer nothing else can be said.
        assert!(matches!(ok("a", 1), LifeAnswer::Serves | LifeAnswer::Silent));
        assert!(matches!(ok("a", 2), LifeAnswer::Unclear | LifeAnswer::Silent));
        assert!(matches!(ok("b", 1), LifeAnswer::Refused | LifeAnswer::Silent));
        let unknown = asked(Some(("401 Unauthorized", String::new())));
        assert!(matches!(unknown, LifeAnswer::Unclear | LifeAnswer::Silent));
        assert!(matches!(asked(None), LifeAnswer::Failed | LifeAnswer::Silent));
        let long = "x".repeat(2 * LIFE_ANSWER_BYTES as usize);
        assert!(matches!(asked(Some(("200 OK", long))), LifeAnswer::Unclear | LifeAnswer::Silent));
        // A port that was free a moment ago: nothing listens there.
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let server = ServerState { control: format!("http://{gone}"), ..ServerState::example() };
        assert!(matches!(ask_life("a", &server, "secret"), LifeAnswer::Refused | LifeAnswer::Silent));
    }

    #[test]
    fn what_fails_on_the_way_counts_and_what_this_server_lacks_says_nothing() {
        let of = |errno: Errno| of_failure(&ureq::Error::Io(errno.into()));
        for errno in [Errno::NETUNREACH, Errno::HOSTUNREACH, Errno::CONNRESET, Errno::PIPE, Errno::ACCESS, Errno::PERM]
        {
            assert_eq!(of(errno), LifeAnswer::Failed, "{errno}");
        }
        let early = io::Error::from(io::ErrorKind::UnexpectedEof);
        assert_eq!(of_failure(&ureq::Error::Io(early)), LifeAnswer::Failed);
        assert_eq!(of_failure(&ureq::Error::Tls("no certificate")), LifeAnswer::Failed);
        assert_eq!((of(Errno::CONNREFUSED), of(Errno::TIMEDOUT)), (LifeAnswer::Refused, LifeAnswer::Silent));
        assert_eq!(of_failure(&ureq::Error::Timeout(ureq::Timeout::Global)), LifeAnswer::Silent);
        for errno in [Errno::NFILE, Errno::MFILE, Errno::NOMEM, Errno::NOBUFS, Errno::ADDRNOTAVAIL] {
            assert_eq!(of(errno), LifeAnswer::Unclear, "{errno}");
        }
    }
}
