//! Checks a server that runs as a systemd service, whose environment is not that of a shell: its user, its files, and a
//! rustc that this user can run.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sandstorm_builder::{CompilerSearch, MODULE_TARGET, Rustc};
use sandstorm_control::config::{CliOverrides, ServerSettings};

use super::{CheckStatus, DoctorFinding};
use crate::cli::output::CliError;

/// The folders in a service's `PATH` where its unit does not set it.
const SERVICE_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin";
/// The link target of rustup's stand-in for rustc.
const RUSTUP_PROXY: &str = "rustup";
/// The documentation that has the advice.
const DOCS_HINT: &str = "docs/operations.md, \"As a service\", has the ways";

/// The relevant lines of a unit.
#[derive(Debug, Default, PartialEq, Eq)]
struct SystemdUnit {
    user: String,
    /// The program, then its arguments.
    command: Vec<String>,
    environment: Vec<(String, String)>,
}

impl SystemdUnit {
    fn of(text: &str) -> SystemdUnit {
        let mut unit = SystemdUnit { user: "root".to_owned(), ..SystemdUnit::default() };
        let mut section = "";
        for line in text.lines().map(str::trim) {
            if line.starts_with('[') {
                section = line;
            }
            let Some((key, value)) = line.split_once('=').filter(|_| section == "[Service]") else { continue };
            match key.trim() {
                "User" => unit.user = value.trim().to_owned(),
                "ExecStart" => unit.command = words(value),
                "Environment" => {
                    let pairs = words(value);
                    unit.environment.extend(pairs.iter().filter_map(|pair| {
                        pair.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
                    }));
                }
                _ => {}
            }
        }
        unit
    }

    fn variable(&self, name: &str) -> Option<&str> {
        self.environment.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The value of an option, in the next word or after `=`.
    fn option(&self, name: &str) -> Option<&str> {
        let mut words = self.command.iter();
        while let Some(word) = words.next() {
            if word == name {
                return words.next().map(String::as_str);
            }
            if let Some(value) = word.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')) {
                return Some(value);
            }
        }
        None
    }
}

/// Splits a line into words as systemd does: by blanks, unless they are quoted.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for c in line.trim().chars() {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c.is_whitespace() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            _ => word.push(c),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SystemUser {
    name: String,
    id: u32,
    groups: Vec<u32>,
    home: PathBuf,
}

impl SystemUser {
    /// Reads a user from `/etc/passwd` and `/etc/group`.
    fn named(root: &Path, name: &str) -> Option<SystemUser> {
        let passwd = fs::read_to_string(root.join("etc/passwd")).ok()?;
        let fields = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields[0] == name)?;
        let group = fs::read_to_string(root.join("etc/group")).unwrap_or_default();
        let member = |line: &&str| line.rsplit(':').next().is_some_and(|names| names.split(',').any(|one| one == name));
        let others = group.lines().filter(member).filter_map(|line| line.split(':').nth(2)?.parse().ok());
        let groups = fields.get(3)?.parse().ok().into_iter().chain(others).collect();
        Some(SystemUser {
            name: name.to_owned(),
            id: fields.get(2)?.parse().ok()?,
            groups,
            home: fields.get(5)?.into(),
        })
    }

    /// Returns whether the user has the permissions of these mode bits (4 read, 1 execute or traverse).
    fn may(&self, path: &Path, bits: u32) -> bool {
        let Ok(found) = fs::metadata(path) else { return false };
        let mode = if found.uid() == self.id {
            found.mode() >> 6
        } else if self.groups.contains(&found.gid()) {
            found.mode() >> 3
        } else {
            found.mode()
        };
        self.id == 0 || mode & bits == bits
    }

    /// The first folder on the path to a file, or the file itself, that the user cannot access.
    fn first_inaccessible(&self, path: &Path, bits: u32) -> Option<PathBuf> {
        let mut folders: Vec<&Path> = path.ancestors().skip(1).collect();
        folders.reverse();
        let folder = folders.into_iter().find(|folder| !self.may(folder, 1));
        folder.or_else(|| Some(path).filter(|path| !self.may(path, bits))).map(Path::to_owned)
    }
}

/// Checks a unit.
pub(super) fn unit(file: &Path, root: &Path) -> Result<Vec<DoctorFinding>, CliError> {
    let text = fs::read_to_string(file)
        .map_err(|error| CliError::new(format!("cannot read {}: {error}", file.display())).code("io"))?;
    let unit = SystemdUnit::of(&text);
    let Some(user) = SystemUser::named(root, &unit.user) else {
        let advice = format!("useradd --system --home-dir /var/lib/sandstorm --shell /usr/sbin/nologin {}", unit.user);
        return Ok(vec![DoctorFinding::new(format!("user {}", unit.user), CheckStatus::Bad, "there is none", advice)]);
    };
    let mut findings =
        vec![DoctorFinding::new(format!("user {}", user.name), CheckStatus::Good, format!("id {}", user.id), "")];
    findings.push(program(&unit, &user));
    let (finding, config) = configuration(&unit, &user);
    findings.extend(finding);
    let needs_rustc = config.as_ref().is_none_or(|config| config.builder.enabled && config.builder.remote.is_none());
    if needs_rustc && !unit.command.iter().any(|word| word == "--no-builder") {
        let named = config.and_then(|config| config.builder.rustc);
        let named = unit.option("--rustc").map(PathBuf::from).or(named);
        // Programs of another root are not run here.
        findings.push(compiler(&unit, &user, named, root == Path::new("/")));
    }
    Ok(findings)
}

