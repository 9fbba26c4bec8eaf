//! The line of a worker's connections that have something to do: a lane for each tenant, one connection of each by
//! turns. Who has thousands of busy connections keeps those waiting, not the one of another tenant.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::connection_id::ConnectionId;

/// Empty lanes that are kept for their tenants' next request: a few kilobytes in all.
pub(super) const RETAINED_TENANT_QUEUES: usize = 64;

/// Connections that wait for their turn.
#[derive(Default)]
pub(super) struct ReadyQueue {
    /// Of each tenant that has some, in the order in which they came.
    lanes: HashMap<u32, VecDeque<ConnectionId>>,
    /// Whose turn it is.
    turns: VecDeque<u32>,
    len: usize,
}

impl ReadyQueue {
    /// Connections in it.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Puts one of a tenant's behind its others.
    pub(super) fn push(&mut self, tenant: u32, name: ConnectionId) {
        let lane = self.lanes.entry(tenant).or_default();
        if lane.is_empty() {
            self.turns.push_back(tenant);
        }
        lane.push_back(name);
        self.len += 1;
    }

    /// Keeps those that are so.
    pub(super) fn retain(&mut self, mut are: impl FnMut(ConnectionId) -> bool) {
        self.lanes.values_mut().for_each(|lane| lane.retain(|name| are(*name)));
        self.lanes.retain(|_, lane| !lane.is_empty());
        self.turns.retain(|tenant| self.lanes.contains_key(tenant));
        self.len = self.lanes.values().map(VecDeque::len).sum();
    }

    /// Takes the first of the tenant whose turn it is.
    pub(super) fn pop(&mut self) -> Option<ConnectionId> {
        let tenant = self.turns.pop_front()?;
        let lane = self.lanes.get_mut(&tenant)?;
        let name = lane.pop_front()?;
        self.len -= 1;
        if !lane.is_empty() {
            self.turns.push_back(tenant);
        } else if self.lanes.len() > RETAINED_TENANT_QUEUES {
            self.lanes.remove(&tenant);
        }
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_each_tenant_by_turns_and_in_order() {
        let mut line = ReadyQueue::default();
        let name = |place| ConnectionId { slot: place, generation: 0 };
        (0..1000).for_each(|place| line.push(1, name(place)));
        (1000..1002).for_each(|place| line.push(2, name(place)));
        line.push(0, name(2000));
        assert_eq!(line.len(), 1003);
        let order: Vec<u32> = std::iter::from_fn(|| line.pop()).map(|name| name.slot).collect();
        assert_eq!(order[..6], [0, 1000, 2000, 1, 1001, 2]);
        assert_eq!(order[6..], (3..1000).collect::<Vec<_>>());
        assert_eq!((line.len(), line.pop()), (0, None));
        for tenant in 0..1000 {
            line.push(tenant, name(tenant));
            assert_eq!(line.pop(), Some(name(tenant)));
        }
        assert!(line.lanes.len() <= RETAINED_TENANT_QUEUES && line.turns.is_empty());
        (0..100).for_each(|place| line.push(place % 3, name(place)));
        line.retain(|name| name.slot % 3 != 1 && name.slot < 10);
        let order: Vec<u32> = std::iter::from_fn(|| line.pop()).map(|name| name.slot).collect();
        assert_eq!((order, line.len()), (vec![0, 2, 3, 5, 6, 8, 9], 0));
    }
}
