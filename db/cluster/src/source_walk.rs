//! The target's position in a table's records: the state that the source keeps between two pages.

use sandstorm_store::SlotWalk;

/// A walk through a table's records for an attempt to copy them.
#[derive(Debug, Default)]
pub(crate) struct SourceWalk {
    pub(crate) walk: SlotWalk,
    /// The next page.
    pub(crate) page: u64,
}

/// The walk of the attempt that has the turn.
#[derive(Debug, Default)]
pub(crate) struct SourceWalks {
    current: Option<(u64, SourceWalk)>,
}

impl SourceWalks {
    /// Forgets what an earlier attempt was shown.
    pub(crate) fn forget(&mut self) {
        self.current = None;
    }

    /// The walk that shows a page; page 0 begins one.
    ///
    /// # Errors
    /// One line: another page is the next one, since a question came late or twice.
    pub(crate) fn walk_of(&mut self, attempt: u64, page: u64) -> Result<&mut SourceWalk, String> {
        if page == 0 {
            self.current = Some((attempt, SourceWalk::default()));
        }
        let current = self.current.as_mut().filter(|(of, walk)| *of == attempt && walk.page == page);
        current.map(|(_, walk)| walk).ok_or_else(|| "the target has missed a page: the copy begins again".to_owned())
    }
}
