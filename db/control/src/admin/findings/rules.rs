//! The rules. Each looks at one thing, and says what it found with its number, its cause and the setting that changes
//! it.

use super::listing::{finding, worst};
use super::reading::{LiveReading, TenantPressure};
use super::{log_rules, tenant_rules};
use crate::admin::finding::{FindingSeverity, ServerFinding};
use crate::limits::NEARLY_USED_PER_MILLE;
use FindingSeverity::{Bad, Mind};

/// A quota counts as nearly used from this part on.
const NEARLY_USED: f64 = 0.9;
/// A worker that is busy for so much of its time has none left.
const SATURATED: f64 = 0.95;
/// Quotas that refuse calls while as many run, or have as much.
const CALL_QUOTAS: [&str; 2] = ["concurrent_invocations", "invocation_memory_bytes"];
/// Kills a minute of one extension that are worth a word: more than mistakes of a day.
const KILLS_PER_MINUTE: f64 = 6.0;
/// Packets lost a second that are worth a word.
const LOSSES_PER_S: f64 = 10.0;
/// Bytes of changes since the last checkpoint, as parts of what begins one: it should be written long before.
const CHECKPOINT_LATE_BYTES: u64 = 4 * (128 << 20);
/// Bytes of changes that wait for the disk: tens of milliseconds of a slow one.
const LOG_PENDING_BYTES: u64 = 32 << 20;
/// Replaced records that wait for readers, bytes: from here on writers of small tables are refused.
const GARBAGE_BYTES: u64 = 64 << 20;
/// Certificates and tokens are mentioned so long before their end.
const ENDS_SOON_S: i64 = 14 * 86_400;
/// A clock that is set by more than this was not merely slewed.
const CLOCK_STEP_MS: i64 = 1_000;
/// Looks of the watchdog that come late, a second.
const LATE_LOOKS_PER_S: f64 = 10.0;
/// Records of a table above which small pages cost time at each look-up.
const LARGE_TABLE_BYTES: u64 = 1 << 30;

/// All findings, the worst first.
pub(super) fn findings(reading: &LiveReading) -> Vec<ServerFinding> {
    let rules: [fn(&LiveReading) -> Vec<ServerFinding>; 10] = [
        kept,
        quotas,
        tenant_rules::neighbours,
        tenant_rules::hot_keys,
        extensions,
        workers,
        network,
        builder,
        memory,
        control,
    ];
    let mut all: Vec<ServerFinding> = rules.iter().flat_map(|rule| rule(reading)).collect();
    all.sort_by_key(|finding| finding.severity);
    all
}

/// What is kept on the disk.
fn kept(reading: &LiveReading) -> Vec<ServerFinding> {
    [disk(reading), log(reading), log_rules::damage(reading), log_rules::cluster(reading)].concat()
}

/// Changes of the directory, and the disk that they are on.
fn disk(reading: &LiveReading) -> Vec<ServerFinding> {
    let mut found = Vec::new();
    if let Some(why) = &reading.changes_refused {
        let text = format!("Changes of tenants, tables, grants and tokens are refused: {why}.");
        found.push(finding(
            "changes_refused",
            Bad,
            "The disk takes no changes.",
            text,
            "Free space where the state directory is; the server tries again by itself.",
        ));
    }
    let machine = &reading.machine;
    if machine.disk_bytes > 0 && (machine.disk_free_bytes as f64) < 0.05 * machine.disk_bytes as f64 {
        let text = format!(
            "{} are free of {}, and a full disk takes no changes.",
            mib(machine.disk_free_bytes),
            mib(machine.disk_bytes)
        );
        found.push(finding(
            "disk_nearly_full",
            Mind,
            "The state directory's disk is nearly full.",
            text,
            "Free space there, or move the directory (`state`).",
        ));
    }
    if !reading.keeps_changes {
        let text = "Tenants, tables, records, tokens and extensions are in memory alone (`--ephemeral`).".to_owned();
        found.push(finding(
            "ephemeral",
            Mind,
            "A restart forgets everything.",
            text,
            "Start without --ephemeral, unless this is a test.",
        ));
    }
    found
}

