//! A variant of an enum, and what is in it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::struct_field::StructField;
use crate::value_type::ValueType;

/// A variant of an enum. As JSON it is its name alone where nothing is in it, as schemas had it before variants could
/// have anything in them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "VariantJson", into = "VariantJson")]
pub struct EnumVariant {
    /// Its name.
    pub name: String,
    /// What is in it.
    pub payload: VariantPayload,
    /// Its description, if the source has one; of one with a payload alone.
    pub description: String,
}

/// What is in a variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VariantPayload {
    /// Nothing.
    Unit,
    /// Values without names, in their order on the wire.
    Tuple(Vec<ValueType>),
    /// Fields, in their order on the wire.
    Struct(Vec<StructField>),
}

impl EnumVariant {
    /// A variant with nothing in it.
    pub fn unit(name: &str) -> EnumVariant {
        EnumVariant { name: name.to_owned(), payload: VariantPayload::Unit, description: String::new() }
    }
}

impl VariantPayload {
    /// The types in it.
    pub fn parts(&self) -> impl Iterator<Item = &ValueType> {
        let (values, fields): (&[ValueType], &[StructField]) = match self {
            VariantPayload::Unit => (&[], &[]),
            VariantPayload::Tuple(values) => (values, &[]),
            VariantPayload::Struct(fields) => (&[], fields),
        };
        values.iter().chain(fields.iter().map(|field| &field.value))
    }
}

/// As in Rust: `Circle(f64)`, `Box { width: u32, height: u32 }`.
impl fmt::Display for EnumVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match &self.payload {
            VariantPayload::Unit => Ok(()),
            VariantPayload::Tuple(values) => {
                let list: Vec<String> = values.iter().map(ValueType::to_string).collect();
                write!(f, "({})", list.join(", "))
            }
            VariantPayload::Struct(fields) => {
                let list: Vec<String> = fields.iter().map(|field| format!("{}: {}", field.name, field.value)).collect();
                write!(f, " {{ {} }}", list.join(", "))
            }
        }
    }
}

/// A variant as it stands in a schema's JSON.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum VariantJson {
    Unit(String),
    Tuple {
        name: String,
        values: Vec<ValueType>,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        description: String,
    },
    Struct {
        name: String,
        fields: Vec<StructField>,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        description: String,
    },
}

impl From<VariantJson> for EnumVariant {
    fn from(json: VariantJson) -> EnumVariant {
        match json {
            VariantJson::Unit(name) => EnumVariant::unit(&name),
            VariantJson::Tuple { name, values, description } => {
                EnumVariant { name, payload: VariantPayload::Tuple(values), description }
            }
            VariantJson::Struct { name, fields, description } => {
                EnumVariant { name, payload: VariantPayload::Struct(fields), description }
            }
        }
    }
}

impl From<EnumVariant> for VariantJson {
    fn from(EnumVariant { name, payload, description }: EnumVariant) -> VariantJson {
        match payload {
            VariantPayload::Unit => VariantJson::Unit(name),
            VariantPayload::Tuple(values) => VariantJson::Tuple { name, values, description },
            VariantPayload::Struct(fields) => VariantJson::Struct { name, fields, description },
        }
    }
}
