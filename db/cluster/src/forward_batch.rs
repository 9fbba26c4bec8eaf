//! A client's commands that other servers run, and their answers to the client.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use sandstorm_net::forwarding::{ForwardDone, ForwardedAnswer, ForwardedBatch, ForwardedOutcome};

use crate::answer_budget::AnswerBudget;

/// Digits of a server's id that are shown.
const SHOWN_DIGITS: usize = 8;

/// Why a command has no answer of its key's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForwardFailure {
    /// The owner takes no connection: it was not run.
    Away,
    /// The owner stops: it was not run.
    Stops,
    /// There was no answer to the request.
    Lost,
    /// As much waits for the owner as may: it was not run.
    Crowded,
    /// It was not sent in time: it was not run.
    Late,
    /// The slot did not come to rest: it was not run.
    Moving,
    /// The owner cannot take it: it was not run.
    Refused,
}

impl ForwardFailure {
    /// What the client is told of a command, which may change something.
    pub(crate) fn text(self, server: &str, changes: bool) -> String {
        let server = format!("server {}, which owns the key,", &server[..server.len().min(SHOWN_DIGITS)]);
        let text = match self {
            ForwardFailure::Away => format!("{server} is away: the command was not run; ask again once it is back"),
            ForwardFailure::Stops => format!("{server} is shutting down: the command was not run; ask again"),
            ForwardFailure::Lost if changes => format!(
                "{server} has not answered: whether the command was run is not known; read before you write again"
            ),
            ForwardFailure::Lost => format!("{server} has not answered: ask again"),
            ForwardFailure::Crowded => format!(
                "too many commands wait for {server} here: the command was not run; ask again later, or ask that server"
            ),
            ForwardFailure::Late => {
                format!("{server} is too slow: the command was not run; ask again later, or ask that server")
            }
            ForwardFailure::Moving => {
                "the key's slot is moving between servers, or has no owner: the command was not run; ask again"
                    .to_owned()
            }
            ForwardFailure::Refused => format!("{server} cannot take the command now: it was not run; ask again later"),
        };
        format!("SERVER_ERROR {text}")
    }
}

struct BatchAnswers {
    of: Vec<Option<ForwardedAnswer>>,
    left: usize,
    /// Bytes of those that there are, as the budget counts them.
    kept: usize,
    /// The number from which on answers are not kept, since the commands are to be tried anew in any case.
    anew: usize,
    done: Option<ForwardDone>,
}

/// Commands that are under way.
pub(crate) struct BatchUnderWay {
    pub(crate) batch: ForwardedBatch,
    /// When each has to be answered.
    pub(crate) deadline: Instant,
    answers: Mutex<BatchAnswers>,
    budget: Arc<AnswerBudget>,
}

impl BatchUnderWay {
    pub(crate) fn new(
        batch: ForwardedBatch,
        deadline: Instant,
        budget: &Arc<AnswerBudget>,
        done: ForwardDone,
    ) -> BatchUnderWay {
        let left = batch.commands.len();
        let answers = BatchAnswers { of: vec![None; left], left, kept: 0, anew: left, done: Some(done) };
        BatchUnderWay { batch, deadline, answers: Mutex::new(answers), budget: Arc::clone(budget) }
    }

    /// Answers some of the commands, by their numbers. The waiting connection is told once all are answered. An answer
    /// that a command has already stays.
    pub(crate) fn answer(&self, answered: impl IntoIterator<Item = (usize, ForwardedAnswer)>) {
        let ended = {
            let mut answers = self.answers.lock();
            let mut new: Vec<(usize, ForwardedAnswer)> = Vec::new();
            for (number, answer) in answered {
                let is_open = matches!(answers.of.get(number), Some(None));
                if is_open && new.iter().all(|(other, _)| *other != number) {
                    new.push((number, answer));
                }
            }
            answers.left -= new.len();
            let is_ended = answers.left == 0;
            for (number, answer) in new {
                let answer = if is_ended { answer } else { self.kept(&mut answers, number, answer) };
                answers.of[number] = Some(answer);
            }
            match is_ended {
                true => {
                    self.budget.give_back(self.batch.tenant, std::mem::take(&mut answers.kept));
                    answers.done.take().map(|done| (done, std::mem::take(&mut answers.of)))
                }
                false => None,
            }
        };
        if let Some((done, answers)) = ended {
            done(answers.into_iter().flatten().collect());
        }
    }

