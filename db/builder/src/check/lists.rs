//! The allow-lists.

/// Macros whose arguments are expressions, all of which are walked.
pub(super) const MACROS: [&str; 20] = [
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "debug_assert_eq",
    "debug_assert_ne",
    "format",
    "format_args",
    "panic",
    "todo",
    "unimplemented",
    "unreachable",
    "write",
    "writeln",
    "vec",
    "matches",
    "error",
    "warn",
    "info",
    "debug",
];

/// Such macros in the sandboxed tier alone. `pin!` coerces through a `Deref` of the tenant's own, and the value that it
/// claims to pin can then move (rust-lang issue 153438): `Box::pin` and `.await` serve instead in the native tier.
pub(super) const SANDBOXED_MACROS: [&str; 2] = ["concat", "pin"];

/// Macros that are called only from macros of the tenant's own. Their arguments are not checked.
pub(super) const TOKEN_MACROS: [&str; 2] = ["compile_error", "stringify"];

/// The API's macro that stands for an implementation. It is given names alone, so no more is read of it.
pub(super) const TYPED: &str = "typed";

/// Words that cannot stand in a macro of the tenant's own, besides [`NEVER_IMPORTED`]: they begin what the checker
/// refuses by its form, or name what is not open to extensions. `use` could give a crate another name.
pub(super) const NEVER_IN_MACROS: [&str; 12] =
    ["abi", "arch", "extern", "intrinsics", "macro", "mod", "proc_macro", "rt", "std", "union", "unsafe", "use"];

/// Macros that read files or the environment, contain machine code or make other macros: they may not even be imported.
pub(super) const NEVER_IMPORTED: [&str; 18] = [
    "asm",
    "cfg",
    "compile_error",
    "concat_bytes",
    "concat_idents",
    "env",
    "export",
    "global_asm",
    "include",
    "include_bytes",
    "include_str",
    "log_syntax",
    "macro_rules",
    "naked_asm",
    "option_env",
    "stringify",
    "thread_local",
    "trace_macros",
];

/// Traits that may be derived.
pub(super) const DERIVES: [&str; 9] =
    ["Clone", "Copy", "Debug", "Default", "Eq", "Hash", "Ord", "PartialEq", "PartialOrd"];

/// Attributes without arguments.
pub(super) const PLAIN_ATTRIBUTES: [&str; 9] =
    ["cold", "default", "deprecated", "ignore", "inline", "must_use", "non_exhaustive", "test", "track_caller"];

/// Such attributes in the sandboxed tier alone.
pub(super) const SANDBOXED_ATTRIBUTES: [&str; 1] = ["macro_use"];

/// Layouts that `repr` may ask for.
pub(super) const REPRS: [&str; 14] =
    ["C", "transparent", "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize"];

/// Modules of core that may be named.
pub(super) const CORE: [&str; 45] = [
    "array",
    "ascii",
    "assert",
    "assert_eq",
    "borrow",
    "cell",
    "char",
    "clone",
    "cmp",
    "convert",
    "default",
    "error",
    "f32",
    "f64",
    "fmt",
    "future",
    "hash",
    "hint",
    "i128",
    "i16",
    "i32",
    "i64",
    "i8",
    "isize",
    "iter",
    "marker",
    "matches",
    "mem",
    "net",
    "num",
    "ops",
    "option",
    "pin",
    "primitive",
    "result",
    "slice",
    "str",
    "task",
    "time",
    "u128",
    "u16",
    "u32",
    "u64",
    "u8",
    "usize",
];

/// Modules of core that may be named in the sandboxed tier alone: for objects of any type, addresses, and statics that
/// change.
pub(super) const SANDBOXED_CORE: [&str; 6] = ["any", "concat", "ffi", "panic", "ptr", "sync"];

/// Modules of alloc that may be named.
pub(super) const ALLOC: [&str; 11] =
    ["borrow", "boxed", "collections", "fmt", "format", "rc", "slice", "str", "string", "sync", "vec"];

