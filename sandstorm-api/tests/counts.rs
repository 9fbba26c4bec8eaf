//! Promise: what a transaction was told of counts, ranks and positions is what a sorted map would say at the moment of
//! its commit, though others write between any two questions. A position beyond the last key is such an answer, too.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use sandstorm_api::limits::TRANSACTION_TRIES;
use sandstorm_api::prelude::*;
use sandstorm_api::testing::TestStore;

/// One of so many calls between two questions writes.
const OTHERS_WRITE_ONE_OF: u64 = 12;

/// Numbers that look random (an LCG).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    /// Short keys of few letters, the empty one among them.
    fn key(&mut self) -> Vec<u8> {
        (0..self.below(3)).map(|_| self.below(3) as u8).collect()
    }
}

/// What a call does.
#[derive(Clone, Debug)]
enum Step {
    Put(Vec<u8>),
    Delete(Vec<u8>),
    Count(Vec<u8>, Vec<u8>),
    Rank(Vec<u8>),
    Nth(u64),
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Keys(u64),
    Key(Option<Vec<u8>>),
}

/// A program of few writes and some questions. One position is beyond everything, where sums overflow.
fn program(numbers: &mut Numbers) -> Vec<Step> {
    let step = |_| match numbers.below(8) {
        0 => Step::Put(numbers.key()),
        1 => Step::Delete(numbers.key()),
        2 => Step::Count(numbers.key(), numbers.key()),
        3 => Step::Rank(numbers.key()),
        4 => Step::Nth(u64::MAX - numbers.below(3)),
        _ => Step::Nth(numbers.below(8)),
    };
    (0..6).map(step).collect()
}

async fn follow(tx: Transaction<'_>, table: TableId, steps: &[Step]) -> Result<Vec<Answer>, Error> {
    let mut answers = Vec::new();
    for step in steps {
        match step {
            Step::Put(key) => tx.put(table, key, b"")?,
            Step::Delete(key) => _ = tx.delete(table, key).await?,
            Step::Count(from, to) => answers.push(Answer::Keys(tx.count(table, from, to).await?)),
            Step::Rank(key) => answers.push(Answer::Keys(tx.rank(table, key).await?)),
            Step::Nth(position) => answers.push(Answer::Key(tx.nth(table, *position).await?)),
        }
    }
    Ok(answers)
}

/// The same of a sorted set.
fn expected(keys: &mut BTreeSet<Vec<u8>>, steps: &[Step]) -> Vec<Answer> {
    let mut answers = Vec::new();
    for step in steps {
        match step {
            Step::Put(key) => _ = keys.insert(key.clone()),
            Step::Delete(key) => _ = keys.remove(key),
            Step::Count(from, to) => {
                let in_range = |key: &&Vec<u8>| *key >= from && (to.is_empty() || *key < to);
                answers.push(Answer::Keys(keys.iter().filter(in_range).count() as u64));
            }
            Step::Rank(before) => {
                answers.push(Answer::Keys(keys.iter().filter(|key| *key < before).count() as u64));
            }
            Step::Nth(position) => {
                let at = usize::try_from(*position).expect("64 bits");
                answers.push(Answer::Key(keys.iter().nth(at).cloned()));
            }
        }
    }
    answers
}

#[test]
fn answers_hold_at_the_commit_though_others_write_between_any_two_questions() {
    let mut numbers = Numbers(1);
    let (mut committed, mut disturbed) = (0, 0);
    for round in 0..4_000 {
        let mut store = TestStore::new();
        let table = store.ordered_table("t");
        // What is in the table without the call's own writes.
        let others = Rc::new(RefCell::new(BTreeSet::new()));
        for _ in 0..numbers.below(6) {
            let key = numbers.key();
            store.put(table, &key, b"");
            others.borrow_mut().insert(key);
        }
        let writes = Rc::new(RefCell::new(0));
        let (model, made, mut random) = (Rc::clone(&others), Rc::clone(&writes), Numbers(round));
        store.before_counts(move |store| {
            if random.below(OTHERS_WRITE_ONE_OF) == 0 {
                let key = random.key();
                *made.borrow_mut() += 1;
                if random.below(3) == 0 {
                    store.delete(table, &key);
                    model.borrow_mut().remove(&key);
                } else {
                    store.put(table, &key, b"");
                    model.borrow_mut().insert(key);
                }
            }
        });
        let (steps, answers) = (program(&mut numbers), RefCell::new(Vec::new()));
        let run = async |db: Db<'_>, _: &[u8]| {
            *answers.borrow_mut() = follow(db.transaction(), table, &steps).await?;
            Ok(())
        };
        match store.invoke(run, b"") {
            Ok(_) => committed += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Contended, "{error} of {steps:?}");
                continue;
            }
        }
        disturbed += u32::from(*writes.borrow() != 0);
        let (mut keys, was) = (others.borrow().clone(), others.borrow().clone());
        assert_eq!(answers.into_inner(), expected(&mut keys, &steps), "round {round}: {steps:?} of {was:?}");
        assert_eq!(store.len(table), keys.len(), "round {round}: {steps:?} of {was:?}");
    }
    assert!(committed > 3_000 && disturbed > 300, "{committed} were committed, {disturbed} beside others' writes");
}

