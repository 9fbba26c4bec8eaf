//! Errors of flow rules, and the isolation of ports.
//!
//! Guarantees: a driver's strings are copied at once.
#![allow(unsafe_code)]

use super::c_strings::{c_chars_to_string, error_text};
use super::error::{DpdkErrno, FlowError, RulePart};
use sandstorm_dpdk_sys as sys;

/// Has a port that is claimed, and does not run, receive only packets that rules match, or all. It receives all before
/// this is called.
pub(super) fn isolate(port: u16, on: bool) -> Result<(), FlowError> {
    let mut error = empty_flow_error();
    // SAFETY: the port is the caller's; the error is filled in.
    let failed = unsafe { sys::ss_flow_isolate(port, i32::from(on), &mut error) };
    if failed == 0 { Ok(()) } else { Err(read_flow_error(&error)) }
}

/// Converts a driver's error about a rule.
pub(super) fn read_flow_error(raw: &sys::ss_flow_error) -> FlowError {
    // The numbers of `enum rte_flow_error_type`, which only grows at its end.
    let part = match raw.kind {
        2 => RulePart::Rule,
        3..=8 => RulePart::Attributes,
        9..=13 => RulePart::Pattern,
        14..=16 => RulePart::Action,
        17 => RulePart::State,
        _ => RulePart::Unspecified,
    };
    let (code, message) = (DpdkErrno(raw.code), c_chars_to_string(&raw.message));
    // Some messages only repeat the number's meaning.
    let has_detail = message != error_text(raw.code);
    FlowError { part, code, message: if has_detail { message } else { String::new() } }
}

/// Returns an error to be filled in.
pub(super) fn empty_flow_error() -> sys::ss_flow_error {
    // SAFETY: all-zero is a value of the structure, which holds numbers alone.
    unsafe { std::mem::zeroed() }
}
