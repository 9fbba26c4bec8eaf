//! Steps of a transaction: lines with the words of the commands for records, and `check`.
//!
//! A step is read once, with its tables' ids and its bytes, and run each time that the transaction is begun anew.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{ArgGroup, Args, Parser, Subcommand};
use sandstorm_client::blocking::BlockingTransaction;
use sandstorm_client::{Bytes, Condition, Direction, Error, KeyedRecord, PutOptions, Record, RecordExpiry};
use serde_json::{Value, json};

use super::byte_args::{self, for_people, for_programs};
use super::data::{self, DelArgs, IncrArgs, PutArgs, RangeArgs, in_json, keyed_in_json, row};
use super::expiry::{TouchArgs, TtlArgs, expiry_in_json, expiry_text};
use super::output::CliError;
use super::positions::{CountArgs, NthArgs, RankArgs};
use super::session::CliSession;
use super::shell::words::split;

/// What a line that is no step is told.
const STEPS_HINT: &str = "steps are get, range, check, put, del, del-range, incr, count, rank, nth, ttl and touch: `sandstorm transaction --help` has their forms";

/// A line.
#[derive(Debug, Parser)]
#[command(name = "step", no_binary_name = true, disable_help_flag = true, disable_help_subcommand = true)]
struct StepLine {
    #[command(subcommand)]
    step: StepArgs,
}

#[derive(Debug, Subcommand)]
enum StepArgs {
    /// Read records
    Get(ReadArgs),
    /// Read records of an ordered table
    Range(RangeArgs),
    /// Go on only if a record is so
    Check(CheckArgs),
    /// Write a record
    Put(PutArgs),
    /// Delete a record
    Del(DelArgs),
    /// Delete the records of a range
    DelRange(DelRangeArgs),
    /// Add to a number
    Incr(IncrArgs),
    /// Count keys of an ordered table
    Count(CountArgs),
    /// Count those before a key
    Rank(RankArgs),
    /// Find the key at a position
    Nth(NthArgs),
    /// Read how long a record has left
    Ttl(TtlArgs),
    /// Change that
    Touch(TouchArgs),
}

#[derive(Debug, Args)]
struct ReadArgs {
    /// Table, by name
    table: String,
    /// Keys
    #[arg(required = true)]
    keys: Vec<OsString>,
}

#[derive(Debug, Args)]
struct DelRangeArgs {
    /// Name of an ordered table, or owner/table of one that was granted
    table: String,
    /// Key to start from; "" starts from the smallest
    from: OsString,
    /// Key to end before; "" goes on to the largest
    to: OsString,
    /// Most records to delete, the smallest keys first
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    limit: Option<usize>,
}

#[derive(Debug, Args)]
#[group(skip)]
#[command(group = ArgGroup::new("condition").required(true).args(["is", "absent", "present", "version"]))]
struct CheckArgs {
    /// Table, by name
    table: String,
    /// Key
    key: OsString,
    /// The record has this value
    #[arg(long, value_name = "VALUE")]
    is: Option<OsString>,
    /// There is no record
    #[arg(long)]
    absent: bool,
    /// There is a record
    #[arg(long)]
    present: bool,
    /// The record has this version
    #[arg(long, value_name = "N")]
    version: Option<u64>,
}

/// What has to be so of a record.
#[derive(Debug)]
pub(super) enum CheckedState {
    Value(Vec<u8>),
    Absent,
    Present,
    Version(u64),
}

/// A step, with its bytes.
#[derive(Debug)]
pub(super) enum TransactionStep {
    Get { table: u64, keys: Vec<Vec<u8>> },
    Range { table: u64, from: Vec<u8>, to: Vec<u8>, limit: usize, direction: Direction },
    Check { table: u64, key: Vec<u8>, state: CheckedState },
    Put { table: u64, key: Vec<u8>, value: Vec<u8>, options: PutOptions },
    Del { table: u64, key: Vec<u8>, if_version: Option<u64> },
    DelRange { table: u64, from: Vec<u8>, to: Vec<u8>, limit: usize },
    Incr { table: u64, key: Vec<u8>, delta: i64 },
    Count { table: u64, from: Vec<u8>, to: Vec<u8> },
    Rank { table: u64, key: Vec<u8> },
    Nth { table: u64, position: u64 },
    Ttl { table: u64, key: Vec<u8> },
    Touch { table: u64, key: Vec<u8>, ttl: Option<Duration> },
}

