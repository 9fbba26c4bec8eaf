//! Promise: what `scripts/package` makes can be installed, upgraded and removed; what is installed serves as its unit
//! says, and has its records after an upgrade; and the image runs as a user without rights. The packages are installed
//! on top of this machine's files, in an overlay that goes away; where this user may not mount one, that part is left
//! out, and says so.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::http::has_program;
use crate::common::ports::free_port;
use crate::common::root;

/// Runs the script with this test's program in place of a release.
fn make(out: &Path, revision: &str) {
    let output = Command::new(root().join("scripts/package"))
        .args(["--binary", env!("CARGO_BIN_EXE_sandstorm-under-test"), "--level", "1", "--revision", revision, "--out"])
        .arg(out)
        .output()
        .expect("the script");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn stdout(command: &mut Command) -> String {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON")
}

/// The packages of the first revision, and those of the second.
fn packages() -> (tempfile::TempDir, tempfile::TempDir) {
    let (first, second) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    make(first.path(), "1");
    make(second.path(), "2");
    (first, second)
}

#[test]
fn packages_are_installed_upgraded_and_removed_and_the_image_runs_without_rights() {
    if !has_program("dpkg-deb", "dpkg") {
        return;
    }
    let (first, second) = packages();
    let version = env!("CARGO_PKG_VERSION");
    let server = first.path().join(format!("sandstorm_{version}-1_amd64.deb"));
    let listed = stdout(Command::new("dpkg-deb").arg("-c").arg(&server));
    for file in [
        "./usr/bin/sandstorm",
        "./lib/systemd/system/sandstorm.service",
        "./etc/sandstorm/sandstorm.toml",
        "./usr/share/man/man1/sandstorm-token-create.1.gz",
        "./usr/share/bash-completion/completions/sandstorm",
        "./usr/share/zsh/vendor-completions/_sandstorm",
        "./usr/share/sandstorm/monitoring/sandstorm.rules.yml",
    ] {
        assert!(listed.lines().any(|line| line.ends_with(file) && line.contains("root/root")), "{file}: {listed}");
    }
    check_image(first.path());
    stdout(Command::new("sha256sum").args(["--check", "--quiet", "SHA256SUMS"]).current_dir(first.path()));
    check_components(&first.path().join(format!("sandstorm-{version}.cdx.json")));
    let doctor = Command::new(env!("CARGO_BIN_EXE_sandstorm-under-test"))
        .args(["doctor", "--json", "--unit"])
        .arg(root().join("packaging/sandstorm.service"))
        .stdin(Stdio::null())
        .output()
        .expect("doctor");
    assert!(doctor.status.success(), "{}", String::from_utf8_lossy(&doctor.stderr));

    // In a mount namespace of its own: nothing of this stays.
    let script = format!(
        "set -e\nmount -t tmpfs none /mnt\nmkdir /mnt/upper /mnt/work /mnt/root\n\
         mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root || exit 77\n\
         cp {first}/*.deb {second}/*.deb /mnt/root/root/\n\
         mount -t proc proc /mnt/root/proc 2>/dev/null || true\n\
         exec chroot /mnt/root sh -e -c '{inner}'\n",
        first = first.path().display(),
        second = second.path().display(),
        inner = INSIDE
            .replace("VERSION", version)
            .replace("DATA_PORT", &free_port().to_string())
            .replace("CONTROL_PORT", &free_port().to_string()),
    );
    let output = Command::new("unshare").args(["--mount", "--propagation", "private", "sh", "-c", &script]).output();
    let output = output.expect("unshare");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(77)
        || said.contains("Operation not permitted")
        || said.contains("must be superuser")
    {
        println!("skipped: this user may not mount an overlay to install the packages in: {said}");
        return;
    }
    assert!(output.status.success() && said.contains("all of it went well"), "{said}");
}

/// What is done with the packages, in the overlay.
const INSIDE: &str = r##"
cd /root
dpkg -i sandstorm_VERSION-1_amd64.deb >/dev/null
id sandstorm >/dev/null
test "$(stat -c "%U %a" /var/lib/sandstorm)" = "sandstorm 700"
sandstorm --version
test -f /usr/share/man/man1/sandstorm.1.gz
cat >> /etc/sandstorm/sandstorm.toml <<END
# mine
data = "127.0.0.1:DATA_PORT"
control = "127.0.0.1:CONTROL_PORT"
END
export SANDSTORM_SERVER=http://127.0.0.1:CONTROL_PORT SANDSTORM_STATE=/var/lib/sandstorm
server=
trap "test -z \"\$server\" || kill \$server 2> /dev/null || true" EXIT

# Starts what the unit starts, as its user, and waits until it serves.
serve() {
  unit=/lib/systemd/system/sandstorm.service
  SANDSTORM_BUILDER=$(sed -n "s/^Environment=SANDSTORM_BUILDER=//p" $unit)
  user=$(sed -n "s/^User=//p" $unit)
  eval "setpriv --reuid=$user --regid=$user --init-groups $(sed -n "s/^ExecStart=//p" $unit) >> /root/server.log 2>&1 &"
  server=$!
  until sandstorm health > /root/health 2>&1; do
    kill -0 $server || { cat /root/server.log /root/health; exit 1; }
    sleep 0.2
  done
}

serve
sandstorm tenant create shop > /root/shop
sandstorm table create items --tenant shop --durability disk
sandstorm put items key value --tenant shop
test "$(stat -c "%U %a" /var/lib/sandstorm/operator-token)" = "sandstorm 600"
touch /var/lib/sandstorm/kept
dpkg --force-depends -i sandstorm-builder_VERSION-1_amd64.deb >/dev/null 2>&1
test -f /lib/systemd/system/sandstorm.service.d/builder.conf
dpkg -P sandstorm-builder >/dev/null
dpkg -i sandstorm_VERSION-2_amd64.deb >/dev/null
dpkg -s sandstorm | grep -q "Version: VERSION-2"
grep -q "# mine" /etc/sandstorm/sandstorm.toml
# The one from before the upgrade still serves, and ends when it is told to, as systemd tells it; the new one goes on.
sandstorm get items key --tenant shop | grep -q value
kill $server
wait $server
serve
sandstorm get items key --tenant shop | grep -q value
sandstorm stop
wait $server
dpkg -r sandstorm >/dev/null
test ! -e /usr/bin/sandstorm
test -f /var/lib/sandstorm/kept
dpkg -P sandstorm >/dev/null 2>&1
test ! -e /var/lib/sandstorm
test ! -e /etc/sandstorm/sandstorm.toml
! id sandstorm >/dev/null 2>&1
echo all of it went well
"##;

fn check_components(path: &Path) {
    let components = json(path);
    assert_eq!(components["bomFormat"], "CycloneDX");
    let named: BTreeMap<&str, &str> = components["components"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| {
            (one["name"].as_str().unwrap_or_default(), one["licenses"][0]["expression"].as_str().unwrap_or_default())
        })
        .collect();
    for name in ["axum", "rustls", "tokio", "clap", "sandstorm-store"] {
        assert!(named.get(name).is_some_and(|licence| !licence.is_empty()), "{name}: {named:?}");
    }
}

/// The image is whole, and its program runs as a user without rights.
fn check_image(out: &Path) {
    let image = out.join("image");
    fs::create_dir(&image).expect("a folder");
    let archive = out.join(format!("sandstorm-{}.oci.tar", env!("CARGO_PKG_VERSION")));
    stdout(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&image));
    assert_eq!(json(&image.join("oci-layout"))["imageLayoutVersion"], "1.0.0");
    // Every blob is where its digest says, and as long as its descriptor says.
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().expect("a digest").trim_start_matches("sha256:").to_owned();
        let path = image.join("blobs/sha256").join(&digest);
        let found = stdout(Command::new("sha256sum").arg(&path));
        assert!(found.starts_with(&digest), "{found}");
        assert_eq!(descriptor["size"], fs::metadata(&path).expect("a blob").len());
        path
    };
    let manifest = json(&blob(&json(&image.join("index.json"))["manifests"][0]));
    let config = json(&blob(&manifest["config"]));
    assert_eq!(
        (&config["config"]["User"], config["config"]["Cmd"][3].as_str()),
        (&"65532:65532".into(), Some("--no-builder"))
    );
    let layer = blob(&manifest["layers"][0]);
    let files = out.join("files");
    fs::create_dir(&files).expect("a folder");
    stdout(Command::new("tar").arg("-xzf").arg(&layer).arg("-C").arg(&files));
    assert!(!files.join("usr/bin/rustc").exists() && !files.join("bin/sh").exists(), "nothing but the server");
    let run = |arguments: &[&str]| {
        let mut command = Command::new("chroot");
        command
            .arg("--userspec=65532:65532")
            .arg(&files)
            .arg("/usr/bin/sandstorm")
            .args(arguments)
            .stdin(Stdio::null());
        command
    };
    let Ok(output) = run(&["--version"]).output() else { return };
    if !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("Operation not permitted") {
        println!("skipped: this user may not change the root");
        return;
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // It serves, writes to its state alone, and stops when it is told to.
    let addresses = ["--json", "--control", "127.0.0.1:0", "--data", "127.0.0.1:0"];
    let given: Vec<&str> =
        config["config"]["Cmd"].as_array().expect("words").iter().filter_map(Value::as_str).collect();
    let mut process = run(&[&given, &addresses[..]].concat()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(process.stdout.take().expect("a pipe")), &mut line)
        .expect("it says where it is");
    assert!(line.contains("control"), "{line}");
    stdout(Command::new("kill").arg(process.id().to_string()));
    assert!(process.wait().expect("it ends").success());
    assert!(files.join("state/directory.journal").exists());
}
