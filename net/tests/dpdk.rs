//! Promise: the types over DPDK own their resources. Frames arrive whole and in order; a frame that does not fit stays
//! the caller's. Buffers come back, everything is dropped in the right order, and a driver's refusal has a type and
//! words.
//!
//! DPDK starts once in a process, so each test runs in one of its own: the test executable runs itself for it.
#![cfg(feature = "dpdk")]

use rand::{Rng, SeedableRng, rngs::SmallRng};
use sandstorm_net::dpdk::{
    DmaUnavailable, DpdkErrno, DpdkError, DpdkPort, Eal, InterruptsUnavailable, PortOptions, QueuePair, UdpRule,
};
use sandstorm_net::limits::BURST;
use sandstorm_net::stack::{ChecksumFill, FramePart, FramePort, MacAddress, TxFrame};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;

/// Marks the child process.
const ALONE: &str = "SANDSTORM_DPDK_ALONE";

/// Runs a test in a process of its own.
fn alone(name: &str, test: impl FnOnce()) {
    if std::env::var(ALONE).as_deref() == Ok(name) {
        return test();
    }
    let this = std::env::current_exe().unwrap();
    let output = Command::new(this).args(["--exact", name, "--nocapture"]).env(ALONE, name).output().unwrap();
    let (said, cried) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} in its own process: {}\n{said}\n{cried}", output.status);
    assert!(said.contains("1 passed"), "{name} did not run: {said}");
}

/// Starts DPDK without hugepages or devices, and leaves nothing in the file system.
fn eal(vdevs: &[&str]) -> Arc<Eal> {
    let mut arguments = vec!["--no-huge", "--no-pci", "--no-shconf", "-m", "128"];
    vdevs.iter().for_each(|vdev| arguments.extend(["--vdev", vdev]));
    Eal::start(&arguments).unwrap()
}

/// Returns a frame of these bytes.
fn frame(bytes: &[u8]) -> TxFrame<'_> {
    TxFrame { header: bytes, ip_header_len: 0, fill: ChecksumFill::default(), parts: &[] }
}

/// Returns all frames that have come.
fn drain(queue: &mut QueuePair) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let received = queue.receive(BURST);
        all.extend((0..received).map(|index| queue.frame(index).unwrap().bytes.to_vec()));
        assert!(queue.frame(received).is_none(), "no frame beyond those received");
        if received == 0 {
            return all;
        }
    }
}

#[test]
fn a_device_says_what_it_is_and_is_opened_once() {
    alone("a_device_says_what_it_is_and_is_opened_once", || {
        let eal = eal(&["net_null0,size=80", "net_null1"]);
        let ports = eal.ports().unwrap();
        let names: Vec<&str> = ports.iter().map(|info| info.name.as_str()).collect();
        assert_eq!((names, ports[0].driver.as_str()), (vec!["net_null0", "net_null1"], "net_null"));
        assert!(matches!(Eal::start(&["--no-huge"]), Err(DpdkError::StartedBefore)));

        let (port, mut queues) = DpdkPort::open(&eal, "net_null0", &PortOptions::new(2)).unwrap();
        assert_eq!((queues.len(), port.info().mtu, queues[0].mtu()), (2, 1500, 1500));
        assert!(matches!(DpdkPort::open(&eal, "0", &PortOptions::new(1)), Err(DpdkError::PortInUse(0))));
        let many = DpdkPort::open(&eal, "1", &PortOptions::new(60_000)).unwrap_err();
        assert!(matches!(many, DpdkError::Queues { port: 1, requested: 60_000, .. }), "{many}");
        let absent = DpdkPort::open(&eal, "eth9", &PortOptions::new(1)).unwrap_err();
        assert!(absent.to_string().contains("net_null0") && matches!(absent, DpdkError::NoPort { .. }), "{absent}");
        assert!(
            matches!(DpdkPort::open(&eal, "", &PortOptions::new(1)), Err(DpdkError::NoPort { .. })),
            "which of two?"
        );

        // This device receives frames without end and sends all; on both queues, from different threads.
        std::thread::scope(|scope| {
            for queue in &mut queues {
                scope.spawn(move || {
                    for _ in 0..1000 {
                        assert_eq!(queue.receive(BURST), BURST);
                        assert_eq!(queue.frame(BURST - 1).unwrap().bytes.len(), 80);
                        assert_eq!(queue.transmit(&[frame(&[7; 60]); 3]), 3);
                    }
                });
            }
        });
        let counters = port.counters();
        assert!(counters.received >= 64_000 && counters.sent >= 6000, "{counters:?}");

        drop(queues);
        drop(port);
        assert_eq!(eal.orphaned_pools(), 0, "all buffers came back, so the pools are freed");
        drop(eal);
        assert!(matches!(Eal::start(&["--no-huge"]), Err(DpdkError::StartedBefore)), "once in a process's life");
    });
}

