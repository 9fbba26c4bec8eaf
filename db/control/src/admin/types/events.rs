//! The JSON bodies about events.

use serde::Serialize;

use crate::events::{EventPage, ServerEvent};

/// `GET /v1/events`.
#[derive(Clone, Debug, Serialize)]
pub struct EventsResponse {
    /// The events, the oldest first.
    pub events: Vec<ServerEvent>,
    /// The position to continue from: `after` of the next request.
    pub next: u64,
    /// Whether events behind the position `after` may be kept no more.
    pub missed: bool,
}

impl From<EventPage> for EventsResponse {
    fn from(page: EventPage) -> EventsResponse {
        let EventPage { events, next, missed } = page;
        EventsResponse { events, next, missed }
    }
}
