//! Valid configurations, and the one-line errors of the others.

use std::os::unix::fs::PermissionsExt;

use super::*;
use sandstorm_catalog::GrantAccess;
use sandstorm_store::{Epochs, StorageMode};

pub(super) fn parse(text: &str) -> Result<ServerSettings, ConfigError> {
    ServerSettings::parse(text, "c.toml", &CliOverrides::default())
}

#[test]
fn every_error_is_one_line_that_says_where_what_and_what_to_do() {
    let table = [
        ("wokers = 3", "c.toml:1: unknown key `wokers`; did you mean `workers`?"),
        ("\n\n[quotas]\nslice = 3", "c.toml:4: unknown key `slice`; did you mean `slice_us`?"),
        ("[limits]\nkey_byte = 3", "c.toml:2: unknown key `key_byte`; did you mean `key_bytes`?"),
        ("[[tenants]]\nname = 'a'\ntokn = 'x'", "c.toml:3: unknown key `tokn`; did you mean `token`?"),
        (
            "[builder]\nzzzzzzzz = 3",
            "c.toml:2: unknown key `zzzzzzzz`; valid here: rustc, libraries, enabled, allow_unsandboxed, cpu_s, wall_s, memory_bytes, \
             compilers, remote, remote_token_file, remote_ca, remote_fingerprint, remote_plain, trusted_keys, deny",
        ),
        ("builder.compilers = 0", "c.toml:1: builder.compilers = 0 is outside of 1 to 14"),
        (
            "builder.trusted_keys = ['12']",
            "c.toml:1: builder.trusted_keys: \"12\" is no key; it takes the 64 hexadecimal digits that `sandstorm builder key` prints",
        ),
        (
            "builder.remote = 'https://b'",
            "c.toml:1: builder.remote needs builder.trusted_keys: put there what `sandstorm builder key` prints on its host",
        ),
        ("workers = 0", "c.toml:1: workers = 0 is outside of 1 to 64"),
        ("workers = 'many'", "c.toml:1: invalid type: string \"many\", expected usize"),
        ("data = 'here'", "c.toml:1: invalid socket address syntax"),
        (
            "data = '127.0.0.1:65535'\nworkers = 2",
            "c.toml:1: data port 65535 leaves no ports for 2 workers; choose one up to 65534",
        ),
        (
            "control = '127.0.0.1:7401'\nworkers = 2",
            "c.toml:1: control port 7401 is among the data ports 7400 to 7401; choose another",
        ),
        ("limits.value_bytes = 9000000000", "c.toml:1: limits.value_bytes = 9000000000 is outside of 1 to 8388608"),
        ("quotas.weight = 0", "c.toml:1: quotas: quota weight = 0 is outside of 1 to 1000"),
        ("quotas.slice_us = 20000", "c.toml:1: quotas: quota slice_us = 20000 is longer than total_us = 10000"),
        (
            "[[tenants]]\nname = 'a'\n[[tenants.tables]]\nname = 't'\nmode = 'heap'",
            "c.toml:5: unknown variant `heap`, expected one of `store`, `cache`, `spill`",
        ),
    ];
    for (text, expected) in table {
        let error = parse(text).expect_err(text).to_string();
        assert_eq!(error, expected, "for {text:?}");
        assert_eq!(error.lines().count(), 1);
    }
    assert!(parse("= 3").unwrap_err().to_string().starts_with("c.toml:1: "));
    let gone = ServerSettings::load(Some(Path::new("/nowhere/c.toml")), &CliOverrides::default()).unwrap_err();
    assert_eq!(gone.to_string(), "cannot read configuration /nowhere/c.toml: No such file or directory (os error 2)");
}

