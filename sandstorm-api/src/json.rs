//! JSON in and out.
//!
//! ```
//! use sandstorm_api::json::{FromJson, Json, JsonError};
//! use sandstorm_api::prelude::*;
//! use sandstorm_api::testing::TestStore;
//!
//! struct Order {
//!     customer: String,
//!     prices: Vec<u64>,
//!     note: Option<String>,
//! }
//!
//! impl FromJson for Order {
//!     fn from_json(json: &Json) -> Result<Order, JsonError> {
//!         Ok(Order { customer: json.read("customer.name")?, prices: json.read("prices")?, note: json.read("note")? })
//!     }
//! }
//!
//! async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
//!     let order: Order = Json::parse(args)?.read("")?;
//!     let sum: u64 = order.prices.iter().sum();
//!     let answer = Json::object().with("for", order.customer).with("sum", sum).with("noted", order.note.is_some());
//!     db.reply(answer.to_string().as_bytes())
//! }
//!
//! let mut store = TestStore::new();
//! let answer = store.invoke(run, br#"{"customer": {"name": "Ann"}, "prices": [3, 4]}"#).unwrap();
//! assert_eq!(answer, br#"{"for":"Ann","noted":false,"sum":7}"#);
//! let error = store.invoke(run, br#"{"customer": {"name": "Ann"}, "prices": [3, "4"]}"#).unwrap_err();
//! assert!(error.text().starts_with("JSON: prices[1]: a number without fraction from 0 to 18446744073709551615 is"));
//! ```
//!
//! A value is parsed whole, within [`JsonLimits`]. Of two fields of one name the last counts, and fields are written in
//! the order of their names.

mod parser;
mod read;
mod writer;

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::Error;
pub use read::FromJson;

/// Values inside of values that [`Json::parse`] follows: more than people write, and little of the stack.
pub const JSON_DEPTH: usize = 64;
/// Bytes that [`Json::parse`] takes: a value takes some times as many in memory, of which an invocation has 4 MiB
/// unless its operator says otherwise.
pub const JSON_BYTES: usize = 1 << 20;
/// Values that [`Json::parse`] makes, for the same reason: each takes some 32 bytes beside its text.
pub const JSON_VALUES: usize = 1 << 16;

/// A JSON value.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Json {
    /// `null`.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(JsonNumber),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Json>),
    /// Fields by their names.
    Object(BTreeMap<String, Json>),
}

/// A number of JSON: whole numbers of 64 bits stay exact, others are floating-point numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum JsonNumber {
    /// A whole number below 0.
    Negative(i64),
    /// A whole number from 0 on.
    Positive(u64),
    /// Any other; finite.
    Float(f64),
}

/// How much [`Json::parse_within`] takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonLimits {
    /// Values inside of values, at most [`JSON_DEPTH`].
    pub depth: usize,
    /// Bytes of the whole text.
    pub bytes: usize,
    /// Values in it.
    pub values: usize,
}

impl Default for JsonLimits {
    fn default() -> JsonLimits {
        JsonLimits { depth: JSON_DEPTH, bytes: JSON_BYTES, values: JSON_VALUES }
    }
}

/// What is wrong with a JSON text or value, and where: at which place of the text, or in which field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonError {
    path: String,
    text: String,
}

impl JsonError {
    /// An error about a value, for an implementation of [`FromJson`].
    ///
    /// ```
    /// use sandstorm_api::json::JsonError;
    /// assert_eq!(JsonError::new("a price is needed").path(), "");
    /// ```
    pub fn new(text: impl Into<String>) -> JsonError {
        JsonError { path: String::new(), text: text.into() }
    }

    /// The same about a field, or an element, of what it was about: `order`, `items[3]`.
    ///
    /// ```
    /// use sandstorm_api::json::JsonError;
    /// assert_eq!(JsonError::new("a price is needed").within("order").path(), "order");
    /// ```
    #[must_use]
    pub fn within(self, path: &str) -> JsonError {
        let path = match (path.is_empty(), self.path.is_empty()) {
            (true, _) => self.path,
            (false, true) => path.into(),
            (false, false) if self.path.starts_with('[') => format!("{path}{}", self.path),
            (false, false) => format!("{path}.{}", self.path),
        };
        JsonError { path, text: self.text }
    }

