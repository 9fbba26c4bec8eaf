//! What callers want of the map of slots, and how they are answered.

use std::sync::mpsc::SyncSender;
use std::time::Instant;

use sandstorm_store::slots::SlotSpan;

use crate::slot_moves::WantedMove;
use crate::slot_plans::{PlannedMove, ServerChange};
use crate::state::StoredSlots;

/// What a caller wants of the map.
#[derive(Clone, Debug)]
pub(crate) enum MapRequest {
    Begin(WantedMove),
    Cancel(Vec<SlotSpan>),
    Server(String, ServerChange),
    /// The moves of a plan, with the MiB that each may copy in a second.
    Planned(Vec<PlannedMove>, u64),
    /// Another server takes the place of one: that server, or any that can.
    FailOver(String, Option<String>),
}

/// A change of the map that a caller wants, and the channel to that caller.
pub(crate) struct WaitingRequest {
    pub(crate) wanted: MapRequest,
    pub(crate) sender: SyncSender<MapAnswer>,
    pub(crate) asked: Instant,
}

/// The answer: how many moves were begun or cancelled, or why none was.
pub(crate) type MapAnswer = Result<usize, String>;

/// A change of the map that is to be made now, and the caller that waits for it.
pub(crate) struct MapChange {
    pub(crate) map: StoredSlots,
    /// The server that belongs to the cluster no more.
    pub(crate) removed_server: Option<String>,
    pub(crate) answer: Option<(SyncSender<MapAnswer>, usize)>,
}

impl MapChange {
    /// Tells the waiting caller what became of it.
    pub(crate) fn answer(self, made: Result<bool, String>) {
        let Some((sender, count)) = self.answer else { return };
        let answer = match made {
            Ok(true) => Ok(count),
            Ok(false) => Err(FASTER.to_owned()),
            Err(why) => Err(format!("{why}; `sandstorm cluster status` shows whether it was made, once etcd answers")),
        };
        // The caller has given up waiting.
        let _gone = sender.try_send(answer);
    }
}

/// The answer to a change that another one has overtaken: it is made anew, of the newer map.
pub(crate) const FASTER: &str = "other changes of the map of slots were faster, again and again: try later";
