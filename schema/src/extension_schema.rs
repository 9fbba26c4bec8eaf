//! The functions of an extension, and the named types in them.

use std::collections::BTreeSet;

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::enum_variant::{EnumVariant, VariantPayload};
use crate::limits::{FIELDS, FUNCTIONS, NAMED_TYPES, NESTING, SCHEMA_BYTES, VARIANTS};
use crate::struct_field::StructField;
use crate::value_type::ValueType;

/// The types of an extension's functions. It is made by [`ExtensionSchema::checked`] or [`ExtensionSchema::parse`], so
/// every name in it is there, and no type contains itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtensionSchema {
    /// What can be called.
    pub functions: Vec<FunctionSchema>,
    /// The structs and enums that the functions name.
    pub types: Vec<NamedType>,
}

/// One function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionSchema {
    /// Its name.
    pub name: String,
    /// What it takes; `()`: nothing.
    pub args: ValueType,
    /// What it gives.
    pub reply: ValueType,
    /// First on the wire: digest of name, arguments and reply, so that a caller of another schema is refused.
    #[serde(default)]
    pub fingerprint: u32,
    /// Its description, if the source has one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
}

/// A struct or an enum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedType {
    /// Its name.
    pub name: String,
    /// What is in it.
    #[serde(flatten)]
    pub body: TypeBody,
    /// Its description, if the source has one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
}

/// What is in a named type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TypeBody {
    /// Fields with names.
    Struct(StructType),
    /// One of several variants.
    Enum(EnumType),
}

/// The fields of a struct.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StructType {
    /// In their order on the wire.
    pub fields: Vec<StructField>,
}

/// The variants of an enum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnumType {
    /// On the wire a variant is its number here, then what is in it.
    pub variants: Vec<EnumVariant>,
}

/// The reason why something is no schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSchema(pub String);

fn invalid<T>(text: String) -> Result<T, InvalidSchema> {
    Err(InvalidSchema(text))
}

impl ExtensionSchema {
    /// A schema of these functions and types, with its fingerprints.
    ///
    /// # Errors
    /// [`InvalidSchema`]: a name that is not there or there twice, a type that contains itself, more than a limit.
    pub fn checked(functions: Vec<FunctionSchema>, types: Vec<NamedType>) -> Result<ExtensionSchema, InvalidSchema> {
        let mut schema = ExtensionSchema { functions, types };
        schema.check()?;
        let fingerprints: Vec<u32> = schema.functions.iter().map(|function| schema.fingerprint_of(function)).collect();
        for (function, fingerprint) in schema.functions.iter_mut().zip(fingerprints) {
            function.fingerprint = fingerprint;
        }
        let distinct: BTreeSet<u32> = schema.functions.iter().map(|function| function.fingerprint).collect();
        if distinct.len() < schema.functions.len() {
            return invalid("two functions have the same fingerprint: rename one".to_owned());
        }
        if schema.to_json().len() > SCHEMA_BYTES {
            return invalid(format!("the types and their descriptions are over {} KiB", SCHEMA_BYTES >> 10));
        }
        Ok(schema)
    }

    /// Reads a schema from its JSON.
    ///
    /// # Errors
    /// As for [`ExtensionSchema::checked`], and for what is no such JSON.
    pub fn parse(json: &str) -> Result<ExtensionSchema, InvalidSchema> {
        if json.len() > SCHEMA_BYTES {
            return invalid(format!("a schema has at most {} KiB", SCHEMA_BYTES >> 10));
        }
        let read: ExtensionSchema = serde_json::from_str(json).map_err(|error| InvalidSchema(error.to_string()))?;
        ExtensionSchema::checked(read.functions, read.types)
    }

    /// Its JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The struct or enum of that name.
    pub fn named(&self, name: &str) -> Option<&TypeBody> {
        self.types.iter().find(|one| one.name == name).map(|one| &one.body)
    }

    /// The function of that name; without a name the only one.
    pub fn function(&self, name: Option<&str>) -> Option<&FunctionSchema> {
        match name {
            Some(name) => self.functions.iter().find(|function| function.name == name),
            None => self.functions.first().filter(|_| self.functions.len() == 1),
        }
    }

