//! The page `docs/configuration.md`, made from the tables here and from the declarations of the quotas; tests hold the
//! tables to what the parser takes, and ranges to what it refuses.

mod cluster_rows;

use std::fmt::Write as _;

mod targets;

use super::tests::parse;
use super::{CliOverrides, DEFAULT_CONTROL, DEFAULT_DATA, LogFailurePolicy, ServerSettings};
use sandstorm_builder::CompileLimits;
use sandstorm_builder::limits::MAX_COMPILERS;
use sandstorm_catalog::limits::{DEFAULT_TABLE_BYTES, MIN_TABLE_BYTES, TENANTS};
use sandstorm_catalog::{DefaultDurability, QuotaDeclaration, Quotas};
use sandstorm_metrics::limits::MAX_WORKERS;
use sandstorm_net::CodePolicy;
use sandstorm_server::limits::SLOW_MAX_US;
use sandstorm_server::limits::ports::SOCKET_MODE;
use sandstorm_store::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

/// A key of the file.
struct ReferenceRow {
    key: &'static str,
    /// As the command line has it.
    option: &'static str,
    default: String,
    meaning: String,
    /// Least and largest value, of numbers.
    range: Option<(u64, u64)>,
}

/// A section of the file.
struct ReferenceSection {
    /// As a heading has it.
    title: &'static str,
    about: &'static str,
    /// What stands in a file before a key of the section.
    before: &'static str,
    rows: Vec<ReferenceRow>,
}

fn row(key: &'static str, option: &'static str, default: impl Into<String>, meaning: &str) -> ReferenceRow {
    ReferenceRow { key, option, default: default.into(), meaning: meaning.to_owned(), range: None }
}

fn number(
    key: &'static str,
    option: &'static str,
    default: impl Into<String>,
    range: (u64, u64),
    what: &str,
) -> ReferenceRow {
    ReferenceRow { range: Some(range), ..row(key, option, default, what) }
}

/// A number as the page shows it: bytes in the largest unit that divides them, others with a comma at every third
/// digit.
fn shown(key: &str, value: u64) -> String {
    let units = ["TiB", "GiB", "MiB", "KiB"].iter().zip([40, 30, 20, 10]);
    let fits = |power: u32| value > 0 && value.trailing_zeros() >= power;
    match units.into_iter().find(|(_, power)| key.ends_with("bytes") && fits(*power)) {
        Some((unit, power)) => format!("{} {unit}", value >> power),
        None if value == u64::from(u32::MAX) => "2^32 - 1".to_owned(),
        None => {
            let digits = value.to_string();
            let comma = |(at, digit): (usize, char)| {
                let after = digits.len() - at;
                if at > 0 && after.is_multiple_of(3) { format!(",{digit}") } else { digit.to_string() }
            };
            digits.chars().enumerate().map(comma).collect()
        }
    }
}

const LOGS_MEANING: &str = "the operator's token reads what tenants' code writes to [the log](extensions.md#the-log): lines may tell of records";
const SLOW_MEANING: &str = "microseconds from arrival to answer from which a request is kept as [slow](operations.md#slow-requests); 0: none is";

