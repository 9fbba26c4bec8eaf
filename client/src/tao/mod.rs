//! A social graph in the style of TAO (USENIX ATC 2013): objects with fields, and timed associations between them in
//! lists, newest first. The extension `tao` (`ext/tao`) runs on the server; docs/tao.md goes from nothing to the first
//! query.
//!
//! ```no_run
//! use sandstorm_client::tao::{Fields, Placement, Tables, Tao};
//! use sandstorm_client::{Client, Config, Error};
//!
//! const USER: u32 = 1;
//! const FRIEND: u32 = 1;
//!
//! # async fn example() -> Result<(), Error> {
//! let client = Client::connect(Config::new(([127, 0, 0, 1], 7400).into(), 1)).await?;
//! let tao = Tao::new(client, Tables { objects: 1, lists: 2 }, Placement::Combined);
//! // Who has a friend is a friend.
//! tao.assoc_type(FRIEND, Some(FRIEND)).await?;
//! let ann = tao.obj_add(USER, &Fields::from([("name", "Ann")])).await?;
//! let bob = tao.obj_add(USER, &Fields::from([("name", "Bob")])).await?;
//! tao.assoc_add(ann, FRIEND, bob, 1_700_000_000, b"met at school").await?;
//! let friends = tao.assoc_range(bob, FRIEND, 0, 50).await?;
//! assert_eq!(friends[0].id2, ann);
//! # Ok(())
//! # }
//! ```
//!
//! - Lists are ordered by time, newest first, equal times by ascending id2. Both bounds of a time range are inclusive.
//!   A limit above [`LIMIT`] counts as [`LIMIT`]; 0 gives nothing. A position beyond the end gives nothing, as does a
//!   list that does not exist.
//! - Each write is one transaction: an edge and its inverse, lists and counts always agree. If another request wrote to
//!   the same at the same time, it is tried again; [`Error::Conflict`] comes at last, and nothing was written then.
//! - Associations do not ask for objects: their ids need not be there, and [`Tao::obj_delete`] leaves them as they are.

pub mod codec;
mod reads;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
pub use codec::{Fields, LIMIT, Tables};
use codec::{ListContinuation, ListPosition};

use crate::{Client, Error};

/// The name under which the extension is pushed.
pub const EXTENSION: &str = "tao";
/// Most times that a write is sent while the server answers `Conflict`; each time the server has run it many times.
const WRITE_ATTEMPTS: u32 = 10;
/// The longest pause before a write is sent again; the first is of [`FIRST_BACKOFF`] at most, each further of twice as
/// much.
const MAX_BACKOFF: Duration = Duration::from_millis(50);
/// The longest pause before a write is sent the second time: some commits' time.
const FIRST_BACKOFF: Duration = Duration::from_micros(200);

/// The side on which reads run. Answers are the same; writes always run in the extension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Placement {
    /// On the client, over plain gets, multigets and ranges: a list takes two round trips. Only positions beyond 1,000
    /// are the server's to find.
    Client,
    /// On the server, as invocations: one round trip each.
    Invocation,
    /// Reads of one record (`obj_get`, `assoc_count`) as plain gets, the rest as invocations: the best of both.
    #[default]
    Combined,
}

impl std::str::FromStr for Placement {
    type Err = String;

    fn from_str(text: &str) -> Result<Placement, String> {
        match text {
            "client" => Ok(Placement::Client),
            "invocation" => Ok(Placement::Invocation),
            "combined" => Ok(Placement::Combined),
            other => Err(format!("{other:?} is none of client, invocation, combined")),
        }
    }
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its type.
    pub otype: u32,
    /// Its fields.
    pub fields: Fields,
}

/// An association of a list: its id1 and type are those that were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assoc {
    /// The id that it goes to.
    pub id2: u64,
    /// Its time, in the writer's unit.
    pub time: u64,
    /// Its data; [`Fields::from_bytes`] where key-value pairs were stored.
    pub data: Bytes,
}

/// A list: all associations of one type from one id.
type List = (u64, u32);