#[test]
fn what_is_wrong_with_a_tenant_is_said_with_its_line_before_anything_is_started() {
    let shop = "[[tenants]]\nname = 'a'\n[[tenants]]\nname = 'shop'\n";
    for (more, line, said) in [
        (
            "quotas = { tables = 3,\n weight = 0 }",
            6,
            "tenant \"shop\": quota weight = 0 is outside of 1 to 1000; choose",
        ),
        ("[tenants.quotas]\n\nslice_us = 20000", 7, "quota slice_us = 20000 is longer than total_us = 10000"),
        ("[tenants.quotas]\ntotal_us = 99", 6, "quota slice_us = 100 is longer than total_us = 99"),
        ("tables = [\n{ name = 't' },\n{ name = 'u', quota_bytes = 9 }]", 7, "quota of 9 bytes is under the smallest"),
        ("[[tenants.tables]]\nname = 't'\n[[tenants.tables]]\nname = '/'", 8, "table name \"/\" is not allowed"),
        ("[[tenants]]\nname = 'no blanks'", 6, "tenant name \"no blanks\" is not allowed"),
        ("token = 'short'", 5, "the token is not allowed"),
        ("token_hash = 'short'", 5, "token_hash is not what"),
        ("open = true\n[[redis]]\naddress = '10.0.0.1:1'", 7, "redis address 10.0.0.1:1 is not on loopback"),
        ("[[memcached]]\naddress = '127.0.0.1:1'\nudp = true", 7, "a datagram carries no token"),
        ("[net]\nmtu = 9000", 6, "mtu is for DPDK"),
        ("[control_tls]\nkey = '/k'", 6, "control_tls.key is given without"),
        ("[builder]\ntrusted_keys = [\n'12']", 7, "is no key"),
        ("[builder]\ndeny = ['own-trait',\n'guard']", 7, "guard is a rule of the checker"),
        ("[builder]\ndeny = ['a $']", 6, "cannot be denied: `$` stands before"),
    ] {
        let error = parse(&format!("{shop}{more}")).expect_err(more).to_string();
        assert!(error.starts_with(&format!("c.toml:{line}: ")) && error.contains(said), "{more}: {error}");
    }
}

#[test]
fn what_only_the_directory_can_refuse_is_said_with_its_line_too() {
    let create = |text: &str| {
        let config = parse(text).expect(text);
        let directory = Directory::with_options(Epochs::new(), config.directory_options());
        config.create_tenants(&directory).expect_err(text).to_string()
    };
    for (text, line, said) in [
        ("workers = 1\n[[tenants]]\nname = 'a'\nhome_worker = 7", 4, "home worker 7 is out of range"),
        ("[[tenants]]\nname = 'a'\n[[tenants]]\nname = 'a'", 4, "there is a tenant \"a\" already"),
        ("[[tenants]]\nname = 'a'\nquotas.tables = 1\ntables = [{ name = 't' },\n{ name = 'u' }]", 5, "tables = 1"),
        ("[[tenants]]\nname = 'a'\ntables = [{ name = 't', id = 1},\n{ name = 'u',\nid = 1 }]", 5, "id 1 is taken"),
        ("[[tenants]]\nname = 'a'\n[[tenants.grants]]\ntable = 't'\nto = 'a'", 3, "configured tenant \"a\": "),
    ] {
        let error = create(text);
        assert!(error.starts_with(&format!("c.toml:{line}: ")) && error.contains(said), "{text}: {error}");
    }
}

#[test]
fn open_tenants_and_public_addresses_exclude_each_other_unless_named() {
    let text = "data = '0.0.0.0:7400'\n[[tenants]]\nname = 'a'\nopen = true";
    let error = parse(text).unwrap_err().to_string();
    assert!(error.contains("anyone there could read") && error.contains("--allow-open"), "{error}");
    let allowed = CliOverrides { allow_open: Some(true), ..CliOverrides::default() };
    assert!(ServerSettings::parse(text, "c.toml", &allowed).unwrap().directory_options().allow_open);
    assert!(parse("[[tenants]]\nname = 'a'\nopen = true").unwrap().directory_options().allow_open);
    assert!(!parse("data = '0.0.0.0:7400'").unwrap().directory_options().allow_open);
}

