//! Confines a compiler: no network, no files but those it needs, limits on all resources.
//!
//! The builder starts `sandstorm builder sandbox-exec` with a [`SandboxPolicy`] in its environment. That process (first
//! stage) moves into new network, mount, IPC and PID namespaces (as an ordinary user, into a user namespace too). It
//! changes its root to a file system that holds only what the compiler needs, and starts itself again. The second
//! stage, process 1 in there, becomes an unprivileged user if it is root, sets limits, restricts file access (Landlock)
//! and system calls (seccomp), and starts the compiler. Where the kernel provides no namespaces the second stage runs
//! alone and becomes the compiler: Landlock and seccomp still deny it files and sockets.
//!
//! Guarantees of the unsafe blocks: they create namespaces and mark descriptors to be closed by exec, in a process that
//! only becomes the compiler. Memory and open files stay shared as they were.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
    path_beneath_rules,
};
use rustix::process::{Resource, Rlimit, Signal};
use rustix::thread::UnshareFlags;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};
use serde::{Deserialize, Serialize};

use super::{mounts, priority};

/// The variable that holds the policy; it is removed before the compiler starts.
pub(super) const POLICY_VARIABLE: &str = "SANDSTORM_SANDBOX_POLICY";

/// Exit code of the launcher itself: the command was not run.
pub(super) const NOT_RUN: u8 = 125;

/// The permissions of a confined command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SandboxPolicy {
    /// Files and folders that it may read and execute.
    pub(super) readable: Vec<PathBuf>,
    /// Folders that it may write.
    pub(super) writable: Vec<PathBuf>,
    /// Whether it gets namespaces of its own.
    pub(super) namespaces: bool,
    /// An empty folder for the root of its file system.
    pub(super) root: PathBuf,
    /// The user that it runs as, if not its parent's.
    pub(super) user: Option<u32>,
    /// Whether that user may traverse folders that are closed to it.
    pub(super) search: bool,
    /// Whether it runs only when the processors are idle otherwise.
    pub(super) idle: bool,
    /// Processors that it is bound to; empty: all.
    pub(super) cores: Vec<usize>,
    /// CPU time, seconds.
    pub(super) cpu_s: u64,
    /// Address space, bytes.
    pub(super) memory_bytes: u64,
    /// Largest file, bytes.
    pub(super) file_bytes: u64,
    /// Open files.
    pub(super) open_files: u64,
    /// Processes and threads of the user that it runs as. The kernel applies this limit to all users but root.
    pub(super) processes: u64,
    /// Whether the namespaces exist already.
    pub(super) second_stage: bool,
    /// The command.
    pub(super) program: PathBuf,
    /// Its arguments.
    pub(super) arguments: Vec<String>,
    /// Its environment.
    pub(super) environment: BTreeMap<String, String>,
}

/// Folders of the dynamic loader and the C library, which the compiler itself needs.
const SYSTEM_LIBRARIES: [&str; 5] =
    ["/lib64", "/usr/lib64", "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/etc/ld.so.cache"];

/// The libraries that every dynamically linked program reads.
pub(super) fn system_libraries() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = SYSTEM_LIBRARIES.iter().map(PathBuf::from).filter(|path| path.exists()).collect();
    // Distributions without folders per architecture keep the C library right here.
    if !Path::new("/usr/lib/x86_64-linux-gnu").exists() {
        found.push(PathBuf::from("/usr/lib"));
    }
    found
}

/// The launcher's side: `sandstorm builder sandbox-exec`. Becomes the command, or prints on standard error why it
/// cannot.
///
/// The process must have one thread. Its own arguments are passed to the second stage unchanged.
pub fn sandbox_exec() -> ExitCode {
    match run_launcher() {
        Ok(code) => code,
        Err(why) => {
            eprintln!("sandbox: {why}");
            ExitCode::from(NOT_RUN)
        }
    }
}

