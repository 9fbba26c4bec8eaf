//! An object's fields: count u16, then by ascending name: name_len u8, name, value_len u32, value.

use sandstorm_api::prelude::*;

use crate::args::ArgReader;
use crate::{MAX_FIELDS, MAX_FIELDS_BYTES};

/// Fields by name.
pub(crate) type FieldMap<'a> = BTreeMap<&'a [u8], &'a [u8]>;

const UNORDERED_NAMES: &str = "fields: names ascend by their bytes, none comes twice";
const TOO_MANY_FIELDS: &str = "fields: an object has 1,024 fields at most";
const TOO_LARGE: &str = "fields: an object's fields have 256 KiB at most, names and lengths included";

fn name<'a>(args: &mut ArgReader<'a>) -> Result<&'a [u8], Error> {
    let len = usize::from(args.u8()?);
    if len == 0 { Err(Error::invalid("a field's name has 1 to 255 bytes")) } else { args.bytes(len) }
}

/// Reads fields.
pub(crate) fn read<'a>(args: &mut ArgReader<'a>) -> Result<FieldMap<'a>, Error> {
    let count = usize::from(args.u16()?);
    if count > MAX_FIELDS {
        return Err(Error::invalid(TOO_MANY_FIELDS));
    }
    let (mut fields, mut bytes) = (FieldMap::new(), 0);
    for _ in 0..count {
        let name = name(args)?;
        let len = usize::try_from(args.u32()?).unwrap_or(usize::MAX);
        let value = args.bytes(len)?;
        if fields.last_key_value().is_some_and(|(last, _)| *last >= name) {
            return Err(Error::invalid(UNORDERED_NAMES));
        }
        bytes += name.len() + value.len() + 5;
        if bytes > MAX_FIELDS_BYTES {
            return Err(Error::invalid(TOO_LARGE));
        }
        fields.insert(name, value);
    }
    Ok(fields)
}

/// Reads names of fields: count u16, then name_len u8, name for each.
pub(crate) fn read_names<'a>(args: &mut ArgReader<'a>) -> Result<Vec<&'a [u8]>, Error> {
    let count = usize::from(args.u16()?);
    if count > MAX_FIELDS {
        return Err(Error::invalid(TOO_MANY_FIELDS));
    }
    let mut names = Vec::with_capacity(count);
    for _ in 0..count {
        names.push(name(args)?);
    }
    Ok(names)
}

/// An object's record.
pub(crate) fn write(otype: u32, fields: &FieldMap<'_>) -> Result<Vec<u8>, Error> {
    let count = u16::try_from(fields.len()).ok().filter(|count| usize::from(*count) <= MAX_FIELDS);
    let count = count.ok_or(Error::invalid(TOO_MANY_FIELDS))?;
    let bytes: usize = fields.iter().map(|(name, value)| name.len() + value.len() + 5).sum();
    if bytes > MAX_FIELDS_BYTES {
        return Err(Error::invalid(TOO_LARGE));
    }
    let mut record = Vec::with_capacity(bytes + 6);
    record.extend_from_slice(&otype.to_le_bytes());
    record.extend_from_slice(&count.to_le_bytes());
    for (name, value) in fields {
        record.push(name.len() as u8);
        record.extend_from_slice(name);
        record.extend_from_slice(&(value.len() as u32).to_le_bytes());
        record.extend_from_slice(value);
    }
    Ok(record)
}
