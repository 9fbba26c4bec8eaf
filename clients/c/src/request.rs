//! Reads a request, has the client do it, and writes its answer.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandstorm_client::control::{ChangePage, TableChange};
use sandstorm_client::raw::{CommitMessage, CommitRow, CommitRows, CommitStep, push_commit_row};
use sandstorm_client::{Client, Direction, MeasuredCall, PutOptions, Record, RecordExpiry, TypedCallError};
use serde_json::Value;

use crate::answer::{AnswerBytes, Failure};

/// The fields of a request, from the front.
struct RequestFields<'r>(&'r [u8]);

const SHORT: &str = "the request ends inside a field";

impl<'r> RequestFields<'r> {
    fn take(&mut self, len: usize) -> Result<&'r [u8], Failure> {
        let Some((field, rest)) = self.0.split_at_checked(len) else { return Err(malformed(SHORT)) };
        self.0 = rest;
        Ok(field)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Failure> {
        self.take(N)?.try_into().map_err(|_| malformed(SHORT))
    }

    fn byte(&mut self) -> Result<u8, Failure> {
        self.array().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Failure> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Failure> {
        self.array().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Result<&'r [u8], Failure> {
        let len = self.u32()? as usize;
        self.take(len)
    }

    fn text(&mut self) -> Result<&'r str, Failure> {
        std::str::from_utf8(self.bytes()?).map_err(|_| malformed("a name is no UTF-8"))
    }

    fn end(&self) -> Result<(), Failure> {
        if self.0.is_empty() { Ok(()) } else { Err(malformed("bytes follow the request's end")) }
    }
}

fn malformed(why: &str) -> Failure {
    Failure::new("malformed", why)
}

/// The answer to a request.
pub(crate) async fn answer(client: &Client, request: &[u8]) -> Vec<u8> {
    match run(client, request).await {
        Ok(answer) => answer.done(),
        Err(failure) => failure.encode(),
    }
}

async fn run(client: &Client, request: &[u8]) -> Result<AnswerBytes, Failure> {
    let mut fields = RequestFields(request);
    let (operation, deadline_ms) = (fields.byte()?, fields.u32()?);
    let with_deadline = (deadline_ms > 0).then(|| client.with_deadline(Duration::from_millis(u64::from(deadline_ms))));
    let client = with_deadline.as_ref().unwrap_or(client);
    let result = AnswerBytes::result();
    match operation {
        0 => {
            fields.end()?;
            client.ping().await?;
            Ok(result)
        }
        1 => {
            let name = fields.text()?;
            fields.end()?;
            Ok(result.put(&client.table(name).await?.to_le_bytes()))
        }
        2..=7 => records(client, operation, fields, result).await,
        8..=11 => calls(client, operation, fields, result).await,
        12 => {
            client.commit_steps(&commit_steps(fields)?).await?;
            Ok(result)
        }
        13 => {
            let (table, has_after, after) = (fields.text()?, fields.byte()? != 0, fields.text()?);
            let wait_s = fields.u32()?;
            fields.end()?;
            change_page(&client.changes(table, has_after.then_some(after), wait_s.into()).await?, result)
        }
        14 => {
            let (key, operation) = (fields.bytes()?, fields.byte()?);
            if !matches!(operation, 8 | 9 | 11 | 22) {
                return Err(malformed("what is done near a key is a call"));
            }
            calls(&client.calls_near(key), operation, fields, result).await
        }
        15 => put_many(client, fields, result).await,
        16..=18 => positions(client, operation, fields, result).await,
        19 | 20 => expiry(client, operation, fields, result).await,
        21 => count_many(client, fields, result).await,
        22 => calls(client, operation, fields, result).await,
        _ => Err(malformed("there is no such operation")),
    }
}

/// A page of a table's changes.
fn change_page(page: &ChangePage, result: AnswerBytes) -> Result<AnswerBytes, Failure> {
    let wrong = |why: String| Failure::new("protocol", format!("a change of the feed: {why}"));
    let mut result = result.counted(page.next.as_bytes()).bool(page.at_end);
    for TableChange { position, op, record } in &page.changes {
        let key = if op == "clear" { Cow::default() } else { record.key_bytes().map_err(wrong)? };
        let value = if op == "put" { record.value_bytes().map_err(wrong)? } else { Cow::default() };
        result = result.counted(position.as_bytes()).counted(op.as_bytes()).counted(&key).counted(&value);
        result = result.put(&record.version.to_le_bytes()).put(&record.flags.to_le_bytes());
        result = result.put(&record.expires_at_ms.to_le_bytes());
    }
    Ok(result)
}