fn program(unit: &SystemdUnit, user: &SystemUser) -> DoctorFinding {
    let Some(program) = unit.command.first() else {
        return DoctorFinding::new("program", CheckStatus::Bad, "the unit has no ExecStart", DOCS_HINT);
    };
    let what = format!("program {program}");
    let path = Path::new(program.trim_start_matches(['-', '@', ':', '+', '!']));
    if !path.is_file() {
        let advice = format!("install -m 755 target/release/sandstorm {}", path.display());
        return DoctorFinding::new(what, CheckStatus::Bad, "it is not there", advice);
    }
    match user.first_inaccessible(path, 1) {
        Some(at) => DoctorFinding::new(
            what,
            CheckStatus::Bad,
            format!("{} cannot use {}", user.name, at.display()),
            "chmod a+x it",
        ),
        None => DoctorFinding::new(what, CheckStatus::Good, "it is there", ""),
    }
}

/// The configuration file, if the unit names one.
fn configuration(unit: &SystemdUnit, user: &SystemUser) -> (Option<DoctorFinding>, Option<ServerSettings>) {
    let Some(file) = unit.option("--config") else { return (None, None) };
    let what = format!("configuration {file}");
    let finding = |state, found: String, advice: &str| Some(DoctorFinding::new(what.clone(), state, found, advice));
    let path = Path::new(file);
    let config = match ServerSettings::load(Some(path), &CliOverrides::default()) {
        Ok(config) => config,
        Err(error) => return (finding(CheckStatus::Bad, error.to_string(), "the server would not start"), None),
    };
    let found = match user.first_inaccessible(path, 4) {
        Some(at) => {
            let found_text = format!("{} cannot read it ({})", user.name, at.display());
            finding(CheckStatus::Bad, found_text, "give it to the user's group: chgrp, chmod 640")
        }
        None => finding(CheckStatus::Good, "it is what the server takes".to_owned(), ""),
    };
    (found, Some(config))
}

/// Checks the compiler that the service would find, and whether the user can run it; `may_run`: whether it is started
/// here.
fn compiler(unit: &SystemdUnit, user: &SystemUser, named: Option<PathBuf>, may_run: bool) -> DoctorFinding {
    let path = unit.variable("PATH").unwrap_or(SERVICE_PATH);
    let cargo = unit.variable("CARGO_HOME").map(PathBuf::from);
    let rustup = cargo.into_iter().chain([user.home.join(".cargo")]).map(|folder| folder.join("bin")).collect();
    let search = CompilerSearch { path: std::env::split_paths(path).collect(), rustup };
    let found = match named {
        Some(named) => Ok(named),
        None => search.find(),
    };
    let what = "rustc as the service finds it";
    let file = match found {
        Ok(file) => file,
        Err(error) => return DoctorFinding::new(what, CheckStatus::Bad, error.to_string(), DOCS_HINT),
    };
    let shown = file.display();
    if let Some(at) = user.first_inaccessible(&file, 1) {
        let found = format!("{shown}: {} cannot use {}", user.name, at.display());
        return DoctorFinding::new(what, CheckStatus::Bad, found, DOCS_HINT);
    }
    let is_proxy = fs::canonicalize(&file).is_ok_and(|real| real.file_name().is_some_and(|name| name == RUSTUP_PROXY));
    if is_proxy && unit.variable("RUSTUP_HOME").is_none() && !user.home.join(".rustup").is_dir() {
        let found = format!("{shown} is a proxy of rustup, which finds no compiler in {}", user.home.display());
        return DoctorFinding::new(what, CheckStatus::Bad, found, DOCS_HINT);
    }
    // A proxy would answer for the user that runs this check, not for the service's.
    if may_run
        && !is_proxy
        && let Err(error) = Rustc::find(Some(&file))
    {
        return DoctorFinding::new(what, CheckStatus::Bad, error.to_string(), DOCS_HINT);
    }
    DoctorFinding::new(what, CheckStatus::Good, shown.to_string(), "")
}

/// Describes a compiler that was found at `path`, and whether it has what sandboxed extensions need.
fn found_compiler(what: &'static str, rustc: &Rustc, path: &Path) -> DoctorFinding {
    let found = format!("{} at {}", rustc.release, path.display());
    if rustc.makes_modules() {
        return DoctorFinding::new(what, CheckStatus::Good, found, "");
    }
    let advice = format!("`rustup target add {MODULE_TARGET}`: sandboxed extensions are built with it");
    DoctorFinding::new(what, CheckStatus::Mind, format!("{found}, without {MODULE_TARGET}"), advice)
}