fn root() -> ReferenceSection {
    let rows = vec![
        row(
            "data",
            "`--data`",
            format!("`{DEFAULT_DATA}`"),
            "UDP address of the first worker; worker `i` has the port after it by `i`",
        ),
        row(
            "control",
            "`--control`",
            format!("`{DEFAULT_CONTROL}`"),
            "TCP address of the control port; not on loopback: with TLS only",
        ),
        number("workers", "`--workers`", "all cores but one", (1, MAX_WORKERS as u64), "threads that serve"),
        row("pin", "`--no-pin`", "true", "whether each worker is pinned to a core of its own"),
        row(
            "poll",
            "`--poll`",
            "false",
            "whether workers spin instead of sleeping when there is nothing to do: lowest latency, a whole core each",
        ),
        row("steal", "`--no-steal`", "true", "whether idle workers take work over from busy ones"),
        row("move_homes", "`--no-move-homes`", "true", "whether home workers that no operator named follow the load"),
        row(
            "interleave",
            "`--no-interleave`",
            "true",
            "whether calls take turns while their records come from memory; false is for measuring",
        ),
        number("slow_us", "`--slow-us`", "10,000", (0, SLOW_MAX_US), SLOW_MEANING),
        row(
            "state",
            "`--state`, `SANDSTORM_STATE`",
            "`$XDG_STATE_HOME/sandstorm`, else `~/.local/state/sandstorm`",
            "the [state directory](operations.md#files)",
        ),
        row("ephemeral", "`--ephemeral`", "false", "persist nothing: changes are lost when the server stops"),
        row(
            "code",
            "`--code`",
            format!("`{}`", CodePolicy::default()),
            "the code that a new tenant may push: `sandboxed`, `native` or `none` ([what each promises](security.md#the-tiers-of-code))",
        ),
        row(
            "allow_open",
            "`--allow-open`",
            "false",
            "tenants may be open although other machines reach the data ports: anyone there uses their data",
        ),
        row(
            "allow_plain_control",
            "`--allow-plain-control`",
            "false",
            "a control port without TLS although other machines reach it",
        ),
        row(
            "allow_plaintext",
            "`--allow-plaintext`",
            "false",
            "other machines may use closed tenants' data in the clear, and ports for memcached and Redis without TLS may be reached by them",
        ),
        row("operator_reads_logs", "", "false", LOGS_MEANING),
    ];
    let rows = rows.into_iter().chain(cluster_rows::rows()).collect();
    let about = "Keys before the first section. An option of the command line wins over the file.";
    ReferenceSection { title: "The server", about, before: "", rows }
}

fn ports() -> Vec<ReferenceSection> {
    let tls = |title, about, before, options: [&'static str; 4]| {
        let rows = vec![
            row("self_signed", options[0], "false", "make a certificate at the first start, and keep it"),
            row(
                "names",
                options[1],
                "none",
                "names and addresses that it is for, beside `localhost`, loopback's and the port's own",
            ),
            row("certificate", options[2], "none", "PEM: a certificate of your own, then those above it"),
            row(
                "key",
                options[3],
                "none",
                "PEM: its key; only the owner may write the file, and at most its group may read it",
            ),
        ];
        ReferenceSection { title, about, before, rows }
    };
    let listen = |title, about, before, option| {
        let rows = vec![
            row("address", option, "needed", "of the port: `HOST:PORT`, `tls:HOST:PORT` or `unix:/PATH`"),
            row("tenant", "the same", "each connection shows its token", "the tenant that all connections act for"),
            row("table", "the same", "see [protocols](protocols.md)", "which is used at first"),
            row("udp", "", "true on loopback with a tenant", "memcached only: whether datagrams are served"),
            row(
                "mode",
                "`--socket-mode`",
                format!("`{SOCKET_MODE:o}`"),
                "of a Unix socket's file, octal: users with write permission may connect",
            ),
        ];
        ReferenceSection { title, about, before, rows }
    };
    let memcached = "`--memcached ADDRESS[=TENANT[/TABLE]]`";
    let redis = "`--redis ADDRESS[=TENANT[/TABLE]]`";
    let port = ["`--port-tls`", "`--port-name`", "`--port-certificate`", "`--port-key`"];
    let control = ["`--control-tls`", "`--control-name`", "`--control-certificate`", "`--control-key`"];
    vec![
        tls(
            "[control_tls]",
            "Of the control port: [TLS](operations.md#tls). Without it, or with no certificate, it is plain.",
            "[control_tls]\n",
            control,
        ),
        tls(
            "[builder_tls]",
            "Of `sandstorm builder serve`, whose options are `--tls`, `--tls-name`, `--tls-certificate` and `--tls-key`.",
            "[builder_tls]\n",
            [""; 4],
        ),
        tls(
            "[port_tls]",
            "Of ports for memcached and Redis with `tls:` before the address. Without it they show the control port's certificate.",
            "[port_tls]\n",
            port,
        ),
        listen(
            "[[memcached]]",
            "A port for memcached's clients each.",
            "[[memcached]]\naddress = '127.0.0.1:1'\n",
            memcached,
        ),
        listen("[[redis]]", "A port for Redis' clients each.", "[[redis]]\naddress = '127.0.0.1:1'\n", redis),
    ]
}

