//! `sandstorm bench zero-copy`: measures the server's cost of a get, and of a put, by the size of the value. The driver
//! hands over pointers.

#[cfg(not(feature = "dpdk"))]
use super::super::BenchArgs;
#[cfg(not(feature = "dpdk"))]
use super::super::report::ExperimentFindings;
#[cfg(not(feature = "dpdk"))]
use sandstorm_terminal::output::CliError;

#[cfg(feature = "dpdk")]
pub(crate) use rings::zero_copy;

/// Not available without DPDK.
#[cfg(not(feature = "dpdk"))]
pub(crate) fn zero_copy(_args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    Err(CliError::new(sandstorm_control::config::WITHOUT_DPDK))
}

#[cfg(feature = "dpdk")]
mod rings {
    use sandstorm_client::control::TableMode;
    use sandstorm_client::load::{Class, Data, Mix, Pace, TenantLoad, fill};
    use sandstorm_client::{Config, Sealing};
    use sandstorm_control::config::{DriverName, NetOverrides, NetSettings};
    use sandstorm_net::dpdk::RingPair;

    use super::super::super::measure::{THOUSAND_PER_S, measure_interleaved, run_single_class};
    use super::super::super::report::{ExperimentFindings, RatioResult, RatioTarget, ReportTable, RoundSpread};
    use super::super::super::{BenchArgs, bench_server};
    use super::super::LARGE_TO_SMALL;
    use crate::device_args;
    use crate::local_server::{LocalServer, LocalTenant};
    use sandstorm_terminal::output::CliError;

    /// Value sizes that are compared, bytes; the target is about the first one and the one of 8 KiB.
    const SIZES: [usize; 7] = [64, 1024, 2048, 4096, LARGE, 16_384, 65_536];
    const LARGE: usize = 8192;
    /// Records of each size. They fit the caches, so that the comparison is between data paths and not between cache
    /// lines.
    const RECORDS: u64 = 512;
    /// Messages in flight.
    const DEPTH: usize = 64;
    /// Seconds of one measurement, and rounds.
    const SECONDS: f64 = 0.4;
    const ROUNDS: usize = 5;
    /// One DPDK drives all ends.
    const EAL: &str = "--no-huge --no-pci --no-shconf -m 2048";
    /// Buffers that may be kept. They hold the records of each size that fits a packet, as many replaced values that
    /// are not freed yet, and packets that wait.
    const KEPT: u32 = 8192;

    /// Largest IP packet; whether values are sent from where they are stored; whether they are kept in the buffers that
    /// they arrived in.
    const WAYS: [(u16, bool, bool, &str); 6] = [
        (9000, true, false, "packets of 9000 bytes"),
        (9000, false, false, "packets of 9000 bytes, --no-zero-copy"),
        (9000, true, true, "packets of 9000 bytes, kept_buffers"),
        (1500, true, false, "packets of 1500 bytes"),
        (1500, false, false, "packets of 1500 bytes, --no-zero-copy"),
        (1500, true, true, "packets of 1500 bytes, kept_buffers"),
    ];

    /// A server at one end of a cable, and the client's device at the other.
    struct RingServer {
        server: LocalServer,
        tenant: LocalTenant,
        config: Config,
        _cable: RingPair,
    }

    impl RingServer {
        fn new(
            number: usize,
            (mtu, zero_copy, zero_copy_puts, _): (u16, bool, bool, &str),
        ) -> Result<RingServer, CliError> {
            let failed = |error: &dyn std::fmt::Display| CliError::new(error.to_string());
            let arguments: Vec<String> = EAL.split_whitespace().map(str::to_owned).collect();
            let cable = RingPair::new(&arguments, &format!("bench{number}")).map_err(|error| failed(&error))?;
            let at = |end: usize| NetOverrides {
                driver: Some(DriverName::Dpdk),
                eal: Some(EAL.to_owned()),
                device: Some(cable.ends()[end].clone()),
                address: vec![format!("10.97.{number}.{}/24", end + 1)],
                mtu: Some(mtu),
                zero_copy: Some(zero_copy),
                // The client's buffers, too: over rings the server receives its client's buffers.
                kept_buffers: zero_copy_puts.then_some(KEPT),
                ..NetOverrides::default()
            };
            let server = bench_server::start_bench_server(1, |overrides| {
                overrides.data = Some(([127, 0, 0, 1], 7400).into());
                overrides.allow_plaintext = Some(true);
                overrides.net = at(0);
            })?;
            let tenant = server.tenant("bench", "t", TableMode::Store)?;
            let settings = NetSettings::of(&at(1)).map_err(|error| failed(&error))?;
            let drivers = device_args::drivers(&settings, server.address(), 1, None)?;
            let drivers = drivers.ok_or_else(|| CliError::new("a cable is no kernel socket"))?;
            let config = server.client(&tenant).sealing(Sealing::Never).drivers(drivers);
            Ok(RingServer { server, tenant, config, _cable: cable })
        }

