//! Flow rules: the device decides which queue a packet comes to.
//!
//! Guarantees: a rule is destroyed once, while its port runs.
#![allow(unsafe_code)]

use super::error::FlowError;
use super::open_port::OpenPort;
use super::port::DpdkPort;
use super::rule_errors::{empty_flow_error, read_flow_error};
use sandstorm_dpdk_sys as sys;
use std::net::IpAddr;
use std::ptr::NonNull;
use std::sync::Arc;

/// The packets that a rule matches: UDP of one family to one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdpRule {
    /// IPv6 rather than IPv4.
    pub v6: bool,
    /// The destination address, which must be of the family; none: any.
    pub address: Option<IpAddr>,
    /// Destination port.
    pub port: u16,
    /// The queue that matching packets come to.
    pub queue: u16,
}

impl UdpRule {
    /// Matches UDP to `port` at any address of a family.
    pub fn any(v6: bool, port: u16, queue: u16) -> UdpRule {
        UdpRule { v6, address: None, port, queue }
    }

    /// Matches UDP to `port` at one address.
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

/// A rule that a device keeps; destroyed when dropped.
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
    /// Asks whether the device would accept a rule.
    ///
    /// # Errors
    /// [`FlowError`]: the part that the driver refuses.
    pub fn validate(&self, rule: &UdpRule) -> Result<(), FlowError> {
        let mut error = empty_flow_error();
        // SAFETY: the port is open; the rule and the error live across the call, which copies.
        let failed = unsafe { sys::ss_flow_validate(self.shared().number(), &rule.plain(), &mut error) };
        if failed == 0 { Ok(()) } else { Err(read_flow_error(&error)) }
    }

    /// Has the device keep a rule.
    ///
    /// # Errors
    /// [`FlowError`]: the part that the driver refuses.
    pub fn create(&self, rule: UdpRule) -> Result<FlowRule, FlowError> {
        let mut error = empty_flow_error();
        // SAFETY: as for `validate`.
        let made = unsafe { sys::ss_flow_create(self.shared().number(), &rule.plain(), &mut error) };
        let flow = NonNull::new(made).ok_or_else(|| read_flow_error(&error))?;
        Ok(FlowRule { flow, rule, port: Arc::clone(self.shared()) })
    }
}

impl FlowRule {
    /// Returns the rule.
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