fn net() -> ReferenceSection {
    let rows = vec![
        row(
            "driver",
            "`--driver`",
            "`udp`",
            "`udp`, kernel sockets; `packet`, an interface through [packet sockets](stack.md#packet-sockets); `dpdk`, [a device](dpdk.md)",
        ),
        row(
            "device",
            "`--device`",
            "DPDK: the only one",
            "the interface's name, or DPDK's name or number of the device",
        ),
        row(
            "address",
            "`--address`",
            "none",
            "list of `IP/PREFIX`: this host's on the device, one of IPv4 and one of IPv6 at most",
        ),
        row("gateway", "`--gateway`", "none", "list of routers, one of each family at most"),
        row("mtu", "`--mtu`", "as the device has it", "DPDK: bytes of the largest IP packet"),
        row("eal", "`--eal`", "none", "DPDK's own arguments, in one text"),
        row(
            "isolate",
            "`--isolate`",
            "false",
            "DPDK: whether all on the device but the workers' datagrams is left to the kernel, which then has the same `address` ([a device shared with the kernel](dpdk.md#a-device-shared-with-the-kernel))",
        ),
        row(
            "offload",
            "`--no-offload`",
            "true",
            "whether the kernel coalesces and segments datagrams; with packet sockets and devices, whether the interface computes checksums; false is for measuring",
        ),
        row(
            "zero_copy",
            "`--no-zero-copy`",
            "true",
            "whether large values are sent from where they are stored; false is for measuring",
        ),
        row(
            "kept_buffers",
            "",
            "0",
            "DPDK: packet buffers, of the device's workers together, that may be [kept as the place of large values](dpdk.md#values-that-stay-in-their-packets); each takes as much memory as a packet of `mtu` bytes",
        ),
    ];
    let about = "The driver that receives and sends datagrams. All but `driver`, `offload` and `zero_copy` are for kernel-bypass drivers.";
    ReferenceSection { title: "[net]", about, before: "[net]\n", rows }
}

fn limits() -> ReferenceSection {
    let range = |max: usize| (1, max as u64);
    let rows = vec![
        number(
            "key_bytes",
            "",
            shown("bytes", MAX_KEY_BYTES as u64),
            range(MAX_KEY_BYTES),
            "of the longest key, in new tables",
        ),
        number(
            "value_bytes",
            "",
            shown("bytes", MAX_VALUE_BYTES as u64),
            range(MAX_VALUE_BYTES),
            "of the longest value, in new tables",
        ),
        number("tenants", "", shown("", TENANTS as u64), (1, 1 << 20), "at most"),
    ];
    ReferenceSection { title: "[limits]", about: "Limits of the whole server.", before: "[limits]\n", rows }
}

fn durability() -> ReferenceSection {
    let default = DefaultDurability::default();
    let rows = vec![
        row("store", "", format!("`{}`", default.store.name()), "of new tables in store mode"),
        row("cache", "", format!("`{}`", default.cache.name()), "of new tables in cache mode"),
    ];
    let about = "The [durability](durability.md) of new tables that are created without one: `none`, `interval`, \
                 `disk` or `copies`. Tables that are there keep theirs. \
                 With `ephemeral` it is `none` in any case.";
    ReferenceSection { title: "[durability]", about, before: "[durability]\n", rows }
}

