//! When the kernel received messages: as it says it, in Unix time, and in the time that their receiver counts in.

use crate::limits::{ARRIVAL_CLOCK_STEP_NS, MAX_SOCKET_WAIT_NS};

/// When the kernel received a message of a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageArrival {
    /// Index of the message's first datagram in the burst.
    pub first: u32,
    /// Unix time, nanoseconds.
    pub unix_ns: u64,
}

/// Tells what time it was on a monotonic clock, nanoseconds since its start, when it was some Unix time.
///
/// The kernel slews both clocks together, and only steps Unix time. So the Unix time of the start is a constant between
/// two steps. It is read as the difference of two readings, of which the monotonic one comes first: what happens
/// between the two makes it too large, and the least is the best.
#[derive(Clone, Copy, Debug, Default)]
pub struct ArrivalClock {
    /// Unix time of the start, nanoseconds; 0: not known yet.
    start_unix_ns: u64,
}

impl ArrivalClock {
    /// Notes a reading of both clocks, of which `now_ns` was read first.
    pub fn note(&mut self, now_ns: u64, unix_ns: u64) {
        let start_unix_ns = unix_ns.saturating_sub(now_ns);
        let later_ns = start_unix_ns.saturating_sub(self.start_unix_ns);
        if start_unix_ns < self.start_unix_ns || later_ns > ARRIVAL_CLOCK_STEP_NS {
            self.start_unix_ns = start_unix_ns;
        } else {
            // A small step forwards is believed in the course of some readings.
            self.start_unix_ns += later_ns / 64;
        }
    }

    /// When a message was received, at most `now_ns`. That is also the answer where the two clocks cannot be compared:
    /// the message would have waited for more than [`MAX_SOCKET_WAIT_NS`].
    #[inline]
    pub fn received_ns(&self, unix_ns: u64, now_ns: u64) -> u64 {
        let received_ns = unix_ns.saturating_sub(self.start_unix_ns).min(now_ns);
        if now_ns - received_ns > MAX_SOCKET_WAIT_NS { now_ns } else { received_ns }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use super::*;
    use crate::driver::{DatagramDriver, Outbox, UdpDriver, UdpOptions};
    use crate::r2p2::DatagramSink;

    const START_UNIX_NS: u64 = 1_800_000_000_000_000_000;

    #[test]
    fn the_least_difference_of_two_readings_is_believed_and_so_is_a_step() {
        let mut clock = ArrivalClock::default();
        assert_eq!(clock.received_ns(START_UNIX_NS, 5_000), 5_000, "nothing is known yet");
        // The thread lost its processor between the two readings.
        clock.note(1_000_000, START_UNIX_NS + 1_000_000 + 400_000);
        clock.note(2_000_000, START_UNIX_NS + 2_000_000);
        assert_eq!(clock.received_ns(START_UNIX_NS + 1_500_000, 2_000_000), 1_500_000);
        for step_ns in [100_000, 3_600_000_000_000, 0] {
            let stepped_ns = START_UNIX_NS + step_ns;
            (3..1_000).for_each(|ms| clock.note(ms * 1_000_000, stepped_ns + ms * 1_000_000));
            let received_ns = clock.received_ns(stepped_ns + 999_000_000, 1_000_000_000);
            assert!(received_ns.abs_diff(999_000_000) < 1_000, "a step of {step_ns}: {received_ns}");
        }
    }

    #[test]
    fn no_message_came_later_than_now_or_waited_for_ever() {
        let mut clock = ArrivalClock::default();
        let now_ns = 2 * MAX_SOCKET_WAIT_NS;
        clock.note(now_ns, START_UNIX_NS + now_ns);
        assert_eq!(clock.received_ns(START_UNIX_NS + now_ns + 1, now_ns), now_ns);
        let longest_ns = now_ns - MAX_SOCKET_WAIT_NS;
        assert_eq!(clock.received_ns(START_UNIX_NS + longest_ns, now_ns), longest_ns);
        assert_eq!(clock.received_ns(START_UNIX_NS + longest_ns - 1, now_ns), now_ns);
    }

    /// Datagrams that leave together, so that the kernel may coalesce them, and one that leaves a moment later.
    #[test]
    fn the_kernel_says_when_it_received_each_message_not_when_it_was_asked() {
        let unix_ns = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let bind = |options| UdpDriver::bind("127.0.0.1:0".parse().unwrap(), options).unwrap();
        let times = UdpOptions { receive_times: true, ..UdpOptions::default() };
        // The kernel begins with the times a moment after the first socket has asked for them.
        let (mut from, mut early) = (bind(UdpOptions::default()), bind(times));
        let mut burst = early.burst();
        let has_begun = (0..1_000).any(|_| {
            let (mut outbox, sent_ns) = (Outbox::default(), unix_ns());
            outbox.send(early.local(), &[b"early"]);
            assert_eq!(from.transmit(&mut outbox), 1);
            std::thread::sleep(Duration::from_millis(5));
            assert_eq!(early.receive(&mut burst), 1);
            burst.arrival_unix_ns(0).is_some_and(|unix_ns| unix_ns < sent_ns + 5_000_000)
        });
        assert!(has_begun, "the kernel tells when it was asked");
        for options in [times, UdpOptions { gro: false, ..times }] {
            let mut to = bind(options);
            let (mut outbox, before_ns) = (Outbox::default(), unix_ns());
            (0..8).for_each(|_| outbox.send(to.local(), &[&[7; 100]]));
            assert_eq!(from.transmit(&mut outbox), 8);
            let between_ns = unix_ns();
            outbox.send(to.local(), &[&[8; 100]]);
            assert_eq!(from.transmit(&mut outbox), 1);
            let sent_ns = unix_ns();
            std::thread::sleep(Duration::from_millis(20));
            let mut burst = to.burst();
            assert_eq!(to.receive(&mut burst), 9, "loopback brings what was sent before the call ends");
            let of = |index| burst.arrival_unix_ns(index).expect("the kernel has times");
            assert!((0..8).all(|index| (before_ns..=between_ns).contains(&of(index))), "{:?}", burst.arrivals());
            assert!((between_ns..=sent_ns).contains(&of(8)), "{:?}", burst.arrivals());
            assert!(burst.arrivals().is_sorted_by_key(|arrival| (arrival.first, arrival.unix_ns)));
            burst.clear();
            assert_eq!((burst.arrivals(), burst.arrival_unix_ns(0)), (&[][..], None));
        }
    }

    #[test]
    fn a_driver_that_was_not_asked_for_times_has_none() {
        let bind = || UdpDriver::bind("127.0.0.1:0".parse().unwrap(), UdpOptions::default()).unwrap();
        let (mut from, mut to, mut outbox) = (bind(), bind(), Outbox::default());
        outbox.send(to.local(), &[b"x"]);
        assert_eq!(from.transmit(&mut outbox), 1);
        let mut burst = to.burst();
        assert_eq!((to.receive(&mut burst), burst.arrival_unix_ns(0)), (1, None));
    }
}
