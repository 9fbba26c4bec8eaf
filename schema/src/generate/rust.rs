//! Rust, over the Rust client.

use std::collections::HashMap;

use super::name_scope::NameScope;
use super::{client_name, comment, head, is_plain};
use crate::{EnumVariant, ExtensionSchema, NamedType, StructType, TypeBody, ValueType, VariantPayload};

/// Names that the file uses, and that a type of the extension would take from it.
const USED: [&str; 12] = [
    "Client",
    "Deserialize",
    "Err",
    "None",
    "Ok",
    "Result",
    "Serialize",
    "Some",
    "TypedCallError",
    "sandstorm_client",
    "serde",
    "str",
];

pub(super) fn write(schema: &ExtensionSchema, extension: &str) -> String {
    let class = client_name(schema, extension);
    let mut out = format!("//! {}\n\nuse sandstorm_client::{{Client, TypedCallError}};\n", head(extension));
    if !schema.types.is_empty() {
        out.push_str("use serde::{Deserialize, Serialize};\n");
    }
    let mut scope = NameScope::with(USED);
    scope.claim(class.clone());
    let names = TypeNames(scope.claim_types(&schema.types, str::to_owned));
    for one in &schema.types {
        names.named(&mut out, one);
    }
    out.push_str(&format!(
        "\n/// The functions of the extension.\n#[derive(Clone, Debug)]\npub struct {class} {{\n    client: Client,\n    version: u64,\n}}\n\n\
         impl {class} {{\n    /// Calls by this client, which was opened by name.\n    \
         pub fn new(client: Client) -> {class} {{\n        {class} {{ client, version: 0 }}\n    }}\n\n    \
         /// The same for a kept version of the extension. Its types have to be those of this file.\n    \
         pub fn at_version(&self, version: u64) -> {class} {{\n        \
         {class} {{ client: self.client.clone(), version }}\n    }}\n"
    ));
    let mut methods = NameScope::with(["new", "at_version"]);
    for function in &schema.functions {
        let method = ident(&methods.claim(function.name.clone()));
        let (takes, gives) = match &function.args {
            ValueType::Unit => (String::new(), "&()"),
            args => (format!(", args: &{}", names.borrowed(args)), "args"),
        };
        out.push('\n');
        comment(&mut out, "    ", "///", &function.description);
        out.push_str(&format!(
            "    pub async fn {method}(&self{takes}) -> Result<{}, TypedCallError> {{\n        self.client.call_version(\"{extension}.{}\", self.version, {gives}).await\n    }}\n",
            names.text(&function.reply),
            function.name
        ));
    }
    out.push_str("}\n");
    out
}

/// What the file calls the types of the schema.
struct TypeNames(HashMap<String, String>);

impl TypeNames {
    fn name(&self, name: &str) -> String {
        ident(self.0.get(name).map_or(name, String::as_str))
    }

    fn named(&self, out: &mut String, NamedType { name, body, description }: &NamedType) {
        out.push('\n');
        comment(out, "", "///", description);
        match body {
            TypeBody::Struct(StructType { fields }) => {
                out.push_str("#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]\n");
                out.push_str(&format!("pub struct {} {{\n", self.name(name)));
                for field in fields {
                    comment(out, "    ", "///", &field.description);
                    out.push_str(&format!("    pub {}: {},\n", ident(&field.name), self.text(&field.value)));
                }
            }
            TypeBody::Enum(body) => {
                let plain =
                    if is_plain(body) { "Clone, Copy, Debug, PartialEq, Eq" } else { "Clone, Debug, PartialEq" };
                out.push_str(&format!("#[derive({plain}, Serialize, Deserialize)]\npub enum {} {{\n", self.name(name)));
                body.variants.iter().for_each(|one| self.variant(out, one));
            }
        }
        out.push_str("}\n");
    }

    fn variant(&self, out: &mut String, EnumVariant { name, payload, description }: &EnumVariant) {
        comment(out, "    ", "///", description);
        match payload {
            VariantPayload::Unit => out.push_str(&format!("    {},\n", ident(name))),
            VariantPayload::Tuple(values) => {
                let values: Vec<String> = values.iter().map(|value| self.text(value)).collect();
                out.push_str(&format!("    {}({}),\n", ident(name), values.join(", ")));
            }
            VariantPayload::Struct(fields) => {
                out.push_str(&format!("    {} {{\n", ident(name)));
                for field in fields {
                    comment(out, "        ", "///", &field.description);
                    out.push_str(&format!("        {}: {},\n", ident(&field.name), self.text(&field.value)));
                }
                out.push_str("    },\n");
            }
        }
    }

    /// What a reference to arguments is to.
    fn borrowed(&self, value: &ValueType) -> String {
        match value {
            ValueType::Text => "str".to_owned(),
            ValueType::List(inner) => format!("[{}]", self.text(inner)),
            value => self.text(value),
        }
    }

    fn text(&self, value: &ValueType) -> String {
        match value {
            ValueType::Bytes => "sandstorm_client::Blob".to_owned(),
            ValueType::Optional(inner) => format!("Option<{}>", self.text(inner)),
            ValueType::List(inner) => format!("Vec<{}>", self.text(inner)),
            ValueType::Named(name) => self.name(name),
            plain => plain.to_string(),
        }
    }
}

/// A name, marked as one if it is a word of the language.
fn ident(name: &str) -> String {
    const WORDS: &[&str] = &[
        "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "do", "dyn", "else", "enum",
        "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop", "macro", "match", "mod",
        "move", "mut", "override", "priv", "pub", "ref", "return", "static", "struct", "trait", "true", "try", "type",
        "typeof", "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
    ];
    if WORDS.contains(&name) { format!("r#{name}") } else { name.to_owned() }
}
