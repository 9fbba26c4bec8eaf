//! Resource use of a process and its descendants, from `/proc`: the kernel's limits count each process for itself.

use std::fs;
use std::path::Path;
use std::time::Duration;

/// Clock ticks a second in `/proc`, on every Linux.
const TICKS_PER_S: u64 = 100;
/// Bytes of a page, as `/proc` counts memory.
const PAGE_BYTES: u64 = 4096;
/// Most processes that are sampled.
const MAX_PROCESSES: usize = 1_024;

/// A sample of a process and its descendants.
#[derive(Clone, Debug, Default)]
pub(super) struct ProcessTreeUsage {
    /// CPU time of all of them, those that have ended included.
    pub(super) cpu: Duration,
    /// Memory of all of them, bytes.
    pub(super) memory: u64,
    /// Their threads.
    pub(super) threads: Vec<i32>,
    /// Whether one of them runs, or waits for a processor.
    pub(super) runnable: bool,
}

impl ProcessTreeUsage {
    /// Samples `root` and its descendants. Processes that end meanwhile are left out.
    pub(super) fn of(root: u32) -> ProcessTreeUsage {
        let mut sample = ProcessTreeUsage::default();
        let mut waiting = vec![root];
        let mut seen = 0;
        while let Some(process) = waiting.pop() {
            seen += 1;
            if seen > MAX_PROCESSES {
                break;
            }
            let folder = format!("/proc/{process}");
            let Some(fields) = stat(Path::new(&folder)) else { continue };
            // Fields of /proc/[pid]/stat after the name: state is 0, times from 11, resident pages 21.
            let ticks: u64 = fields.iter().skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
            sample.cpu += Duration::from_millis(ticks * 1_000 / TICKS_PER_S);
            sample.memory += fields.get(21).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * PAGE_BYTES;
            let Ok(threads) = fs::read_dir(format!("{folder}/task")) else { continue };
            for thread in threads.flatten() {
                let path = thread.path();
                sample.threads.extend(thread.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
                sample.runnable |= stat(&path).is_some_and(|fields| fields.first().is_some_and(|state| state == "R"));
                let children = fs::read_to_string(path.join("children")).unwrap_or_default();
                waiting.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
            }
        }
        sample
    }
}

/// The fields after the name; the name may contain any character.
fn stat(folder: &Path) -> Option<Vec<String>> {
    let text = fs::read_to_string(folder.join("stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

/// Bytes of all files below a folder, holes not counted.
pub(super) fn disk_bytes(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut sum = 0;
    let mut waiting = vec![folder.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            sum += metadata.blocks() * 512;
            if metadata.is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    sum
}

/// Threads of a user, whichever process started them.
pub(super) fn threads_of(user: u32) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let own = processes.filter(|entry| {
        let numbered = entry.file_name().to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        numbered && entry.metadata().is_ok_and(|metadata| metadata.uid() == user)
    });
    own.map(|entry| fs::read_dir(entry.path().join("task")).into_iter().flatten().count() as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_at_this_process_shows_its_threads_and_children() {
        let before = ProcessTreeUsage::of(std::process::id());
        assert!(before.memory > 1 << 20 && before.runnable, "{before:?}");
        let mut child = std::process::Command::new("sleep").arg("10").spawn().expect("sleep runs");
        let with = ProcessTreeUsage::of(std::process::id());
        let found = with.threads.contains(&i32::try_from(child.id()).expect("a small number"));
        child.kill().expect("it runs");
        child.wait().expect("ours");
        assert!(found, "{with:?}");
    }

    #[test]
    fn a_folder_counts_what_its_files_take() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("a")).expect("a folder");
        let before = disk_bytes(folder.path());
        fs::write(folder.path().join("a/b"), vec![1; 1 << 20]).expect("a file");
        assert!(disk_bytes(folder.path()) >= before + (1 << 20));
    }
}
