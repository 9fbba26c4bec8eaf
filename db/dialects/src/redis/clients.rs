//! CLIENT LIST, INFO and KILL: the tenant's own connections, of all workers. Other tenants' connections are hidden.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::arguments::{is_word, lossy_text, parse_integer};
use super::command_call::CommandCall;
use super::commands::COMMANDS;
use super::errors::{CommandError, CommandResult, SYNTAX};
use crate::limits::redis::{CLIENTS_PER_REQUEST, MAX_CLIENTS_LISTED};
use sandstorm_accounts::{ClientList, RedisClientEntry};

const BAD_ID: &str = "ERR Invalid client ID";

/// The description of a connection, in one line.
fn describe_client(client: &RedisClientEntry, user: &str, now_ms: u64, out: &mut String) {
    use std::fmt::Write as _;
    let attributes = client.attributes.lock().clone();
    let status = attributes.state;
    let (addr, laddr) = match client.addresses {
        Some((from, to)) => (from.to_string(), to.to_string()),
        None => ("0.0.0.0:0".to_owned(), "0.0.0.0:0".to_owned()),
    };
    let command = COMMANDS.get(client.command.load(Relaxed) as usize).map_or("NULL", |spec| spec.name);
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "id={} addr={addr} laddr={laddr} fd=0 name={} age={} idle={} flags={} db={} sub=0 psub=0 ssub=0 multi={} watch={} \
         qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=1024 rbp=0 obl=0 oll=0 omem=0 tot-mem=0 events=r cmd={command} \
         user={user} redir=-1 resp={} lib-name={} lib-ver={}",
        client.id,
        lossy_text(&attributes.name),
        now_ms.saturating_sub(client.since_ms) / 1000,
        now_ms.saturating_sub(client.last_active_ms.load(Relaxed)) / 1000,
        if status.queued >= 0 { "x" } else { "N" },
        status.database,
        status.queued,
        status.watches,
        if status.resp3 { 3 } else { 2 },
        lossy_text(&attributes.library.0),
        lossy_text(&attributes.library.1),
    );
}

/// All connections of the tenant, if they are not too many.
fn all_clients(clients: &ClientList) -> Result<Vec<Arc<RedisClientEntry>>, CommandError> {
    let count = clients.count();
    if count > MAX_CLIENTS_LISTED {
        return Err(format!(
            "ERR the tenant has {count} connections, of which {MAX_CLIENTS_LISTED} at most are listed: ask for some, CLIENT LIST ID id ..."
        )
        .into());
    }
    Ok(clients.which(|client| !client.is_killed()))
}

fn reply_clients(call: &mut CommandCall<'_, '_>, shown: &[Arc<RedisClientEntry>]) -> CommandResult {
    let (user, now_ms) = (call.view()?.tenant.name.clone(), call.now_ms());
    call.context.work(shown.len() as u64);
    let mut out = String::new();
    shown.iter().for_each(|client| describe_client(client, &user, now_ms, &mut out));
    call.reply.verbatim(&out);
    Ok(())
}

pub(super) fn info(call: &mut CommandCall<'_, '_>) -> CommandResult {
    call.state.publish_status();
    let id = call.state.id();
    let own = call.view()?.tenant.usage.clients.of(id);
    reply_clients(call, own.as_slice())
}

pub(super) fn list(call: &mut CommandCall<'_, '_>) -> CommandResult {
    call.state.publish_status();
    let clients = &call.view()?.tenant.usage.clients;
    let shown = match call.rest(2) {
        [] => all_clients(clients)?,
        [word, kind] if is_word(word, "TYPE") => match is_normal(kind)? {
            true => all_clients(clients)?,
            false => Vec::new(),
        },
        [word, ids @ ..] if is_word(word, "ID") && !ids.is_empty() => {
            let ids: Option<Vec<u64>> =
                ids.iter().map(|id| parse_integer(id)?.try_into().ok().filter(|id| *id > 0)).collect();
            ids.ok_or(BAD_ID)?.into_iter().filter_map(|id| clients.of(id)).collect()
        }
        _ => return Err(SYNTAX.into()),
    };
    reply_clients(call, &shown)
}