/// A graph: two tables of a tenant, to which the extension `tao` was pushed. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tao {
    client: Client,
    tables: Tables,
    placement: Placement,
}

impl Tao {
    /// A graph in these tables, with reads placed so.
    pub fn new(client: Client, tables: Tables, placement: Placement) -> Tao {
        Tao { client, tables, placement }
    }

    /// The same graph, with another placement of reads.
    #[must_use]
    pub fn with_placement(&self, placement: Placement) -> Tao {
        Tao { placement, ..self.clone() }
    }

    /// The former name of [`Tao::with_placement`].
    #[deprecated(note = "call `with_placement`")]
    #[must_use]
    pub fn placed(&self, placement: Placement) -> Tao {
        self.with_placement(placement)
    }

    /// Declares the inverse of a type of associations: itself (a symmetric type), another (which gets this one as its
    /// inverse), or none. To declare the same again is well.
    ///
    /// # Errors
    /// [`Error::Failed`] when either type is declared otherwise, or was used without: a declaration stays.
    pub async fn assoc_type(&self, atype: u32, inverse: Option<u32>) -> Result<(), Error> {
        self.write(&codec::assoc_type(&self.tables, atype, inverse)).await.map(drop)
    }

    /// Returns the declaration of a type: `None` if there is none, `Some(None)` if it has no inverse.
    ///
    /// # Errors
    /// As any request.
    pub async fn assoc_type_get(&self, atype: u32) -> Result<Option<Option<u32>>, Error> {
        let reply = match self.placement {
            Placement::Client => {
                let record = self.client.get(self.tables.objects, &codec::type_key(atype)).await?;
                record.map(|record| record.value).unwrap_or_default()
            }
            _ => self.query(&codec::assoc_type_get(&self.tables, atype)).await?,
        };
        require_decoded(codec::decode_type(&reply))
    }

    /// Makes an object; gives its id, which no other has had or will have.
    ///
    /// # Errors
    /// [`Error::Failed`] for fields over the limits: 1,024, names of 1 to 255 bytes, 256 KiB together.
    pub async fn obj_add(&self, otype: u32, fields: &Fields) -> Result<u64, Error> {
        require_decoded(codec::decode_number(&self.write(&codec::obj_add(&self.tables, otype, fields)).await?))
    }

    /// The object of that id, if there is one.
    ///
    /// # Errors
    /// As any request.
    pub async fn obj_get(&self, id: u64) -> Result<Option<Object>, Error> {
        let reply = match self.placement {
            Placement::Client | Placement::Combined => {
                match self.client.get(self.tables.objects, &codec::object_key(id)).await? {
                    Some(record) => record.value,
                    None => return Ok(None),
                }
            }
            Placement::Invocation => match self.query(&codec::obj_get(&self.tables, id)).await? {
                reply if reply.is_empty() => return Ok(None),
                reply => reply,
            },
        };
        require_decoded(codec::decode_object(&reply)).map(|(otype, fields)| Some(Object { otype, fields }))
    }

    /// Sets fields of an object and leaves its others as they are; whether there is such an object.
    ///
    /// # Errors
    /// As [`Tao::obj_add`].
    pub async fn obj_update(&self, id: u64, set: &Fields) -> Result<bool, Error> {
        self.obj_update_removing(id, set, &[]).await
    }

    /// The same, and takes fields away.
    ///
    /// # Errors
    /// As [`Tao::obj_add`], and for a field that is to be both set and removed.
    pub async fn obj_update_removing(&self, id: u64, set: &Fields, remove: &[&[u8]]) -> Result<bool, Error> {
        require_decoded(codec::decode_bool(&self.write(&codec::obj_update(&self.tables, id, set, remove)).await?))
    }

    /// Deletes an object, not its associations; whether there was one.
    ///
    /// # Errors
    /// As any request.
    pub async fn obj_delete(&self, id: u64) -> Result<bool, Error> {
        require_decoded(codec::decode_bool(&self.write(&codec::obj_delete(&self.tables, id)).await?))
    }

