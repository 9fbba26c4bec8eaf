//! Calls of the tenant's other extensions.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::abi::{CALL_NOTES, CALL_REPLY, STATUS_BUSY, STATUS_OK};
use crate::db::Db;
use crate::host::HostHandle;
use crate::limits::CALL_BYTES;
use crate::typed::callee::{CalleeName, no_function_named};
use crate::typed::{Decoder, TypeText, Typed};
use crate::{Error, ErrorKind};

impl<'a> Db<'a> {
    /// Calls another extension of the tenant, or this one; awaiting gives its reply.
    ///
    /// The callee runs in a memory of its own, on the caller's CPU budget, and counts as a call of its own extension.
    /// It is the current version as it was when the whole call began, to its end, even if it is replaced or unloaded
    /// meanwhile; one that is tried on a share of clients' calls is not called from code. Extensions call each other
    /// [`CALL_DEPTH`](crate::limits::CALL_DEPTH) deep at most. One runs at a time: a second call that is awaited beside
    /// the first waits for it.
    ///
    /// **Transactions.** There is one for the whole call. A callee sees what the caller's has written, and adds to it,
    /// whether the caller has begun one or not; all is committed when the first extension returns `Ok`. What a callee
    /// that fails wanted to write is dropped; what it has read still has to hold. What it writes through `Db` is
    /// written at once, as always.
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// /// Takes one of an article from the stock.
    /// async fn reserve(db: Db<'_>, article: &[u8]) -> Result<(), Error> {
    ///     let left = db.transaction().increment(db.table("stock")?, article, -1).await?;
    ///     if left < 0 { Err(Error::new("sold out")) } else { db.reply(left.to_string().as_bytes()) }
    /// }
    ///
    /// /// Places an order, if there is something left: both are written, or nothing is.
    /// async fn order(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    ///     db.transaction().put(db.table("orders")?, args, b"placed")?;
    ///     let left = db.call("reserve", args).await?;
    ///     db.reply(&[&left, &b" left"[..]].concat())
    /// }
    ///
    /// let mut store = TestStore::new();
    /// let (stock, orders) = (store.table("stock"), store.table("orders"));
    /// store.put(stock, b"tea", b"1");
    /// store.extension("reserve", reserve);
    /// assert_eq!(store.invoke(order, b"tea"), Ok(b"0 left".to_vec()));
    /// assert_eq!(store.invoke(order, b"tea").unwrap_err().text(), "reserve: sold out");
    /// assert_eq!((store.get(stock, b"tea"), store.len(orders)), (Some(&b"0"[..]), 1));
    /// ```
    ///
    /// # Errors
    /// The callee's own, with its kind, and its name before the text. `NotFound`: the tenant has no extension of that
    /// name. `Killed`: the server has ended the callee, for a panic say; the caller goes on. (At the end of the CPU
    /// budget both end.) `Invalid`: too deep, or its functions are typed ([`Db::call_typed`]). `TooLarge`: arguments,
    /// reply or the transaction so far are longer than [`CALL_BYTES`]. `OutOfMemory`: there is no memory for one more
    /// call. `Other`: it is suspended or slowed.
    pub fn call<'k>(&self, extension: &'k str, args: &'k [u8]) -> ExtensionCall<'a, 'k> {
        ExtensionCall { host: self.host, extension, callee: Cow::Borrowed(extension), args, is_under_way: false }
    }

    /// Calls a [typed function](https://github.com/sandstorm/sandstorm/blob/main/docs/types.md) of an extension of the
    /// tenant, as [`Db::call`] does one that takes bytes; `"bank.transfer"` is the function `transfer` of `bank`.
    ///
    /// The caller declares the types of the argument and of the reply, by the names that they have in the other
    /// extension, and makes them [`Typed`] by [`typed!`](crate::typed!). They are compared with those of the function
    /// before it runs. `&()` is the argument of a function that takes none.
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// #[derive(Clone)]
    /// pub struct Transfer {
    ///     pub from: String,
    ///     pub to: String,
    ///     pub amount: u64,
    /// }
    ///
    /// pub struct Balances {
    ///     pub from: u64,
    ///     pub to: u64,
    /// }
    ///
    /// typed!(struct Transfer { from, to, amount });
    /// typed!(struct Balances { from, to });
    ///
    /// /// Pays for an article; gives what is left.
    /// pub async fn buy(db: Db<'_>, customer: String) -> Result<u64, Error> {
    ///     let price = Transfer { from: customer, to: "shop".into(), amount: 4 };
    ///     let balances: Balances = db.call_typed("bank.transfer", &price).await?;
    ///     Ok(balances.from)
    /// }
    ///
    /// // In tests, what stands for the other extension:
    /// async fn transfer(_db: Db<'_>, args: Transfer) -> Result<Balances, Error> {
    ///     let from = 10u64.checked_sub(args.amount).ok_or(Error::new("not enough"))?;
    ///     Ok(Balances { from, to: args.amount })
    /// }
    ///
    /// let mut store = TestStore::new();
    /// store.typed_extension("bank.transfer", transfer);
    /// assert_eq!(store.call(buy, "ann".to_string()), Ok(6));
    /// ```
    ///
    /// # Errors
    /// As [`Db::call`]; the callee's own error has the function's name before its text. `NotFound`: the extension has
    /// no such function. `Invalid`: the function has other types, or the extension has no typed functions.
    pub async fn call_typed<A: Typed, R: Typed>(&self, function: &str, args: &A) -> Result<R, Error> {
        let Some(name) = CalleeName::parse(function).function else {
            return Err(Error::invalid(no_function_named(function)));
        };
        let callee = Cow::Owned(CalleeName::with_types(function, &TypeText::of_call::<A, R>(name)?));
        let args = args.to_record();
        let call = ExtensionCall { host: self.host, extension: function, callee, args: &args, is_under_way: false };
        let reply = call.await?;
        let mut from = Decoder::of_reply(&reply);
        let read = R::typed_read(&mut from).and_then(|value| from.finish().map(|()| value));
        read.map_err(|error| Error::invalid(format!("{function}: the reply is not of its type: {}", error.text())))
    }
}