/// Checks the compiler that a server started here finds, and whether a service would find it, too.
pub(super) fn compilers() -> Vec<DoctorFinding> {
    let here = match Rustc::find(None) {
        Ok(rustc) => found_compiler("rustc, for extensions", &rustc, &rustc.program),
        Err(error) => DoctorFinding::new("rustc, for extensions", CheckStatus::Bad, error.to_string(), ""),
    };
    let service = CompilerSearch { path: std::env::split_paths(SERVICE_PATH).collect(), rustup: Vec::new() };
    let what = "rustc, for a server that systemd starts";
    let there = match service.find() {
        Ok(found) => match Rustc::find(Some(&found)) {
            Ok(rustc) => found_compiler(what, &rustc, &found),
            Err(error) => DoctorFinding::new(what, CheckStatus::Mind, error.to_string(), DOCS_HINT),
        },
        Err(_) => {
            let advice = format!(
                "name it in the unit or the configuration; {DOCS_HINT}, and `sandstorm doctor --unit FILE` looks"
            );
            DoctorFinding::new(what, CheckStatus::Mind, format!("none in {SERVICE_PATH}"), advice)
        }
    };
    vec![here, there]
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_unit_is_read_as_systemd_does() {
        let text = "[Unit]\nUser=nobody\n[Service]\n# User=no\nUser=sandstorm\nExecStart=/bin/s --state /v serve --config=/c\n\
                    Environment=A=1 \"B=two words\"\nEnvironment=A=3\n[Install]\nUser=x\n";
        let unit = SystemdUnit::of(text);
        assert_eq!((unit.user.as_str(), unit.command[0].as_str()), ("sandstorm", "/bin/s"));
        assert_eq!((unit.option("--config"), unit.option("--state")), (Some("/c"), Some("/v")));
        assert_eq!((unit.variable("A"), unit.variable("B")), (Some("3"), Some("two words")));
        assert_eq!(SystemdUnit::of("[Service]\n").user, "root");
    }

    /// Makes a root with a user `sandstorm`, and a unit whose paths are in it.
    fn machine(unit: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        // The path to it is not what the test checks.
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let at = |path: &str| folder.path().join(path);
        let program = |path: &str| {
            fs::create_dir_all(at(path).parent().unwrap()).unwrap();
            fs::write(at(path), "#!/bin/sh\n").unwrap();
            fs::set_permissions(at(path), PermissionsExt::from_mode(0o755)).unwrap();
        };
        fs::create_dir_all(at("etc")).unwrap();
        let home = at("home").display().to_string();
        let passwd = format!("root:x:0:0::/root:/bin/sh\nsandstorm:x:4242:4242::{home}:/usr/sbin/nologin\n");
        fs::write(at("etc/passwd"), passwd).unwrap();
        fs::write(at("etc/sandstorm.toml"), "workers = 1\n").unwrap();
        fs::write(at("etc/wrong.toml"), "\nworkers = 0\n").unwrap();
        program("bin/sandstorm");
        program("open/rustc");
        program("closed/bin/rustc");
        fs::set_permissions(at("closed"), PermissionsExt::from_mode(0o700)).unwrap();
        let file = at("sandstorm.service");
        fs::write(&file, unit.replace("ROOT", &folder.path().display().to_string())).unwrap();
        (folder, file)
    }

    #[test]
    fn what_is_missing_under_a_unit_is_said_with_what_to_do() {
        let start = "[Service]\nUser=sandstorm\nExecStart=ROOT/bin/sandstorm serve --config ROOT/etc/sandstorm.toml\n";
        for (text, about, state, found_text) in [
            (format!("{start}Environment=PATH=ROOT/open"), "rustc", CheckStatus::Good, "open/rustc"),
            (format!("{start}Environment=PATH=ROOT/none"), "rustc", CheckStatus::Bad, "there is none on the PATH"),
            (format!("{start}Environment=PATH=ROOT/closed/bin"), "rustc", CheckStatus::Bad, "cannot use"),
            (start.replace("serve", "serve --rustc ROOT/open/rustc"), "rustc", CheckStatus::Good, "open/rustc"),
            (
                start.replace("sandstorm.toml", "wrong.toml"),
                "configuration",
                CheckStatus::Bad,
                "wrong.toml:2: workers = 0",
            ),
            (start.replace("bin/sandstorm", "bin/nothing"), "program", CheckStatus::Bad, "not there"),
            (start.replace("User=sandstorm", "User=nobody-here"), "user", CheckStatus::Bad, "there is none"),
            (start.to_owned(), "user", CheckStatus::Good, "id 4242"),
        ] {
            let (folder, file) = machine(&text);
            let findings = unit(&file, folder.path()).unwrap();
            let found = findings.iter().find(|finding| finding.what.starts_with(about)).expect(about);
            // Root may access everything, but the unit's user counts, not the user that runs the check.
            assert!(found.state == state && found.found.contains(found_text), "{text}: {found:?}");
            assert_eq!(found.advice.is_empty(), state == CheckStatus::Good, "{found:?}");
        }
        let (folder, file) = machine(&start.replace("serve", "serve --no-builder"));
        let findings = unit(&file, folder.path()).unwrap();
        assert!(!findings.iter().any(|finding| finding.what.starts_with("rustc")), "{findings:?}");
    }
}
