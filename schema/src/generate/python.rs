//! Python, over the Python client.

use std::collections::HashMap;

use super::name_scope::{NameScope, without_leading_underscores};
use super::{capital_parts, client_name, comment, comment_text, head, is_plain, part_of};
use crate::{
    EnumVariant, ExtensionSchema, FunctionSchema, NamedType, StructField, StructType, TypeBody, ValueType,
    VariantPayload,
};

/// Words of the language, and the names of its types.
const WORDS: [&str; 39] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "bool", "break", "class", "continue", "def",
    "del", "elif", "else", "except", "finally", "float", "for", "from", "global", "if", "import", "in", "int", "is",
    "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "str", "try", "while", "with", "yield",
];
/// Names that the file itself uses, of which a type could be one.
const USED: [&str; 13] = [
    "Any",
    "List",
    "Literal",
    "Optional",
    "Tuple",
    "TypedDict",
    "Union",
    "args",
    "cast",
    "reply",
    "sandstorm",
    "self",
    "timeout",
];

/// A client under construction.
struct PythonWriter<'s> {
    schema: &'s ExtensionSchema,
    /// What the file calls the types of the schema.
    types: HashMap<String, String>,
    /// The names of the file.
    scope: NameScope,
    /// Types that are written.
    written: Vec<&'s str>,
    out: String,
}

pub(super) fn write(schema: &ExtensionSchema, extension: &str) -> String {
    let class = client_name(schema, extension);
    let mut scope = NameScope::with(WORDS.iter().chain(&USED).copied());
    let classes = [format!("Async{class}"), class].map(|class| scope.claim(class));
    let types = scope.claim_types(&schema.types, without_leading_underscores);
    let mut out = format!("\"\"\"{}\"\"\"\n\n", head(extension));
    out.push_str(
        "from typing import Any, List, Literal, Optional, Tuple, TypedDict, Union, cast\n\nimport sandstorm\n",
    );
    let mut writer = PythonWriter { schema, types, scope, written: Vec::new(), out };
    // A type stands behind those that it is made of.
    schema.types.iter().for_each(|one| writer.named(one));
    let [of_asyncio, plain] = classes;
    writer.class(extension, &plain, "Client", ("def", ""));
    writer.class(extension, &of_asyncio, "AsyncClient", ("async def", "await "));
    writer.out
}

impl<'s> PythonWriter<'s> {
    fn class(&mut self, extension: &str, class: &str, client: &str, words: (&str, &str)) {
        self.out.push_str(&format!(
            "\n\nclass {class}:\n    \"\"\"The functions of the extension.\"\"\"\n\n    \
             def __init__(self, client: sandstorm.{client}, *, version: int = 0) -> None:\n        \
             \"\"\"Calls by this client; with a version that one, which is kept and has the types of this file.\
             \"\"\"\n        \
             self._client = client\n        self._version = version\n"
        ));
        // Within the class a function would stand in front of a type of that name.
        let mut methods = NameScope::with(WORDS.iter().chain(&USED).copied());
        self.types.values().for_each(|name| _ = methods.claim(name.clone()));
        for function in &self.schema.functions {
            let method = methods.claim(without_leading_underscores(&function.name));
            self.method(extension, function, &method, words);
        }
    }

    fn method(&mut self, extension: &str, function: &FunctionSchema, method: &str, (keyword, wait): (&str, &str)) {
        let (takes, gives) = match &function.args {
            ValueType::Unit => (String::new(), "None"),
            args => (format!(", args: {}", self.text(args)), "args"),
        };
        let (name, reply) = (&function.name, self.text(&function.reply));
        self.out.push_str(&format!(
            "\n    {keyword} {method}(self{takes}, *, timeout: Optional[float] = None) -> {reply}:\n"
        ));
        if !function.description.is_empty() {
            let text = comment_text(&function.description).replace('\\', "\\\\").replace('"', "'");
            self.out.push_str(&format!("        \"\"\"{text}\"\"\"\n"));
        }
        let options = "version=self._version, timeout=timeout";
        let call = format!("{wait}self._client.call(\"{extension}.{name}\", {gives}, {options})");
        self.out.push_str(&match function.reply {
            ValueType::Unit => format!("        {call}\n"),
            _ => format!("        reply: Any = {call}\n        return cast({reply}, reply)\n"),
        });
    }

