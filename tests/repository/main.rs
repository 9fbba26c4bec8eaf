//! Tests of the repository itself: its folders, its sources, its pages. No server runs here.

mod api_examples;
mod arrows;
mod client_defaults;
mod crate_pages;
mod metadata;
mod modules_doc;
mod tidy;
mod unsound;
mod wire_doc;

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace").to_path_buf()
}

/// The packages of the workspace without those of `ext/`: for each its folder, its manifest, and whether it may be
/// published.
fn packages() -> Vec<(String, toml::Table, bool)> {
    let read = |path: PathBuf| fs::read_to_string(path).expect("a manifest").parse::<toml::Table>().expect("TOML");
    let workspace = read(root().join("Cargo.toml"));
    let members = workspace["workspace"]["members"].as_array().expect("the workspace has members");
    let folders = members.iter().filter_map(|member| member.as_str()).filter(|folder| !folder.contains('*'));
    let package = |folder: &str| {
        let manifest = read(root().join(folder).join("Cargo.toml"));
        let published = manifest["package"].get("publish").is_none_or(|publish| publish.as_bool() != Some(false));
        (folder.to_owned(), manifest, published)
    };
    folders.map(package).collect()
}