#[test]
fn a_rule_that_a_driver_refuses_is_refused_in_words() {
    alone("a_rule_that_a_driver_refuses_is_refused_in_words", || {
        let eal = eal(&["net_null0", "net_null1"]);
        let (port, _queues) = DpdkPort::open(&eal, "net_null0", &PortOptions::new(1)).unwrap();
        for rule in [UdpRule::any(false, 4000, 0), UdpRule::to(IpAddr::from([0; 16]), 4000, 0)] {
            let refused = port.validate(&rule).unwrap_err();
            assert!(refused.code.is_unsupported() && refused.to_string().contains("refuses the rule"), "{refused}");
            assert_eq!(port.create(rule).unwrap_err().code, refused.code);
        }
        let isolated = PortOptions { isolate: true, ..PortOptions::new(1) };
        let refused = DpdkPort::open(&eal, "net_null1", &isolated).unwrap_err();
        assert!(matches!(&refused, DpdkError::Isolation { why, .. } if why.code.is_unsupported()), "{refused}");
        // This device has no interrupts either, which does not prevent opening it.
        let asks = PortOptions { interrupts: true, ..PortOptions::new(1) };
        let (other, _queues) = DpdkPort::open(&eal, "net_null1", &asks).expect("a refused device is not taken");
        assert_eq!(other.interrupts_unavailable(), Some(InterruptsUnavailable::Driver));
        assert_eq!(port.interrupts_unavailable(), Some(InterruptsUnavailable::NotRequested));
    });
}

/// DPDK's bus of virtual devices reports success for mapping memory, and does nothing. Behind this one there might be a
/// device that reads by itself.
#[test]
fn a_virtual_device_that_says_that_it_maps_memory_is_told_of_none() {
    alone("a_virtual_device_that_says_that_it_maps_memory_is_told_of_none", || {
        let eal = eal(&["net_failsafe0,dev(net_ring1)", "net_ring0"]);
        let options = PortOptions { dma_from_tables: true, ..PortOptions::new(1) };
        let (both, _queues) = DpdkPort::open(&eal, "net_failsafe0", &options).unwrap();
        assert!(both.info().sends_segments && both.dma().is_none(), "{:?}", both.info());
        assert_eq!(both.copies(), Some(DmaUnavailable::Driver));
        let (ring, _queues) = DpdkPort::open(&eal, "net_ring0", &options).unwrap();
        assert!(ring.dma().is_none() && ring.copies().is_none(), "a processor reads it");
    });
}

#[test]
fn a_start_that_fails_says_why() {
    alone("a_start_that_fails_says_why", || {
        let alone = ["--help", "--", "zero\0byte", "--proc-type=secondary", "--proc-type=auto", "--proc-type"];
        for bad in alone.map(|bad| vec![bad]).into_iter().chain([
            vec!["--proc-type", "secondary"],
            vec!["--no-huge", "--proc-type", "auto", "--no-pci"],
            vec!["--proc-type", "primary", "--proc-type", "secondary"],
        ]) {
            assert!(matches!(Eal::start(&bad), Err(DpdkError::Argument(..))), "{bad:?}");
        }
        let failed =
            Eal::start(&["--no-huge", "--no-pci", "--no-shconf", "-m", "64", "--vdev", "net_nonsense0"]).unwrap_err();
        let DpdkError::Start { code, arguments, .. } = &failed else { panic!("{failed}") };
        assert!(*code != DpdkErrno(0) && arguments.contains(&"net_nonsense0".to_owned()), "{failed}");
        assert!(matches!(Eal::start(&["--no-huge"]), Err(DpdkError::StartedBefore)));
    });
}

/// Passes the first process's prefix to the second.
const SECOND: &str = "SANDSTORM_DPDK_SECOND";

#[test]
fn a_second_process_with_the_prefix_of_the_first_is_told_so() {
    let name = "a_second_process_with_the_prefix_of_the_first_is_told_so";
    alone(name, || {
        let first = std::env::var(SECOND);
        let prefix = first.clone().unwrap_or_else(|_| format!("sandstorm-{}", std::process::id()));
        let started = Eal::start(&["--no-huge", "--no-pci", "-m", "64", "--file-prefix", &prefix]);
        if first.is_ok() {
            let said = started.unwrap_err().to_string();
            assert!(said.contains("--file-prefix") && !said.contains("no right"), "{said}");
            return;
        }
        let _eal = started.unwrap();
        let this = std::env::current_exe().unwrap();
        let mut second = Command::new(this);
        second.args(["--exact", name, "--nocapture"]).env(ALONE, name).env(SECOND, &prefix);
        let output = second.output().unwrap();
        let (said, cried) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && said.contains("1 passed"), "{said}\n{cried}");
    });
}