/// Many puts.
async fn put_many(
    client: &Client,
    mut fields: RequestFields<'_>,
    mut result: AnswerBytes,
) -> Result<AnswerBytes, Failure> {
    let (table, ttl_ms, flags, count) = (fields.u64()?, fields.u64()?, fields.u32()?, fields.u32()?);
    let pair = |_| Ok::<_, Failure>((fields.bytes()?, fields.bytes()?));
    let records: Vec<(&[u8], &[u8])> = (0..count).map(pair).collect::<Result<_, _>>()?;
    fields.end()?;
    let ttl = time_to_live(ttl_ms);
    let options = PutOptions { flags, ttl, ..PutOptions::default() };
    for version in client.put_many(table, &records, &options).await? {
        result = result.put(&version.to_le_bytes());
    }
    Ok(result)
}

/// A time to live as a request has it; 0: none.
fn time_to_live(ttl_ms: u64) -> Option<Duration> {
    (ttl_ms > 0).then(|| Duration::from_millis(ttl_ms))
}

/// Positions in ordered tables.
async fn positions(
    client: &Client,
    operation: u8,
    mut fields: RequestFields<'_>,
    result: AnswerBytes,
) -> Result<AnswerBytes, Failure> {
    let table = fields.u64()?;
    match operation {
        16 => {
            let (from, to) = (fields.bytes()?, fields.bytes()?);
            fields.end()?;
            Ok(result.put(&client.count(table, from, to).await?.to_le_bytes()))
        }
        17 => {
            let key = fields.bytes()?;
            fields.end()?;
            Ok(result.put(&client.rank(table, key).await?.to_le_bytes()))
        }
        _ => {
            let position = fields.u64()?;
            fields.end()?;
            let key = client.nth(table, position).await?;
            Ok(result.bool(key.is_some()).put(key.as_deref().unwrap_or_default()))
        }
    }
}

/// Counts of many ranges.
async fn count_many(
    client: &Client,
    mut fields: RequestFields<'_>,
    mut result: AnswerBytes,
) -> Result<AnswerBytes, Failure> {
    let (table, count) = (fields.u64()?, fields.u32()?);
    let span = |_| Ok::<_, Failure>((fields.bytes()?, fields.bytes()?));
    let spans: Vec<(&[u8], &[u8])> = (0..count).map(span).collect::<Result<_, _>>()?;
    fields.end()?;
    for keys in client.count_many(table, &spans).await? {
        result = result.put(&keys.to_le_bytes());
    }
    Ok(result)
}

/// When records expire.
async fn expiry(
    client: &Client,
    operation: u8,
    mut fields: RequestFields<'_>,
    result: AnswerBytes,
) -> Result<AnswerBytes, Failure> {
    let (table, key) = (fields.u64()?, fields.bytes()?);
    if operation == 19 {
        fields.end()?;
        let expiry = client.ttl(table, key).await?;
        let left_ms = match expiry {
            Some(RecordExpiry::After(left)) => u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
            Some(RecordExpiry::Never) | None => 0,
        };
        return Ok(result.bool(expiry.is_some()).put(&left_ms.to_le_bytes()));
    }
    let ttl_ms = fields.u64()?;
    fields.end()?;
    let ttl = time_to_live(ttl_ms);
    Ok(result.bool(client.touch(table, key, ttl).await?))
}

