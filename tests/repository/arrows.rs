//! Promise: dependencies between the folders run one way (docs/design.md, "Crates"): `ext -> sandstorm-api <- db -> net
//! <- client`, and those within `db/` from the binary down to the store. Only the command line, around the composed
//! server, knows both `db` and `client`.

#[path = "arrows/modules.rs"]
mod modules;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{packages, root};

/// The dependencies on our own crates that a manifest names, development ones included.
fn own_dependencies(manifest: &Path) -> Vec<String> {
    let text = fs::read_to_string(manifest).expect("a readable manifest");
    let manifest: toml::Table = text.parse().expect("a TOML manifest");
    let own = manifest.get("package").and_then(|p| p.get("name")).and_then(|n| n.as_str()).unwrap_or_default();
    let mut found = Vec::new();
    for section in ["dependencies", "build-dependencies", "dev-dependencies"] {
        let names =
            manifest.get(section).and_then(|s| s.as_table()).into_iter().flatten().map(|(name, _)| name.clone());
        // A crate's tests may switch on features of the crate itself.
        found.extend(names.filter(|name| name.starts_with("sandstorm") && name != own));
    }
    found.sort();
    found.dedup();
    found
}

/// The crates below the catalog on the path of a request.
const DATA_PATH: [&str; 6] = [
    "sandstorm-accounts",
    "sandstorm-extension",
    "sandstorm-log",
    "sandstorm-metrics",
    "sandstorm-net",
    "sandstorm-store",
];

/// What the crate of extensions may name.
const BELOW_EXTENSIONS: [&str; 6] = [
    "sandstorm-accounts",
    "sandstorm-api",
    "sandstorm-metrics",
    "sandstorm-net",
    "sandstorm-sandbox",
    "sandstorm-schema",
];

/// What the crate that composes the server names beside them.
const INSTANCE: [&str; 7] = [
    "sandstorm-backing",
    "sandstorm-catalog",
    "sandstorm-cluster",
    "sandstorm-control",
    "sandstorm-dialects",
    "sandstorm-runtime",
    "sandstorm-server",
];

/// What each crate may name, from the bottom up.
fn allowed_dependencies() -> BTreeMap<String, Vec<&'static str>> {
    let with = |more: &[&'static str]| -> Vec<&'static str> { DATA_PATH.iter().chain(more).copied().collect() };
    BTreeMap::from([
        ("sandstorm-api".into(), vec![]),
        ("schema".into(), vec![]),
        ("net".into(), vec!["sandstorm-dpdk-sys"]),
        ("net/dpdk-sys".into(), vec![]),
        ("client".into(), vec!["sandstorm-net", "sandstorm-schema"]),
        ("clients/c".into(), vec!["sandstorm-client"]),
        ("db/log".into(), vec![]),
        ("db/store".into(), vec!["sandstorm-log", "sandstorm-net"]),
        // Its tests have a log that fails.
        ("db/backing".into(), vec!["sandstorm-log", "sandstorm-store"]),
        (
            "db/cluster".into(),
            vec!["sandstorm-catalog", "sandstorm-jetstream", "sandstorm-log", "sandstorm-net", "sandstorm-store"],
        ),
        ("db/jetstream".into(), vec!["sandstorm-log"]),
        ("db/metrics".into(), vec!["sandstorm-net", "sandstorm-store"]),
        ("db/accounts".into(), vec!["sandstorm-metrics", "sandstorm-net"]),
        ("db/sandbox".into(), vec![]),
        ("db/translator".into(), vec!["sandstorm-sandbox"]),
        ("db/extension".into(), BELOW_EXTENSIONS.to_vec()),
        ("db/catalog".into(), with(&["sandstorm-backing"])),
        // Its tests compile the extensions that they run.
        ("db/runtime".into(), with(&["sandstorm-api", "sandstorm-builder", "sandstorm-catalog", "sandstorm-sandbox"])),
        ("db/dialects".into(), with(&["sandstorm-api", "sandstorm-catalog", "sandstorm-schema"])),
        ("db/server".into(), with(&["sandstorm-api", "sandstorm-catalog", "sandstorm-dialects", "sandstorm-runtime"])),
        (
            "db/builder".into(),
            vec!["sandstorm-api", "sandstorm-net", "sandstorm-sandbox", "sandstorm-schema", "sandstorm-translator"],
        ),
        // The crate that composes the server does not know the client, nor the builder's own process.
        ("db/instance".into(), with(&INSTANCE)),
        // They speak to servers as users do: through the client.
        ("db/terminal".into(), vec!["sandstorm-builder", "sandstorm-client"]),
        (
            "benches/experiments".into(),
            with(&[
                "sandstorm-api",
                "sandstorm-backing",
                "sandstorm-builder",
                "sandstorm-catalog",
                "sandstorm-client",
                "sandstorm-control",
                "sandstorm-dialects",
                "sandstorm-instance",
                "sandstorm-runtime",
                "sandstorm-server",
                "sandstorm-terminal",
            ]),
        ),
        (
            "db/control".into(),
            with(&[
                "sandstorm-api",
                "sandstorm-builder",
                "sandstorm-catalog",
                "sandstorm-cluster",
                "sandstorm-dialects",
                "sandstorm-runtime",
                "sandstorm-schema",
                "sandstorm-server",
            ]),
        ),
    ])
}