/// What a step has found.
#[derive(Debug)]
pub(super) enum StepOutcome {
    /// Records by the keys that were asked for.
    Records(Vec<Option<Record>>),
    /// Those of a range.
    Range(Vec<KeyedRecord>),
    /// The sum of an increment.
    Sum(i64),
    /// So many keys.
    Counted(u64),
    /// The key at a position, if there are so many.
    Key(Option<Bytes>),
    /// When a record expires, if there is one.
    Expiry(Option<RecordExpiry>),
    /// So many records that are to be deleted.
    Deleted(usize),
    /// Whether there is a record to be touched.
    Touched(bool),
    /// It reads nothing, or only looks whether something is so.
    Done,
}

/// Why a transaction ends with nothing written.
#[derive(Debug)]
pub(super) enum StepError {
    /// A request failed.
    Request(Error),
    /// Something is not as a step asks.
    Condition(String),
}

impl From<Error> for StepError {
    fn from(error: Error) -> StepError {
        StepError::Request(error)
    }
}

/// Reads steps of one tenant's transaction.
pub(super) struct StepReader {
    tenant: String,
    /// Ids of tables by name, and whether they are ordered.
    tables: BTreeMap<String, (u64, bool)>,
}

impl StepReader {
    pub(super) fn new(tenant: String) -> StepReader {
        StepReader { tenant, tables: BTreeMap::new() }
    }

    fn table(&mut self, session: &CliSession, name: &str) -> Result<(u64, bool), CliError> {
        if let Some(known) = self.tables.get(name) {
            return Ok(*known);
        }
        let table = session.control().table(&self.tenant, name)?;
        self.tables.insert(name.to_owned(), (table.id, table.ordered));
        Ok((table.id, table.ordered))
    }

    /// The bytes of arguments, which are never those of standard input: the steps are read from there.
    fn bytes(&mut self, session: &CliSession, arguments: &[OsString]) -> Result<Vec<u8>, CliError> {
        if arguments.iter().any(|argument| argument == "-") {
            return Err(CliError::new("a step takes nothing from standard input")
                .hint("@FILE is the bytes of a file, str:- the sign itself")
                .code("usage"));
        }
        byte_args::parse_all(arguments, &mut |table| Ok(self.table(session, table)?.0))
    }

    /// The id of an ordered table.
    fn ordered_table(&mut self, session: &CliSession, name: &str) -> Result<u64, CliError> {
        let (table, is_ordered) = self.table(session, name)?;
        if is_ordered { Ok(table) } else { Err(data::not_ordered(name)) }
    }

    fn key(&mut self, session: &CliSession, argument: &OsStr) -> Result<Vec<u8>, CliError> {
        self.bytes(session, &[argument.to_owned()])
    }

    /// Reads a line; `None`: it is empty, or a remark.
    ///
    /// # Errors
    /// It is no step, or names a table that is not there.
    pub(super) fn read(&mut self, session: &CliSession, line: &str) -> Result<Option<TransactionStep>, CliError> {
        let words = split(line).map_err(|why| CliError::new(why).code("usage"))?;
        if words.first().is_none_or(|first| first.starts_with('#')) {
            return Ok(None);
        }
        let parsed = StepLine::try_parse_from(&words).map_err(|error| {
            let text = error.to_string();
            let first = text.trim_start_matches("error: ").split("\n\n").next().unwrap_or_default();
            let first = first.split_whitespace().collect::<Vec<_>>().join(" ");
            CliError::new(first).hint(STEPS_HINT).code("usage")
        })?;
        self.resolve(session, parsed.step).map(Some)
    }

    fn resolve(&mut self, session: &CliSession, step: StepArgs) -> Result<TransactionStep, CliError> {
        Ok(match step {
            StepArgs::Get(ReadArgs { table, keys }) => {
                let keys = keys.iter().map(|key| self.key(session, key)).collect::<Result<_, _>>()?;
                TransactionStep::Get { table: self.table(session, &table)?.0, keys }
            }
            StepArgs::Range(args) => {
                let table = self.ordered_table(session, &args.table)?;
                let (from, to) = (self.key(session, &args.from)?, self.key(session, &args.to)?);
                let direction = if args.backward { Direction::Backward } else { Direction::Forward };
                TransactionStep::Range { table, from, to, limit: args.limit, direction }
            }
            StepArgs::Check(args) => {
                let state = match (args.is, args.version) {
                    (Some(value), _) => CheckedState::Value(self.bytes(session, &[value])?),
                    (_, Some(version)) => CheckedState::Version(version),
                    _ if args.absent => CheckedState::Absent,
                    _ => CheckedState::Present,
                };
                TransactionStep::Check {
                    table: self.table(session, &args.table)?.0,
                    key: self.key(session, &args.key)?,
                    state,
                }
            }
            StepArgs::Put(args) => TransactionStep::Put {
                table: self.table(session, &args.table)?.0,
                key: self.key(session, &args.key)?,
                value: self.bytes(session, &args.value)?,
                options: data::put_options(&args)?,
            },
            StepArgs::Del(args) => TransactionStep::Del {
                table: self.table(session, &args.table)?.0,
                key: self.key(session, &args.key)?,
                if_version: args.if_version,
            },
            StepArgs::Incr(args) => TransactionStep::Incr {
                table: self.table(session, &args.table)?.0,
                key: self.key(session, &args.key)?,
                delta: args.delta,
            },
            StepArgs::DelRange(_) | StepArgs::Count(_) | StepArgs::Rank(_) | StepArgs::Nth(_) => {
                return self.resolve_ordered(session, step);
            }
            StepArgs::Ttl(args) => {
                TransactionStep::Ttl { table: self.table(session, &args.table)?.0, key: self.key(session, &args.key)? }
            }
            StepArgs::Touch(args) => TransactionStep::Touch {
                table: self.table(session, &args.table)?.0,
                key: self.key(session, &args.key)?,
                ttl: args.ttl.map(data::time_to_live).transpose()?,
            },
        })
    }

