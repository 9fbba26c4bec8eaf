//! One event, and the filter by which events are read.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::code::EventCode;
use crate::json_lines::shortened;
use crate::limits::EVENT_TEXT_BYTES;

/// One event, as it is kept and answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerEvent {
    /// Its number: grows from event to event, over restarts too.
    pub id: u64,
    /// Its time, in milliseconds since 1970.
    pub at_ms: u64,
    /// What happened.
    pub code: EventCode,
    /// The actor: `operator`, `tenant` (the one below) or `server`.
    pub actor: EventActor,
    /// The address that it was asked from.
    pub from: Option<IpAddr>,
    /// The tenant that it is about.
    pub tenant: Option<String>,
    /// That tenant's id.
    pub tenant_id: Option<u32>,
    /// The extension, table, grant or pattern that it is about.
    pub subject: Option<String>,
    /// How often it happened.
    pub count: u64,
    /// Details, for people.
    pub text: String,
}

/// The actor of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventActor {
    /// The operator, by its token.
    Operator,
    /// The tenant that the event is about, by its token.
    Tenant,
    /// The server itself.
    Server,
}

/// An event that is to be recorded.
#[derive(Clone, Debug)]
pub struct NewEvent {
    /// What happened.
    pub code: EventCode,
    /// The actor.
    pub actor: EventActor,
    /// The address that it was asked from.
    pub from: Option<IpAddr>,
    /// The tenant that it is about: name and id.
    pub tenant: Option<(String, u32)>,
    /// The extension, table, grant or pattern that it is about.
    pub subject: Option<String>,
    /// How often it happened.
    pub count: u64,
    /// Details, for people; cut to [`EVENT_TEXT_BYTES`].
    pub text: String,
}

impl NewEvent {
    /// An event of the server's own.
    pub fn of_server(code: EventCode) -> NewEvent {
        let (actor, text) = (EventActor::Server, String::new());
        NewEvent { code, actor, from: None, tenant: None, subject: None, count: 1, text }
    }

    /// The same about a tenant.
    pub fn about(self, name: &str, id: u32) -> NewEvent {
        NewEvent { tenant: Some((name.to_owned(), id)), ..self }
    }

    /// Whether a tenant can cause events of this kind as often as it likes.
    pub(super) fn is_of_tenant(&self) -> bool {
        match self.actor {
            EventActor::Operator => false,
            EventActor::Tenant => true,
            EventActor::Server => self.tenant.is_some(),
        }
    }

    /// The event with its number and time.
    pub(super) fn recorded(self, id: u64, at_ms: u64) -> ServerEvent {
        let NewEvent { code, actor, from, tenant, subject, count, text } = self;
        let (tenant, tenant_id) = tenant.unzip();
        let short = |text: String| shortened(text, EVENT_TEXT_BYTES);
        let (subject, text) = (subject.map(short), short(text));
        ServerEvent { id, at_ms, code, actor, from, tenant, tenant_id, subject, count, text }
    }
}

/// Which events are read.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// Those after this number; `None`: the newest.
    pub after: Option<u64>,
    /// Those from this time on, in milliseconds since 1970.
    pub since_ms: u64,
    /// Those about a tenant of this name.
    pub tenant: Option<String>,
    /// Events that this tenant may see: its own name and id.
    pub visible_to: Option<(String, u32)>,
    /// Without what panics of tenants' code said.
    pub withholds_texts: bool,
    /// Those of this code, or of all codes that begin with it and a dot.
    pub code: Option<String>,
}

impl EventFilter {
    /// Whether an event is asked for.
    pub(super) fn takes(&self, event: &ServerEvent) -> bool {
        let code = event.code.name();
        let has_code = |wanted: &String| {
            code == wanted || code.strip_prefix(wanted.as_str()).is_some_and(|rest| rest.starts_with('.'))
        };
        event.at_ms >= self.since_ms
            && self.tenant.as_ref().is_none_or(|name| event.tenant.as_ref() == Some(name))
            && self.is_visible(event)
            && self.code.as_ref().is_none_or(has_code)
    }

    /// Whether the reader may see an event.
    pub(super) fn is_visible(&self, event: &ServerEvent) -> bool {
        self.visible_to
            .as_ref()
            .is_none_or(|(name, id)| (event.tenant.as_ref(), event.tenant_id.as_ref()) == (Some(name), Some(id)))
    }

    /// The event as the reader may see it: a tenant is not told where the operator sits.
    pub(super) fn shown(&self, event: &ServerEvent) -> ServerEvent {
        let hides = self.visible_to.is_some() && event.actor != EventActor::Tenant;
        let mut shown = ServerEvent { from: event.from.filter(|_| !hides), ..event.clone() };
        if self.withholds_texts && event.code == EventCode::CallKilled {
            // What stands behind the cause is the text of the tenant's code, which may tell of its records.
            shown.text.truncate(event.text.find(": ").unwrap_or(event.text.len()));
        }
        shown
    }
}
