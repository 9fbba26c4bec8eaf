//! Calls of other extensions in a [`TestStore`]: of functions that the test has named.
//!
//! Guarantees: a called function runs to its end within the host call that begins it, with an invocation of its own;
//! its caller's store is in that invocation meanwhile, and comes back afterwards, after a panic too.
#![allow(unsafe_code)]

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Waker};

use super::TestStore;
use super::arguments::{slice_argument, test_invocation};
use super::call_state::TestCalls;
use super::invocation::RunningInvocation;
use crate::abi::{
    self, CALL_INHERITED, CALL_NOTES, CALL_REPLY, HostCalls, InvocationHeader, STATUS_BUSY, STATUS_INVALID,
    STATUS_NOT_FOUND, STATUS_OK, STATUS_TOO_LARGE,
};
use crate::limits::{CALL_BYTES, CALL_DEPTH, TRANSACTION_TRIES};
use crate::typed::callee::{self, CalleeName};
use crate::typed::{Decoder, TypeText, Typed};
use crate::{Db, Error, ErrorKind};

type ExtensionFuture<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;
type ExtensionFunction = Rc<dyn for<'a> Fn(Db<'a>, &'a [u8]) -> ExtensionFuture<'a>>;

/// The extensions that may be called, by name.
#[derive(Default)]
pub(super) struct TestExtensions {
    plain: BTreeMap<String, ExtensionFunction>,
    /// Typed functions, by extension and function.
    typed: BTreeMap<(String, String), TypedTestFunction>,
}

/// A typed function, and its types as a fingerprint has them.
#[derive(Clone)]
struct TypedTestFunction {
    run: ExtensionFunction,
    types: String,
}

impl TestExtensions {
    /// The function that a call names, as a server finds it.
    fn find(&self, name: &[u8]) -> Result<ExtensionFunction, Error> {
        let unknown = || Error::not_found("the tenant has no extension of this name");
        let CalleeName { extension, function, types } =
            CalleeName::parse(core::str::from_utf8(name).map_err(|_| unknown())?);
        let plain = self.plain.get(extension);
        let functions: Vec<&str> =
            self.typed.keys().filter(|(own, _)| own == extension).map(|(_, function)| function.as_str()).collect();
        match (plain, function, functions.first()) {
            (Some(plain), None, _) => Ok(Rc::clone(plain)),
            (Some(_), Some(_), None) => Err(Error::invalid(callee::not_typed(extension))),
            (None, _, None) => Err(unknown()),
            (None, None, Some(first)) => Err(Error::invalid(callee::bytes_for_typed(extension, first))),
            (_, Some(function), Some(_)) => {
                let found = self.typed.get(&(extension.to_string(), function.to_string()));
                let Some(found) = found else {
                    return Err(Error::not_found(callee::no_function(function, &functions)));
                };
                match types {
                    None => Err(Error::invalid(callee::bytes_for_typed(extension, function))),
                    Some(types) if types != found.types => {
                        Err(Error::invalid(callee::other_types(extension, &found.types, types)))
                    }
                    Some(_) => Ok(Rc::clone(&found.run)),
                }
            }
        }
    }
}

impl TestStore {
    /// Names a function that [`Db::call`] calls, as another extension of the tenant: in a test of an extension that
    /// calls `"stock"` it is `stock::run`, or what stands for it.
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// async fn greet(db: Db<'_>, name: &[u8]) -> Result<(), Error> {
    ///     db.reply(&db.call("translate", name).await?)
    /// }
    ///
    /// let mut store = TestStore::new();
    /// assert_eq!(store.invoke(greet, b"ann").unwrap_err().kind(), ErrorKind::NotFound);
    /// store.extension("translate", async |db: Db<'_>, _: &[u8]| db.reply(b"bonjour"));
    /// assert_eq!(store.invoke(greet, b"ann"), Ok(b"bonjour".to_vec()));
    /// ```
    pub fn extension<F>(&mut self, name: &str, run: F) -> &mut TestStore
    where
        F: for<'a> AsyncFn(Db<'a>, &'a [u8]) -> Result<(), Error> + 'static,
    {
        let run = Rc::new(run);
        let function: ExtensionFunction = Rc::new(move |db, args| {
            let run = Rc::clone(&run);
            Box::pin(async move { run(db, args).await })
        });
        self.extensions.plain.insert(name.to_string(), function);
        self
    }

