//! Objects: typed fields under an id.

use sandstorm_api::prelude::*;

use crate::args::ArgReader;
use crate::{TaoGraph, fields, keys};

const ADD: &str =
    "obj_add: otype u32, fields (count u16, then by ascending name: name_len u8, name, value_len u32, value)";
const GET: &str = "obj_get: id u64";
const UPDATE: &str = "obj_update: id u64, fields to set (count u16, then by ascending name: name_len u8, name, value_len u32, \
     value), removed u16, so often name_len u8, name";
const DELETE: &str = "obj_delete: id u64";
/// Ids that one call looks at: so many objects may lie in the way of the next.
const ID_ATTEMPTS: u32 = 256;
const IDS_TAKEN: &str =
    "obj_add: objects that others wrote have the next ids: write the greatest id of any, in decimal, under the key n";
const MALFORMED_OBJECT: &str = "the record under the object's key is not one that this extension wrote";

/// Bytes of the record of an object without fields: its type, and their count.
const EMPTY_OBJECT_BYTES: usize = 6;

/// Makes an object under an id that no other had or will have. The id is taken beside the transaction: one that is run
/// again takes another, and two calls never wait for each other.
pub(crate) async fn add(graph: TaoGraph<'_>, args: ArgReader<'_>) -> Result<(), Error> {
    let mut args = args.of(ADD);
    let otype = args.u32()?;
    let record = fields::write(otype, &fields::read(&mut args)?)?;
    args.end()?;
    let tx = graph.db.transaction();
    // Objects that were written by plain puts, or a record of the last id that is gone, may be in the way.
    for _ in 0..ID_ATTEMPTS {
        let id = graph.db.increment(graph.objects, keys::LAST_ID, 1).await?;
        let id = u64::try_from(id).map_err(|_| Error::new("the record of the last id (key n) is below 0"))?;
        let key = keys::object_key(id);
        if tx.get(graph.objects, &key).await?.is_none() {
            tx.put(graph.objects, &key, &record)?;
            return graph.db.reply(&id.to_le_bytes());
        }
    }
    Err(Error::new(IDS_TAKEN))
}

pub(crate) async fn get(graph: TaoGraph<'_>, args: ArgReader<'_>) -> Result<(), Error> {
    let mut args = args.of(GET);
    let id = args.u64()?;
    args.end()?;
    match graph.db.get(graph.objects, &keys::object_key(id)).await? {
        Some(record) if record.value().len() < EMPTY_OBJECT_BYTES => Err(Error::new(MALFORMED_OBJECT)),
        Some(record) => graph.db.reply(record.value()),
        None => Ok(()),
    }
}

/// Sets fields, removes others, and leaves the rest as they are.
pub(crate) async fn update(graph: TaoGraph<'_>, args: ArgReader<'_>) -> Result<(), Error> {
    let mut args = args.of(UPDATE);
    let id = args.u64()?;
    let set = fields::read(&mut args)?;
    let removed = fields::read_names(&mut args)?;
    args.end()?;
    if removed.iter().any(|name| set.contains_key(name)) {
        return Err(Error::invalid("obj_update: a field is either set or removed"));
    }
    let (key, tx) = (keys::object_key(id), graph.db.transaction());
    let Some(record) = tx.get(graph.objects, &key).await? else {
        return graph.db.reply(&[0]);
    };
    let mut old = ArgReader::new(record.value(), MALFORMED_OBJECT);
    let broken = |_| Error::new(MALFORMED_OBJECT);
    let otype = old.u32().map_err(broken)?;
    let mut fields = fields::read(&mut old).map_err(broken)?;
    old.end().map_err(broken)?;
    fields.extend(set);
    for name in removed {
        fields.remove(name);
    }
    tx.put(graph.objects, &key, &fields::write(otype, &fields)?)?;
    graph.db.reply(&[1])
}

/// Deletes an object, and nothing else: associations with its id stay, as in TAO.
pub(crate) async fn delete(graph: TaoGraph<'_>, args: ArgReader<'_>) -> Result<(), Error> {
    let mut args = args.of(DELETE);
    let id = args.u64()?;
    args.end()?;
    let was = graph.db.transaction().delete(graph.objects, &keys::object_key(id)).await?;
    graph.db.reply(&[u8::from(was)])
}