fn run_launcher() -> Result<ExitCode, String> {
    let text = std::env::var(POLICY_VARIABLE)
        .map_err(|_| format!("no policy in {POLICY_VARIABLE}: the builder starts this, not people"))?;
    let mut policy: SandboxPolicy =
        serde_json::from_str(&text).map_err(|error| format!("unreadable policy: {error}"))?;
    if !policy.second_stage {
        deprioritize(&policy)?;
        close_inherited_fds()?;
    }
    if policy.namespaces && !policy.second_stage {
        return first_stage(&mut policy);
    }
    drop_privileges(&policy)?;
    // The builder's death ends the compiler; with namespaces, the first stage's death ends all in them.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| describe("prctl", error))?;
    apply_rlimits(&policy)?;
    apply_landlock(&policy)?;
    apply_seccomp()?;
    let mut command = Command::new(&policy.program);
    command.args(&policy.arguments).env_clear().envs(&policy.environment);
    let failed = |error: std::io::Error| format!("running {}: {error}", policy.program.display());
    if policy.namespaces {
        // Not as process 1 itself: the kernel does not send that one the signals that tell which limit was met.
        return command.status().map(exit_code).map_err(failed);
    }
    Err(failed(command.exec()))
}

/// The exit code of a command in the convention of shells: a signal is 128 and its number.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

fn describe(what: &str, error: impl std::fmt::Display) -> String {
    format!("{what}: {error}")
}

/// Makes sure that no worker ever waits for a compiler, neither for a processor nor for memory.
fn deprioritize(policy: &SandboxPolicy) -> Result<(), String> {
    if policy.idle {
        priority::set_idle_policy();
    }
    if !policy.cores.is_empty() {
        let mut set = rustix::thread::CpuSet::new();
        policy.cores.iter().filter(|core| **core < rustix::thread::CpuSet::MAX_CPU).for_each(|core| set.set(*core));
        // Some processors may be gone meanwhile: then it runs on the parent's.
        let _anywhere = rustix::thread::sched_setaffinity(None, &set);
    }
    // When memory runs out, compilers go first.
    std::fs::write("/proc/self/oom_score_adj", "1000").map_err(|error| describe("/proc/self/oom_score_adj", error))
}

/// Closes all files of the process that started the server: none of them is the compiler's.
fn close_inherited_fds() -> Result<(), String> {
    // SAFETY: three numbers; the descriptors stay open until exec, so nothing here loses one.
    if unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) } != 0 {
        return Err(describe("closing descriptors", std::io::Error::last_os_error()));
    }
    Ok(())
}

/// Makes namespaces and a root of its own, and runs the second stage in there.
fn first_stage(policy: &mut SandboxPolicy) -> Result<ExitCode, String> {
    let program = std::env::current_exe().map_err(|error| describe("finding this program", error))?;
    enter_namespaces()?;
    let paths: Vec<PathBuf> = policy.readable.iter().chain(&policy.writable).cloned().collect();
    let folder = std::env::current_dir().map_err(|error| describe("finding the folder", error))?;
    mounts::enter_private_root(&policy.root, &paths, &program)?;
    std::env::set_current_dir(folder).map_err(|error| describe("entering the folder", error))?;
    policy.second_stage = true;
    second_stage(policy)
}

/// Becomes an ordinary user permanently, if this is root.
fn drop_privileges(policy: &SandboxPolicy) -> Result<(), String> {
    use rustix::thread::{
        CapabilitySet, CapabilitySets, configure_capability_in_ambient_set, set_capabilities, set_keep_capabilities,
        set_thread_groups, set_thread_res_gid, set_thread_res_uid,
    };
    let Some(number) = policy.user else { return Ok(()) };
    let said = |error: rustix::io::Errno| format!("becoming user {number}: {error}");
    let (user, group) = (rustix::process::Uid::from_raw(number), rustix::process::Gid::from_raw(number));
    if policy.search {
        set_keep_capabilities(true).map_err(said)?;
    }
    set_thread_groups(&[]).map_err(said)?;
    set_thread_res_gid(group, group, group).map_err(said)?;
    set_thread_res_uid(user, user, user).map_err(said)?;
    if policy.search {
        let only = CapabilitySet::DAC_READ_SEARCH;
        set_capabilities(None, CapabilitySets { effective: only, permitted: only, inheritable: only }).map_err(said)?;
        configure_capability_in_ambient_set(only, true).map_err(said)?;
    }
    Ok(())
}

