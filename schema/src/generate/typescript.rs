//! TypeScript, over HTTP by `fetch` and over RESP by node's sockets. What all clients have is in
//! `support/`.

use std::collections::HashMap;

use super::name_scope::NameScope;
use super::{client_name, comment_text, declared_names, head, is_plain, part_of};
use crate::{
    EnumType, EnumVariant, ExtensionSchema, FunctionSchema, NamedType, StructField, StructType, TypeBody, ValueType,
    VariantPayload,
};

/// The transports, and how values are written and read.
const SUPPORT: [&str; 7] = [
    include_str!("support/transport.ts"),
    include_str!("support/http_transport.ts"),
    include_str!("support/change_feed.ts"),
    include_str!("support/resp_transport.ts"),
    include_str!("support/resp_server.ts"),
    include_str!("support/resp_reader.ts"),
    include_str!("support/values.ts"),
];

/// Words of the language, of which none is a type's name.
const WORDS: [&str; 49] = [
    "any",
    "await",
    "bigint",
    "boolean",
    "break",
    "case",
    "catch",
    "class",
    "const",
    "continue",
    "debugger",
    "default",
    "delete",
    "do",
    "else",
    "enum",
    "export",
    "extends",
    "false",
    "finally",
    "for",
    "function",
    "if",
    "implements",
    "import",
    "in",
    "instanceof",
    "interface",
    "let",
    "never",
    "new",
    "null",
    "number",
    "object",
    "package",
    "private",
    "protected",
    "public",
    "return",
    "static",
    "string",
    "super",
    "switch",
    "symbol",
    "this",
    "throw",
    "true",
    "try",
    "typeof",
];
const MORE_WORDS: [&str; 14] = [
    "undefined",
    "unknown",
    "var",
    "void",
    "while",
    "with",
    "yield",
    // Before a type they say something of it.
    "abstract",
    "asserts",
    "infer",
    "keyof",
    "readonly",
    "unique",
    "out",
];
/// Types of the language that the file itself uses: one of the extension's would stand in front of them.
const LANGUAGE_TYPES: [&str; 14] = [
    "AbortController",
    "AbortSignal",
    "Array",
    "AsyncIterableIterator",
    "Error",
    "IteratorResult",
    "Map",
    "Omit",
    "Partial",
    "Promise",
    "ReadableStream",
    "Record",
    "RequestInit",
    "Uint8Array",
];
/// Names that methods of a class cannot have, or that make it something else: what has a `then` is awaited.
const NO_METHODS: [&str; 4] = ["__proto__", "constructor", "prototype", "then"];

/// A client under construction.
struct TypeScriptWriter<'s> {
    schema: &'s ExtensionSchema,
    /// What the file calls the types of the schema.
    types: HashMap<String, String>,
    /// Whether integers of 64 bits are `bigint`.
    bigints: bool,
    out: String,
}

pub(super) fn write(schema: &ExtensionSchema, extension: &str, bigints: bool) -> String {
    let words = WORDS.iter().chain(&MORE_WORDS).chain(&LANGUAGE_TYPES).copied();
    let mut scope = NameScope::with(declared_names(&SUPPORT).into_iter().chain(words));
    let class = scope.claim(client_name(schema, extension));
    let types = scope.claim_types(&schema.types, str::to_owned);
    let out = format!("/** {} */\n", head(extension));
    let mut writer = TypeScriptWriter { schema, types, bigints, out };
    schema.types.iter().for_each(|one| writer.named(one));
    writer.class(extension, &class);
    SUPPORT.iter().for_each(|part| writer.out.push_str(&format!("\n{part}")));
    // A type stands behind those that it is made of.
    let mut written = Vec::new();
    schema.types.iter().for_each(|one| writer.codec(one, &mut written));
    writer.out
}

