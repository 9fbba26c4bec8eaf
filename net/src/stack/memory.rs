//! A network in memory: interfaces with queues, and the faults of networks. A run depends on its seed and the order of
//! the calls alone.

use super::{ChecksumStatus, FramePort, MacAddress, PortOffloads, RxFrame, TxFrame};
use crate::driver::ReceivePressure;
use crate::sim::SeededRng;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The faults of the network, percent each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkFaults {
    /// Lost.
    pub loss: u64,
    /// Delivered twice.
    pub duplication: u64,
    /// Delivered before up to eight others that were sent earlier.
    pub reorder: u64,
    /// Delivered with a bit changed.
    pub corruption: u64,
    /// The longest frame, in bytes; longer ones are lost silently. 0: no limit.
    pub longest: usize,
}

#[derive(Debug)]
struct MemoryHost {
    mac: MacAddress,
    queues: Vec<VecDeque<Vec<u8>>>,
}

#[derive(Debug)]
struct MemorySegment {
    dice: SeededRng,
    faults: NetworkFaults,
    hosts: Vec<MemoryHost>,
    room: usize,
    thrown_away: u64,
}

/// An Ethernet segment. A frame reaches the interface with its address; one to a group reaches all but its sender.
#[derive(Clone, Debug)]
pub struct MemoryNetwork(Arc<Mutex<MemorySegment>>);

impl MemoryNetwork {
    /// Creates a network. `seed` decides its faults and the choice of a queue. A queue has room for `room` frames.
    pub fn new(seed: u64, faults: NetworkFaults, room: usize) -> MemoryNetwork {
        let dice = SeededRng::new(seed);
        MemoryNetwork(Arc::new(Mutex::new(MemorySegment { dice, faults, hosts: Vec::new(), room, thrown_away: 0 })))
    }

    /// Sets the faults from now on.
    pub fn set_faults(&self, faults: NetworkFaults) {
        self.lock().faults = faults;
    }

    /// Adds an interface with so many queues. A frame goes to any of them.
    pub fn interface(&self, mac: MacAddress, mtu: usize, queues: usize) -> Vec<MemoryPort> {
        let mut frames = self.lock();
        frames.hosts.push(MemoryHost { mac, queues: (0..queues).map(|_| VecDeque::new()).collect() });
        let host = frames.hosts.len() - 1;
        let port = |queue| MemoryPort {
            network: self.clone(),
            host,
            queue,
            mac,
            mtu,
            offload: PortOffloads::default(),
            verify: false,
            listens: true,
            descriptor: None,
            received: Vec::new(),
            room: usize::MAX,
            zero_copy_from: usize::MAX,
            came_up: false,
            send_errors: 0,
        };
        (0..queues).map(port).collect()
    }

    fn lock(&self) -> MutexGuard<'_, MemorySegment> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemorySegment {
    fn send(&mut self, from: usize, mut frame: Vec<u8>) {
        let faults = self.faults;
        let too_long = faults.longest > 0 && frame.len() > faults.longest;
        if self.dice.percent(faults.loss) || too_long {
            return;
        }
        if self.dice.percent(faults.corruption) {
            let at = self.dice.below(frame.len() as u64) as usize;
            if let Some(byte) = frame.get_mut(at) {
                *byte ^= 1 << self.dice.below(8);
            }
        }
        let to = super::wire::mac_at(&frame, 0).unwrap_or_default();
        let copies = 1 + usize::from(self.dice.percent(faults.duplication));
        for (number, host) in self.hosts.iter_mut().enumerate() {
            if number == from || (host.mac != to && !to.is_group()) {
                continue;
            }
            for _ in 0..copies {
                let queue = self.dice.below(host.queues.len() as u64) as usize;
                let early = if self.dice.percent(faults.reorder) { self.dice.below(9) as usize } else { 0 };
                let Some(queue) = host.queues.get_mut(queue) else { continue };
                if queue.len() < self.room {
                    queue.insert(queue.len().saturating_sub(early), frame.clone());
                } else {
                    self.thrown_away += 1;
                }
            }
        }
    }
}

/// One queue of an interface in memory. Each service of a port for the stack can be switched on or off.
#[derive(Debug)]
pub struct MemoryPort {
    network: MemoryNetwork,
    host: usize,
    queue: usize,
    mac: MacAddress,
    mtu: usize,
    /// Checksums that it computes.
    pub offload: PortOffloads,
    /// Whether it reports if the checksums of received frames are right.
    pub verify: bool,
    /// Whether it lets frames to groups in.
    pub listens: bool,
    /// The descriptor that it reports as readable when a frame has come. The port itself never signals it.
    pub descriptor: Option<Arc<OwnedFd>>,
    /// Frames that it accepts until it reports that it is full; it then stays so until this is set anew.
    pub room: usize,
    /// The datagram size, in bytes, from which on it gives the frame's buffer out.
    pub zero_copy_from: usize,
    /// Whether it reports, once, that its link has come up.
    pub came_up: bool,
    received: Vec<Vec<u8>>,
    send_errors: u64,
}

impl MemoryPort {
    /// Puts a frame on the network, whatever its bytes.
    pub fn send_raw(&self, frame: &[u8]) {
        self.network.lock().send(self.host, frame.to_vec());
    }

