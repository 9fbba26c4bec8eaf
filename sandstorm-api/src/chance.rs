//! What is not in a table: random numbers, time finer than milliseconds, secrets.

use alloc::format;
use alloc::vec::Vec;

use crate::Error;
use crate::db::Db;

impl Db<'_> {
    /// Returns a random number: all are equally likely, and none can be guessed from others.
    ///
    /// Each invocation has a generator of its own (ChaCha), which the kernel seeds at the first use; nothing of it is
    /// shared with another invocation. An invocation that a conflict begins anew gets other numbers. In tests they come
    /// from [`TestStore::set_seed`](crate::testing::TestStore::set_seed).
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    ///     db.reply(format!("{:016x}", db.random()).as_bytes())
    /// }
    ///
    /// let mut store = TestStore::new();
    /// let first = store.set_seed(7).invoke(run, b"");
    /// assert_ne!(store.invoke(run, b""), first);
    /// assert_eq!(store.set_seed(7).invoke(run, b""), first);
    /// ```
    pub fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        self.random_bytes(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Returns a random number below `bound`, all equally likely; 0 for a bound of 0 or 1.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    ///     let die = 1 + db.random_below(6);
    ///     db.reply(die.to_string().as_bytes())
    /// }
    /// # let mut store = sandstorm_api::testing::TestStore::new();
    /// # assert!(matches!(store.invoke(run, b"").unwrap()[..], [b'1'..=b'6']));
    /// ```
    pub fn random_below(&self, bound: u64) -> u64 {
        if bound <= 1 {
            return 0;
        }
        // The numbers that are left over at the top would make some more likely than others.
        let over = (u64::MAX % bound + 1) % bound;
        loop {
            let number = self.random();
            if number <= u64::MAX - over {
                return number % bound;
            }
        }
    }

    /// Fills a buffer with random bytes, as of [`Db::random`]: a token of 16 cannot be guessed.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// async fn run(db: Db<'_>, user: &[u8]) -> Result<(), Error> {
    ///     let mut token = [0; 16];
    ///     db.random_bytes(&mut token);
    ///     db.put(db.table("sessions")?, &token, user).if_absent().expires_in_ms(3_600_000).await?;
    ///     db.reply(&token)
    /// }
    /// # let mut store = sandstorm_api::testing::TestStore::new();
    /// # store.table("sessions");
    /// # assert_eq!(store.invoke(run, b"ann").unwrap().len(), 16);
    /// ```
    ///
    /// # Panics
    /// When the kernel gives no random numbers, which ends the invocation.
    pub fn random_bytes(&self, bytes: &mut [u8]) {
        if self.host.random(bytes).is_err() {
            panic!("the kernel gives no random numbers");
        }
    }

    /// Microseconds since the Unix epoch, at this moment: unlike [`Db::now_ms`], which stands still during a slice. It
    /// is the machine's clock, which may be set, so a later time may be smaller.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// async fn run(db: Db<'_>, event: &[u8]) -> Result<(), Error> {
    ///     // Two events of one microsecond stay apart by chance.
    ///     let key = [&db.now_us().to_be_bytes()[..], &db.random().to_be_bytes()].concat();
    ///     db.put(db.table("events")?, &key, event).await?;
    ///     Ok(())
    /// }
    /// # let mut store = sandstorm_api::testing::TestStore::new();
    /// # let events = store.ordered_table("events");
    /// # store.invoke(run, b"x").unwrap();
    /// # assert_eq!(store.len(events), 1);
    /// ```
    pub fn now_us(&self) -> u64 {
        self.host.now_us()
    }

    /// Returns a secret of the tenant, which `sandstorm secret set NAME` has set: the key of another service, say. The
    /// server keeps it sealed on its disk, and lists names alone. It is as it was when the invocation began.
    ///
    /// Every author who may push code to the tenant may read its secrets.
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    ///     let key = db.secret("greeting")?;
    ///     db.reply(&[&key, args].concat())
    /// }
    ///
    /// let mut store = TestStore::new();
    /// assert_eq!(store.invoke(run, b"ann").unwrap_err().kind(), ErrorKind::NotFound);
    /// store.secret("greeting", b"hello ");
    /// assert_eq!(store.invoke(run, b"ann"), Ok(b"hello ann".to_vec()));
    /// ```
    ///
    /// # Errors
    /// `NotFound` when there is none of that name.
    pub fn secret(&self, name: &str) -> Result<Vec<u8>, Error> {
        let none = || format!("the tenant has no secret {name:?}: `sandstorm secret set {name}` sets it");
        self.host.secret(name)?.ok_or_else(|| Error::not_found(none()))
    }
}
