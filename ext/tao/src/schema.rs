//! Types of associations: which is the inverse of which. What is declared once stays, so that whatever was written under it
//! stays right.

use sandstorm_api::prelude::*;

use crate::args::Args;
use crate::{Graph, keys};

const DECLARE: &str = "assoc_type: atype u32, inverse u32 or nothing";
const SHOW: &str = "assoc_type_get: atype u32";
const BROKEN: &str = "the record under the type's key is not one that this extension wrote";

/// Declares a type: its inverse, if it has one, is declared with it.
pub(crate) async fn declare(graph: Graph<'_>, args: Args<'_>) -> Result<(), Error> {
    let mut args = args.of(DECLARE);
    let atype = args.u32()?;
    let inverse = if args.is_empty() { None } else { Some(args.u32()?) };
    args.end()?;
    settle(graph, atype, inverse).await?;
    match inverse {
        Some(other) => settle(graph, other, Some(atype)).await,
        None => Ok(()),
    }
}

/// Makes sure that the inverse of a type is this one.
async fn settle(graph: Graph<'_>, atype: u32, inverse: Option<u32>) -> Result<(), Error> {
    match declared(graph, atype).await? {
        Some(known) if known == inverse => Ok(()),
        Some(Some(known)) => Err(Error::invalid(format!(
            "type {atype} has the inverse {known} already; a declaration stays: use another type"
        ))),
        Some(None) => Err(Error::invalid(format!(
            "type {atype} was declared, or used, without an inverse; a declaration stays: use another type"
        ))),
        None => note(graph, atype, inverse).await,
    }
}

/// Writes down what holds of a type. As no edge can be before its type is noted, here one is told whose `lists` table is not ordered.
async fn note(graph: Graph<'_>, atype: u32, inverse: Option<u32>) -> Result<(), Error> {
    graph.db.range(graph.lists, &[], &[], 1, Direction::Forward).await?;
    graph.db.transaction().put(graph.objects, &keys::schema(atype), &encode(inverse))
}

fn encode(inverse: Option<u32>) -> Vec<u8> {
    match inverse {
        Some(inverse) => [&[1][..], &inverse.to_le_bytes()].concat(),
        None => vec![0],
    }
}

async fn declared(graph: Graph<'_>, atype: u32) -> Result<Option<Option<u32>>, Error> {
    let record = graph.db.transaction().get(graph.objects, &keys::schema(atype)).await?;
    match record.map(|record| record.value()) {
        None => Ok(None),
        Some([0]) => Ok(Some(None)),
        Some([1, a, b, c, d]) => Ok(Some(Some(u32::from_le_bytes([*a, *b, *c, *d])))),
        Some(_) => Err(Error::new(BROKEN)),
    }
}

/// The inverse of a type that gets an edge now: one that nobody has declared has none from here on.
pub(crate) async fn inverse_for_good(graph: Graph<'_>, atype: u32) -> Result<Option<u32>, Error> {
    match declared(graph, atype).await? {
        Some(inverse) => Ok(inverse),
        None => note(graph, atype, None).await.map(|()| None),
    }
}

/// The inverse of a type, if it has one.
pub(crate) async fn inverse(graph: Graph<'_>, atype: u32) -> Result<Option<u32>, Error> {
    Ok(declared(graph, atype).await?.flatten())
}

/// Shows what was declared.
pub(crate) async fn show(graph: Graph<'_>, args: Args<'_>) -> Result<(), Error> {
    let mut args = args.of(SHOW);
    let atype = args.u32()?;
    args.end()?;
    match declared(graph, atype).await? {
        Some(inverse) => graph.db.reply(&encode(inverse)),
        None => Ok(()),
    }
}
