//! Redis Cluster's face of a cluster of servers: which keys are elsewhere, and the commands by which clients learn it.

use std::fmt::Write as _;

use sandstorm_net::slots::{SLOTS, slot_of};
use sandstorm_store::slots::{ClusterServer, SlotMap, SlotOwnership};

use super::arguments::{CommandArguments, parse_integer};
use super::command_call::CommandCall;
use super::commands::RedisCommandSpec;
use super::errors::{CommandError, CommandResult, unknown_subcommand};
use super::stripe_locks::StripeLocks;

const NO_CLUSTER: &str = "ERR This instance has cluster support disabled";
const CROSS_SLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";
const NOT_SERVED: &str = "CLUSTERDOWN Hash slot not served";
const NO_REDIS_PORT: &str =
    "CLUSTERDOWN The server that owns the slot has no port for Redis clients: start it with --redis";
const CHANGING: &str = "TRYAGAIN The slot is changing its server";

/// The keys of a command, in a cluster: also of those whose keys the table of commands does not know.
fn keys_of<'i>(
    spec: &RedisCommandSpec,
    arguments: &'i CommandArguments<'_>,
) -> impl Iterator<Item = &'i [u8]> + use<'i> {
    let count = arguments.len();
    let number = |at| arguments.command.arg(arguments.input, at).and_then(parse_integer).unwrap_or(0);
    let (first, last, step) = match spec.name {
        "fcall" | "fcall_ro" | "fcall_cost" => (3, 2 + number(2).clamp(0, count as i64) as usize, 1),
        "memory" => (2, 2, 1),
        _ if spec.first == 0 => (1, 0, 1),
        _ if spec.last < 0 => (spec.first, count.saturating_add_signed(spec.last as isize), spec.step.max(1)),
        _ => (spec.first, spec.last as usize, spec.step.max(1)),
    };
    let places = (first..=last.min(count.saturating_sub(1))).step_by(step);
    places.filter_map(|at| arguments.command.arg(arguments.input, at))
}

/// The refusal of a command whose keys are not all in one slot, or not on this server. `None` also without a cluster.
#[inline]
pub(super) fn refusal(
    call: &CommandCall<'_, '_>,
    spec: &RedisCommandSpec,
    arguments: &CommandArguments<'_>,
) -> Option<CommandError> {
    let slots = call.context.snapshot.slots()?;
    refusal_in(slots, keys_of(spec, arguments).map(slot_of))
}

fn refusal_in(own: &SlotOwnership, mut slots: impl Iterator<Item = u16>) -> Option<CommandError> {
    // One server that owns everything asks nothing of its clients.
    if own.owns_all() {
        return None;
    }
    let slot = slots.next()?;
    if slots.any(|other| other != slot) {
        return Some(CROSS_SLOT.into());
    }
    (!own.owns_slot(slot)).then(|| moved(own, slot))
}

/// The refusal of a command whose keys have got another server while it waited for their locks.
pub(super) fn moved_meanwhile(call: &CommandCall<'_, '_>, locked: &StripeLocks<'_>) -> Option<CommandError> {
    let slot = locked.slot_elsewhere()?;
    call.context.snapshot.slots().map(|own| moved(own, slot))
}

#[cold]
fn moved(own: &SlotOwnership, slot: u16) -> CommandError {
    let map = own.map();
    match map.owner(slot) {
        None => NOT_SERVED.into(),
        Some(owner) if owner.id == own.own_id() || own.is_changing(slot) => CHANGING.into(),
        Some(owner) => match owner.redis {
            Some(address) => format!("MOVED {slot} {address}").into(),
            None => NO_REDIS_PORT.into(),
        },
    }
}