#[test]
fn a_device_has_the_mtu_that_is_asked_for() {
    alone("a_device_has_the_mtu_that_is_asked_for", || {
        let eal = eal(&["net_null0,size=9014", "net_null1"]);
        for (name, mtu) in [("net_null0", Some(9000)), ("net_null1", None)] {
            let (port, mut queues) = DpdkPort::open(&eal, name, &PortOptions { mtu, ..PortOptions::new(1) }).unwrap();
            let set = usize::from(mtu.unwrap_or(1500));
            assert_eq!((usize::from(port.info().mtu), queues[0].mtu()), (set, set), "{name}");
            let longest = vec![1; set + 14];
            assert_eq!((queues[0].transmit(&[frame(&longest)]), queues[0].send_errors()), (1, 0), "{name}");
        }
    });
}

#[test]
fn frames_arrive_whole_and_in_order_and_what_does_not_fit_is_the_callers() {
    alone("frames_arrive_whole_and_in_order_and_what_does_not_fit_is_the_callers", || {
        // A ring: frames sent on a queue are received on it.
        let eal = eal(&["net_ring0"]);
        let (port, mut queues) = DpdkPort::open(&eal, "", &PortOptions::new(2)).unwrap();
        assert!(port.is_up());
        let resting = port.buffers_in_use();
        let mut random = SmallRng::seed_from_u64(7);
        let mut under_way = [VecDeque::new(), VecDeque::new()];
        let mut refused = 0;
        for _ in 0..20_000 {
            let which = random.random_range(0..2);
            let (queue, model) = (&mut queues[which], &mut under_way[which]);
            if random.random_bool(0.55) {
                let frames: Vec<(Vec<u8>, Vec<u8>)> = (0..random.random_range(1..=BURST))
                    .map(|_| {
                        let header: Vec<u8> = (0..random.random_range(14..60)).map(|_| random.random()).collect();
                        (header, vec![random.random(); random.random_range(0..1400)])
                    })
                    .collect();
                let parts: Vec<_> = frames.iter().map(|(_, payload)| [FramePart::Bytes(payload)]).collect();
                let out: Vec<_> = frames
                    .iter()
                    .zip(&parts)
                    .map(|((header, _), parts)| TxFrame {
                        header,
                        ip_header_len: 0,
                        fill: ChecksumFill::default(),
                        parts,
                    })
                    .collect();
                let sent = queue.transmit(&out);
                refused += out.len() - sent;
                model.extend(frames.iter().take(sent).map(|(header, payload)| [&header[..], payload].concat()));
            } else {
                let most = random.random_range(1..=BURST);
                let received = queue.receive(most);
                assert_eq!(received, model.len().min(most), "none lost, none invented");
                for index in 0..received {
                    assert_eq!(queue.frame(index).unwrap().bytes, model.pop_front().unwrap());
                }
            }
        }
        assert!(refused > 0, "the rings were never full");
        for (queue, model) in queues.iter_mut().zip(under_way) {
            assert_eq!(drain(queue), Vec::from(model));
            assert_eq!(queue.send_errors(), 0);
        }
        assert_eq!(port.buffers_in_use(), resting, "every buffer is back");
    });
}

#[test]
fn a_frame_that_can_never_be_sent_is_counted_and_blocks_no_other() {
    alone("a_frame_that_can_never_be_sent_is_counted_and_blocks_no_other", || {
        let eal = eal(&["net_ring0"]);
        let (port, mut queues) = DpdkPort::open(&eal, "", &PortOptions::new(1)).unwrap();
        let queue = &mut queues[0];
        let (long, short) = (vec![1; 9000], vec![2; 60]);
        let mixed = [frame(&long), frame(&short), frame(&[]), frame(&short), frame(&long)];
        assert_eq!(queue.transmit(&mixed), 5, "all are dealt with");
        assert_eq!((queue.send_errors(), drain(queue)), (3, vec![short.clone(); 2]));

        // With the ring nearly full, a frame that is offered again is not counted twice.
        while queue.transmit(&[frame(&short); BURST]) == BURST {}
        let mut dealt = 0;
        let mut rest = &mixed[..];
        for _ in 0..100 {
            let sent = queue.transmit(rest);
            dealt += sent;
            rest = &rest[sent..];
            queue.receive(1);
        }
        assert_eq!((dealt, queue.send_errors()), (5, 6));
        drain(queue);
        drop(queues);
        drop(port);
        assert_eq!(eal.orphaned_pools(), 0);
    });
}

