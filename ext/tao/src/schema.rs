//! Types of associations: which is the inverse of which. What is declared once stays, so that whatever was written
//! under it stays right.

use sandstorm_api::prelude::*;

use crate::args::ArgReader;
use crate::{TaoGraph, keys};

const DECLARE: &str = "assoc_type: atype u32, inverse u32 or nothing";
const SHOW: &str = "assoc_type_get: atype u32";
const MALFORMED_TYPE: &str = "the record under the type's key is not one that this extension wrote";

/// Declares a type: its inverse, if it has one, is declared with it.
pub(crate) async fn declare(graph: TaoGraph<'_>, args: ArgReader<'_>) -> Result<(), Error> {
    let mut args = args.of(DECLARE);
    let atype = args.u32()?;
    let inverse = if args.is_empty() { None } else { Some(args.u32()?) };
    args.end()?;
    declare_once(graph, atype, inverse).await?;
    match inverse {
        Some(other) => declare_once(graph, other, Some(atype)).await,
        None => Ok(()),
    }
}

/// Makes sure that the inverse of a type is this one.
async fn declare_once(graph: TaoGraph<'_>, atype: u32, inverse: Option<u32>) -> Result<(), Error> {
    match read_declaration(graph, atype).await? {
        Some(known) if known == inverse => Ok(()),
        Some(Some(known)) => Err(Error::invalid(format!(
            "type {atype} has the inverse {known} already; a declaration stays: use another type"
        ))),
        Some(None) => Err(Error::invalid(format!(
            "type {atype} was declared, or used, without an inverse; a declaration stays: use another type"
        ))),
        None => write_declaration(graph, atype, inverse).await,
    }
}

/// Writes down what holds of a type. As no edge can be before its type is noted, here one is told whose `lists` table
/// is not ordered.
async fn write_declaration(graph: TaoGraph<'_>, atype: u32, inverse: Option<u32>) -> Result<(), Error> {
    graph.db.range(graph.lists, &[], &[], 1, Direction::Forward).await?;
    graph.db.transaction().put(graph.objects, &keys::schema_key(atype), &encode_declaration(inverse))
}

fn encode_declaration(inverse: Option<u32>) -> Vec<u8> {
    match inverse {
        Some(inverse) => [&[1][..], &inverse.to_le_bytes()].concat(),
        None => vec![0],
    }
}

async fn read_declaration(graph: TaoGraph<'_>, atype: u32) -> Result<Option<Option<u32>>, Error> {
    let record = graph.db.transaction().get(graph.objects, &keys::schema_key(atype)).await?;
    match record.map(|record| record.value()) {
        None => Ok(None),
        Some([0]) => Ok(Some(None)),
        Some([1, a, b, c, d]) => Ok(Some(Some(u32::from_le_bytes([*a, *b, *c, *d])))),
        Some(_) => Err(Error::new(MALFORMED_TYPE)),
    }
}

/// The inverse of a type that gets an edge now: one that was never declared has none from here on.
pub(crate) async fn fix_inverse(graph: TaoGraph<'_>, atype: u32) -> Result<Option<u32>, Error> {
    match read_declaration(graph, atype).await? {
        Some(inverse) => Ok(inverse),
        None => write_declaration(graph, atype, None).await.map(|()| None),
    }
}

/// The inverse of a type, if it has one.
pub(crate) async fn inverse(graph: TaoGraph<'_>, atype: u32) -> Result<Option<u32>, Error> {
    Ok(read_declaration(graph, atype).await?.flatten())
}

/// Shows what was declared.
pub(crate) async fn show(graph: TaoGraph<'_>, args: ArgReader<'_>) -> Result<(), Error> {
    let mut args = args.of(SHOW);
    let atype = args.u32()?;
    args.end()?;
    match read_declaration(graph, atype).await? {
        Some(inverse) => graph.db.reply(&encode_declaration(inverse)),
        None => Ok(()),
    }
}