    /// Takes all frames that have come.
    pub fn receive_raw(&mut self) -> Vec<Vec<u8>> {
        let mut frames = self.network.lock();
        let queue = frames.hosts.get_mut(self.host).and_then(|host| host.queues.get_mut(self.queue));
        queue.map(std::mem::take).unwrap_or_default().into()
    }
}

impl FramePort for MemoryPort {
    type Shared = Vec<u8>;

    fn mac(&self) -> MacAddress {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn offload(&self) -> PortOffloads {
        self.offload
    }

    fn listen(&mut self, _groups: &[MacAddress]) -> bool {
        self.listens
    }

    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.descriptor.clone()
    }

    fn receive(&mut self, most: usize) -> usize {
        let mut frames = self.network.lock();
        self.received.clear();
        if let Some(queue) = frames.hosts.get_mut(self.host).and_then(|host| host.queues.get_mut(self.queue)) {
            let count = most.min(queue.len());
            self.received.extend(queue.drain(..count));
        }
        self.received.len()
    }

    fn frame(&self, index: usize) -> Option<RxFrame<'_>> {
        let bytes = self.received.get(index).filter(|bytes| self.zero_copy_from == usize::MAX || !bytes.is_empty())?;
        let (ip, udp) = if self.verify { verify_checksums(bytes) } else { Default::default() };
        Some(RxFrame { ip, udp, ..RxFrame::plain(bytes) })
    }

    fn worth_taking(&self) -> usize {
        self.zero_copy_from
    }

    fn take(&mut self, index: usize) -> Option<Vec<u8>> {
        let may = self.zero_copy_from != usize::MAX;
        self.received.get_mut(index).filter(|bytes| may && !bytes.is_empty()).map(std::mem::take)
    }

    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> usize {
        let count = frames.len().min(self.room);
        self.room -= if self.room == usize::MAX { 0 } else { count };
        for frame in frames.iter().take(count) {
            let mut bytes = vec![0; frame.len()];
            if frame.len() > super::wire::ETHERNET_HEADER_LEN + self.mtu || frame.copy_to(&mut bytes).is_none() {
                self.send_errors += 1;
                continue;
            }
            fill_checksums(frame, &mut bytes);
            self.network.lock().send(self.host, bytes);
        }
        count
    }

    fn pressure(&mut self) -> ReceivePressure {
        let frames = self.network.lock();
        let queue = frames.hosts.get(self.host).and_then(|host| host.queues.get(self.queue)).map_or(0, VecDeque::len);
        ReceivePressure { filled: (queue * 1000 / frames.room.max(1)) as u32, thrown_away: frames.thrown_away }
    }

    fn came_up(&mut self) -> bool {
        std::mem::take(&mut self.came_up)
    }

    fn send_errors(&self) -> u64 {
        self.send_errors
    }
}

/// Returns what hardware reports of a frame's checksums. The frame is read in another way than the stack does.
fn verify_checksums(frame: &[u8]) -> (ChecksumStatus, ChecksumStatus) {
    use super::wire::{checksum, ethertype, protocol, u16_at};
    let mark = |right| if right { ChecksumStatus::Valid } else { ChecksumStatus::Invalid };
    let Some(packet) = frame.get(super::wire::ETHERNET_HEADER_LEN..) else { return Default::default() };
    if u16_at(frame, 12) != Some(ethertype::IPV4_HEADER_LEN) {
        return Default::default();
    }
    let header_len = usize::from(packet.first().copied().unwrap_or(0) & 15) * 4;
    let ip =
        packet.get(..header_len.max(20)).map_or(ChecksumStatus::Unknown, |header| mark(checksum::is_valid(header)));
    let Ok(parsed) = super::wire::ip::read_ipv4(packet, ip) else { return (ip, ChecksumStatus::Unknown) };
    if parsed.protocol != protocol::UDP_HEADER_LEN || u16_at(parsed.payload, 6) == Some(0) {
        return (ip, ChecksumStatus::Unknown);
    }
    let mut sum = checksum::InternetChecksum::pseudo_header(
        parsed.from,
        parsed.to,
        protocol::UDP_HEADER_LEN,
        parsed.payload.len(),
    );
    sum.add(parsed.payload);
    let whole = u16_at(parsed.payload, 4) == Some(parsed.payload.len() as u16);
    (ip, if whole { mark(sum.folded() == 0xFFFF) } else { ChecksumStatus::Unknown })
}

/// Computes the checksums that the frame asks for, as hardware does: over the bytes from the UDP header on, including
/// the checksum field as it stands.
fn fill_checksums(frame: &TxFrame<'_>, bytes: &mut [u8]) {
    use super::wire::{ETHERNET_HEADER_LEN, checksum};
    if frame.fill.ip
        && let Some(header) = bytes.get_mut(ETHERNET_HEADER_LEN..ETHERNET_HEADER_LEN + frame.ip_header_len)
    {
        let sum = checksum::checksum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    if frame.fill.udp
        && let Some(udp) = bytes.get_mut(ETHERNET_HEADER_LEN + frame.ip_header_len..)
        && udp.len() >= super::wire::UDP_HEADER_LEN
    {
        let sum = checksum::checksum(udp);
        let sum = if sum == 0 { 0xFFFF } else { sum };
        udp[6..8].copy_from_slice(&sum.to_be_bytes());
    }
}
