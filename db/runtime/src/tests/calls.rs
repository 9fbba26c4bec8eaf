//! Promises: whatever an extension asks of the server, every answer through the API is that of a model, and every
//! request past the API gets a status. Both run under a sanitizer as well (`scripts/test deep`).

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use sandstorm_api::abi;

use super::*;

/// The extension that follows its arguments.
const PROGRAM: &str = include_str!("../../../../tests/calls/program.rs");
/// Operations of a wild call, in the order of `HostCalls`.
const WILD_CALLS: u8 = 13;
/// Bytes of one wild call: operation, table, pointer and length of the key and of the value, condition.
const WILD_STEP: usize = 7;

/// The highest status that the interface knows.
const LAST_STATUS: u32 = abi::STATUS_NOT_ORDERED;

/// The expected content of the table.
#[derive(Default)]
struct Model(BTreeMap<u8, Vec<u8>>);

fn value(number: u8) -> Vec<u8> {
    let byte = if number & 1 == 0 { b'7' } else { b'x' };
    vec![byte; usize::from(number % 5) + 1]
}

impl Model {
    /// Returns the reply to a program; `None` when it fails.
    fn run(&mut self, program: &[u8]) -> Option<Vec<u8>> {
        let mut reply = Vec::new();
        for step in program.chunks_exact(3) {
            let found = self.step(step[0] % 14, step[1], step[2], &mut reply)?;
            reply.push(found);
        }
        Some(reply)
    }

    fn step(&mut self, operation: u8, a: u8, b: u8, reply: &mut Vec<u8>) -> Option<u8> {
        let key = a % 8;
        let known = self.0.get(&key).cloned();
        Some(match operation {
            0 => {
                reply.extend(known.iter().flatten());
                if known.is_some() { b'g' } else { b'-' }
            }
            2 if known.is_some() => b'c',
            1 | 2 => self.put(key, value(b), b'p'),
            3 => self.0.remove(&key).map_or(b'-', |_| b'd'),
            4 => self.increment(key, b),
            5 => {
                reply.push(self.0.len() as u8);
                let sum = |value: &Vec<u8>| value.iter().fold(0, |sum, byte| sum ^ byte);
                self.0.values().map(sum).fold(0, u8::wrapping_add)
            }
            6 => (0..a).filter(|number| self.0.contains_key(&(number % 8))).count() as u8,
            7 => b'o',
            8 => 1,
            9 => b'y',
            10 => b'u',
            11 => b'l',
            12 if known.is_some() && b & 1 == 0 => self.put(key, value(b), b'v'),
            12 => b'c',
            _ if b == 0 => return None,
            _ => b'u',
        })
    }

    fn put(&mut self, key: u8, value: Vec<u8>, answer: u8) -> u8 {
        self.0.insert(key, value);
        answer
    }

    fn increment(&mut self, key: u8, by: u8) -> u8 {
        let known = self.0.get(&key).map_or("0", |value| std::str::from_utf8(value).expect("text"));
        let Ok(number) = known.parse::<i64>() else { return b'n' };
        let sum = number + i64::from(by);
        self.put(key, sum.to_string().into_bytes(), sum as u8)
    }
}

/// The same programs in every run.
fn runner(cases: u32) -> TestRunner {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    TestRunner::new_with_rng(Config { cases, failure_persistence: None, ..Config::default() }, rng)
}

