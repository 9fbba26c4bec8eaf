//! CLIENT TRACKING: client libraries with a cache of their own begin with it, and some refuse to start, or try for ever, where it is
//! refused. The server remembers no key: it has a tracking table of no size, of which each entry is evicted at once. So every key that a
//! tracked connection has read is told to be invalid right behind the answer. That is legal, and right: nothing stale is ever kept, and
//! nothing else either.

use sandstorm_net::resp::Reply;

use super::call::{Call, Fail, Outcome, SYNTAX, is};
use super::commands::{self, Spec};
use super::pieces::Arguments;

/// How a connection is tracked, as it has asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tracking {
    broadcast: bool,
    opt_in: bool,
    opt_out: bool,
    no_loop: bool,
    /// Whether it said for which keys.
    prefixes: bool,
}

/// What is kept of it.
#[derive(Debug, Default)]
pub(super) struct Tracked {
    pub(super) how: Option<Tracking>,
    /// Keys that commands of a transaction have read: they are told behind its answer.
    keys: Vec<Box<[u8]>>,
}

fn options(call: &Call<'_, '_>) -> Result<Tracking, Fail> {
    let (mut how, mut at) = (Tracking::default(), 3);
    while at < call.args.len() {
        let word = call.arg(at);
        match () {
            () if is(word, "BCAST") => how.broadcast = true,
            () if is(word, "OPTIN") => how.opt_in = true,
            () if is(word, "OPTOUT") => how.opt_out = true,
            () if is(word, "NOLOOP") => how.no_loop = true,
            () if is(word, "PREFIX") && at + 1 < call.args.len() => {
                how.prefixes = true;
                at += 1;
            }
            () if is(word, "REDIRECT") && at + 1 < call.args.len() => {
                return Err(
                    "ERR no redirection here, there is no publish and subscribe: track by RESP3 (HELLO 3)".into()
                );
            }
            () => return Err(SYNTAX.into()),
        }
        at += 1;
    }
    if how.prefixes && !how.broadcast {
        return Err("ERR PREFIX option requires BCAST mode to be enabled".into());
    }
    if how.broadcast && (how.opt_in || how.opt_out) {
        return Err("ERR OPTIN and OPTOUT are not compatible with BCAST".into());
    }
    if how.opt_in && how.opt_out {
        return Err("ERR You can't use both OPTIN and OPTOUT".into());
    }
    Ok(how)
}

pub(super) fn tracking(call: &mut Call<'_, '_>) -> Outcome {
    let how = match () {
        () if is(call.arg(2), "ON") => Some(options(call)?),
        () if is(call.arg(2), "OFF") => None,
        () => return Err(SYNTAX.into()),
    };
    if how.is_some() && !call.reply.resp3 {
        return Err(
            "ERR tracking is told by RESP3's pushes alone: say HELLO 3 first, or turn client-side caching off".into()
        );
    }
    call.state.tracked = Tracked { how, keys: Vec::new() };
    call.reply.ok();
    Ok(())
}

pub(super) fn caching(call: &mut Call<'_, '_>) -> Outcome {
    let how = call.state.tracked.how.unwrap_or_default();
    if !how.opt_in && !how.opt_out {
        return Err("ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled".into());
    }
    match () {
        () if is(call.arg(2), "YES") && how.opt_in || is(call.arg(2), "NO") && how.opt_out => call.reply.ok(),
        () if is(call.arg(2), "YES") => {
            return Err("ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.".into());
        }
        () if is(call.arg(2), "NO") => {
            return Err("ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.".into());
        }
        () => return Err(SYNTAX.into()),
    }
    Ok(())
}

pub(super) fn info(call: &mut Call<'_, '_>) -> Outcome {
    let how = call.state.tracked.how;
    let (on, how) = (how.is_some(), how.unwrap_or_default());
    let flags = [
        (!on, "off"),
        (on, "on"),
        (how.broadcast, "bcast"),
        (how.opt_in, "optin"),
        (how.opt_out, "optout"),
        (how.no_loop, "noloop"),
    ];
    let flags: Vec<_> = flags.iter().filter(|(set, _)| *set).collect();
    let reply = &mut call.reply;
    reply.map(3);
    reply.bulk(b"flags");
    reply.set(flags.len());
    flags.iter().for_each(|(_, flag)| reply.bulk(flag.as_bytes()));
    reply.bulk(b"redirect");
    reply.integer(if on { 0 } else { -1 });
    reply.bulk(b"prefixes");
    reply.array(0);
    Ok(())
}

/// Tells a tracked connection, behind an answer, that what it has read may not be kept.
pub(super) fn told(call: &mut Call<'_, '_>, spec: &Spec) {
    if call.state.tracked.how.is_none() {
        return;
    }
    if call.state.executes {
        if spec.is(commands::READONLY) {
            call.state.tracked.keys.extend(spec.keys(call.args).map(Box::from));
        }
        return;
    }
    let ran = std::mem::take(&mut call.state.tracked.keys);
    if spec.name == "exec" {
        push(&mut call.reply, ran.iter().map(|key| &**key), ran.len());
    } else if spec.is(commands::READONLY) {
        push(&mut call.reply, spec.keys(call.args), spec.keys(call.args).count());
    }
}

/// The same behind the answer of a command that was run in pieces: all its arguments are keys.
pub(super) fn told_of_all(call: &mut Call<'_, '_>, spec: &Spec, arguments: &Arguments<'_>) {
    let names_keys = spec.first == 1 && spec.last == -1 && spec.is(commands::READONLY);
    if call.state.tracked.how.is_some() && names_keys {
        push(&mut call.reply, arguments.behind_the_name(), arguments.len() - 1);
    }
}

fn push<'k>(reply: &mut Reply<'_>, keys: impl Iterator<Item = &'k [u8]>, count: usize) {
    if count > 0 && reply.resp3 {
        reply.push(2);
        reply.bulk(b"invalidate");
        reply.array(count);
        keys.for_each(|key| reply.bulk(key));
    }
}
