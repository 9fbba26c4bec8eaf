//! A social graph after TAO (Bronson et al., USENIX ATC 2013): typed objects with fields, and typed, timed associations
//! between them in lists, newest first. One round trip each; writes are transactions, so an edge and its inverse, a
//! list and its count are never seen apart.
//!
//! Arguments: `objects u64 | lists u64 | op u8`, then by operation; integers little-endian. `objects` and `lists` are
//! the ids of two tables, the second an ordered one; each pair of tables is a graph of its own.
//!
//! | op | name | arguments | reply |
//! |---|---|---|---|
//! | 1 | `obj_add` | otype u32, FIELDS | id u64 |
//! | 2 | `obj_get` | id u64 | nothing where there is no such object, else otype u32, FIELDS |
//! | 3 | `obj_update` | id u64, FIELDS to set, removed u16, so often name_len u8, name | u8: 1, or 0: there is no such object |
//! | 4 | `obj_delete` | id u64 | u8: 1, or 0: there was no such object |
//! | 5 | `assoc_add` | id1 u64, atype u32, id2 u64, time u64, data (the rest) | u8: 1: it is new, 0: it was overwritten |
//! | 6 | `assoc_delete` | id1 u64, atype u32, id2 u64 | u8: 1, or 0: there was none |
//! | 7 | `assoc_change_type` | id1 u64, atype u32, id2 u64, newtype u32 | u8: 1, or 0: there was none of `atype` |
//! | 8 | `assoc_get` | id1 u64, atype u32, high u64, low u64, up to 6,000 times id2 u64 | LIST, its tail: done u32 |
//! | 9 | `assoc_count` | id1 u64, atype u32 | u64 |
//! | 10 | `assoc_range` | id1 u64, atype u32, pos u64, limit u32, or AFTER too | LIST, its tail: pos u64, AFTER |
//! | 11 | `assoc_time_range` | id1 u64, atype u32, high u64, low u64, limit u32, or AFTER too | LIST, its tail: pos u64 (0), AFTER |
//! | 12 | `assoc_type` | atype u32, inverse u32 or nothing | nothing |
//! | 13 | `assoc_type_get` | atype u32 | nothing: not declared; else u8: 0: no inverse, or 1, inverse u32 |
//!
//! - FIELDS: count u16, then by ascending name: name_len u8 (1 to 255), name, value_len u32, value. 1,024 fields and
//!   256 KiB at most; as many names are removed at most, none of them one that is set
//! - LIST: more u8, count u32, so often id2 u64, time u64, data_len u32, data. Where more is 1, a tail says how to go
//!   on: such a reply ends before what was asked for: because it has 1 MiB, because it has skipped many edges, 8,192 at
//!   most, on its way to `pos`, or because edges went while it was read. Ids of an `assoc_get` that come twice are one
//!   only within a reply: name each once
//! - AFTER: time u64, id2 u64: the list from behind that place on, `pos` counted from there
//!
//! What they mean is told in `docs/tao.md`; in short:
//! - A list is ordered by time, newest first, equal times by ascending id2. `high` and `low` are part of what they
//!   bound; a limit above 6,000 counts as 6,000. A list that is not there is empty, and its count 0.
//! - Between two ids there is one association of a type. Adding it again gives it the new time and data; so does
//!   changing the type of another to it.
//! - `assoc_type` declares what the inverse of a type is: itself, another, or none. A type that is used before it is
//!   declared has none, and that stays: a declaration never changes, so each edge has its inverse at any time.
//! - Associations do not ask for objects: ids need not be there, and `obj_delete` leaves the edges as they are.
//! - An id is never given out again, nor is one that an object has; but for this, the tables are to be stores, not
//!   caches, and a program that fills them by plain puts writes the record of the last id, too.
//! - Errors: `Invalid` for arguments that are not like that; `Other` for a table that holds what is not of a graph.
//!   Status `Conflict`: others wrote to the same each time that it was tried, and nothing was written.
//!
//! What is stored; numbers are big-endian in keys, so that they sort, and little-endian in values:
//!
//! | table | key | value |
//! |---|---|---|
//! | objects | `o`, id u64 | otype u32, FIELDS |
//! | objects | `e`, id1 u64, atype u32, id2 u64 | time u64, data |
//! | objects | `c`, id1 u64, atype u32 | count u64; or of a list that has had over 2,048 edges: shards u8 |
//! | objects | `c`, id1 u64, atype u32, shard u8 | count i64: the shards' sum is the list's |
//! | objects | `s`, atype u32 | u8: 1 if it has an inverse, inverse u32 |
//! | objects | `n` | the last id that was given out, in decimal |
//! | lists | id1 u64, atype u32, time u64 with all bits inverted, id2 u64 | nothing |
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

mod args;
mod edges;
mod fields;
mod keys;
mod list_state;
mod lists;
mod objects;
mod page;
mod positions;
mod schema;

use args::ArgReader;

/// What one association list may be asked for at a time, as in TAO: edges of a range, ids of an `assoc_get`.
pub const LIMIT: usize = 6_000;
/// Bytes of an association's data. What is longer is an object's.
pub const MAX_DATA: usize = 64 << 10;
/// Bytes of an object's fields, encoded: a transaction writes a megabyte.
pub const MAX_FIELDS_BYTES: usize = 256 << 10;
/// Fields of an object.
pub const MAX_FIELDS: usize = 1_024;
/// Bytes of a reply from which on a list goes on in another: an invocation has 4 MiB for all.
pub const REPLY_BYTES: usize = 1 << 20;
/// Edges that one call skips on its way to a position: some milliseconds of CPU time.
pub const MAX_SKIPPED_EDGES: u64 = 8_192;

const ARGS_FORMAT: &str =
    "args: objects table u64, lists table u64 (ordered), op u8 (1 to 13), then as the operation asks";

/// The tables of a graph, and the way to them.
#[derive(Clone, Copy)]
struct TaoGraph<'a> {
    db: Db<'a>,
    objects: TableId,
    lists: TableId,
}

/// Does the operation that `args` name.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let mut args = ArgReader::new(args, ARGS_FORMAT);
    let graph = TaoGraph { objects: TableId(args.u64()?), lists: TableId(args.u64()?), db };
    match args.u8()? {
        1 => objects::add(graph, args).await,
        2 => objects::get(graph, args).await,
        3 => objects::update(graph, args).await,
        4 => objects::delete(graph, args).await,
        5 => edges::add(graph, args).await,
        6 => edges::delete(graph, args).await,
        7 => edges::change_type(graph, args).await,
        8 => lists::get(graph, args).await,
        9 => lists::count(graph, args).await,
        10 => lists::range(graph, args).await,
        11 => lists::time_range(graph, args).await,
        12 => schema::declare(graph, args).await,
        13 => schema::show(graph, args).await,
        _ => Err(Error::invalid(ARGS_FORMAT)),
    }
}