fn enter_namespaces() -> Result<(), String> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid().as_raw());
    let mut flags =
        UnshareFlags::NEWNET | UnshareFlags::NEWIPC | UnshareFlags::NEWPID | UnshareFlags::NEWUTS | UnshareFlags::NEWNS;
    if !user.is_root() {
        flags |= UnshareFlags::NEWUSER;
    }
    // SAFETY: only namespaces are made; memory and open files stay shared as they were.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(|error| describe("making namespaces", error))?;
    if user.is_root() {
        // Here the second stage becomes another user.
        return Ok(());
    }
    let user = user.as_raw();
    // An ordinary user inside, so that the capabilities of the new namespaces end with exec.
    let write = |path: &str, text: String| std::fs::write(path, text).map_err(|error| describe(path, error));
    write("/proc/self/setgroups", "deny".to_owned())?;
    write("/proc/self/uid_map", format!("1000 {user} 1"))?;
    write("/proc/self/gid_map", format!("1000 {group} 1"))
}

/// Runs this program again as process 1 of the new namespaces, and returns its exit code.
fn second_stage(policy: &SandboxPolicy) -> Result<ExitCode, String> {
    let text = serde_json::to_string(policy).map_err(|error| describe("writing the policy", error))?;
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| describe("prctl", error))?;
    let status = Command::new(mounts::LAUNCHER)
        .args(arguments)
        .env_clear()
        .env(POLICY_VARIABLE, text)
        .status()
        .map_err(|error| describe("starting the second stage", error))?;
    Ok(exit_code(status))
}

fn apply_rlimits(policy: &SandboxPolicy) -> Result<(), String> {
    let limits = [
        (Resource::Cpu, policy.cpu_s),
        (Resource::As, policy.memory_bytes),
        (Resource::Fsize, policy.file_bytes),
        (Resource::Nofile, policy.open_files),
        (Resource::Core, 0),
        (Resource::Nproc, policy.processes),
    ];
    for (resource, most) in limits {
        // The soft limit on CPU time sends a signal that says so; the hard one a second later cannot be caught.
        let hard = if resource == Resource::Cpu { most + 1 } else { most };
        let limit = Rlimit { current: Some(most), maximum: Some(hard) };
        rustix::process::setrlimit(resource, limit).map_err(|error| format!("limiting {resource:?}: {error}"))?;
    }
    Ok(())
}

fn apply_landlock(policy: &SandboxPolicy) -> Result<(), String> {
    let abi = ABI::V6;
    let nodes = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::MakeSock | AccessFs::MakeFifo;
    let writing: BitFlags<AccessFs> = (AccessFs::from_all(abi) & !nodes) & !BitFlags::from(AccessFs::Execute);
    let restricted = || {
        Ruleset::default()
            .handle_access(AccessFs::from_all(abi))?
            .handle_access(AccessNet::from_all(abi))?
            .scope(Scope::from_all(abi))?
            .create()?
            .add_rules(path_beneath_rules(&policy.readable, AccessFs::from_read(abi)))?
            .add_rules(path_beneath_rules(&policy.writable, writing))?
            .restrict_self()
    };
    let status = restricted().map_err(|error| describe("landlock", error))?;
    if status.ruleset == RulesetStatus::NotEnforced {
        return Err("landlock: the kernel does not offer it".to_owned());
    }
    Ok(())
}