#[test]
fn who_reaches_which_port_decides_what_has_to_be_named() {
    let open = "[[tenants]]\nname = 'a'\nopen = true";
    for (ip, public) in [
        ("127.0.0.1", false),
        ("127.8.8.8", false),
        ("[::1]", false),
        ("[::ffff:127.0.0.1]", false),
        ("0.0.0.0", true),
        ("[::]", true),
        ("[::ffff:0.0.0.0]", true),
        ("[::ffff:10.0.0.1]", true),
        ("10.0.0.1", true),
        ("[fe80::1]", true),
    ] {
        // The data port: open tenants.
        let data = format!("data = '{ip}:7400'\n{open}");
        match parse(&data) {
            Ok(config) => assert!(!public && config.allows_open_tenants(), "{ip}"),
            Err(error) => assert!(public && error.to_string().contains("or say --allow-open"), "{ip}: {error}"),
        }
        let named = parse(&format!("allow_open = true\n{data}")).expect(ip);
        assert!(named.directory_options().allow_open && named.data_is_public() == public, "{ip}");
        assert_eq!(parse(&format!("data = '{ip}:7400'")).expect(ip).directory_options().allow_open, !public, "{ip}");

        // The control port: TLS. The permissions of the data port do not apply to it, and the other way round.
        let control = format!("control = '{ip}:7399'");
        for more in ["", "\nallow_open = true", "\n[[tenants]]\nname = 'a'\nopen = true"] {
            match parse(&format!("{control}{more}")) {
                Ok(_) => assert!(!public, "{ip}"),
                Err(error) => {
                    let text = error.to_string();
                    assert!(public && text.contains("in the clear"), "{ip}: {text}");
                    assert!(text.contains("--control-tls") && text.contains("--allow-plain-control"), "{text}");
                }
            }
        }
        parse(&format!("allow_plain_control = true\n{control}")).expect(ip);
        parse(&format!("{control}\n[control_tls]\nself_signed = true")).expect(ip);
        parse(&format!("{control}\n[control_tls]\ncertificate = '/c'\nkey = '/k'")).expect(ip);
        let both_public = format!("allow_plain_control = true\n{control}\ndata = '{ip}:7500'\n{open}");
        assert_eq!(parse(&both_public).is_err(), public, "{ip}: a plain control port opens no tenant");
    }
}

#[test]
fn plain_packets_from_other_machines_have_to_be_named() {
    assert!(!parse("data = '0.0.0.0:7400'").unwrap().allow_plaintext);
    assert!(parse("allow_plaintext = true").unwrap().allow_plaintext);
    let over = CliOverrides { allow_plaintext: Some(true), ..CliOverrides::default() };
    assert!(ServerSettings::parse("allow_plaintext = false", "c.toml", &over).unwrap().allow_plaintext);
}