/// Operations on records.
async fn records(
    client: &Client,
    operation: u8,
    mut fields: RequestFields<'_>,
    mut result: AnswerBytes,
) -> Result<AnswerBytes, Failure> {
    let table = fields.u64()?;
    match operation {
        2 => {
            let key = fields.bytes()?;
            fields.end()?;
            let record = client.get(table, key).await?;
            let (head, value) = match &record {
                Some(record) => (record_head(result, record), &record.value[..]),
                None => (no_record(result), &[][..]),
            };
            Ok(head.put(value))
        }
        3 => {
            let (key, value) = (fields.bytes()?, fields.bytes()?);
            let (condition, version) = (fields.byte()?, fields.u64()?);
            let (ttl_ms, flags) = (fields.u64()?, fields.u32()?);
            fields.end()?;
            let options = PutOptions { flags, ..PutOptions::default() };
            let mut options = match condition {
                0 => options,
                1 => options.if_absent(),
                2 => options.if_present(),
                3 => options.if_version(version),
                _ => return Err(malformed("there is no such condition")),
            };
            options.ttl = time_to_live(ttl_ms);
            let version = client.put(table, key, value).options(options).await?;
            Ok(result.put(&version.to_le_bytes()))
        }
        4 => {
            let (key, has_version, version) = (fields.bytes()?, fields.byte()?, fields.u64()?);
            fields.end()?;
            let was = match has_version {
                0 => client.delete(table, key).await?,
                _ => client.delete_if_version(table, key, version).await?,
            };
            Ok(result.bool(was))
        }
        5 => {
            let (key, delta) = (fields.bytes()?, i64::from_le_bytes(fields.array()?));
            fields.end()?;
            Ok(result.put(&client.increment(table, key, delta).await?.to_le_bytes()))
        }
        6 => {
            let count = fields.u32()?;
            let keys: Vec<&[u8]> = (0..count).map(|_| fields.bytes()).collect::<Result<_, _>>()?;
            fields.end()?;
            for record in client.multi_get(table, &keys).await? {
                result = match &record {
                    Some(record) => record_head(result, record).counted(&record.value),
                    None => no_record(result).counted(b""),
                };
            }
            Ok(result)
        }
        _ => {
            let (from, to, limit) = (fields.bytes()?, fields.bytes()?, fields.u32()?);
            let direction = if fields.byte()? == 0 { Direction::Forward } else { Direction::Backward };
            fields.end()?;
            for record in client.range(table, from, to, limit as usize, direction).await? {
                result = result.counted(&record.key).counted(&record.value);
                result = result.put(&record.version.to_le_bytes()).put(&record.flags.to_le_bytes());
            }
            Ok(result)
        }
    }
}

fn record_head(result: AnswerBytes, record: &Record) -> AnswerBytes {
    result.bool(true).put(&record.version.to_le_bytes()).put(&record.flags.to_le_bytes())
}

fn no_record(result: AnswerBytes) -> AnswerBytes {
    result.bool(false).put(&[0; 12])
}

/// The steps of a transaction.
fn commit_steps(mut fields: RequestFields<'_>) -> Result<CommitMessage, Failure> {
    let (count, mut steps) = (fields.u32()?, CommitMessage::default());
    for _ in 0..count {
        let (kind, table, key) = (fields.byte()?, fields.u64()?, fields.bytes()?);
        match kind {
            0 => steps.push(&CommitStep::Read { table, key, version: fields.u64()? })?,
            1 => {
                let (to, backward, rows) = (fields.bytes()?, fields.byte()? != 0, fields.u32()?);
                let mut encoded = Vec::new();
                for _ in 0..rows {
                    push_commit_row(&mut encoded, &CommitRow { key: fields.bytes()?, version: fields.u64()? });
                }
                let rows = CommitRows::new(rows, &encoded);
                steps.push(&CommitStep::Range { table, from: key, to, backward, rows })?;
            }
            2 => {
                let (value, ttl_ms, user_flags) = (fields.bytes()?, fields.u64()?, fields.u32()?);
                steps.push(&CommitStep::Put { table, key, value, user_flags, ttl_ms })?;
            }
            3 => steps.push(&CommitStep::Delete { table, key })?,
            4 => steps.push(&CommitStep::Count { table, from: key, to: fields.bytes()?, keys: fields.u64()? })?,
            _ => return Err(malformed("there is no such step of a commit")),
        }
    }
    fields.end()?;
    Ok(steps)
}

/// A call of a typed function, arguments and reply as JSON.
async fn typed_call(client: &Client, name: &str, mut fields: RequestFields<'_>) -> Result<Value, Failure> {
    let json = fields.bytes()?;
    fields.end()?;
    let args: Value = serde_json::from_slice(json).map_err(|error| TypedCallError::Json(error.to_string()))?;
    Ok(client.call(name, &args).await?)
}

