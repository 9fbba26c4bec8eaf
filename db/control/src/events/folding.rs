//! Folding: the first of a tenant's repeated events are recorded one by one, the others as a number.
//!
//! The log is bounded, so a tenant that fills it would erase the events of all others. Each kind of event of a tenant
//! has a rate of its own, so that its kills do not hide its pushes. Each tenant has a rate for all kinds, and all
//! tenants have one together. Events beyond them are counted, and one later event has their number. Operators' changes
//! are never folded.

use std::collections::BTreeMap;
use std::net::IpAddr;

use hashbrown::HashMap;
use sandstorm_net::rate_limiter::RateLimiter;

use super::code::EventCode;
use super::event::{EventActor, NewEvent};
use crate::limits::{
    EVENT_FOLD_CAUSES, EVENT_FOLD_FIRST_US, EVENT_FOLD_MOST_US, EVENT_KINDS_PER_TENANT, EVENTS_OF_ALL_TENANTS,
    EVENTS_OF_KIND, EVENTS_OF_TENANT,
};

/// What is counted together: events of one code and actor; kills, also of one extension.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct EventKind {
    code: EventCode,
    actor: EventActor,
    extension: Option<String>,
}

/// The rates of all tenants, and what is counted but not told yet.
#[derive(Debug, Default)]
pub(super) struct EventFolder {
    /// By the id of the tenant; 0: a tenant's request that is about none.
    tenants: HashMap<u32, TenantKinds>,
    /// The rate of all of them.
    all: RateLimiter,
    /// Events that this rate alone has held back so far.
    held_back: u64,
}

/// The kinds of events of one tenant.
#[derive(Debug, Default)]
struct TenantKinds {
    limiter: RateLimiter,
    kinds: HashMap<EventKind, KindRate>,
}

/// One kind of event of a tenant.
#[derive(Debug)]
struct KindRate {
    limiter: RateLimiter,
    /// How long the next events are counted before their number is told.
    span_us: u64,
    folded: Option<FoldedEvents>,
}

/// Events that are counted, and told later as one.
#[derive(Debug)]
struct FoldedEvents {
    since_us: u64,
    /// Whether it was the rate of all tenants together that refused the first one.
    is_held_by_all: bool,
    count: u64,
    /// The last one.
    last: NewEvent,
    /// Whether all are about the same extension, table or whatever it is.
    is_one_subject: bool,
    /// The address, if all came from the same.
    from: Option<IpAddr>,
    /// Of kills: how many of each version and cause.
    causes: BTreeMap<String, u64>,
}

impl EventFolder {
    /// Returns the event if it is to be told now. Otherwise it is counted.
    pub(super) fn admit(&mut self, event: NewEvent, now_us: u64) -> Option<NewEvent> {
        if !event.is_of_tenant() {
            return Some(event);
        }
        let tenant = self.tenants.entry(id_of(&event)).or_default();
        let kind = tenant.kind_of(&event);
        let rate = tenant.kinds.entry(kind).or_insert_with(|| KindRate {
            limiter: RateLimiter::default(),
            span_us: EVENT_FOLD_FIRST_US,
            folded: None,
        });
        if let Some(folded) = &mut rate.folded {
            if folded.is_held_by_all {
                self.held_back = self.held_back.saturating_add(event.count);
            }
            folded.add(event);
            return None;
        }
        let is_within_own = rate.limiter.has_some_left(&EVENTS_OF_KIND, now_us)
            && tenant.limiter.has_some_left(&EVENTS_OF_TENANT, now_us);
        // The rate of all is asked last: it counts none that another refuses.
        if is_within_own && self.all.admit(&EVENTS_OF_ALL_TENANTS, now_us) {
            rate.limiter.charge(&EVENTS_OF_KIND, now_us, 1);
            tenant.limiter.charge(&EVENTS_OF_TENANT, now_us, 1);
            return Some(event);
        }
        if is_within_own {
            self.held_back = self.held_back.saturating_add(event.count);
        }
        rate.folded = Some(FoldedEvents { is_held_by_all: is_within_own, ..FoldedEvents::of(event, now_us) });
        None
    }

    /// Takes what has been counted for long enough, as events that tell how many there were. They count as events of
    /// their tenants, and of all: one that has none left waits.
    pub(super) fn take_due(&mut self, now_us: u64) -> Vec<NewEvent> {
        let kinds =
            self.tenants.iter().flat_map(|(id, tenant)| tenant.kinds.iter().map(|(kind, rate)| (*id, kind, rate)));
        let mut due: Vec<(u64, u32, EventKind)> = kinds
            .filter_map(|(id, kind, rate)| Some((rate.due_us().filter(|due_us| *due_us <= now_us)?, id, kind.clone())))
            .collect();
        // No kind waits for ever behind the others, and no tenant.
        due.sort_by_key(|(due_us, id, _)| (*due_us, *id));
        let mut told = Vec::new();
        for (_, id, kind) in due {
            let Some(tenant) = self.tenants.get_mut(&id) else { continue };
            if !tenant.limiter.has_some_left(&EVENTS_OF_TENANT, now_us) {
                continue;
            }
            if !self.all.admit(&EVENTS_OF_ALL_TENANTS, now_us) {
                break;
            }
            tenant.limiter.charge(&EVENTS_OF_TENANT, now_us, 1);
            if let Some(rate) = tenant.kinds.get_mut(&kind) {
                rate.span_us = (2 * rate.span_us).min(EVENT_FOLD_MOST_US);
                told.extend(rate.folded.take().map(|folded| folded.told(now_us)));
            }
        }
        for tenant in self.tenants.values_mut() {
            tenant.kinds.retain(|_, rate| rate.folded.is_some() || !rate.limiter.is_at_rest(now_us));
        }
        self.tenants.retain(|_, tenant| !(tenant.kinds.is_empty() && tenant.limiter.is_at_rest(now_us)));
        told
    }