fn builder() -> ReferenceSection {
    let default = CompileLimits::default();
    let rows = vec![
        row(
            "enabled",
            "`--no-builder`",
            "true",
            "whether there is a builder; without one pushes of source are refused",
        ),
        row(
            "rustc",
            "`--rustc`",
            "the one on the `PATH`, else `~/.cargo/bin/rustc`",
            "the compiler of extensions; [for a service](operations.md#as-a-service)",
        ),
        row(
            "libraries",
            "",
            "none",
            "table of further [libraries](extensions.md#extensiontoml): package name = folder with a `Cargo.toml` and `src/`",
        ),
        number("cpu_s", "", default.cpu.as_secs().to_string(), (1, 3600), "seconds of CPU time of one build"),
        number("wall_s", "", default.wall.as_secs().to_string(), (1, 3600), "seconds of one build"),
        number("memory_bytes", "", shown("bytes", default.memory_bytes), (512 << 20, 1 << 40), "of one build"),
        number("compilers", "", "a quarter of the cores, 2 to 8", (1, MAX_COMPILERS as u64), "builds at a time"),
        row(
            "allow_unsandboxed",
            "",
            "false",
            "build where the kernel can confine no compiler: for tenants that you trust",
        ),
        row(
            "remote",
            "",
            "none",
            "URL of [a builder on its own host](builder.md#a-builder-on-its-own-host), in place of one here",
        ),
        row("remote_token_file", "", "needed with `remote`", "file of mode 0600 with its token"),
        row("remote_ca", "", "the public authorities", "PEM: certificates that vouch for it"),
        row("remote_fingerprint", "", "none", "`sha256:…` of its certificate, in place of `remote_ca`"),
        row("remote_plain", "", "false", "an `http://` builder on another host, over a network of your own"),
        row(
            "trusted_keys",
            "",
            "the local builder's alone",
            "list of public keys (`sandstorm builder key`) whose artifacts are loaded; needed with `remote`",
        ),
        row(
            "deny",
            "",
            "none",
            "list of patterns that native sources must not have, beside the checker's rules ([the hour after a new hole](security.md#the-hour-after-a-new-hole)); at most 256",
        ),
    ];
    ReferenceSection {
        title: "[builder]",
        about: "Its limits are explained in [builder.md](builder.md#limits).",
        before: "[builder]\n",
        rows,
    }
}

fn tenants() -> Vec<ReferenceSection> {
    let name = "[[tenants]]\nname = 'a'\n";
    let tenant = vec![
        row("name", "", "needed", "1 to 64 letters, digits, `_`, `-` and `.`; the first is a letter or digit"),
        row("id", "", "the next free one", "number on the wire; a file that changes it is refused"),
        row("token", "", "none", "at least 20 characters; then the file has to be private. Better:"),
        row(
            "token_hash",
            "",
            "none",
            "the line that `sandstorm token hash` prints. With neither, `sandstorm tenant token` makes a token",
        ),
        row("open", "", "false", "reached without a token"),
        row("home_worker", "", "follows the load", "number of the worker that serves it, from 0, whatever the load"),
        row(
            "code",
            "",
            "of a new tenant the server's; else as it was",
            "`sandboxed`, `native` or `none`; a start with another value [moves its extensions](operations.md#the-code-of-tenants)",
        ),
        row("quotas", "", "none", "those that differ from `[quotas]`"),
        row("tables", "", "none", "list of tables: below"),
        row("grants", "", "none", "list of grants: below"),
    ];
    let quota = format!("an eighth of the tenant's `memory_bytes`, at most {}", shown("bytes", DEFAULT_TABLE_BYTES));
    let tables = vec![
        row("name", "", "needed", "as a tenant's"),
        row("id", "", "the next free one", "number on the wire, below 2^48"),
        row("mode", "", "`store`", "at its quota: `store` refuses writes, `cache` evicts, `spill` uses the disk"),
        row(
            "quota_bytes",
            "",
            quota,
            &format!("of its records with their overhead, at least {}", shown("bytes", MIN_TABLE_BYTES)),
        ),
        row("ordered", "", "false", "keeps its keys in order as well, for ranges"),
        row(
            "durability",
            "",
            "as before a restart, else that of `[durability]`",
            "what a crash may take of its records: `none` keeps them in memory only, `interval` loses at most the last 100 ms, \
             `disk` nothing that was acknowledged, `copies` not even with its server; one that was `none` before \
             begins with an empty table",
        ),
        row("backing", "", "none", "what it is a cache of: [backing](backing.md#configuration)"),
    ];
    let grants = vec![
        row("table", "", "needed", "one of the tenant's"),
        row("to", "", "needed", "name of the tenant that gets it"),
        row("access", "", "`read`", "or `read_write`"),
    ];
    let grant = "[[tenants]]\nname = 'a'\n[[tenants.grants]]\ntable = 't'\nto = 'b'\n";
    vec![
        ReferenceSection {
            title: "[[tenants]]",
            about: "Tenants that are there from the start; what a restart makes of them: [operations](operations.md#what-is-kept).",
            before: name,
            rows: tenant,
        },
        ReferenceSection {
            title: "tables of [[tenants]]",
            about: "",
            before: "[[tenants]]\nname = 'a'\n[[tenants.tables]]\nname = 't'\n",
            rows: tables,
        },
        ReferenceSection { title: "grants of [[tenants]]", about: "", before: grant, rows: grants },
    ]
}

