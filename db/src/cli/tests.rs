//! Tests of the command line: parsing, arguments, and output.

mod backing;
mod commands;
mod views;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use clap::CommandFactory;
use sandstorm_catalog::GrantAccess;
use sandstorm_net::{CodeOrigin, CodePolicy, CodeTier};

use commands::COMMANDS;

use super::byte_args::{fields, for_people, parse, parse_all, printable};
use super::output::{CliError, columns, format_bytes, summarize_names};
use super::tenant::{quota, size};
use super::*;

fn cli(line: &str) -> Result<CommandLine, clap::Error> {
    CommandLine::try_parse_from(std::iter::once("sandstorm").chain(line.split_whitespace()))
}

#[test]
fn the_commands_are_consistent() {
    CommandLine::command().debug_assert();
}

#[test]
fn every_command_of_the_manual_parses() {
    for line in COMMANDS {
        cli(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    for line in [
        "",
        "serv",
        "put t k",
        "put t k v --if-absent --if-present",
        "put t k v --if-present --if-version 3",
        "incr t k many",
        "tenant create",
        "tenant create a --quota slice_us",
        "table create t --mode heap",
        "table create t --quota much",
        "invoke x --raw --as u64",
        "serve --data here",
        "load --rate 10 --depth 4",
        "load --rate 0",
        "load --remove",
        "load --tenant-skew 1 --rate 10",
        "load tao --mix tao",
        "load tao --placement nowhere",
        "load tao --no-edges 2",
        "load --tenant-prefix x",
        "load --arrivals even",
        "load --batch 300",
        "load --sizes etc --value-bytes 10",
        "builder --option",
        "ext revoke",
        "ext revoke --rule a --list",
        "ext revoke --end a --then suspend",
        "ext recheck --then ignore",
        "tenant create a --code wasm",
    ] {
        assert!(cli(line).is_err(), "{line}");
    }
}

#[test]
fn what_is_wrong_with_an_option_is_said_in_its_own_words() {
    let error_of = |line: &str| cli(line).err().unwrap_or_else(|| panic!("{line} is refused")).to_string();
    for line in ["tenant rotate a --grace 31d", "operator rotate --grace 31d"] {
        assert!(error_of(line).contains("longer than 30d"), "{}", error_of(line));
    }
    assert!(cli("tenant rotate a --grace 30d").is_ok());
    let empty =
        CommandLine::try_parse_from(["sandstorm", "stat", "--fingerprint", ""]).err().expect("refused").to_string();
    assert!(empty.contains("it is empty: unset SANDSTORM_FINGERPRINT"), "{empty}");
    for (line, reason) in [
        ("load --mix ycsb-g", "'ycsb-g' is no workload: ycsb-a"),
        ("load --mix get=1,put=x", "'put=x': the share is no number"),
        ("load --keys zip", "'zip' is no key distribution: uniform, zipf"),
        ("load --sizes etx", "'etx' is no pool: usr"),
        ("load --rate=-5", "a number above 0"),
    ] {
        assert!(error_of(line).contains(reason), "{line}: {}", error_of(line));
    }
    assert!(error_of("builder build --help").contains("signed for one tenant"));
    assert!(cli("serve --config F --control-name db.example").is_ok(), "the file may say self_signed");
}

fn bytes_of(arguments: &[&str]) -> Result<Vec<u8>, CliError> {
    let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
    parse_all(&arguments, &mut |name| {
        if name == "t" { Ok(7) } else { Err(CliError::new("no such table")) }
    })
}

#[test]
fn arguments_stand_for_their_bytes() {
    let cases: &[(&[&str], &[u8])] = &[
        (&["plain"], b"plain"),
        (&[""], b""),
        (&["user:5"], b"user:5"),
        (&["http://x"], b"http://x"),
        (&["str:hex:00"], b"hex:00"),
        (&["str:-"], b"-"),
        (&["str:@x"], b"@x"),
        (&["hex:00fFa5"], b"\x00\xff\xa5"),
        (&["u8:255"], b"\xff"),
        (&["u16:258"], b"\x02\x01"),
        (&["u32:1"], b"\x01\0\0\0"),
        (&["u64:18446744073709551615"], b"\xff\xff\xff\xff\xff\xff\xff\xff"),
        (&["i64:-1"], b"\xff\xff\xff\xff\xff\xff\xff\xff"),
        (&["len16:ab"], b"\x02\0ab"),
        (&["len32:"], b"\0\0\0\0"),
        (&["table:t", "u8:1", "key"], b"\x07\0\0\0\0\0\0\0\x01key"),
    ];
    for (arguments, expected) in cases {
        assert_eq!(bytes_of(arguments).unwrap(), *expected, "{arguments:?}");
    }
    for wrong in ["hex:0", "hex:zz", "u8:256", "u8:-1", "u32:", "u64:18446744073709551616", "i64:x", "table:u"] {
        assert!(bytes_of(&[wrong]).is_err(), "{wrong}");
    }
    let long = format!("len16:{}", "x".repeat(65_536));
    assert!(bytes_of(&[&long]).is_err());
    let not_utf8 = OsString::from_vec(vec![0xff, b'k']);
    assert_eq!(parse(&not_utf8, &mut |_| Ok(0)).unwrap(), b"\xffk", "keys are bytes, not text");
}

#[test]
fn a_file_is_read_whole_and_a_missing_one_is_said() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, b"\x00\x01\n").unwrap();
    let argument = format!("@{}", file.path().display());
    assert_eq!(bytes_of(&[&argument]).unwrap(), b"\x00\x01\n");
    let missing = bytes_of(&["@/nowhere/x"]).unwrap_err();
    assert!(missing.message.contains("/nowhere/x") && missing.hint.is_some());
}

