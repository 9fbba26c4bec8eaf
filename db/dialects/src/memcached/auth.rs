//! Authentication in memcached's own scheme for text: the first command is a `set` of any key, whose value is a user
//! and a password. The user is a tenant, or `tenant/table`; the password is its token.

use sandstorm_net::memcached::text::{LineTokens, parse_u64};

use super::super::{CommandContext, ConnectionIdentity, NextAction};
use super::MemcachedSession;
use super::answers::{UNAUTHENTICATED, push_line};
use crate::first_command::FirstCommand;
use crate::limits::protocols::{AUTH_BYTES, AUTH_FAILURES};
use sandstorm_accounts::Tally;

/// The answer to a wrong password.
const WRONG_PASSWORD: &str = "CLIENT_ERROR authentication failure";

impl MemcachedSession {
    /// Looks for user and password at the front of `input`.
    pub(super) fn authenticate(
        &mut self,
        context: &CommandContext<'_>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, NextAction) {
        let Some(end) = input.iter().position(|byte| *byte == b'\n') else {
            if input.len() > sandstorm_net::memcached::MAX_LINE_LEN {
                context.count_protocol_error();
                return (input.len(), NextAction::Close);
            }
            return (0, NextAction::NeedMore(input.len() + 1));
        };
        let used = end + 1;
        let words: Vec<&[u8]> = LineTokens::new(&input[..end]).take(8).collect();
        let len = match words[..] {
            [b"set", _, _, _, len, ..] => parse_u64(len),
            _ => None,
        };
        let Some(len) = len else {
            let quits = words.first().is_some_and(|word| word.strip_suffix(b"\r").unwrap_or(word) == b"quit");
            if quits {
                return (used, NextAction::Close);
            }
            return self.refuse(context, UNAUTHENTICATED, used, out);
        };
        let Some(len) = usize::try_from(len).ok().filter(|len| *len <= AUTH_BYTES) else {
            context.count_protocol_error();
            return (input.len(), NextAction::Close);
        };
        let Some(block) = input.get(used..used + len + 2) else { return (0, NextAction::NeedMore(used + len + 2)) };
        let used = used + len + 2;
        let Some(block) = block.strip_suffix(b"\r\n") else {
            return self.refuse(context, "CLIENT_ERROR bad command line termination", used, out);
        };
        let mut words = LineTokens::new(block);
        let (Some(user), Some(password)) = (words.next(), words.next()) else {
            return self.refuse(context, "CLIENT_ERROR bad authentication token format", used, out);
        };
        let Ok(user) = std::str::from_utf8(user) else { return self.refuse(context, WRONG_PASSWORD, used, out) };
        let Some(identity) = self.show(context, user, password) else {
            return self.refuse(context, WRONG_PASSWORD, used, out);
        };
        push_line("STORED", out);
        (used, NextAction::HandOver(identity.tenant()))
    }

    /// Authenticates a user, which is a tenant or `tenant/table`, with a password, which is its token. The tenant's
    /// counts include each attempt.
    pub(super) fn show(
        &mut self,
        context: &CommandContext<'_>,
        user: &str,
        password: &[u8],
    ) -> Option<ConnectionIdentity> {
        let (tenant, table) = user.split_once('/').map_or((user, None), |(tenant, table)| (tenant, Some(table)));
        let identity = ConnectionIdentity::from_token(context.snapshot, tenant, password);
        if let Some(view) = context.snapshot.by_name(tenant) {
            let tallies = view.tenant.usage.tallies(context.worker);
            tallies.add(Tally::Auths, 1);
            tallies.add(Tally::AuthErrors, u64::from(identity.is_none()));
        }
        if self.identity != identity {
            // The answers of this batch count for the new tenant, which must not see keys of the one before.
            self.first = FirstCommand::none("memcached");
        }
        self.identity = identity;
        if identity.is_some() {
            self.table_name = table.or(self.service.table.as_deref()).map(Box::from);
            self.table = (u64::MAX, 0);
        }
        identity
    }

    /// Answers with the error, and ends the connection after too many attempts.
    fn refuse(
        &mut self,
        context: &CommandContext<'_>,
        text: &str,
        used: usize,
        out: &mut Vec<u8>,
    ) -> (usize, NextAction) {
        push_line(text, out);
        self.fail(context, used)
    }

    /// Counts an attempt that failed.
    pub(super) fn fail(&mut self, context: &CommandContext<'_>, used: usize) -> (usize, NextAction) {
        self.failures += 1;
        if self.failures < AUTH_FAILURES {
            return (used, NextAction::Yield);
        }
        context.count_protocol_error();
        (used, NextAction::Close)
    }
}