fn log() -> ReferenceSection {
    let default = format!("`{}`", LogFailurePolicy::default().name());
    let about = "once a write of the [log](durability.md#when-the-disk-fails) has failed: `serve-reads` refuses writes \
                 to tables with durability and goes on with the rest, `exit` stops the server with an error";
    let rows = vec![row("on_failure", "", default, about)];
    ReferenceSection { title: "[log]", about: "The log of the records.", before: "[log]\n", rows }
}

fn sections() -> Vec<ReferenceSection> {
    let mut all = vec![root()];
    all.extend(ports());
    all.extend([net(), limits(), durability(), log(), cluster_rows::etcd(), cluster_rows::nats(), builder()]);
    all.extend(tenants());
    all.extend([targets::webhooks(), targets::otlp()]);
    all
}

fn page() -> String {
    let mut text = String::from(
        "# Configuration\n\n\
         Made from `db/control/src/config/reference.rs` and `db/catalog/src/quotas.rs`; a test keeps this page current (`UPDATE_DOCS=1 cargo test -p sandstorm-control --lib reference`\n\
         rewrites it). What the settings are for: [operations.md](operations.md).\n\n\
         `sandstorm serve --config FILE` reads a file of TOML, at most 4 MiB. An unknown key and a value out of its range are refused at the start, with the line.\n",
    );
    for ReferenceSection { title, about, rows, .. } in sections() {
        let _ = write!(text, "\n## {title}\n\n");
        if !about.is_empty() {
            let _ = write!(text, "{about}\n\n");
        }
        text.push_str("| key | option | default | range | meaning |\n|---|---|---|---|---|\n");
        for ReferenceRow { key, option, default, meaning, range } in rows {
            let range = range.map_or(String::new(), |(min, max)| format!("{} to {}", shown(key, min), shown(key, max)));
            let _ = writeln!(text, "| `{key}` | {option} | {default} | {range} | {meaning} |");
        }
    }
    text.push_str(
        "\n## Quotas\n\n\
         Of each tenant: for all in `[quotas]`, for one in `quotas` of `[[tenants]]`, or with `--quota NAME=VALUE` of `sandstorm tenant create` and `tenant set`\n\
         (which take `64MiB`, too). `slice_us` is at most `total_us`.\n\n\
         | quota | default | range | meaning |\n|---|---|---|---|\n",
    );
    for QuotaDeclaration { name, meaning, default, min, max } in Quotas::declared() {
        let [default, min, max] = [default, min, max].map(|value| shown(name, value));
        let _ = writeln!(text, "| `{name}` | {default} | {min} to {max} | {meaning} |");
    }
    text
}

