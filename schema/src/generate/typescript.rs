//! TypeScript, over HTTP.

use super::{client_name, comment, head, is_plain};
use crate::{EnumVariant, ExtensionSchema, NamedType, StructField, StructType, TypeBody, ValueType, VariantPayload};

/// What every client has: a call that is repeated with the same key until its answer comes.
const CALL: &str = r#"
/** A call without a reply: `code`, for some `cause` or `kind`, as docs/control.md lists them. */
export class SandstormError extends Error {
  readonly status: number;
  readonly code: string;
  readonly cause_?: string;
  readonly kind?: string;

  constructor(status: number, said: { code: string; message: string; cause?: string; kind?: string }) {
    super(said.message);
    this.status = status;
    this.code = said.code;
    this.cause_ = said.cause;
    this.kind = said.kind;
  }
}

/** Where the control port is, and as whom to call. */
export interface SandstormOptions {
  /** Such as `https://db.example:7399`. */
  server: string;
  tenant: string;
  token: string;
  /** Milliseconds that an answer may take; 10,000 by default. */
  timeoutMs?: number;
  /** How often a call is sent again when its connection is lost; it runs once all the same. */
  retries?: number;
}

async function call(options: SandstormOptions, name: string, args: unknown): Promise<unknown> {
  const timeoutMs = options.timeoutMs ?? 10_000;
  const headers = {
    authorization: `Bearer ${options.token}`,
    "content-type": "application/json",
    "idempotency-key": crypto.randomUUID(),
    "sandstorm-timeout-ms": String(timeoutMs),
  };
  const url = `${options.server}/v1/call/${encodeURIComponent(options.tenant)}/${name}`;
  const body = args === undefined ? "null" : JSON.stringify(args);
  for (let left = options.retries ?? 2; ; left--) {
    try {
      const signal = AbortSignal.timeout(timeoutMs + 5_000);
      const response = await fetch(url, { method: "POST", headers, body, signal });
      const said = await response.json();
      if (!response.ok) throw new SandstormError(response.status, said);
      return said;
    } catch (error) {
      if (error instanceof SandstormError || left <= 0) throw error;
    }
  }
}
"#;

pub(super) fn write(schema: &ExtensionSchema, extension: &str) -> String {
    let mut out = format!("/** {} Integers beyond 2^53 are not exact. */\n{CALL}", head(extension));
    for one in &schema.types {
        named(&mut out, one);
    }
    out.push_str(&format!(
        "\n/** The functions of the extension. */\nexport class {} {{\n",
        client_name(schema, extension)
    ));
    out.push_str("  private readonly options: SandstormOptions;\n\n");
    out.push_str("  constructor(options: SandstormOptions) {\n    this.options = options;\n  }\n");
    for function in &schema.functions {
        let (takes, gives) = match &function.args {
            ValueType::Unit => (String::new(), "undefined"),
            args => (format!("args: {}", text(args)), "args"),
        };
        let (name, reply) = (&function.name, text(&function.reply));
        out.push('\n');
        if !function.description.is_empty() {
            out.push_str(&format!("  /** {} */\n", function.description.replace("*/", "* /")));
        }
        out.push_str(&format!(
            "  async {name}({takes}): Promise<{reply}> {{\n    return (await call(this.options, \"{extension}.{name}\", {gives})) as {reply};\n  }}\n"
        ));
    }
    out.push_str("}\n");
    out
}

fn named(out: &mut String, NamedType { name, body, description }: &NamedType) {
    out.push('\n');
    comment(out, "", "//", description);
    match body {
        TypeBody::Struct(StructType { fields }) => {
            out.push_str(&format!("export interface {name} {{\n"));
            for field in fields {
                comment(out, "  ", "//", &field.description);
                out.push_str(&format!("  {};\n", field_text(field)));
            }
            out.push_str("}\n");
        }
        TypeBody::Enum(body) if is_plain(body) => {
            let variants: Vec<String> = body.variants.iter().map(variant_text).collect();
            out.push_str(&format!("export type {name} = {};\n", variants.join(" | ")));
        }
        TypeBody::Enum(body) => {
            out.push_str(&format!("export type {name} ="));
            for variant in &body.variants {
                out.push('\n');
                comment(out, "  ", "//", &variant.description);
                out.push_str(&format!("  | {}", variant_text(variant)));
            }
            out.push_str(";\n");
        }
    }
}

/// A variant: its name, or an object of that name with what is in it.
fn variant_text(EnumVariant { name, payload, .. }: &EnumVariant) -> String {
    match payload {
        VariantPayload::Unit => format!("\"{name}\""),
        VariantPayload::Tuple(values) => match &values[..] {
            [value] => format!("{{ {name}: {} }}", text(value)),
            values => format!("{{ {name}: [{}] }}", values.iter().map(text).collect::<Vec<_>>().join(", ")),
        },
        VariantPayload::Struct(fields) => {
            let fields: Vec<String> = fields.iter().map(field_text).collect();
            format!("{{ {name}: {{ {} }} }}", fields.join("; "))
        }
    }
}

fn field_text(field: &StructField) -> String {
    let mark = if matches!(field.value, ValueType::Optional(_)) { "?" } else { "" };
    format!("{}{mark}: {}", field.name, text(&field.value))
}

fn text(value: &ValueType) -> String {
    match value {
        ValueType::Unit => "null".to_owned(),
        ValueType::Bool => "boolean".to_owned(),
        ValueType::Unsigned(_) | ValueType::Signed(_) | ValueType::Float(_) => "number".to_owned(),
        // Bytes in base64.
        ValueType::Text | ValueType::Bytes => "string".to_owned(),
        ValueType::Optional(inner) => format!("({} | null)", text(inner)),
        ValueType::List(inner) => format!("{}[]", text(inner)),
        ValueType::Named(name) => name.clone(),
    }
}
