//! Runs typed functions.

use core::cell::RefCell;

use super::TestStore;
use crate::{Db, Error};

impl TestStore {
    /// Runs a typed function to its end, as [`TestStore::invoke`] does, and returns its reply.
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// #[derive(Clone)]
    /// pub struct Visit {
    ///     pub page: String,
    /// }
    ///
    /// pub async fn visit(db: Db<'_>, args: Visit) -> Result<i64, Error> {
    ///     db.increment(db.table("visits")?, args.page.as_bytes(), 1).await
    /// }
    ///
    /// let mut store = TestStore::new();
    /// store.table("visits");
    /// assert_eq!(store.call(visit, Visit { page: "home".into() }), Ok(1));
    /// ```
    ///
    /// # Errors
    /// As for [`TestStore::invoke`].
    ///
    /// # Panics
    /// When the function does.
    pub fn call<F, A, R>(&mut self, function: F, args: A) -> Result<R, Error>
    where
        F: for<'a> AsyncFn(Db<'a>, A) -> Result<R, Error>,
        A: Clone,
    {
        let mut reply = None;
        let kept = RefCell::new(&mut reply);
        self.invoke(
            async |db: Db<'_>, _: &[u8]| {
                let made = function(db, args.clone()).await?;
                **kept.borrow_mut() = Some(made);
                Ok(())
            },
            b"",
        )?;
        reply.ok_or_else(|| Error::new("the function has ended without a reply"))
    }
}
