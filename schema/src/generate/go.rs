//! Go, over HTTP.

use super::{capital_parts, client_name, comment, free_name, head, is_plain};
use crate::{
    EnumType, EnumVariant, ExtensionSchema, NamedType, StructField, StructType, TypeBody, ValueType, VariantPayload,
};

/// What every client has: a call that is repeated with the same key until its answer comes.
const CALL: &str = r#"
// SandstormError is a call without a reply: Code, for some Cause or Kind, as docs/control.md lists them.
type SandstormError struct {
	Status  int    `json:"-"`
	Code    string `json:"code"`
	Message string `json:"message"`
	Cause   string `json:"cause"`
	Kind    string `json:"kind"`
}

func (e *SandstormError) Error() string { return e.Code + ": " + e.Message }

// Options say where the control port is, and as whom to call.
type Options struct {
	// Server is such as https://db.example:7399.
	Server string
	Tenant string
	Token  string
	// Timeout is how long an answer may take; 10 s by default.
	Timeout time.Duration
	// Retries is how often a call is sent again when its connection is lost; it runs once all the same.
	Retries int
	// HTTP is the client to use; http.DefaultClient by default.
	HTTP *http.Client
}

func (o Options) call(ctx context.Context, name string, args, reply any) error {
	body, err := json.Marshal(args)
	if err != nil {
		return err
	}
	timeout := o.Timeout
	if timeout == 0 {
		timeout = 10 * time.Second
	}
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return err
	}
	for left := o.Retries; ; left-- {
		err := o.send(ctx, name, hex.EncodeToString(random[:]), timeout, body, reply)
		var said *SandstormError
		if err == nil || errors.As(err, &said) || left <= 0 || ctx.Err() != nil {
			return err
		}
	}
}

func (o Options) send(ctx context.Context, name, key string, timeout time.Duration, body []byte, reply any) error {
	ctx, cancel := context.WithTimeout(ctx, timeout+5*time.Second)
	defer cancel()
	address := o.Server + "/v1/call/" + url.PathEscape(o.Tenant) + "/" + name
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("authorization", "Bearer "+o.Token)
	request.Header.Set("content-type", "application/json")
	request.Header.Set("idempotency-key", key)
	request.Header.Set("sandstorm-timeout-ms", strconv.FormatInt(timeout.Milliseconds(), 10))
	client := o.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	said, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		failure := &SandstormError{Status: response.StatusCode}
		if err := json.Unmarshal(said, failure); err != nil {
			return err
		}
		return failure
	}
	return json.Unmarshal(said, reply)
}
"#;

const IMPORTS: [&str; 11] = [
    "bytes",
    "context",
    "crypto/rand",
    "encoding/hex",
    "encoding/json",
    "errors",
    "io",
    "net/http",
    "net/url",
    "strconv",
    "time",
];

pub(super) fn write(schema: &ExtensionSchema, extension: &str) -> String {
    let package: String = extension.chars().filter(char::is_ascii_alphanumeric).collect();
    let package =
        if package.starts_with(|first: char| first.is_ascii_digit()) { format!("x{package}") } else { package };
    let class = client_name(schema, extension);
    let mut out = format!("// Package {package}: {}\npackage {package}\n\nimport (\n", head(extension));
    IMPORTS.iter().for_each(|name| out.push_str(&format!("\t\"{name}\"\n")));
    out.push_str(&format!(")\n{CALL}"));
    let mut taken = Vec::new();
    for one in &schema.types {
        named(&mut out, schema, one, &mut taken);
    }
    out.push_str(&format!(
        "\n// {class} has the functions of the extension.\ntype {class} struct {{\n\tOptions Options\n}}\n"
    ));
    for function in &schema.functions {
        let (takes, gives) = match &function.args {
            ValueType::Unit => (String::new(), "nil"),
            args => (format!(", args {}", text(args)), "args"),
        };
        let (name, method) = (&function.name, capital_parts(&function.name));
        out.push('\n');
        comment(&mut out, "", "//", &function.description);
        if function.reply == ValueType::Unit {
            out.push_str(&format!(
                "func (c *{class}) {method}(ctx context.Context{takes}) error {{\n\tvar reply any\n\treturn c.Options.call(ctx, \"{extension}.{name}\", {gives}, &reply)\n}}\n"
            ));
            continue;
        }
        let reply = text(&function.reply);
        out.push_str(&format!(
            "func (c *{class}) {method}(ctx context.Context{takes}) (reply {reply}, err error) {{\n\terr = c.Options.call(ctx, \"{extension}.{name}\", {gives}, &reply)\n\treturn reply, err\n}}\n"
        ));
    }
    out
}

fn named(
    out: &mut String,
    schema: &ExtensionSchema,
    NamedType { name, body, description }: &NamedType,
    taken: &mut Vec<String>,
) {
    out.push('\n');
    comment(out, "", "//", description);
    let name = capital_parts(name);
    match body {
        TypeBody::Struct(StructType { fields }) => structure(out, &name, fields),
        TypeBody::Enum(body) if is_plain(body) => {
            out.push_str(&format!("type {name} string\n\nconst (\n"));
            for EnumVariant { name: variant, .. } in &body.variants {
                out.push_str(&format!("\t{name}{} {name} = \"{variant}\"\n", capital_parts(variant)));
            }
            out.push_str(")\n");
        }
        TypeBody::Enum(body) => union(out, (schema, taken), &name, body),
    }
}

