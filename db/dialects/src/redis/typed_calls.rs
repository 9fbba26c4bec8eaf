//! Calls of typed functions: `FCALL bank.transfer 0 '{"from": "ann", …}'`. Arguments are JSON, as on the command line
//! and over HTTP; replies are RESP's own types, written from the reply's bytes.

use sandstorm_net::resp::RespWriter;
use sandstorm_schema::{
    EnumType, EnumVariant, ExtensionSchema, FunctionSchema, StructField, StructType, TypeBody, ValueType,
    VariantPayload,
};
use serde_json::Value;

use super::arguments::lossy_text;
use super::command_call::CommandCall;
use super::errors::CommandError;
use super::session_state::TypedReply;
use crate::limits::redis::{BYTES_PER_JSON_REQUEST, TYPED_ARGS_BYTES, TYPED_OUTPUT_BYTES, TYPED_REPLY_BYTES};

/// What a call names: `bank`, `bank.transfer`, `bank.transfer@7`.
pub(super) struct CalledName<'n> {
    pub(super) extension: &'n str,
    /// Behind a dot.
    pub(super) function: Option<&'n str>,
    /// Behind an `@`; 0: the newest.
    pub(super) version: u64,
}

/// The parts of a name. What follows an `@` and is no number belongs to the name, which is then none of an extension.
pub(super) fn split_name(name: &str) -> CalledName<'_> {
    let (name, version) = match name.rsplit_once('@').map(|(name, digits)| (name, digits.parse())) {
        Some((name, Ok(version))) => (name, version),
        _ => (name, 0),
    };
    match name.split_once('.') {
        Some((extension, function)) => CalledName { extension, function: Some(function), version },
        None => CalledName { extension: name, function: None, version },
    }
}

/// The arguments on the wire of a typed function, given the words behind the keys.
pub(super) fn arguments(
    call: &CommandCall<'_, '_>,
    schema: &ExtensionSchema,
    function: &FunctionSchema,
    words: &[&[u8]],
) -> Result<Vec<u8>, CommandError> {
    let json = match words {
        [] => Value::Null,
        [json] if json.len() > TYPED_ARGS_BYTES => {
            return Err(format!(
                "TOOLARGE the JSON of a typed function has at most {TYPED_ARGS_BYTES} bytes in FCALL (TYPED_ARGS_BYTES): call \
                 it over HTTP, or with a client of Sandstorm's own protocol"
            )
            .into());
        }
        [json] => {
            call.context.work((json.len() / BYTES_PER_JSON_REQUEST) as u64);
            serde_json::from_slice(json).map_err(|error| format!("INVALID the arguments are no JSON: {error}"))?
        }
        _ => {
            return Err(format!(
                "INVALID {} is a typed function: it takes one argument, JSON of {}, behind the keys",
                function.name, function.args
            )
            .into());
        }
    };
    schema.encode_call(function, &json).map_err(|error| format!("INVALID {error}").into())
}

/// Writes the reply of a typed function.
pub(super) fn answer((schema, value): &TypedReply, bytes: &[u8], reply: &mut RespWriter<'_>) {
    let before = reply.out.len();
    let mut rest = bytes;
    let written = if bytes.len() > TYPED_REPLY_BYTES {
        Err("it is longer than a reply in types may be (TYPED_REPLY_BYTES): call it over HTTP")
    } else {
        let most = before + TYPED_OUTPUT_BYTES;
        write(schema, value, (&mut rest, most), reply)
            .ok_or("it is not what its types say, or too long with their names")
    };
    let written = written.and(if rest.is_empty() { Ok(()) } else { Err("bytes follow its end") });
    if let Err(why) = written {
        reply.out.truncate(before);
        reply.error(
            format!("REPLY the call has run, and its reply of {} bytes cannot be shown: {why}", bytes.len()).as_bytes(),
        );
    }
}

fn take<'b>(rest: &mut &'b [u8], count: usize) -> Option<&'b [u8]> {
    let (taken, left) = rest.split_at_checked(count)?;
    *rest = left;
    Some(taken)
}