/// CLUSTER and its subcommands.
pub(super) fn cluster(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let Some(own) = call.context.snapshot.slots() else { return Err(NO_CLUSTER.into()) };
    let (map, word) = (own.map(), call.arg(1).to_ascii_lowercase());
    let wanted = match word.as_slice() {
        b"keyslot" | b"countkeysinslot" => 3,
        _ => 2,
    };
    if call.args.len() != wanted {
        let name = String::from_utf8_lossy(&word);
        return Err(format!("ERR wrong number of arguments for 'cluster|{name}' command").into());
    }
    match word.as_slice() {
        b"keyslot" => call.reply.integer(i64::from(slot_of(call.arg(2)))),
        b"myid" => call.reply.bulk(own.own_id().as_bytes()),
        b"info" => call.reply.bulk(info(own, &map).as_bytes()),
        b"nodes" => call.reply.bulk(nodes(own, &map).as_bytes()),
        b"slots" => slots(call, &map),
        b"shards" => shards(call, &map),
        b"help" => {
            let text = [
                "CLUSTER <subcommand> [<arg> ...]. Subcommands are:",
                "INFO, KEYSLOT <key>, MYID, NODES, SHARDS, SLOTS.",
            ];
            return super::server::help(call, &text);
        }
        _ => return Err(unknown_subcommand(call.arg(1), "CLUSTER")),
    }
    Ok(())
}

/// READONLY, READWRITE: there are no replicas, so that all reads are at the owner anyway.
pub(super) fn read_mode(call: &mut CommandCall<'_, '_>) -> CommandResult {
    if call.context.snapshot.slots().is_none() {
        return Err(NO_CLUSTER.into());
    }
    call.reply.ok();
    Ok(())
}

/// ASKING: never asked for here, and so without effect.
pub(super) fn asking(call: &mut CommandCall<'_, '_>) -> CommandResult {
    read_mode(call)
}

fn info(own: &SlotOwnership, map: &SlotMap) -> String {
    let (assigned, servers) = (map.assigned(), map.servers.len());
    let state = if assigned == usize::from(SLOTS) { "ok" } else { "fail" };
    let size = (0..servers).filter(|server| map.count(*server) > 0).count();
    let known = map.servers.iter().any(|server| server.id == own.own_id());
    let mut out = String::new();
    let lines = [
        ("cluster_state", state.to_owned()),
        ("cluster_slots_assigned", assigned.to_string()),
        ("cluster_slots_ok", assigned.to_string()),
        ("cluster_slots_pfail", "0".to_owned()),
        ("cluster_slots_fail", "0".to_owned()),
        ("cluster_known_nodes", (servers + usize::from(!known)).to_string()),
        ("cluster_size", size.to_string()),
        ("cluster_current_epoch", map.epoch.to_string()),
        ("cluster_my_epoch", map.epoch.to_string()),
        ("cluster_stats_messages_sent", "0".to_owned()),
        ("cluster_stats_messages_received", "0".to_owned()),
    ];
    for (name, value) in lines {
        let _ = write!(out, "{name}:{value}\r\n");
    }
    out
}

/// The server's address for Redis clients, and the port that Redis would use between servers.
fn redis_address(server: &ClusterServer) -> (String, u16) {
    server.redis.map_or((String::new(), 0), |address| (address.ip().to_string(), address.port()))
}

fn nodes(own: &SlotOwnership, map: &SlotMap) -> String {
    let (mut out, ranges) = (String::new(), map.ranges());
    for (place, server) in map.servers.iter().enumerate() {
        let (ip, port) = redis_address(server);
        let flags = if server.id == own.own_id() { "myself,master" } else { "master" };
        let link = if server.is_alive || server.id == own.own_id() { "connected" } else { "disconnected" };
        let (id, bus) = (&server.id, port.checked_add(10_000).unwrap_or(0));
        let _ = write!(out, "{id} {ip}:{port}@{bus} {flags} - 0 0 {} {link}", map.epoch);
        for range in ranges.iter().filter(|range| range.server == Some(place)) {
            let _ = match range.first == range.last {
                true => write!(out, " {}", range.first),
                false => write!(out, " {}-{}", range.first, range.last),
            };
        }
        out.push('\n');
    }
    out
}

fn slots(call: &mut CommandCall<'_, '_>, map: &SlotMap) {
    // A range without an address is left out: clients would go to the address that they came from.
    let with_address =
        |server: Option<usize>| server.and_then(|at| map.servers.get(at)).filter(|one| one.redis.is_some());
    let served: Vec<_> =
        map.ranges().into_iter().filter_map(|range| Some((range, with_address(range.server)?))).collect();
    call.reply.array(served.len());
    for (range, server) in served {
        let (ip, port) = redis_address(server);
        call.reply.array(3);
        call.reply.integer(i64::from(range.first));
        call.reply.integer(i64::from(range.last));
        call.reply.array(4);
        call.reply.bulk(ip.as_bytes());
        call.reply.integer(i64::from(port));
        call.reply.bulk(server.id.as_bytes());
        call.reply.array(0);
    }
}

