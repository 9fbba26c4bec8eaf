//! The kernel's addresses on a device that it shares with the server.

use super::device_error::DeviceError;
use super::info::PortDescription;
use crate::stack::{InterfaceNetwork, kernel_addresses};
use std::fs;
use std::net::IpAddr;

/// Returns the kernel's interface that has an address, and its Ethernet address as text, in small letters.
fn interface_of_address(address: IpAddr) -> Option<(String, String)> {
    let (_, label) = kernel_addresses().into_iter().find(|(ip, _)| *ip == address)?;
    // An address may have a label behind its interface's name.
    let name = label.split(':').next().unwrap_or_default().to_owned();
    let mac = fs::read_to_string(format!("/sys/class/net/{name}/address")).unwrap_or_default();
    Some((name, mac.trim().to_lowercase()))
}

/// Checks that the kernel's interface of this device has these addresses.
///
/// # Errors
/// An address that the interface lacks, or that another has: no host would answer a question for it there.
pub(super) fn check_kernel_addresses(info: &PortDescription, networks: &[InterfaceNetwork]) -> Result<(), DeviceError> {
    for InterfaceNetwork { address, prefix, .. } in networks {
        let Some((interface, mac)) = interface_of_address(*address) else {
            return Err(DeviceError::NotKernelAddress(*address, *prefix));
        };
        if mac != info.mac.to_string().to_lowercase() {
            return Err(DeviceError::OtherInterface { address: *address, interface, device: info.name.clone() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::MacAddress;
    use std::net::UdpSocket;

    fn device(mac: MacAddress) -> PortDescription {
        PortDescription { name: "0000:3b:00.0".to_owned(), mac, supports_isolation: true, ..PortDescription::plain() }
    }

    fn at(mac: MacAddress, address: IpAddr) -> Result<(), DeviceError> {
        check_kernel_addresses(&device(mac), &[InterfaceNetwork { address, prefix: 24, gateway: None }])
    }

    #[test]
    fn the_kernel_has_to_have_the_address_and_on_the_devices_own_interface() {
        let refused = at(MacAddress::ZERO, [192, 0, 2, 7].into()).unwrap_err();
        assert!(refused.to_string().contains("ip addr add 192.0.2.7/24 dev"), "{refused}");
        // An address that the kernel has, found without a packet: the one that it would send from.
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        if socket.connect("192.0.2.1:9").is_err() {
            eprintln!("skipped: an address of the kernel's: this machine has no route");
            return;
        }
        let address = socket.local_addr().unwrap().ip();
        let (name, mac) = interface_of_address(address).expect("the kernel has it");
        let bytes: Vec<u8> = mac.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        at(MacAddress(bytes.try_into().expect("an Ethernet address")), address).unwrap();
        let elsewhere = at(MacAddress([2, 0, 0, 0, 0, 99]), address).unwrap_err();
        assert!(elsewhere.to_string().contains(&format!("on {name}")), "{elsewhere}");
    }
}
