//! Reads typed functions, and the structs and enums in them, from the root file of a source.

use std::collections::{BTreeMap, BTreeSet};

use sandstorm_schema::limits::DESCRIPTION_BYTES;
use sandstorm_schema::{
    CHANGE, CHANGE_OP, EnumType, EnumVariant, ExtensionSchema, FunctionSchema, NamedType, StructField, StructType,
    TypeBody, ValueType, VariantPayload, change_types,
};
use syn::spanned::Spanned;
use syn::{Attribute, Expr, Field, Fields, FnArg, GenericArgument, Ident, Item, ItemFn, Lit, Meta, PathArguments};
use syn::{PathSegment, ReturnType, Type, TypePath, UseTree, Variant, Visibility};

use super::TypedSource;
use crate::{Diagnostic, ROOT_FILE};

/// What types may be, for authors whose type is refused.
const ALLOWED: &str = "a type of arguments and replies is bool, u8 to u64, i8 to i64, f32, f64, String, Vec<u8>, Option<T>, Vec<T>, or a \
     `pub struct` with named `pub` fields or a `pub enum` of src/lib.rs";

/// The schema of the typed functions, if the source has such and no plain `run`.
pub(super) fn read(text: &str) -> Result<Option<TypedSource>, Vec<Diagnostic>> {
    // What does not parse is told by the checker.
    let Ok(file) = syn::parse_str::<syn::File>(text) else { return Ok(None) };
    if file.items.iter().any(is_plain_entry) {
        return Ok(None);
    }
    let functions: Vec<&ItemFn> = file.items.iter().filter_map(typed_function).collect();
    if functions.is_empty() {
        return Ok(None);
    }
    let mut reader = TypeReader {
        text,
        items: &file.items,
        found: Vec::new(),
        seen: BTreeSet::new(),
        takes_changes: false,
        refused: Vec::new(),
    };
    let mut schemas = Vec::new();
    let mut lines = BTreeMap::new();
    for function in functions {
        let name = name_of(&function.sig.ident);
        lines.insert(name.clone(), function.sig.ident.span().byte_range());
        if let (Some(args), Some(reply)) = (reader.args(function), reader.reply(function)) {
            let description = description(&function.attrs);
            schemas.push(FunctionSchema { name, args, reply, fingerprint: 0, description });
        }
    }
    let TypeReader { found, mut refused, takes_changes, .. } = reader;
    if refused.is_empty() {
        match ExtensionSchema::checked(schemas, found) {
            Ok(schema) => return Ok(Some(TypedSource { schema, takes_changes })),
            Err(error) => {
                let at = lines.into_values().next().unwrap_or(0..0);
                refused.push(Diagnostic::refused(ROOT_FILE, text, at, "types", &error.to_string()));
            }
        }
    }
    Err(refused)
}

/// Whether an item is the plain entry, or brings it.
fn is_plain_entry(item: &Item) -> bool {
    match item {
        Item::Fn(function) if function.sig.ident == "run" => {
            let mut inputs = function.sig.inputs.iter().skip(1);
            let is_bytes = |input: &FnArg| match input {
                FnArg::Typed(input) => matches!(&*input.ty, Type::Reference(to) if matches!(*to.elem, Type::Slice(_))),
                FnArg::Receiver(_) => false,
            };
            inputs.next().is_some_and(is_bytes)
        }
        Item::Use(item) => brings_run(&item.tree),
        _ => false,
    }
}

fn brings_run(tree: &UseTree) -> bool {
    match tree {
        UseTree::Path(path) => brings_run(&path.tree),
        UseTree::Name(name) => name.ident == "run",
        UseTree::Rename(rename) => rename.rename == "run",
        UseTree::Group(group) => group.items.iter().any(brings_run),
        _ => false,
    }
}

/// A public async function whose first parameter is a `Db`.
fn typed_function(item: &Item) -> Option<&ItemFn> {
    let Item::Fn(function) = item else { return None };
    let is_public = matches!(function.vis, Visibility::Public(_));
    let Some(FnArg::Typed(first)) = function.sig.inputs.first() else { return None };
    let Type::Path(path) = &*first.ty else { return None };
    let is_db = path.path.segments.last().is_some_and(|last| last.ident == "Db");
    (is_public && is_db && function.sig.asyncness.is_some()).then_some(function)
}