#[test]
fn manifests_follow_the_arrows() {
    let mut allowed = allowed_dependencies();
    for entry in fs::read_dir(root().join("ext")).expect("ext/") {
        let path = entry.expect("a readable entry").path();
        if path.join("Cargo.toml").exists() {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            allowed.insert(format!("ext/{name}"), vec!["sandstorm-api"]);
        }
    }
    for (folder, may) in allowed {
        for dependency in own_dependencies(&root().join(&folder).join("Cargo.toml")) {
            assert!(may.contains(&dependency.as_str()), "{folder} must not depend on {dependency}; allowed: {may:?}");
        }
    }
}

#[test]
fn the_tests_know_every_feature() {
    let script = fs::read_to_string(root().join("scripts/test")).expect("the script");
    let listed =
        script.lines().find_map(|line| line.strip_prefix("features=(--features ")).expect("a list of features");
    let mut listed: Vec<&str> = listed.trim_end_matches(')').split(',').collect();
    listed.sort_unstable();
    let mut all = Vec::new();
    for (_, manifest, _) in packages() {
        let package = manifest.get("package").and_then(|p| p.get("name")).and_then(|n| n.as_str()).unwrap_or_default();
        let features = manifest.get("features").and_then(|s| s.as_table()).into_iter().flatten();
        // These two need DPDK, which may be missing.
        let features = features.filter(|(name, _)| !["dpdk", "bind"].contains(&name.as_str()));
        all.extend(features.map(|(name, _)| format!("{package}/{name}")));
    }
    all.sort_unstable();
    assert_eq!(listed, all, "scripts/test lists the features that can be built without DPDK");
}

#[test]
fn every_integration_test_runs_over_shared_memory_or_there_is_a_reason() {
    let script = fs::read_to_string(root().join("scripts/test")).expect("the script");
    let (_, list) = script.split_once("\nover_memif=(").expect("a list of tests");
    let (list, _) = list.split_once("\nif has_dpdk").expect("the list's end");
    // Names; after two spaces comes the reason why those are not run.
    let names = list.lines().map(|line| match line.strip_prefix("#   ") {
        Some(reason) => reason.split_once("  ").expect("names and a reason").0,
        None => line.split_once('=').map_or(line, |(_, names)| names),
    });
    let names = names.filter(|line| !line.starts_with('#')).flat_map(|line| line.split_whitespace());
    let mut listed: Vec<String> = names.map(|name| name.trim_matches(['(', ')']).to_owned()).collect();
    listed.sort_unstable();
    let mut all = Vec::new();
    for theme in themes() {
        let folder = root().join("tests").join(&theme);
        let files = fs::read_dir(&folder).expect("a theme").map(|entry| entry.expect("an entry").path());
        let has_tests =
            |path: &PathBuf| path.is_file() && fs::read_to_string(path).is_ok_and(|t| t.contains("#[test]"));
        let modules: Vec<String> = files
            .filter(has_tests)
            .map(|path| format!("{theme}::{}", path.file_stem().expect("a name").to_string_lossy()))
            .collect();
        // A theme without test modules is itself a program of one test.
        all.extend(if modules.is_empty() { vec![theme] } else { modules });
    }
    all.sort_unstable();
    assert_eq!(listed, all, "scripts/test says of each module of tests whether it runs over memif, once");
}

/// The test programs, by their manifest.
fn themes() -> Vec<String> {
    let manifest = fs::read_to_string(root().join("tests/Cargo.toml")).expect("a readable manifest");
    let manifest: toml::Table = manifest.parse().expect("a TOML manifest");
    let tests = manifest.get("test").and_then(|tests| tests.as_array()).expect("test programs");
    tests.iter().map(|test| test["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn the_server_library_does_not_know_the_client() {
    let crates = fs::read_dir(root().join("db")).expect("db/").map(|entry| entry.expect("a readable entry").path());
    // The errors that a command prints include the client's.
    let crates = crates.filter(|path| !path.ends_with("terminal")).map(|path| path.join("Cargo.toml"));
    let crates: Vec<PathBuf> = crates.filter(|path| path.exists()).collect();
    assert!(crates.len() >= 11, "the walk over db/ found next to nothing: {crates:?}");
    for manifest in crates {
        let names_it = own_dependencies(&manifest).iter().any(|name| name == "sandstorm-client");
        assert!(!names_it, "{} names the client; only the command line and what it prints may", manifest.display());
    }
}
