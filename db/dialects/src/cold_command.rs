//! Commands that meet records which are not in memory: on the disk, in tables larger than memory, or behind a table.
//! Such a command does nothing: its answer is taken back, and it is run again once the records are in memory.

use sandstorm_store::Participant;
use sandstorm_store::spill::SpillReadError;

use crate::limits::COLD_TRIES;

/// The text for a command whose records leave memory again before it is run.
const NOT_KEPT: &str = "its records were fetched and left memory again before they were used: ask for less at once";

/// The waits of a session for its next command.
#[derive(Debug, Default)]
pub(crate) struct ColdCommand {
    tries: u32,
    /// How far a command in pieces was when it began to wait.
    position: usize,
    error: Option<SpillReadError>,
}

/// The result of running a command.
pub(crate) enum ColdOutcome {
    /// It is answered.
    Answered,
    /// It waits for cold records.
    Waits,
    /// It is refused, with this text.
    Refused(String),
}

impl ColdCommand {
    /// Notes why records could not be read.
    pub(crate) fn set_error(&mut self, error: SpillReadError) {
        self.error = Some(error);
    }

    /// Whether nothing is noted of a command that waited.
    #[cfg(test)]
    pub(crate) fn is_new(&self) -> bool {
        (self.tries, self.position) == (0, 0) && self.error.is_none()
    }

    /// Notes how far a command in pieces is: one that gets on may wait as often as it has parts.
    pub(crate) fn note_position(&mut self, position: usize) {
        if position != self.position {
            (self.tries, self.position) = (0, position);
        }
    }

    /// Tells whether the command that was just run has met cold records.
    #[inline]
    pub(crate) fn settle(&mut self, participant: &Participant) -> ColdOutcome {
        if !participant.shown().has_cold() {
            if self.tries != 0 || self.position != 0 {
                *self = ColdCommand::default();
            }
            return ColdOutcome::Answered;
        }
        self.settle_cold(participant)
    }

    #[cold]
    fn settle_cold(&mut self, participant: &Participant) -> ColdOutcome {
        let error = self.error.take().map(|error| error.to_string());
        let error = error.or_else(|| (self.tries >= COLD_TRIES).then(|| NOT_KEPT.to_owned()));
        if let Some(error) = error {
            participant.shown().take_cold();
            *self = ColdCommand::default();
            return ColdOutcome::Refused(error);
        }
        self.tries += 1;
        ColdOutcome::Waits
    }
}
