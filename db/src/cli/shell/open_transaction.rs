//! A transaction between a shell's `begin` and `commit`: its reads are shown at once, its writes wait.

use super::super::GlobalArgs;
use super::super::output::{CliError, OutputPrinter};
use super::super::session::CliSession;
use super::super::transaction_steps::{StepReader, TransactionStep};
use sandstorm_client::blocking::BlockingTransaction;

/// See the head of this file.
pub(super) struct OpenTransaction {
    session: CliSession,
    reader: StepReader,
    transaction: BlockingTransaction,
    /// Whether a step failed: then nothing is written any more.
    has_failed: bool,
    /// Whether a person types the lines, and may correct one that cannot be read.
    is_interactive: bool,
}

impl OpenTransaction {
    /// Begins one of a tenant; `None`: of the one that the shell was given.
    ///
    /// # Errors
    /// No such tenant, or none of its tokens is known here.
    pub(super) fn begin(
        global: &GlobalArgs,
        tenant: Option<&String>,
        is_interactive: bool,
    ) -> Result<OpenTransaction, CliError> {
        let tenant = tenant.or(global.tenant.as_ref()).cloned();
        let session = CliSession::new(&GlobalArgs { tenant, ..global.clone() });
        let (client, tenant) = session.data()?;
        let reader = StepReader::new(tenant.name);
        Ok(OpenTransaction { transaction: client.transaction(), session, reader, has_failed: false, is_interactive })
    }

    /// Runs a line. Returns the transaction, unless it is over.
    pub(super) fn line(
        mut self,
        (line, words): (&str, &[String]),
        out: &OutputPrinter,
    ) -> (Option<OpenTransaction>, Result<(), CliError>) {
        match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            ["abort" | "rollback"] => (None, out.done("nothing is written")),
            ["commit"] => (None, self.commit(out)),
            [word @ ("commit" | "abort" | "rollback"), further, ..] => {
                // The transaction stays open: what was meant is not known. A script's next lines may count on it.
                self.has_failed |= !self.is_interactive;
                (Some(self), Err(end_error(word, further)))
            }
            _ if self.has_failed => {
                let error =
                    CliError::new("a step of the transaction has failed").hint("`abort` ends it").code("aborted");
                (Some(self), Err(error))
            }
            _ => {
                let done = self.step(line, out);
                (Some(self), done)
            }
        }
    }

    fn commit(self, out: &OutputPrinter) -> Result<(), CliError> {
        if self.has_failed {
            return Err(CliError::new("not committed: a step has failed")
                .hint("nothing is written; `begin` opens another transaction")
                .code("aborted"));
        }
        self.transaction.commit().map_err(|error| self.reader.error(error.into()))?;
        out.done("committed")
    }

    fn step(&mut self, line: &str, out: &OutputPrinter) -> Result<(), CliError> {
        let read = match self.reader.read(&self.session, line) {
            Ok(Some(step)) => step,
            Ok(None) => return Ok(()),
            Err(error) => {
                // A script's next lines may count on it.
                self.has_failed = !self.is_interactive;
                return Err(match error.code.as_str() {
                    "usage" => {
                        error.hint("a transaction is open: get, range, count, rank, nth, ttl, check, put, del, del-range, incr, touch; `commit` or `abort`")
                    }
                    _ => error,
                });
            }
        };
        self.run(&read, out)
    }

    fn run(&mut self, step: &TransactionStep, out: &OutputPrinter) -> Result<(), CliError> {
        let outcome = match step.run(&mut self.transaction) {
            Ok(outcome) => outcome,
            Err(error) => {
                self.has_failed = true;
                return Err(self.reader.error(error));
            }
        };
        if out.json {
            return out.json(&outcome.in_json(step));
        }
        outcome.rows(step).iter().try_for_each(|row| out.value(row))
    }
}

/// The error of words behind what ends a transaction.
pub(super) fn end_error(word: &str, further: &str) -> CliError {
    CliError::new(format!("`{word}` takes no words: {further:?}")).hint(format!("write `{word}` alone")).code("usage")
}