/// Calls of extensions.
async fn calls(
    client: &Client,
    operation: u8,
    mut fields: RequestFields<'_>,
    result: AnswerBytes,
) -> Result<AnswerBytes, Failure> {
    let name = fields.text()?;
    match operation {
        8 => {
            let (version, args, may_repeat) = (fields.u64()?, fields.bytes()?, fields.byte()?);
            fields.end()?;
            let reply = match (version, may_repeat) {
                (0, 1) => client.query(name, args).await?,
                _ => client.invoke_version(name, version, args).await?,
            };
            Ok(result.put(&reply))
        }
        9 => {
            let reply = typed_call(client, name, fields).await?;
            Ok(result.put(reply.to_string().as_bytes()))
        }
        22 => {
            let told = Arc::new(Mutex::new(None));
            let teller = Arc::clone(&told);
            let client =
                client.on_cost(move |cost| *teller.lock().unwrap_or_else(PoisonError::into_inner) = Some(cost));
            let called = typed_call(&client, name, fields).await;
            let cost = told.lock().unwrap_or_else(PoisonError::into_inner).take();
            let result = result.bool(cost.is_some()).put(&cost.unwrap_or_default().encode());
            Ok(match called {
                Ok(reply) => result.bool(false).put(reply.to_string().as_bytes()),
                Err(failure) => result.put(&failure.encode()),
            })
        }
        10 => {
            fields.end()?;
            let schema = client.schema(name).await?;
            Ok(result.put(schema.map_or_else(|| "null".to_owned(), |schema| schema.to_json()).as_bytes()))
        }
        _ => {
            let (version, args) = (fields.u64()?, fields.bytes()?);
            fields.end()?;
            let MeasuredCall { result: called, cost } = client.invoke_measured(name, version, args).await?;
            let result = result.bool(cost.is_some()).put(&cost.unwrap_or_default().encode());
            Ok(match called {
                Ok(reply) => result.bool(false).put(&reply),
                Err(error) => result.put(&Failure::from(error).encode()),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandstorm_client::control::ExportedRecord;

    #[test]
    fn fields_that_are_not_there_are_an_error() {
        let mut fields = RequestFields(&[3, 0, 0, 0, b'a', b'b', b'c', 1]);
        assert_eq!(fields.text().ok(), Some("abc"));
        assert!(fields.end().is_err() && fields.u32().is_err());
        assert_eq!(fields.byte().ok(), Some(1));
        assert!(RequestFields(&[255, 255, 255, 255, 0]).bytes().is_err());
        assert!(RequestFields(&[1, 0, 0, 0, 0xff]).text().is_err());
    }

    #[test]
    fn a_change_that_is_none_is_an_error() {
        let change = |op: &str, key: Option<&str>| TableChange {
            position: "12".to_owned(),
            op: op.to_owned(),
            record: ExportedRecord { key: key.map(str::to_owned), version: 3, ..ExportedRecord::default() },
        };
        let page = |change| ChangePage { changes: vec![change], next: "12".to_owned(), at_end: true };
        let encode = |change| change_page(&page(change), AnswerBytes::result()).map(AnswerBytes::done).ok();
        let fields = [&[3_u8, 0, 0, 0, 0, 0, 0, 0][..], &[0; 12]].concat();
        let deleted = [&b"\0\x02\0\0\x0012\x01\x02\0\0\x0012\x06\0\0\0delete\x01\0\0\0k\0\0\0\0"[..], &fields].concat();
        assert_eq!(encode(change("delete", Some("k"))), Some(deleted));
        assert!(encode(change("clear", None)).is_some());
        assert_eq!(encode(change("delete", None)), None, "it has no key");
        assert_eq!(encode(change("put", Some("k"))), None, "it has no value");
    }

    #[test]
    fn steps_of_a_commit_are_all_there_or_refused() {
        let mut request = 2_u32.to_le_bytes().to_vec();
        // A range over nothing, then the delete of `k`, both of table 7.
        for (kind, key, rest) in [(1_u8, &b""[..], &[0; 9][..]), (3, b"k", &[])] {
            request.push(kind);
            request.extend_from_slice(&7_u64.to_le_bytes());
            request.extend_from_slice(&(key.len() as u32).to_le_bytes());
            request.extend_from_slice(key);
            request.extend_from_slice(rest);
        }
        assert!(commit_steps(RequestFields(&request)).is_ok());
        for end in 0..request.len() {
            assert!(commit_steps(RequestFields(&request[..end])).is_err(), "{end}");
        }
        assert!(commit_steps(RequestFields(&[&request[..], &[0]].concat())).is_err());
        request[4] = 9;
        assert!(commit_steps(RequestFields(&request)).is_err(), "no such step");
    }
}
