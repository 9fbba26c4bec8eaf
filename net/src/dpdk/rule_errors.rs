//! What a driver says of a rule; and whether it brings what no rule names.
//!
//! Guarantees: what a driver says is copied at once.
#![allow(unsafe_code)]

use super::c_strings::{c_chars_to_string, error_text};
use super::error::{DpdkErrno, FlowError, RulePart};
use sandstorm_dpdk_sys as sys;

/// Has a port that is claimed, and does not run, bring only what rules name, or all. All is what it does before this is
/// called.
pub(super) fn isolate(port: u16, on: bool) -> Result<(), FlowError> {
    let mut error = empty_flow_error();
    // SAFETY: the port is the caller's; the error is filled in.
    let failed = unsafe { sys::ss_flow_isolate(port, i32::from(on), &mut error) };
    if failed == 0 { Ok(()) } else { Err(read_flow_error(&error)) }
}

/// What the driver said of a rule.
pub(super) fn read_flow_error(said: &sys::ss_flow_error) -> FlowError {
    // The numbers of `enum rte_flow_error_type`, which only grows at its end.
    let part = match said.kind {
        2 => RulePart::Rule,
        3..=8 => RulePart::Attributes,
        9..=13 => RulePart::Pattern,
        14..=16 => RulePart::Action,
        17 => RulePart::State,
        _ => RulePart::Unspecified,
    };
    let (code, message) = (DpdkErrno(said.code), c_chars_to_string(&said.message));
    // Some say in words what the number says.
    let says_more = message != error_text(said.code);
    FlowError { part, code, message: if says_more { message } else { String::new() } }
}

/// An error to be filled in.
pub(super) fn empty_flow_error() -> sys::ss_flow_error {
    // SAFETY: all-zero is a value of the structure, which holds numbers alone.
    unsafe { std::mem::zeroed() }
}