#[test]
fn values_are_shown_as_text_or_as_digits_that_parse_back() {
    assert_eq!(for_people("grüße\n".as_bytes()), "grüße\n");
    for binary in [&b"\x00"[..], b"\xff\xfe", b"a\x1b[2J"] {
        assert!(printable(binary, false).is_none() && printable(binary, true).is_none());
        assert_eq!(bytes_of(&[&for_people(binary)]).unwrap(), binary);
    }
    // Characters that change the direction of text, or are invisible, go into a file unchanged and to no terminal.
    for c in ['\u{202e}', '\u{2066}', '\u{200b}', '\u{2028}', '\u{feff}'] {
        let text = format!("a{c}b");
        assert_eq!((printable(text.as_bytes(), false), printable(text.as_bytes(), true)), (Some(&*text), None));
    }
}

#[test]
fn a_reply_is_shown_by_its_fields() {
    let reply = bytes_of(&["u64:9", "u32:8", "i64:-7", "text"]).unwrap();
    let shown: Vec<String> =
        fields(&reply, "u64, u32,i64").unwrap().into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(shown, ["u64=9", "u32=8", "i64=-7", "rest=\"text\""]);
    assert!(fields(b"abc", "u32").is_err() && fields(b"abcd", "f32").is_err());
}

#[test]
fn sizes_and_quotas_are_numbers_with_or_without_a_unit() {
    for (text, expected) in [
        ("0", Some(0)),
        ("64KiB", Some(65_536)),
        ("1g", Some(1 << 30)),
        ("10MB", Some(10_000_000)),
        ("1_000", Some(1_000)),
    ] {
        assert_eq!(size(text), expected, "{text}");
    }
    for text in ["", "MiB", "1.5MiB", "-1", "1XB", "99999999999999999999", "99999999TiB"] {
        assert_eq!(size(text), None, "{text}");
    }
    assert_eq!(quota("slice_us=500"), Ok(("slice_us".into(), 500)));
    assert!(quota("slice_us").is_err() && quota("slice_us=x").is_err());
    assert_eq!([format_bytes(1023), format_bytes(1536), format_bytes(64 << 20)], ["1023 B", "1.5 KiB", "64 MiB"]);
}

#[test]
fn columns_line_up() {
    let rows = vec![vec!["a".into(), "7".into()], vec!["bcdef".into(), "1234".into()]];
    assert_eq!(columns(&["NAME", "N"], &rows), "NAME      N\na         7\nbcdef  1234\n");
    assert_eq!(columns(&["NAME", "N"], &[]), "NAME  N\n");
}

/// Checks that the client's type has every field of a server's answer and no other.
fn mirrors<Client: serde::de::DeserializeOwned + serde::Serialize>(server: impl serde::Serialize) {
    let sent = serde_json::to_value(server).unwrap();
    let read: Client = serde_json::from_value(sent.clone()).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), sent, "{}", std::any::type_name::<Client>());
}

