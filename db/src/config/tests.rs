//! What the configuration takes, and the one line it says to what it does not.

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::store::Epochs;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, "c.toml", &Overrides::default())
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
            "c.toml:2: unknown key `zzzzzzzz`; valid here: rustc, libraries, enabled, allow_unsandboxed, cpu_s, wall_s, memory_bytes",
        ),
        ("workers = 0", "c.toml: workers = 0 is outside of 1..=64"),
        ("workers = 'many'", "c.toml:1: invalid type: string \"many\", expected usize"),
        ("data = 'here'", "c.toml:1: invalid socket address syntax"),
        (
            "data = '127.0.0.1:65535'\nworkers = 2",
            "c.toml: data port 65535 leaves no ports for 2 workers; choose one up to 65534",
        ),
        (
            "control = '127.0.0.1:7401'\nworkers = 2",
            "c.toml: control port 7401 is among the data ports 7400 to 7401; choose another",
        ),
        ("limits.value_bytes = 9000000000", "c.toml: limits.value_bytes = 9000000000 is outside of 1..=8388608"),
        ("quotas.weight = 0", "c.toml: quotas: quota weight = 0 is outside of 1..=1000"),
        ("quotas.slice_us = 20000", "c.toml: quotas: quota slice_us = 20000 is longer than total_us = 10000"),
        (
            "[[tenants]]\nname = 'a'\n[[tenants.tables]]\nname = 't'\nmode = 'heap'",
            "c.toml:5: unknown variant `heap`, expected `store` or `cache`",
        ),
    ];
    for (text, expected) in table {
        let error = parse(text).expect_err(text).to_string();
        assert_eq!(error, expected, "for {text:?}");
        assert_eq!(error.lines().count(), 1);
    }
    assert!(parse("= 3").unwrap_err().to_string().starts_with("c.toml:1: "));
    let gone = Config::load(Some(Path::new("/nowhere/c.toml")), &Overrides::default()).unwrap_err();
    assert_eq!(gone.to_string(), "cannot read configuration /nowhere/c.toml: No such file or directory (os error 2)");
}

#[test]
fn open_tenants_and_public_addresses_exclude_each_other_unless_named() {
    let text = "data = '0.0.0.0:7400'\n[[tenants]]\nname = 'a'\nopen = true";
    let error = parse(text).unwrap_err().to_string();
    assert!(error.contains("anyone there could read") && error.contains("--allow-open"), "{error}");
    let allowed = Overrides { allow_open: Some(true), ..Overrides::default() };
    assert!(Config::parse(text, "c.toml", &allowed).unwrap().directory_options().allow_open);
    assert!(parse("[[tenants]]\nname = 'a'\nopen = true").unwrap().directory_options().allow_open);
    assert!(!parse("data = '0.0.0.0:7400'").unwrap().directory_options().allow_open);
    assert!(parse("control = '0.0.0.0:7399'").unwrap_err().to_string().contains("in the clear"));
}

#[test]
fn the_command_line_goes_over_the_file_and_the_file_over_the_defaults() {
    let file = "data = '127.0.0.1:9000'\nworkers = 4\npoll = true\npin = false\nstate = '/s'";
    let over = Overrides { workers: Some(2), poll: Some(false), state: Some("/t".into()), ..Overrides::default() };
    let config = Config::parse(file, "c.toml", &over).unwrap();
    assert_eq!((config.data.port(), config.workers, config.pin, config.poll), (9000, 2, false, false));
    assert_eq!(config.state, Path::new("/t"));
    let config = parse("").unwrap();
    assert_eq!((config.data, config.control), (DEFAULT_DATA, DEFAULT_CONTROL));
    assert!(config.workers >= 1 && config.pin && !config.poll && !config.allow_open);
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
    assert!(error.starts_with("configured tenant \"bar\": tenant id 9 is taken by tenant \"shop\""), "{error}");

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
    assert_eq!((&*carts.name, carts.mode, carts.quota_bytes), ("carts", Mode::Cache, 1_000_000));
    assert_eq!(view.table_by_name("users").unwrap().quota_bytes, 4_500_000);
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
