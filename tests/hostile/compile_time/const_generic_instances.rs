//! expect: refused or limit or compile-error or ok
//! Ten thousand instances by numbers for parameters.
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

struct A<const N: usize>([u8; N]);
trait Go { fn go(&self) -> usize; }
impl<const N: usize> Go for A<N> { fn go(&self) -> usize { if N > 1 { self.0.len() } else { B::<N>([[0; N]; 8]).go() } } }
struct B<const N: usize>([[u8; N]; 8]);
impl<const N: usize> Go for B<N> { fn go(&self) -> usize { <<<200*C::<N, {n}>(self.0[0]).go() + >>>0 } }
struct C<const N: usize, const M: usize>([u8; N]);
impl<const N: usize, const M: usize> Go for C<N, M> { fn go(&self) -> usize { <<<50*D::<N, M, {n}>(self.0).go() + >>>0 } }
struct D<const N: usize, const M: usize, const O: usize>([u8; N]);
impl<const N: usize, const M: usize, const O: usize> Go for D<N, M, O> { fn go(&self) -> usize { let mut sum = M * O; for one in &self.0 { sum = sum * 31 + usize::from(*one) * M; } let text = format!("{sum} {M} {O}"); text.len() } }
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(&A([0; 1]).go().to_le_bytes()) }
