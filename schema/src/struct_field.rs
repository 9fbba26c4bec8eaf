//! A field of a struct, or of a variant of an enum.

use serde::{Deserialize, Serialize};

use crate::value_type::ValueType;

/// A field of a struct.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StructField {
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub value: ValueType,
    /// Its description, if the source has one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
}
