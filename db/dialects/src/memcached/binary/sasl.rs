//! Authentication in the binary protocol: SASL with the mechanism PLAIN. Its user is a tenant, or `tenant/table`, its
//! password the tenant's token. Before that only the version is answered, and no value is awaited.

use sandstorm_net::memcached::binary::{BinaryCommand, BinaryFrame, BinaryParse, BinaryStatus, SaslMessage, parse};

use super::super::super::{CommandContext, NextAction};
use super::super::MemcachedSession;
use super::{answer, push_status};
use crate::limits::protocols::MEMCACHED_VERSION;

/// The mechanism.
const PLAIN: &[u8] = b"PLAIN";
/// The answer to a client that has authenticated.
const AUTHENTICATED: &[u8] = b"Authenticated";

impl MemcachedSession {
    /// Processes the frame at the front of `input`, from an unauthenticated client.
    pub(in super::super) fn run_unauthenticated_frame(
        &mut self,
        context: &CommandContext<'_>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, NextAction) {
        if let super::InputState::SkipBytes(left) = self.state {
            let (bytes, _) = self.skip(left, input);
            return (bytes, if bytes == input.len() { NextAction::NeedMore(1) } else { NextAction::Yield });
        }
        let (frame, used, skip) = match parse(input, 0) {
            BinaryParse::Incomplete(needed) => return (0, NextAction::NeedMore(needed)),
            BinaryParse::Fatal => {
                context.count_protocol_error();
                return (input.len(), NextAction::Close);
            }
            BinaryParse::Frame { frame, used, skip } => (frame, used, skip),
        };
        match frame.command {
            BinaryCommand::Sasl(_) | BinaryCommand::Refused(_) => {
                self.skip_bytes(skip);
                (used, self.sasl(context, &frame, out).unwrap_or(NextAction::Yield))
            }
            BinaryCommand::Version => {
                answer(&frame).push(MEMCACHED_VERSION.as_bytes(), out);
                (used, NextAction::Yield)
            }
            _ => {
                let status = match frame.command {
                    BinaryCommand::Malformed(status) => status,
                    _ => BinaryStatus::Unauthorized,
                };
                push_status(&frame, status, out);
                context.count_protocol_error();
                (input.len(), NextAction::Close)
            }
        }
    }

    /// Runs one step. Returns the next action, unless more frames follow.
    pub(super) fn sasl(
        &mut self,
        context: &CommandContext<'_>,
        frame: &BinaryFrame<'_>,
        out: &mut Vec<u8>,
    ) -> Option<NextAction> {
        if self.service.tenant.is_some() {
            // As memcached without SASL: clients continue without it.
            push_status(frame, BinaryStatus::UnknownCommand, out);
            return None;
        }
        let data = match frame.command {
            BinaryCommand::Sasl(SaslMessage::List) => {
                answer(frame).push(PLAIN, out);
                return None;
            }
            BinaryCommand::Sasl(SaslMessage::Begin { mechanism: PLAIN, data: b"" }) => {
                self.sasl_begun = true;
                push_status(frame, BinaryStatus::Continue, out);
                return None;
            }
            BinaryCommand::Sasl(SaslMessage::Begin { mechanism: PLAIN, data }) => Some(data),
            BinaryCommand::Sasl(SaslMessage::Step { data }) if self.sasl_begun => Some(data),
            _ => None,
        };
        self.sasl_begun = false;
        let shown = data.and_then(credentials).and_then(|(user, token)| self.show(context, user, token));
        if let Some(identity) = shown {
            answer(frame).push(AUTHENTICATED, out);
            return Some(NextAction::HandOver(identity.tenant()));
        }
        // A client that was authenticated before no longer is.
        self.identity = None;
        let refused =
            if let BinaryCommand::Refused(status) = frame.command { status } else { BinaryStatus::Unauthorized };
        push_status(frame, refused, out);
        Some(self.fail(context, 0).1)
    }
}

/// User and password of a message of PLAIN. No client acts for another: the identity to act for is empty, or is the
/// user.
fn credentials(data: &[u8]) -> Option<(&str, &[u8])> {
    let mut parts = data.splitn(3, |byte| *byte == 0);
    let (acts_for, user, password) = (parts.next()?, parts.next()?, parts.next()?);
    let is_itself = acts_for.is_empty() || acts_for == user;
    let user = std::str::from_utf8(user).ok()?;
    is_itself.then_some((user, password))
}

#[cfg(test)]
mod tests {
    use super::credentials;

    #[test]
    fn a_message_of_plain_has_three_parts() {
        let shop = Some(("shop/items", &b"token"[..]));
        assert_eq!(credentials(b"\0shop/items\0token"), shop);
        assert_eq!(credentials(b"shop/items\0shop/items\0token"), shop);
        assert_eq!(credentials(b"\0shop\0to\0ken"), Some(("shop", &b"to\0ken"[..])));
        for wrong in [&b""[..], b"shop", b"shop\0token", b"other\0shop\0token", b"\0\xff\0token"] {
            assert_eq!(credentials(wrong), None, "{wrong:?}");
        }
    }
}
