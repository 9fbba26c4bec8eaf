//! Which servers are gone whose logs have copies here: what a server makes of the questions that it hears of them, and
//! of the answers to its own. It has neither clocks nor threads.
//!
//! An owner asks its copies again and again. One that asks no more is asked itself: it is gone if nothing listens
//! there, or if several questions in a row fail or stay without an answer. Silence is counted in this server's own
//! ticks, and only in those that come in time: a server that was stopped, or has had no processor, has heard nothing
//! meanwhile, and knows nothing of the others when it wakes. Nothing here decides what is safe: a server that is
//! replaced by mistake loses its place, and no record.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::broken_rules::{MemberRule, is_broken};
use crate::limits::{ASK_AGAIN_TICKS, ASK_TICKS_LEAST, FAILED_TICKS, LEASE, SILENT_TICKS, UNANSWERED_QUESTIONS};

/// How a tick has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TickPace {
    /// In time.
    Timely,
    /// So late that silence may be this server's own.
    Late,
    /// So late that all that was known is old.
    Slept,
}

impl TickPace {
    /// The pace of a tick that comes so long after the one before it, where `interval` was meant.
    pub(crate) fn of(since: Duration, interval: Duration) -> TickPace {
        match since {
            since if since >= interval + LEASE => TickPace::Slept,
            since if since >= 2 * interval => TickPace::Late,
            _ => TickPace::Timely,
        }
    }
}

/// The owner of a copy that is here, as it is in a tick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedOwner {
    pub(crate) owner: String,
    /// The start that the others know of.
    pub(crate) boot: u64,
    /// The questions about the copy that it has asked since this server's start.
    pub(crate) questions: u64,
    /// Whether one of them is being answered.
    pub(crate) is_asking: bool,
}

/// What came of the question whether a server is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LifeAnswer {
    /// It is there.
    Serves,
    /// Something answers, and does not show that it is that server.
    Unclear,
    /// Nothing listens there.
    Refused,
    /// No answer in time.
    Silent,
    /// The question has failed earlier: there is no way to the server, or the connection was ended.
    Failed,
}

/// A question to an owner whether it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LifeQuestion {
    pub(crate) owner: String,
    pub(crate) number: u64,
}

/// An owner, since it was heard last.
#[derive(Clone, Debug, Default)]
struct WatchedOwner {
    boot: u64,
    questions: u64,
    silent_ticks: u64,
    /// The question that has no answer yet: its number, and the tick in which it was asked.
    asked: Option<(u64, u64)>,
    unanswered: u32,
    /// The tick in which the last question has failed at once.
    failed: Option<u64>,
    /// The tick in which it was last found to be gone.
    gone: Option<u64>,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct CopyWatch {
    /// Ticks that came in time.
    ticks: u64,
    numbers: u64,
    owners: BTreeMap<String, WatchedOwner>,
    /// The question that is under way to each, whatever was heard of it since: each takes a thread, so there is no
    /// second one.
    under_way: BTreeMap<String, u64>,
}

impl CopyWatch {
    /// A tick: these are the owners of copies that are here. Returns the questions that are to be asked.
    pub(crate) fn tick(&mut self, pace: TickPace, seen: &[ObservedOwner]) -> Vec<LifeQuestion> {
        if pace == TickPace::Slept && !is_broken(MemberRule::SleepersForget) {
            // Also what was asked: its time has run out while this server could not look.
            self.owners.clear();
        }
        let counts = pace == TickPace::Timely || is_broken(MemberRule::SleepersForget);
        self.ticks += u64::from(counts);
        self.owners.retain(|owner, _| seen.iter().any(|one| one.owner == *owner));
        let mut questions = Vec::new();
        for ObservedOwner { owner, boot, questions: heard, is_asking } in seen {
            let fresh = WatchedOwner { boot: *boot, questions: *heard, ..WatchedOwner::default() };
            let known = self.owners.entry(owner.clone()).or_insert_with(|| fresh.clone());
            if *is_asking || (known.boot, known.questions) != (*boot, *heard) {
                *known = fresh;
                continue;
            }
            known.silent_ticks += u64::from(counts);
            let is_due = !self.under_way.contains_key(owner)
                && known.gone.is_none_or(|gone| self.ticks >= gone + ASK_AGAIN_TICKS)
                && known.failed.is_none_or(|failed| self.ticks >= failed + FAILED_TICKS);
            if counts && known.silent_ticks >= SILENT_TICKS && is_due {
                self.numbers += 1;
                self.under_way.insert(owner.clone(), self.numbers);
                known.asked = Some((self.numbers, self.ticks));
                questions.push(LifeQuestion { owner: owner.clone(), number: self.numbers });
            }
        }
        questions
    }