/// Modules of alloc that may be named in the sandboxed tier alone. `Wake` of `task` turns a value into a `Waker`, whose
/// type does not show the value's (rust-lang issue 84366).
pub(super) const SANDBOXED_ALLOC: [&str; 2] = ["ffi", "task"];

/// Functions that return addresses. The audit of the compiler's intermediate form finds all others.
pub(super) const ADDRESSES: [&str; 5] = ["as_ptr", "as_mut_ptr", "as_ptr_range", "as_mut_ptr_range", "into_raw"];

/// Functions that make a reference of any lifetime, or give an object a type that differs in lifetimes (112905).
pub(super) const ERASING: [&str; 4] = ["leak", "downcast", "downcast_mut", "downcast_ref"];

/// Parts of the extension API that may not be named.
pub(super) const API_HIDDEN: [&str; 5] = ["abi", "rt", "host", "export", "testing"];

/// Traits that `dyn` may name: core's own with known objects, none of the tenant's.
pub(super) const DYN: [&str; 12] = [
    "Debug",
    "Display",
    "DoubleEndedIterator",
    "Error",
    "ExactSizeIterator",
    "Fn",
    "FnMut",
    "FnOnce",
    "Future",
    "Iterator",
    "Send",
    "Write",
];

/// Traits of core that may bound an associated type, besides the two lists above. None returns a value that lives as
/// long as its receiver and takes another value as well, as `Index` does.
pub(super) const BOUNDS: [&str; 35] = [
    "Add",
    "AddAssign",
    "AsMut",
    "AsRef",
    "BitAnd",
    "BitOr",
    "BitXor",
    "Borrow",
    "Div",
    "DivAssign",
    "Extend",
    "From",
    "FromIterator",
    "FromStr",
    "FusedIterator",
    "Into",
    "IntoFuture",
    "IntoIterator",
    "Mul",
    "MulAssign",
    "Neg",
    "Not",
    "Product",
    "Rem",
    "RemAssign",
    "Shl",
    "Shr",
    "Sized",
    "Sub",
    "SubAssign",
    "Sum",
    "Sync",
    "ToString",
    "TryFrom",
    "TryInto",
];

/// Types that the compiler writes after `impl` where they are not a trait.
pub(in super::super) const PRIMITIVES: [&str; 17] = [
    "bool", "char", "f32", "f64", "i128", "i16", "i32", "i64", "i8", "isize", "str", "u128", "u16", "u32", "u64", "u8",
    "usize",
];

/// Types of core and alloc that have no lifetime of their own. None has the name of one that has.
pub(super) const WITHOUT_LIFETIMES: [&str; 44] = [
    "Arc",
    "BTreeMap",
    "BTreeSet",
    "BinaryHeap",
    "Bound",
    "Box",
    "Cell",
    "ControlFlow",
    "Duration",
    "Error",
    "ErrorKind",
    "Infallible",
    "Option",
    "Ordering",
    "PhantomData",
    "Pin",
    "Poll",
    "Rc",
    "RefCell",
    "Result",
    "Reverse",
    "Saturating",
    "String",
    "TableId",
    "Vec",
    "VecDeque",
    "Wrapping",
    "bool",
    "char",
    "f32",
    "f64",
    "i128",
    "i16",
    "i32",
    "i64",
    "i8",
    "isize",
    "str",
    "u128",
    "u16",
    "u32",
    "u64",
    "u8",
    "usize",
];

/// Names that rules look for, so that no import may rename them.
pub(super) const KNOWN: [&str; 3] = ["Flatten", "Peekable", "ToOwned"];

/// Iterators of core that store an item, or an iterator made of one, without naming the item's type.
pub(super) const KEEPING: [&str; 2] = ["Flatten", "Peekable"];

/// Associated types that core stores without naming them: in an implementation they say what a type becomes.
pub(super) const BECOMES: [&str; 2] = ["IntoFuture", "IntoIter"];

/// Crates that every extension may use.
pub(super) const CRATES: [&str; 3] = ["alloc", "core", "sandstorm_api"];
