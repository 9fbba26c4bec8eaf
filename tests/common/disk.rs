//! Small disks of a test's own, in memory, which take root. Tests that need one print a line and end without it.
#![allow(dead_code, unreachable_pub)]

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

/// A small disk for a state directory; unmounted when dropped.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one, with these options of tmpfs. `None`, with a line that says so, where nothing may be mounted.
    pub fn mount(at: PathBuf, options: &str) -> Option<SmallDisk> {
        fs::create_dir_all(&at).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&at).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(SmallDisk(at));
        }
        println!("skipped: no file system may be mounted here");
        None
    }

    /// Writes until the disk is full, more than before if it was filled already.
    pub fn fill(&self) {
        let ballast = self.0.join("ballast");
        let mut file = fs::OpenOptions::new().create(true).append(true).open(ballast).unwrap();
        for size in [65_536, 4_096, 1] {
            while file.write_all(&vec![7; size]).is_ok() {}
        }
    }

    /// Gives so many bytes back of what [`SmallDisk::fill`] has taken.
    pub fn leave(&self, bytes: u64) {
        let ballast = fs::OpenOptions::new().write(true).open(self.0.join("ballast")).unwrap();
        let taken = ballast.metadata().unwrap().len();
        ballast.set_len(taken - bytes).unwrap();
    }

    /// Removes what [`SmallDisk::fill`] has written.
    pub fn make_room(&self) {
        fs::remove_file(self.0.join("ballast")).unwrap();
    }

    /// Has so many bytes be left of it, whatever it has by now. What is written meanwhile may be more than that: then
    /// it is tried again.
    pub fn shrink(&self, left: u64) {
        let shrinks = || {
            let at = rustix::fs::statvfs(&self.0).unwrap();
            let used = (at.f_blocks - at.f_bfree) * at.f_frsize;
            let how = format!("remount,size={}", used + left);
            Command::new("mount").args(["-o", &how]).arg(&self.0).status().unwrap().success()
        };
        assert!((0..100).any(|_| shrinks()), "a smaller disk");
    }

    /// Mounts it anew, as that option says.
    pub fn remount(&self, how: &str) {
        let done = Command::new("mount").args(["-o", &format!("remount,{how}")]).arg(&self.0).status();
        assert!(done.unwrap().success(), "remounted {how}");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _stays = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