#[test]
fn client_and_server_have_the_same_tenants_and_tables() {
    use sandstorm_client::control as client;
    use sandstorm_control::admin::types as server;
    let tenant = || server::TenantResponse {
        id: 1,
        name: "a".into(),
        open: true,
        home_worker: 1,
        home_fixed: true,
        code: CodePolicy::Native,
        quotas: Default::default(),
        tables: 1,
        extensions: 1,
        grants_given: 1,
        grants_received: 1,
        memory_bytes: 1,
        running: 1,
        old_token_until_ms: Some(1),
        used: [("tables".to_owned(), 1)].into(),
        rebuild: Some(1),
        not_everywhere: Some("server b".into()),
    };
    let given = || server::GivenGrantResponse {
        table: "t".into(),
        to: "b".into(),
        access: GrantAccess::ReadWrite,
        in_force: Some(true),
    };
    mirrors::<client::TenantStatus>(tenant());
    mirrors::<client::CreatedTenant>(server::CreateTenantResponse { tenant: tenant(), token: "t".into() });
    mirrors::<client::RotatedToken>(server::RotateTokenResponse {
        token: "t".into(),
        old_until_ms: Some(1),
        not_everywhere: Some("server b".into()),
    });
    mirrors::<client::TableStatus>(server::TableResponse {
        id: 1,
        name: "t".into(),
        ordered: true,
        durability: "interval",
        feed_expiry: true,
        mode: "cache",
        quota_bytes: 1,
        records: 1,
        bytes: 1,
        evictions: 1,
        expirations: 1,
        refusals: 1,
        capacity: 1,
        access: "read_write",
        owner: Some("b".into()),
        granted_to: vec![given()],
        spill: Some(server::SpillResponse::default()),
        backing: None,
    });
    mirrors::<client::GrantList>(server::GrantsResponse {
        given: vec![given()],
        received: vec![server::ReceivedGrantResponse {
            name: "b/t".into(),
            id: 1,
            owner: "b".into(),
            access: GrantAccess::Read,
        }],
    });
}

#[test]
fn client_and_server_have_the_same_extensions() {
    use sandstorm_client::control as client;
    use sandstorm_control::admin::types as server;
    let version = server::VersionResponse {
        version: 1,
        tier: CodeTier::Native,
        origin: CodeOrigin::Source,
        manifest_version: "1".into(),
        source_digest: "d".into(),
        library_bytes: 1,
        loaded_at_ms: 1,
        state: "refused",
        refused: Some("r".into()),
        stats: server::ExtensionStatsResponse::default(),
        p50_ns: 1,
        p99_ns: 1,
        schema: Some(sandstorm_client::schema::ExtensionSchema::default()),
    };
    let extension = server::ExtensionResponse {
        name: "x".into(),
        version: 1,
        tier: CodeTier::Sandboxed,
        origin: CodeOrigin::Module,
        manifest_version: "1".into(),
        source_digest: "d".into(),
        source_kept: true,
        library_bytes: 1,
        suspended: true,
        slowed_to_per_s: 10,
        notice: Some("n".into()),
        budget: server::BudgetResponse { slice_us: 1, total_us: 1, arena_bytes: 1, reply_bytes: 1 },
        stats: server::ExtensionStatsResponse {
            killed_by: [("panic", 1)].into(),
            ..server::ExtensionStatsResponse::default()
        },
        latency: Some(server::LatencyRowResponse {
            tenant: "t".into(),
            class: "call",
            extension: Some("x".into()),
            version: 1,
            total: server::DurationResponse { count: 1, ..server::DurationResponse::default() },
            waiting: server::DurationResponse::default(),
            service: server::DurationResponse::default(),
            sending: server::DurationResponse::default(),
        }),
        schema: None,
        enabled_from: Some(server::EnabledFromResponse { owner: "o".into(), extension: "x".into(), follow: true }),
        deployment: Some(server::DeploymentResponse { version: 1, percent: 5, since_ms: 1 }),
        versions: vec![version],
    };
    let remark = sandstorm_builder::Diagnostic::plain("wrong");
    mirrors::<client::PushOutcome>(server::PushResponse {
        extension,
        version: 1,
        diagnostics: vec![remark.clone()],
        build_ms: 1,
    });
    mirrors::<client::ControlErrorBody>(server::ErrorResponse {
        code: "refused",
        old_code: Some("unauthorised"),
        message: "m".into(),
        hint: Some("h".into()),
        diagnostics: vec![remark],
    });
}

