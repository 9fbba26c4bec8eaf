//! Values as JSON, and as the bytes that travel.
//!
//! Numbers, booleans and texts are JSON's own; bytes are a text in base64; an `Option` is `null` or the value, and a
//! missing field is `null`; a `Vec` is an array; a struct an object; `()` is `null`. An enum is
//! the text of its variant, or an object of that name with what is in it: a value, an array, or an object of fields.

use std::cell::Cell;

use data_encoding::BASE64;
use serde_json::{Map, Number, Value};

use crate::enum_variant::{EnumVariant, VariantPayload};
use crate::extension_schema::{EnumType, ExtensionSchema, FunctionSchema, StructType, TypeBody};
use crate::limits::{NESTING, VALUE_BYTES};
use crate::struct_field::StructField;
use crate::value_reader::{JSON_VALUE_BYTES, ReadLimits, take, take_bytes, take_low};
use crate::value_type::ValueType;

/// The reason why JSON or bytes are not of a type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// There is no such function.
    #[error("{0}")]
    Function(String),
    /// The JSON is not of the type.
    #[error("{at}: {text}")]
    Json {
        /// Where, such as `args.items[2].price`.
        at: String,
        /// What is wrong.
        text: String,
    },
    /// The bytes are not of the type.
    #[error("the reply is not of the type {expected}: {text}")]
    Bytes {
        /// The type.
        expected: String,
        /// What is wrong.
        text: String,
    },
}

/// Where in the JSON a value is.
struct JsonPath<'p> {
    part: &'p str,
    parent: Option<&'p JsonPath<'p>>,
}

impl JsonPath<'_> {
    fn text(&self) -> String {
        let mut text = self.parent.map_or_else(String::new, JsonPath::text);
        if !text.is_empty() && !self.part.starts_with('[') {
            text.push('.');
        }
        text.push_str(self.part);
        text
    }

    fn wrong<T>(&self, text: impl Into<String>) -> Result<T, SchemaError> {
        Err(SchemaError::Json { at: self.text(), text: text.into() })
    }
}

impl ExtensionSchema {
    /// The function that a call names; without a name the only one.
    ///
    /// # Errors
    /// [`SchemaError::Function`] with the functions that there are.
    pub fn find_function(&self, name: Option<&str>) -> Result<&FunctionSchema, SchemaError> {
        self.function(name).ok_or_else(|| {
            let all: Vec<&str> = self.functions.iter().map(|function| function.name.as_str()).collect();
            let all = all.join(", ");
            SchemaError::Function(match name {
                Some(name) => format!("there is no function {name:?}; there are: {all}"),
                None => format!("the extension has several functions: name one of {all}, as EXTENSION.FUNCTION"),
            })
        })
    }

    /// The bytes of a call: the function's fingerprint and its arguments.
    ///
    /// # Errors
    /// [`SchemaError::Json`] if the JSON is not what the function takes.
    pub fn encode_call(&self, function: &FunctionSchema, args: &Value) -> Result<Vec<u8>, SchemaError> {
        let mut bytes = function.fingerprint.to_le_bytes().to_vec();
        let at = JsonPath { part: "args", parent: None };
        // A struct without a value that it needs is told by its fields.
        let empty = Value::Object(Map::new());
        let args = if args.is_null() && matches!(function.args, ValueType::Named(_)) { &empty } else { args };
        self.write(&function.args, args, &at, &mut bytes)?;
        Ok(bytes)
    }

    /// The JSON of a function's reply.
    ///
    /// # Errors
    /// [`SchemaError::Bytes`] if the bytes are not what the function gives.
    pub fn decode_reply(&self, function: &FunctionSchema, reply: &[u8]) -> Result<Value, SchemaError> {
        self.decode(&function.reply, reply)
    }

    /// As above, of a reply whose JSON has about so many bytes at most: names of fields and variants may be a hundred
    /// times longer than the bytes that they stand for.
    ///
    /// # Errors
    /// As above, also for a longer one.
    pub fn decode_reply_within(
        &self,
        function: &FunctionSchema,
        reply: &[u8],
        json_bytes: usize,
    ) -> Result<Value, SchemaError> {
        self.decode_within(&function.reply, reply, json_bytes)
    }

    /// The JSON of a value's bytes.
    ///
    /// # Errors
    /// [`SchemaError::Bytes`].
    pub fn decode(&self, value: &ValueType, bytes: &[u8]) -> Result<Value, SchemaError> {
        self.decode_within(value, bytes, usize::MAX)
    }