fn length(rest: &mut &[u8]) -> Option<usize> {
    Some(u32::from_le_bytes(take(rest, 4)?.try_into().ok()?) as usize)
}

/// A number of so many bits, with its sign if it has one.
fn number(rest: &mut &[u8], bits: u8, signed: bool) -> Option<i128> {
    let bytes = take(rest, usize::from(bits) / 8)?;
    let negative = signed && bytes.last()? & 0x80 != 0;
    let mut all = [if negative { 0xff } else { 0 }; 16];
    all[..bytes.len()].copy_from_slice(bytes);
    Some(i128::from_le_bytes(all))
}

/// Writes one value, and takes its bytes; nothing if it is none, or the output is longer than `most`.
fn write(
    schema: &ExtensionSchema,
    value: &ValueType,
    (rest, most): (&mut &[u8], usize),
    reply: &mut RespWriter<'_>,
) -> Option<()> {
    // Names of fields and lists of nothing are longer than the bytes that they stand for.
    if reply.out.len() > most {
        return None;
    }
    match value {
        ValueType::Unit => reply.null(),
        ValueType::Bool => reply.boolean(*take(rest, 1)?.first()? != 0),
        ValueType::Unsigned(bits) | ValueType::Signed(bits) => {
            let number = number(rest, *bits, matches!(value, ValueType::Signed(_)))?;
            match i64::try_from(number) {
                Ok(number) => reply.integer(number),
                // RESP's integers end at 2^63.
                Err(_) => reply.bulk(number.to_string().as_bytes()),
            }
        }
        ValueType::Float(32) => reply.double(f32::from_le_bytes(take(rest, 4)?.try_into().ok()?).into()),
        ValueType::Float(_) => reply.double(f64::from_le_bytes(take(rest, 8)?.try_into().ok()?)),
        ValueType::Text | ValueType::Bytes => {
            let length = length(rest)?;
            reply.bulk(take(rest, length)?);
        }
        ValueType::Optional(inner) => match take(rest, 1)?.first()? {
            0 => reply.null(),
            _ => write(schema, inner, (rest, most), reply)?,
        },
        ValueType::List(inner) => {
            let count = length(rest)?;
            reply.array(count);
            for _ in 0..count {
                write(schema, inner, (rest, most), reply)?;
            }
        }
        ValueType::Named(name) => match schema.named(name)? {
            TypeBody::Struct(StructType { fields }) => write_fields(schema, fields, (rest, most), reply)?,
            TypeBody::Enum(EnumType { variants }) => {
                let variant = variants.get(usize::from(*take(rest, 1)?.first()?))?;
                write_variant(schema, variant, (rest, most), reply)?;
            }
        },
    }
    Some(())
}

fn write_fields(
    schema: &ExtensionSchema,
    fields: &[StructField],
    (rest, most): (&mut &[u8], usize),
    reply: &mut RespWriter<'_>,
) -> Option<()> {
    reply.map(fields.len());
    for field in fields {
        reply.bulk(field.name.as_bytes());
        write(schema, &field.value, (rest, most), reply)?;
    }
    Some(())
}

/// As its JSON: the variant's name, or a map of the name and what is in it.
fn write_variant(
    schema: &ExtensionSchema,
    variant: &EnumVariant,
    (rest, most): (&mut &[u8], usize),
    reply: &mut RespWriter<'_>,
) -> Option<()> {
    if variant.payload != VariantPayload::Unit {
        reply.map(1);
    }
    reply.bulk(variant.name.as_bytes());
    match &variant.payload {
        VariantPayload::Unit => {}
        VariantPayload::Struct(fields) => write_fields(schema, fields, (rest, most), reply)?,
        VariantPayload::Tuple(values) => {
            if values.len() != 1 {
                reply.array(values.len());
            }
            for value in values {
                write(schema, value, (rest, most), reply)?;
            }
        }
    }
    Some(())
}

