//! Gets from a client that does as little as an echo's: hand-written messages, no window, no timers, no library. So the
//! comparison with the echo measures the server and not the client.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use sandstorm_client::load::keys::{KeyChooser, RECORD, check_value, write_key};
use sandstorm_client::load::{Data, Skew};
use sandstorm_net::driver::{Burst, DatagramDriver, Outbox};
use sandstorm_net::r2p2::DatagramSink;
use sandstorm_net::rpc::{
    MESSAGE_FLAG_IDEMPOTENT, MESSAGE_HEADER_LEN, MessageHeader, OP_HEADER_LEN, OpKind, Operation, RpcStatus,
    encode_message, encode_op_header_with_lens,
};

use super::super::echo::ProbeProtocol;
use sandstorm_terminal::output::CliError;

/// Bytes of R2P2's header of a message of one packet.
const R2P2_HEADER_BYTES: usize = 8;
/// One answer in this many is checked in full.
const VERIFY_EVERY: u16 = 64;
/// Most requests in flight; a power of two.
const MAX_IN_FLIGHT: usize = 1024;
/// Time within which the server must answer the first message, and the interval at which it is sent again.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
const HELLO_RETRY: Duration = Duration::from_millis(20);

/// The R2P2 header of a request (docs/wire.md).
fn r2p2_header(id: u16) -> [u8; R2P2_HEADER_BYTES] {
    let [high, low] = id.to_be_bytes();
    [0xCC, R2P2_HEADER_BYTES as u8, 0, 0xC0, high, low, 0, 1]
}

/// Returns the request id that a packet answers, and the message in it.
fn answer(datagram: &[u8]) -> Option<(u16, &[u8])> {
    let (head, message) = datagram.split_first_chunk::<R2P2_HEADER_BYTES>()?;
    let [0xCC, _, 0x10, 0xC0, high, low, ..] = *head else { return None };
    Some((u16::from_be_bytes([high, low]), message))
}

/// A client that gets plain records by Zipf's law.
pub(super) struct BareGets {
    /// The bytes of every request between R2P2's header and the key.
    rpc_header: [u8; MESSAGE_HEADER_LEN + OP_HEADER_LEN],
    data: Data,
    chooser: KeyChooser,
    rng: SmallRng,
    key: Vec<u8>,
    id: u16,
    /// For each slot, the send time of its request and the record; the time is 0 where none is in flight.
    sent: Box<[(u64, u64)]>,
    header: MessageHeader,
}

impl BareGets {
    /// Creates a client of this tenant.
    pub(super) fn new(tenant: u32, data: Data) -> Result<BareGets, CliError> {
        let session = rand::random();
        let header =
            MessageHeader { flags: MESSAGE_FLAG_IDEMPOTENT, operations: 1, tenant, session, sequence: 1, acked: 0 };
        let get = Operation { table: data.table, ..Operation::new(OpKind::Get) };
        let mut rpc_header = [0; MESSAGE_HEADER_LEN + OP_HEADER_LEN];
        rpc_header[..MESSAGE_HEADER_LEN].copy_from_slice(&header.encode());
        rpc_header[MESSAGE_HEADER_LEN..].copy_from_slice(&encode_op_header_with_lens(&get, data.key_len, 0));
        let chooser = KeyChooser::new(Skew::Zipf { exponent: 0.99 }, data.records).map_err(CliError::new)?;
        let (rng, sent) = (SmallRng::seed_from_u64(1), vec![(0, 0); MAX_IN_FLIGHT].into());
        Ok(BareGets { rpc_header, data, chooser, rng, key: Vec::new(), id: 0, sent, header })
    }

    /// Shows the tenant's token.
    pub(super) fn send_hello<D: DatagramDriver>(
        &self,
        to: SocketAddr,
        token: &str,
        driver: &mut D,
    ) -> Result<(), CliError> {
        let hello = Operation { value: token.as_bytes(), ..Operation::new(OpKind::Hello) };
        let mut message = Vec::new();
        encode_message(&self.header, &[hello], &mut message);
        let (mut burst, mut outbox): (Burst, _) = (driver.burst(), Outbox::default());
        let (begun, mut due) = (Instant::now(), Duration::ZERO);
        while begun.elapsed() < HELLO_TIMEOUT {
            if begun.elapsed() >= due {
                outbox.send(to, &[&r2p2_header(0), &message]);
                due = begun.elapsed() + HELLO_RETRY;
            }
            driver.transmit(&mut outbox);
            driver.receive(&mut burst);
            if let Some((_, message)) = burst.iter().find_map(|(_, datagram)| answer(datagram)) {
                return match status_of(message) {
                    Some(RpcStatus::Ok) => Ok(()),
                    other => Err(CliError::new(format!("a hello was answered with {other:?}"))),
                };
            }
            std::thread::yield_now();
        }
        Err(CliError::new("a hello was not answered"))
    }
}

/// The status of a message's first operation.
fn status_of(message: &[u8]) -> Option<RpcStatus> {
    let (_, mut operations) = MessageHeader::decode(message).ok()?;
    Some(operations.next()?.ok()?.status)
}

impl ProbeProtocol for BareGets {
    fn send_get(&mut self, to: SocketAddr, now_ns: u64, outbox: &mut Outbox) {
        self.id = self.id.wrapping_add(1);
        let record = self.chooser.next(&mut self.rng);
        write_key(RECORD, record, self.data.key_len, &mut self.key);
        if let Some(slot) = self.sent.get_mut(usize::from(self.id) % MAX_IN_FLIGHT) {
            *slot = (now_ns.max(1), record);
        }
        outbox.send(to, &[&r2p2_header(self.id), &self.rpc_header, &self.key]);
    }

    fn sent_ns(&mut self, datagram: &[u8]) -> Option<u64> {
        let (id, message) = answer(datagram)?;
        let slot = self.sent.get_mut(usize::from(id) % MAX_IN_FLIGHT)?;
        let (sent_ns, record) = std::mem::take(slot);
        let is_right = message.get(MESSAGE_HEADER_LEN + 2) == Some(&(RpcStatus::Ok as u8))
            && (!id.is_multiple_of(VERIFY_EVERY) || is_record(message, record, self.data.value_len));
        (sent_ns > 0 && is_right).then_some(sent_ns)
    }
}

/// Returns whether a message answers with this record.
fn is_record(message: &[u8], record: u64, value_len: usize) -> bool {
    let Ok((_, mut operations)) = MessageHeader::decode(message) else { return false };
    let Some(Ok(answer)) = operations.next() else { return false };
    answer.value.len() == value_len && check_value(record, answer.value)
}