    /// Adds an association, and its inverse where the type has one; or gives an existing one another time and other
    /// data. Returns whether it is new.
    ///
    /// # Errors
    /// [`Error::Failed`] for data over 64 KiB.
    pub async fn assoc_add(&self, id1: u64, atype: u32, id2: u64, time: u64, data: &[u8]) -> Result<bool, Error> {
        require_decoded(codec::decode_bool(
            &self.write(&codec::assoc_add(&self.tables, id1, atype, id2, time, data)).await?,
        ))
    }

    /// Deletes an association and its inverse; whether there was one.
    ///
    /// # Errors
    /// As any request.
    pub async fn assoc_delete(&self, id1: u64, atype: u32, id2: u64) -> Result<bool, Error> {
        require_decoded(codec::decode_bool(&self.write(&codec::assoc_delete(&self.tables, id1, atype, id2)).await?))
    }

    /// Changes the type of an association, which keeps its time and data. It replaces an association of the new type if
    /// there is one; its inverse changes as the types have it. Returns whether there was one of the old type.
    ///
    /// # Errors
    /// As any request.
    pub async fn assoc_change_type(&self, id1: u64, atype: u32, id2: u64, newtype: u32) -> Result<bool, Error> {
        require_decoded(codec::decode_bool(
            &self.write(&codec::assoc_change_type(&self.tables, id1, atype, id2, newtype)).await?,
        ))
    }

    /// The associations that go to ids of a set, from `low` to `high` where those are given.
    ///
    /// # Errors
    /// As any request.
    pub async fn assoc_get(
        &self,
        id1: u64,
        atype: u32,
        id2set: &[u64],
        high: Option<u64>,
        low: Option<u64>,
    ) -> Result<Vec<Assoc>, Error> {
        let mut ids = id2set.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let times = (high.unwrap_or(u64::MAX), low.unwrap_or(0));
        let mut found = match self.placement {
            Placement::Client => self.get_edges((id1, atype), &ids, times).await?,
            _ => self.query_edges((id1, atype), &ids, times).await?,
        };
        found.sort_by_key(|edge| (std::cmp::Reverse(edge.time), edge.id2));
        Ok(found)
    }

    /// Returns the number of associations of a list.
    ///
    /// # Errors
    /// As any request.
    pub async fn assoc_count(&self, id1: u64, atype: u32) -> Result<u64, Error> {
        if self.placement != Placement::Invocation
            && let Some(count) = self.get_count((id1, atype)).await?
        {
            return Ok(count);
        }
        require_decoded(codec::decode_number(&self.query(&codec::assoc_count(&self.tables, id1, atype)).await?))
    }

    /// Associations of a list from a position on, 0 being the newest.
    ///
    /// # Errors
    /// As any request.
    pub async fn assoc_range(&self, id1: u64, atype: u32, pos: u64, limit: u32) -> Result<Vec<Assoc>, Error> {
        let limit = limit.min(LIMIT);
        // Farther on the server counts, or the positions of all edges before would travel.
        if self.placement == Placement::Client && pos <= reads::PAGE_RECORDS {
            return self.get_list((id1, atype), (u64::MAX, 0), pos, limit).await;
        }
        let tables = self.tables;
        self.query_list(pos, limit, |pos, limit, after| codec::assoc_range(&tables, id1, atype, pos, limit, after))
            .await
    }

    /// Associations of a list from `high` down to `low`.
    ///
    /// # Errors
    /// As any request.
    pub async fn assoc_time_range(
        &self,
        id1: u64,
        atype: u32,
        high: u64,
        low: u64,
        limit: u32,
    ) -> Result<Vec<Assoc>, Error> {
        let (limit, times, tables) = (limit.min(LIMIT), (high, low), self.tables);
        if self.placement == Placement::Client {
            return self.get_list((id1, atype), times, 0, limit).await;
        }
        self.query_list(0, limit, |_, limit, after| codec::assoc_time_range(&tables, id1, atype, times, limit, after))
            .await
    }

    /// Calls for a read.
    async fn query(&self, args: &[u8]) -> Result<Bytes, Error> {
        self.client.query(EXTENSION, args).await
    }