    /// A step of an ordered table alone.
    fn resolve_ordered(&mut self, session: &CliSession, step: StepArgs) -> Result<TransactionStep, CliError> {
        Ok(match step {
            StepArgs::DelRange(DelRangeArgs { table, from, to, limit }) => TransactionStep::DelRange {
                table: self.ordered_table(session, &table)?,
                from: self.key(session, &from)?,
                to: self.key(session, &to)?,
                // More than a transaction may write is refused: a part alone would surprise.
                limit: limit.unwrap_or(usize::MAX),
            },
            StepArgs::Count(CountArgs { table, from, to }) => TransactionStep::Count {
                table: self.ordered_table(session, &table)?,
                from: self.key(session, &from)?,
                to: self.key(session, &to)?,
            },
            StepArgs::Rank(RankArgs { table, key }) => {
                TransactionStep::Rank { table: self.ordered_table(session, &table)?, key: self.key(session, &key)? }
            }
            StepArgs::Nth(NthArgs { table, position }) => {
                TransactionStep::Nth { table: self.ordered_table(session, &table)?, position }
            }
            other => return self.resolve(session, other),
        })
    }

    /// The error of a transaction, with names in place of ids.
    pub(super) fn error(&self, error: StepError) -> CliError {
        match error {
            StepError::Condition(text) => {
                CliError::new(text).hint("nothing is written; read, and decide anew").code("condition_failed")
            }
            StepError::Request(Error::TransactionConflict { table, key }) => {
                let named = self.tables.iter().find(|(_, (id, _))| *id == table);
                let table = named.map_or_else(|| format!("table {table}"), |(name, _)| format!("table {name:?}"));
                let text = format!("conflict: others have changed {} of {table} since it was read", for_people(&key));
                CliError::new(text).hint("nothing is written; run it again").code("conflict")
            }
            StepError::Request(error) => error.into(),
        }
    }
}

impl TransactionStep {
    /// Runs it: reads go to the server, writes wait for the commit.
    ///
    /// # Errors
    /// [`StepError`]: the transaction is not to be committed then.
    pub(super) fn run(&self, transaction: &mut BlockingTransaction) -> Result<StepOutcome, StepError> {
        match self {
            TransactionStep::Get { table, keys } => Ok(StepOutcome::Records(transaction.multi_get(*table, keys)?)),
            TransactionStep::Range { table, from, to, limit, direction } => {
                Ok(StepOutcome::Range(transaction.range(*table, from, to, *limit, *direction)?))
            }
            TransactionStep::Check { table, key, state } => {
                let found = transaction.get(*table, key)?;
                state.check(key, found.as_ref())
            }
            TransactionStep::Put { table, key, value, options } => {
                if options.condition != Condition::Always {
                    let found = transaction.get(*table, key)?.map(|record| record.version);
                    let holds = match options.condition {
                        Condition::Always => true,
                        Condition::Absent => found.is_none(),
                        Condition::Present => found.is_some(),
                        Condition::Version => found == Some(options.version),
                    };
                    if !holds {
                        let text = data::conflict(options, found).message;
                        return Err(StepError::Condition(text.trim_start_matches("conflict: ").to_owned()));
                    }
                }
                transaction.put_with(*table, key, value, options.flags, options.ttl);
                Ok(StepOutcome::Done)
            }
            TransactionStep::Del { table, key, if_version } => {
                if let Some(version) = if_version {
                    let found = transaction.get(*table, key)?;
                    CheckedState::Version(*version).check(key, found.as_ref())?;
                }
                transaction.delete(*table, key);
                Ok(StepOutcome::Done)
            }
            TransactionStep::DelRange { table, from, to, limit } => {
                Ok(StepOutcome::Deleted(transaction.delete_range(*table, from, to, *limit)?))
            }
            TransactionStep::Incr { table, key, delta } => {
                Ok(StepOutcome::Sum(transaction.increment(*table, key, *delta)?))
            }
            TransactionStep::Count { table, from, to } => {
                Ok(StepOutcome::Counted(transaction.count(*table, from, to)?))
            }
            TransactionStep::Rank { table, key } => Ok(StepOutcome::Counted(transaction.rank(*table, key)?)),
            TransactionStep::Nth { table, position } => Ok(StepOutcome::Key(transaction.nth(*table, *position)?)),
            TransactionStep::Ttl { table, key } => Ok(StepOutcome::Expiry(transaction.ttl(*table, key)?)),
            TransactionStep::Touch { table, key, ttl } => {
                Ok(StepOutcome::Touched(transaction.touch(*table, key, *ttl)?))
            }
        }
    }
}