    /// What is kept of the answer to a command until the others are there. Where the tenant may keep no more, reads are
    /// tried anew, the last ones first: the connection takes only the answers before the first one that is.
    fn kept(&self, answers: &mut BatchAnswers, number: usize, answer: ForwardedAnswer) -> ForwardedAnswer {
        let ForwardedAnswer::Answered(bytes) = &answer else { return answer };
        let (tenant, bytes) = (self.batch.tenant, bytes.len());
        if self.batch.is_ordered {
            // What may have changed something is never run again.
            self.budget.take_all(tenant, bytes);
            answers.kept += bytes;
            return answer;
        }
        if number >= answers.anew {
            return ForwardedAnswer::Later;
        }
        let mut is_taken = self.budget.take(tenant, bytes);
        if !is_taken {
            answers.anew = number + 1;
            let mut freed = 0;
            for behind in answers.of[number + 1..].iter_mut().flatten() {
                if let ForwardedAnswer::Answered(bytes) = behind {
                    freed += bytes.len();
                    *behind = ForwardedAnswer::Later;
                }
            }
            self.budget.give_back(tenant, freed);
            answers.kept -= freed;
            is_taken = self.budget.take(tenant, bytes);
        }
        match is_taken {
            true => {
                answers.kept += bytes;
                answer
            }
            false => {
                answers.anew = number;
                ForwardedAnswer::Later
            }
        }
    }

    /// Refuses some of the commands that `server` was to run.
    pub(crate) fn refuse(&self, numbers: &[usize], server: &str, why: ForwardFailure) {
        self.answer(self.refusals(numbers, server, why));
    }

    fn refusals(&self, numbers: &[usize], server: &str, why: ForwardFailure) -> Vec<(usize, ForwardedAnswer)> {
        let changes = |number: usize| self.batch.commands.get(number).is_some_and(|one| one.changes);
        let refused = |number: &usize| match why {
            ForwardFailure::Crowded if self.batch.is_datagram => (*number, ForwardedAnswer::Dropped),
            _ => (*number, ForwardedAnswer::Refused(why.text(server, changes(*number)))),
        };
        numbers.iter().map(refused).collect()
    }

    /// Has some of the commands tried anew, by the connection that they came from.
    pub(crate) fn give_back(&self, numbers: &[usize]) {
        self.answer(numbers.iter().map(|number| (*number, ForwardedAnswer::Later)));
    }