        fn data(&self, args: &BenchArgs, size: usize) -> Data {
            let mut data = Data::new(self.tenant.table, args.records().min(RECORDS));
            data.key_len += size;
            data.value_len = SIZES[size];
            data
        }
    }

    pub(crate) fn zero_copy(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
        let about = format!(
            "A server with one worker on the first core, its client on another, between them rings of DPDK that hand over pointers to packets \
             (`net_ring`): what is left is what the server does itself. {DEPTH} gets, or puts, under way, each in a message of its own."
        );
        let mut findings = ExperimentFindings::new("zero-copy", about);
        let servers = WAYS.into_iter().enumerate().map(|(number, mode)| RingServer::new(number, mode));
        let servers = servers.collect::<Result<Vec<RingServer>, CliError>>()?;
        for server in &servers {
            for size in 0..SIZES.len() {
                fill(&server.config, &server.data(args, size), &mut |_, _| {})?;
            }
        }
        for (class, name) in [(Class::Get, "get"), (Class::Put, "put")] {
            compare(args, &servers, (class, name), &mut findings)?;
        }
        findings.notes.push(
            "The server's time is that of its worker's turns in which there was something to do (`busy_us` of its metrics).".into(),
        );
        Ok(findings)
    }

    /// Measures one class of requests, for each size and each setting.
    fn compare(
        args: &BenchArgs,
        servers: &[RingServer],
        (class, name): (Class, &str),
        findings: &mut ExperimentFindings,
    ) -> Result<(), CliError> {
        let cells: Vec<(usize, usize)> =
            (0..SIZES.len()).flat_map(|size| (0..servers.len()).map(move |server| (size, server))).collect();
        let mut costs = vec![Vec::new(); cells.len()];
        let seconds = args.seconds(SECONDS);
        let sides = measure_interleaved(args.rounds(ROUNDS), &vec![""; cells.len()], |side| {
            let (size, server) = cells[side];
            let server = &servers[server];
            let before = (server.server.busy_us(), server.server.messages());
            let load = TenantLoad::new("bench", server.config.clone(), server.data(args, size), Mix::only(class));
            let measured = run_single_class(load.pace(Pace::Closed { depth: DEPTH }), class, seconds)?;
            let requests = (server.server.messages() - before.1).max(1);
            costs[side].push((server.server.busy_us() - before.0) as f64 * 1000.0 / requests as f64);
            Ok(measured)
        })?;
        let costs: Vec<RoundSpread> = costs.into_iter().map(RoundSpread::of).collect();
        let columns = WAYS.map(|(.., name)| name);
        let mut times = ReportTable::new(format!("The server's time for a {name}, ns"), "bytes of the value", columns);
        let mut rates = ReportTable::new(format!("Thousand {name}s/s"), "bytes of the value", columns);
        for ((size, costs), sides) in SIZES.iter().zip(costs.chunks(WAYS.len())).zip(sides.chunks(WAYS.len())) {
            times.row(size.to_string(), costs.to_vec());
            rates.row(size.to_string(), sides.iter().map(|side| side.spread(THOUSAND_PER_S)).collect());
        }
        findings.tables.extend([times, rates]);
        let large = SIZES.iter().position(|size| *size == LARGE).unwrap_or(0);
        for (mode, (mtu, zero_copy, zero_copy_puts, how)) in WAYS.into_iter().enumerate() {
            let what = format!("{how}: the server's time for a {name} of {LARGE} B / of {} B", SIZES[0]);
            let in_place =
                mtu > 1500 && if class == Class::Get { zero_copy && !zero_copy_puts } else { zero_copy_puts };
            let target = in_place.then_some(RatioTarget::AtMost(LARGE_TO_SMALL));
            findings.ratios.push(RatioResult::of(
                what,
                "ns",
                [&costs[large * WAYS.len() + mode], &costs[mode]],
                target,
            ));
        }
        Ok(())
    }
}