/// A name without the mark of a raw one.
fn name_of(ident: &Ident) -> String {
    let name = ident.to_string();
    name.strip_prefix("r#").map_or(name.clone(), str::to_owned)
}

/// The first lines of an item's documentation.
fn description(attributes: &[Attribute]) -> String {
    let mut text = String::new();
    for attribute in attributes {
        let Meta::NameValue(value) = &attribute.meta else { continue };
        if let (true, Expr::Lit(literal)) = (attribute.path().is_ident("doc"), &value.value)
            && let Lit::Str(line) = &literal.lit
        {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(line.value().trim());
        }
    }
    let cut = (0..=text.len().min(DESCRIPTION_BYTES)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text.truncate(cut);
    text.trim().to_owned()
}

/// What to write in place of a type that many write first.
fn instead_of(value: &Type) -> Option<&'static str> {
    match value {
        Type::Tuple(_) => Some("a tuple: write a `pub struct` with named `pub` fields"),
        Type::Array(_) => Some("an array: write `Vec<T>`"),
        Type::Slice(_) => Some("a slice: write `Vec<T>`"),
        Type::Reference(to) => match &*to.elem {
            Type::Slice(_) => {
                Some("a slice: write `Vec<T>`; a function that takes and gives bytes as they are is named `run`")
            }
            Type::Path(path) if path.path.is_ident("str") => Some("`&str`: write `String`"),
            _ => Some("a reference: write the type without `&`"),
        },
        Type::Path(path) => match path.path.segments.last()?.ident.to_string().as_str() {
            "usize" => Some("`usize`: write `u64`"),
            "isize" => Some("`isize`: write `i64`"),
            "char" | "str" => Some("a text: write `String`"),
            "Box" | "Rc" | "Arc" => Some("a pointer: write the type itself"),
            "HashMap" | "BTreeMap" => Some("a map: write `Vec<T>` of a `pub struct` of a key and a value"),
            "HashSet" | "BTreeSet" | "VecDeque" => Some("write `Vec<T>`"),
            "Changes" => Some("changes of a table: write `Vec<Change<'_>>`"),
            _ => None,
        },
        _ => None,
    }
}

/// Whether it is a struct or an enum of that name.
fn is_item_named(item: &Item, name: &str) -> bool {
    match item {
        Item::Struct(item) => name_of(&item.ident) == name,
        Item::Enum(item) => name_of(&item.ident) == name,
        _ => false,
    }
}

/// Whether a type is the API's `Change`, with its path or imported by it.
fn is_change(path: &TypePath, items: &[Item]) -> bool {
    let names: Vec<String> = path.path.segments.iter().map(|segment| name_of(&segment.ident)).collect();
    let has_values = |segment: &PathSegment| match &segment.arguments {
        PathArguments::None => false,
        PathArguments::AngleBracketed(list) => list.args.iter().any(|one| !matches!(one, GenericArgument::Lifetime(_))),
        PathArguments::Parenthesized(_) => true,
    };
    if path.qself.is_some() || path.path.segments.iter().any(has_values) {
        return false;
    }
    match names.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["sandstorm_api", "change", CHANGE] => true,
        [CHANGE] => {
            !items.iter().any(|item| is_item_named(item, CHANGE))
                && items.iter().any(|item| match item {
                    Item::Use(item) => brings_change(&item.tree, &["sandstorm_api", "change"]),
                    _ => false,
                })
        }
        _ => false,
    }
}

/// Whether an import brings `Change` from behind this path.
fn brings_change(tree: &UseTree, path: &[&str]) -> bool {
    match (tree, path) {
        (UseTree::Path(tree), [first, rest @ ..]) => tree.ident == first && brings_change(&tree.tree, rest),
        (UseTree::Group(group), _) => group.items.iter().any(|item| brings_change(item, path)),
        (UseTree::Name(name), []) => name.ident == CHANGE,
        (UseTree::Glob(_), []) => true,
        _ => false,
    }
}