#[test]
fn tls_of_the_control_port_is_one_of_three_things() {
    let tls = |text: &str| parse(&format!("control = '10.0.0.1:1'\nallow_plain_control = true\n[control_tls]\n{text}"));
    assert_eq!(tls("").unwrap().control_tls, PortTls::Off);
    let PortTls::SelfSigned { names } = tls("self_signed = true\nnames = ['db.example']").unwrap().control_tls else {
        panic!("self-signed")
    };
    assert_eq!(names, ["db.example", "10.0.0.1"], "the address is one of the names");
    for (text, expected) in [
        ("certificate = '/c'", "control_tls.certificate is given without control_tls.key"),
        ("key = '/c'", "control_tls.key is given without control_tls.certificate"),
        ("certificate = '/c'\nkey = '/k'\nself_signed = true", "not both"),
        ("names = ['a']", "say self_signed = true (--control-tls) as well"),
        ("certificat = '/c'", "did you mean `certificate`?"),
    ] {
        let error = tls(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let over = CliOverrides {
        control_tls: TlsOverrides { self_signed: true, ..TlsOverrides::default() },
        ..CliOverrides::default()
    };
    let config = ServerSettings::parse("[control_tls]\ncertificate = '/c'\nkey = '/k'", "c.toml", &over).unwrap();
    assert!(matches!(config.control_tls, PortTls::SelfSigned { .. }), "the command line goes over the file");
    let over = CliOverrides {
        control_tls: TlsOverrides { names: vec!["b".into()], ..TlsOverrides::default() },
        ..CliOverrides::default()
    };
    let with = |text: &str| ServerSettings::parse(&format!("[control_tls]\n{text}"), "c.toml", &over);
    let PortTls::SelfSigned { names } = with("self_signed = true\nnames = ['a']").unwrap().control_tls else {
        panic!("self-signed")
    };
    assert_eq!(names, ["a", "b", "127.0.0.1"], "names of the command line beside those of the file");
    for (text, expected) in [("", "--control-tls"), ("certificate = '/c'\nkey = '/k'", "has its names already")] {
        let error = with(text).unwrap_err().to_string();
        assert!(error.contains("--control-name") && error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn the_command_line_goes_over_the_file_and_the_file_over_the_defaults() {
    let file = "data = '127.0.0.1:9000'\nworkers = 4\npoll = true\npin = false\nsteal = false\nmove_homes = false\n\
                interleave = false\nstate = '/s'";
    let over =
        CliOverrides { workers: Some(2), poll: Some(false), state: Some("/t".into()), ..CliOverrides::default() };
    let config = ServerSettings::parse(file, "c.toml", &over).unwrap();
    assert_eq!((config.data.port(), config.workers, config.pin, config.poll), (9000, 2, false, false));
    assert!(config.state == Path::new("/t") && !config.steal && !config.move_homes && !config.interleave);
    let config = parse("").unwrap();
    assert_eq!((config.data, config.control), (DEFAULT_DATA, DEFAULT_CONTROL));
    assert!(config.workers >= 1 && config.pin && config.steal && config.move_homes && config.interleave);
    assert!(!config.poll && !config.allow_open);
}

#[test]
fn configured_tenants_and_tables_are_created_with_their_quotas() {
    let text = r#"
        workers = 2
        quotas.tables = 2
        [[tenants]]
        name = "shop"
        id = 9
        token = "a token of my own choosing"
        tables = []
        [[tenants]]
        name = "bar"
        id = 9
    "#;
    let config = parse(&text.replace("a token of my own choosing", "a-token-of-my-own-choosing")).unwrap();
    let directory = Directory::with_options(Epochs::new(), config.directory_options());
    let error = config.create_tenants(&directory).unwrap_err().to_string();
    assert!(
        error.starts_with("c.toml:11: configured tenant \"bar\": tenant id 9 is taken by tenant \"shop\""),
        "{error}"
    );

    let text = r#"
        quotas.tables = 2
        [[tenants]]
        name = "shop"
        id = 9
        open = true
        token = "a-token-of-my-own-choosing"
        quotas = { memory_bytes = 10000000 }
        tables = [{ name = "carts", id = 5, mode = "cache", quota_bytes = 1000000 }, { name = "users" }]
    "#;
    let config = parse(text).unwrap();
    let directory = Directory::with_options(Epochs::new(), config.directory_options());
    config.create_tenants(&directory).unwrap();
    let snapshot = directory.snapshot();
    let view = snapshot.tenant(9).unwrap();
    assert!(view.tenant.open && view.tenant.token_matches(b"a-token-of-my-own-choosing"));
    assert_eq!((view.tenant.quotas.tables, view.tenant.quotas.memory_bytes), (2, 10_000_000));
    let carts = view.table(5).unwrap();
    assert_eq!((&*carts.name(), carts.mode(), carts.quota_bytes()), ("carts", StorageMode::Cache, 1_000_000));
    assert_eq!(view.table_by_name("users").unwrap().quota_bytes(), 1_250_000);
}

#[test]
fn new_tenants_get_the_default_code_and_configured_ones_their_own() {
    let tenants = "[[tenants]]\nname = 'a'\n[[tenants]]\nname = 'b'\ncode = 'none'\n";
    let policies = |head: &str, over: &CliOverrides| {
        let config = ServerSettings::parse(&format!("{head}{tenants}"), "c.toml", over).unwrap();
        let directory = Directory::with_options(Epochs::new(), config.directory_options());
        config.create_tenants(&directory).unwrap();
        let snapshot = directory.snapshot();
        ["a", "b"].map(|name| snapshot.by_name(name).unwrap().tenant.code.policy())
    };
    let none = CliOverrides::default();
    assert_eq!(policies("", &none), [CodePolicy::Sandboxed, CodePolicy::None]);
    assert_eq!(policies("code = 'native'\n", &none), [CodePolicy::Native, CodePolicy::None]);
    let over = CliOverrides { code: Some(CodePolicy::None), ..CliOverrides::default() };
    assert_eq!(policies("code = 'native'\n", &over), [CodePolicy::None, CodePolicy::None]);
    for (text, line) in [("code = 'Native'", 1), ("[[tenants]]\nname = 'a'\ncode = 'wasm'", 3)] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("c.toml:{line}: ")), "{error}");
        assert!(error.contains("`sandboxed`, `native`, `none`"), "{error}");
    }
}

#[test]
fn configured_grants_are_given_when_all_tenants_are_there() {
    let text = r#"
        [[tenants]]
        name = "shop"
        tables = [{ name = "carts" }, { name = "users" }]
        grants = [{ table = "carts", to = "reports", access = "read_write" }, { table = "users", to = "reports" }]
        [[tenants]]
        name = "reports"
    "#;
    let create = |text: &str| {
        let config = parse(text).unwrap();
        let directory = Directory::with_options(Epochs::new(), config.directory_options());
        config.create_tenants(&directory).map(|()| directory.snapshot())
    };
    let snapshot = create(text).unwrap();
    let granted = snapshot.by_name("reports").unwrap().sorted_granted();
    let granted: Vec<_> = granted.iter().map(|grant| (grant.name().to_string(), grant.access())).collect();
    let expected = [("shop/carts", GrantAccess::ReadWrite), ("shop/users", GrantAccess::Read)];
    assert_eq!(granted, expected.map(|(name, access)| (name.to_owned(), Some(access))));
    for (from, to, expected) in [
        (
            "to = \"reports\" }]",
            "to = \"nobody\" }]",
            "c.toml:5: configured tenant \"shop\": there is no tenant \"nobody\"; ",
        ),
        ("table = \"users\", to", "table = \"gone\", to", "tenant \"shop\" has no table \"gone\"; "),
    ] {
        let error = create(&text.replace(from, to)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let error = parse(&text.replace("read_write", "write")).unwrap_err().to_string();
    assert!(error.contains("expected `read` or `read_write`"), "{error}");
}

#[test]
fn the_state_directory_and_its_token_are_private() {
    let outer = tempfile::tempdir().unwrap();
    let state = outer.path().join("a/b");
    prepare_state_dir(&state).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&state), 0o700);
    let token = operator_token(&state).unwrap();
    assert_eq!(mode(&state.join(OPERATOR_TOKEN_FILE)), 0o600);
    assert_eq!(operator_token(&state).unwrap(), token, "a second start keeps the token");
    assert_eq!(read_operator_token(&state).unwrap(), token);

    let open_to_all = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    open_to_all(&state.join(OPERATOR_TOKEN_FILE), 0o644);
    assert!(operator_token(&state).unwrap_err().to_string().contains("others could read the operator's token"));
    open_to_all(&state, 0o755);
    assert!(prepare_state_dir(&state).unwrap_err().to_string().contains("run: chmod 700"));
    std::fs::write(outer.path().join("file"), "").unwrap();
    assert!(prepare_state_dir(&outer.path().join("file")).is_err());
    std::fs::write(state.join(OPERATOR_TOKEN_FILE), "short").unwrap();
    open_to_all(&state.join(OPERATOR_TOKEN_FILE), 0o600);
    assert!(operator_token(&state).unwrap_err().to_string().contains("holds no token"));
}

#[test]
fn a_builder_elsewhere_is_reached_sealed_or_on_this_host() {
    // The public key of RFC 8032, test 1.
    let key = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
    let with = |more: &str| parse(&format!("[builder]\ntrusted_keys = ['{key}']\n{more}"));
    let builder = with("").expect("a key alone: artifacts made elsewhere are loaded").builder;
    assert_eq!((builder.trusted_keys[0].to_hex(), builder.remote), (key.to_owned(), None));
    let named = |url: &str| with(&format!("remote = '{url}'\nremote_token_file = '/t'\n"));
    assert!(named("https://builder.example:7398").expect("sealed").builder.remote.is_some());
    assert!(named("http://127.0.0.1:7398").is_ok() && named("http://localhost:7398").is_ok());
    let error = named("http://builder.example:7398").expect_err("readable on the way").to_string();
    assert!(error.contains("remote_plain = true") && !error.contains('\n'), "{error}");
    assert!(with("remote = 'http://b:1'\nremote_token_file = '/t'\nremote_plain = true").is_ok(), "named");
    assert!(with("remote = 'https://b'").expect_err("no token").to_string().contains("remote_token_file"));
}
