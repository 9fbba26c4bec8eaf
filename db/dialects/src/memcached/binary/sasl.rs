//! Who is it? In the binary protocol SASL with the mechanism PLAIN: its user is a tenant, or `tenant/table`, its password the
//! tenant's token. Until that is shown nothing is answered but the version, and no value is waited for.

use sandstorm_net::memcached::binary::{Command, Frame, Parsed, Sasl, Status, parse};

use super::super::super::{Context, Next};
use super::super::Session;
use super::{answer, push_status};
use crate::limits::protocols::COMPATIBLE;

/// The mechanism.
const PLAIN: &[u8] = b"PLAIN";
/// What those are told who are let in.
const AUTHENTICATED: &[u8] = b"Authenticated";

impl Session {
    /// Takes the frame at the front of `input`, from a client that has not shown who it is.
    pub(in super::super) fn strange_frame(
        &mut self,
        context: &Context<'_>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Next) {
        if let super::State::Skips(left) = self.state {
            let (bytes, _) = self.skip(left, input);
            return (bytes, if bytes == input.len() { Next::More(1) } else { Next::Again });
        }
        let (frame, used, skip) = match parse(input, 0) {
            Parsed::More(needed) => return (0, Next::More(needed)),
            Parsed::Hopeless => {
                context.protocol_error();
                return (input.len(), Next::Close);
            }
            Parsed::Frame { frame, used, skip } => (frame, used, skip),
        };
        match frame.command {
            Command::Sasl(_) | Command::Refused(_) => {
                self.skips(skip);
                (used, self.sasl(context, &frame, out).unwrap_or(Next::Again))
            }
            Command::Version => {
                answer(&frame).push(COMPATIBLE.as_bytes(), out);
                (used, Next::Again)
            }
            _ => {
                let status = match frame.command {
                    Command::Malformed(status) => status,
                    _ => Status::Unauthorized,
                };
                push_status(&frame, status, out);
                context.protocol_error();
                (input.len(), Next::Close)
            }
        }
    }

    /// One step. Tells what is next, unless more frames are.
    pub(super) fn sasl(&mut self, context: &Context<'_>, frame: &Frame<'_>, out: &mut Vec<u8>) -> Option<Next> {
        if self.entrance.tenant.is_some() {
            // As memcached without SASL: clients go on without it.
            push_status(frame, Status::UnknownCommand, out);
            return None;
        }
        let data = match frame.command {
            Command::Sasl(Sasl::List) => {
                answer(frame).push(PLAIN, out);
                return None;
            }
            Command::Sasl(Sasl::Begin { mechanism: PLAIN, data: b"" }) => {
                self.sasl_begun = true;
                push_status(frame, Status::Continue, out);
                return None;
            }
            Command::Sasl(Sasl::Begin { mechanism: PLAIN, data }) => Some(data),
            Command::Sasl(Sasl::Step { data }) if self.sasl_begun => Some(data),
            _ => None,
        };
        self.sasl_begun = false;
        let shown = data.and_then(credentials).and_then(|(user, token)| self.show(context, user, token));
        if let Some(identity) = shown {
            answer(frame).push(AUTHENTICATED, out);
            return Some(Next::HandOver(identity.tenant()));
        }
        // One that was let in before is not any more.
        self.identity = None;
        let refused = if let Command::Refused(status) = frame.command { status } else { Status::Unauthorized };
        push_status(frame, refused, out);
        Some(self.fail(context, 0).1)
    }
}

/// User and password of a message of PLAIN. Nobody acts for another here: whom to act for is left out, or is the user.
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