/// System calls that a compiler and a linker make. No sockets, no other processes' memory, no new namespaces, no keys,
/// no kernel modules. All others fail with "not implemented". So the C library also uses `clone`, whose flags can be
/// checked, instead of `clone3`.
#[rustfmt::skip]
const CALLS: [libc::c_long; 107] = [
    libc::SYS_read, libc::SYS_write, libc::SYS_readv, libc::SYS_writev, libc::SYS_pread64, libc::SYS_pwrite64,
    libc::SYS_open, libc::SYS_openat, libc::SYS_close, libc::SYS_stat, libc::SYS_fstat, libc::SYS_lstat,
    libc::SYS_newfstatat, libc::SYS_statx, libc::SYS_poll, libc::SYS_ppoll, libc::SYS_lseek, libc::SYS_mmap,
    libc::SYS_mprotect, libc::SYS_munmap, libc::SYS_brk, libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn, libc::SYS_ioctl, libc::SYS_access, libc::SYS_faccessat, libc::SYS_faccessat2,
    libc::SYS_pipe, libc::SYS_pipe2, libc::SYS_sched_yield, libc::SYS_mremap, libc::SYS_msync, libc::SYS_madvise,
    libc::SYS_dup, libc::SYS_dup2, libc::SYS_dup3, libc::SYS_nanosleep, libc::SYS_getpid, libc::SYS_gettid,
    libc::SYS_vfork, libc::SYS_execve, libc::SYS_exit, libc::SYS_exit_group, libc::SYS_wait4, libc::SYS_waitid,
    libc::SYS_kill, libc::SYS_tgkill, libc::SYS_uname, libc::SYS_fcntl, libc::SYS_flock, libc::SYS_fsync,
    libc::SYS_fdatasync, libc::SYS_truncate, libc::SYS_ftruncate, libc::SYS_getdents64, libc::SYS_getcwd,
    libc::SYS_chdir, libc::SYS_rename, libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_mkdir, libc::SYS_mkdirat,
    libc::SYS_rmdir, libc::SYS_link, libc::SYS_linkat, libc::SYS_unlink, libc::SYS_unlinkat, libc::SYS_readlink,
    libc::SYS_readlinkat, libc::SYS_chmod, libc::SYS_fchmod, libc::SYS_fchmodat, libc::SYS_umask,
    libc::SYS_gettimeofday, libc::SYS_getrlimit, libc::SYS_getrusage, libc::SYS_sysinfo, libc::SYS_times,
    libc::SYS_getuid, libc::SYS_getgid, libc::SYS_geteuid, libc::SYS_getegid, libc::SYS_getppid,
    libc::SYS_sigaltstack, libc::SYS_statfs, libc::SYS_fstatfs, libc::SYS_prctl, libc::SYS_arch_prctl,
    libc::SYS_sched_getaffinity, libc::SYS_futex, libc::SYS_set_tid_address, libc::SYS_clock_gettime,
    libc::SYS_clock_getres, libc::SYS_clock_nanosleep, libc::SYS_set_robust_list, libc::SYS_prlimit64,
    libc::SYS_getrandom, libc::SYS_rseq, libc::SYS_copy_file_range, libc::SYS_sendfile, libc::SYS_fallocate,
    libc::SYS_fadvise64, libc::SYS_utimensat, libc::SYS_membarrier, libc::SYS_restart_syscall,
    libc::SYS_recvfrom,
];

/// Flags of `clone` that make namespaces.
const NAMESPACE_FLAGS: u64 = 0x7e02_0000;

fn apply_seccomp() -> Result<(), String> {
    let wrong = |error: seccompiler::BackendError| describe("seccomp", error);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = CALLS.iter().map(|call| (*call, Vec::new())).collect();
    let plain =
        SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(NAMESPACE_FLAGS), 0).map_err(wrong)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![plain]).map_err(wrong)?]);
    // A pair of connected sockets: the compiler learns through it whether its linker started.
    let unix = u64::from(libc::AF_UNIX.unsigned_abs());
    let pair = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, unix).map_err(wrong)?;
    rules.insert(libc::SYS_socketpair, vec![SeccompRule::new(vec![pair]).map_err(wrong)?]);
    let refused = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, TargetArch::x86_64).map_err(wrong)?;
    let program: BpfProgram = filter.try_into().map_err(wrong)?;
    seccompiler::apply_filter(&program).map_err(|error| describe("seccomp", error))
}
