//! Go, over HTTP.

use super::{capital_parts, class_name, comment, head};
use crate::{EnumType, ExtensionSchema, NamedType, StructType, TypeBody, ValueType};

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
    let class = class_name(extension);
    let mut out = format!("// Package {package}: {}\npackage {package}\n\nimport (\n", head(extension));
    IMPORTS.iter().for_each(|name| out.push_str(&format!("\t\"{name}\"\n")));
    out.push_str(&format!(")\n{CALL}"));
    for one in &schema.types {
        named(&mut out, one);
    }
    out.push_str(&format!(
        "\n// {class}Client has the functions of the extension.\ntype {class}Client struct {{\n\tOptions Options\n}}\n"
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
                "func (c *{class}Client) {method}(ctx context.Context{takes}) error {{\n\tvar reply any\n\treturn c.Options.call(ctx, \"{extension}.{name}\", {gives}, &reply)\n}}\n"
            ));
            continue;
        }
        let reply = text(&function.reply);
        out.push_str(&format!(
            "func (c *{class}Client) {method}(ctx context.Context{takes}) (reply {reply}, err error) {{\n\terr = c.Options.call(ctx, \"{extension}.{name}\", {gives}, &reply)\n\treturn reply, err\n}}\n"
        ));
    }
    out
}

fn named(out: &mut String, NamedType { name, body, description }: &NamedType) {
    out.push('\n');
    comment(out, "", "//", description);
    let name = capital_parts(name);
    match body {
        TypeBody::Struct(StructType { fields }) => {
            out.push_str(&format!("type {name} struct {{\n"));
            for field in fields {
                comment(out, "\t", "//", &field.description);
                out.push_str(&format!(
                    "\t{} {} `json:\"{}\"`\n",
                    capital_parts(&field.name),
                    text(&field.value),
                    field.name
                ));
            }
            out.push_str("}\n");
        }
        TypeBody::Enum(EnumType { variants }) => {
            out.push_str(&format!("type {name} string\n\nconst (\n"));
            for variant in variants {
                out.push_str(&format!("\t{name}{} {name} = \"{variant}\"\n", capital_parts(variant)));
            }
            out.push_str(")\n");
        }
    }
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