fn structure(out: &mut String, name: &str, fields: &[StructField]) {
    out.push_str(&format!("type {name} struct {{\n"));
    for field in fields {
        comment(out, "\t", "//", &field.description);
        out.push_str(&format!("\t{} {} `json:\"{}\"`\n", capital_parts(&field.name), text(&field.value), field.name));
    }
    out.push_str("}\n");
}

/// What is written of a union.
#[derive(Default)]
struct UnionParts {
    /// Fields of the struct.
    fields: String,
    /// Types of the variants with several parts.
    types: String,
    /// Cases of `MarshalJSON`.
    writes: String,
    /// Cases of `UnmarshalJSON` for variants without a payload, and with one.
    names: String,
    reads: String,
}

impl UnionParts {
    /// Adds a variant of the union of that name.
    fn add(&mut self, (schema, taken): (&ExtensionSchema, &mut Vec<String>), union: &str, one: &EnumVariant) {
        let EnumVariant { name: variant, payload, description } = one;
        let field = capital_parts(variant);
        comment(&mut self.fields, "\t", "//", description);
        let place = format!("v.{field}");
        let (holds, value, read) = match payload {
            VariantPayload::Unit => {
                self.fields.push_str(&format!("\t{field} bool\n"));
                self.writes.push_str(&format!("\tcase {place}:\n\t\treturn json.Marshal(\"{variant}\")\n"));
                self.names.push_str(&format!("\t\tcase \"{variant}\":\n\t\t\t{place} = true\n\t\t\treturn nil\n"));
                return;
            }
            VariantPayload::Tuple(values) => match &values[..] {
                [value] => (text(value), place.clone(), place.clone()),
                values => {
                    let holds = free_name(schema, taken, &format!("{union}{field}"));
                    self.types.push_str(&format!("\n// {holds} is an array in JSON.\ntype {holds} struct {{\n"));
                    for (at, value) in values.iter().enumerate() {
                        self.types.push_str(&format!("\tV{at} {}\n", text(value)));
                    }
                    self.types.push_str("}\n");
                    let list = |mark: &str| {
                        let all: Vec<String> = (0..values.len()).map(|at| format!("{mark}{place}.V{at}")).collect();
                        format!("[]any{{{}}}", all.join(", "))
                    };
                    (holds, list(""), format!("&{}", list("&")))
                }
            },
            VariantPayload::Struct(fields) => {
                let holds = free_name(schema, taken, &format!("{union}{field}"));
                self.types.push('\n');
                structure(&mut self.types, &holds, fields);
                (holds, place.clone(), place.clone())
            }
        };
        self.fields.push_str(&format!("\t{field} *{holds}\n"));
        self.writes.push_str(&format!(
            "\tcase {place} != nil:\n\t\treturn json.Marshal(map[string]any{{\"{variant}\": {value}}})\n"
        ));
        self.reads.push_str(&format!(
            "\t\tcase \"{variant}\":\n\t\t\t{place} = new({holds})\n\t\t\treturn json.Unmarshal(payload, {read})\n"
        ));
    }
}

/// A struct with a field for each variant, of which one is set, and its JSON.
fn union(out: &mut String, schema: (&ExtensionSchema, &mut Vec<String>), name: &str, EnumType { variants }: &EnumType) {
    let (schema, taken) = schema;
    let mut parts = UnionParts::default();
    variants.iter().for_each(|variant| parts.add((schema, &mut *taken), name, variant));
    let UnionParts { fields, types, writes, names, reads } = parts;
    out.push_str(&format!("// One field of {name} is set.\ntype {name} struct {{\n{fields}}}\n{types}"));
    out.push_str(&format!(
        r#"
func (v {name}) MarshalJSON() ([]byte, error) {{
	switch {{
{writes}	}}
	return nil, errors.New("{name}: no field is set")
}}

func (v *{name}) UnmarshalJSON(data []byte) error {{
	*v = {name}{{}}
	var said string
	if json.Unmarshal(data, &said) == nil {{
		switch said {{
{names}		}}
		return errors.New("{name}: there is no " + said)
	}}
	var one map[string]json.RawMessage
	if err := json.Unmarshal(data, &one); err != nil {{
		return err
	}}
	for said, payload := range one {{
		switch said {{
{reads}		}}
		return errors.New("{name}: there is no " + said)
	}}
	return errors.New("{name}: an empty object")
}}
"#
    ));
}

fn text(value: &ValueType) -> String {
    match value {
        ValueType::Unit => "any".to_owned(),
        ValueType::Bool => "bool".to_owned(),
        ValueType::Unsigned(bits) => format!("uint{bits}"),
        ValueType::Signed(bits) => format!("int{bits}"),
        ValueType::Float(bits) => format!("float{bits}"),
        ValueType::Text => "string".to_owned(),
        // As base64 in JSON.
        ValueType::Bytes => "[]byte".to_owned(),
        ValueType::Optional(inner) => format!("*{}", text(inner)),
        ValueType::List(inner) => format!("[]{}", text(inner)),
        ValueType::Named(name) => capital_parts(name),
    }
}