/// The order of questions in which a key that comes is the easiest to miss.
#[test]
fn a_key_that_comes_when_the_last_position_was_asked_is_found() {
    let mut store = TestStore::new();
    let table = store.ordered_table("t");
    store.put(table, b"a", b"");
    let mut asked = 0;
    store.before_counts(move |store| {
        asked += 1;
        if asked == 2 {
            store.put(table, b"b", b"");
        }
    });
    let run = async |db: Db<'_>, _: &[u8]| {
        let tx = db.transaction();
        let second = tx.nth(table, 1).await?;
        let keys = tx.count(table, b"", b"").await?;
        db.reply(format!("{keys} {}", second.is_some()).as_bytes())
    };
    assert_eq!(store.invoke(run, b""), Ok(b"2 true".to_vec()));
}

#[test]
fn a_position_at_which_others_come_and_go_all_the_time_is_asked_for_anew() {
    let mut store = TestStore::new();
    let table = store.ordered_table("t");
    store.put(table, b"a", b"");
    let asked = Rc::new(RefCell::new(0));
    let questions = Rc::clone(&asked);
    // As many questions as a position has in one run: it is gone when it is looked for, and there when all are counted.
    store.before_counts(move |store| {
        *questions.borrow_mut() += 1;
        match *questions.borrow() {
            late if late > 2 * TRANSACTION_TRIES => {}
            odd if odd % 2 == 1 => _ = store.delete(table, b"b"),
            _ => _ = store.put(table, b"b", b""),
        }
    });
    let run = async |db: Db<'_>, _: &[u8]| {
        let second = db.transaction().nth(table, 1).await?;
        db.reply(&second.unwrap_or_default())
    };
    assert_eq!(store.invoke(run, b""), Ok(b"b".to_vec()));
    assert_eq!((store.tries(), *asked.borrow() > 2 * TRANSACTION_TRIES), (2, true));
}

#[test]
fn a_position_beyond_all_is_none_however_large_and_whatever_was_deleted() {
    let mut store = TestStore::new();
    let table = store.ordered_table("t");
    ["a", "b", "c"].iter().for_each(|key| _ = store.put(table, key.as_bytes(), b""));
    let run = async |db: Db<'_>, _: &[u8]| {
        let tx = db.transaction();
        tx.delete(table, b"a").await?;
        tx.delete(table, b"c").await?;
        for position in [1, u64::MAX - 1, u64::MAX] {
            assert_eq!(tx.nth(table, position).await?, None, "{position}");
        }
        assert_eq!(tx.nth(table, 0).await?.as_deref(), Some(&b"b"[..]));
        tx.put(table, b"d", b"")?;
        assert_eq!(tx.nth(table, 1).await?.as_deref(), Some(&b"d"[..]));
        assert_eq!(tx.nth(table, u64::MAX).await?, None);
        Ok(())
    };
    assert_eq!(store.invoke(run, b""), Ok(vec![]));
}

#[test]
fn a_table_without_order_has_no_rank_of_the_empty_key_either() {
    let mut store = TestStore::new();
    let table = store.table("t");
    let run = async |db: Db<'_>, _: &[u8]| {
        let tx = db.transaction();
        assert_eq!(tx.rank(table, b"").await.unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(tx.count(table, b"", b"").await.unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(tx.nth(table, 0).await.unwrap_err().kind(), ErrorKind::Invalid);
        Ok(())
    };
    assert_eq!(store.invoke(run, b""), Ok(vec![]));
}