fn shards(call: &mut CommandCall<'_, '_>, map: &SlotMap) {
    let ranges = map.ranges();
    call.reply.array(map.servers.len());
    for (place, server) in map.servers.iter().enumerate() {
        let (ip, port) = redis_address(server);
        let own: Vec<_> = ranges.iter().filter(|range| range.server == Some(place)).collect();
        call.reply.map(2);
        call.reply.bulk(b"slots");
        call.reply.array(own.len() * 2);
        for range in own {
            call.reply.integer(i64::from(range.first));
            call.reply.integer(i64::from(range.last));
        }
        call.reply.bulk(b"nodes");
        call.reply.array(1);
        call.reply.map(7);
        call.reply.bulk(b"id");
        call.reply.bulk(server.id.as_bytes());
        call.reply.bulk(b"port");
        call.reply.integer(i64::from(port));
        for name in ["ip", "endpoint"] {
            call.reply.bulk(name.as_bytes());
            call.reply.bulk(ip.as_bytes());
        }
        call.reply.bulk(b"role");
        call.reply.bulk(b"master");
        call.reply.bulk(b"replication-offset");
        call.reply.integer(0);
        call.reply.bulk(b"health");
        call.reply.bulk(if server.is_alive { b"online" } else { b"fail" });
    }
}

/// Whether the server is one of a cluster.
pub(super) fn is_enabled(call: &CommandCall<'_, '_>) -> bool {
    call.context.snapshot.slots().is_some()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use sandstorm_store::slots::SlotRange;

    fn two_servers() -> SlotOwnership {
        let server = |number: u8| ClusterServer {
            id: format!("{number:040x}"),
            data: SocketAddr::from(([10, 0, 0, number], 7400)),
            redis: (number != 3).then(|| SocketAddr::from(([10, 0, 0, number], 6379))),
            memcached: None,
            control: String::new(),
            directory: String::new(),
            is_alive: number != 2,
            is_draining: false,
        };
        let own = SlotOwnership::new(server(1).id);
        own.set_owned(|slot| slot < 100);
        let range = |first, last, server| SlotRange { first, last, server: Some(server) };
        let ranges = [range(0, 120, 0), range(121, 200, 1), range(202, 202, 2)];
        own.set_map(SlotMap::new(9, vec![server(1), server(2), server(3)], &ranges));
        own
    }

    #[test]
    fn a_key_of_another_server_is_said_to_have_moved_there() {
        let own = two_servers();
        let says = |slots: &[u16]| refusal_in(&own, slots.iter().copied()).map(|CommandError(text)| text.into_owned());
        assert_eq!(says(&[]), None, "no keys");
        assert_eq!(says(&[5, 5]), None);
        assert_eq!(says(&[5, 6]).as_deref(), Some(CROSS_SLOT));
        assert_eq!(says(&[130, 130]).as_deref(), Some("MOVED 130 10.0.0.2:6379"));
        assert_eq!(says(&[110]).as_deref(), Some(CHANGING), "it is ours by the map, and not ready");
        assert_eq!(says(&[201]).as_deref(), Some(NOT_SERVED));
        assert_eq!(says(&[202]).as_deref(), Some(NO_REDIS_PORT));
        own.set_owned(|_| true);
        assert_eq!(says(&[5, 6]), None, "one server has all keys");
    }

    #[test]
    fn the_servers_are_listed_as_redis_does() {
        let text = nodes(&two_servers(), &two_servers().map());
        let id = |number: u8| format!("{number:040x}");
        let lines = [
            format!("{} 10.0.0.1:6379@16379 myself,master - 0 0 9 connected 0-120", id(1)),
            format!("{} 10.0.0.2:6379@16379 master - 0 0 9 disconnected 121-200", id(2)),
            format!("{} :0@10000 master - 0 0 9 connected 202", id(3)),
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), lines);
        let text = info(&two_servers(), &two_servers().map());
        assert!(
            text.contains("cluster_state:fail\r\ncluster_slots_assigned:202\r\n") && text.contains("cluster_size:3")
        );
    }
}
