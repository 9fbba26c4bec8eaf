//! CLIENT LIST, INFO and KILL: the tenant's own connections, of all workers. Those of others are not its business.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::call::{Call, Fail, Outcome, SYNTAX, integer, is, text};
use super::commands::COMMANDS;
use crate::limits::redis::{CLIENTS_LISTED, CLIENTS_PER_REQUEST};
use sandstorm_accounts::{Client, Clients};

const BAD_ID: &str = "ERR Invalid client ID";

/// What is said of a connection, in one line.
fn line(client: &Client, user: &str, now_ms: u64, out: &mut String) {
    use std::fmt::Write as _;
    let said = client.said.lock().clone();
    let stands = said.state;
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
        text(&said.name),
        now_ms.saturating_sub(client.since_ms) / 1000,
        now_ms.saturating_sub(client.heard_ms.load(Relaxed)) / 1000,
        if stands.queued >= 0 { "x" } else { "N" },
        stands.database,
        stands.queued,
        stands.watches,
        if stands.resp3 { 3 } else { 2 },
        text(&said.library.0),
        text(&said.library.1),
    );
}

/// All that are there, if they are not too many.
fn all(clients: &Clients) -> Result<Vec<Arc<Client>>, Fail> {
    let count = clients.count();
    if count > CLIENTS_LISTED {
        return Err(format!(
            "ERR the tenant has {count} connections, of which {CLIENTS_LISTED} at most are listed: ask for some, CLIENT LIST ID id ..."
        )
        .into());
    }
    Ok(clients.which(|client| !client.is_killed()))
}

fn lines(call: &mut Call<'_, '_>, shown: &[Arc<Client>]) -> Outcome {
    let (user, now_ms) = (call.view()?.tenant.name.clone(), call.now_ms());
    call.context.work(shown.len() as u64);
    let mut out = String::new();
    shown.iter().for_each(|client| line(client, &user, now_ms, &mut out));
    call.reply.verbatim(&out);
    Ok(())
}

pub(super) fn info(call: &mut Call<'_, '_>) -> Outcome {
    call.state.tell();
    let id = call.state.id();
    let own = call.view()?.tenant.usage.clients.of(id);
    lines(call, own.as_slice())
}

pub(super) fn list(call: &mut Call<'_, '_>) -> Outcome {
    call.state.tell();
    let clients = &call.view()?.tenant.usage.clients;
    let shown = match call.rest(2) {
        [] => all(clients)?,
        [word, kind] if is(word, "TYPE") => match is_normal(kind)? {
            true => all(clients)?,
            false => Vec::new(),
        },
        [word, ids @ ..] if is(word, "ID") && !ids.is_empty() => {
            let ids: Option<Vec<u64>> =
                ids.iter().map(|id| integer(id)?.try_into().ok().filter(|id| *id > 0)).collect();
            ids.ok_or(BAD_ID)?.into_iter().filter_map(|id| clients.of(id)).collect()
        }
        _ => return Err(SYNTAX.into()),
    };
    lines(call, &shown)
}

/// Whether a type of connection is that of all connections here.
fn is_normal(kind: &[u8]) -> Result<bool, Fail> {
    match ["normal", "master", "replica", "slave", "pubsub"].iter().find(|known| is(kind, known)) {
        Some(known) => Ok(*known == "normal"),
        None => Err(format!("ERR Unknown client type '{}'", text(kind)).into()),
    }
}

/// An address that was asked for; none: what was said is no address, so no connection has it.
type At = Option<SocketAddr>;

fn at(said: &[u8]) -> At {
    std::str::from_utf8(said).ok()?.parse().ok()
}

/// Which connections are to be ended.
struct Wanted {
    id: Option<u64>,
    from: Option<At>,
    to: Option<At>,
    /// In seconds.
    age: Option<u64>,
    /// None can be what was asked for.
    none: bool,
    skips_own: bool,
}

fn wanted(call: &Call<'_, '_>) -> Result<Wanted, Fail> {
    let mut wanted = Wanted { id: None, from: None, to: None, age: None, none: false, skips_own: true };
    for pair in call.rest(2).chunks(2) {
        let [word, value] = *pair else { return Err(SYNTAX.into()) };
        if is(word, "ID") {
            let id = integer(value).and_then(|id| u64::try_from(id).ok()).filter(|id| *id > 0);
            wanted.id = Some(id.ok_or("ERR client-id should be greater than 0")?);
        } else if is(word, "SKIPME") {
            wanted.skips_own = match () {
                () if is(value, "YES") => true,
                () if is(value, "NO") => false,
                () => return Err(SYNTAX.into()),
            };
        } else if is(word, "TYPE") {
            wanted.none |= !is_normal(value)?;
        } else if is(word, "ADDR") {
            wanted.from = Some(at(value));
        } else if is(word, "LADDR") {
            wanted.to = Some(at(value));
        } else if is(word, "USER") {
            if call.view()?.tenant.name.as_bytes() != value {
                return Err(format!("ERR No such user '{}'", text(value)).into());
            }
        } else if is(word, "MAXAGE") {
            let age = integer(value).and_then(|age| u64::try_from(age).ok());
            wanted.age = Some(age.ok_or("ERR maxage is not an integer or out of range")?);
        } else {
            return Err(SYNTAX.into());
        }
    }
    Ok(wanted)
}

impl Wanted {
    fn is(&self, client: &Client, now_ms: u64) -> bool {
        let at = |wanted: Option<At>, address: Option<SocketAddr>| {
            wanted.is_none_or(|wanted| wanted.is_some() && wanted == address)
        };
        // One that was ended is told so with the next look of its worker.
        !self.none
            && !client.is_killed()
            && self.id.is_none_or(|id| id == client.id)
            && self.age.is_none_or(|age_s| now_ms.saturating_sub(client.since_ms) / 1000 >= age_s)
            && at(self.from, client.addresses.map(|(from, _)| from))
            && at(self.to, client.addresses.map(|(_, to)| to))
    }
}

pub(super) fn kill(call: &mut Call<'_, '_>) -> Outcome {
    let old_form = call.args.len() == 3;
    let wanted = match old_form {
        true => Wanted { from: Some(at(call.arg(2))), id: None, to: None, age: None, none: false, skips_own: false },
        false => wanted(call)?,
    };
    let (clients, now_ms, own) = (&call.view()?.tenant.usage.clients, call.now_ms(), call.state.id());
    let found = match wanted.id {
        Some(id) => clients.of(id).filter(|client| wanted.is(client, now_ms)).into_iter().collect(),
        None => {
            // Each is looked at.
            call.context.work((clients.count() / CLIENTS_PER_REQUEST) as u64);
            clients.which(|client| wanted.is(client, now_ms))
        }
    };
    let mut ended = 0;
    for client in found {
        if client.id != own {
            call.state.kills.push(client.kill());
        } else if !wanted.skips_own {
            call.state.closes = true;
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
