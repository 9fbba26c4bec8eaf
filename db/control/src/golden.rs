//! Golden files of the formats on the disk: what a format was when it was made, in the folder `golden` of this crate.

use std::path::{Path, PathBuf};

/// The path of a golden file.
fn golden_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name)
}

/// The bytes of a golden file.
pub(crate) fn golden_file(name: &str) -> Vec<u8> {
    let path = golden_path(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Asserts that these bytes, just written, are those of the golden file of the format that is written today. With
/// `UPDATE_GOLDEN` they become that.
pub(crate) fn assert_golden(name: &str, written: &[u8]) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(golden_path(name), written).expect("room");
    }
    let (golden, written) = (golden_file(name), String::from_utf8_lossy(written));
    let hint = "the format has changed: give it a new number, and keep a reader of the old one";
    assert_eq!(written, String::from_utf8_lossy(&golden), "{name}: {hint}");
}
