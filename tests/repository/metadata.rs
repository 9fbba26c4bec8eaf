//! Promise: each crate describes itself in its manifest and on a page, and the crates that users depend on can be
//! packaged.

use std::fs;

use crate::{packages, root};

#[test]
fn each_crate_has_its_metadata_and_a_page_that_the_design_links_to() {
    let design = fs::read_to_string(root().join("docs/design.md")).expect("the page on the design");
    for (folder, manifest, published) in packages() {
        let package = manifest["package"].as_table().expect("a package");
        if !published && package.get("readme").is_none() && !folder.starts_with("db") {
            continue;
        }
        for field in ["description", "readme", "keywords", "categories", "license", "rust-version"] {
            assert!(package.contains_key(field), "{folder}/Cargo.toml has no {field}");
        }
        let page = fs::read_to_string(root().join(&folder).join("README.md")).unwrap_or_default();
        assert!(
            page.contains("cargo test") || folder == "net/dpdk-sys",
            "{folder}/README.md does not say how to test it"
        );
        let linked = design.contains(&format!("(../{folder}/README.md)")) || folder == "net/dpdk-sys";
        assert!(linked, "docs/design.md does not link to {folder}/README.md");
    }
}

#[test]
fn what_users_depend_on_can_be_packaged() {
    let workspace: toml::Table =
        fs::read_to_string(root().join("Cargo.toml")).expect("a manifest").parse().expect("TOML");
    let shared = workspace["workspace"]["dependencies"].as_table().expect("the workspace has dependencies");
    let version = workspace["workspace"]["package"]["version"].as_str();
    let published: Vec<(String, toml::Table)> = packages()
        .into_iter()
        .filter(|(.., published)| *published)
        .map(|(_, manifest, _)| manifest)
        .map(named)
        .collect();
    let names: Vec<&str> = published.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["sandstorm-api", "sandstorm-schema", "sandstorm-net", "sandstorm-dpdk-sys", "sandstorm-client"]);
    for (name, manifest) in &published {
        let dependencies = manifest.get("dependencies").and_then(|section| section.as_table());
        let ours = dependencies.into_iter().flatten().map(|(dependency, _)| dependency);
        for dependency in ours.filter(|dependency| dependency.starts_with("sandstorm")) {
            assert!(
                names.contains(&dependency.as_str()),
                "{name} is published and depends on {dependency}, which is not"
            );
            let output_text = shared[dependency].get("version").and_then(|version| version.as_str());
            assert_eq!(
                output_text, version,
                "[workspace.dependencies] {dependency}: the version that `cargo package` needs"
            );
        }
    }
}

#[test]
fn the_files_that_the_page_for_contributors_names_are_there() {
    let page = fs::read_to_string(root().join("CONTRIBUTING.md")).expect("the page for contributors");
    let quoted = page.split('`').skip(1).step_by(2).filter_map(|text| text.split_whitespace().next());
    let paths: Vec<&str> = quoted.filter(|text| text.contains('/')).collect();
    assert!(paths.len() > 30, "the recipes name next to no files: {paths:?}");
    let gone: Vec<&&str> = paths.iter().filter(|path| !root().join(path).exists()).collect();
    assert!(gone.is_empty(), "CONTRIBUTING.md names what is not there: {gone:?}");
}

fn named(manifest: toml::Table) -> (String, toml::Table) {
    (manifest["package"]["name"].as_str().unwrap_or_default().to_owned(), manifest)
}