#[test]
fn the_page_is_current() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, page()).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let how = "docs/configuration.md is old: UPDATE_DOCS=1 cargo test -p sandstorm-control --lib reference";
    assert!(found == page(), "{how}");
}

#[test]
fn the_page_has_all_keys_and_no_others() {
    // Sections stand among the keys of what they are sections of.
    let below = [
        "limits",
        "durability",
        "log",
        "quotas",
        "builder",
        "tenants",
        "webhooks",
        "otlp",
        "control_tls",
        "builder_tls",
        "port_tls",
        "memcached",
        "redis",
        "net",
        "etcd",
        "nats",
    ];
    for ReferenceSection { title, before, rows, .. } in sections() {
        let refused = parse(&format!("{before}zzzzzzzzzzzz = 1")).unwrap_err().to_string();
        let (_, valid) = refused.split_once("valid here: ").unwrap_or_else(|| panic!("{title}: {refused}"));
        let mut valid: Vec<&str> = valid.split(", ").filter(|key| !before.is_empty() || !below.contains(key)).collect();
        let mut told: Vec<&str> = rows.iter().map(|row| row.key).collect();
        valid.sort_unstable();
        told.sort_unstable();
        assert_eq!(told, valid, "{title}");
    }
}

#[test]
fn the_pages_ranges_are_what_is_refused() {
    let mut looked_at = 0;
    for ReferenceSection { before, rows, .. } in sections() {
        for ReferenceRow { key, range, .. } in rows {
            let Some((min, max)) = range else { continue };
            looked_at += 1;
            let (min, max) = (min as i64, max as i64);
            for (value, is_taken) in [(min, true), (max, true), (min - 1, false), (max + 1, false)] {
                takes(&format!("{before}{key} = {value}"), is_taken);
            }
        }
    }
    assert!(looked_at > 7);
}

/// Whether a file whose last line says something is refused, and then with that line.
fn takes(text: &str, is_taken: bool) {
    let parsed = parse(text);
    assert_eq!(parsed.is_ok(), is_taken, "{text}: {:?}", parsed.as_ref().err());
    if let Err(error) = parsed {
        let last = format!("c.toml:{}: ", text.lines().count());
        assert!(error.to_string().starts_with(&last), "{text}: {error}");
    }
}

#[test]
fn every_quota_out_of_its_range_is_refused_with_its_line() {
    let of_one = "[[tenants]]\nname = 'a'\n[tenants.quotas]\n";
    for QuotaDeclaration { name, min, max, .. } in Quotas::declared() {
        for before in ["[quotas]\n", of_one] {
            // A slice and a total that go together: it is the range that is asked for.
            let before = match name {
                "slice_us" => format!("{before}total_us = 3600000000\n"),
                "total_us" => format!("{before}slice_us = 10\n"),
                _ => before.to_owned(),
            };
            takes(&format!("{before}{name} = {min}"), true);
            takes(&format!("{before}{name} = {max}"), true);
            takes(&format!("{before}{name} = {}", max + 1), false);
            takes(&format!("{before}{name} = {}", min as i64 - 1), false);
            takes(&format!("{before}{name} = 'much'"), false);
        }
    }
}

#[test]
fn the_pages_defaults_are_those_of_an_empty_file() {
    let config = ServerSettings::parse("", "c.toml", &CliOverrides::default()).unwrap();
    let default = |key: &str| root().rows.into_iter().find(|row| row.key == key).unwrap().default;
    for (key, value) in [
        ("pin", config.pin),
        ("poll", config.poll),
        ("steal", config.steal),
        ("move_homes", config.move_homes),
        ("interleave", config.interleave),
        ("ephemeral", config.ephemeral),
        ("allow_open", config.allow_open),
        ("allow_plain_control", config.allow_plain_control),
        ("allow_plaintext", config.allow_plaintext),
    ] {
        assert_eq!(default(key), value.to_string(), "{key}");
    }
    assert_eq!(config.directory_options().durability, DefaultDurability::default());
}