#[test]
fn client_and_server_have_the_same_counters_and_health() {
    use sandstorm_client::control as client;
    use sandstorm_control::admin::types as server;
    let counters = std::collections::BTreeMap::from([("n".to_owned(), 1)]);
    mirrors::<client::ServerStats>(server::StatResponse {
        at_ms: 1,
        counters: counters.clone(),
        workers: vec![counters.clone()],
        tenants: [("a".to_owned(), counters)].into(),
    });
    mirrors::<client::ServerHealth>(server::HealthResponse {
        version: "1".into(),
        data_address: "a".into(),
        workers: 1,
        uptime_s: 1,
        builder: "ok".into(),
        network: "n".into(),
        warnings: vec!["w".into()],
        changes: "kept".into(),
    });
}

#[test]
fn client_and_server_have_the_same_rebuilds() {
    use sandstorm_client::control as client;
    use sandstorm_control::admin::types as server;
    let rebuilt = server::RebuiltExtensionResponse {
        tenant: "a".into(),
        extension: "x".into(),
        version: 1,
        result: server::RebuildResult::Suspended,
        tier: Some(CodeTier::Sandboxed),
        text: "t".into(),
    };
    mirrors::<client::DeniedToNative>(server::DeniedPatternResponse { pattern: "p".into(), since_ms: Some(1) });
    mirrors::<client::RebuildStatus>(server::RebuildResponse {
        id: 1,
        reason: "r".into(),
        started_at_ms: 1,
        done: true,
        waiting: 1,
        results: vec![rebuilt],
        unlisted: 1,
    });
}

#[test]
fn the_server_takes_what_the_client_sends() {
    use sandstorm_client::control as client;
    use sandstorm_control::admin::types as server;
    fn takes<Server: serde::de::DeserializeOwned>(sent: impl serde::Serialize) -> Server {
        serde_json::from_value(serde_json::to_value(sent).unwrap()).unwrap()
    }
    let quotas = client::QuotaMap::from([("slice_us".to_owned(), 500), ("weight".to_owned(), 2)]);
    let created: server::CreateTenantRequest = takes(client::TenantSpec {
        name: "a".into(),
        open: true,
        id: Some(1),
        token: Some("t".into()),
        home_worker: Some(1),
        code: Some(CodePolicy::None),
        quotas: quotas.clone(),
    });
    assert_eq!((created.quotas.slice_us, created.quotas.weight), (Some(500), Some(2)));
    takes::<server::CreateTenantRequest>(client::TenantSpec::default());
    let code = Some(CodePolicy::Sandboxed);
    let patch = client::TenantPatch { open: Some(true), home_worker: Some(1), home_fixed: Some(false), code, quotas };
    assert_eq!(takes::<server::ChangeTenantRequest>(patch).code, code);
    let grant: server::CreateGrantRequest =
        takes(client::GrantSpec { table: "t".into(), to: "b".into(), access: client::TableAccess::ReadWrite });
    assert_eq!(grant.access, GrantAccess::ReadWrite);
    let file = client::ExtensionSourceFile { path: "src/lib.rs".into(), text: String::new() };
    takes::<server::PushRequest>(client::ExtensionSource { manifest: String::new(), files: vec![file] });
    let then = client::NativeRemedy::Suspend;
    let recheck: server::RecheckRequest = takes(client::RecheckSpec { rule: Some("r".into()), then });
    assert_eq!((recheck.rule.as_deref(), recheck.then), (Some("r"), server::RecheckRemedy::Suspend));
    takes::<server::RecheckRequest>(client::RecheckSpec::default());
    let all = client::Budget { slice_us: Some(1), total_us: Some(1), arena_bytes: Some(1), reply_bytes: Some(1) };
    takes::<server::ChangeBudgetRequest>(all);
}

