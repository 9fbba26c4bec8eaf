//! Python, over the Python client.

use super::{capital_parts, client_name, comment, comment_text, free_name, head, is_plain, part_of};
use crate::{
    EnumVariant, ExtensionSchema, FunctionSchema, NamedType, StructField, StructType, TypeBody, ValueType,
    VariantPayload,
};

pub(super) fn write(schema: &ExtensionSchema, extension: &str) -> String {
    let class = client_name(schema, extension);
    let mut out = format!("\"\"\"{}\"\"\"\n\n", head(extension));
    out.push_str(
        "from typing import Any, List, Literal, Optional, Tuple, TypedDict, Union, cast\n\nimport sandstorm\n",
    );
    // A type stands behind those that it is made of.
    let mut written = Vec::new();
    for one in &schema.types {
        named(&mut out, schema, one, &mut written);
    }
    for (prefix, client, keyword, wait) in [("", "Client", "def", ""), ("Async", "AsyncClient", "async def", "await ")]
    {
        out.push_str(&format!("\n\nclass {prefix}{class}:\n    \"\"\"The functions of the extension.\"\"\"\n\n"));
        out.push_str(&format!(
            "    def __init__(self, client: sandstorm.{client}) -> None:\n        self._client = client\n"
        ));
        for function in &schema.functions {
            method(&mut out, extension, function, keyword, wait);
        }
    }
    out
}

fn method(out: &mut String, extension: &str, function: &FunctionSchema, keyword: &str, wait: &str) {
    let (takes, gives) = match &function.args {
        ValueType::Unit => (String::new(), "None"),
        args => (format!(", args: {}", text(args)), "args"),
    };
    let (name, reply) = (&function.name, text(&function.reply));
    out.push_str(&format!(
        "\n    {keyword} {}(self{takes}, *, timeout: Optional[float] = None) -> {reply}:\n",
        ident(name)
    ));
    if !function.description.is_empty() {
        let text = comment_text(&function.description).replace('\\', "\\\\").replace('"', "'");
        out.push_str(&format!("        \"\"\"{text}\"\"\"\n"));
    }
    let call = format!("{wait}self._client.call(\"{extension}.{name}\", {gives}, timeout=timeout)");
    match function.reply {
        ValueType::Unit => out.push_str(&format!("        {call}\n")),
        _ => out.push_str(&format!("        reply: Any = {call}\n        return cast({reply}, reply)\n")),
    }
}

fn named(out: &mut String, schema: &ExtensionSchema, one: &NamedType, written: &mut Vec<String>) {
    let NamedType { name, body, description } = one;
    if written.contains(name) {
        return;
    }
    written.push(name.clone());
    for part in body.parts().filter_map(part_of) {
        if let Some(part) = schema.types.iter().find(|one| one.name == part) {
            named(out, schema, part, written);
        }
    }
    match body {
        TypeBody::Struct(StructType { fields }) => {
            out.push('\n');
            comment(out, "", "#", description);
            dictionary(out, &ident(name), fields);
        }
        TypeBody::Enum(body) => {
            let parts: Vec<String> = body
                .variants
                .iter()
                .map(|one| variant(out, (schema, &mut *written), &capital_parts(name), one))
                .collect();
            out.push('\n');
            comment(out, "", "#", description);
            let (class, parts) = match is_plain(body) {
                true => ("Literal", parts),
                false => ("Union", parts.iter().map(|part| literal(part)).collect()),
            };
            out.push_str(&format!("{} = {class}[{}]\n", ident(name), parts.join(", ")));
        }
    }
}

/// The type of a name in quotes, which stands for itself.
fn literal(part: &str) -> String {
    if part.starts_with('"') { format!("Literal[{part}]") } else { part.to_owned() }
}

/// A dictionary with these fields, which may be words of the language, such as `from`.
fn dictionary(out: &mut String, name: &str, fields: &[StructField]) {
    out.push_str(&format!("{name} = TypedDict(\n    \"{name}\",\n    {{\n"));
    for field in fields {
        comment(out, "        ", "#", &field.description);
        out.push_str(&format!("        \"{}\": {},\n", field.name, text(&field.value)));
    }
    out.push_str("    },\n)\n");
}

/// Writes what a variant needs, and returns its type: its name, or a dictionary of that name and what is in it.
fn variant(
    out: &mut String,
    (schema, taken): (&ExtensionSchema, &mut Vec<String>),
    of: &str,
    one: &EnumVariant,
) -> String {
    let EnumVariant { name, payload, description } = one;
    let value = match payload {
        VariantPayload::Unit => return format!("\"{name}\""),
        VariantPayload::Tuple(values) => match &values[..] {
            [value] => text(value),
            values => format!("Tuple[{}]", values.iter().map(text).collect::<Vec<_>>().join(", ")),
        },
        VariantPayload::Struct(fields) => {
            let inner = free_name(schema, taken, &format!("{of}_{name}_Fields"));
            out.push('\n');
            dictionary(out, &inner, fields);
            inner
        }
    };
    let whole = free_name(schema, taken, &format!("{of}_{name}"));
    out.push('\n');
    comment(out, "", "#", description);
    out.push_str(&format!("{whole} = TypedDict(\"{whole}\", {{\"{name}\": {value}}})\n"));
    whole
}

fn ident(name: &str) -> String {
    const WORDS: &[&str] = &[
        "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del",
        "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "nonlocal",
        "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
    ];
    // Names that the file itself uses.
    const USED: &[&str] = &[
        "Any",
        "List",
        "Literal",
        "Optional",
        "Tuple",
        "TypedDict",
        "Union",
        "cast",
        "sandstorm",
        "str",
        "int",
        "float",
        "bool",
    ];
    if WORDS.contains(&name) || USED.contains(&name) { format!("{name}_") } else { name.to_owned() }
}

fn text(value: &ValueType) -> String {
    match value {
        ValueType::Unit => "None".to_owned(),
        ValueType::Bool => "bool".to_owned(),
        ValueType::Unsigned(_) | ValueType::Signed(_) => "int".to_owned(),
        ValueType::Float(_) => "float".to_owned(),
        // Bytes in base64.
        ValueType::Text | ValueType::Bytes => "str".to_owned(),
        ValueType::Optional(inner) => format!("Optional[{}]", text(inner)),
        ValueType::List(inner) => format!("List[{}]", text(inner)),
        ValueType::Named(name) => ident(name),
    }
}
