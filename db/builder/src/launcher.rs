//! Starts a compiler under limits, confined as well as the kernel allows.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::lchown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::confined_command::{CompilerOutcome, ConfinedCommand};
use super::process_tree::threads_of;
use super::sandbox::{self, SandboxPolicy};
use super::scratch::ROOT_FOLDER;
use super::supervise::supervise;
use super::sysroot::ENVIRONMENT;
use super::{BuildError, BuilderConfig, CompileLimits, Toolchain, priority};

/// First of the users that compilers run as where the builder is root: distributions leave 65520 to 65533 free.
const FIRST_USER: u32 = 65_520;

/// Starts compilers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompilerLauncher {
    /// Without confinement: only where the operator has allowed it, and in tests of other parts.
    Unsandboxed,
    /// Through the sandbox.
    Sandboxed {
        /// The program that calls [`sandbox_exec`](super::sandbox_exec) when it is given `arguments`.
        program: PathBuf,
        /// For the `sandstorm` binary: `builder sandbox-exec`.
        arguments: Vec<String>,
        /// The kernel's means to confine compilers.
        confinement: ConfinementOptions,
    },
}

/// The stack of each thread of a compiler, bytes: four times rustc's default. LLVM recurses as deep as a function's
/// longest chain of blocks, and a translated module has functions of many thousand: with the default, it overflows its
/// stack over tenants' programs of a few hundred lines. It is address space until it is used, and a compiler has up
/// to ten threads of the 2 GiB that are its limit.
const COMPILER_STACK_BYTES: &str = "33554432";

/// The confinement of compilers, beside Landlock, seccomp and limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfinementOptions {
    /// Whether they get namespaces of their own, with a file system that holds only what they need.
    pub namespaces: bool,
    /// The user of the compilers where the builder is root.
    pub user: Option<u32>,
    /// Whether that user may traverse folders that are closed to it, so that it reaches a compiler in root's home.
    /// Landlock still denies it all other folders.
    pub search: bool,
    /// Whether they begin under `SCHED_IDLE`.
    pub idle: bool,
    /// Processors that they are bound to; empty: all.
    pub cores: Vec<usize>,
}

impl CompilerLauncher {
    /// Runs the command to its end, or ends it at its limits.
    ///
    /// # Errors
    /// `Limit` when it was ended or crashed; `Internal` when it could not be started.
    pub(super) fn run(&self, run: &ConfinedCommand<'_>) -> Result<CompilerOutcome, BuildError> {
        let mut command = self.command(run)?;
        command
            .current_dir(run.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0);
        let child = command
            .spawn()
            .map_err(|error| BuildError::Internal(format!("starting {}: {error}", run.program.display())))?;
        let idle = matches!(self, CompilerLauncher::Sandboxed { confinement, .. } if confinement.idle);
        let outcome = supervise(child, run, idle)?;
        if *self != CompilerLauncher::Unsandboxed && outcome.code == Some(i32::from(sandbox::NOT_RUN)) {
            return Err(BuildError::Sandbox(outcome.stderr.trim().to_owned()));
        }
        Ok(outcome)
    }

    /// Describes the confinement of compilers for people.
    pub fn in_words(&self) -> String {
        match self {
            CompilerLauncher::Unsandboxed => "compilers are not confined".to_owned(),
            CompilerLauncher::Sandboxed { confinement, .. } => {
                let namespaces = if confinement.namespaces { "namespaces, " } else { "" };
                let user = confinement.user.map(|user| format!(", user {user}")).unwrap_or_default();
                format!("{namespaces}Landlock, seccomp{user}")
            }
        }
    }