#[test]
fn random_programs_of_host_calls_find_what_a_model_finds() {
    let extension = compiled("program", PROGRAM);
    let world = std::cell::RefCell::new((World::new(), Model::default()));
    let program = proptest::collection::vec(any::<u8>(), 0..300);
    let result = runner(300).run(&program, |program| {
        let (world, model) = &mut *world.borrow_mut();
        let budget = Budget { reply_bytes: 1 << 20, memory_bytes: 16 << 20, ..long() };
        let (end, reply, text) = world.run(&extension, &program, budget);
        match model.run(&program) {
            Some(expected) => prop_assert_eq!((end, reply), (PollOutcome::Done, expected), "{}", text),
            None => prop_assert!(matches!(end, PollOutcome::Failed { .. }) && text == "as told", "{:?} {}", end, text),
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

/// Makes the requests of its arguments past the API. Replies with the statuses.
unsafe extern "C" fn asks_as_told(_: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    // SAFETY: a live invocation, whose arguments the host keeps until it ends.
    let (host, steps) = unsafe {
        let invocation = &*invocation;
        (&*invocation.host, std::slice::from_raw_parts(invocation.args, invocation.args_len))
    };
    let bytes = [b'1'; 64];
    let mut statuses = Vec::new();
    for step in steps.chunks_exact(WILD_STEP) {
        let [operation, table, key, key_len, value, value_len, condition] = *step else { unreachable!("seven bytes") };
        let pointer = |how: u8| if how.is_multiple_of(4) { std::ptr::null() } else { bytes.as_ptr() };
        // A length is right for the bytes that are there, or beyond every limit.
        let length = |how: u8| match how {
            240..248 => usize::MAX,
            248..252 => usize::MAX / 2,
            252.. => 1 << 40,
            _ => usize::from(how % 65),
        };
        let (key, key_len, value, value_len) = (pointer(key), length(key_len), pointer(value), length(value_len));
        let table = [1, 1, 1, 0, 2, 99, u64::MAX, 1 << 63][usize::from(table % 8)];
        let (mut number, mut sum, mut filled) = (0, 0, 0);
        let mut records = [abi::RawRecord::EMPTY; 8];
        let mut cursor = abi::RawCursor { position: u64::from(condition) << 56, finished: u64::from(condition & 1) };
        let how = abi::RawWrite { condition: u32::from(condition), flags: 7, version: 3, ttl_ms: u64::MAX };
        let how = if condition.is_multiple_of(3) { std::ptr::null() } else { &raw const how };
        // SAFETY: a live invocation and locals; each pointer is null, or has as many bytes as the length says, or the
        // length is beyond the limits, so that the host must not look.
        statuses.push(unsafe {
            match operation % WILD_CALLS {
                0 => (host.prefetch)(invocation, table, key, key_len, &mut number),
                1 => {
                    (host.prefetch_record)(invocation, table, u64::from(condition) << 56 | u64::from(value_len as u32))
                }
                2 => (host.get)(invocation, table, u64::from(condition), key, key_len, &mut records[0]),
                3 => (host.put)(invocation, table, key, key_len, value, value_len, how, &mut number),
                4 => (host.delete)(invocation, table, key, key_len, how),
                5 => (host.increment)(invocation, table, key, key_len, i64::MAX - i64::from(condition), &mut sum),
                6 => (host.scan)(
                    invocation,
                    table,
                    &mut cursor,
                    records.as_mut_ptr(),
                    usize::from(condition % 9),
                    &mut filled,
                ),
                7 => (host.table_by_name)(invocation, key, key_len, &mut number),
                8 => (host.reply)(invocation, key, key_len),
                9..12 => {
                    let keys = [abi::RawKey { first: key, len: key_len }, abi::RawKey { first: value, len: value_len }];
                    let mut hashes = [u64::from(condition) << 56, 0];
                    let count = [0, 1, 2, usize::MAX][usize::from(condition % 4)];
                    let keys = if condition.is_multiple_of(9) { std::ptr::null() } else { keys.as_ptr() };
                    match operation % WILD_CALLS {
                        9 => (host.prefetch_many)(invocation, table, keys, count, hashes.as_mut_ptr()),
                        10 => (host.prefetch_records)(invocation, table, hashes.as_ptr(), count),
                        _ => (host.get_many)(invocation, table, keys, hashes.as_ptr(), count, records.as_mut_ptr()),
                    }
                }
                // A text has no limit beyond which it is refused: it is cut. So its length must be right.
                _ => (host.fail)(invocation, u32::from(condition), bytes.as_ptr(), usize::from(condition % 65)),
            }
        } as u8);
        assert!(filled <= records.len(), "{filled} records in a place for {}", records.len());
    }
    // SAFETY: as above.
    unsafe { (host.reply)(invocation, statuses.as_ptr(), statuses.len()) };
    abi::POLL_DONE
}

#[test]
fn random_wild_requests_get_a_status_each_and_harm_nothing() {
    let extension = native(asks_as_told);
    let world = std::cell::RefCell::new(World::new());
    let steps = proptest::collection::vec(any::<u8>(), 0..40 * WILD_STEP);
    let result = runner(500).run(&steps, |steps| {
        let world = &mut *world.borrow_mut();
        let (end, reply, _) = world.run(&extension, &steps, Budget { reply_bytes: 64 << 10, ..long() });
        prop_assert_eq!(end, PollOutcome::Done);
        // The text of earlier wild calls stands in front; a call of `fail` drops it.
        let statuses = reply.len().checked_sub(steps.len() / WILD_STEP).map(|start| &reply[start..]);
        let statuses = statuses.ok_or_else(|| TestCaseError::fail("the statuses are not there"))?;
        prop_assert!(statuses.iter().all(|status| u32::from(*status) <= LAST_STATUS), "{:?}", statuses);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

/// Set for a child of the test below, which is to break.
const BREAKS: &str = "SANDSTORM_TEST_BREAKS_IN_A_HOST_CALL";

unsafe extern "C" fn breaks(_: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    // SAFETY: stands for a host function.
    unsafe { host_call::call(invocation, |_, _| panic!("a host call broke")) }
}

#[test]
fn a_panic_inside_a_host_call_ends_the_process_with_its_message() {
    use std::os::unix::process::ExitStatusExt;

    if std::env::var_os(BREAKS).is_some() {
        World::new().run(&native(breaks), b"", long());
        return;
    }
    let name = "tests::calls::a_panic_inside_a_host_call_ends_the_process_with_its_message";
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(BREAKS, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stderr);
    assert_eq!(child.status.signal(), Some(libc::SIGABRT), "{said}");
    assert!(said.contains("a host call broke"), "{said}");
}
