//! The target's part in a move: copies the records of some slots, step by step, without clocks and threads.
//!
//! First it copies all records page by page, while the source serves them, and with them keys that have changed since
//! if these are many. Then it copies the keys that have changed meanwhile, again and again. Then the source stops
//! serving the slots, and the last changes follow. When all is on the disk the target tells the source to hand over.
//! Answers of the source come in order, so the last one about a key is right. After any trouble a new attempt begins
//! empty.

use sandstorm_store::slots::SlotSpan;

use crate::broken_rules::{MemberRule, is_broken};
use crate::copy_format::{CopiedTable, CopyAnswer, CopyAsk, CopyHead, CopyRequest, EmptiedTable};
use crate::limits::{CHANGES_ABOVE_BYTES, FREEZE_AFTER_ROUNDS, FREEZE_BELOW_CHANGES};

/// The source of a move.
pub(crate) trait CopySource {
    /// Its answer.
    ///
    /// # Errors
    /// One line: it refuses, or does not answer.
    fn ask(&mut self, request: &CopyRequest) -> Result<CopyAnswer, String>;

    /// Whether it has not been asked for so long that it is to be told that the target is there.
    fn is_quiet(&self) -> bool {
        false
    }
}

/// The tables of the target.
pub(crate) trait CopyTables {
    /// Whether it can take records of these tables.
    ///
    /// # Errors
    /// One line: it does not know one.
    fn check(&mut self, tables: &[CopiedTable]) -> Result<(), String>;

    /// What to tell people of a table that is not logged here as at the source, if there is one.
    fn logged_otherwise(&self, tables: &[CopiedTable]) -> Option<String>;

    /// Removes all records of some slots (disjoint spans, in their order) that this server does not own. Returns
    /// whether there may be more.
    ///
    /// # Errors
    /// One line.
    fn clear(&mut self, spans: &[SlotSpan]) -> Result<bool, String>;

    /// Removes records of some slots of a table, which the source has emptied; returns whether there may be more.
    ///
    /// # Errors
    /// One line.
    fn empty(&mut self, spans: &[SlotSpan], table: &EmptiedTable) -> Result<bool, String>;

    /// Makes keys be as the source has them; returns how many there were.
    ///
    /// # Errors
    /// One line.
    fn take(&mut self, answer: &CopyAnswer) -> Result<u64, String>;

    /// Waits until all is on the disk, and versions go on behind those of the source.
    ///
    /// # Errors
    /// One line.
    fn finish(&mut self, tables: &[CopiedTable]) -> Result<(), String>;
}

/// How far a copy is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CopyPhase {
    Begin,
    Clear,
    /// Where the next page begins, and whether so many keys have changed that their records come first.
    Pages {
        at: usize,
        cursor: u64,
        changes: bool,
    },
    /// Answers since the least bytes of noted keys were left, and those bytes.
    Changes {
        rounds: u32,
        least: u64,
    },
    Freeze,
    LastChanges,
    Finish,
    Ready,
    HandedOver,
}

/// An attempt to copy the slots of a move.
#[derive(Debug)]
pub(crate) struct SlotCopy {
    target: String,
    move_id: u64,
    span: SlotSpan,
    attempt: u64,
    phase: CopyPhase,
    tables: Vec<CopiedTable>,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    /// Whether the last step waits for etcd, or for what the source says.
    pub(crate) waits: bool,
    waits_for: Option<String>,
}

impl SlotCopy {
    /// An attempt that has not begun. `attempt` is a random number.
    pub(crate) fn new(target: &str, move_id: u64, span: SlotSpan, attempt: u64) -> SlotCopy {
        let target = target.to_owned();
        let (phase, tables) = (CopyPhase::Begin, Vec::new());
        SlotCopy { target, move_id, span, attempt, phase, tables, records: 0, bytes: 0, waits: false, waits_for: None }
    }

    /// The move.
    pub(crate) fn move_id(&self) -> u64 {
        self.move_id
    }

    /// Whether the source has begun it, which ends every earlier attempt.
    pub(crate) fn has_begun(&self) -> bool {
        self.phase != CopyPhase::Begin
    }

    /// Whether the slots are handed over.
    pub(crate) fn is_over(&self) -> bool {
        self.phase == CopyPhase::HandedOver
    }

    /// The slots.
    pub(crate) fn span(&self) -> SlotSpan {
        self.span
    }

