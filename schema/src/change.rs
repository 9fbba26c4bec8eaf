//! Changes of tables, as the arguments of a typed function that a trigger calls: the types of the extension API's
//! `Change` and `ChangeOp`.

use crate::{
    EnumType, EnumVariant, ExtensionSchema, FunctionSchema, NamedType, StructField, StructType, TypeBody, ValueType,
};

/// The struct's name.
pub const CHANGE: &str = "Change";
/// The name of the enum in it.
pub const CHANGE_OP: &str = "ChangeOp";

/// What a function takes of a table's changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeArgument {
    /// One: `Change<'_>`.
    One,
    /// Any number: `Vec<Change<'_>>`.
    Several,
}

/// The struct and the enum in it, as schemas have them.
pub fn change_types() -> [NamedType; 2] {
    let field = |(name, value, description): (&str, ValueType, &str)| StructField {
        name: name.to_owned(),
        value,
        description: description.to_owned(),
    };
    let number = || ValueType::Unsigned(64);
    let fields = [
        ("op", ValueType::Named(CHANGE_OP.to_owned()), "What happened."),
        ("key", ValueType::Bytes, "The key; empty for `Clear`."),
        ("value", ValueType::Bytes, "The value of a put; else empty."),
        ("version", number(), "The version of the record, or of its deletion."),
        ("expires_at_ms", number(), "Milliseconds since 1970 from which on the record counts as absent; 0: never."),
        ("position", number(), "The position of the change in the log."),
    ];
    let variants = ["Put", "Delete", "Clear", "Expire"].map(EnumVariant::unit);
    [
        NamedType {
            name: CHANGE.to_owned(),
            body: TypeBody::Struct(StructType { fields: fields.map(field).into() }),
            description: "A change of a table, as a trigger gives it.".to_owned(),
        },
        NamedType {
            name: CHANGE_OP.to_owned(),
            body: TypeBody::Enum(EnumType { variants: variants.into() }),
            description: "What happened to a record, or to all of a table.".to_owned(),
        },
    ]
}

impl ExtensionSchema {
    /// What a function takes of a table's changes; `None`: it takes something else.
    pub fn change_argument(&self, function: &FunctionSchema) -> Option<ChangeArgument> {
        let is_change = |value: &ValueType| *value == ValueType::Named(CHANGE.to_owned());
        let argument = match &function.args {
            value if is_change(value) => ChangeArgument::One,
            ValueType::List(inner) if is_change(inner) => ChangeArgument::Several,
            _ => return None,
        };
        // A tenant's own type of that name may be another one.
        change_types()
            .iter()
            .all(|known| self.named(&known.name).is_some_and(|own| is_same(own, &known.body)))
            .then_some(argument)
    }
}

/// Whether two types have the same bytes and names.
fn is_same(one: &TypeBody, other: &TypeBody) -> bool {
    match (one, other) {
        (TypeBody::Struct(one), TypeBody::Struct(other)) => {
            let parts = |of: &StructType| -> Vec<(String, ValueType)> {
                of.fields.iter().map(|field| (field.name.clone(), field.value.clone())).collect()
            };
            parts(one) == parts(other)
        }
        (TypeBody::Enum(one), TypeBody::Enum(other)) => {
            let parts = |of: &EnumType| of.variants.iter().map(EnumVariant::to_string).collect::<Vec<_>>();
            parts(one) == parts(other)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_takes_changes_if_its_types_are_those_of_changes() {
        let function = |name: &str, args: &str| FunctionSchema {
            name: name.to_owned(),
            args: args.parse().unwrap(),
            reply: ValueType::Unit,
            fingerprint: 0,
            description: String::new(),
        };
        let functions = vec![function("one", "Change"), function("many", "Vec<Change>"), function("other", "ChangeOp")];
        let schema = ExtensionSchema::checked(functions.clone(), change_types().into()).expect("a schema");
        let found: Vec<_> = schema.functions.iter().map(|one| schema.change_argument(one)).collect();
        assert_eq!(found, [Some(ChangeArgument::One), Some(ChangeArgument::Several), None]);
        let read = ExtensionSchema::parse(&schema.to_json()).expect("its own JSON");
        assert_eq!(read.change_argument(&read.functions[0]), Some(ChangeArgument::One));
        let mut others = change_types();
        let TypeBody::Struct(body) = &mut others[0].body else { panic!("a struct") };
        body.fields.swap(1, 2);
        let schema = ExtensionSchema::checked(functions, others.into()).expect("a schema");
        assert_eq!(schema.change_argument(&schema.functions[0]), None);
    }
}