/// Reads types, and notes the named ones that it meets.
struct TypeReader<'s> {
    text: &'s str,
    items: &'s [Item],
    found: Vec<NamedType>,
    /// Names that were met.
    seen: BTreeSet<String>,
    /// Whether a function takes the API's `Change`.
    takes_changes: bool,
    refused: Vec<Diagnostic>,
}

impl TypeReader<'_> {
    fn refuse<T>(&mut self, at: &impl Spanned, message: &str) -> Option<T> {
        let span = at.span().byte_range();
        self.refused.push(Diagnostic::refused(ROOT_FILE, self.text, span, "types", message));
        None
    }

    /// The type of a function's arguments.
    fn args(&mut self, function: &ItemFn) -> Option<ValueType> {
        if !function.sig.generics.params.is_empty() && function.sig.generics.type_params().next().is_some() {
            return self.refuse(&function.sig.generics, "a typed function has no type parameters");
        }
        let mut inputs = function.sig.inputs.iter().skip(1);
        let value = match inputs.next() {
            None => Some(ValueType::Unit),
            Some(FnArg::Typed(input)) => match self.value(&input.ty) {
                Some(ValueType::Unit) => self.refuse(&input.ty, "leave the argument out: `()` stands for none"),
                value => value,
            },
            Some(FnArg::Receiver(receiver)) => self.refuse(receiver, "a typed function takes a `Db` and its arguments"),
        };
        match inputs.next() {
            None => value,
            Some(more) => self.refuse(more, "a typed function takes a `Db` and one value more: put them into a struct"),
        }
    }

    /// The type of a function's reply.
    fn reply(&mut self, function: &ItemFn) -> Option<ValueType> {
        const RESULT: &str = "a typed function returns a `Result<T, Error>`";
        let ReturnType::Type(_, returned) = &function.sig.output else { return self.refuse(&function.sig, RESULT) };
        let Type::Path(path) = &**returned else { return self.refuse(returned, RESULT) };
        let Some(last) = path.path.segments.last().filter(|last| last.ident == "Result") else {
            return self.refuse(returned, RESULT);
        };
        let PathArguments::AngleBracketed(arguments) = &last.arguments else { return self.refuse(returned, RESULT) };
        let Some(GenericArgument::Type(value)) = arguments.args.first() else { return self.refuse(returned, RESULT) };
        let had_changes = std::mem::replace(&mut self.takes_changes, false);
        let reply = self.value(value);
        if self.takes_changes {
            return self.refuse(value, "a `Change` is an argument, and no reply: write a struct of your own");
        }
        self.takes_changes = had_changes;
        reply
    }

    /// Refuses a type, and says what to write where that is known.
    fn refuse_type<T>(&mut self, value: &Type) -> Option<T> {
        let message = match instead_of(value) {
            Some(instead) => format!("{instead}: {ALLOWED}"),
            None => ALLOWED.to_owned(),
        };
        self.refuse(value, &message)
    }

    /// The API's type of a table's change.
    fn change(&mut self, at: &Type) -> Option<ValueType> {
        if self.items.iter().any(|item| is_item_named(item, CHANGE_OP)) {
            return self.refuse(at, &format!("a change has a `{CHANGE_OP}`: give your type of that name another one"));
        }
        if !std::mem::replace(&mut self.takes_changes, true) {
            self.found.extend(change_types());
        }
        Some(ValueType::Named(CHANGE.to_owned()))
    }

    fn value(&mut self, value: &Type) -> Option<ValueType> {
        match value {
            Type::Path(path) if is_change(path, self.items) => self.change(value),
            Type::Tuple(tuple) if tuple.elems.is_empty() => Some(ValueType::Unit),
            Type::Paren(inner) => self.value(&inner.elem),
            Type::Path(path) if path.qself.is_none() => {
                let segments = &path.path.segments;
                let Some((first, last)) = segments.first().zip(segments.last()) else {
                    return self.refuse_type(value);
                };
                let is_core = segments.len() == 1 || ["core", "alloc"].iter().any(|name| first.ident == name);
                if !is_core {
                    return self.refuse_type(value);
                }
                let name = name_of(&last.ident);
                match &last.arguments {
                    PathArguments::None => self.named(value, name),
                    PathArguments::AngleBracketed(arguments) => {
                        let inner = match arguments.args.first() {
                            Some(GenericArgument::Type(inner)) if arguments.args.len() == 1 => inner,
                            _ => return self.refuse_type(value),
                        };
                        match (name.as_str(), self.value(inner)?) {
                            ("Vec", ValueType::Unsigned(8)) => Some(ValueType::Bytes),
                            ("Vec", inner) => Some(ValueType::List(inner.into())),
                            ("Option", inner) => Some(ValueType::Optional(inner.into())),
                            _ => self.refuse_type(value),
                        }
                    }
                    PathArguments::Parenthesized(_) => self.refuse_type(value),
                }
            }
            _ => self.refuse_type(value),
        }
    }

    /// A type of one name: a plain one, or an item of the file.
    fn named(&mut self, at: &Type, name: String) -> Option<ValueType> {
        let items = self.items;
        let own = items.iter().find_map(|item| match item {
            Item::Struct(item) if name_of(&item.ident) == name => {
                Some((&item.vis, &item.generics, &item.attrs, Ok(&item.fields)))
            }
            Item::Enum(item) if name_of(&item.ident) == name => {
                Some((&item.vis, &item.generics, &item.attrs, Err(&item.variants)))
            }
            _ => None,
        });
        let Some((visibility, generics, attributes, parts)) = own else {
            // `bytes` is a word of schemas, not of Rust.
            return match ValueType::plain(&name).filter(|plain| *plain != ValueType::Bytes) {
                Some(plain) => Some(plain),
                None if instead_of(at).is_some() => self.refuse_type(at),
                None => self.refuse(at, &format!("`{name}`: {ALLOWED}")),
            };
        };
        if !self.seen.insert(name.clone()) {
            return Some(ValueType::Named(name));
        }
        if !matches!(visibility, Visibility::Public(_)) || !generics.params.is_empty() {
            return self.refuse(at, &format!("`{name}` has to be `pub`, without parameters: {ALLOWED}"));
        }
        let body = match parts {
            Ok(fields) => TypeBody::Struct(StructType { fields: self.fields(&name, fields)? }),
            Err(variants) => {
                let variants: Option<Vec<EnumVariant>> =
                    variants.iter().map(|variant| self.variant(&name, variant)).collect();
                TypeBody::Enum(EnumType { variants: variants? })
            }
        };
        self.found.push(NamedType { name: name.clone(), body, description: description(attributes) });
        Some(ValueType::Named(name))
    }

    /// A variant of the enum of that name.
    fn variant(&mut self, name: &str, variant: &Variant) -> Option<EnumVariant> {
        let own = name_of(&variant.ident);
        if !matches!(variant.fields, Fields::Unit) && variant.fields.is_empty() {
            return self.refuse(variant, &format!("`{name}::{own}` has nothing in it: write it without brackets"));
        }
        let payload = match &variant.fields {
            Fields::Unit => return Some(EnumVariant::unit(&own)),
            Fields::Unnamed(fields) => {
                let values: Option<Vec<ValueType>> = fields.unnamed.iter().map(|field| self.value(&field.ty)).collect();
                VariantPayload::Tuple(values?)
            }
            Fields::Named(fields) => {
                let fields: Option<Vec<StructField>> = fields.named.iter().map(|field| self.field(field)).collect();
                VariantPayload::Struct(fields?)
            }
        };
        Some(EnumVariant { name: own, payload, description: description(&variant.attrs) })
    }

    fn field(&mut self, field: &Field) -> Option<StructField> {
        let value = self.value(&field.ty)?;
        let name = field.ident.as_ref().map(name_of).unwrap_or_default();
        Some(StructField { name, value, description: description(&field.attrs) })
    }

    fn fields(&mut self, name: &str, fields: &Fields) -> Option<Vec<StructField>> {
        let Fields::Named(fields) = fields else {
            return self.refuse(fields, &format!("the fields of `{name}` have no names: {ALLOWED}"));
        };
        let mut found = Vec::new();
        for field in &fields.named {
            if !matches!(field.vis, Visibility::Public(_)) {
                return self.refuse(field, &format!("a field of `{name}` is not `pub`: {ALLOWED}"));
            }
            found.push(self.field(field)?);
        }
        Some(found)
    }
}
