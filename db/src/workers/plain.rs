//! Plain operations: get, multiget, put, delete, increment. Each appends exactly one answer to the response.

use sandstorm_net::rpc::{
    self, MAX_VALUE_LEN, OP_FLAG_TTL, OP_HEADER_LEN, Op, Operation, Status, encode_operation, op_header,
};

use crate::limits::PLAN;
use crate::store::{Condition, Guard, Participant, RecordRef, StoreError, Table, Write};

/// What a plain operation needs besides the table.
pub(crate) struct Context<'w> {
    pub(crate) participant: &'w Participant,
    pub(crate) now_ms: u64,
}

/// The answer to `operation` that says no more than how it ended.
pub(crate) fn answer<'a>(operation: &Operation<'_>, status: Status) -> Operation<'a> {
    Operation { status, table: operation.table, ..Operation::new(operation.op) }
}

/// Appends an answer with a text that says what was wrong.
pub(crate) fn refuse(operation: &Operation<'_>, status: Status, text: &str, response: &mut Vec<u8>) -> Status {
    encode_operation(&Operation { value: text.as_bytes(), ..answer(operation, status) }, response);
    status
}

/// Runs one plain operation whose key hashes to `hash` and appends its answer.
pub(crate) fn run(
    context: &Context<'_>,
    table: &Table,
    operation: &Operation<'_>,
    hash: u64,
    response: &mut Vec<u8>,
) -> Status {
    match operation.op {
        Op::Get => get(context, table, operation, hash, response),
        Op::MultiGet => multi_get(context, table, operation, response),
        Op::Put => put(context, table, operation, hash, response),
        Op::Delete => delete(context, table, operation, hash, response),
        Op::Increment => increment(context, table, operation, hash, response),
        Op::Ping | Op::Hello | Op::Invoke => {
            refuse(operation, Status::Malformed, "not an operation on a record", response)
        }
    }
}

fn get(context: &Context<'_>, table: &Table, operation: &Operation<'_>, hash: u64, response: &mut Vec<u8>) -> Status {
    let guard = context.participant.guard();
    let found = table.get(&guard, hash, operation.key, context.now_ms);
    let answer = match &found {
        Some(record) => Operation {
            user_flags: record.flags(),
            number: record.version(),
            value: record.value(),
            ..answer(operation, Status::Ok)
        },
        None => answer(operation, Status::NotFound),
    };
    encode_operation(&answer, response);
    answer.status
}

/// The condition that an operation asks for.
fn condition(operation: &Operation<'_>) -> Condition {
    match operation.condition {
        rpc::Condition::Always => Condition::Always,
        rpc::Condition::Absent => Condition::Absent,
        rpc::Condition::Present => Condition::Present,
        rpc::Condition::Version => Condition::Version(operation.number),
    }
}

fn put(context: &Context<'_>, table: &Table, operation: &Operation<'_>, hash: u64, response: &mut Vec<u8>) -> Status {
    let (mut value, mut expires_at_ms) = (operation.value, 0);
    if operation.flags & OP_FLAG_TTL != 0 {
        let Some((ttl_ms, rest)) = value.split_first_chunk::<8>() else {
            return refuse(
                operation,
                Status::Malformed,
                "a put with an expiry starts with 8 bytes of milliseconds",
                response,
            );
        };
        let ttl_ms = u64::from_le_bytes(*ttl_ms);
        expires_at_ms = if ttl_ms == 0 { 0 } else { context.now_ms.saturating_add(ttl_ms) };
        value = rest;
    }
    let write = Write { condition: condition(operation), flags: operation.user_flags, expires_at_ms };
    match table.put(context.participant, hash, operation.key, value, &write, context.now_ms) {
        Ok(version) => done(operation, version, response),
        Err(error) => refuse_store(operation, error, response),
    }
}

fn delete(
    context: &Context<'_>,
    table: &Table,
    operation: &Operation<'_>,
    hash: u64,
    response: &mut Vec<u8>,
) -> Status {
    match table.delete(context.participant, hash, operation.key, condition(operation), context.now_ms) {
        Ok(true) => done(operation, 0, response),
        Ok(false) => {
            encode_operation(&answer(operation, Status::NotFound), response);
            Status::NotFound
        }
        Err(error) => refuse_store(operation, error, response),
    }
}