    fn decode_within(&self, value: &ValueType, bytes: &[u8], json_bytes: usize) -> Result<Value, SchemaError> {
        let mut rest = bytes;
        let wrong = |text: &str| SchemaError::Bytes { expected: value.to_string(), text: text.to_owned() };
        let left = Cell::new(json_bytes);
        let read = self.read(value, &mut rest, ReadLimits { depth: 0, left: &left }).map_err(wrong)?;
        if rest.is_empty() { Ok(read) } else { Err(wrong("bytes follow its end")) }
    }

    /// The bytes of a value's JSON.
    ///
    /// # Errors
    /// [`SchemaError::Json`].
    pub fn encode(&self, value: &ValueType, json: &Value) -> Result<Vec<u8>, SchemaError> {
        let mut bytes = Vec::new();
        self.write(value, json, &JsonPath { part: "value", parent: None }, &mut bytes)?;
        Ok(bytes)
    }

    fn write(&self, value: &ValueType, json: &Value, at: &JsonPath<'_>, to: &mut Vec<u8>) -> Result<(), SchemaError> {
        if to.len() > VALUE_BYTES {
            return at.wrong("the arguments are over 8 MiB");
        }
        match (value, json) {
            (ValueType::Unit, Value::Null) => {}
            (ValueType::Unit, Value::Object(fields)) if fields.is_empty() => {}
            (ValueType::Bool, Value::Bool(on)) => to.push(u8::from(*on)),
            (ValueType::Unsigned(bits), Value::Number(number)) => match number.as_u64() {
                Some(number) if fits_unsigned(number, *bits) => write_low(to, number, *bits),
                _ => return at.wrong(format!("{number} is no {value}")),
            },
            (ValueType::Signed(bits), Value::Number(number)) => match number.as_i64() {
                Some(number) if fits_signed(number, *bits) => write_low(to, number.cast_unsigned(), *bits),
                _ => return at.wrong(format!("{number} is no {value}")),
            },
            (ValueType::Float(bits), Value::Number(number)) => match number.as_f64() {
                Some(number) if *bits == 32 => match number as f32 {
                    rounded if rounded.is_finite() => to.extend(rounded.to_le_bytes()),
                    _ => return at.wrong(format!("{json} is no {value}: it is too large")),
                },
                Some(number) => to.extend(number.to_le_bytes()),
                None => return at.wrong(format!("{number} is no {value}")),
            },
            (ValueType::Text, Value::String(text)) => write_bytes(to, text.as_bytes(), at)?,
            (ValueType::Bytes, Value::String(text)) => match BASE64.decode(text.as_bytes()) {
                Ok(bytes) => write_bytes(to, &bytes, at)?,
                Err(error) => return at.wrong(format!("bytes are a text in base64: {error}")),
            },
            (ValueType::Optional(_), Value::Null) => to.push(0),
            (ValueType::Optional(inner), json) => {
                to.push(1);
                self.write(inner, json, at, to)?;
            }
            (ValueType::List(inner), Value::Array(values)) => {
                to.extend((values.len() as u32).to_le_bytes());
                for (index, json) in values.iter().enumerate() {
                    self.write(inner, json, &JsonPath { part: &format!("[{index}]"), parent: Some(at) }, to)?;
                }
            }
            (ValueType::Named(name), json) => self.write_named(name, json, at, to)?,
            (_, json) => return at.wrong(format!("{} where {value} is expected", kind_of(json))),
        }
        Ok(())
    }

    fn write_named(&self, name: &str, json: &Value, at: &JsonPath<'_>, to: &mut Vec<u8>) -> Result<(), SchemaError> {
        match (self.named(name), json) {
            (Some(TypeBody::Struct(StructType { fields })), Value::Object(given)) => {
                self.write_fields(name, fields, given, at, to)
            }
            (Some(TypeBody::Enum(EnumType { variants })), json) => self.write_variant(name, variants, json, at, to),
            (Some(TypeBody::Struct(_)), json) => {
                at.wrong(format!("{} where an object, {name}, is expected", kind_of(json)))
            }
            (None, _) => at.wrong(format!("the schema has no type {name}")),
        }
    }