/// Whether a type of connection is the one that all connections here have.
fn is_normal(kind: &[u8]) -> Result<bool, CommandError> {
    match ["normal", "master", "replica", "slave", "pubsub"].iter().find(|known| is_word(kind, known)) {
        Some(known) => Ok(*known == "normal"),
        None => Err(format!("ERR Unknown client type '{}'", lossy_text(kind)).into()),
    }
}

/// An address of a filter; none: the argument is no address, so no connection has it.
type AddressFilter = Option<SocketAddr>;

fn parse_address(attributes: &[u8]) -> AddressFilter {
    std::str::from_utf8(attributes).ok()?.parse().ok()
}

/// The connections that are to be killed.
struct ClientFilter {
    id: Option<u64>,
    from: Option<AddressFilter>,
    to: Option<AddressFilter>,
    /// In seconds.
    age: Option<u64>,
    /// Whether no connection can match.
    none: bool,
    skip_own: bool,
}

fn parse_filter(call: &CommandCall<'_, '_>) -> Result<ClientFilter, CommandError> {
    let mut wanted = ClientFilter { id: None, from: None, to: None, age: None, none: false, skip_own: true };
    for pair in call.rest(2).chunks(2) {
        let [word, value] = *pair else { return Err(SYNTAX.into()) };
        if is_word(word, "ID") {
            let id = parse_integer(value).and_then(|id| u64::try_from(id).ok()).filter(|id| *id > 0);
            wanted.id = Some(id.ok_or("ERR client-id should be greater than 0")?);
        } else if is_word(word, "SKIPME") {
            wanted.skip_own = match () {
                () if is_word(value, "YES") => true,
                () if is_word(value, "NO") => false,
                () => return Err(SYNTAX.into()),
            };
        } else if is_word(word, "TYPE") {
            wanted.none |= !is_normal(value)?;
        } else if is_word(word, "ADDR") {
            wanted.from = Some(parse_address(value));
        } else if is_word(word, "LADDR") {
            wanted.to = Some(parse_address(value));
        } else if is_word(word, "USER") {
            if call.view()?.tenant.name.as_bytes() != value {
                return Err(format!("ERR No such user '{}'", lossy_text(value)).into());
            }
        } else if is_word(word, "MAXAGE") {
            let age = parse_integer(value).and_then(|age| u64::try_from(age).ok());
            wanted.age = Some(age.ok_or("ERR maxage is not an integer or out of range")?);
        } else {
            return Err(SYNTAX.into());
        }
    }
    Ok(wanted)
}

impl ClientFilter {
    fn is(&self, client: &RedisClientEntry, now_ms: u64) -> bool {
        let at = |wanted: Option<AddressFilter>, address: Option<SocketAddr>| {
            wanted.is_none_or(|wanted| wanted.is_some() && wanted == address)
        };
        // A killed connection notices it at its worker's next check.
        !self.none
            && !client.is_killed()
            && self.id.is_none_or(|id| id == client.id)
            && self.age.is_none_or(|age_s| now_ms.saturating_sub(client.since_ms) / 1000 >= age_s)
            && at(self.from, client.addresses.map(|(from, _)| from))
            && at(self.to, client.addresses.map(|(_, to)| to))
    }
}

pub(super) fn kill(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let old_form = call.args.len() == 3;
    let wanted = match old_form {
        true => ClientFilter {
            from: Some(parse_address(call.arg(2))),
            id: None,
            to: None,
            age: None,
            none: false,
            skip_own: false,
        },
        false => parse_filter(call)?,
    };
    let (clients, now_ms, own) = (&call.view()?.tenant.usage.clients, call.now_ms(), call.state.id());
    let found = match wanted.id {
        Some(id) => clients.of(id).filter(|client| wanted.is(client, now_ms)).into_iter().collect(),
        None => {
            // Each connection is checked.
            call.context.work((clients.count() / CLIENTS_PER_REQUEST) as u64);
            clients.which(|client| wanted.is(client, now_ms))
        }
    };
    let mut ended = 0;
    for client in found {
        if client.id != own {
            call.state.kills.push(client.kill());
        } else if !wanted.skip_own {
            call.state.close_after_reply = true;
        } else {
            continue;
        }
        ended += 1;
    }
    match (old_form, ended) {
        (true, 0) => return Err("ERR No such client".into()),
        (true, _) => call.reply.ok(),
        (false, _) => call.reply.integer(ended),
    }
    Ok(())
}