    /// Notes the answer to a question. It is ignored if the question is older than the owner's last word or this
    /// server's last sleep.
    pub(crate) fn answer(&mut self, question: &LifeQuestion, answer: LifeAnswer) {
        let ticks = self.ticks;
        if self.under_way.get(&question.owner) == Some(&question.number) {
            self.under_way.remove(&question.owner);
        }
        let Some(known) = self.owners.get_mut(&question.owner) else { return };
        let Some((_, asked)) = known.asked.filter(|(number, _)| *number == question.number) else { return };
        known.asked = None;
        match answer {
            LifeAnswer::Serves | LifeAnswer::Unclear => {
                (known.silent_ticks, known.unanswered, known.failed, known.gone) = (0, 0, None, None);
            }
            LifeAnswer::Refused => known.gone = Some(ticks),
            // Where this server had no processor to see the answer, there may have been one.
            LifeAnswer::Silent if ticks < asked + ASK_TICKS_LEAST => {}
            LifeAnswer::Silent | LifeAnswer::Failed => {
                known.unanswered += 1;
                // That took no time: without a pause there would be a question in each tick.
                known.failed = Some(ticks).filter(|_| answer == LifeAnswer::Failed);
                if known.unanswered >= UNANSWERED_QUESTIONS {
                    known.gone = Some(ticks);
                }
            }
        }
    }

    /// The owners that are gone, with the starts of them that were known.
    pub(crate) fn gone(&self) -> impl Iterator<Item = (&str, u64)> {
        let gone = self.owners.iter().filter(|(_, known)| known.gone.is_some());
        gone.map(|(owner, known)| (owner.as_str(), known.boot))
    }