    /// Writes the fields of what is called so.
    fn write_fields(
        &self,
        name: &str,
        fields: &[StructField],
        given: &Map<String, Value>,
        at: &JsonPath<'_>,
        to: &mut Vec<u8>,
    ) -> Result<(), SchemaError> {
        for field in fields {
            let at = JsonPath { part: &field.name, parent: Some(at) };
            let optional = matches!(field.value, ValueType::Optional(_));
            match given.get(&field.name) {
                None if !optional => return at.wrong(format!("it is missing: {}", field.value)),
                given => self.write(&field.value, given.unwrap_or(&Value::Null), &at, to)?,
            }
        }
        match given.keys().find(|key| fields.iter().all(|field| field.name != **key)) {
            None => Ok(()),
            Some(unknown) => {
                let all: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
                at.wrong(format!("{name} has no field {unknown:?}; it has: {}", all.join(", ")))
            }
        }
    }

    fn write_variant(
        &self,
        name: &str,
        variants: &[EnumVariant],
        json: &Value,
        at: &JsonPath<'_>,
        to: &mut Vec<u8>,
    ) -> Result<(), SchemaError> {
        let (said, given) = match json {
            Value::String(said) => (said, None),
            Value::Object(one) => match (one.iter().next(), one.len()) {
                (Some((said, given)), 1) => (said, Some(given)),
                (_, count) => {
                    return at.wrong(format!("an object of {count} where one of a variant of {name} is expected"));
                }
            },
            json => return at.wrong(format!("{} where a variant of {name} is expected", kind_of(json))),
        };
        let Some(number) = variants.iter().position(|variant| variant.name == *said) else {
            let all: Vec<&str> = variants.iter().map(|variant| variant.name.as_str()).collect();
            return at.wrong(format!("{said:?} is no {name}; one of: {}", all.join(", ")));
        };
        to.push(number as u8);
        let payload = &variants[number].payload;
        let at = &JsonPath { part: said, parent: Some(at) };
        match (payload, given) {
            (VariantPayload::Unit, None) => Ok(()),
            (VariantPayload::Unit, Some(_)) => at.wrong(format!("it has nothing in it: write {said:?}")),
            (payload, None) => {
                at.wrong(format!("it has something in it: write {{{said:?}: {}}}", payload_form(payload)))
            }
            (VariantPayload::Tuple(values), Some(json)) => match (&values[..], json) {
                ([value], json) => self.write(value, json, at, to),
                (values, Value::Array(given)) if given.len() == values.len() => {
                    values.iter().zip(given).enumerate().try_for_each(|(index, (value, json))| {
                        self.write(value, json, &JsonPath { part: &format!("[{index}]"), parent: Some(at) }, to)
                    })
                }
                (values, json) => {
                    let given = json
                        .as_array()
                        .map_or_else(|| kind_of(json).to_owned(), |given| format!("an array of {}", given.len()));
                    at.wrong(format!("{given} where an array of {} is expected", values.len()))
                }
            },
            (VariantPayload::Struct(fields), Some(Value::Object(given))) => {
                self.write_fields(&format!("{name}::{said}"), fields, given, at, to)
            }
            (VariantPayload::Struct(_), Some(json)) => {
                at.wrong(format!("{} where an object is expected", kind_of(json)))
            }
        }
    }

