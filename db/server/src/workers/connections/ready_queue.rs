//! The queue of a worker's ready connections: one of each tenant by turns. A tenant with thousands of busy connections
//! delays its own, not another tenant's.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::connection_id::ConnectionId;

/// Empty queues that stay for their tenants' next request: a few kilobytes in all.
pub(super) const RETAINED_TENANT_QUEUES: usize = 64;

/// Connections that wait for their turn.
#[derive(Default)]
pub(super) struct ReadyQueue {
    /// The connections of each tenant, in the order in which they came.
    queues: HashMap<u32, VecDeque<ConnectionId>>,
    /// The tenants in the order of their turns.
    turns: VecDeque<u32>,
    len: usize,
}

impl ReadyQueue {
    /// The number of connections in it.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Puts a connection behind the others of its tenant.
    pub(super) fn push(&mut self, tenant: u32, id: ConnectionId) {
        let queue = self.queues.entry(tenant).or_default();
        if queue.is_empty() {
            self.turns.push_back(tenant);
        }
        queue.push_back(id);
        self.len += 1;
    }

    /// Removes the connections that do not match.
    pub(super) fn retain(&mut self, mut matches: impl FnMut(ConnectionId) -> bool) {
        self.queues.values_mut().for_each(|queue| queue.retain(|id| matches(*id)));
        self.queues.retain(|_, queue| !queue.is_empty());
        self.turns.retain(|tenant| self.queues.contains_key(tenant));
        self.len = self.queues.values().map(VecDeque::len).sum();
    }

    /// Takes the first connection of the next tenant in turn.
    pub(super) fn pop(&mut self) -> Option<ConnectionId> {
        let tenant = self.turns.pop_front()?;
        let queue = self.queues.get_mut(&tenant)?;
        let id = queue.pop_front()?;
        self.len -= 1;
        if !queue.is_empty() {
            self.turns.push_back(tenant);
        } else if self.queues.len() > RETAINED_TENANT_QUEUES {
            self.queues.remove(&tenant);
        }
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_each_tenant_by_turns_and_in_order() {
        let mut line = ReadyQueue::default();
        let id = |index| ConnectionId::new(index, 0);
        (0..1000).for_each(|index| line.push(1, id(index)));
        (1000..1002).for_each(|index| line.push(2, id(index)));
        line.push(0, id(2000));
        assert_eq!(line.len(), 1003);
        let order: Vec<u32> = std::iter::from_fn(|| line.pop()).map(|id| id.slot()).collect();
        assert_eq!(order[..6], [0, 1000, 2000, 1, 1001, 2]);
        assert_eq!(order[6..], (3..1000).collect::<Vec<_>>());
        assert_eq!((line.len(), line.pop()), (0, None));
        for tenant in 0..1000 {
            line.push(tenant, id(tenant));
            assert_eq!(line.pop(), Some(id(tenant)));
        }
        assert!(line.queues.len() <= RETAINED_TENANT_QUEUES && line.turns.is_empty());
        (0..100).for_each(|index| line.push(index % 3, id(index)));
        line.retain(|id| id.slot() % 3 != 1 && id.slot() < 10);
        let order: Vec<u32> = std::iter::from_fn(|| line.pop()).map(|id| id.slot()).collect();
        assert_eq!((order, line.len()), (vec![0, 2, 3, 5, 6, 8, 9], 0));
    }
}
