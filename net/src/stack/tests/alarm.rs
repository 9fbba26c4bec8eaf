//! The order in which a port with interrupts is armed, polled and slept on; and ports whose interrupts are faulty.

use super::*;
use crate::driver::{DriverWaiter, ReceivePressure};
use crate::limits::{
    ARMED_SLEEP_US, INTERRUPTS_FOR_NOTHING, INTERRUPTS_MISSED, POLLED_IDLE_AFTER_US, POLLED_IDLE_SLEEP_US,
    POLLED_SLEEP_US,
};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A port with interrupts, which come when the test rings.
#[derive(Debug)]
struct Bell {
    port: MemoryPort,
    event: Arc<OwnedFd>,
    /// Whether it accepts requests for an interrupt.
    takes: bool,
    events: Vec<&'static str>,
    forgone: Option<InterruptFault>,
}

impl FramePort for Bell {
    type Shared = Vec<u8>;

    fn mac(&self) -> MacAddress {
        self.port.mac()
    }

    fn mtu(&self) -> usize {
        self.port.mtu()
    }

    fn listen(&mut self, groups: &[MacAddress]) -> bool {
        self.port.listen(groups)
    }

    fn receive(&mut self, most: usize) -> usize {
        self.events.push("look");
        self.port.receive(most)
    }

    fn frame(&self, index: usize) -> Option<RxFrame<'_>> {
        self.port.frame(index)
    }

    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> usize {
        self.port.transmit(frames)
    }

    fn interrupt(&self) -> Option<Arc<OwnedFd>> {
        Some(Arc::clone(&self.event))
    }

    fn arm(&mut self) -> bool {
        self.events.push("arm");
        self.takes
    }

    fn disarm(&mut self) {
        self.events.push("disarm");
    }

    fn interrupted(&mut self) -> bool {
        read(&*self.event, &mut [0; 8]).is_ok()
    }

    fn forgo_interrupts(&mut self, why: InterruptFault) {
        assert_eq!(self.forgone.replace(why), None, "it is said once");
    }

    fn pressure(&mut self) -> ReceivePressure {
        self.port.pressure()
    }
}

/// A driver over such a port, a port that sends to it, and their time.
struct World {
    driver: StackDriver<Bell>,
    other: MemoryPort,
    time: Time,
}

impl World {
    /// No datagram came or went for so long that the interrupt is worth it.
    fn new() -> World {
        let (net, time) = (network(), Time::new());
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        let port = net.interface(mac(1), 1500, 1).remove(0);
        let port = Bell { port, event, takes: true, events: Vec::new(), forgone: None };
        let interface = StackInterface::new(&port, options(1), time.clock()).unwrap();
        let driver = StackDriver::new(interface, 0, port).unwrap();
        let other = net.interface(mac(2), 1500, 1).remove(0);
        let mut world = World { driver, other, time };
        world.polls();
        world.time.pass(POLLED_IDLE_AFTER_US);
        world.polls();
        world.events();
        world
    }

    /// Runs one turn of a worker.
    fn polls(&mut self) {
        let mut burst = self.driver.burst();
        self.driver.receive(&mut burst);
    }

    /// Sends a frame that is no datagram.
    fn frame_arrives(&self) {
        self.other.send_raw(&[[0xFF; 6], mac(2).0].concat());
    }

    fn ring(&self) {
        ring(&self.driver.port().event);
    }

    /// Returns the calls that the port received since this was last called.
    fn events(&mut self) -> Vec<&'static str> {
        std::mem::take(&mut self.driver.port_mut().events)
    }

    /// Takes all steps to sleep.
    fn goes_to_sleep(&mut self) {
        assert!(!self.driver.may_sleep(), "there is one more look before");
        self.polls();
        assert!(self.driver.may_sleep());
        assert_eq!(self.driver.max_sleep_us(), ARMED_SLEEP_US);
    }
}

fn ring(event: &OwnedFd) {
    write(event, &1u64.to_ne_bytes()).unwrap();
}

/// Returns whether the port ends a sleep, at once or later.
fn is_woken(waiter: &DriverWaiter, max_sleep_us: u64) -> bool {
    waiter.wait(Some(max_sleep_us), false).unwrap().readable
}