/// A file of captured frames.
fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let header: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1];
    let mut file: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
    for frame in frames {
        let length = frame.len() as u32;
        file.extend([0, 0, length, length].iter().flat_map(|word| word.to_le_bytes()));
        file.extend(frame);
    }
    file
}

#[test]
fn a_frame_that_is_longer_than_the_mtu_is_thrown_away_and_counted() {
    alone("a_frame_that_is_longer_than_the_mtu_is_thrown_away_and_counted", || {
        let frames: Vec<Vec<u8>> = [60, 3000, 1514, 9000, 61].map(|length| vec![length as u8; length]).to_vec();
        let path = std::env::temp_dir().join(format!("sandstorm-{}.pcap", std::process::id()));
        std::fs::write(&path, capture(&frames)).unwrap();
        let eal = eal(&[&format!("net_pcap0,rx_pcap={}", path.display())]);
        std::fs::remove_file(path).unwrap();
        let options = PortOptions { kept_buffers: 8, ..PortOptions::new(1) };
        let (port, mut queues) = DpdkPort::open(&eal, "", &options).unwrap();
        let queue = &mut queues[0];
        // Frames that do not fit a buffer come in several, and do not fit the largest frame either.
        let mut came = Vec::new();
        while came.len() < frames.len() {
            let received = queue.receive(BURST);
            came.extend((0..received).map(|index| queue.frame(index).unwrap().bytes.to_vec()));
            assert!(
                (0..received).all(|index| !queue.frame(index).unwrap().bytes.is_empty() || queue.take(index).is_none())
            );
        }
        let wanted = frames.iter().map(|frame| if frame.len() > 1518 { Vec::new() } else { frame.clone() });
        assert_eq!(came, wanted.collect::<Vec<_>>());
        assert_eq!((queue.cut(), queue.pressure().thrown_away), (2, 2));
        drop((queues, port));
        assert_eq!(eal.orphaned_pools(), 0, "every buffer is back");
    });
}

#[test]
fn a_frame_that_is_held_outlives_its_queue() {
    alone("a_frame_that_is_held_outlives_its_queue", || {
        let eal = eal(&["net_ring0"]);
        let options = PortOptions { kept_buffers: 2, ..PortOptions::new(1) };
        let (port, mut queues) = DpdkPort::open(&eal, "", &options).unwrap();
        let queue = &mut queues[0];
        let frames: Vec<Vec<u8>> = (0..BURST as u8).map(|fill| vec![fill; 100]).collect();
        let out: Vec<_> = frames.iter().map(|bytes| frame(bytes)).collect();
        assert_eq!(queue.transmit(&out), BURST);
        assert_eq!(queue.receive(BURST), BURST);
        let held = queue.take(5).unwrap();
        assert!(queue.take(5).is_none() && queue.frame(5).is_none(), "it is gone from the queue");
        assert_eq!(queue.frame(6).unwrap().bytes, &frames[6][..]);
        let counted = |rx_retained, rx_copied| {
            let counters = port.counters();
            assert_eq!((counters.rx_retained, counters.rx_copied), (rx_retained, rx_copied));
        };
        counted(1, 0);
        let other = queue.take(6).unwrap();
        assert!(queue.take(7).is_none() && queue.frame(7).is_some(), "as many are kept as may be");
        counted(2, 1);
        drop(other);
        counted(1, 1);

        // Its buffer is not used again, however many frames come and go.
        for _ in 0..1000 {
            assert_eq!(queue.transmit(&[frame(&[255; 100]); BURST]), BURST);
            assert_eq!(queue.receive(BURST), BURST);
        }
        assert!(queue.listen(&[MacAddress([0x33, 0x33, 0, 0, 0, 1])]), "a device that lets all in lets these in");
        drop((port, queues));
        assert_eq!(held.as_ref(), &frames[5][..]);
        assert!(
            matches!(DpdkPort::open(&eal, "", &PortOptions::new(1)), Err(DpdkError::PortInUse(0))),
            "open as long as it is held"
        );
        std::thread::spawn(move || drop(held)).join().unwrap();
        assert_eq!(eal.orphaned_pools(), 0);
    });
}