    /// Events that the rate of all tenants together has held back so far: they were told later, as a number, or will
    /// be.
    pub(super) fn held_back(&self) -> u64 {
        self.held_back
    }

    /// Takes all that was counted, of one tenant, which is forgotten, or of all: its story ends.
    pub(super) fn take_all(&mut self, tenant: Option<u32>, now_us: u64) -> Vec<NewEvent> {
        let ended: Vec<TenantKinds> = match tenant {
            Some(id) => self.tenants.remove(&id).into_iter().collect(),
            None => self.tenants.drain().map(|(_, tenant)| tenant).collect(),
        };
        let folded = ended.into_iter().flat_map(|tenant| tenant.kinds.into_values()).filter_map(|rate| rate.folded);
        folded.map(|folded| folded.told(now_us)).collect()
    }
}

fn id_of(event: &NewEvent) -> u32 {
    event.tenant.as_ref().map_or(0, |(_, id)| *id)
}

impl TenantKinds {
    fn kind_of(&self, event: &NewEvent) -> EventKind {
        let extension = event.subject.clone().filter(|_| event.code == EventCode::CallKilled);
        let kind = EventKind { code: event.code, actor: event.actor, extension };
        // A tenant that pushes under ever new names costs no more memory: the extensions beyond are counted together.
        let has_room = self.kinds.len() < EVENT_KINDS_PER_TENANT || self.kinds.contains_key(&kind);
        if has_room { kind } else { EventKind { extension: None, ..kind } }
    }
}

impl KindRate {
    fn due_us(&self) -> Option<u64> {
        self.folded.as_ref().map(|folded| folded.since_us + self.span_us)
    }
}

impl FoldedEvents {
    fn of(event: NewEvent, now_us: u64) -> FoldedEvents {
        let (from, causes) = (event.from, BTreeMap::new());
        let last = NewEvent { count: 0, ..event.clone() };
        let mut folded = FoldedEvents {
            since_us: now_us,
            is_held_by_all: false,
            count: 0,
            last,
            is_one_subject: true,
            from,
            causes,
        };
        folded.add(event);
        folded
    }

    fn add(&mut self, event: NewEvent) {
        self.count = self.count.saturating_add(event.count);
        self.is_one_subject &= event.subject == self.last.subject;
        self.from = self.from.filter(|from| Some(*from) == event.from);
        if event.code == EventCode::CallKilled {
            // What stands behind the cause is the text of the tenant's code.
            let cause = event.text.split(": ").next().unwrap_or_default();
            let is_known = self.causes.len() < EVENT_FOLD_CAUSES || self.causes.contains_key(cause);
            let cause = if is_known { cause } else { "others" };
            *self.causes.entry(cause.to_owned()).or_default() += event.count;
        }
        self.last = event;
    }