/// A call under way; see [`Db::call`].
#[must_use = "a call does nothing until it is awaited"]
pub struct ExtensionCall<'a, 'k> {
    host: HostHandle<'a>,
    /// The name for people.
    extension: &'k str,
    /// The name for the server, with the types of a typed call.
    callee: Cow<'k, str>,
    args: &'k [u8],
    is_under_way: bool,
}

impl ExtensionCall<'_, '_> {
    /// Asks the server for the call; `false`: another one is under way.
    fn begin(&mut self) -> Result<bool, Error> {
        if self.args.len() > CALL_BYTES {
            return Err(Error::too_large(format!("the arguments of a call have at most {CALL_BYTES} bytes")));
        }
        let notes = self.host.encoded_notes();
        if notes.len() > CALL_BYTES {
            return Err(Error::too_large(format!(
                "the transaction so far has more than {CALL_BYTES} bytes, so no other extension can be called in it"
            )));
        }
        match self.host.call_begin(&self.callee, self.args, &notes) {
            STATUS_OK => {
                self.is_under_way = true;
                Ok(true)
            }
            STATUS_BUSY => Ok(false),
            status => Err(Error::from_status(status)),
        }
    }

    /// The outcome of a call that has ended with this code.
    fn outcome(&mut self, code: u32) -> Result<Vec<u8>, Error> {
        let reply = self.host.call_part(CALL_REPLY)?;
        let notes = self.host.call_part(CALL_NOTES)?;
        if !notes.is_empty() {
            self.host.absorb_notes(&notes)?;
        }
        match code {
            STATUS_OK => Ok(reply),
            code => {
                let text = format!("{}: {}", self.extension, String::from_utf8_lossy(&reply));
                Err(Error::of_kind(ErrorKind::from_code(code), text))
            }
        }
    }
}

impl Future for ExtensionCall<'_, '_> {
    type Output = Result<Vec<u8>, Error>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if !this.is_under_way {
            return match this.begin() {
                Ok(_) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            };
        }
        match this.host.call_end() {
            None => Poll::Pending,
            Some(code) => {
                this.is_under_way = false;
                Poll::Ready(this.outcome(code))
            }
        }
    }
}

impl Drop for ExtensionCall<'_, '_> {
    fn drop(&mut self) {
        if self.is_under_way {
            self.host.call_forget();
        }
    }
}