    /// Calls for a write, again after a pause where others wrote to the same each time that the server tried.
    async fn write(&self, args: &[u8]) -> Result<Bytes, Error> {
        let mut pause = FIRST_BACKOFF;
        for _ in 1..WRITE_ATTEMPTS {
            match self.client.invoke(EXTENSION, args).await {
                Err(Error::Conflict) => {}
                done => return done,
            }
            tokio::time::sleep(pause.mul_f64(rand::random())).await;
            pause = MAX_BACKOFF.min(pause * 2);
        }
        self.client.invoke(EXTENSION, args).await
    }

    /// Asks for edges of a list by their ids until all are answered.
    async fn query_edges(&self, (id1, atype): List, ids: &[u64], (high, low): (u64, u64)) -> Result<Vec<Assoc>, Error> {
        let mut found = Vec::new();
        let mut left = ids;
        while !left.is_empty() {
            let some = &left[..left.len().min(LIMIT as usize)];
            let reply = self.query(&codec::assoc_get(&self.tables, id1, atype, some, high, low)).await?;
            let (edges, more) = require_decoded(codec::decode_list(&reply))?;
            found.extend(edges.into_iter().map(|edge| decode_assoc(&reply, edge)));
            left = match more {
                None => &left[some.len()..],
                Some(ListContinuation::Ids(done)) if (1..=some.len()).contains(&(done as usize)) => {
                    &left[done as usize..]
                }
                Some(_) => return require_decoded(None),
            };
        }
        Ok(found)
    }

    /// Asks for a list's edges until all wanted ones have come.
    async fn query_list(
        &self,
        mut pos: u64,
        limit: u32,
        args: impl Fn(u64, u32, Option<ListPosition>) -> Vec<u8>,
    ) -> Result<Vec<Assoc>, Error> {
        let (mut gathered, mut after) = (EdgeCollector::default(), None);
        loop {
            let left = limit.saturating_sub(gathered.found.len() as u32);
            let reply = self.query(&args(pos, left, after)).await?;
            match require_decoded(gathered.add(&reply, left))? {
                None => return Ok(gathered.found),
                // It has to come nearer, or it would never end.
                Some(ListContinuation::After(left, position))
                    if left < pos || left == 0 && after.is_none_or(|at| at < position) =>
                {
                    (pos, after) = (left, Some(position));
                }
                Some(_) => return require_decoded(None),
            }
        }
    }
}

/// The edges of a list, as several replies bring them.
#[derive(Default)]
struct EdgeCollector {
    found: Vec<Assoc>,
    met: BTreeSet<u64>,
}

impl EdgeCollector {
    /// Adds a reply to a question for up to `wanted` more; returns how to go on, if there may be more. `None`: it is no
    /// reply.
    fn add(&mut self, reply: &Bytes, wanted: u32) -> Option<Option<ListContinuation>> {
        let (edges, more) = codec::decode_list(reply)?;
        // Within one reply there is no id twice. An edge that others move between two may be in both.
        let is_first = self.found.is_empty();
        if !is_first && self.met.is_empty() {
            self.met = self.found.iter().map(|edge| edge.id2).collect();
        }
        let (count, last) = (edges.len(), edges.last().map(|edge| ListPosition { time: edge.time, id2: edge.id2 }));
        let before = self.found.len();
        for edge in edges {
            if is_first || self.met.insert(edge.id2) {
                self.found.push(decode_assoc(reply, edge));
            }
        }
        // It has as many as were asked for, so the list may go on, and some of them had come before.
        let lacks = more.is_none() && count as u64 == u64::from(wanted) && self.found.len() - before < count;
        Some(if lacks { last.map(|last| ListContinuation::After(0, last)) } else { more })
    }
}

fn decode_assoc(reply: &Bytes, edge: codec::EncodedEdge<'_>) -> Assoc {
    Assoc { id2: edge.id2, time: edge.time, data: reply.slice_ref(edge.data) }
}

/// Returns what was read, or an error for a malformed reply.
fn require_decoded<T>(found: Option<T>) -> Result<T, Error> {
    found.ok_or_else(|| Error::Protocol { text: "a reply or record is not one of the extension tao".to_owned() })
}