    /// The event that stands for all of them.
    fn told(self, now_us: u64) -> NewEvent {
        let FoldedEvents { since_us, count, last, is_one_subject, from, causes, .. } = self;
        let span_s = now_us.saturating_sub(since_us) / 1_000_000;
        let mut text = format!("{count} more in {span_s} s");
        if causes.is_empty() {
            let of = last.subject.as_deref().filter(|_| !is_one_subject).unwrap_or_default();
            let space = if of.is_empty() || last.text.is_empty() { "" } else { " " };
            if !of.is_empty() || !last.text.is_empty() {
                text.push_str(&format!("; the last: {of}{space}{}", last.text));
            }
        } else {
            // Without a colon: viewers are not shown what stands behind one in the text of kills.
            causes.iter().for_each(|(cause, kills)| text.push_str(&format!("; {cause} x{kills}")));
        }
        NewEvent { from, count, subject: last.subject.filter(|_| is_one_subject), text, ..last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_US: u64 = 60_000_000;
    const DAY_US: u64 = 24 * 60 * MINUTE_US;

    fn event(code: EventCode, actor: EventActor, id: u32) -> NewEvent {
        NewEvent { actor, ..NewEvent::of_server(code).about("a", id) }
    }

    fn kill(extension: &str, cause: &str, count: u64) -> NewEvent {
        let (subject, text) = (Some(extension.to_owned()), format!("v3, {cause}: a tenant's words"));
        NewEvent { subject, text, count, ..event(EventCode::CallKilled, EventActor::Server, 1) }
    }

    #[test]
    fn kinds_do_not_hide_each_other_and_operators_are_never_folded() {
        let mut folder = EventFolder::default();
        let told = |folder: &mut EventFolder, event: NewEvent| {
            (0..1_000).filter(|_| folder.admit(event.clone(), 0).is_some()).count()
        };
        assert_eq!(told(&mut folder, kill("x", "panic", 1)), 50);
        assert_eq!(told(&mut folder, kill("y", "panic", 1)), 50, "another extension");
        assert_eq!(told(&mut folder, event(EventCode::TokenCreated, EventActor::Tenant, 1)), 50, "another code");
        assert_eq!(told(&mut folder, event(EventCode::TableChanged, EventActor::Tenant, 2)), 50, "another tenant");
        assert_eq!(told(&mut folder, event(EventCode::TableChanged, EventActor::Operator, 1)), 1_000);
        assert_eq!(told(&mut folder, NewEvent::of_server(EventCode::WebhookFailing)), 1_000);
        let names: usize = (0..1_000).map(|name| told(&mut folder, kill(&name.to_string(), "panic", 1))).sum();
        assert_eq!(names, 50, "the rest of the tenant's rate, under whatever names");
        assert!(folder.tenants[&1].kinds.len() <= EVENT_KINDS_PER_TENANT + EventCode::ALL.len());
    }

    #[test]
    fn kills_are_told_with_their_causes_and_without_the_words_of_the_code() {
        let mut folder = EventFolder::default();
        let told = (0..51).filter(|_| folder.admit(kill("x", "panic", 3), 0).is_some()).count();
        assert_eq!(told, 50);
        for _ in 0..9 {
            assert!(folder.admit(kill("x", "budget", 2), 1).is_none());
        }
        assert!(folder.take_due(MINUTE_US - 1).is_empty(), "it is not time yet");
        let told = folder.take_due(MINUTE_US);
        assert_eq!(told.len(), 1);
        assert_eq!((told[0].count, told[0].subject.as_deref()), (21, Some("x")));
        assert_eq!(told[0].text, "21 more in 60 s; v3, budget x18; v3, panic x3");
        assert!(folder.take_due(DAY_US).is_empty(), "once");
        assert!(folder.tenants.is_empty(), "what has rested is not remembered");
    }

    /// A tenant that does all that it can, for a day: no event is lost from the sum, and the log gets few.
    #[test]
    fn a_tenant_at_its_limit_writes_few_events_and_none_goes_untold() {
        let (mut folder, mut happened, mut counted, mut events) = (EventFolder::default(), 0, 0, 0);
        let codes: Vec<EventCode> = EventCode::ALL.iter().copied().filter(|c| *c != EventCode::TenantDeleted).collect();
        let mut told = |found: Vec<NewEvent>| {
            events += found.len();
            counted += found.iter().map(|event| event.count).sum::<u64>();
        };
        for at_us in (0..DAY_US).step_by(60_000_000) {
            for code in &codes {
                happened += 1;
                told(folder.admit(event(*code, EventActor::Tenant, 1), at_us).into_iter().collect());
            }
            told(folder.take_due(at_us));
        }
        told(folder.take_all(None, DAY_US));
        assert_eq!(counted, happened);
        assert!(events <= 200 + 24 * 30 + codes.len(), "{events}");
    }

    /// Thousands of tenants, each within its own rate: the log gets no more than it has room for, and the sum is whole.
    #[test]
    fn all_tenants_together_have_a_rate_too_and_what_it_holds_back_is_told_as_a_number() {
        let (mut folder, mut happened, mut counted, mut events) = (EventFolder::default(), 0, 0, 0);
        let mut first = 0;
        for at_us in (0..20 * MINUTE_US).step_by(1_000_000) {
            let mut told = Vec::new();
            if at_us < 5_000_000 {
                for tenant in 1..=4_000 {
                    happened += 1;
                    told.extend(folder.admit(event(EventCode::TokenCreated, EventActor::Tenant, tenant), at_us));
                }
            }
            told.extend(folder.take_due(at_us));
            events += told.len();
            first += if at_us < 5_000_000 { told.len() } else { 0 };
            counted += told.iter().map(|event| event.count).sum::<u64>();
        }
        assert!((4_096..=4_096 + 4 * 5).contains(&first), "as many as at once may be: {first}");
        assert!(events <= 4_096 + 4 * 20 * 60, "{events}");
        assert_eq!(folder.held_back(), happened - 4_096 - 16, "those of the first five seconds that were not told");
        counted += folder.take_all(None, 20 * MINUTE_US).iter().map(|event| event.count).sum::<u64>();
        assert_eq!(counted, happened, "none is lost from the sum");
        let operator = event(EventCode::TableChanged, EventActor::Operator, 1);
        assert!(folder.admit(operator, 0).is_some(), "operators' changes are never held back");
    }
}