fn increment(
    context: &Context<'_>,
    table: &Table,
    operation: &Operation<'_>,
    hash: u64,
    response: &mut Vec<u8>,
) -> Status {
    match table.increment(context.participant, hash, operation.key, operation.number as i64, context.now_ms) {
        Ok((sum, _)) => done(operation, sum as u64, response),
        Err(error) => refuse_store(operation, error, response),
    }
}

fn done(operation: &Operation<'_>, number: u64, response: &mut Vec<u8>) -> Status {
    encode_operation(&Operation { number, ..answer(operation, Status::Ok) }, response);
    Status::Ok
}

/// The answer to what the store refused. A conflict needs no text: it is part of normal work.
fn refuse_store(operation: &Operation<'_>, error: StoreError, response: &mut Vec<u8>) -> Status {
    let status = match error {
        StoreError::Conflict => {
            encode_operation(&answer(operation, Status::Conflict), response);
            return Status::Conflict;
        }
        StoreError::OutOfMemory => Status::OutOfMemory,
        StoreError::KeyTooLarge | StoreError::ValueTooLarge => Status::TooLarge,
        StoreError::NotANumber => Status::NotANumber,
        StoreError::WrongServer => Status::WrongServer,
    };
    refuse(operation, status, &error.to_string(), response)
}

/// Reads many records: hashes and prefetches a batch of keys, then reads it, so that the cache misses overlap.
fn multi_get(context: &Context<'_>, table: &Table, operation: &Operation<'_>, response: &mut Vec<u8>) -> Status {
    let guard = context.participant.guard();
    let start = response.len();
    response.resize(start + OP_HEADER_LEN, 0);
    let (mut rest, mut asked, mut found) = (operation.value, 0u64, 0u64);
    while !rest.is_empty() {
        let mut batch = [(0u64, &[][..]); PLAN];
        let mut filled = 0;
        while filled < PLAN && !rest.is_empty() {
            let Some((key, behind)) = take_key(rest) else {
                response.truncate(start);
                return refuse(
                    operation,
                    Status::Malformed,
                    "a multiget's value is keys, each length (4 bytes) and bytes",
                    response,
                );
            };
            let hash = table.hash(key);
            table.prefetch_bucket(hash);
            batch[filled] = (hash, key);
            (filled, rest) = (filled + 1, behind);
        }
        let batch = &batch[..filled];
        batch.iter().for_each(|(hash, _)| table.prefetch_record(*hash));
        for (hash, key) in batch {
            found += u64::from(append_record(table, &guard, *hash, key, context.now_ms, response));
        }
        asked += filled as u64;
        if response.len() - start - OP_HEADER_LEN > MAX_VALUE_LEN {
            response.truncate(start);
            return refuse(
                operation,
                Status::TooLarge,
                "the records are longer than one answer can be; ask for fewer",
                response,
            );
        }
    }
    if asked != operation.number {
        response.truncate(start);
        return refuse(operation, Status::Malformed, "a multiget's number is not the count of its keys", response);
    }
    let answer = Operation { number: found, ..answer(operation, Status::Ok) };
    let header = op_header(&answer, 0, response.len() - start - OP_HEADER_LEN);
    response[start..start + OP_HEADER_LEN].copy_from_slice(&header);
    Status::Ok
}

fn take_key(keys: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = keys.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_le_bytes(*len) as usize)
}

/// Appends one record of a multiget's answer; tells whether there was one.
fn append_record(table: &Table, guard: &Guard<'_>, hash: u64, key: &[u8], now_ms: u64, response: &mut Vec<u8>) -> bool {
    let record: Option<RecordRef<'_>> = if table.owns(hash) { table.get(guard, hash, key, now_ms) } else { None };
    let (status, flags, version, value) = match &record {
        Some(record) => (Status::Ok, record.flags(), record.version(), record.value()),
        None if !table.owns(hash) => (Status::WrongServer, 0, 0, &[][..]),
        None => (Status::NotFound, 0, 0, &[][..]),
    };
    response.push(status as u8);
    response.extend_from_slice(&flags.to_le_bytes());
    response.extend_from_slice(&version.to_le_bytes());
    response.extend_from_slice(&(value.len() as u32).to_le_bytes());
    response.extend_from_slice(value);
    record.is_some()
}