    /// Names a typed function that [`Db::call_typed`] calls, as a function of another extension of the tenant: its
    /// name has a dot, as in `"bank.transfer"`. One that takes nothing is `async |db: Db<'_>, ()| total(db).await`.
    ///
    /// ```
    /// use sandstorm_api::prelude::*;
    /// use sandstorm_api::testing::TestStore;
    ///
    /// pub async fn price(db: Db<'_>, articles: Vec<String>) -> Result<u64, Error> {
    ///     let mut sum = 0;
    ///     for article in articles {
    ///         sum += db.call_typed::<String, u64>("stock.price", &article).await?;
    ///     }
    ///     Ok(sum)
    /// }
    ///
    /// let mut store = TestStore::new();
    /// store.typed_extension("stock.price", async |_: Db<'_>, article: String| Ok(article.len() as u64));
    /// assert_eq!(store.call(price, vec!["tea".into(), "milk".into()]), Ok(7));
    /// // A caller with other types is told, as by a server.
    /// store.typed_extension("stock.price", async |_: Db<'_>, _: u32| Ok(1u64));
    /// assert_eq!(store.call(price, vec!["tea".into()]).unwrap_err().kind(), ErrorKind::Invalid);
    /// ```
    ///
    /// # Panics
    /// When the name has no dot, or two of its types have one name.
    pub fn typed_extension<F, A, R>(&mut self, function: &str, run: F) -> &mut TestStore
    where
        F: for<'a> AsyncFn(Db<'a>, A) -> Result<R, Error> + 'static,
        A: Typed,
        R: Typed,
    {
        let Some((extension, name)) = function.split_once('.') else {
            panic!("{}", callee::no_function_named(function))
        };
        let run = Rc::new(run);
        let types = match TypeText::of_call::<A, R>(name) {
            Ok(types) => types,
            Err(error) => panic!("{}", error.text()),
        };
        let run: ExtensionFunction = Rc::new(move |db, args| {
            let run = Rc::clone(&run);
            Box::pin(async move {
                let mut from = Decoder::new(args);
                let args = A::typed_read(&mut from)?;
                from.finish()?;
                let reply = run(db, args).await?;
                db.reply(&reply.to_record())
            })
        });
        self.extensions.typed.insert((extension.to_string(), name.to_string()), TypedTestFunction { run, types });
        self
    }

    /// Counts a conflict that a callee has met; `None`: all is to be run again.
    pub(super) fn conflict_of_callee(&mut self) -> Option<Result<(), Error>> {
        // The commit that has met it counts it.
        (self.tries >= TRANSACTION_TRIES).then(|| Err(Error::from_commit_status(abi::STATUS_CONTENDED)))
    }
}

/// How a called function ended: its reply or error, and what it has added to the transaction.
struct CalleeOutcome {
    reply: Result<Vec<u8>, Error>,
    notes: Vec<u8>,
}

impl CalleeOutcome {
    fn refused(error: Error) -> CalleeOutcome {
        CalleeOutcome { reply: Err(error), notes: Vec::new() }
    }
}

/// Runs a called function to its end; `None`: its transaction has met the writes of others.
fn run_callee(
    store: &mut TestStore,
    function: &ExtensionFunction,
    args: &[u8],
    calls: TestCalls,
    host: *const HostCalls,
) -> Option<CalleeOutcome> {
    let running = RunningInvocation::start(store, args, calls, host);
    let invocation = running.at.cast::<InvocationHeader>();
    // SAFETY: as in `TestStore::invoke`.
    let db = unsafe { crate::rt::db(invocation) };
    let outcome = {
        let mut future = function(db, args);
        running.drive(|| future.as_mut().poll(&mut Context::from_waker(Waker::noop())))
    };
    // SAFETY: the invocation is live, the function has ended, and its future is gone.
    let (outcome, behind) = unsafe {
        let has_conflict = (*running.at).calls.has_conflict;
        let outcome = if has_conflict { None } else { running.end(outcome) };
        (outcome?, test_invocation(invocation))
    };
    let notes = core::mem::take(&mut behind.calls.returned);
    Some(CalleeOutcome { reply: outcome.map(|()| running.take_reply()), notes })
}

