//! How many connections the whole server has, and whose they are.

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::places::may_hold;
use crate::limits::connections::{CONNECTIONS, OTHER_FILES};

/// How many connections the server has, and may have.
pub(in crate::workers) struct Room {
    held: Mutex<Held>,
    limit: usize,
}

/// Connections, whatever worker has them or will have.
#[derive(Default)]
struct Held {
    live: usize,
    /// Of each tenant; 0: of those that have not shown whose they are.
    of: HashMap<u32, usize>,
}

impl Held {
    fn add(&mut self, tenant: u32) {
        self.live += 1;
        *self.of.entry(tenant).or_default() += 1;
    }

    fn remove(&mut self, tenant: u32) {
        self.live = self.live.saturating_sub(1);
        if let Some(held) = self.of.get_mut(&tenant) {
            *held -= 1;
            if *held == 0 {
                self.of.remove(&tenant);
            }
        }
    }
}

impl Room {
    /// Room for as many as the process may have files open; the limit of those is raised as far as it can be.
    pub(in crate::workers) fn new() -> Room {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let files = getrlimit(Resource::Nofile);
        let raised = Rlimit { current: files.maximum, maximum: files.maximum };
        let may = match setrlimit(Resource::Nofile, raised) {
            Ok(()) => files.maximum,
            Err(_) => files.current,
        };
        let may = may.map_or(usize::MAX, |may| usize::try_from(may).unwrap_or(usize::MAX));
        Room::of(Room::within(may))
    }

    /// Connections where so many files may be open: half of them at most, where they are few.
    fn within(files: usize) -> usize {
        (files - OTHER_FILES.min(files / 2)).clamp(1, CONNECTIONS)
    }

    fn of(limit: usize) -> Room {
        Room { held: Mutex::default(), limit }
    }

    /// Connections that there may be.
    pub(in crate::workers) fn limit(&self) -> usize {
        self.limit
    }

    /// Takes a place for one of a tenant, if it may have one more.
    pub(super) fn take(&self, tenant: u32) -> bool {
        let mut held = self.held.lock();
        let may = may_hold(self.limit, held.live, held.of.get(&tenant).copied().unwrap_or(0));
        if may {
            held.add(tenant);
        }
        may
    }

    /// One has shown whose it is, that was counted for `before`. Whether that tenant may have one more; if not, it still counts as it did.
    pub(super) fn pass(&self, before: u32, tenant: u32) -> bool {
        let mut held = self.held.lock();
        held.remove(before);
        let may = may_hold(self.limit, held.live, held.of.get(&tenant).copied().unwrap_or(0));
        held.add(if may { tenant } else { before });
        may
    }

    /// One of a tenant is gone.
    pub(super) fn leave(&self, tenant: u32) {
        self.held.lock().remove(tenant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_few_files_may_be_open_some_are_left_for_everything_else() {
        for (files, connections) in [(0, 1), (64, 32), (1_024, 512), (4_096, 3_072), (1 << 20, CONNECTIONS)] {
            assert_eq!(Room::within(files), connections);
        }
        assert_eq!(Room::within(usize::MAX), CONNECTIONS);
    }

    #[test]
    fn a_tenant_gets_two_thirds_whatever_worker_has_its_connections() {
        let room = Room::of(300);
        let taken = (0..300).take_while(|_| room.take(7)).count();
        assert_eq!(taken, 200);
        assert!(!room.take(7) && room.take(8) && room.take(0), "there is room for others");
        assert!(!room.pass(0, 7) && room.pass(0, 8));
        (0..200).for_each(|_| room.leave(7));
        assert!(room.take(7));
        (0..3).for_each(|_| room.leave(if room.held.lock().of.contains_key(&7) { 7 } else { 8 }));
        let held = room.held.lock();
        assert_eq!((held.live, held.of.len()), (0, 0));
    }
}