/// The log of records.
fn log(reading: &LiveReading) -> Vec<ServerFinding> {
    let mut found = Vec::new();
    if let Some(why) = &reading.log_failure {
        let text = format!("Tables with durability take no writes: {why}.");
        found.push(finding(
            "log_failed",
            Bad,
            "The log of records is closed.",
            text,
            "See the disk, then restart the server: it begins a new log behind what is there.",
        ));
    }
    let pending = reading.gauge("log_pending_bytes");
    if pending > LOG_PENDING_BYTES {
        let text = format!("{} of changes wait for it, which a crash would take.", mib(pending));
        found.push(finding(
            "log_stalled",
            Mind,
            "The disk of the log is slow.",
            text,
            "Put the state directory (`state`) on a faster disk, or on one that others do not use.",
        ));
    }
    let since = reading.gauge("log_bytes_since_checkpoint");
    if since > CHECKPOINT_LATE_BYTES {
        let text =
            format!("{} of changes were written since the last one, so the next start reads as much.", mib(since));
        found.push(finding(
            "checkpoint_late",
            Mind,
            "A checkpoint of the log is late.",
            text,
            "The server's log says why none was written; free space on the disk for one.",
        ));
    }
    found
}

/// Tenants that meet their quotas.
fn quotas(reading: &LiveReading) -> Vec<ServerFinding> {
    let mut nearly = Vec::new();
    let (mut throttled, mut refused) = (Vec::new(), Vec::new());
    for tenant in &reading.tenants {
        let name = &tenant.name;
        for (quota, used, limit) in &tenant.quotas {
            let part = if *limit == 0 { 0.0 } else { *used as f64 / *limit as f64 };
            if part >= NEARLY_USED {
                let text = format!("Tenant {name} uses {used} of {limit} ({:.0} %).", part * 100.0);
                let advice = format!("`sandstorm tenant set {name} --quota {quota}=NUMBER` raises it.");
                nearly.push((
                    part,
                    finding("quota_nearly_used", Mind, format!("The quota {quota} is nearly used."), text, advice),
                ));
            }
        }
        let dropped = tenant.dropped_early_per_mille;
        if dropped > 0 {
            let why = match tenant.requests_per_s {
                0 => "it sends more than is served".to_owned(),
                most => format!("it sends more than its quota of {most} requests a second"),
            };
            let text = format!("{:.1} % of the packets of {name} are dropped: {why}.", dropped as f64 / 10.0);
            let advice = format!("Have it send less, or `sandstorm tenant set {name} --quota requests_per_s=NUMBER`.");
            throttled.push((dropped as f64, finding("tenant_throttled", Mind, "A tenant is throttled.", text, advice)));
        }
        refused.extend(over_quota(reading, tenant));
    }
    [worst(nearly), worst(throttled), worst(refused), full_tables(reading)].concat()
}

/// A tenant whose operations are refused, by which quota.
fn over_quota(reading: &LiveReading, tenant: &TenantPressure) -> Option<(f64, ServerFinding)> {
    let TenantPressure { name, requests_per_s, over_quota, over_rate, .. } = tenant;
    let per_s = reading.a_second(*over_quota);
    if per_s < 1.0 {
        return None;
    }
    let (quota, advice) = if *over_rate * 2 >= *over_quota {
        let quota = format!("its quota requests_per_s ({requests_per_s})");
        (quota, format!("Have it send less, or `sandstorm tenant set {name} --quota requests_per_s=NUMBER`."))
    } else {
        let limits = tenant.quotas.iter().filter(|(quota, ..)| CALL_QUOTAS.contains(quota));
        let limits: Vec<String> = limits.map(|(quota, _, limit)| format!("{quota} ({limit})")).collect();
        let quota = format!("a quota of its calls: {}, or the rate of a slowed extension", limits.join(", "));
        let command = "`sandstorm tenant set";
        (quota, format!("Each answer names it; {command} {name} --quota concurrent_invocations=NUMBER` raises it."))
    };
    let text = format!("{per_s:.0} operations a second of {name} are refused by {quota}.");
    Some((per_s, finding("tenant_over_quota", Mind, "A tenant is refused by its quotas.", text, advice)))
}

/// Tables that are full, or nearly.
fn full_tables(reading: &LiveReading) -> Vec<ServerFinding> {
    let (mut full, mut nearly) = (Vec::new(), Vec::new());
    for table in &reading.tables {
        let is_nearly_full = table.refusals == 0 && table.used_per_mille >= NEARLY_USED_PER_MILLE;
        if is_nearly_full {
            let (tenant, name, part) = (&table.tenant, &table.name, table.used_per_mille as f64 / 10.0);
            let (used, quota) = (bytes(table.bytes), bytes(table.quota_bytes));
            let text =
                format!("{tenant}/{name} has {used} of its quota of {quota} ({part:.0} %); a full one refuses writes.");
            let advice = format!(
                "`sandstorm table set {name} --tenant {tenant} --quota BYTES` raises it, within the tenant's \
                 memory_bytes; or delete records."
            );
            nearly.push((part, finding("table_nearly_full", Mind, "A table is nearly full.", text, advice)));
        }
        if table.refusals == 0 {
            continue;
        }
        let (tenant, name, refusals) = (&table.tenant, &table.name, table.refusals);
        let text = format!(
            "{} to {tenant}/{name} {} refused in {:.0} s: it has reached its quota.",
            if refusals == 1 { "One write".to_owned() } else { format!("{refusals} writes") },
            if refusals == 1 { "was" } else { "were" },
            reading.seconds
        );
        let advice = "Raise the tenant's memory_bytes and make a larger table, delete records, or make it a cache \
            (`--mode cache`).";
        full.push((refusals as f64, finding("table_full", Bad, "A table is full.", text, advice)));
    }
    [worst(full), worst(nearly)].concat()
}