    fn check(&self) -> Result<(), InvalidSchema> {
        for (what, count, most) in
            [("functions", self.functions.len(), FUNCTIONS), ("types with names", self.types.len(), NAMED_TYPES)]
        {
            if count > most {
                return invalid(format!("{count} {what}: at most {most} are allowed"));
            }
        }
        check_names("function", self.functions.iter().map(|function| function.name.as_str()))?;
        check_names("type", self.types.iter().map(|one| one.name.as_str()))?;
        for one in &self.types {
            let name = &one.name;
            match &one.body {
                TypeBody::Struct(StructType { fields }) => {
                    check_names(&format!("field of {name}"), fields.iter().map(|field| field.name.as_str()))?;
                    if fields.is_empty() || fields.len() > FIELDS {
                        return invalid(format!("{name} has {} fields: 1 to {FIELDS} are allowed", fields.len()));
                    }
                }
                TypeBody::Enum(EnumType { variants }) => {
                    check_names(&format!("variant of {name}"), variants.iter().map(|variant| variant.name.as_str()))?;
                    if variants.is_empty() || variants.len() > VARIANTS {
                        return invalid(format!("{name} has {} variants: 1 to {VARIANTS} are allowed", variants.len()));
                    }
                    variants.iter().try_for_each(|variant| check_payload(name, variant))?;
                }
            }
        }
        for function in &self.functions {
            for value in [&function.args, &function.reply] {
                if *value != ValueType::Unit {
                    self.check_value(value, &mut Vec::new())?;
                }
            }
        }
        Ok(())
    }