#[test]
fn an_interrupt_is_asked_for_then_the_port_is_looked_at_then_slept_then_it_is_called_off() {
    let mut world = World::new();
    world.goes_to_sleep();
    assert_eq!(world.events(), ["arm", "look"]);
    // The time limit, or another thread, ends the sleep: the interrupt stays armed.
    world.polls();
    assert!(world.driver.may_sleep());
    assert_eq!(world.events(), ["look"]);
    // The interrupt comes in the middle of the sleep.
    let (waiter, event) = (world.driver.waiter(), Arc::clone(&world.driver.port().event));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(5));
            ring(&event);
        });
        while !is_woken(&waiter, ARMED_SLEEP_US) {
            assert!(begin.elapsed() < Duration::from_secs(60), "the interrupt ends no sleep");
        }
    });
    world.frame_arrives();
    world.polls();
    assert_eq!(world.events(), ["look", "disarm"]);
    assert_eq!(world.driver.max_sleep_us(), POLLED_IDLE_SLEEP_US, "it rests by the clock until it is asked for again");
    world.goes_to_sleep();
}

#[test]
fn what_came_before_the_interrupt_was_asked_for_is_found_before_anybody_sleeps() {
    let mut world = World::new();
    world.frame_arrives();
    assert!(!world.driver.may_sleep());
    assert!(!world.driver.may_sleep(), "not before the port was looked at");
    world.polls();
    assert_eq!(world.events(), ["arm", "look", "disarm"]);
    // An interrupt that comes after the poll has rung by the time of the sleep.
    world.goes_to_sleep();
    world.frame_arrives();
    world.ring();
    assert!(is_woken(&world.driver.waiter(), 60_000_000));
}

#[test]
fn who_has_just_had_something_to_do_sleeps_by_the_clock() {
    let mut world = World::new();
    // A datagram that waits for its neighbour.
    let mut outbox = Outbox::default();
    outbox.send(PeerAddr::new(ip("10.0.0.9"), 1), &[b"waits"]);
    world.driver.transmit(&mut outbox);
    assert!(world.driver.may_sleep());
    world.polls();
    assert_eq!((world.driver.max_sleep_us(), world.events()), (POLLED_SLEEP_US, vec!["look"]));
    // An interrupt that comes when no thread waits for it any more ends no sleep, and no later one in vain.
    world.ring();
    assert!(!is_woken(&world.driver.waiter(), 1000));
    for _ in 0..10 {
        world.time.pass(POLLED_IDLE_AFTER_US);
        world.polls();
    }
    world.goes_to_sleep();
    assert!(!is_woken(&world.driver.waiter(), 1000));
}

#[test]
fn a_port_whose_interrupts_do_not_come_is_looked_at_by_the_clock_again() {
    let mut world = World::new();
    let sleep = |world: &mut World, arrives: bool| {
        world.goes_to_sleep();
        world.time.pass(ARMED_SLEEP_US);
        world.frame_arrives();
        if arrives {
            world.ring();
        }
        world.polls();
    };
    (1..INTERRUPTS_MISSED).for_each(|_| sleep(&mut world, false));
    sleep(&mut world, true);
    (1..INTERRUPTS_MISSED).for_each(|_| sleep(&mut world, false));
    assert_eq!(world.driver.port().forgone, None);
    sleep(&mut world, false);
    assert_eq!(world.driver.port().forgone, Some(InterruptFault::Missed));
    world.events();
    assert!(world.driver.may_sleep());
    world.polls();
    assert_eq!((world.driver.max_sleep_us(), world.events()), (POLLED_IDLE_SLEEP_US, vec!["look"]));
}

#[test]
fn one_that_others_have_woken_before_the_interrupt_has_missed_none() {
    let mut world = World::new();
    for _ in 0..10 * INTERRUPTS_MISSED {
        world.goes_to_sleep();
        world.time.pass(ARMED_SLEEP_US / 2);
        world.frame_arrives();
        world.polls();
    }
    assert_eq!(world.driver.port().forgone, None);
}

#[test]
fn a_port_whose_interrupts_come_for_nothing_is_looked_at_by_the_clock_again() {
    let mut world = World::new();
    for _ in 1..INTERRUPTS_FOR_NOTHING {
        assert!(!world.driver.may_sleep());
        world.ring();
        world.polls();
    }
    // A sleep that lasts its whole time resets the count.
    world.goes_to_sleep();
    world.time.pass(ARMED_SLEEP_US);
    world.polls();
    for _ in 0..INTERRUPTS_FOR_NOTHING {
        assert_eq!(world.driver.port().forgone, None);
        world.driver.may_sleep();
        world.ring();
        world.polls();
    }
    assert_eq!(world.driver.port().forgone, Some(InterruptFault::Spurious));
    assert!(world.driver.may_sleep());
}

#[test]
fn a_port_that_takes_no_request_is_asked_once() {
    let mut world = World::new();
    world.driver.port_mut().takes = false;
    assert!(world.driver.may_sleep());
    assert_eq!(world.driver.port().forgone, Some(InterruptFault::Refused));
    world.polls();
    assert!(world.driver.may_sleep());
    assert_eq!((world.driver.max_sleep_us(), world.events()), (POLLED_IDLE_SLEEP_US, vec!["arm", "look"]));
}
