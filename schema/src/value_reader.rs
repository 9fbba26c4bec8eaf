//! The bytes of a value, field by field; and what bounds their reading as JSON: how deep they nest, and how long the
//! JSON becomes.

use std::cell::Cell;

/// Bytes of a value in JSON without its text: a short number, or quotes, and what stands between it and the next one.
pub(crate) const JSON_VALUE_BYTES: usize = 5;

/// How deep a value is nested that is read, and how long its JSON may still become.
#[derive(Clone, Copy)]
pub(crate) struct ReadLimits<'c> {
    pub(crate) depth: usize,
    pub(crate) left: &'c Cell<usize>,
}

impl ReadLimits<'_> {
    pub(crate) fn deeper(self) -> Self {
        ReadLimits { depth: self.depth + 1, ..self }
    }

    pub(crate) fn charge(self, bytes: usize) -> Result<(), &'static str> {
        let left =
            self.left.get().checked_sub(bytes).ok_or("with the names of its types it is too long to be shown")?;
        self.left.set(left);
        Ok(())
    }
}

const CUT: &str = "it ends too early";

pub(crate) fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], &'static str> {
    let (first, after) = rest.split_first_chunk::<N>().ok_or(CUT)?;
    *rest = after;
    Ok(*first)
}

pub(crate) fn take_low(rest: &mut &[u8], bits: u8) -> Result<u64, &'static str> {
    let (field, after) = rest.split_at_checked(usize::from(bits / 8)).ok_or(CUT)?;
    *rest = after;
    let mut word = [0; 8];
    word[..field.len()].copy_from_slice(field);
    Ok(u64::from_le_bytes(word))
}

pub(crate) fn take_bytes<'b>(rest: &mut &'b [u8]) -> Result<&'b [u8], &'static str> {
    let len = u32::from_le_bytes(take(rest)?) as usize;
    let (bytes, after) = rest.split_at_checked(len).ok_or(CUT)?;
    *rest = after;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use crate::{ExtensionSchema, FunctionSchema, NamedType, StructField, StructType, TypeBody, ValueType};

    /// Names of fields may be far longer than the bytes that they stand for.
    #[test]
    fn a_reply_whose_json_is_too_long_is_refused_before_it_is_made() {
        let field = |number: usize| StructField {
            name: format!("{number:0>60}").replace('0', "n"),
            value: ValueType::Bool,
            description: String::new(),
        };
        let fields = (0..100).map(field).collect();
        let wide = NamedType {
            name: "Wide".to_owned(),
            body: TypeBody::Struct(StructType { fields }),
            description: String::new(),
        };
        let schema = ExtensionSchema { types: vec![wide], ..ExtensionSchema::default() };
        let reply = ValueType::List(Box::new(ValueType::Named("Wide".to_owned())));
        let (name, description) = ("all".to_owned(), String::new());
        let function = FunctionSchema { name, args: ValueType::Unit, reply, fingerprint: 0, description };
        let bytes = [&50_u32.to_le_bytes()[..], &[1; 5_000]].concat();
        let json = schema.decode_reply_within(&function, &bytes, usize::MAX).expect("it is one").to_string();
        assert!(json.len() > 50 * 100 * 60, "{}", json.len());
        assert_eq!(schema.decode_reply_within(&function, &bytes, json.len()).map(|json| json.to_string()), Ok(json));
        let refused = schema.decode_reply_within(&function, &bytes, 100_000).expect_err("too long");
        assert!(refused.to_string().contains("too long"), "{refused}");
    }
}