impl CheckedState {
    fn check(&self, key: &[u8], found: Option<&Record>) -> Result<StepOutcome, StepError> {
        let holds = match self {
            CheckedState::Value(value) => found.is_some_and(|record| record.value == value[..]),
            CheckedState::Absent => found.is_none(),
            CheckedState::Present => found.is_some(),
            CheckedState::Version(version) => found.is_some_and(|record| record.version == *version),
        };
        if holds {
            return Ok(StepOutcome::Done);
        }
        let key = for_people(key);
        Err(StepError::Condition(match (self, found) {
            (_, None) => format!("there is no record under {key}"),
            (CheckedState::Version(version), Some(record)) if record.version != 0 => {
                format!("the record under {key} has version {}, not {version}", record.version)
            }
            (CheckedState::Version(_), Some(_)) => {
                format!("the record under {key} has no version yet: the transaction itself has written it")
            }
            (CheckedState::Value(_), Some(record)) => {
                format!("the value under {key} is {}", shortened(&for_people(&record.value)))
            }
            (_, Some(_)) => format!("there is a record under {key}"),
        }))
    }
}

/// A text within the line of an error.
pub(super) fn shortened(text: &str) -> String {
    const LETTERS: usize = 100;
    if text.chars().count() <= LETTERS {
        return text.to_owned();
    }
    format!("{}…", text.chars().take(LETTERS).collect::<String>())
}

impl StepOutcome {
    /// Lines for people: a row for each record that was found, and what was not.
    pub(super) fn rows(&self, step: &TransactionStep) -> Vec<String> {
        match (self, step) {
            (StepOutcome::Records(records), TransactionStep::Get { keys, .. }) => {
                let found = keys.iter().zip(records).map(|(key, record)| match record {
                    Some(record) => row(key, &record.value),
                    None => format!("no record under {}", for_people(key)),
                });
                found.collect()
            }
            (StepOutcome::Range(records), _) => records.iter().map(|record| row(&record.key, &record.value)).collect(),
            (StepOutcome::Sum(sum), _) => vec![sum.to_string()],
            (StepOutcome::Counted(keys), _) => vec![keys.to_string()],
            (StepOutcome::Deleted(records), _) => vec![records.to_string()],
            (StepOutcome::Key(Some(key)), _) => vec![for_people(key)],
            (StepOutcome::Key(None), TransactionStep::Nth { position, .. }) => {
                vec![format!("no key at position {position}")]
            }
            (StepOutcome::Expiry(Some(expiry)), _) => vec![expiry_text(*expiry)],
            (
                StepOutcome::Expiry(None) | StepOutcome::Touched(false),
                TransactionStep::Ttl { key, .. } | TransactionStep::Touch { key, .. },
            ) => vec![format!("no record under {}", for_people(key))],
            _ => Vec::new(),
        }
    }

    /// The same for programs; records that the transaction itself has written have version 0.
    pub(super) fn in_json(&self, step: &TransactionStep) -> Value {
        match (self, step) {
            (StepOutcome::Records(records), TransactionStep::Get { keys, .. }) => {
                keys.iter().zip(records).map(|(key, record)| in_json(key, record.as_ref())).collect()
            }
            (StepOutcome::Range(records), _) => records.iter().map(keyed_in_json).collect(),
            (StepOutcome::Sum(sum), _) => json!({"sum": sum}),
            (StepOutcome::Counted(keys), TransactionStep::Rank { .. }) => json!({"rank": keys}),
            (StepOutcome::Counted(keys), _) => json!({"count": keys}),
            (StepOutcome::Deleted(records), _) => json!({"deleted": records}),
            (StepOutcome::Key(key), _) => json!({"key": key.as_deref().map(for_programs)}),
            (StepOutcome::Expiry(expiry), _) => expiry.map_or(Value::Null, expiry_in_json),
            (StepOutcome::Touched(was), _) => json!({"touched": was}),
            _ => json!({"ok": true}),
        }
    }
}
