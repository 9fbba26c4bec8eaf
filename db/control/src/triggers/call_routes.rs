//! The server that makes a call for a change: this one, or in a cluster the present owner of the slot of the change's
//! key. This server's log has changes from before a slot moved, and their calls read and write its keys.

use std::sync::Arc;

use super::schedule::{Schedule, last_due};
use crate::limits::TRIGGER_DUE_AGAIN_MS;
use sandstorm_net::slots::slot_of;
use sandstorm_store::slots::{SlotMap, SlotOwnership};

/// Where a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallPlace {
    /// At this server.
    Here,
    /// At another one, by its place in the map.
    Server(usize),
    /// Nowhere now: the slot is between two servers, or its former owner still makes calls for older changes.
    Later,
}

/// The server that makes the calls of a schedule on which the servers of a cluster agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallHome {
    /// This server.
    Here,
    /// Another one, and whether it has told of itself lately.
    Elsewhere { server: String, lives: bool },
    /// No server now: the slot of its name is between two servers.
    Changing,
}

impl std::fmt::Display for CallHome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CallHome::Here => f.write_str("its calls are made here"),
            CallHome::Elsewhere { server, .. } => {
                write!(f, "its calls are made at server {}", server.get(..8).unwrap_or(server))
            }
            CallHome::Changing => f.write_str("the slot of its name changes its server"),
        }
    }
}

impl CallHome {
    /// The last time that a schedule was due, for a server that does not make its calls. What was due lately may not
    /// have been called for, if the one that makes them is gone: its successor makes up for that.
    pub(crate) fn last_due(&self, schedule: &Schedule, last_due_ms: u64, now_ms: u64) -> u64 {
        match self {
            CallHome::Elsewhere { lives: true, .. } => {
                last_due(schedule, last_due_ms, now_ms.saturating_sub(TRIGGER_DUE_AGAIN_MS)).max(last_due_ms)
            }
            _ => last_due_ms,
        }
    }
}

/// The slot whose owner makes the calls of a schedule of that name.
pub(crate) fn schedule_slot(tenant: u32, name: &str) -> u16 {
    slot_of(format!("{tenant}/{name}").as_bytes())
}

/// The owner of each slot, as calls that begin see it.
#[derive(Clone, Default)]
pub(crate) struct CallRoutes {
    /// In a cluster; and [`SlotOwnership::changes`] before the map was looked at.
    cluster: Option<(Arc<SlotOwnership>, u64, Arc<SlotMap>)>,
    /// The server whose place this one takes: its slots are this one's soon.
    inherited_from: Option<String>,
}

impl CallRoutes {
    /// As it is now; without a cluster all calls are made here.
    pub(crate) fn now(slots: Option<&Arc<SlotOwnership>>) -> CallRoutes {
        // Before the map: it ends with the map that shows it.
        let inherited_from = slots.and_then(|slots| slots.inherited_from());
        CallRoutes { cluster: slots.map(|slots| (Arc::clone(slots), slots.changes(), slots.map())), inherited_from }
    }

    /// Where a call is made for a key of that slot; `None`: for no key.
    pub(crate) fn place(&self, slot: Option<u16>) -> CallPlace {
        let (Some((own, _, map)), Some(slot)) = (&self.cluster, slot) else { return CallPlace::Here };
        if own.owns_slot(slot) {
            return if own.is_called_elsewhere(slot) { CallPlace::Later } else { CallPlace::Here };
        }
        let owner = own.other_owner(map, slot);
        let owner = owner.filter(|owner| self.inherited_from.as_ref() != Some(&owner.id));
        let place = owner.and_then(|owner| map.servers.iter().position(|server| server.id == owner.id));
        place.map_or(CallPlace::Later, CallPlace::Server)
    }