pub(super) unsafe extern "C" fn call_begin(
    inv: *mut InvocationHeader,
    name: *const u8,
    name_len: usize,
    args: *const u8,
    args_len: usize,
    notes: *const u8,
    notes_len: usize,
) -> u32 {
    // SAFETY: the extension's side calls with its live invocation, a name, arguments and notes.
    let (behind, name, args, notes) = unsafe {
        let (name, args) = (slice_argument(name, name_len), slice_argument(args, args_len));
        (test_invocation(inv), name, args, slice_argument(notes, notes_len))
    };
    if args.len() > CALL_BYTES || notes.len() > CALL_BYTES {
        return STATUS_TOO_LARGE;
    }
    if behind.calls.ended.is_some() {
        return STATUS_BUSY;
    }
    let depth = behind.calls.depth + 1;
    let found = behind.store.extensions.find(name);
    let outcome = match found {
        _ if depth > CALL_DEPTH => {
            let text = format!("extensions call each other {CALL_DEPTH} deep at most");
            Some(CalleeOutcome::refused(Error::invalid(text)))
        }
        Err(refused) => Some(CalleeOutcome::refused(refused)),
        Ok(function) => {
            let calls = TestCalls { depth, inherited: notes.to_vec(), ..TestCalls::default() };
            run_callee(&mut behind.store, &function, args, calls, behind.invocation.host)
        }
    };
    let Some(CalleeOutcome { reply, notes }) = outcome else {
        behind.calls.has_conflict = true;
        return STATUS_OK;
    };
    behind.calls.ended = Some(match reply {
        Ok(reply) if reply.len() > CALL_BYTES => {
            (ErrorKind::TooLarge as u32, b"a key, value or reply is longer than its limit".to_vec(), Vec::new())
        }
        Ok(reply) => (STATUS_OK, reply, notes),
        Err(error) => (error.kind() as u32, error.text().as_bytes().to_vec(), notes),
    });
    STATUS_OK
}

pub(super) unsafe extern "C" fn call_end(inv: *mut InvocationHeader, code: *mut u32) -> u32 {
    // SAFETY: the extension's side calls with its live invocation, and a place for the code or null.
    let (behind, code) = unsafe { (test_invocation(inv), code.as_mut()) };
    let Some(code) = code else {
        behind.calls.forget();
        return STATUS_OK;
    };
    let Some((ended, reply, notes)) = behind.calls.ended.take() else { return STATUS_NOT_FOUND };
    behind.calls.last = (reply, notes);
    *code = ended;
    STATUS_OK
}

pub(super) unsafe extern "C" fn call_part(
    inv: *mut InvocationHeader,
    part: u32,
    to: *mut u8,
    capacity: usize,
    len: *mut usize,
) -> u32 {
    // SAFETY: the extension's side calls with its live invocation and a place for the length.
    let (behind, len) = unsafe { (test_invocation(inv), &mut *len) };
    let bytes = match part {
        CALL_REPLY => &behind.calls.last.0,
        CALL_NOTES => &behind.calls.last.1,
        CALL_INHERITED => &behind.calls.inherited,
        _ => return STATUS_INVALID,
    };
    *len = bytes.len();
    if bytes.len() > capacity {
        return STATUS_TOO_LARGE;
    }
    // SAFETY: there is room for `capacity` bytes.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    STATUS_OK
}

pub(super) unsafe extern "C" fn call_return(inv: *mut InvocationHeader, notes: *const u8, len: usize) -> u32 {
    // SAFETY: the extension's side calls with its live invocation and notes.
    let (behind, notes) = unsafe { (test_invocation(inv), slice_argument(notes, len)) };
    if notes.len() > CALL_BYTES {
        return STATUS_TOO_LARGE;
    }
    behind.calls.returned = notes.to_vec();
    STATUS_OK
}
