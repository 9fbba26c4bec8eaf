//! Gets that are asked for as barely as an echo is: messages written by hand, no window, no timers, no library between the question and the driver.
//! So what is compared with the echo is the server, and not the client.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use sandstorm_client::load::keys::{Chooser, RECORD, check_value, write_key};
use sandstorm_client::load::{Data, Skew};
use sandstorm_net::driver::{Burst, Driver, Outbox};
use sandstorm_net::r2p2::Transmit;
use sandstorm_net::rpc::{
    FLAG_IDEMPOTENT, MESSAGE_HEADER_LEN, MessageHeader, OP_HEADER_LEN, Op, Operation, Status, encode_message, op_header,
};

use super::super::echo::Question;
use crate::cli::output::Failure;

/// Bytes of R2P2's header of a message of one packet.
const HEAD: usize = 8;
/// One in so many answers is looked at whole.
const VERIFY_EVERY: u16 = 64;
/// Most that may be under way; a power of two.
const PLACES: usize = 1024;
/// How long the server may take to answer the first message, and after how long it is sent again.
const PATIENCE: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(20);

/// A request's header, of R2P2 (docs/wire.md).
fn head(id: u16) -> [u8; HEAD] {
    let [high, low] = id.to_be_bytes();
    [0xCC, HEAD as u8, 0, 0xC0, high, low, 0, 1]
}

/// Which request a packet answers, and the message in it.
fn answer(datagram: &[u8]) -> Option<(u16, &[u8])> {
    let (head, message) = datagram.split_first_chunk::<HEAD>()?;
    let [0xCC, _, 0x10, 0xC0, high, low, ..] = *head else { return None };
    Some((u16::from_be_bytes([high, low]), message))
}

/// One who asks for plain records, by Zipf's law.
pub(super) struct BareGets {
    /// What all questions have between R2P2's header and the key.
    middle: [u8; MESSAGE_HEADER_LEN + OP_HEADER_LEN],
    data: Data,
    chooser: Chooser,
    rng: SmallRng,
    key: Vec<u8>,
    id: u16,
    /// When the request of each place was sent, and for which record; none is under way if that is 0.
    sent: Box<[(u64, u64)]>,
    header: MessageHeader,
}

impl BareGets {
    /// One that acts for this tenant.
    pub(super) fn new(tenant: u32, data: Data) -> Result<BareGets, Failure> {
        let session = rand::random();
        let header = MessageHeader { flags: FLAG_IDEMPOTENT, operations: 1, tenant, session, sequence: 1, acked: 0 };
        let get = Operation { table: data.table, ..Operation::new(Op::Get) };
        let mut middle = [0; MESSAGE_HEADER_LEN + OP_HEADER_LEN];
        middle[..MESSAGE_HEADER_LEN].copy_from_slice(&header.encode());
        middle[MESSAGE_HEADER_LEN..].copy_from_slice(&op_header(&get, data.key_len, 0));
        let chooser = Chooser::new(Skew::Zipf { exponent: 0.99 }, data.records).map_err(Failure::new)?;
        let (rng, sent) = (SmallRng::seed_from_u64(1), vec![(0, 0); PLACES].into());
        Ok(BareGets { middle, data, chooser, rng, key: Vec::new(), id: 0, sent, header })
    }

    /// Shows the tenant's token.
    pub(super) fn say_hello<D: Driver>(&self, to: SocketAddr, token: &str, driver: &mut D) -> Result<(), Failure> {
        let hello = Operation { value: token.as_bytes(), ..Operation::new(Op::Hello) };
        let mut message = Vec::new();
        encode_message(&self.header, &[hello], &mut message);
        let (mut burst, mut outbox): (Burst, _) = (driver.burst(), Outbox::default());
        let (begun, mut due) = (Instant::now(), Duration::ZERO);
        while begun.elapsed() < PATIENCE {
            if begun.elapsed() >= due {
                outbox.send(to, &[&head(0), &message]);
                due = begun.elapsed() + AGAIN;
            }
            driver.transmit(&mut outbox);
            driver.receive(&mut burst);
            if let Some((_, message)) = burst.iter().find_map(|(_, datagram)| answer(datagram)) {
                return match status_of(message) {
                    Some(Status::Ok) => Ok(()),
                    other => Err(Failure::new(format!("a hello was answered with {other:?}"))),
                };
            }
            std::thread::yield_now();
        }
        Err(Failure::new("a hello was not answered"))
    }
}

/// The status of a message's first operation.
fn status_of(message: &[u8]) -> Option<Status> {
    let (_, mut operations) = MessageHeader::decode(message).ok()?;
    Some(operations.next()?.ok()?.status)
}

impl Question for BareGets {
    fn ask(&mut self, to: SocketAddr, now_ns: u64, outbox: &mut Outbox) {
        self.id = self.id.wrapping_add(1);
        let record = self.chooser.next(&mut self.rng);
        write_key(RECORD, record, self.data.key_len, &mut self.key);
        if let Some(place) = self.sent.get_mut(usize::from(self.id) % PLACES) {
            *place = (now_ns.max(1), record);
        }
        outbox.send(to, &[&head(self.id), &self.middle, &self.key]);
    }

    fn sent_ns(&mut self, datagram: &[u8]) -> Option<u64> {
        let (id, message) = answer(datagram)?;
        let place = self.sent.get_mut(usize::from(id) % PLACES)?;
        let (sent_ns, record) = std::mem::take(place);
        let is_right = message.get(MESSAGE_HEADER_LEN + 2) == Some(&(Status::Ok as u8))
            && (!id.is_multiple_of(VERIFY_EVERY) || is_record(message, record, self.data.value_len));
        (sent_ns > 0 && is_right).then_some(sent_ns)
    }
}

/// Whether a message answers with this record.
fn is_record(message: &[u8], record: u64, value_len: usize) -> bool {
    let Ok((_, mut operations)) = MessageHeader::decode(message) else { return false };
    let Some(Ok(answer)) = operations.next() else { return false };
    answer.value.len() == value_len && check_value(record, answer.value)
}
