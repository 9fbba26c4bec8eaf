//! What the first command is about of those that are answered together: where they were slow, it names them.

use sandstorm_accounts::RequestSubject;

/// The first command since the last answers were counted.
#[derive(Debug)]
pub(crate) struct FirstCommand {
    subject: RequestSubject,
    is_noted: bool,
}

impl FirstCommand {
    /// None yet: the name of the protocol stands for it.
    pub(crate) const fn none(protocol: &'static str) -> FirstCommand {
        FirstCommand { subject: RequestSubject::of(protocol), is_noted: false }
    }

    /// Notes a command, if it is the first.
    #[inline]
    pub(crate) fn note(&mut self, subject: impl FnOnce() -> RequestSubject) {
        if !self.is_noted {
            (self.subject, self.is_noted) = (subject(), true);
        }
    }

    /// Whether one without a key is noted.
    #[inline]
    pub(crate) fn is_without_key(&self) -> bool {
        self.is_noted && self.subject.key_len() == 0
    }

    /// Notes that the answers so far are counted: the next command is the first again.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.is_noted = false;
    }

    /// What it is about.
    pub(crate) fn subject(&self) -> RequestSubject {
        self.subject
    }
}
