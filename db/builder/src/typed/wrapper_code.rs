//! Writes the code of the wrapper that turns bytes into the tenant's types, and back.

use std::fmt::Write;

use sandstorm_schema::{CHANGE, CHANGE_OP, EnumType, FunctionSchema, StructType, TypeBody, ValueType, VariantPayload};

use super::TypedSource;

/// The path of the entry.
pub(super) const ENTRY: &str = "typed::run";

/// Reads the API's own type, which no reply has.
const READ_CHANGE: &str = "fn read_Change<'a>(from: &mut Decoder<'a>) -> \
                           Result<sandstorm_api::change::Change<'a>, Error> {\nfrom.change()\n}\n";

/// The module with the entry.
pub(super) fn write(TypedSource { schema, takes_changes }: &TypedSource) -> String {
    let mut out = String::from(
        "#[deny(unsafe_code)]\nmod typed {\nuse sandstorm_api::typed::{Decoder, Encoder};\n\
         use sandstorm_api::{Db, Error};\n",
    );
    if *takes_changes {
        out.push_str(READ_CHANGE);
    }
    for one in &schema.types {
        match &one.body {
            _ if *takes_changes && [CHANGE, CHANGE_OP].contains(&one.name.as_str()) => {}
            TypeBody::Struct(body) => structure(&mut out, &one.name, body),
            TypeBody::Enum(body) => enumeration(&mut out, &one.name, body),
        }
    }
    line(&mut out, "pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {");
    line(&mut out, "let from = &mut Decoder::new(args);");
    line(&mut out, "match from.function()? {");
    schema.functions.iter().for_each(|function| arm(&mut out, function));
    line(&mut out, "_ => Err(Decoder::unknown_function()),\n}\n}\n}");
    out
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

/// One function's part of the entry.
fn arm(out: &mut String, FunctionSchema { name, args, reply, fingerprint, .. }: &FunctionSchema) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "{fingerprint:#010x} => {{");
    let given = match args {
        ValueType::Unit => "",
        _ => {
            let _ = writeln!(out, "let args = {};", read(args));
            ", args"
        }
    };
    line(out, "from.finish()?;");
    let _ = writeln!(out, "let reply = tenant::r#{name}(db{given}).await?;");
    if *reply == ValueType::Unit {
        line(out, "let () = reply;\nOk(())\n}");
        return;
    }
    line(out, "let to = &mut Encoder::new(db);");
    let _ = writeln!(out, "{};", write_value(reply, "reply", true));
    line(out, "to.finish()\n}");
}

fn structure(out: &mut String, name: &str, StructType { fields }: &StructType) {
    let _ = writeln!(out, "fn read_{name}(from: &mut Decoder<'_>) -> Result<tenant::r#{name}, Error> {{");
    let _ = writeln!(out, "Ok(tenant::r#{name} {{");
    for field in fields {
        let _ = writeln!(out, "r#{}: {},", field.name, read(&field.value));
    }
    line(out, "})\n}");
    let _ = writeln!(out, "fn write_{name}(to: &mut Encoder<'_>, value: &tenant::r#{name}) {{");
    for field in fields {
        let _ = writeln!(out, "{};", write_value(&field.value, &format!("value.r#{}", field.name), true));
    }
    line(out, "}");
}

fn enumeration(out: &mut String, name: &str, EnumType { variants }: &EnumType) {
    let _ = writeln!(out, "fn read_{name}(from: &mut Decoder<'_>) -> Result<tenant::r#{name}, Error> {{");
    line(out, "match from.u8()? {");
    for (number, variant) in variants.iter().enumerate() {
        let parts = match &variant.payload {
            VariantPayload::Unit => String::new(),
            VariantPayload::Tuple(values) => format!("({})", values.iter().map(read).collect::<Vec<_>>().join(", ")),
            VariantPayload::Struct(fields) => {
                let fields = fields.iter().map(|field| format!("r#{}: {}", field.name, read(&field.value)));
                format!(" {{ {} }}", fields.collect::<Vec<_>>().join(", "))
            }
        };
        let _ = writeln!(out, "{number} => Ok(tenant::r#{name}::r#{}{parts}),", variant.name);
    }
    // With 256 variants there is no other byte.
    line(
        out,
        "#[allow(unreachable_patterns)]\n\
         _ => Err(from.wrong(\"have an enum without a variant of that number\")),\n}\n}",
    );
    let _ = writeln!(out, "fn write_{name}(to: &mut Encoder<'_>, value: &tenant::r#{name}) {{");
    line(out, "match value {");
    for (number, variant) in variants.iter().enumerate() {
        let parts = match &variant.payload {
            VariantPayload::Unit => String::new(),
            VariantPayload::Tuple(values) => {
                let names = (0..values.len()).map(|at| format!("part{at}"));
                format!("({})", names.collect::<Vec<_>>().join(", "))
            }
            VariantPayload::Struct(fields) => {
                let names = fields.iter().enumerate().map(|(at, field)| format!("r#{}: part{at}", field.name));
                format!(" {{ {} }}", names.collect::<Vec<_>>().join(", "))
            }
        };
        let _ = writeln!(out, "tenant::r#{name}::r#{}{parts} => {{\nto.u8({number});", variant.name);
        for (at, value) in variant.payload.parts().enumerate() {
            let _ = writeln!(out, "{};", write_value(value, &format!("part{at}"), false));
        }
        line(out, "}");
    }
    line(out, "}\n}");
}

/// An expression that reads a value from the decoder `from`.
fn read(value: &ValueType) -> String {
    match value {
        ValueType::Unit => "()".to_owned(),
        ValueType::Bool | ValueType::Unsigned(_) | ValueType::Signed(_) | ValueType::Float(_) => {
            format!("from.{value}()?")
        }
        ValueType::Text => "from.string()?".to_owned(),
        ValueType::Bytes => "from.bytes()?".to_owned(),
        ValueType::Optional(inner) => format!("from.option(|from| Ok({}))?", read(inner)),
        ValueType::List(inner) => format!("from.list(|from| Ok({}))?", read(inner)),
        ValueType::Named(name) => format!("read_{name}(from)?"),
    }
}

/// An expression that writes a value, which stands there itself or by reference.
fn write_value(value: &ValueType, at: &str, is_place: bool) -> String {
    let (by_value, by_reference) =
        if is_place { (at.to_owned(), format!("&{at}")) } else { (format!("*{at}"), at.to_owned()) };
    match value {
        ValueType::Unit => "()".to_owned(),
        ValueType::Bool | ValueType::Unsigned(_) | ValueType::Signed(_) | ValueType::Float(_) => {
            format!("to.{value}({by_value})")
        }
        ValueType::Text => format!("to.string({by_reference})"),
        ValueType::Bytes => format!("to.slice({by_reference})"),
        ValueType::Optional(inner) => {
            format!("to.option({by_reference}, |to, value| {})", write_value(inner, "value", false))
        }
        ValueType::List(inner) => {
            format!("to.list({by_reference}, |to, value| {})", write_value(inner, "value", false))
        }
        ValueType::Named(name) => format!("write_{name}(to, {by_reference})"),
    }
}