    /// The field or element that it is about; empty: the whole.
    ///
    /// ```
    /// use sandstorm_api::json::Json;
    /// let order = Json::parse(br#"{"prices": [1, "x"]}"#).unwrap();
    /// assert_eq!(order.read::<Vec<u64>>("prices").unwrap_err().path(), "prices[1]");
    /// ```
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl core::fmt::Display for JsonError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.path.is_empty() {
            true => write!(f, "JSON: {}", self.text),
            false => write!(f, "JSON: {}: {}", self.path, self.text),
        }
    }
}

impl core::error::Error for JsonError {}

impl From<JsonError> for Error {
    fn from(error: JsonError) -> Error {
        Error::invalid(format!("{error}"))
    }
}

impl Json {
    /// Parses a text of at most [`JSON_BYTES`].
    ///
    /// ```
    /// use sandstorm_api::json::Json;
    ///
    /// let json = Json::parse(br#"{"a": [1, 2.5, "x", null]}"#).unwrap();
    /// assert_eq!(json.find("a[2]"), Some(&Json::from("x")));
    /// assert_eq!(Json::parse(b"[1,\n 2").unwrap_err().to_string(), "JSON: line 2, column 3: a list ends with `]`");
    /// ```
    ///
    /// # Errors
    /// [`JsonError`] with line and column: it is no JSON, or more than the limits.
    pub fn parse(text: &[u8]) -> Result<Json, JsonError> {
        Json::parse_within(text, JsonLimits::default())
    }

    /// The same within other limits.
    ///
    /// ```
    /// use sandstorm_api::json::{Json, JsonLimits};
    ///
    /// let flat = JsonLimits { depth: 1, ..JsonLimits::default() };
    /// assert!(Json::parse_within(b"[1, 2]", flat).is_ok());
    /// assert!(Json::parse_within(b"[1, [2]]", flat).is_err());
    /// ```
    ///
    /// # Errors
    /// As [`Json::parse`].
    pub fn parse_within(text: &[u8], limits: JsonLimits) -> Result<Json, JsonError> {
        parser::parse(text, limits)
    }

    /// An object without fields, to be filled by [`Json::with`].
    ///
    /// ```
    /// use sandstorm_api::json::Json;
    /// assert_eq!(Json::object().with("sum", 7u64).to_string(), r#"{"sum":7}"#);
    /// ```
    pub fn object() -> Json {
        Json::Object(BTreeMap::new())
    }

    /// A list of values.
    ///
    /// ```
    /// use sandstorm_api::json::Json;
    ///
    /// assert_eq!(Json::list([1, 2]).to_string(), "[1,2]");
    /// ```
    pub fn list<T: Into<Json>>(values: impl IntoIterator<Item = T>) -> Json {
        Json::List(values.into_iter().map(Into::into).collect())
    }

    /// The object with a field more, in place of one of that name. What is no object becomes one.
    ///
    /// ```
    /// use sandstorm_api::json::Json;
    ///
    /// let json = Json::object().with("name", "Ann").with("tags", Json::list(["a", "b"])).with("age", 40);
    /// assert_eq!(json.to_string(), r#"{"age":40,"name":"Ann","tags":["a","b"]}"#);
    /// ```
    #[must_use]
    pub fn with(self, name: &str, value: impl Into<Json>) -> Json {
        let mut fields = match self {
            Json::Object(fields) => fields,
            _ => BTreeMap::new(),
        };
        fields.insert(name.into(), value.into());
        Json::Object(fields)
    }