    fn command(&self, run: &ConfinedCommand<'_>) -> Result<Command, BuildError> {
        let folder = run.folder.to_string_lossy().into_owned();
        let mut environment = BTreeMap::from(
            [
                ("TMPDIR", folder.as_str()),
                ("RUST_BACKTRACE", "0"),
                ("RUSTC_ICE", "0"),
                ("RUST_MIN_STACK", COMPILER_STACK_BYTES),
                ENVIRONMENT,
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        let CompilerLauncher::Sandboxed { program, arguments, confinement } = self else {
            let mut command = Command::new(run.program);
            command.args(&run.arguments).env_clear().envs(environment);
            return Ok(command);
        };
        let text = |argument: &OsString| match argument.to_str() {
            Some(text) => Ok(text.to_owned()),
            None => Err(BuildError::Sandbox(format!("{} is not UTF-8", argument.display()))),
        };
        let ConfinementOptions { namespaces, user, search, idle, cores } = confinement.clone();
        if let Some(user) = user {
            chown_tree(run.folder, user).map_err(|error| BuildError::io("giving away a scratch folder", error))?;
        }
        // The compiler's processes may not be countable apart from those of the user that runs the builder. Then the
        // limit is higher by the number of those.
        let own = if namespaces || user.is_some() { 0 } else { threads_of(rustix::process::geteuid().as_raw()) };
        // The loader finds libraries beside a program through /proc, which does not exist there.
        if let Some(libraries) = run.program.parent().and_then(Path::parent).map(|sysroot| sysroot.join("lib")) {
            environment.insert("LD_LIBRARY_PATH".to_owned(), libraries.to_string_lossy().into_owned());
        }
        let mut readable = sandbox::system_libraries();
        readable.extend(run.readable.iter().cloned());
        let policy = SandboxPolicy {
            readable,
            writable: vec![run.folder.to_owned()],
            namespaces,
            root: empty_root_for(run.folder),
            user,
            search,
            idle,
            cores,
            cpu_s: (run.cpu + Duration::from_millis(999)).as_secs().max(1),
            memory_bytes: run.limits.memory_bytes,
            file_bytes: run.limits.file_bytes,
            open_files: run.limits.open_files,
            processes: own + run.limits.processes,
            second_stage: false,
            program: run.program.to_owned(),
            arguments: run.arguments.iter().map(text).collect::<Result<_, _>>()?,
            environment,
        };
        let policy = serde_json::to_string(&policy).map_err(|error| BuildError::Sandbox(error.to_string()))?;
        let mut command = Command::new(program);
        command.args(arguments).env_clear().env(sandbox::POLICY_VARIABLE, policy);
        Ok(command)
    }

    /// Returns the strongest confinement that works on this machine for the `number`th builder of a host: with
    /// namespaces, without, or, where the operator allows it, none.
    ///
    /// # Errors
    /// `Sandbox`: the missing kernel features, and the setting that allows builds nevertheless.
    pub fn for_config(
        config: &BuilderConfig,
        number: usize,
        toolchain: &Toolchain,
    ) -> Result<CompilerLauncher, BuildError> {
        let program = config.program()?;
        let arguments = ["builder", "sandbox-exec"].map(str::to_owned).to_vec();
        CompilerLauncher::strongest(program, arguments, number, config, toolchain)
    }

    /// As [`CompilerLauncher::for_config`], with the launching program given.
    ///
    /// # Errors
    /// As for [`CompilerLauncher::for_config`].
    pub fn strongest(
        program: PathBuf,
        arguments: Vec<String>,
        number: usize,
        config: &BuilderConfig,
        toolchain: &Toolchain,
    ) -> Result<CompilerLauncher, BuildError> {
        let user = u32::try_from(number).ok().filter(|_| rustix::process::geteuid().is_root());
        let user = user.map(|number| FIRST_USER + number);
        let (idle, cores) = (priority::can_raise_from_idle(), config.cores.clone());
        let full = ConfinementOptions { namespaces: true, user, search: false, idle, cores };
        let mut why: Vec<String> = Vec::new();
        for (namespaces, search) in [(true, false), (true, true), (false, false), (false, true)] {
            if search && user.is_none() {
                continue;
            }
            let confinement = ConfinementOptions { namespaces, search, ..full.clone() };
            let launcher =
                CompilerLauncher::Sandboxed { program: program.clone(), arguments: arguments.clone(), confinement };
            match launcher.probe(toolchain) {
                Ok(()) => return Ok(launcher),
                Err(error) => why.push(error.to_string()),
            }
        }
        why.dedup();
        let why = why.join("; ");
        if config.allow_unsandboxed {
            tracing::warn!(%why, "compilers run without a sandbox, as configured");
            return Ok(CompilerLauncher::Unsandboxed);
        }
        Err(BuildError::Sandbox(format!(
            "the compiler cannot be confined here ({why}); it needs Landlock (Linux 5.13) and seccomp, and better \
             namespaces; set builder.allow_unsandboxed to build without, for tenants that you trust"
        )))
    }

    /// Runs the compiler once without a source, as builds will.
    fn probe(&self, toolchain: &Toolchain) -> Result<(), BuildError> {
        let folder = toolchain.scratch.folder("probe-")?;
        let source = folder.path().join("probe.rs");
        std::fs::write(&source, "#![no_std]\n").map_err(|error| BuildError::io("writing a scratch file", error))?;
        let limits = CompileLimits::default();
        let mut arguments: Vec<OsString> = vec!["--sysroot".into(), toolchain.native().root.clone().into()];
        arguments.extend(["--edition=2024", "--crate-type=rlib", "probe.rs"].map(OsString::from));
        let run = ConfinedCommand {
            program: &toolchain.rustc.program,
            arguments,
            folder: folder.path(),
            readable: vec![toolchain.rustc.sysroot.clone(), toolchain.native().root.clone()],
            limits: &limits,
            cpu: limits.cpu,
            wall: limits.wall,
        };
        let outcome = self.run(&run)?;
        if outcome.success { Ok(()) } else { Err(BuildError::Sandbox(outcome.stderr.trim().to_owned())) }
    }
}

/// The empty folder beside the scratch folders on which compilers' file systems are mounted, each in its own namespace.
fn empty_root_for(folder: &Path) -> PathBuf {
    folder.parent().unwrap_or(folder).join(ROOT_FOLDER)
}

/// Gives a scratch folder and its content to the user.
fn chown_tree(folder: &Path, user: u32) -> std::io::Result<()> {
    let mut waiting = vec![folder.to_owned()];
    while let Some(path) = waiting.pop() {
        lchown(&path, Some(user), Some(user))?;
        for entry in std::fs::read_dir(&path)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                waiting.push(entry.path());
            } else {
                lchown(entry.path(), Some(user), Some(user))?;
            }
        }
    }
    Ok(())
}