/// Extensions that are killed, and the measures against them.
fn extensions(reading: &LiveReading) -> Vec<ServerFinding> {
    let (mut killed, mut suspended, mut slowed) = (Vec::new(), Vec::new(), Vec::new());
    for extension in &reading.extensions {
        let what = format!("{}/{}", extension.tenant, extension.name);
        let kills_command = format!(
            "`sandstorm kills --tenant {} --extension {}` has each with its text.",
            extension.tenant, extension.name
        );
        let per_minute = if reading.seconds > 0.0 { extension.killed as f64 * 60.0 / reading.seconds } else { 0.0 };
        if per_minute >= KILLS_PER_MINUTE {
            let cause = extension.cause;
            let text = format!("{per_minute:.0} calls of {what} are killed each minute, most because of {cause}.");
            killed.push((
                per_minute,
                finding("extension_killed", Mind, "An extension keeps being killed.", text, kills_command),
            ));
        }
        if let Some(why) = &extension.suspended {
            let text = format!("Calls of {what} are refused: {why}.");
            let advice = format!(
                "`sandstorm ext resume {} --tenant {}`, or have a new version pushed.",
                extension.name, extension.tenant
            );
            suspended.push((1.0, finding("extension_suspended", Mind, "An extension is suspended.", text, advice)));
        }
        if extension.slowed_to_per_s > 0 {
            let text = format!(
                "{what} may be called {} a second, because it kept being killed.",
                match extension.slowed_to_per_s {
                    1 => "once".to_owned(),
                    times => format!("{times} times"),
                }
            );
            slowed.push((
                1.0,
                finding("extension_slowed", Mind, "An extension is slowed down.", text, kills_command_of(&what)),
            ));
        }
    }
    let crowded = reading.per_s("invocations_killed.crowded");
    let mut found = [worst(killed), worst(suspended), worst(slowed)].concat();
    if crowded > 0.1 {
        let text =
            format!("{crowded:.1} calls a second are killed because they held up the memory of replaced records.");
        found.push(finding(
            "calls_crowded",
            Mind,
            "Calls read for too long.",
            text,
            "`sandstorm kills --cause \
            crowded` names their extensions; they should read less at once, or their tenants write less.",
        ));
    }
    found
}

fn kills_command_of(what: &str) -> String {
    format!("`sandstorm kills` says why calls of {what} were killed; a new version ends it.")
}

/// Workers and the machine's processors.
fn workers(reading: &LiveReading) -> Vec<ServerFinding> {
    let mut found = Vec::new();
    let saturated: Vec<usize> =
        reading.busy.iter().enumerate().filter(|(_, busy)| **busy >= SATURATED).map(|(worker, _)| worker).collect();
    if let Some(first) = saturated.first() {
        let (busy, all) = (saturated.len(), reading.busy.len());
        let percent = reading.busy.iter().fold(0.0_f64, |most, busy| most.max(*busy)) * 100.0;
        let text = format!("{busy} of {all} workers are busy for {percent:.0} % of the time, such as worker {first}.");
        let advice = if busy < all {
            "Move tenants from it: `sandstorm stat` shows the workers, `sandstorm tenant set NAME --home \
             NUMBER` moves one."
        } else {
            "Give the server more processors (`workers`), or its tenants quotas (requests_per_s, weight)."
        };
        found.push(finding("worker_saturated", Mind, "A worker has no time left.", text, advice));
    }
    let late = reading.per_s("watchdog_late");
    if late >= LATE_LOOKS_PER_S {
        let text = format!("{late:.0} looks a second come a millisecond late or more, so calls run past their slices.");
        found.push(finding(
            "watchdog_late",
            Mind,
            "The watchdog gets no processor.",
            text,
            "Leave the machine a processor more than there are `workers`, and grant CAP_SYS_NICE.",
        ));
    }
    let (live, most) = (reading.gauge("invocations_live"), 1_536 * reading.busy.len() as u64);
    if most > 0 && live as f64 >= NEARLY_USED * most as f64 {
        let text = format!("{live} calls are under way, of {most} that may be.");
        found.push(finding(
            "calls_crowd_workers",
            Mind,
            "Workers are full of calls.",
            text,
            "Lower concurrent_invocations of the tenants that have most (`sandstorm tenant show`), or add workers.",
        ));
    }
    if reading.clock_step_ms.abs() >= CLOCK_STEP_MS {
        let text = format!(
            "It was set by {} ms within {:.0} s; expiry of records follows it.",
            reading.clock_step_ms, reading.seconds
        );
        found.push(finding(
            "clock_stepped",
            Mind,
            "The machine's clock was set.",
            text,
            "Have its time service slew it (chrony: makestep at the start alone).",
        ));
    }
    found
}

