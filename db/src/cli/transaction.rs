//! `sandstorm transaction`: steps that one message commits, or none of them.

use std::io::{BufRead, Read};

use clap::Args;
use serde_json::{Value, json};

use super::output::{CliError, OutputPrinter};
use super::session::CliSession;
use super::transaction_steps::{StepError, StepOutcome, StepReader, TransactionStep, shortened};
use sandstorm_client::blocking::BlockingTransaction;
use sandstorm_client::limits::TRANSACTION_TRIES;

/// Most bytes of steps that are read from standard input: what a transaction writes is 1 MiB at most.
const STEPS_BYTES: u64 = 8 << 20;

/// Read, check and write records of any tables at one moment, or none of it.
#[derive(Debug, Args)]
#[command(after_help = "Steps, one an argument or one a line; their words are those of the commands:\n  \
    get TABLE KEY…               read; what was read has to hold until the commit\n  \
    range TABLE [FROM [TO]]      the same of an ordered table; --limit N, --backward\n  \
    check TABLE KEY CONDITION    --is VALUE, --absent, --present or --version N; else nothing is written\n  \
    put TABLE KEY VALUE          write; --if-absent, --if-present, --if-version N, --ttl SECONDS, --flags N\n  \
    del TABLE KEY                delete, if there is a record; --if-version N\n  \
    del-range TABLE FROM TO      delete the records of a range of an ordered table; --limit N\n  \
    incr TABLE KEY [DELTA]       add to the number; a time to live of the record ends\n  \
    count TABLE [FROM [TO]]      count the keys of an ordered table; there have to be as many at the commit\n  \
    rank TABLE KEY               the same of those before a key\n  \
    nth TABLE POSITION           the key at a position, which has to be there at the commit\n  \
    ttl TABLE KEY                read how long a record has left, which has to be the same at the commit\n  \
    touch TABLE KEY              change that; --ttl SECONDS or --never\n\
    Steps see what those before them have written. If others change what was read, all steps are run again, 16 times \
    at most. `sandstorm shell` has `begin` and `commit`. docs/client.md#transactions")]
pub(super) struct TransactionArgs {
    /// Steps, such as "put items apple 3"; without any, the lines of standard input
    #[arg(value_name = "STEP")]
    steps: Vec<String>,
    /// If others change what was read, do not run the steps again
    #[arg(long)]
    once: bool,
}

pub(super) fn run(session: &CliSession, args: &TransactionArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let lines = if args.steps.is_empty() { standard_input()? } else { args.steps.clone() };
    let (client, tenant) = session.data()?;
    let mut reader = StepReader::new(tenant.name);
    let mut steps = Vec::new();
    for (number, line) in (1..).zip(&lines) {
        let step = reader.read(session, line).map_err(|error| error.about(&place(number, line)))?;
        steps.extend(step.map(|step| (place(number, line), step)));
    }
    if steps.is_empty() {
        return Err(CliError::new("a transaction without steps")
            .hint("each argument is a step, or each line of standard input: \"put items apple 3\"")
            .code("usage"));
    }
    let (mut tries, mut at) = (0_u32, "");
    let mut run = |transaction: &mut BlockingTransaction| -> Result<Vec<StepOutcome>, StepError> {
        tries += 1;
        let outcomes = steps.iter().map(|(place, step)| {
            at = place;
            step.run(transaction)
        });
        let outcomes = outcomes.collect::<Result<Vec<_>, _>>();
        at = if outcomes.is_ok() { "" } else { at };
        outcomes
    };
    let done = if args.once {
        let mut transaction = client.transaction();
        run(&mut transaction).and_then(|outcomes| Ok(transaction.commit().map(|()| outcomes)?))
    } else {
        client.transact(run)
    };
    let outcomes = done.map_err(|error| {
        let error = reader.error(error);
        let error = if at.is_empty() { error } else { error.about(at) };
        if error.code == "conflict" && !args.once {
            return error.hint(format!("it was run {TRANSACTION_TRIES} times, and nothing is written: try it later"));
        }
        error
    })?;
    show(&steps, &outcomes, tries, out)
}

/// Where a step is, for errors.
fn place(number: usize, line: &str) -> String {
    format!("step {number}, `{}`", shortened(line.trim()))
}

fn standard_input() -> Result<Vec<String>, CliError> {
    let unreadable = |error: std::io::Error| CliError::new(format!("reading standard input: {error}"));
    let mut input = std::io::stdin().lock().take(STEPS_BYTES + 1);
    let lines = input.by_ref().lines().collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
    if input.limit() == 0 {
        return Err(CliError::new(format!("standard input has over {STEPS_BYTES} bytes of steps")).code("too_large"));
    }
    Ok(lines)
}

fn show(
    steps: &[(String, TransactionStep)],
    outcomes: &[StepOutcome],
    tries: u32,
    out: &OutputPrinter,
) -> Result<(), CliError> {
    if out.json {
        let steps: Vec<Value> = steps.iter().zip(outcomes).map(|((_, step), outcome)| outcome.in_json(step)).collect();
        return out.json(&json!({"committed": true, "tries": tries, "steps": steps}));
    }
    for ((_, step), outcome) in steps.iter().zip(outcomes) {
        outcome.rows(step).iter().try_for_each(|row| out.value(row))?;
    }
    out.line("committed")
}