/// Writes the functions of an extension for FUNCTION LIST.
pub(super) fn list(name: &str, version: u64, schema: Option<&ExtensionSchema>, reply: &mut RespWriter<'_>) {
    let Some(schema) = schema else {
        reply.array(1);
        reply.map(3);
        pair(reply, "name", name);
        pair(reply, "description", &format!("version {version}"));
        reply.bulk(b"flags");
        reply.set(0);
        return;
    };
    reply.array(schema.functions.len());
    for function in &schema.functions {
        reply.map(5);
        pair(reply, "name", &format!("{name}.{}", function.name));
        let about =
            if function.description.is_empty() { format!("version {version}") } else { function.description.clone() };
        pair(reply, "description", &about);
        reply.bulk(b"flags");
        reply.set(0);
        pair(reply, "args", &function.args.to_string());
        pair(reply, "reply", &function.reply.to_string());
    }
}

fn pair(reply: &mut RespWriter<'_>, name: &str, text: &str) {
    reply.bulk(name.as_bytes());
    reply.bulk(text.as_bytes());
}

/// The error for a function that an extension does not have.
pub(super) fn no_function(extension: &str, why: &str) -> CommandError {
    format!("ERR Function not found: {}: {why}", lossy_text(extension.as_bytes())).into()
}

#[cfg(test)]
mod tests {
    //! Promise: few bytes of a reply never become many of an answer (`TYPED_OUTPUT_BYTES`).

    use std::sync::Arc;

    use sandstorm_schema::{NamedType, StructField};

    use super::*;

    /// A schema of one struct with a field of a long name, and the reply of a list of them.
    fn of_long_names() -> TypedReply {
        let field = StructField { name: "n".repeat(40), value: ValueType::Bool, description: String::new() };
        let body = TypeBody::Struct(StructType { fields: vec![field] });
        let types = vec![NamedType { name: "Row".to_owned(), body, description: String::new() }];
        let schema = ExtensionSchema::checked(Vec::new(), types).expect("a schema");
        (Arc::new(schema), ValueType::List(Box::new(ValueType::Named("Row".to_owned()))))
    }

    /// The answer to a reply of so many bytes behind the length of a list.
    fn answered(reply: &TypedReply, count: u32, bytes: usize) -> (String, usize) {
        let reply_bytes = [&count.to_le_bytes()[..], &vec![1; bytes]].concat();
        let mut out = b"before".to_vec();
        answer(reply, &reply_bytes, &mut RespWriter { out: &mut out, resp3: true });
        (String::from_utf8(out).expect("text"), reply_bytes.len())
    }

    #[test]
    fn what_names_or_nothings_would_make_too_long_is_an_error_that_says_that_the_call_has_run() {
        let rows = of_long_names();
        let nothings = (Arc::clone(&rows.0), ValueType::List(Box::new(ValueType::Unit)));
        // As many as fit: each row takes 40 bytes for its name, and a dozen more.
        let (shown, _) = answered(&rows, 10_000, 10_000);
        assert!(shown.starts_with("before*10000\r\n%1\r\n$40\r\n") && shown.ends_with("#t\r\n"), "{}", shown.len());
        assert!(shown.len() < TYPED_OUTPUT_BYTES);
        let (shown, _) = answered(&nothings, 100_000, 0);
        assert!(shown.ends_with("_\r\n") && shown.len() < TYPED_OUTPUT_BYTES, "{}", shown.len());
        // Fewer bytes than a reply may have, and more than an answer may.
        for (reply, count, bytes) in [(&rows, 60_000, 60_000), (&nothings, 1_000_000, 0)] {
            let (shown, length) = answered(reply, count, bytes);
            assert!(length <= TYPED_REPLY_BYTES);
            let error = format!("before-REPLY the call has run, and its reply of {length} bytes cannot be shown: ");
            assert!(shown.starts_with(&error) && shown.len() < 300, "{} bytes", shown.len());
        }
    }
}