/// Packets that are lost.
fn network(reading: &LiveReading) -> Vec<ServerFinding> {
    let mut found = Vec::new();
    let (early, shed) = (reading.per_s("packets_dropped_early"), reading.per_s("packets_shed"));
    if early + shed >= LOSSES_PER_S {
        let mut text = format!(
            "{early:.0} a second in front of the sockets and {shed:.0} behind them: more comes than is served."
        );
        let mut bounded = "NAME";
        if let Some(busiest) = reading.tenants.iter().max_by_key(|tenant| tenant.sent()).filter(|one| one.sent() > 0) {
            bounded = &busiest.name;
            let per_s = reading.a_second(busiest.sent());
            text.push_str(&format!(" Tenant {bounded} sends most: {per_s:.0} operations a second arrive of it."));
        }
        let advice = format!(
            "`sandstorm tenant set {bounded} --quota requests_per_s=NUMBER` bounds a tenant, `sandstorm top tenants \
             --sort requests_per_s` shows the next; net.core.rmem_max makes room for bursts."
        );
        found.push(finding("packets_dropped", Mind, "Received packets are dropped.", text, advice));
    }
    let unsent = reading.per_s("packets_unsent");
    if unsent >= LOSSES_PER_S {
        let text = format!("{unsent:.0} a second find the socket full.");
        found.push(finding(
            "packets_unsent",
            Mind,
            "Answers are not sent.",
            text,
            "Raise net.core.wmem_max, or see whether the network takes what is sent.",
        ));
    }
    let (again, out) = (reading.per_s("retransmissions"), reading.per_s("packets_out"));
    if again >= LOSSES_PER_S && again > 0.02 * out {
        let text = format!("{again:.0} of {out:.0} packets a second were not acknowledged in time.");
        found.push(finding(
            "retransmissions",
            Mind,
            "Packets are sent again.",
            text,
            match early + shed >= LOSSES_PER_S {
                true => "This server drops packets itself: see that finding first.",
                false => "See the network for loss, and the clients for processors that are too busy.",
            },
        ));
    }
    if reading.now.contains_key("device_link_up") && reading.gauge("device_link_up") == 0 {
        let text = "The other end of the network device is not there.".to_owned();
        found.push(finding(
            "device_link_down",
            Bad,
            "The network device is down.",
            text,
            "See the cable, the switch, or the process at the other end (memif).",
        ));
    }
    found
}

/// The builder.
fn builder(reading: &LiveReading) -> Vec<ServerFinding> {
    let mut found = Vec::new();
    if let Some(why) = &reading.no_builder {
        let text = format!("Pushes of source are refused: {why}.");
        found.push(finding(
            "no_builder",
            Mind,
            "There is no builder.",
            text,
            "`sandstorm doctor` says what it lacks; docs/builder.md has one on another host.",
        ));
    }
    let waiting = reading.gauge("builds_waiting");
    if waiting * 2 >= reading.build_places && reading.build_places > 0 {
        let text = format!(
            "{waiting} pushes wait, of {} that may; {} are built.",
            reading.build_places,
            reading.gauge("builds_running")
        );
        found.push(finding(
            "build_queue_full",
            Mind,
            "The builder's queue is long.",
            text,
            "Lower pushes_per_hour of the tenants that push most, or give the builder a host of its own.",
        ));
    }
    found
}

/// Memory: of the tables, and of the machine.
fn memory(reading: &LiveReading) -> Vec<ServerFinding> {
    [tables(reading), machine(reading)].concat()
}

