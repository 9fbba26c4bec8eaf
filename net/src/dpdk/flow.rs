//! Flow rules: which queue a packet comes to, decided by the device; and whether it brings what no rule names.
//!
//! Guarantees: a rule is taken back once, while its port runs.
#![allow(unsafe_code)]

use super::eal::error_text;
use super::error::{DpdkErrno, FlowError, RulePart};
use super::info::c_chars_to_string;
use super::port::{DpdkPort, OpenPort};
use sandstorm_dpdk_sys as sys;
use std::net::IpAddr;
use std::ptr::NonNull;
use std::sync::Arc;

/// Packets that a rule is for: UDP of one family to one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdpRule {
    /// IPv6 rather than IPv4.
    pub v6: bool,
    /// To this address alone, which must be of the family; none: to any.
    pub address: Option<IpAddr>,
    /// Destination port.
    pub port: u16,
    /// The queue that they come to.
    pub queue: u16,
}

impl UdpRule {
    /// UDP to `port` at any address of a family.
    pub fn any(v6: bool, port: u16, queue: u16) -> UdpRule {
        UdpRule { v6, address: None, port, queue }
    }

    /// UDP to `port` at one address.
    pub fn to(address: IpAddr, port: u16, queue: u16) -> UdpRule {
        UdpRule { v6: address.is_ipv6(), address: Some(address), port, queue }
    }

    fn plain(&self) -> sys::ss_udp_rule {
        let mut address = [0; 16];
        match self.address {
            Some(IpAddr::V4(v4)) => {
                for (to, from) in address.iter_mut().zip(v4.octets()) {
                    *to = from;
                }
            }
            Some(IpAddr::V6(v6)) => address = v6.octets(),
            None => {}
        }
        sys::ss_udp_rule {
            family: if self.address.map_or(self.v6, |address| address.is_ipv6()) { 6 } else { 4 },
            has_address: u8::from(self.address.is_some()),
            port: self.port,
            queue: self.queue,
            address,
        }
    }
}

/// A rule that a device keeps; taken back when dropped.
#[derive(Debug)]
pub struct FlowRule {
    flow: NonNull<sys::rte_flow>,
    rule: UdpRule,
    port: Arc<OpenPort>,
}

// SAFETY: a rule's handle is used once more, to take it back, from whatever thread; DPDK locks where the driver does
// not.
unsafe impl Send for FlowRule {}
// SAFETY: nothing can be done with a shared one but to look at its rule.
unsafe impl Sync for FlowRule {}

impl DpdkPort {
    /// Asks whether the device would take a rule.
    ///
    /// # Errors
    /// [`FlowError`]: what of it the driver refuses.
    pub fn validate(&self, rule: &UdpRule) -> Result<(), FlowError> {
        let mut error = empty_flow_error();
        // SAFETY: the port is open; the rule and the error live across the call, which copies.
        let failed = unsafe { sys::ss_flow_validate(self.shared().number(), &rule.plain(), &mut error) };
        if failed == 0 { Ok(()) } else { Err(read_flow_error(&error)) }
    }

    /// Has the device keep a rule.
    ///
    /// # Errors
    /// [`FlowError`]: what of it the driver refuses.
    pub fn create(&self, rule: UdpRule) -> Result<FlowRule, FlowError> {
        let mut error = empty_flow_error();
        // SAFETY: as for `validate`.
        let made = unsafe { sys::ss_flow_create(self.shared().number(), &rule.plain(), &mut error) };
        let flow = NonNull::new(made).ok_or_else(|| read_flow_error(&error))?;
        Ok(FlowRule { flow, rule, port: Arc::clone(self.shared()) })
    }
}

impl FlowRule {
    /// What it says.
    pub fn rule(&self) -> &UdpRule {
        &self.rule
    }
}

impl Drop for FlowRule {
    fn drop(&mut self) {
        let mut error = empty_flow_error();
        // SAFETY: made by this port, which is open while this holds it, and destroyed here alone. A driver that refuses
        // keeps it until the port is closed.
        unsafe { sys::ss_flow_destroy(self.port.number(), self.flow.as_ptr(), &mut error) };
    }
}

/// Has a port that is claimed, and does not run, bring only what rules name, or all. All is what it does before this is
/// called.
pub(super) fn isolate(port: u16, on: bool) -> Result<(), FlowError> {
    let mut error = empty_flow_error();
    // SAFETY: the port is the caller's; the error is filled in.
    let failed = unsafe { sys::ss_flow_isolate(port, i32::from(on), &mut error) };
    if failed == 0 { Ok(()) } else { Err(read_flow_error(&error)) }
}

/// What the driver said of a rule.
fn read_flow_error(said: &sys::ss_flow_error) -> FlowError {
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
fn empty_flow_error() -> sys::ss_flow_error {
    // SAFETY: all-zero is a value of the structure, which holds numbers alone.
    unsafe { std::mem::zeroed() }
}
