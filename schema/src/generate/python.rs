//! Python, over the Python client.

use super::{class_name, comment, head};
use crate::{EnumType, ExtensionSchema, FunctionSchema, NamedType, StructType, TypeBody, ValueType};

pub(super) fn write(schema: &ExtensionSchema, extension: &str) -> String {
    let class = class_name(extension);
    let mut out = format!("\"\"\"{}\"\"\"\n\n", head(extension));
    out.push_str("from typing import Any, List, Literal, Optional, TypedDict, cast\n\nimport sandstorm\n");
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
        let text = function.description.replace('\\', "\\\\").replace('"', "'");
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
    match body {
        TypeBody::Struct(StructType { fields }) => {
            for field in fields {
                if let Some(part) = part_of(&field.value)
                    && let Some(part) = schema.types.iter().find(|one| one.name == part)
                {
                    named(out, schema, part, written);
                }
            }
            out.push('\n');
            comment(out, "", "#", description);
            // Fields may be words of the language, such as `from`.
            out.push_str(&format!("{} = TypedDict(\n    \"{name}\",\n    {{\n", ident(name)));
            for field in fields {
                comment(out, "        ", "#", &field.description);
                out.push_str(&format!("        \"{}\": {},\n", field.name, text(&field.value)));
            }
            out.push_str("    },\n)\n");
        }
        TypeBody::Enum(EnumType { variants }) => {
            out.push('\n');
            comment(out, "", "#", description);
            let variants: Vec<String> = variants.iter().map(|variant| format!("\"{variant}\"")).collect();
            out.push_str(&format!("{} = Literal[{}]\n", ident(name), variants.join(", ")));
        }
    }
}

/// The named type in a type.
fn part_of(value: &ValueType) -> Option<&str> {
    match value {
        ValueType::Optional(inner) | ValueType::List(inner) => part_of(inner),
        ValueType::Named(name) => Some(name),
        _ => None,
    }
}

fn ident(name: &str) -> String {
    const WORDS: &[&str] = &[
        "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del",
        "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "nonlocal",
        "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
    ];
    // Names that the file itself uses.
    const USED: &[&str] =
        &["Any", "List", "Literal", "Optional", "TypedDict", "cast", "sandstorm", "str", "int", "float", "bool"];
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
