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

    /// Runs a typed function that takes nothing beside the `Db`, as [`TestStore::call`] does one with an argument.
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// pub async fn visits(db: Db<'_>) -> Result<u64, Error> {
    ///     db.count(db.table("visits")?, b"", b"").await
    /// }
    ///
    /// let mut store = TestStore::new();
    /// let visits_table = store.ordered_table("visits");
    /// store.put(visits_table, b"home", b"1");
    /// assert_eq!(store.call_without_argument(visits), Ok(1));
    /// ```
    ///
    /// # Errors
    /// As for [`TestStore::invoke`].
    ///
    /// # Panics
    /// When the function does.
    pub fn call_without_argument<F, R>(&mut self, function: F) -> Result<R, Error>
    where
        F: for<'a> AsyncFn(Db<'a>) -> Result<R, Error>,
    {
        self.call(async |db: Db<'_>, ()| function(db).await, ())
    }
}