/// The memory of tables.
fn tables(reading: &LiveReading) -> Vec<ServerFinding> {
    let mut garbage = Vec::new();
    let mut crowded = Vec::new();
    for table in &reading.tables {
        let what = format!("{}/{}", table.tenant, table.name);
        if table.garbage_bytes >= GARBAGE_BYTES {
            let text = format!(
                "{} of replaced records of {what} are not freed: calls still read them.",
                mib(table.garbage_bytes)
            );
            garbage.push((
                table.garbage_bytes as f64,
                finding(
                    "garbage_held",
                    Mind,
                    "Memory waits for readers.",
                    text,
                    "`sandstorm kills --cause crowded` names extensions that read for long; suspend the worst.",
                ),
            ));
        }
        if table.slots > 0 && table.records > table.slots {
            let part = table.records as f64 / table.slots as f64;
            let text = format!("{what} has {part:.1} records for each slot, so look-ups follow chains.");
            crowded.push((
                part,
                finding(
                    "table_chains",
                    Mind,
                    "A hash table is too small for its records.",
                    text,
                    "It \
                grows by itself while there is memory: see memory_bytes of the tenant, and `writes_without_memory`.",
                ),
            ));
        }
    }
    [worst(garbage), worst(crowded)].concat()
}

/// The memory of the machine.
fn machine(reading: &LiveReading) -> Vec<ServerFinding> {
    let mut found = Vec::new();
    let refused = reading.growth.get("writes_without_memory").copied().unwrap_or(0);
    if refused > 0 {
        let text = format!("{refused} writes were refused in {:.0} s although no quota was reached.", reading.seconds);
        found.push(finding(
            "out_of_memory",
            Bad,
            "The machine has no memory for records.",
            text,
            "Lower the quotas memory_bytes, so that their sum fits the machine.",
        ));
    }
    let machine = &reading.machine;
    if machine.memory_bytes > 0 && (machine.available_bytes as f64) < 0.05 * machine.memory_bytes as f64 {
        let text = format!(
            "{} are available of {}; the kernel may kill the server.",
            mib(machine.available_bytes),
            mib(machine.memory_bytes)
        );
        found.push(finding(
            "memory_low",
            Bad,
            "The machine is short of memory.",
            text,
            "Lower the quotas memory_bytes, or stop what else runs there.",
        ));
    }
    if machine.huge_pages == "never" && reading.gauge("record_bytes") >= LARGE_TABLE_BYTES {
        let text = format!(
            "Tables have {}, and each look-up misses the processor's map of small pages.",
            mib(reading.gauge("record_bytes"))
        );
        found.push(finding(
            "huge_pages_off",
            Mind,
            "Transparent huge pages are off.",
            text,
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, then restart the server.",
        ));
    }
    if machine.open_files_max > 0 && machine.open_files as f64 >= NEARLY_USED * machine.open_files_max as f64 {
        let text =
            format!("{} of {} are open; more connections are refused.", machine.open_files, machine.open_files_max);
        found.push(finding(
            "files_nearly_used",
            Mind,
            "The process may open few more files.",
            text,
            "Raise LimitNOFILE of the service.",
        ));
    }
    found
}

/// The control port.
fn control(reading: &LiveReading) -> Vec<ServerFinding> {
    let mut found = Vec::new();
    for (what, in_s) in reading.ends.iter().filter(|(_, in_s)| *in_s < ENDS_SOON_S) {
        let (severity, text) = match in_s {
            ..=0 => (Bad, format!("{what} has ended.")),
            _ => (Mind, format!("{what} ends in {:.1} days.", *in_s as f64 / 86_400.0)),
        };
        let advice = "A certificate is renewed by replacing its files; `sandstorm token create` makes a new token.";
        found.push(finding("ends_soon", severity, "A certificate or token ends.", text, advice));
    }
    let wrong = reading.per_s("control_wrong_tokens");
    if wrong >= 0.2 {
        let text = format!("{wrong:.1} requests a second carry unknown tokens: a client guesses, or uses a void one.");
        found.push(finding(
            "wrong_tokens",
            Mind,
            "Wrong tokens come to the control port.",
            text,
            "The server's log has the addresses.",
        ));
    }
    let limited = reading.per_s("control_connections_limited") + reading.per_s("control_shed");
    if limited >= 1.0 {
        let text = format!("{limited:.1} connections a second are closed, because there are too many.");
        found.push(finding(
            "control_crowded",
            Mind,
            "The control port is crowded.",
            text,
            "See who connects there, and have programs keep their connections.",
        ));
    }
    found
}

fn bytes(count: u64) -> String {
    if count < 10_240 { format!("{count} bytes") } else { mib(count) }
}

fn mib(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..10_737_418_240 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}
