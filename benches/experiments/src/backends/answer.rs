//! The echo process: sends back every datagram that it receives, over any driver.

use std::sync::atomic::AtomicBool;

use clap::Parser;
use sandstorm_control::config::{DriverName, NetSettings};
use sandstorm_net::driver::{AnyDriver, DatagramDriver, UdpDriver};
use sandstorm_net::stack::open_interface;
use serde_json::json;

use super::super::{bench_server, echo};
use crate::device_args::DeviceArgs;
use sandstorm_terminal::output::CliError;

/// The UDP port of an echo that does not use the kernel's network stack.
const ECHO_PORT: u16 = 7400;

/// The driver options, as the server has them.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct EchoArgs {
    #[arg(long)]
    driver: Option<DriverName>,
    #[arg(long)]
    no_offload: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

/// The device that must stay open while the driver is used.
#[cfg(feature = "dpdk")]
type DeviceGuard = Option<sandstorm_net::dpdk::DpdkDevice>;
/// Without DPDK no device must stay open.
#[cfg(not(feature = "dpdk"))]
type DeviceGuard = Option<()>;

fn open_driver(settings: &NetSettings) -> Result<(AnyDriver, DeviceGuard), CliError> {
    let failed = |error: &dyn std::fmt::Display| CliError::new(error.to_string());
    match settings.driver {
        DriverName::Udp => {
            let driver = UdpDriver::bind(([127, 0, 0, 1], 0).into(), settings.udp_options());
            Ok((driver.map_err(|error| failed(&error))?.into(), None))
        }
        DriverName::Packet => {
            let opened = open_interface(&settings.interface_options(ECHO_PORT, 1)).map_err(|error| failed(&error))?;
            let driver = opened.1.into_iter().next().ok_or_else(|| failed(&"no packet socket was opened"))?;
            Ok((AnyDriver::other(driver), None))
        }
        #[cfg(feature = "dpdk")]
        DriverName::Dpdk => {
            let opened = sandstorm_net::dpdk::DpdkDevice::open(&settings.device_options(ECHO_PORT, 1));
            let (device, drivers) = opened.map_err(|error| failed(&error))?;
            let driver = drivers.into_iter().next().ok_or_else(|| failed(&"the device gave no queue"))?;
            Ok((AnyDriver::other(driver), Some(device)))
        }
        #[cfg(not(feature = "dpdk"))]
        DriverName::Dpdk => Err(failed(&sandstorm_control::config::WITHOUT_DPDK)),
    }
}

/// Sends back every datagram until the process is ended.
pub(crate) fn answer(words: &[String]) -> Result<(), CliError> {
    let args = EchoArgs::try_parse_from(words).map_err(|error| CliError::new(error.to_string()))?;
    let over = args.device.overrides(args.driver, args.no_offload.then_some(false));
    let settings = NetSettings::of(&over).map_err(|error| CliError::new(error.to_string()))?;
    bench_server::bind_to_first();
    let (mut driver, _kept) = open_driver(&settings)?;
    println!("{}", json!({ "data": driver.local().to_string() }));
    echo::answer(&mut driver, &AtomicBool::new(false));
    Ok(())
}
