//! What is noted of a call that the server ends: where its code was, and, if its author asked for that, its arguments.
//!
//! Guarantees: the stack that is walked is the engine's current one, or one that the invocation holds alone.
#![allow(unsafe_code)]

use sandstorm_accounts::CodePlace;
use sandstorm_extension::{KillCause, kill_text};
use sandstorm_sandbox::code_map::CodeMap;
use sandstorm_store::AccessedKey;

use super::guest_registers::GuestRegisters;
use super::guest_runner::{GuestExit, GuestRunner};
use super::guest_walk::OpenStack;
use super::invocation::{InvocationHandle, InvocationState};
use crate::limits::{ERROR_TEXT_BYTES, KILL_PLACES, KILL_PLACES_IN_TEXT, KILL_PLACES_TEXT_BYTES};

/// Notes where the code of a run was that has just ended on the current stack, and with it the invocation.
#[cold]
pub(super) fn note_killed(side: &GuestRunner, body: &mut InvocationState, cause: KillCause, exit: GuestExit) {
    let is_native = body.guest_memory.is_none();
    // SAFETY: the run is over, so this thread is in host state, and the stack is used by nothing else until the next.
    let stack = unsafe { side.open_stack() };
    let at = match exit {
        GuestExit::Trapped(_) => side.take_trapped(),
        GuestExit::Preempted(context) => stack.registers_of(context, is_native),
        // It ended between two of its steps.
        GuestExit::Returned(_) => None,
    };
    note_places(body, cause, at.map(|at| places_of(body, stack, at)));
}

/// Notes where the code of an invocation is that is switched out and will not be resumed.
#[cold]
pub(super) fn note_parked(body: &mut InvocationState, cause: KillCause) {
    if body.parked.is_some() {
        let places = parked_places(body);
        note_places(body, cause, Some(places));
    }
}

/// Where the code of an invocation is that is switched out; none: that is not known.
#[cold]
pub(super) fn parked_places(body: &InvocationState) -> Vec<CodePlace> {
    let is_native = body.guest_memory.is_none();
    let Some(parked) = &body.parked else { return Vec::new() };
    let stack = OpenStack::of_stack(&parked.stack);
    stack.registers_of(parked.context, is_native).map_or_else(Vec::new, |at| places_of(body, stack, at))
}

/// The places that are under way on a stack.
fn places_of(body: &InvocationState, stack: OpenStack<'_>, at: GuestRegisters) -> Vec<CodePlace> {
    let mut places = Vec::new();
    let Some(held) = &body.refs else { return places };
    let code = held.extension.library.code();
    if code.map().is_some() {
        stack.walk(code, at, |offset| {
            if places.len() < KILL_PLACES {
                places.extend(code.places_at(offset));
            }
        });
        places.truncate(KILL_PLACES);
    }
    places
}

/// Keeps the places, and adds them to the text.
fn note_places(body: &mut InvocationState, cause: KillCause, places: Option<Vec<CodePlace>>) {
    let Some(places) = places else { return };
    let text = String::from_utf8_lossy(&body.text);
    let text = text_with_places(if text.is_empty() { kill_text(cause) } else { &text }, &places);
    if let Some(text) = text {
        body.set_text(text.as_bytes());
    }
    body.notes.places = places;
}

/// The text for the caller: why it was ended, and where its code was.
fn text_with_places(text: &str, places: &[CodePlace]) -> Option<String> {
    let mut at = String::new();
    for place in named_places(places) {
        let link = if at.is_empty() { " (at " } else { ", in " };
        let next = format!("{link}{place}");
        if at.len() + next.len() >= KILL_PLACES_TEXT_BYTES {
            break;
        }
        at += &next;
    }
    (!at.is_empty() && text.len() + at.len() < ERROR_TEXT_BYTES).then(|| format!("{text}{at})"))
}

/// The places that the caller's text names: from the innermost one in the extension's own files on.
fn named_places(places: &[CodePlace]) -> &[CodePlace] {
    let own = places.iter().position(|place| place.file.starts_with("src/")).unwrap_or(0);
    &places[own..places.len().min(own + KILL_PLACES_IN_TEXT)]
}

impl InvocationState {
    /// Notes a key of a watched table, if it is the first one.
    #[cold]
    pub(super) fn note_watched(&mut self, table: u64, hash: u64, key: &[u8]) {
        if self.notes.watched.is_none() {
            self.notes.watched = Some((table, AccessedKey::new(hash, key)));
        }
    }
}

impl InvocationHandle {
    /// Counts its CPU time for the key that it read first of a watched table.
    #[inline]
    pub fn count_for_watched_key(&self) {
        let body = self.body();
        let Some((watched, held)) = body.notes.watched.as_ref().zip(body.refs.as_ref()) else { return };
        if let Some(entry) = held.view.tables.get(&watched.0) {
            entry.table.note_call(&watched.1, body.spent_ns);
        }
    }

    /// Where the code of a call was that the server has ended, the innermost function first; none: not known.
    pub fn places(&self) -> &[CodePlace] {
        &self.body().notes.places
    }

    /// The first bytes of its arguments, if the extension's author wants them kept.
    pub fn kept_arguments(&self) -> Vec<u8> {
        let body = self.body();
        if body.abi.args.is_null() && body.guest_memory.is_none() {
            return Vec::new();
        }
        let map = body.refs.as_ref().and_then(|held| held.extension.library.code().map());
        let most = map.map_or(0, CodeMap::kept_arguments).min(body.abi.args_len);
        let Some(memory) = &body.guest_memory else {
            // SAFETY: native code's arguments lie in its arena, which is mapped until the body is dropped; no code of
            // the invocation runs any more.
            return unsafe { std::slice::from_raw_parts(body.abi.args, most) }.to_vec();
        };
        let words = (0..most as u32).step_by(4).map_while(|at| memory.read::<u32>(body.guest.args + at).ok());
        let mut bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        bytes.truncate(most);
        bytes
    }
}