    /// Checks a type within those named `within`.
    fn check_value<'s>(&'s self, value: &'s ValueType, within: &mut Vec<&'s str>) -> Result<(), InvalidSchema> {
        if within.len() > NESTING {
            return invalid(format!("types are nested deeper than {NESTING}"));
        }
        match value {
            ValueType::Unit => invalid("() stands for no arguments or no reply, and nowhere else".to_owned()),
            ValueType::Optional(inner) if matches!(**inner, ValueType::Optional(_)) => {
                invalid("an Option of an Option cannot be told from one without a value".to_owned())
            }
            ValueType::Optional(inner) | ValueType::List(inner) => {
                within.push("");
                self.check_value(inner, within)?;
                within.pop();
                Ok(())
            }
            ValueType::Named(name) => {
                if within.contains(&name.as_str()) {
                    return invalid(format!("{name} contains itself"));
                }
                let Some(body) = self.named(name) else { return invalid(format!("there is no type {name}")) };
                within.push(name);
                body.parts().try_for_each(|part| self.check_value(part, within))?;
                within.pop();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn fingerprint_of(&self, function: &FunctionSchema) -> u32 {
        fingerprint(&self.types_text(function))
    }

    /// The text of a function's types, of which [`fingerprint`] makes its fingerprint.
    pub fn types_text(&self, function: &FunctionSchema) -> String {
        let mut text = format!("sandstorm call 1\n{}({}) {}\n", function.name, function.args, function.reply);
        let mut described = BTreeSet::new();
        for value in [&function.args, &function.reply] {
            self.describe(value, &mut described, &mut text);
        }
        text
    }

    /// Writes down the named types of a value, each once.
    fn describe<'s>(&'s self, value: &'s ValueType, described: &mut BTreeSet<&'s str>, text: &mut String) {
        match value {
            ValueType::Optional(inner) | ValueType::List(inner) => self.describe(inner, described, text),
            ValueType::Named(name) if described.insert(name) => match self.named(name) {
                Some(TypeBody::Struct(StructType { fields })) => {
                    let list: Vec<String> =
                        fields.iter().map(|field| format!("{}: {}", field.name, field.value)).collect();
                    text.push_str(&format!("struct {name} {{ {} }}\n", list.join(", ")));
                    for field in fields {
                        self.describe(&field.value, described, text);
                    }
                }
                Some(body @ TypeBody::Enum(EnumType { variants })) => {
                    let list: Vec<String> = variants.iter().map(EnumVariant::to_string).collect();
                    text.push_str(&format!("enum {name} {{ {} }}\n", list.join(", ")));
                    body.parts().for_each(|part| self.describe(part, described, text));
                }
                None => {}
            },
            _ => {}
        }
    }
}

/// The fingerprint of a function whose types have this text.
pub fn fingerprint(types_text: &str) -> u32 {
    let digest = digest(&SHA256, types_text.as_bytes());
    digest.as_ref().first_chunk::<4>().map_or(0, |first| u32::from_le_bytes(*first))
}

impl TypeBody {
    /// The types of its fields, of all variants of an enum.
    pub fn parts(&self) -> impl Iterator<Item = &ValueType> {
        let (fields, variants): (&[StructField], &[EnumVariant]) = match self {
            TypeBody::Struct(body) => (&body.fields, &[]),
            TypeBody::Enum(body) => (&[], &body.variants),
        };
        fields.iter().map(|field| &field.value).chain(variants.iter().flat_map(|variant| variant.payload.parts()))
    }
}

fn check_payload(name: &str, variant: &EnumVariant) -> Result<(), InvalidSchema> {
    let place = format!("{name}::{}", variant.name);
    let parts = match &variant.payload {
        VariantPayload::Unit => return Ok(()),
        VariantPayload::Tuple(values) => values.len(),
        VariantPayload::Struct(fields) => {
            check_names(&format!("field of {place}"), fields.iter().map(|field| field.name.as_str()))?;
            fields.len()
        }
    };
    if parts == 0 || parts > FIELDS {
        return invalid(format!(
            "{place} has {parts} fields: 1 to {FIELDS} are allowed, or neither brackets nor fields"
        ));
    }
    Ok(())
}

/// Words that Rust takes for a name in no spelling.
const NO_NAMES: [&str; 4] = ["Self", "crate", "self", "super"];

/// Checks that names are names, each once.
fn check_names<'s>(what: &str, names: impl Iterator<Item = &'s str>) -> Result<(), InvalidSchema> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !ValueType::is_name(name) || NO_NAMES.contains(&name) {
            let why = "names of types (bytes, bool, u8 to u64, i8 to i64, f32, f64, String, Vec, Option) and crate, self, \
                       super, Self are none";
            return invalid(format!("{name:?} is no name of a {what} that clients in all languages can have: {why}"));
        }
        if !seen.insert(name) {
            return invalid(format!("there are two of the name {name}: each {what} has its own"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    fn function(name: &str, args: &str, reply: &str) -> FunctionSchema {
        let (args, reply) = (args.parse().unwrap(), reply.parse().unwrap());
        FunctionSchema { name: name.into(), args, reply, fingerprint: 0, description: String::new() }
    }

    fn structure(name: &str, fields: &[(&str, &str)]) -> NamedType {
        let field = |(name, value): &(&str, &str)| StructField {
            name: (*name).into(),
            value: value.parse().unwrap(),
            description: String::new(),
        };
        let body = TypeBody::Struct(StructType { fields: fields.iter().map(field).collect() });
        NamedType { name: name.into(), body, description: String::new() }
    }

    #[test]
    fn a_schema_has_all_its_names_and_no_type_in_itself() {
        let wrong = |functions: &[FunctionSchema], types: &[NamedType]| {
            ExtensionSchema::checked(functions.to_vec(), types.to_vec()).unwrap_err().0
        };
        let call = function("f", "A", "()");
        assert!(wrong(from_ref(&call), &[]).contains("no type A"));
        assert!(
            wrong(from_ref(&call), &[structure("A", &[("x", "Vec<B>")]), structure("B", &[("y", "Option<A>")])])
                .contains("A contains itself")
        );
        assert!(wrong(from_ref(&call), &[structure("A", &[])]).contains("0 fields"));
        assert!(wrong(from_ref(&call), &[structure("A", &[("x", "u8"), ("x", "u8")])]).contains("two of the name x"));
        assert!(wrong(&[function("crate", "()", "()")], &[]).contains("\"crate\" is no name of a function"));
        assert!(wrong(&[call.clone(), call.clone()], &[structure("A", &[("x", "u8")])]).contains("two of the name f"));
        assert!(wrong(&[function("f", "Vec<()>", "()")], &[]).contains("nowhere else"));
        let choice = |payload: VariantPayload| {
            let variants =
                vec![EnumVariant::unit("None"), EnumVariant { name: "Some".into(), payload, ..EnumVariant::unit("") }];
            let body = TypeBody::Enum(EnumType { variants });
            NamedType { name: "A".into(), body, description: String::new() }
        };
        let tuple =
            |values: &[&str]| VariantPayload::Tuple(values.iter().map(|value| value.parse().unwrap()).collect());
        assert!(wrong(from_ref(&call), &[choice(tuple(&["Vec<A>"]))]).contains("A contains itself"));
        assert!(wrong(from_ref(&call), &[choice(tuple(&["u8", "B"]))]).contains("no type B"));
        assert!(wrong(from_ref(&call), &[choice(tuple(&[]))]).contains("A::Some has 0 fields"));
        assert!(wrong(from_ref(&call), &[choice(tuple(&["u8"; 129]))]).contains("A::Some has 129 fields"));
        assert!(wrong(from_ref(&call), &[choice(tuple(&["()"]))]).contains("nowhere else"));
        let TypeBody::Struct(twice) = structure("", &[("x", "u8"), ("x", "u8")]).body else { panic!("a struct") };
        let twice = choice(VariantPayload::Struct(twice.fields));
        assert!(wrong(from_ref(&call), &[twice]).contains("two of the name x"));
        let deep: Vec<NamedType> = (0..30)
            .map(|at| {
                structure(
                    &format!("T{at}"),
                    &[("x", if at == 29 { "u8".into() } else { format!("T{}", at + 1) }.as_str())],
                )
            })
            .collect();
        assert!(wrong(&[function("f", "T0", "()")], &deep).contains("nested deeper"));
    }

    #[test]
    fn a_fingerprint_is_that_of_name_and_types_and_stays_the_same() {
        let made = |field: &str, value: &str| {
            ExtensionSchema::checked(
                vec![function("transfer", "Transfer", "u64"), function("total", "()", "u64")],
                vec![structure("Transfer", &[("from", "u64"), (field, value)])],
            )
            .unwrap()
        };
        let schema = made("to", "u64");
        // Clients that were generated have these numbers in them.
        assert_eq!(
            schema.functions.iter().map(|one| one.fingerprint).collect::<Vec<_>>(),
            [FINGERPRINTS[0], FINGERPRINTS[1]]
        );
        let others = [made("to", "u32"), made("dest", "u64")];
        assert!(others.iter().all(|other| other.functions[0].fingerprint != schema.functions[0].fingerprint));
        assert!(others.iter().all(|other| other.functions[1].fingerprint == schema.functions[1].fingerprint));
        assert_eq!(ExtensionSchema::parse(&schema.to_json()), Ok(schema.clone()));
        assert_eq!(schema.function(Some("total")).map(|one| one.name.as_str()), Some("total"));
        assert_eq!(schema.function(None), None, "it has two");
    }

    #[test]
    fn what_is_in_a_variant_is_part_of_the_fingerprint_and_of_the_json() {
        let made = |variants: &str| {
            let types = format!(r#"[{{"name": "E", "enum": {{"variants": {variants}}}}}]"#);
            let json = format!(r#"{{"functions": [{{"name": "f", "args": "E", "reply": "()"}}], "types": {types}}}"#);
            let schema = ExtensionSchema::parse(&json).unwrap_or_else(|error| panic!("{error}: {json}"));
            assert_eq!(ExtensionSchema::parse(&schema.to_json()), Ok(schema.clone()));
            assert!(schema.to_json().contains(&variants.replace(' ', "")), "{}", schema.to_json());
            schema.functions[0].fingerprint
        };
        let mut all = vec![
            made(r#"["A", "B"]"#),
            made(r#"["A", {"name": "B", "values": ["u8"]}]"#),
            made(r#"["A", {"name": "B", "values": ["u8", "u8"]}]"#),
            made(r#"["A", {"name": "B", "fields": [{"name": "x", "type": "u8"}]}]"#),
            made(r#"["A", {"name": "B", "fields": [{"name": "y", "type": "u8"}]}]"#),
        ];
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 5);
    }

    const FINGERPRINTS: [u32; 2] = [118_889_470, 3_726_392_369];
}
