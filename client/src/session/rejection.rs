//! Answers by which a server says that it does not know a session, or not any more.

use crate::Error;
use sandstorm_net::rpc::{MESSAGE_HEADER_LEN, OP_NUMBER_OFFSET, RpcStatus, STALE_PREVIOUS_START};

/// The meaning of such an answer for its session, and for its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionRejection {
    /// The session has not shown its token to this server. This transmission of the request was not run.
    Unauthenticated,
    /// The session is bound to an earlier start of the server. This transmission of the request was not run.
    EarlierStart,
    /// The server has forgotten whether the request ran, and perhaps all of the session.
    Stale,
}

impl SessionRejection {
    /// Looks at the first operation of an answer: where it says so, all do.
    pub(super) fn of(answer: &[u8]) -> Option<SessionRejection> {
        let status = *answer.get(MESSAGE_HEADER_LEN + 2)?;
        if status == RpcStatus::Unauthenticated as u8 {
            return Some(SessionRejection::Unauthenticated);
        }
        if status != RpcStatus::Stale as u8 {
            return None;
        }
        let number = answer.get(MESSAGE_HEADER_LEN + OP_NUMBER_OFFSET..)?.first_chunk()?;
        Some(if u64::from_le_bytes(*number) == STALE_PREVIOUS_START {
            SessionRejection::EarlierStart
        } else {
            SessionRejection::Stale
        })
    }

    /// Returns the error for a request that is not sent again.
    pub(super) fn error(self) -> Error {
        match self {
            SessionRejection::Unauthenticated => Error::Unauthenticated,
            SessionRejection::EarlierStart | SessionRejection::Stale => Error::Stale,
        }
    }
}