    fn read(&self, value: &ValueType, rest: &mut &[u8], limits: ReadLimits<'_>) -> Result<Value, &'static str> {
        if limits.depth > 2 * NESTING {
            return Err("it is nested too deep");
        }
        limits.charge(JSON_VALUE_BYTES)?;
        Ok(match value {
            ValueType::Unit => Value::Null,
            ValueType::Bool => match take::<1>(rest)? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                _ => return Err("a bool that is neither 0 nor 1"),
            },
            ValueType::Unsigned(bits) => Value::from(take_low(rest, *bits)?),
            ValueType::Signed(bits) => {
                let unused = 64 - u32::from(*bits);
                Value::from((take_low(rest, *bits)? << unused).cast_signed() >> unused)
            }
            ValueType::Float(32) => float(f64::from(f32::from_le_bytes(take(rest)?))),
            ValueType::Float(_) => float(f64::from_le_bytes(take(rest)?)),
            ValueType::Text => {
                let text = std::str::from_utf8(take_bytes(rest)?).map_err(|_| "a text that is no UTF-8")?;
                limits.charge(text.len())?;
                Value::String(text.to_owned())
            }
            ValueType::Bytes => {
                let bytes = take_bytes(rest)?;
                limits.charge(BASE64.encode_len(bytes.len()))?;
                Value::String(BASE64.encode(bytes))
            }
            ValueType::Optional(inner) => match take::<1>(rest)? {
                [0] => Value::Null,
                [1] => self.read(inner, rest, limits.deeper())?,
                _ => return Err("an Option that is neither 0 nor 1"),
            },
            ValueType::List(inner) => {
                let count = u32::from_le_bytes(take(rest)?) as usize;
                // Each value has at least a byte.
                if count > rest.len() {
                    return Err("a list ends behind its end");
                }
                let values: Result<Vec<Value>, _> =
                    (0..count).map(|_| self.read(inner, rest, limits.deeper())).collect();
                Value::Array(values?)
            }
            ValueType::Named(name) => match self.named(name) {
                Some(TypeBody::Struct(StructType { fields })) => self.read_fields(fields, rest, limits)?,
                Some(TypeBody::Enum(EnumType { variants })) => {
                    let [number] = take::<1>(rest)?;
                    let variant =
                        variants.get(usize::from(number)).ok_or("an enum without a variant of that number")?;
                    self.read_variant(variant, rest, limits)?
                }
                None => return Err("the schema has no such type"),
            },
        })
    }

    fn read_fields(
        &self,
        fields: &[StructField],
        rest: &mut &[u8],
        limits: ReadLimits<'_>,
    ) -> Result<Value, &'static str> {
        let mut object = Map::new();
        for field in fields {
            limits.charge(field.name.len())?;
            object.insert(field.name.clone(), self.read(&field.value, rest, limits.deeper())?);
        }
        Ok(Value::Object(object))
    }

    fn read_variant(
        &self,
        variant: &EnumVariant,
        rest: &mut &[u8],
        limits: ReadLimits<'_>,
    ) -> Result<Value, &'static str> {
        limits.charge(variant.name.len())?;
        let given = match &variant.payload {
            VariantPayload::Unit => return Ok(Value::String(variant.name.clone())),
            VariantPayload::Struct(fields) => self.read_fields(fields, rest, limits)?,
            VariantPayload::Tuple(values) => {
                let read = values.iter().map(|value| self.read(value, rest, limits.deeper()));
                let mut read = read.collect::<Result<Vec<Value>, _>>()?;
                if read.len() == 1 { read.remove(0) } else { Value::Array(read) }
            }
        };
        Ok(Value::Object(Map::from_iter([(variant.name.clone(), given)])))
    }
}

/// What stands in the JSON of a variant.
fn payload_form(payload: &VariantPayload) -> String {
    match payload {
        VariantPayload::Unit => String::new(),
        VariantPayload::Tuple(values) => match &values[..] {
            [value] => value.to_string(),
            values => format!("[{}]", values.iter().map(ValueType::to_string).collect::<Vec<_>>().join(", ")),
        },
        VariantPayload::Struct(fields) => {
            let list: Vec<String> = fields.iter().map(|field| format!("{:?}: {}", field.name, field.value)).collect();
            format!("{{{}}}", list.join(", "))
        }
    }
}

/// JSON has no words for what is no number.
fn float(number: f64) -> Value {
    Number::from_f64(number).map_or(Value::Null, Value::Number)
}