    /// The value at a path of fields and elements, such as `order.items[3].price`; the empty path is the value itself.
    /// `None`: there is none. For a field whose name has a dot or a bracket see [`Json::field`].
    ///
    /// ```
    /// use sandstorm_api::json::Json;
    /// let order = Json::parse(br#"{"items": [{"name": "apple"}]}"#).unwrap();
    /// assert_eq!(order.find("items[0].name").and_then(Json::as_str), Some("apple"));
    /// ```
    pub fn find(&self, path: &str) -> Option<&Json> {
        let mut at = self;
        for part in path.split('.').filter(|part| !part.is_empty()) {
            let (name, mut elements) = part.split_at(part.find('[').unwrap_or(part.len()));
            if !name.is_empty() {
                at = at.field(name)?;
            }
            while !elements.is_empty() {
                let (number, rest) = elements.strip_prefix('[')?.split_once(']')?;
                at = at.element(number.parse().ok()?)?;
                elements = rest;
            }
        }
        Some(at)
    }

    /// The field of an object; `None`: it has none of that name, or is no object.
    ///
    /// ```
    /// use sandstorm_api::json::Json;
    /// let order = Json::parse(br#"{"name": "apple"}"#).unwrap();
    /// assert_eq!(order.field("name").and_then(Json::as_str), Some("apple"));
    /// ```
    pub fn field(&self, name: &str) -> Option<&Json> {
        match self {
            Json::Object(fields) => fields.get(name),
            _ => None,
        }
    }

    /// The element of a list, from 0; `None`: it has not so many, or is no list.
    ///
    /// ```
    /// use sandstorm_api::json::Json;
    /// let list = Json::parse(br#"["a", "b"]"#).unwrap();
    /// assert_eq!(list.element(1).and_then(Json::as_str), Some("b"));
    /// ```
    pub fn element(&self, index: usize) -> Option<&Json> {
        match self {
            Json::List(values) => values.get(index),
            _ => None,
        }
    }

    /// Returns whether it is `null`.
    ///
    /// ```
    /// use sandstorm_api::json::Json;
    /// assert!(Json::parse(b"null").unwrap().is_null());
    /// ```
    pub fn is_null(&self) -> bool {
        *self == Json::Null
    }

    /// The text, if it is one.
    ///
    /// ```
    /// use sandstorm_api::json::Json;
    /// assert_eq!(Json::parse(br#""a\u00e9""#).unwrap().as_str(), Some("aé"));
    /// ```
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Json::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The values of a list, if it is one.
    ///
    /// ```
    /// use sandstorm_api::json::Json;
    /// assert_eq!(Json::parse(b"[1, 2]").unwrap().as_list().map(<[_]>::len), Some(2));
    /// ```
    pub fn as_list(&self) -> Option<&[Json]> {
        match self {
            Json::List(values) => Some(values),
            _ => None,
        }
    }

    /// The fields of an object, if it is one.
    ///
    /// ```
    /// use sandstorm_api::json::Json;
    /// assert!(Json::parse(br#"{"a": 1}"#).unwrap().as_object().unwrap().contains_key("a"));
    /// ```
    pub fn as_object(&self) -> Option<&BTreeMap<String, Json>> {
        match self {
            Json::Object(fields) => Some(fields),
            _ => None,
        }
    }
}

impl From<bool> for Json {
    fn from(value: bool) -> Json {
        Json::Bool(value)
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Json {
        Json::Text(text.into())
    }
}

impl From<String> for Json {
    fn from(text: String) -> Json {
        Json::Text(text)
    }
}

impl<T: Into<Json>> From<Vec<T>> for Json {
    fn from(values: Vec<T>) -> Json {
        Json::list(values)
    }
}

impl<T: Into<Json>> From<Option<T>> for Json {
    fn from(value: Option<T>) -> Json {
        value.map_or(Json::Null, Into::into)
    }
}

impl From<f64> for Json {
    /// A number that JSON does not have (infinite, or none at all) becomes `null`.
    fn from(number: f64) -> Json {
        if number.is_finite() { Json::Number(JsonNumber::Float(number)) } else { Json::Null }
    }
}

macro_rules! from_whole_numbers {
    ($($kind:ty)*) => {
        $(impl From<$kind> for Json {
            fn from(number: $kind) -> Json {
                Json::Number(match u64::try_from(number) {
                    Ok(positive) => JsonNumber::Positive(positive),
                    Err(_) => JsonNumber::Negative(number as i64),
                })
            }
        })*
    };
}

from_whole_numbers!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize);
