//! Promise: the Python client is installed from its wheel and does what its page says. Without Python it is left out.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::typed::bank;

/// The system's Python, if it is there and new enough.
pub(super) fn python() -> Option<Command> {
    let asked =
        Command::new("python3").args(["-c", "import sys, ctypes; sys.exit(sys.version_info < (3, 9))"]).output();
    if asked.is_ok_and(|output| output.status.success()) {
        return Some(Command::new("python3"));
    }
    println!("left out: there is no python3 of version 3.9 or later with ctypes");
    None
}

/// The library that cargo has built beside this program, since its crate is a dependency.
fn library() -> PathBuf {
    let _linked = sandstorm_c::interface::sandstorm_interface();
    let program = std::env::current_exe().expect("this program");
    let path = program.with_file_name("libsandstorm_c.so");
    assert!(path.exists(), "cargo has not made {}", path.display());
    path
}

fn succeeds(command: &mut Command) -> String {
    let output = command.output().expect("a program that runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Makes the wheel, and installs it into a folder.
pub(super) fn installed(folder: &Path) -> PathBuf {
    let builder = super::common::root().join("clients/python/build_wheel.py");
    let make = |out: &Path| {
        let mut command = python().expect("Python is there");
        let made = succeeds(command.arg(&builder).arg("--out").arg(out).arg("--library").arg(library()));
        PathBuf::from(made.trim())
    };
    let wheel = make(&folder.join("wheels"));
    let again = make(&folder.join("again"));
    assert!(std::fs::read(&wheel).unwrap() == std::fs::read(again).unwrap(), "the same library makes the same wheel");
    let target = folder.join("site");
    let mut pip = python().expect("Python is there");
    pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-cache-dir", "--target"]);
    if succeeds(
        python().expect("Python is there").args(["-c", "import importlib.util as i; print(i.find_spec('pip'))"]),
    )
    .trim()
        == "None"
    {
        // A wheel is a zip archive.
        succeeds(python().expect("Python is there").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&target));
    } else {
        succeeds(pip.arg(&target).arg(&wheel));
    }
    target
}

#[test]
fn the_python_client_is_installed_from_its_wheel_and_keeps_its_promises() {
    let Some(mut python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let site = installed(folder.path());
    let (server, token) = bank();
    server.json("ext push ../ext/bad");
    server.json("table create items");
    server.json("table create words --ordered");
    for table in ["feed", "waits", "async", "large"] {
        server.json(&format!("table create {table}"));
    }
    server.json("table create memory --durability none");
    let address = server.control.trim_start_matches("http://");
    let given = serde_json::json!([address, "shop", token]).to_string();
    let tests = super::common::root().join("clients/python/tests/test_client.py");
    succeeds(python.arg(tests).env("PYTHONPATH", site).env("PYTHONWARNINGS", "error").env("SANDSTORM_TEST", given));
}
