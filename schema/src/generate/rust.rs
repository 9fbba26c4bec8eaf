//! Rust, over the Rust client.

use super::{client_name, comment, head, is_plain};
use crate::{EnumVariant, ExtensionSchema, NamedType, StructType, TypeBody, ValueType, VariantPayload};

pub(super) fn write(schema: &ExtensionSchema, extension: &str) -> String {
    let class = client_name(schema, extension);
    let mut out = format!("//! {}\n\nuse sandstorm_client::{{Client, TypedCallError}};\n", head(extension));
    if !schema.types.is_empty() {
        out.push_str("use serde::{Deserialize, Serialize};\n");
    }
    for one in &schema.types {
        named(&mut out, one);
    }
    out.push_str(&format!(
        "\n/// The functions of the extension.\n#[derive(Clone, Debug)]\npub struct {class} {{\n    client: Client,\n}}\n\n\
         impl {class} {{\n    /// Calls by this client, which was opened by name.\n    pub fn new(client: Client) -> {class} {{\n        {class} {{ client }}\n    }}\n"
    ));
    for function in &schema.functions {
        let (takes, gives) = match &function.args {
            ValueType::Unit => (String::new(), "&()"),
            args => (format!(", args: &{}", borrowed(args)), "args"),
        };
        out.push('\n');
        comment(&mut out, "    ", "///", &function.description);
        out.push_str(&format!(
            "    pub async fn {}(&self{takes}) -> Result<{}, TypedCallError> {{\n        self.client.call(\"{extension}.{}\", {gives}).await\n    }}\n",
            ident(&function.name),
            text(&function.reply),
            function.name
        ));
    }
    out.push_str("}\n");
    out
}

fn named(out: &mut String, NamedType { name, body, description }: &NamedType) {
    out.push('\n');
    comment(out, "", "///", description);
    match body {
        TypeBody::Struct(StructType { fields }) => {
            out.push_str("#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]\n");
            out.push_str(&format!("pub struct {} {{\n", ident(name)));
            for field in fields {
                comment(out, "    ", "///", &field.description);
                out.push_str(&format!("    pub {}: {},\n", ident(&field.name), text(&field.value)));
            }
        }
        TypeBody::Enum(body) => {
            let plain = if is_plain(body) { "Clone, Copy, Debug, PartialEq, Eq" } else { "Clone, Debug, PartialEq" };
            out.push_str(&format!("#[derive({plain}, Serialize, Deserialize)]\npub enum {} {{\n", ident(name)));
            body.variants.iter().for_each(|one| variant(out, one));
        }
    }
    out.push_str("}\n");
}

fn variant(out: &mut String, EnumVariant { name, payload, description }: &EnumVariant) {
    comment(out, "    ", "///", description);
    match payload {
        VariantPayload::Unit => out.push_str(&format!("    {},\n", ident(name))),
        VariantPayload::Tuple(values) => {
            let values: Vec<String> = values.iter().map(text).collect();
            out.push_str(&format!("    {}({}),\n", ident(name), values.join(", ")));
        }
        VariantPayload::Struct(fields) => {
            out.push_str(&format!("    {} {{\n", ident(name)));
            for field in fields {
                comment(out, "        ", "///", &field.description);
                out.push_str(&format!("        {}: {},\n", ident(&field.name), text(&field.value)));
            }
            out.push_str("    },\n");
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

/// What a reference to arguments is to.
fn borrowed(value: &ValueType) -> String {
    match value {
        ValueType::Text => "str".to_owned(),
        ValueType::List(inner) => format!("[{}]", text(inner)),
        value => text(value),
    }
}

fn text(value: &ValueType) -> String {
    match value {
        ValueType::Bytes => "sandstorm_client::Blob".to_owned(),
        ValueType::Optional(inner) => format!("Option<{}>", text(inner)),
        ValueType::List(inner) => format!("Vec<{}>", text(inner)),
        ValueType::Named(name) => ident(name),
        plain => plain.to_string(),
    }
}