    fn named(&mut self, NamedType { name, body, description }: &'s NamedType) {
        if self.written.contains(&name.as_str()) {
            return;
        }
        self.written.push(name);
        let schema = self.schema;
        for part in body.parts().filter_map(part_of) {
            if let Some(part) = schema.types.iter().find(|one| one.name == part) {
                self.named(part);
            }
        }
        let ident = self.type_name(name);
        match body {
            TypeBody::Struct(StructType { fields }) => {
                self.out.push('\n');
                comment(&mut self.out, "", "#", description);
                self.dictionary(&ident, fields);
            }
            TypeBody::Enum(body) => {
                let of = capital_parts(name);
                let parts: Vec<String> = body.variants.iter().map(|one| self.variant(&of, one)).collect();
                self.out.push('\n');
                comment(&mut self.out, "", "#", description);
                let (class, parts) = match is_plain(body) {
                    true => ("Literal", parts),
                    false => ("Union", parts.iter().map(|part| literal(part)).collect()),
                };
                self.out.push_str(&format!("{ident} = {class}[{}]\n", parts.join(", ")));
            }
        }
    }

    /// A dictionary, where what may be nothing need not be given. `NotRequired` would take Python 3.11; names that are
    /// words of the language cannot be fields of a class.
    fn dictionary(&mut self, name: &str, fields: &[StructField]) {
        let (optional, required): (Vec<&StructField>, Vec<&StructField>) =
            fields.iter().partition(|field| matches!(field.value, ValueType::Optional(_)));
        if optional.is_empty() || required.is_empty() {
            return self.fields(name, fields.iter(), required.is_empty() && !optional.is_empty());
        }
        let [of_required, of_optional] =
            ["Required", "Optional"].map(|part| self.scope.claim(format!("{name}_{part}")));
        self.fields(&of_required, required, false);
        self.out.push('\n');
        self.fields(&of_optional, optional, true);
        self.out.push_str(&format!("\n\nclass {name}({of_required}, {of_optional}):\n    pass\n\n"));
    }

    /// A dictionary with these fields, which may be words of the language, such as `from`.
    fn fields<'f>(&mut self, name: &str, fields: impl IntoIterator<Item = &'f StructField>, may_miss: bool) {
        self.out.push_str(&format!("{name} = TypedDict(\n    \"{name}\",\n    {{\n"));
        for field in fields {
            comment(&mut self.out, "        ", "#", &field.description);
            let text = self.text(&field.value);
            self.out.push_str(&format!("        \"{}\": {text},\n", field.name));
        }
        self.out.push_str(if may_miss { "    },\n    total=False,\n)\n" } else { "    },\n)\n" });
    }

    /// Writes what a variant needs, and returns its type: its name, or a dictionary of that name and what is in it.
    fn variant(&mut self, of: &str, EnumVariant { name, payload, description }: &EnumVariant) -> String {
        let value = match payload {
            VariantPayload::Unit => return format!("\"{name}\""),
            VariantPayload::Tuple(values) => match &values[..] {
                [value] => self.text(value),
                values => {
                    let values: Vec<String> = values.iter().map(|value| self.text(value)).collect();
                    format!("Tuple[{}]", values.join(", "))
                }
            },
            VariantPayload::Struct(fields) => {
                let inner = self.scope.claim(without_leading_underscores(&format!("{of}_{name}_Fields")));
                self.out.push('\n');
                self.dictionary(&inner, fields);
                inner
            }
        };
        let whole = self.scope.claim(without_leading_underscores(&format!("{of}_{name}")));
        self.out.push('\n');
        comment(&mut self.out, "", "#", description);
        self.out.push_str(&format!("{whole} = TypedDict(\"{whole}\", {{\"{name}\": {value}}})\n"));
        whole
    }

    /// What the file calls a type of the schema.
    fn type_name(&self, name: &str) -> String {
        self.types.get(name).cloned().unwrap_or_default()
    }

    fn text(&self, value: &ValueType) -> String {
        match value {
            ValueType::Unit => "None".to_owned(),
            ValueType::Bool => "bool".to_owned(),
            ValueType::Unsigned(_) | ValueType::Signed(_) => "int".to_owned(),
            ValueType::Float(_) => "float".to_owned(),
            // Bytes in base64.
            ValueType::Text | ValueType::Bytes => "str".to_owned(),
            ValueType::Optional(inner) => format!("Optional[{}]", self.text(inner)),
            ValueType::List(inner) => format!("List[{}]", self.text(inner)),
            ValueType::Named(name) => self.type_name(name),
        }
    }
}

/// The type of a name in quotes, which stands for itself.
fn literal(part: &str) -> String {
    if part.starts_with('"') { format!("Literal[{part}]") } else { part.to_owned() }
}