fn kind_of(json: &Value) -> &'static str {
    match json {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn fits_unsigned(number: u64, bits: u8) -> bool {
    bits == 64 || number >> bits == 0
}

fn fits_signed(number: i64, bits: u8) -> bool {
    let unused = 64 - u32::from(bits);
    (number << unused) >> unused == number
}

/// Writes the low bytes of a number.
fn write_low(to: &mut Vec<u8>, number: u64, bits: u8) {
    to.extend(&number.to_le_bytes()[..usize::from(bits / 8)]);
}

fn write_bytes(to: &mut Vec<u8>, bytes: &[u8], at: &JsonPath<'_>) -> Result<(), SchemaError> {
    if bytes.len() > VALUE_BYTES {
        return at.wrong("it is over 8 MiB");
    }
    to.extend((bytes.len() as u32).to_le_bytes());
    to.extend(bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// A schema with a field of each type.
    fn schema() -> ExtensionSchema {
        ExtensionSchema::parse(
            r#"{"functions": [{"name": "f", "args": "All", "reply": "Vec<All>"}],
                "types": [
                    {"name": "Color", "enum": {"variants": ["Red", "Green"]}},
                    {"name": "Shape", "enum": {"variants": ["Empty", {"name": "Circle", "values": ["f64"]},
                        {"name": "Line", "values": ["Point", "Option<Point>"]}, {"name": "Maybe", "values": ["Option<u8>"]},
                        {"name": "Box", "fields": [{"name": "at", "type": "Point"}, {"name": "color", "type": "Option<Color>"}]}]}},
                    {"name": "Point", "struct": {"fields": [{"name": "x", "type": "i16"}, {"name": "y", "type": "f32"}]}},
                    {"name": "All", "struct": {"fields": [
                        {"name": "on", "type": "bool"}, {"name": "small", "type": "i8"}, {"name": "large", "type": "u64"},
                        {"name": "name", "type": "String"}, {"name": "raw", "type": "bytes"},
                        {"name": "maybe", "type": "Option<u16>"}, {"name": "points", "type": "Vec<Point>"},
                        {"name": "color", "type": "Color"}, {"name": "shapes", "type": "Vec<Shape>"}]}}]}"#,
        )
        .unwrap()
    }

    fn all() -> Value {
        json!({"on": true, "small": -2, "large": u64::MAX, "name": "ä", "raw": "AAE=", "maybe": null,
               "points": [{"x": -1, "y": 0.5}], "color": "Green",
               "shapes": ["Empty", {"Circle": 0.5}, {"Line": [{"x": 1, "y": 0.5}, null]}, {"Maybe": null},
                          {"Box": {"at": {"x": 2, "y": 0.5}, "color": "Red"}}]})
    }

    /// Any shape, as its JSON.
    fn shape() -> impl Strategy<Value = Value> {
        let point = || (any::<i16>(), 0u8..9).prop_map(|(x, y)| json!({"x": x, "y": f64::from(y) / 2.0}));
        let color = proptest::option::of(prop_oneof![Just("Red"), Just("Green")]);
        prop_oneof![
            Just(json!("Empty")),
            any::<i32>().prop_map(|radius| json!({"Circle": f64::from(radius)})),
            (point(), proptest::option::of(point())).prop_map(|(from, to)| json!({"Line": [from, to]})),
            any::<Option<u8>>().prop_map(|number| json!({"Maybe": number})),
            (point(), color).prop_map(|(at, color)| json!({"Box": {"at": at, "color": color}})),
        ]
    }

    #[test]
    fn each_type_has_the_bytes_of_the_page() {
        let schema = schema();
        let function = schema.find_function(None).unwrap();
        let bytes = schema.encode_call(function, &all()).unwrap();
        let body: &[&[u8]] = &[
            &[1],
            &[0xfe],
            &[0xff; 8],
            &[2, 0, 0, 0, 0xc3, 0xa4],
            &[2, 0, 0, 0, 0, 1],
            &[0],
            &[1, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0x3f],
            &[1],
            &[5, 0, 0, 0],
            &[0],
            &[1, 0, 0, 0, 0, 0, 0, 0xe0, 0x3f],
            &[2, 1, 0, 0, 0, 0, 0x3f, 0],
            &[3, 0],
            &[4, 2, 0, 0, 0, 0, 0x3f, 1, 0],
        ];
        assert_eq!(bytes, [&function.fingerprint.to_le_bytes()[..], &body.concat()].concat());
        let reply = [&1u32.to_le_bytes()[..], &bytes[4..]].concat();
        assert_eq!(schema.decode_reply(function, &reply), Ok(json!([all()])));
    }

    #[test]
    fn json_of_another_type_is_refused_with_its_place() {
        let schema = schema();
        let function = schema.find_function(None).unwrap();
        let refused = |field: &str, value: Value| {
            let mut args = all();
            args[field] = value;
            schema.encode_call(function, &args).unwrap_err().to_string()
        };
        for (field, value, text) in [
            ("small", json!(128), "args.small: 128 is no i8"),
            ("large", json!(-1), "args.large: -1 is no u64"),
            ("large", json!(1.5), "args.large: 1.5 is no u64"),
            ("maybe", json!(65_536), "args.maybe: 65536 is no u16"),
            ("points", json!([{"x": 1, "y": 0}, {"x": 1}]), "args.points[1].y: it is missing: f32"),
            ("points", json!([{"x": 1, "y": 1e300}]), "args.points[0].y: 1e+300 is no f32: it is too large"),
            ("points", json!({}), "args.points: an object where Vec<Point> is expected"),
            ("color", json!("Blue"), "args.color: \"Blue\" is no Color; one of: Red, Green"),
            ("raw", json!("!"), "args.raw: bytes are a text in base64"),
            ("color", json!({"Red": 1}), "args.color.Red: it has nothing in it: write \"Red\""),
            ("color", json!(1), "args.color: a number where a variant of Color is expected"),
            ("shapes", json!(["Circle"]), "args.shapes[0].Circle: it has something in it: write {\"Circle\": f64}"),
            (
                "shapes",
                json!(["Line"]),
                "args.shapes[0].Line: it has something in it: write {\"Line\": [Point, Option<Point>]}",
            ),
            ("shapes", json!([{"Square": 1}]), "args.shapes[0]: \"Square\" is no Shape; one of: Empty, Circle, Line"),
            ("shapes", json!([{"Circle": "1"}]), "args.shapes[0].Circle: a text where f64 is expected"),
            (
                "shapes",
                json!([{"Line": [{"x": 1, "y": 1}]}]),
                "args.shapes[0].Line: an array of 1 where an array of 2 is expected",
            ),
            (
                "shapes",
                json!([{"Line": [{"x": 1, "y": 1}, 3]}]),
                "args.shapes[0].Line[1]: a number where an object, Point",
            ),
            ("shapes", json!([{"Box": {}}]), "args.shapes[0].Box.at: it is missing: Point"),
            (
                "shapes",
                json!([{"Box": {"at": {"x": 1, "y": 1}, "z": 1}}]),
                "args.shapes[0].Box: Shape::Box has no field \"z\"",
            ),
            ("shapes", json!([{"Box": 1}]), "args.shapes[0].Box: a number where an object is expected"),
            ("shapes", json!([{"Circle": 1, "Maybe": 1}]), "args.shapes[0]: an object of 2 where one of a variant"),
            ("shapes", json!([{}]), "args.shapes[0]: an object of 0 where one of a variant of Shape is expected"),
            ("other", json!(1), "args: All has no field \"other\"; it has: on, small"),
        ] {
            let said = refused(field, value);
            assert!(said.starts_with(text), "{said}");
        }
        assert!(schema.encode_call(function, &Value::Null).unwrap_err().to_string().contains("args.on: it is missing"));
        assert!(schema.find_function(Some("g")).unwrap_err().to_string().contains("there are: f"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused_and_what_is_read_is_written_the_same(
            bytes in proptest::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..80),
        ) {
            let schema = schema();
            let function = schema.find_function(None).unwrap();
            if let Ok(json) = schema.decode_reply(function, &bytes)
                // JSON has one word for all that is no number.
                && let Ok(again) = schema.encode(&function.reply, &json)
            {
                prop_assert_eq!(schema.decode_reply(function, &again), Ok(json));
            }
        }

        #[test]
        fn a_number_with_a_fraction_is_the_nearest_double(bits in any::<u64>()) {
            let number = f64::from_bits(bits);
            prop_assume!(number.is_finite());
            let schema = schema();
            let args: Value = serde_json::from_str(&format!("[{{\"Circle\": {number:?}}}]")).unwrap();
            let shapes = ValueType::List(Box::new(ValueType::Named("Shape".into())));
            let bytes = schema.encode(&shapes, &args).unwrap();
            prop_assert_eq!(&bytes[bytes.len() - 8..], number.to_le_bytes());
        }

        #[test]
        fn what_is_written_is_read_the_same(
            on in any::<bool>(), small in any::<i8>(), large in any::<u64>(), name in ".*",
            shapes in proptest::collection::vec(shape(), 0..6),
            maybe in any::<Option<u16>>(), points in proptest::collection::vec((any::<i16>(), -1e3f32..1e3), 0..4),
        ) {
            let schema = schema();
            let function = schema.find_function(None).unwrap();
            let points: Vec<Value> = points.into_iter().map(|(x, y)| json!({"x": x, "y": f64::from(y)})).collect();
            let value = json!({"on": on, "small": small, "large": large, "name": name, "raw": "", "maybe": maybe,
                               "points": points, "color": "Red", "shapes": shapes});
            let bytes = schema.encode(&function.args, &value).unwrap();
            prop_assert_eq!(schema.decode(&function.args, &bytes), Ok(value));
        }
    }
}