#[test]
fn the_page_on_the_configuration_has_the_options_of_a_server() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let words = page.lines().filter(|line| line.starts_with("| `")).flat_map(|line| line.split('`').skip(1).step_by(2));
    let documented: std::collections::BTreeSet<&str> =
        words.filter_map(|word| word.strip_prefix("--")?.split(' ').next()).collect();
    let command = CommandLine::command();
    let serve = command.find_subcommand("serve").expect("there is such a command");
    let (mut taken, also): (std::collections::BTreeSet<&str>, _) =
        (serve.get_arguments().filter_map(|option| option.get_long()).collect(), ["state"]);
    // These are of one start: no file sets them.
    for option in ["config", "salvage"] {
        assert!(taken.remove(option), "{option}");
    }
    taken.extend(also);
    assert_eq!(documented, taken);
}

#[test]
fn a_word_of_other_programs_leads_to_the_command_that_is_meant() {
    let error_of = |line: &str| suggest_command(cli(line).err().expect(line)).to_string();
    for (line, meant) in [
        ("monitor", "'stat'"),
        ("--json monitor", "'stat'"),
        ("set t k v", "'put'"),
        ("delete t k", "'del'"),
        ("status", "'health'"),
        ("start", "'serve'"),
        // A typing error is still found by its letters.
        ("stpo", "'stop'"),
        ("tenant creat a", "'create'"),
    ] {
        let text = error_of(line);
        assert!(text.contains(meant) && (meant == "'stop'" || !text.contains("'stop'")), "{line}: {text}");
    }
    assert!(
        !error_of("tenant set2").contains("'put'") && !error_of("table monitor").contains("'stat'"),
        "others' commands"
    );
    let commands: Vec<String> =
        CommandLine::command().get_subcommands().map(|command| command.get_name().to_owned()).collect();
    for (names, command) in COMMAND_SYNONYMS {
        assert!(commands.iter().any(|known| known == command), "{command}");
        assert!(!commands.iter().any(|known| names.contains(&known.as_str())), "{names:?}: a command of that name");
    }
}

#[test]
fn every_help_text_stands_for_itself() {
    fn check(path: &str, command: &clap::Command) {
        let path = format!("{path} {}", command.get_name());
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        assert!(about.chars().next().is_some_and(char::is_uppercase), "{path}: {about:?}");
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            let name = argument.get_id();
            assert!(help.chars().next().is_some_and(char::is_uppercase), "{path} {name}: {help:?}");
            for unclear in ["The same", "Its name", "Its id", "left out:"] {
                assert!(!help.starts_with(unclear) && !help.contains("left out:"), "{path} {name}: {help:?}");
            }
        }
        command.get_subcommands().for_each(|command| check(&path, command));
    }
    check("", &CommandLine::command());
}

#[test]
fn lists_of_names_in_errors_are_bounded() {
    let names = |count: usize| (1..=count).map(|number| format!("t{number}")).collect::<Vec<_>>();
    assert_eq!(summarize_names(&names(3)), "t1, t2, t3");
    assert_eq!(summarize_names(&names(10)), "t1, t2, t3, t4, t5, t6, t7, t8, t9, t10");
    assert_eq!(summarize_names(&names(130)), "t1, t2, t3, t4, t5, t6, t7, t8, t9, t10 and 120 more");
}

#[test]
fn the_servers_own_words_are_not_cut_at_their_semicolons() {
    use sandstorm_client::Error as E;
    let error_of = |error: E| {
        let failure = CliError::from(error);
        (failure.message, failure.hint.unwrap_or_default())
    };
    let which = "calls are admitted at 2 a second; 40 of its calls were killed; see kills".to_owned();
    assert_eq!(
        error_of(E::OverQuota { which: which.clone() }),
        (format!("over quota ({which})"), "send less, or ask the operator for more".to_owned())
    );
    let what = "a; b".to_owned();
    assert_eq!(error_of(E::TooLarge { what }), ("too large: a; b".to_owned(), "split it".to_owned()));
    let (message, hint) = error_of(E::Malformed { text: "x; y".to_owned() });
    assert!(message.ends_with("x; y") && hint.is_empty(), "{message} / {hint}");
    let text = "it could not be read (x; y); are client and server of the same version?".to_owned();
    let (message, hint) = error_of(E::Malformed { text });
    assert!(message.ends_with("(x; y)") && hint.starts_with("are client and server"), "{message} / {hint}");
    assert_eq!(error_of(E::Io { text: "one; two".to_owned() }), ("socket: one; two".to_owned(), String::new()));
    let (message, hint) = error_of(E::ReadOnly);
    assert!(message.ends_with("for reading only") && hint.starts_with("its owner may"), "{message} / {hint}");
}
