//! Values of JSON as values of Rust.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::{Json, JsonError, JsonNumber};

/// A value that is read from JSON: see [`Json::read`], and the [module's example](super) for one of your own.
pub trait FromJson: Sized {
    /// Reads it.
    ///
    /// # Errors
    /// What is needed, and what is there.
    fn from_json(json: &Json) -> Result<Self, JsonError>;

    /// The value where there is none; `None`: one is needed.
    fn absent() -> Option<Self> {
        None
    }
}

impl Json {
    /// Reads the value at a path ([`Json::find`]) as a boolean, a number, a text, a [`Vec`] or [`Option`] of these, or
    /// anything else that is [`FromJson`]. `null` and a missing value are `None` of an [`Option`].
    ///
    /// ```
    /// use sandstorm_api::json::{Json, JsonError};
    ///
    /// fn sum(json: &Json) -> Result<u64, JsonError> {
    ///     let prices: Vec<u64> = json.read("prices")?;
    ///     let extra: Option<u64> = json.read("delivery.price")?;
    ///     Ok(prices.iter().sum::<u64>() + extra.unwrap_or(0))
    /// }
    ///
    /// assert_eq!(sum(&Json::parse(br#"{"prices": [1, 2]}"#).unwrap()), Ok(3));
    /// let error = sum(&Json::parse(br#"{"prices": {}}"#).unwrap()).unwrap_err();
    /// assert_eq!(error.to_string(), "JSON: prices: a list is needed, not an object");
    /// let error = sum(&Json::parse(b"{}").unwrap()).unwrap_err();
    /// assert_eq!(error.to_string(), "JSON: prices: there is no such field");
    /// ```
    ///
    /// # Errors
    /// It is missing, or no such value; the error names the path.
    pub fn read<T: FromJson>(&self, path: &str) -> Result<T, JsonError> {
        match self.find(path) {
            Some(found) => T::from_json(found),
            None => T::absent().ok_or_else(|| JsonError::new("there is no such field")),
        }
        .map_err(|error| error.within(path))
    }

    /// What it is, for errors.
    fn kind(&self) -> &'static str {
        match self {
            Json::Null => "null",
            Json::Bool(_) => "a boolean",
            Json::Number(JsonNumber::Float(_)) => "a number with a fraction",
            Json::Number(_) => "another number",
            Json::Text(_) => "a text",
            Json::List(_) => "a list",
            Json::Object(_) => "an object",
        }
    }

    fn is_not(&self, needed: &str) -> JsonError {
        JsonError::new(format!("{needed} is needed, not {}", self.kind()))
    }
}

impl FromJson for Json {
    fn from_json(json: &Json) -> Result<Json, JsonError> {
        Ok(json.clone())
    }
}

impl FromJson for bool {
    fn from_json(json: &Json) -> Result<bool, JsonError> {
        match json {
            Json::Bool(value) => Ok(*value),
            _ => Err(json.is_not("a boolean")),
        }
    }
}

impl FromJson for String {
    fn from_json(json: &Json) -> Result<String, JsonError> {
        json.as_str().map(String::from).ok_or_else(|| json.is_not("a text"))
    }
}

impl FromJson for f64 {
    fn from_json(json: &Json) -> Result<f64, JsonError> {
        match json {
            Json::Number(JsonNumber::Negative(number)) => Ok(*number as f64),
            Json::Number(JsonNumber::Positive(number)) => Ok(*number as f64),
            Json::Number(JsonNumber::Float(number)) => Ok(*number),
            _ => Err(json.is_not("a number")),
        }
    }
}

impl<T: FromJson> FromJson for Option<T> {
    fn from_json(json: &Json) -> Result<Option<T>, JsonError> {
        if json.is_null() { Ok(None) } else { T::from_json(json).map(Some) }
    }

    fn absent() -> Option<Option<T>> {
        Some(None)
    }
}

impl<T: FromJson> FromJson for Vec<T> {
    fn from_json(json: &Json) -> Result<Vec<T>, JsonError> {
        let values = json.as_list().ok_or_else(|| json.is_not("a list"))?;
        let mut read = Vec::with_capacity(values.len());
        for (index, value) in values.iter().enumerate() {
            read.push(T::from_json(value).map_err(|error| error.within(&format!("[{index}]")))?);
        }
        Ok(read)
    }
}

macro_rules! whole_numbers {
    ($($kind:ty)*) => {
        $(impl FromJson for $kind {
            fn from_json(json: &Json) -> Result<$kind, JsonError> {
                let number = match json {
                    Json::Number(JsonNumber::Negative(number)) => <$kind>::try_from(*number).ok(),
                    Json::Number(JsonNumber::Positive(number)) => <$kind>::try_from(*number).ok(),
                    _ => None,
                };
                number.ok_or_else(|| {
                    let (least, most) = (<$kind>::MIN, <$kind>::MAX);
                    json.is_not(&format!("a number without fraction from {least} to {most}"))
                })
            }
        })*
    };
}

whole_numbers!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize);