impl TypeScriptWriter<'_> {
    fn name(&self, name: &str) -> String {
        self.types.get(name).cloned().unwrap_or_default()
    }

    fn class(&mut self, extension: &str, class: &str) {
        self.out.push_str(&format!(
            r#"
/**
 * The functions of the extension, over HTTP or RESP: what they give and what they throw is the same.
 *
 *     new {class}(new RespTransport({{ server: "redis://db.example:6379", tenant, token }}))
 *     new {class}(new HttpTransport({{ server: "https://db.example:7399", tenant, token }}))
 */
export class {class} {{
  readonly #transport: Transport;

  /** Options alone: over HTTP. */
  constructor(over: Transport | SandstormOptions) {{
    this.#transport = transportOf(over);
  }}
"#
        ));
        let schema = self.schema;
        let mut methods = NameScope::with(NO_METHODS);
        for function in &schema.functions {
            let method = methods.claim(function.name.clone());
            self.method(extension, &method, function);
        }
        self.out.push_str("}\n");
    }

    fn method(
        &mut self,
        extension: &str,
        method: &str,
        FunctionSchema { name, args, reply, description, .. }: &FunctionSchema,
    ) {
        let (takes, gives) = match args {
            ValueType::Unit => (String::new(), "null".to_owned()),
            args => (format!("args: {}, ", self.text(args)), format!("[{}, args]", self.value_codec(args))),
        };
        self.out.push('\n');
        describe(&mut self.out, "  ", description);
        let (type_text, codec) = (self.text(reply), self.value_codec(reply));
        self.out.push_str(&format!(
            "  {method}({takes}options?: CallOptions): Promise<{type_text}> {{\n    \
             return callBy(this.#transport, \"{extension}.{name}\", {gives}, {codec}, options);\n  }}\n"
        ));
    }

    fn named(&mut self, NamedType { name, body, description }: &NamedType) {
        let name = self.name(name);
        self.out.push('\n');
        describe(&mut self.out, "", description);
        match body {
            TypeBody::Struct(StructType { fields }) => {
                self.out.push_str(&format!("export interface {name} {{\n"));
                for field in fields {
                    describe(&mut self.out, "  ", &field.description);
                    let text = self.field_text(field);
                    self.out.push_str(&format!("  {text};\n"));
                }
                self.out.push_str("}\n");
            }
            TypeBody::Enum(body) if is_plain(body) => {
                let variants: Vec<String> = body.variants.iter().map(|one| self.variant_text(one)).collect();
                self.out.push_str(&format!("export type {name} = {};\n", variants.join(" | ")));
            }
            TypeBody::Enum(body) => {
                self.out.push_str(&format!("export type {name} ="));
                for variant in &body.variants {
                    self.out.push('\n');
                    describe(&mut self.out, "  ", &variant.description);
                    let text = self.variant_text(variant);
                    self.out.push_str(&format!("  | {text}"));
                }
                self.out.push_str(";\n");
            }
        }
    }

    /// A variant: its name, or an object of that name with what is in it.
    fn variant_text(&self, EnumVariant { name, payload, .. }: &EnumVariant) -> String {
        match payload {
            VariantPayload::Unit => format!("\"{name}\""),
            VariantPayload::Tuple(values) => match &values[..] {
                [value] => format!("{{ {name}: {} }}", self.text(value)),
                values => {
                    let values: Vec<String> = values.iter().map(|value| self.text(value)).collect();
                    format!("{{ {name}: [{}] }}", values.join(", "))
                }
            },
            VariantPayload::Struct(fields) => {
                let fields: Vec<String> = fields.iter().map(|field| self.field_text(field)).collect();
                format!("{{ {name}: {{ {} }} }}", fields.join("; "))
            }
        }
    }

    fn field_text(&self, field: &StructField) -> String {
        let mark = if matches!(field.value, ValueType::Optional(_)) { "?" } else { "" };
        format!("{}{mark}: {}", field.name, self.text(&field.value))
    }

    fn text(&self, value: &ValueType) -> String {
        match value {
            ValueType::Unit => "null".to_owned(),
            ValueType::Bool => "boolean".to_owned(),
            ValueType::Unsigned(64) | ValueType::Signed(64) if self.bigints => "bigint".to_owned(),
            ValueType::Unsigned(_) | ValueType::Signed(_) | ValueType::Float(_) => "number".to_owned(),
            // Bytes in base64.
            ValueType::Text | ValueType::Bytes => "string".to_owned(),
            ValueType::Optional(inner) => format!("{} | null", self.text(inner)),
            ValueType::List(inner) if matches!(**inner, ValueType::Optional(_)) => format!("({})[]", self.text(inner)),
            ValueType::List(inner) => format!("{}[]", self.text(inner)),
            ValueType::Named(name) => self.name(name),
        }
    }

    /// What writes and reads a type.
    fn codec(&mut self, one: &NamedType, written: &mut Vec<String>) {
        let NamedType { name, body, .. } = one;
        if written.contains(name) {
            return;
        }
        written.push(name.clone());
        let schema = self.schema;
        for part in body.parts().filter_map(part_of) {
            if let Some(part) = schema.types.iter().find(|one| one.name == part) {
                self.codec(part, written);
            }
        }
        let type_name = self.name(name);
        let codec = match body {
            TypeBody::Struct(StructType { fields }) => {
                let fields: String = self.fields_codec(fields).map(|field| format!("  {field},\n")).collect();
                format!("record<{type_name}>({{\n{fields}}})")
            }
            TypeBody::Enum(body) if is_plain(body) => format!("names<{type_name}>()"),
            TypeBody::Enum(EnumType { variants }) => {
                let parts: String = variants
                    .iter()
                    .map(|one| format!("  {}: {},\n", property(&one.name), self.variant_codec(&one.payload)))
                    .collect();
                format!("union<{type_name}>({{\n{parts}}})")
            }
        };
        self.out.push_str(&format!("\nconst {type_name}Codec = {codec};\n"));
    }

    fn fields_codec<'f>(&self, fields: &'f [StructField]) -> impl Iterator<Item = String> + use<'_, 'f> {
        fields.iter().map(|field| format!("{}: {}", property(&field.name), self.value_codec(&field.value)))
    }

    fn variant_codec(&self, payload: &VariantPayload) -> String {
        match payload {
            VariantPayload::Unit => "null".to_owned(),
            VariantPayload::Tuple(values) => match &values[..] {
                [value] => self.value_codec(value),
                values => {
                    let values: Vec<String> = values.iter().map(|value| self.value_codec(value)).collect();
                    format!("tuple({})", values.join(", "))
                }
            },
            VariantPayload::Struct(fields) => {
                format!("record<any>({{ {} }})", self.fields_codec(fields).collect::<Vec<_>>().join(", "))
            }
        }
    }

    fn value_codec(&self, value: &ValueType) -> String {
        match value {
            ValueType::Unit => "codecs.unit".to_owned(),
            ValueType::Bool => "codecs.bool".to_owned(),
            ValueType::Unsigned(64) | ValueType::Signed(64) if self.bigints => "codecs.bigint".to_owned(),
            ValueType::Unsigned(_) | ValueType::Signed(_) => "codecs.integer".to_owned(),
            ValueType::Float(_) => "codecs.float".to_owned(),
            ValueType::Text => "codecs.text".to_owned(),
            ValueType::Bytes => "codecs.bytes".to_owned(),
            ValueType::Optional(inner) => format!("optional({})", self.value_codec(inner)),
            ValueType::List(inner) => format!("list({})", self.value_codec(inner)),
            ValueType::Named(name) => format!("{}Codec", self.name(name)),
        }
    }
}

/// A name in an object: `__proto__` is none by itself, but says what the object inherits from.
fn property(name: &str) -> &str {
    if name == "__proto__" { r#"["__proto__"]"# } else { name }
}

/// A description, as editors show it.
fn describe(out: &mut String, indent: &str, description: &str) {
    let text = comment_text(description);
    if !text.is_empty() {
        out.push_str(&format!("{indent}/** {text} */\n"));
    }
}