    /// The owners that are suspected, with the ticks for which nothing was heard of each.
    pub(crate) fn suspected(&self) -> impl Iterator<Item = (&str, u64)> {
        let silent = self.owners.iter().filter(|(_, known)| known.silent_ticks >= SILENT_TICKS);
        silent.map(|(owner, known)| (owner.as_str(), known.silent_ticks))
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::broken_rules::BROKEN;

    /// Ticks in which an owner that lives asks at least once, and those after which a question has no answer.
    const HEARTBEAT_TICKS: u64 = 2;
    const ASK_TICKS: u64 = 10;
    /// Ticks after which an owner that lives has answered.
    const ANSWER_TICKS: u64 = ASK_TICKS_LEAST + 2;
    /// Ticks after which an owner that is gone is known to be, where all come in time.
    const BOUND: u64 = SILENT_TICKS + 2 * (ASK_TICKS + 1) + 2;

    /// Two watchers and an owner, which lives or is gone from a tick on.
    struct WatchedWorld {
        random: StdRng,
        watches: [CopyWatch; 2],
        heard: [u64; 2],
        /// The question of each that is under way, and the ticks of the world in which it has no answer.
        asked: [Option<(LifeQuestion, u64)>; 2],
        now: u64,
        is_gone: bool,
        /// Whether nothing listens where it was.
        is_refused: bool,
    }

    impl WatchedWorld {
        fn new(seed: u64) -> WatchedWorld {
            let mut random = StdRng::seed_from_u64(seed);
            let is_refused = random.random_ratio(1, 2);
            let watches = [CopyWatch::default(), CopyWatch::default()];
            WatchedWorld { random, watches, heard: [0; 2], asked: [None, None], now: 0, is_gone: false, is_refused }
        }

        /// A tick of the world, of which a watcher that is stopped or starved sees nothing.
        fn pass(&mut self) {
            self.now += 1;
            if !self.is_gone && self.now.is_multiple_of(HEARTBEAT_TICKS) {
                self.heard.iter_mut().for_each(|heard| *heard += 1);
            }
        }

        fn tick(&mut self, at: usize, pace: TickPace, hears: bool) {
            let questions = if hears { self.heard[at] } else { 0 };
            let seen = ObservedOwner { owner: "a".to_owned(), boot: 7, questions, is_asking: false };
            let asked = self.watches[at].tick(pace, &[seen]);
            if let Some(question) = asked.into_iter().next() {
                self.asked[at] = Some((question, self.now));
            }
            let Some((question, since)) = self.asked[at].clone() else { return };
            let answer = match (self.is_gone, self.is_refused) {
                // A live one answers before the time is over; a watch that slept sees both at once, the time first.
                (false, _) if self.now >= since + ASK_TICKS => LifeAnswer::Silent,
                (false, _) if self.now >= since + ANSWER_TICKS => LifeAnswer::Serves,
                (true, true) => LifeAnswer::Refused,
                (true, false) if self.now >= since + ASK_TICKS => LifeAnswer::Silent,
                _ => return,
            };
            self.asked[at] = None;
            self.watches[at].answer(&question, answer);
        }

        fn is_found(&self, at: usize) -> bool {
            self.watches[at].gone().next() == Some(("a", 7))
        }
    }

    #[test]
    fn an_owner_that_is_gone_is_found_by_each_watcher_in_a_bounded_number_of_ticks() {
        for seed in 0..300 {
            let mut world = WatchedWorld::new(seed);
            let lives_for = world.random.random_range(1..40);
            for _ in 0..lives_for {
                world.pass();
                (0..2).for_each(|at| world.tick(at, TickPace::Timely, true));
                assert!(!world.is_found(0) && !world.is_found(1), "seed {seed}");
            }
            world.is_gone = true;
            for _ in 0..BOUND {
                world.pass();
                (0..2).for_each(|at| world.tick(at, TickPace::Timely, true));
            }
            assert!(world.is_found(0) && world.is_found(1), "seed {seed}");
        }
    }

    /// Whether a watcher that is stopped now and then takes an owner for gone that lives and asks all the time. What it
    /// has asked before it was stopped is answered when it wakes: that the time is over.
    fn blames_the_living(seed: u64) -> bool {
        let mut world = WatchedWorld::new(seed);
        // The questions do not come through for a while, so that it asks.
        for step in 0..400_u64 {
            let slept = if world.random.random_ratio(1, 12) { world.random.random_range(30..90) } else { 0 };
            (0..=slept).for_each(|_| world.pass());
            let pace = if slept > 0 { TickPace::Slept } else { TickPace::Timely };
            world.tick(0, pace, step % 40 < 20);
            if world.is_found(0) {
                return true;
            }
        }
        false
    }

    #[test]
    fn a_watcher_that_was_stopped_knows_nothing_of_the_others_when_it_wakes() {
        assert!((0..300).all(|seed| !blames_the_living(seed)));
        BROKEN.set(Some(MemberRule::SleepersForget));
        let is_noticed = (0..300).any(blames_the_living);
        BROKEN.set(None);
        assert!(is_noticed, "the test has not noticed");
    }

    fn silent(boot: u64, questions: u64) -> Vec<ObservedOwner> {
        vec![ObservedOwner { owner: "a".to_owned(), boot, questions, is_asking: false }]
    }

    /// The first question that a watcher asks which hears nothing.
    fn first_question(watch: &mut CopyWatch, pace: TickPace) -> Option<LifeQuestion> {
        (0..=SILENT_TICKS).find_map(|_| watch.tick(pace, &silent(7, 3)).pop())
    }

    #[test]
    fn ticks_that_come_late_count_as_no_silence() {
        assert_eq!(TickPace::of(Duration::from_millis(39), Duration::from_millis(20)), TickPace::Timely);
        assert_eq!(TickPace::of(Duration::from_millis(40), Duration::from_millis(20)), TickPace::Late);
        assert_eq!(TickPace::of(Duration::from_millis(20) + LEASE, Duration::from_millis(20)), TickPace::Slept);
        let mut watch = CopyWatch::default();
        for pace in [TickPace::Late, TickPace::Slept] {
            assert_eq!(first_question(&mut watch, pace), None);
        }
        assert_eq!(watch.suspected().count(), 0);
        let question = first_question(&mut watch, TickPace::Timely).expect("it asks");
        // No answer was seen in ticks that were late.
        (0..20).for_each(|_| assert_eq!(watch.tick(TickPace::Late, &silent(7, 3)), []));
        watch.answer(&question, LifeAnswer::Silent);
        assert_eq!((watch.gone().count(), watch.suspected().count()), (0, 1));
    }

    #[test]
    fn an_owner_that_is_heard_or_answers_is_not_gone_and_one_that_is_found_is_asked_again() {
        let mut watch = CopyWatch::default();
        let question = first_question(&mut watch, TickPace::Timely).expect("it asks");
        watch.answer(&question, LifeAnswer::Refused);
        assert_eq!(watch.gone().next(), Some(("a", 7)));
        // An answer to what was not asked says nothing.
        watch.answer(&question, LifeAnswer::Serves);
        assert_eq!(watch.gone().count(), 1);
        let again = (0..=ASK_AGAIN_TICKS).find_map(|_| watch.tick(TickPace::Timely, &silent(7, 3)).pop());
        assert_eq!(watch.gone().count(), 1, "it is gone until it answers");
        watch.answer(&again.expect("it is asked again"), LifeAnswer::Serves);
        assert_eq!((watch.gone().count(), watch.suspected().count()), (0, 0));
        // An owner that has restarted, or asks, is alive, whatever the answer to an earlier question.
        for seen in [silent(8, 3), silent(8, 4)] {
            let question = (0..=2 * SILENT_TICKS).find_map(|_| watch.tick(TickPace::Timely, &silent(7, 3)).pop());
            watch.tick(TickPace::Timely, &seen);
            watch.answer(&question.expect("it asks"), LifeAnswer::Refused);
            assert_eq!(watch.gone().count(), 0);
        }
        // While a question of it is answered it is there: the disk here may be slow.
        let asks = [ObservedOwner { is_asking: true, ..silent(8, 4).remove(0) }];
        (0..50).for_each(|_| assert_eq!(watch.tick(TickPace::Timely, &asks), []));
    }

    #[test]
    fn one_question_without_an_answer_is_not_enough_and_what_is_unclear_is_nothing() {
        let mut watch = CopyWatch::default();
        for number in 1..=UNANSWERED_QUESTIONS {
            let question = first_question(&mut watch, TickPace::Timely).expect("it asks");
            (0..ASK_TICKS_LEAST).for_each(|_| drop(watch.tick(TickPace::Timely, &silent(7, 3))));
            watch.answer(&question, LifeAnswer::Silent);
            assert_eq!(watch.gone().count() == 1, number == UNANSWERED_QUESTIONS);
        }
        let mut watch = CopyWatch::default();
        for _ in 0..5 {
            let question = first_question(&mut watch, TickPace::Timely).expect("it asks");
            watch.answer(&question, LifeAnswer::Unclear);
            assert_eq!(watch.gone().count(), 0);
        }
    }

    #[test]
    fn a_question_that_fails_at_once_counts_as_one_without_an_answer_and_the_next_one_waits() {
        let mut watch = CopyWatch::default();
        let mut question = first_question(&mut watch, TickPace::Timely).expect("it asks");
        for number in 1..=2 * UNANSWERED_QUESTIONS {
            watch.answer(&question, LifeAnswer::Failed);
            let is_gone = number >= UNANSWERED_QUESTIONS;
            assert_eq!(watch.gone().count() == 1, is_gone);
            for _ in 1..if is_gone { ASK_AGAIN_TICKS } else { FAILED_TICKS } {
                assert_eq!(watch.tick(TickPace::Timely, &silent(7, 3)), [], "it waits");
            }
            question = watch.tick(TickPace::Timely, &silent(7, 3)).pop().expect("it asks again");
        }
        watch.answer(&question, LifeAnswer::Serves);
        assert_eq!(watch.gone().count(), 0);
    }

    #[test]
    fn no_more_than_one_question_to_an_owner_is_under_way_whatever_is_heard_meanwhile() {
        for seed in 0..100 {
            let mut random = StdRng::seed_from_u64(seed);
            let (mut watch, mut under_way) = (CopyWatch::default(), Vec::<LifeQuestion>::new());
            let (mut heard, mut asked) = (0, 0);
            for _ in 0..2_000 {
                heard += u64::from(random.random_ratio(1, 9));
                let pace = if random.random_ratio(1, 40) { TickPace::Slept } else { TickPace::Timely };
                // The map may not give it a copy for a moment.
                let is_seen = !random.random_ratio(1, 30);
                let seen = if is_seen { silent(7, heard) } else { Vec::new() };
                let questions = watch.tick(pace, &seen);
                asked += questions.len();
                under_way.extend(questions);
                assert!(under_way.len() <= 1, "seed {seed}");
                if random.random_ratio(1, 20)
                    && let Some(question) = under_way.pop()
                {
                    let all = [LifeAnswer::Failed, LifeAnswer::Silent, LifeAnswer::Refused, LifeAnswer::Serves];
                    watch.answer(&question, all[random.random_range(0..4)]);
                }
            }
            assert!(asked > 20, "seed {seed}: {asked}");
        }
    }
}