    /// Whether all is here, so that the source may hand the slots over at any moment.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.phase, CopyPhase::Ready | CopyPhase::HandedOver)
    }

    /// Whether the source serves the slots still.
    pub(crate) fn is_served(&self) -> bool {
        !matches!(self.phase, CopyPhase::LastChanges | CopyPhase::Finish | CopyPhase::Ready | CopyPhase::HandedOver)
    }

    /// What is done now, for people.
    pub(crate) fn state(&self) -> String {
        match self.phase {
            CopyPhase::Begin => "begins".to_owned(),
            CopyPhase::Clear => "removes what an earlier attempt has left".to_owned(),
            CopyPhase::Pages { at, .. } => format!("copies table {} of {}", at + 1, self.tables.len()),
            CopyPhase::Changes { .. } if self.waits && self.waits_for.is_some() => {
                format!("waits: {}", self.waits_for.as_deref().unwrap_or_default())
            }
            CopyPhase::Changes { .. } if self.waits => "waits for the source, which etcd does not answer".to_owned(),
            CopyPhase::Changes { .. } => "copies what has changed meanwhile".to_owned(),
            CopyPhase::Freeze | CopyPhase::LastChanges => "copies the last changes".to_owned(),
            CopyPhase::Finish => "waits for the disk".to_owned(),
            CopyPhase::Ready => "is handed over".to_owned(),
            CopyPhase::HandedOver => "handed over".to_owned(),
        }
    }

    fn ask(&self, source: &mut impl CopySource, ask: CopyAsk) -> Result<CopyAnswer, String> {
        let target = self.target.clone();
        source.ask(&CopyRequest { target, move_id: self.move_id, attempt: self.attempt, ask })
    }

    fn take(
        &mut self,
        source: &mut impl CopySource,
        own: &mut impl CopyTables,
        answer: &CopyAnswer,
    ) -> Result<u64, String> {
        let emptied = answer.head.emptied.iter().filter(|_| !is_broken(MemberRule::EmptiedIsCopied));
        for table in emptied {
            // A large one takes longer than the source waits for a word.
            while own.empty(&[self.span], table)? {
                self.keep_alive(source)?;
            }
        }
        let count = own.take(answer)?;
        self.records += count;
        self.bytes += answer.records.len() as u64;
        Ok(count)
    }

    /// Tells the source that this attempt goes on, where it has not been asked for a while.
    ///
    /// # Errors
    /// One line: this attempt is over.
    pub(crate) fn keep_alive(&self, source: &mut impl CopySource) -> Result<(), String> {
        self.ask(source, CopyAsk::Alive).map(drop)
    }

    /// Asks the source, which has handed the slots over, whether calls are made for all of their changes there. It
    /// waits a while for them.
    ///
    /// # Errors
    /// One line: it does not answer.
    pub(crate) fn ask_called(&self, source: &mut impl CopySource) -> Result<bool, String> {
        self.ask(source, CopyAsk::Called).map(|answer| !answer.head.waits)
    }

    /// Copies what has changed, and what is noted of it; returns where this goes on.
    fn copy_changes(
        &mut self,
        source: &mut impl CopySource,
        own: &mut impl CopyTables,
        (rounds, least): (u32, u64),
    ) -> Result<CopyPhase, String> {
        let answer = self.ask(source, CopyAsk::Changes)?;
        let count = self.take(source, own, &answer)?;
        let CopyHead { has_more, noted, .. } = answer.head;
        if !has_more && count < FREEZE_BELOW_CHANGES as u64 || rounds >= FREEZE_AFTER_ROUNDS {
            return Ok(CopyPhase::Freeze);
        }
        // A little less each time is no end.
        match noted < least - least / 8 {
            true => Ok(CopyPhase::Changes { rounds: 0, least: noted }),
            false => Ok(CopyPhase::Changes { rounds: rounds + 1, least }),
        }
    }

    /// Has the source serve the slots no more; returns where this goes on.
    fn freeze(&mut self, source: &mut impl CopySource, own: &mut impl CopyTables) -> Result<CopyPhase, String> {
        let head = self.ask(source, CopyAsk::Freeze)?.head;
        (self.waits, self.waits_for) = (head.waits, head.waits_for);
        if head.waits {
            return Ok(CopyPhase::Changes { rounds: 0, least: u64::MAX });
        }
        self.tables = head.tables;
        own.check(&self.tables)?;
        match own.logged_otherwise(&self.tables) {
            Some(why) => self.thaw(source, why),
            None if is_broken(MemberRule::ChangesAreCopied) => Ok(CopyPhase::Finish),
            None => Ok(CopyPhase::LastChanges),
        }
    }

    /// Has the source serve the slots again while this waits; returns where this goes on. What was copied stays: a
    /// tenant that changes a table's durability again and again has no copy begin anew.
    fn thaw(&mut self, source: &mut impl CopySource, why: String) -> Result<CopyPhase, String> {
        self.ask(source, CopyAsk::Thaw)?;
        (self.waits, self.waits_for) = (true, Some(why));
        Ok(CopyPhase::Changes { rounds: 0, least: u64::MAX })
    }

    /// Tells the source that this attempt is over, so that it serves the slots at once.
    pub(crate) fn abandon(&self, source: &mut impl CopySource) {
        if !matches!(self.phase, CopyPhase::Begin | CopyPhase::HandedOver) {
            // Otherwise the source ends it when it has heard nothing for some seconds.
            let _unless_lost = self.ask(source, CopyAsk::Abandon);
        }
    }

    /// Goes one step further.
    ///
    /// # Errors
    /// One line: this attempt is over. A new one may do better.
    pub(crate) fn step(&mut self, source: &mut impl CopySource, own: &mut impl CopyTables) -> Result<(), String> {
        self.phase = match self.phase.clone() {
            CopyPhase::Begin => {
                self.tables = self.ask(source, CopyAsk::Begin)?.head.tables;
                own.check(&self.tables)?;
                if let Some(why) = own.logged_otherwise(&self.tables) {
                    return Err(why);
                }
                if is_broken(MemberRule::CopiesBeginEmpty) {
                    CopyPhase::Pages { at: 0, cursor: 0, changes: false }
                } else {
                    CopyPhase::Clear
                }
            }
            CopyPhase::Clear if own.clear(&[self.span])? => CopyPhase::Clear,
            CopyPhase::Clear => CopyPhase::Pages { at: 0, cursor: 0, changes: false },
            CopyPhase::Pages { at, cursor, changes: true } => {
                // One answer, then a page again: so that it comes to an end, however many write.
                let answer = self.ask(source, CopyAsk::Changes)?;
                self.take(source, own, &answer)?;
                CopyPhase::Pages { at, cursor, changes: false }
            }
            CopyPhase::Pages { at, cursor, .. } => match self.tables.get(at) {
                None => CopyPhase::Changes { rounds: 0, least: u64::MAX },
                Some(CopiedTable { tenant, table, serial, .. }) => {
                    let ask = CopyAsk::Page { tenant: *tenant, table: *table, serial: *serial, cursor };
                    let answer = self.ask(source, ask)?;
                    self.take(source, own, &answer)?;
                    let is_much = answer.head.noted > CHANGES_ABOVE_BYTES;
                    let changes = is_much && !is_broken(MemberRule::ChangesAreCopied);
                    match answer.head.next {
                        Some(cursor) => CopyPhase::Pages { at, cursor, changes },
                        None => CopyPhase::Pages { at: at + 1, cursor: 0, changes },
                    }
                }
            },
            CopyPhase::Changes { .. } if is_broken(MemberRule::ChangesAreCopied) => CopyPhase::Freeze,
            CopyPhase::Changes { rounds, least } => self.copy_changes(source, own, (rounds, least))?,
            CopyPhase::Freeze => self.freeze(source, own)?,
            CopyPhase::LastChanges => {
                let answer = self.ask(source, CopyAsk::Changes)?;
                self.take(source, own, &answer)?;
                if answer.head.has_more { CopyPhase::LastChanges } else { CopyPhase::Finish }
            }
            CopyPhase::Finish => match own.logged_otherwise(&self.tables) {
                Some(why) => self.thaw(source, why)?,
                None => {
                    own.finish(&self.tables)?;
                    CopyPhase::Ready
                }
            },
            CopyPhase::Ready => match self.ask(source, CopyAsk::Ready)?.head.handed_over {
                true => CopyPhase::HandedOver,
                // etcd is away: the source goes on trying.
                false => CopyPhase::Ready,
            },
            CopyPhase::HandedOver => CopyPhase::HandedOver,
        };
        Ok(())
    }
}
