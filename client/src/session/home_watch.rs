//! Notices that the tenant's home worker is another than the port of the session, and asks which one it is.

use super::{ClientSession, ServerTopology, SessionPhase};
use crate::limits::{HOME_QUESTION_INTERVAL_US, REQUEST_DEADLINE};
use sandstorm_net::r2p2::DatagramSink;
use sandstorm_net::rpc::MESSAGE_FLAG_OTHER_HOME;

/// What a session does about its tenant's home.
#[derive(Default)]
pub(super) struct HomeWatch {
    /// Whether the client wants to be where the home is.
    follows: bool,
    /// When it was asked last, in the session's microseconds.
    asked_us: Option<u64>,
}

impl<T> ClientSession<T> {
    /// Has the session ask where the home is whenever an answer says that it is elsewhere.
    pub(crate) fn follow_home(&mut self) {
        self.home.follows = true;
    }

    /// Has it ask no more.
    pub(crate) fn stop_following(&mut self) {
        self.home.follows = false;
    }

    /// Tells it what the server has said in another session, after its own last hello.
    pub(crate) fn learn_home(&mut self, server: ServerTopology) {
        self.server = Some(server);
    }

    /// Whether requests go at once: the server has answered the hello.
    pub(crate) fn is_ready(&self) -> bool {
        self.phase == SessionPhase::Ready
    }

    /// Says hello again if an answer tells of another home, for the answer to that says which one. It stays the same
    /// session, and its requests go on.
    #[inline]
    pub(super) fn look_at_home(&mut self, now_us: u64, answer: &[u8], tx: &mut impl DatagramSink) {
        let is_elsewhere = answer.get(1).is_some_and(|flags| flags & MESSAGE_FLAG_OTHER_HOME != 0);
        if is_elsewhere && self.home.follows {
            self.ask_for_home(now_us, tx);
        }
    }

    #[cold]
    fn ask_for_home(&mut self, now_us: u64, tx: &mut impl DatagramSink) {
        let is_due = self.home.asked_us.is_none_or(|asked_us| now_us >= asked_us + HOME_QUESTION_INTERVAL_US);
        if is_due && self.has_window() && self.send_hello(now_us, REQUEST_DEADLINE, tx) {
            self.home.asked_us = Some(now_us);
        }
    }
}
