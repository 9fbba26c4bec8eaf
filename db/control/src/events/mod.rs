//! Events: which actor did what, from where, and what the server did by itself. `docs/operations.md` lists the codes; a
//! test compares.

mod code;
mod collector;
mod event;
mod folding;
mod log;
mod webhooks;

pub use code::EventCode;
pub(crate) use collector::EventCollector;
pub use event::{EventActor, EventFilter, NewEvent, ServerEvent};
pub use log::{EventLog, EventPage};
pub(crate) use webhooks::WebhookSenders;