    /// The server that makes the calls of a schedule of that name: the owner of the name's slot.
    pub(crate) fn home(&self, tenant: u32, name: &str) -> CallHome {
        let place = self.place(Some(schedule_slot(tenant, name)));
        match (place, &self.cluster) {
            (CallPlace::Server(at), Some((_, _, map))) => map.servers.get(at).map_or(CallHome::Changing, |server| {
                CallHome::Elsewhere { server: server.id.clone(), lives: server.is_alive }
            }),
            (CallPlace::Here, _) => CallHome::Here,
            _ => CallHome::Changing,
        }
    }

    /// The id of the server at a place.
    pub(crate) fn server_id(&self, place: usize) -> Option<&str> {
        self.cluster.as_ref().and_then(|(_, _, map)| map.servers.get(place)).map(|server| server.id.as_str())
    }

    /// Whether this server owned all of some slots from the time of these routes up to now. What a call fails with says
    /// nothing else.
    pub(crate) fn stayed(&self, slots: &[u16]) -> bool {
        self.cluster.as_ref().is_none_or(|(own, changes, _)| {
            slots.iter().all(|slot| own.owns_slot(*slot)) && (slots.is_empty() || own.changes() == *changes)
        })
    }
}

#[cfg(test)]
mod tests {
    use sandstorm_store::slots::{ClusterServer, SlotRange, SlotSpan};

    use super::*;

    fn cluster() -> Arc<SlotOwnership> {
        let own = SlotOwnership::new("a".to_owned());
        let servers = vec![ClusterServer::example("a"), ClusterServer::example("b")];
        let ranges =
            [SlotRange { first: 0, last: 99, server: Some(0) }, SlotRange { first: 100, last: 199, server: Some(1) }];
        own.set_map(SlotMap::new(1, servers, &ranges));
        own.set_owned(|slot| slot < 100);
        Arc::new(own)
    }

    #[test]
    fn a_call_is_made_where_its_key_is_and_nowhere_while_that_changes() {
        assert_eq!(CallRoutes::default().place(Some(7)), CallPlace::Here, "without a cluster");
        let own = cluster();
        let place = |slot| CallRoutes::now(Some(&own)).place(Some(slot));
        assert_eq!([place(7), place(107), place(207)], [CallPlace::Here, CallPlace::Server(1), CallPlace::Later]);
        assert_eq!(CallRoutes::now(Some(&own)).place(None), CallPlace::Here, "a schedule");
        assert_eq!(CallRoutes::now(Some(&own)).server_id(1), Some("b"));
        own.set_called_elsewhere(Some(SlotSpan { first: 5, last: 9 }));
        assert_eq!([place(7), place(10)], [CallPlace::Later, CallPlace::Here]);
        own.disown(SlotSpan { first: 10, last: 19 });
        assert_eq!(place(10), CallPlace::Later, "it is being handed over");
        // The other server is about to hand it over to this one.
        own.set_awaited(Some(SlotSpan { first: 100, last: 110 }));
        assert_eq!([place(107), place(111)], [CallPlace::Later, CallPlace::Server(1)]);
        own.set_awaited(None);
        own.set_inherited_from(Some("b"));
        assert_eq!(place(107), CallPlace::Later, "this server takes the other one's place");
        own.set_inherited_from(Some("c"));
        assert_eq!(place(107), CallPlace::Server(1));
    }

    #[test]
    fn a_slot_that_has_left_and_come_back_has_not_stayed() {
        let own = cluster();
        let routes = CallRoutes::now(Some(&own));
        assert!(routes.stayed(&[7, 8]) && !routes.stayed(&[7, 100]) && CallRoutes::default().stayed(&[100]));
        own.disown(SlotSpan { first: 7, last: 7 });
        assert!(!routes.stayed(&[7]));
        own.set_owned(|slot| slot < 100);
        assert!(!routes.stayed(&[7]) && routes.stayed(&[]), "what is of no key has no slot");
        assert!(CallRoutes::now(Some(&own)).stayed(&[7]));
    }
}
