//! A client's commands that are with other servers, and what it is told of them.

use std::time::Instant;

use parking_lot::Mutex;
use sandstorm_net::forwarding::{ForwardDone, ForwardedAnswer, ForwardedBatch, ForwardedOutcome};

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
    done: Option<ForwardDone>,
}

/// Commands that are under way.
pub(crate) struct BatchUnderWay {
    pub(crate) batch: ForwardedBatch,
    /// When each has to be answered.
    pub(crate) deadline: Instant,
    answers: Mutex<BatchAnswers>,
}

impl BatchUnderWay {
    pub(crate) fn new(batch: ForwardedBatch, deadline: Instant, done: ForwardDone) -> BatchUnderWay {
        let left = batch.commands.len();
        let answers = Mutex::new(BatchAnswers { of: vec![None; left], left, done: Some(done) });
        BatchUnderWay { batch, deadline, answers }
    }

    /// Answers some of the commands, by their numbers. Whoever waits is told once all are answered. An answer that a
    /// command has already stays.
    pub(crate) fn answer(&self, answered: impl IntoIterator<Item = (usize, ForwardedAnswer)>) {
        let ended = {
            let mut answers = self.answers.lock();
            for (number, answer) in answered {
                if let Some(place @ None) = answers.of.get_mut(number) {
                    *place = Some(answer);
                    answers.left -= 1;
                }
            }
            match answers.left {
                0 => answers.done.take().map(|done| (done, std::mem::take(&mut answers.of))),
                _ => None,
            }
        };
        if let Some((done, answers)) = ended {
            done(answers.into_iter().flatten().collect());
        }
    }

    /// Refuses some of the commands that `server` was to run.
    pub(crate) fn refuse(&self, numbers: &[usize], server: &str, why: ForwardFailure) {
        let text = |number: usize| why.text(server, self.batch.commands.get(number).is_some_and(|one| one.changes));
        self.answer(numbers.iter().map(|number| (*number, ForwardedAnswer::Refused(text(*number)))));
    }

    /// Has some of the commands tried anew, by the connection that they came from.
    pub(crate) fn give_back(&self, numbers: &[usize]) {
        self.answer(numbers.iter().map(|number| (*number, ForwardedAnswer::Later)));
    }

    /// Takes over what `server` has answered to some of the commands. Returns those that it has not run since they are
    /// not its own.
    pub(crate) fn take_over(&self, numbers: &[usize], server: &str, answered: &[u8]) -> Vec<usize> {
        let mut elsewhere = Vec::new();
        let mut outcomes = sandstorm_net::forwarding::answers(answered);
        for (at, number) in numbers.iter().enumerate() {
            let rest = &numbers[at..];
            let (outcome, bytes) = match outcomes.next() {
                Some(outcome) => outcome,
                // The answer has ended: so far the others are known.
                None => {
                    self.refuse(rest, server, ForwardFailure::Lost);
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
                    self.refuse(rest, server, ForwardFailure::Stops);
                    break;
                }
                ForwardedOutcome::Uncertain => {
                    let text = format!("SERVER_ERROR {}", String::from_utf8_lossy(bytes));
                    self.answer(rest.iter().map(|number| (*number, ForwardedAnswer::Refused(text.clone()))));
                    break;
                }
            };
            self.answer([(*number, answer)]);
        }
        elsewhere
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use sandstorm_net::forwarding::{ForwardedCommand, push_answer};

    use super::*;

    /// What the client of three commands, a read between two changes, is told of some answers; and what is sent on.
    fn told(answers: &[(ForwardedOutcome, &str)]) -> (Vec<usize>, Option<Vec<ForwardedAnswer>>) {
        let commands = [true, false, true].map(|changes| ForwardedCommand { slot: 1, changes, bytes: Vec::new() });
        let batch = ForwardedBatch {
            tenant: 1,
            table: 1,
            serial: 1,
            is_binary: false,
            is_ordered: true,
            commands: commands.to_vec(),
        };
        let (tell, told) = channel();
        let under_way = BatchUnderWay::new(batch, Instant::now(), Box::new(move |answers| drop(tell.send(answers))));
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
        let batch = ForwardedBatch { tenant: 1, table: 1, serial: 1, is_binary: false, is_ordered: false, commands };
        let (tell, told) = channel();
        let under_way = BatchUnderWay::new(batch, Instant::now(), Box::new(move |answers| drop(tell.send(answers))));
        under_way.answer([(1, answered("one")), (1, answered("another"))]);
        under_way.refuse(&[1], "a", ForwardFailure::Lost);
        assert!(told.try_recv().is_err());
        under_way.give_back(&[0, 1, 7]);
        assert_eq!(told.try_recv(), Ok(vec![ForwardedAnswer::Later, answered("one")]));
        under_way.answer([(0, answered("late"))]);
        assert!(told.try_recv().is_err());
    }
}