    /// Takes over what `server` has answered to some of the commands. Returns those that it has not run since they are
    /// not its own.
    pub(crate) fn take_over(&self, numbers: &[usize], server: &str, answered: &[u8]) -> Vec<usize> {
        let (mut elsewhere, mut told) = (Vec::new(), Vec::new());
        let mut refused: Option<(&[usize], ForwardFailure)> = None;
        let mut outcomes = sandstorm_net::forwarding::answers(answered);
        for (at, number) in numbers.iter().enumerate() {
            let rest = &numbers[at..];
            let (outcome, bytes) = match outcomes.next() {
                Some(outcome) => outcome,
                // The answer has ended: so far the others are known.
                None => {
                    refused = Some((rest, ForwardFailure::Lost));
                    break;
                }
            };
            let answer = match outcome {
                ForwardedOutcome::Answered => ForwardedAnswer::Answered(bytes.to_vec()),
                ForwardedOutcome::Full => ForwardedAnswer::Later,
                ForwardedOutcome::Refused => {
                    ForwardedAnswer::Refused(format!("SERVER_ERROR {}", String::from_utf8_lossy(bytes)))
                }
                ForwardedOutcome::NotOwned | ForwardedOutcome::NotReady => {
                    elsewhere.push(*number);
                    continue;
                }
                ForwardedOutcome::Stopping => {
                    refused = Some((rest, ForwardFailure::Stops));
                    break;
                }
                ForwardedOutcome::Uncertain => {
                    let text = format!("SERVER_ERROR {}", String::from_utf8_lossy(bytes));
                    told.extend(rest.iter().map(|number| (*number, ForwardedAnswer::Refused(text.clone()))));
                    break;
                }
            };
            told.push((*number, answer));
        }
        if let Some((numbers, why)) = refused {
            told.extend(self.refusals(numbers, server, why));
        }
        // All at once: what ends the batch is not kept.
        self.answer(told);
        elsewhere
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use sandstorm_net::forwarding::{ForwardedCommand, push_answer};

    use super::*;
    use crate::limits::FORWARD_KEPT_BYTES;

    /// What the client of three commands, a read between two changes, is told of some answers; and what is sent on.
    fn told(answers: &[(ForwardedOutcome, &str)]) -> (Vec<usize>, Option<Vec<ForwardedAnswer>>) {
        let commands = [true, false, true].map(|changes| ForwardedCommand { slot: 1, changes, bytes: Vec::new() });
        let batch = ForwardedBatch {
            tenant: 1,
            table: 1,
            serial: 1,
            is_binary: false,
            is_ordered: true,
            is_datagram: false,
            commands: commands.to_vec(),
        };
        let (tell, told) = channel();
        let done = Box::new(move |answers| drop(tell.send(answers)));
        let under_way = BatchUnderWay::new(batch, Instant::now(), &Arc::default(), done);
        let mut bytes = Vec::new();
        answers.iter().for_each(|(outcome, text)| push_answer(*outcome, text.as_bytes(), &mut bytes));
        let elsewhere = under_way.take_over(&[0, 1, 2], "0123456789abcdef", &bytes);
        (elsewhere, told.try_recv().ok())
    }

    fn refused(text: &str) -> ForwardedAnswer {
        ForwardedAnswer::Refused(format!("SERVER_ERROR {text}"))
    }

    fn answered(text: &str) -> ForwardedAnswer {
        ForwardedAnswer::Answered(text.as_bytes().to_vec())
    }

    #[test]
    fn only_what_was_not_run_for_certain_is_sent_again() {
        use ForwardedOutcome::{Answered, Full, NotOwned, Refused, Stopping, Uncertain};
        let all = [(Answered, "a"), (Answered, ""), (Full, "")];
        let expected = vec![answered("a"), answered(""), ForwardedAnswer::Later];
        assert_eq!(told(&all), (vec![], Some(expected)));
        assert_eq!(told(&[(Answered, "a"), (NotOwned, ""), (NotOwned, "")]), (vec![1, 2], None));
        let lost = |what| refused(&format!("server 01234567, which owns the key, has not answered: {what}"));
        let unknown = lost("whether the command was run is not known; read before you write again");
        let expected = vec![answered("a"), lost("ask again"), unknown.clone()];
        assert_eq!(told(&[(Answered, "a")]), (vec![], Some(expected)));
        assert_eq!(told(&[]), (vec![], Some(vec![unknown.clone(), lost("ask again"), unknown])));
        let (elsewhere, answers) = told(&[(Answered, "a"), (Uncertain, "the disk")]);
        assert_eq!((elsewhere, answers), (vec![], Some(vec![answered("a"), refused("the disk"), refused("the disk")])));
        let (_, answers) = told(&[(Answered, "a"), (Refused, "why"), (Answered, "b")]);
        assert_eq!(answers, Some(vec![answered("a"), refused("why"), answered("b")]));
        let (_, answers) = told(&[(Stopping, "")]);
        let stops =
            refused("server 01234567, which owns the key, is shutting down: the command was not run; ask again");
        assert_eq!(answers, Some(vec![stops; 3]));
    }

    #[test]
    fn who_waits_is_told_once_and_an_answer_stays() {
        let commands = vec![ForwardedCommand { slot: 1, changes: true, bytes: Vec::new() }; 2];
        let batch = ForwardedBatch { tenant: 1, table: 1, serial: 1, commands, ..Default::default() };
        let (tell, told) = channel();
        let done = Box::new(move |answers| drop(tell.send(answers)));
        let under_way = BatchUnderWay::new(batch, Instant::now(), &Arc::default(), done);
        under_way.answer([(1, answered("one")), (1, answered("another"))]);
        under_way.refuse(&[1], "a", ForwardFailure::Lost);
        assert!(told.try_recv().is_err());
        under_way.give_back(&[0, 1, 7]);
        assert_eq!(told.try_recv(), Ok(vec![ForwardedAnswer::Later, answered("one")]));
        under_way.answer([(0, answered("late"))]);
        assert!(told.try_recv().is_err());
    }

    #[test]
    fn a_datagram_is_dropped_where_too_many_wait_and_told_of_anything_else() {
        let told = |is_datagram, why| {
            let commands = vec![ForwardedCommand { slot: 1, changes: true, bytes: Vec::new() }];
            let batch = ForwardedBatch { tenant: 1, table: 1, serial: 1, is_datagram, commands, ..Default::default() };
            let (tell, told) = channel();
            let done = Box::new(move |answers| drop(tell.send(answers)));
            BatchUnderWay::new(batch, Instant::now(), &Arc::default(), done).refuse(&[0], "a", why);
            told.try_recv().unwrap()
        };
        assert_eq!(told(true, ForwardFailure::Crowded), [ForwardedAnswer::Dropped]);
        for (is_datagram, why) in [(false, ForwardFailure::Crowded), (true, ForwardFailure::Away)] {
            assert!(matches!(told(is_datagram, why)[..], [ForwardedAnswer::Refused(_)]));
        }
    }

    /// A batch of five commands of a tenant whose answers are counted here.
    fn batch_of(
        tenant: u32,
        budget: &Arc<AnswerBudget>,
        is_ordered: bool,
    ) -> (BatchUnderWay, std::sync::mpsc::Receiver<Vec<ForwardedAnswer>>) {
        let commands = vec![ForwardedCommand { slot: 1, changes: is_ordered, bytes: Vec::new() }; 5];
        let batch = ForwardedBatch { tenant, table: 1, serial: 1, is_ordered, commands, ..Default::default() };
        let (tell, told) = channel();
        let done = Box::new(move |answers| drop(tell.send(answers)));
        (BatchUnderWay::new(batch, Instant::now(), budget, done), told)
    }

    #[test]
    fn answers_to_batches_that_are_not_ended_are_bounded_for_each_tenant_and_for_all() {
        let (budget, large) = (Arc::default(), "x".repeat(FORWARD_KEPT_BYTES / 4));
        let answer = || answered(&large);
        let (one, of_one) = batch_of(1, &budget, false);
        // Two of four parts are a tenant's most.
        one.answer([(2, answer()), (3, answer())]);
        assert_eq!(budget.kept(), 2 * large.len());
        one.answer([(1, answer())]);
        assert_eq!(budget.kept(), large.len(), "it took the place of those behind it");
        let (other, of_other) = batch_of(1, &budget, false);
        other.answer([(4, answer())]);
        other.answer([(0, answer())]);
        assert_eq!(budget.kept(), 2 * large.len());
        let (third, of_third) = batch_of(2, &budget, false);
        third.answer([(0, answered("small"))]);
        // What may have changed something is kept in any case.
        let (ordered, of_ordered) = batch_of(2, &budget, true);
        (0..4).for_each(|number| ordered.answer([(number, answer())]));
        assert_eq!(budget.kept(), 6 * large.len() + 5);
        for (batch, number) in [(&one, 4), (&other, 1), (&third, 1)] {
            batch.answer([(number, answer())]);
        }
        one.answer([(0, answer())]);
        for batch in [&other, &third, &ordered] {
            batch.answer((0..5).map(|number| (number, answered("last"))));
        }
        assert_eq!(budget.kept(), 0);
        let is_there = |told: std::sync::mpsc::Receiver<Vec<ForwardedAnswer>>| {
            let answers = told.try_recv().unwrap();
            answers.iter().map(|answer| matches!(answer, ForwardedAnswer::Answered(_))).collect::<Vec<_>>()
        };
        assert_eq!(is_there(of_one), [true, true, false, false, false]);
        assert_eq!(is_there(of_other), [true, false, true, true, false]);
        assert_eq!(is_there(of_third), [true, false, true, true, true]);
        assert_eq!(is_there(of_ordered), [true; 5]);
    }
}
