//! expect: limit or compile-error or ok
//! Futures in futures, the deeper the more of them.
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

async fn f0(x: u64) -> u64 { yield_now().await; x }
<<<24*async fn g{n}(x: u64) -> u64 { let a = h{n}(x).await; let b = h{n}(x + 1).await; let c = h{n}(a + b).await; a + b + c }
async fn h{n}(x: u64) -> u64 { if x == {n} { f0(x).await } else { let y = f0(x).await; async move { f0(y).await + async { f0(y).await }.await }.await } }
>>>
fn m(x: u64) -> impl Future<Output = u64> { n(async move { x }) }
fn n(x: impl Future<Output = u64>) -> impl Future<Output = u64> { o(async move { let a = x.await; a + 1 }) }
fn o(x: impl Future<Output = u64>) -> impl Future<Output = u64> { p(async move { p(p(x)).await }) }
fn p(x: impl Future<Output = u64>) -> impl Future<Output = u64> { q(async move { q(q(q(x))).await }) }
fn q(x: impl Future<Output = u64>) -> impl Future<Output = u64> { r(async move { r(r(r(r(x)))).await }) }
fn r(x: impl Future<Output = u64>) -> impl Future<Output = u64> { s(async move { s(s(s(s(s(x))))).await }) }
fn s(x: impl Future<Output = u64>) -> impl Future<Output = u64> { t(async move { t(t(t(t(t(x))))).await }) }
fn t(x: impl Future<Output = u64>) -> impl Future<Output = u64> { async move { yield_now().await; x.await } }
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { let x = m(1).await + g0(1).await; db.reply(&x.to_le_bytes()) }
