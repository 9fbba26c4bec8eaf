//! A checker of what clients saw of single keys: whether one copy of the key, on which each request acts at one moment
//! between its question and its answer, would have shown all of that. After a crash the copy has what it had; a request
//! without an answer has acted before the crash or never.
//!
//! It walks through the events of a key with all states that the copy may have, and for each the unanswered requests
//! that have acted already. An answer leaves those in which its request has acted. None left: nothing explains it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;

/// The value of a key: written values are told apart by their numbers. `None`: there is no record.
pub type KeyValue = Option<u64>;

/// A request for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRequest {
    Put(u64),
    /// Writes the second if the key has the first.
    PutIf(KeyValue, u64),
    Delete,
    /// Adds one; an absent key counts from zero.
    Increment,
    Get,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAnswer {
    /// To a put: it was done.
    Done,
    /// To a conditional put: whether it was done; to a delete: whether there was a record.
    Said(bool),
    /// To an increment: what the key has behind it.
    Sum(u64),
    /// To a get.
    Found(KeyValue),
    /// To any: that it was not run, and will not be.
    NotRun,
}

/// What happened, in its order: a request counts from before it is sent, an answer from after it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryEvent {
    /// A request with its number, which no other has.
    Asked(u64, KeyRequest),
    Answered(u64, KeyAnswer),
    Crashed,
}

/// Requests of a key that may be without an answer at once.
const MOST_OPEN: usize = 64;

/// A request without an answer so far: its number, and the answer that it will get.
type OpenRequest = (u64, KeyRequest, Option<KeyAnswer>);

/// The requests without an answer, by their places in a mask.
type OpenRequests = Vec<Option<OpenRequest>>;

/// A state that the copy may have, and a mask of the open requests that have acted.
type PossibleState = (KeyValue, u64);

/// The state after a request that is answered like this; `None` if that is impossible. Without an answer any is right.
fn act(state: KeyValue, request: KeyRequest, answer: Option<KeyAnswer>) -> Option<KeyValue> {
    if answer == Some(KeyAnswer::NotRun) {
        return None;
    }
    let (next, says) = match request {
        KeyRequest::Put(value) => (Some(value), KeyAnswer::Done),
        KeyRequest::PutIf(expected, value) if state == expected => (Some(value), KeyAnswer::Said(true)),
        KeyRequest::PutIf(..) => (state, KeyAnswer::Said(false)),
        KeyRequest::Delete => (None, KeyAnswer::Said(state.is_some())),
        KeyRequest::Increment => {
            let sum = state.unwrap_or(0) + 1;
            (Some(sum), KeyAnswer::Sum(sum))
        }
        KeyRequest::Get => (state, KeyAnswer::Found(state)),
    };
    answer.is_none_or(|answer| answer == says).then_some(next)
}

/// All states that are reached when any open requests act, in any order.
fn reachable(from: &BTreeSet<PossibleState>, open: &OpenRequests) -> BTreeSet<PossibleState> {
    let (mut all, mut new) = (from.clone(), from.iter().copied().collect::<Vec<_>>());
    while let Some((state, acted)) = new.pop() {
        for (place, request) in open.iter().enumerate() {
            let Some((_, request, answer)) = request.filter(|_| acted & (1 << place) == 0) else { continue };
            let next = act(state, request, answer).map(|next| (next, acted | 1 << place));
            new.extend(next.filter(|next| all.insert(*next)));
        }
    }
    all
}

/// Checks the events of a key that was absent at first.
///
/// # Errors
/// The number of the first event that nothing explains, and a text.
pub fn check_key(events: &[HistoryEvent]) -> Result<(), (usize, String)> {
    let answers: HashMap<u64, KeyAnswer> = (events.iter())
        .filter_map(
            |event| if let HistoryEvent::Answered(number, answer) = event { Some((*number, *answer)) } else { None },
        )
        .collect();
    let mut open: OpenRequests = vec![None; MOST_OPEN];
    let mut states = BTreeSet::from([(None, 0)]);
    for (at, event) in events.iter().enumerate() {
        match event {
            // It has changed nothing, and nothing is known of what it saw.
            HistoryEvent::Asked(number, KeyRequest::Get) if !answers.contains_key(number) => {}
            HistoryEvent::Asked(number, request) => {
                let place = open.iter_mut().find(|place| place.is_none()).expect("fewer requests are open");
                *place = Some((*number, *request, answers.get(number).copied()));
            }
            HistoryEvent::Answered(number, answer) => {
                let is_own = |place: &Option<OpenRequest>| place.is_some_and(|(own, ..)| own == *number);
                let place = open.iter().position(is_own).expect("it was asked before");
                let before = states.iter().map(|(state, _)| *state).collect::<BTreeSet<_>>();
                let (bit, has_acted) = (1_u64 << place, *answer != KeyAnswer::NotRun);
                states = reachable(&states, &open)
                    .into_iter()
                    .filter(|(_, acted)| (acted & bit != 0) == has_acted)
                    .collect();
                states = states.into_iter().map(|(state, acted)| (state, acted & !bit)).collect();
                if states.is_empty() {
                    let request = open[place].map(|(_, request, _)| request);
                    return Err((
                        at,
                        format!("{request:?} is answered {answer:?}; before, the key had one of {before:?}"),
                    ));
                }
                open[place] = None;
            }
            HistoryEvent::Crashed => {
                // What has not acted never will.
                states = reachable(&states, &open).into_iter().map(|(state, _)| (state, 0)).collect();
                open.fill(None);
            }
        }
    }
    Ok(())
}

/// Histories of keys while they grow; many threads share one.
#[derive(Default)]
pub struct KeyHistories(Mutex<(u64, BTreeMap<String, Vec<HistoryEvent>>)>);

impl KeyHistories {
    /// Notes a request, before it is sent. Returns its number.
    pub fn ask(&self, key: &str, request: KeyRequest) -> u64 {
        let mut all = self.0.lock().unwrap();
        all.0 += 1;
        let number = all.0;
        all.1.entry(key.to_owned()).or_default().push(HistoryEvent::Asked(number, request));
        number
    }

    /// Notes an answer, after it has come.
    pub fn answer(&self, key: &str, number: u64, answer: KeyAnswer) {
        self.0.lock().unwrap().1.entry(key.to_owned()).or_default().push(HistoryEvent::Answered(number, answer));
    }

    /// Notes that the server is gone, and has answered all that it ever will.
    pub fn crash(&self) {
        self.0.lock().unwrap().1.values_mut().for_each(|events| events.push(HistoryEvent::Crashed));
    }

    /// Checks all keys; panics with the events before the one that nothing explains. Returns the number of answers.
    pub fn check(&self) -> usize {
        let all = self.0.lock().unwrap();
        for (key, events) in &all.1 {
            if let Err((at, text)) = check_key(events) {
                let last = &events[at.saturating_sub(40)..=at];
                panic!("{key}: {text}\n{}", last.iter().map(|event| format!("{event:?}\n")).collect::<String>());
            }
        }
        let is_answer = |event: &&HistoryEvent| matches!(event, HistoryEvent::Answered(..));
        all.1.values().flatten().filter(is_answer).count()
    }
}
