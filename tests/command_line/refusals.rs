//! Promise: what a push refuses about an extension itself, `ext check` and `ext test` refuse as well, in the same
//! words; and a push takes what they pass. What depends on a tenant's tables, triggers and quotas is a push's alone.

use std::fs;

use sandstorm_catalog::testing::code;

use super::readme::Terminal;

/// An extension: its name, what stands behind the manifest's first line, its source behind the head; and a part of what
/// is said of it. Nothing: it is taken.
type TriedExtension = (&'static str, &'static str, &'static str, &'static str);

const HEAD: &str = "#![no_std]\n#![forbid(unsafe_code)]\nuse sandstorm_api::prelude::*;\n";
/// An extension with the plain entry.
const PLAIN: &str = "pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {\n    db.reply(args)\n}\n";
/// One with typed functions.
const TYPED: &str = "pub async fn add(_db: Db<'_>, args: u64) -> Result<u64, Error> {\n    Ok(args)\n}\n\
                     pub async fn clear(_db: Db<'_>) -> Result<(), Error> {\n    Ok(())\n}\n";

const TRIED: &[TriedExtension] = &[
    // What both take, so that what follows is refused for its own reason.
    ("plain", "[[trigger]]\nname = \"a\"\nevery = \"5s\"\nargs = \"x\"", PLAIN, ""),
    ("watching", "[[trigger]]\nname = \"b\"\non = \"orders\"\nops = [\"put\"]\nbatch = 8", PLAIN, ""),
    ("typed", "[[trigger]]\nname = \"c\"\ncron = \"0 3 * * *\"\nfunction = \"add\"\nargs = \"7\"", TYPED, ""),
    // Manifests.
    ("-dash", "", PLAIN, "begin with a letter or digit"),
    ("_line", "", PLAIN, "begin with a letter or digit"),
    ("Upper", "", PLAIN, "1 to 64 of a-z"),
    ("other", "surprise = 1", PLAIN, "surprise"),
    ("older", "edition = \"2021\"", PLAIN, "2021"),
    ("later", "api = 2", PLAIN, "api version 2"),
    ("spaced", "version = \"one two\"", PLAIN, "visible characters"),
    ("keeps", "keep_arguments = 4096", PLAIN, "256 bytes"),
    ("depends", "libraries = [\"serde\"]", PLAIN, "\"serde\" is not on this server's list"),
    ("depends-twice", "libraries = [\"hmac-sha256\", \"hmac-sha256\"]", PLAIN, "named twice"),
    // Triggers.
    ("two-sources", "[[trigger]]\nname = \"t\"\nevery = \"5s\"\non = \"orders\"", PLAIN, "one of `every`"),
    ("bad-op", "[[trigger]]\nname = \"t\"\non = \"orders\"\nops = [\"vanish\"]", PLAIN, "vanish"),
    ("bad-time", "[[trigger]]\nname = \"t\"\nevery = \"5 parsecs\"", PLAIN, "5 parsecs"),
    ("too-often", "[[trigger]]\nname = \"t\"\nevery = \"1ms\"", PLAIN, "at least 100 ms"),
    ("bad-cron", "[[trigger]]\nname = \"t\"\ncron = \"61 * * * *\"", PLAIN, "trigger \"t\" of extension.toml"),
    ("bad-trigger-name", "[[trigger]]\nname = \"a b\"\nevery = \"5s\"", PLAIN, "a b"),
    ("batch-by-clock", "[[trigger]]\nname = \"t\"\nevery = \"5s\"\nbatch = 8", PLAIN, "batch"),
    ("batch-too-large", "[[trigger]]\nname = \"t\"\non = \"orders\"\nbatch = 257", PLAIN, "1 to 256"),
    ("args-of-table", "[[trigger]]\nname = \"t\"\non = \"orders\"\nargs = \"x\"", PLAIN, "the change"),
    ("many-retries", "[[trigger]]\nname = \"t\"\nevery = \"5s\"\nretries = 1000", PLAIN, "120 at most"),
    ("function-of-none", "[[trigger]]\nname = \"t\"\nevery = \"5s\"\nfunction = \"add\"", PLAIN, "no typed functions"),
    ("no-such-function", "[[trigger]]\nname = \"t\"\nevery = \"5s\"\nfunction = \"sub\"", TYPED, "there are: add"),
    ("which-function", "[[trigger]]\nname = \"t\"\nevery = \"5s\"", TYPED, "several functions"),
    (
        "args-of-other-type",
        "[[trigger]]\nname = \"t\"\nevery = \"5s\"\nfunction = \"add\"\nargs = '\"x\"'",
        TYPED,
        "args",
    ),
    ("args-no-json", "[[trigger]]\nname = \"t\"\nevery = \"5s\"\nfunction = \"add\"\nargs = \"{\"", TYPED, "JSON"),
    ("change-to-typed", "[[trigger]]\nname = \"t\"\non = \"orders\"\nfunction = \"add\"", TYPED, "change: Change<'_>"),
    // Sources.
    ("unsafe-code", "", "pub fn f(p: *const u8) -> u8 {\n    unsafe { *p }\n}\n", "unsafe code"),
    ("standard", "", "use std::fs;\n", "there is no `std` here"),
    (
        "map-type",
        "",
        "pub async fn total(_db: Db<'_>, args: BTreeMap<String, u64>) -> Result<u64, Error> {\n    Ok(0)\n}\n",
        "src/lib.rs:4",
    ),
    (
        "forgets",
        "",
        "pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {\n    db.get(db.table(\"t\")?, args);\n    Ok(())\n}\n",
        "not awaited does nothing",
    ),
    ("no-entry", "", "pub fn other() {}\n", "pub async fn run(db: Db<'_>, args: &[u8])"),
    ("misspelt", "", "pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Eror> {\n    Ok(())\n}\n", "`Eror`"),
    (
        "large-future",
        "",
        "pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {\n    let mut kept = [0_u8; 2 << 20];\n    \
         kept[args.len()] = 1;\n    yield_now().await;\n    db.reply(&kept[..1])\n}\n",
        "its future takes",
    ),
];

/// Writes an extension.
fn write(terminal: &mut Terminal, folder: &str, name: &str, (manifest, source): (&str, &str)) {
    let place = terminal.here.join(folder);
    fs::create_dir_all(place.join("src")).expect("room");
    fs::write(place.join("extension.toml"), format!("name = {name:?}\n{manifest}\n")).expect("room");
    fs::write(place.join("src/lib.rs"), source).expect("room");
}

/// Has the three commands judge an extension, and notes where one does otherwise.
fn judge(terminal: &Terminal, folder: &str, says: &str, wrong: &mut Vec<String>) {
    let test = format!("sandstorm ext test --code {} {folder}", code().name());
    for command in [&format!("sandstorm ext check {folder}"), &test, &format!("sandstorm ext push {folder}")] {
        let output = terminal.shell(command).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        if output.status.success() != says.is_empty() || !text.contains(says) {
            wrong.push(format!("$ {command}, of which {says:?} is to be said: {:?}\n{text}", output.status.code()));
        }
    }
}

fn terminal() -> Terminal {
    let mut terminal = Terminal::open();
    terminal.run("sandstorm tenant create shop; sandstorm table create orders --durability interval");
    terminal
}

#[test]
fn a_push_refuses_an_extension_as_a_check_and_a_test_do() {
    let (mut terminal, mut wrong) = (terminal(), Vec::new());
    for (number, (name, manifest, source, says)) in TRIED.iter().enumerate() {
        let folder = format!("tried-{number}");
        write(&mut terminal, &folder, name, (manifest, &format!("{HEAD}{source}")));
        judge(&terminal, &folder, says, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_push_refuses_what_is_too_large_as_a_check_and_a_test_do() {
    let (mut terminal, mut wrong) = (terminal(), Vec::new());
    let file = |terminal: &Terminal, folder: &str, path: &str, text: &str| {
        let path = terminal.here.join(folder).join("src").join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("room");
        fs::write(path, text).expect("room");
    };
    let source = format!("{HEAD}{PLAIN}");
    let half = format!("// {}\n", "x".repeat((511 << 10) - 4));
    // As JSON such a character has six bytes, and a push has room for two of each.
    let control = format!("// {}\n", "\u{1}".repeat(480 << 10));
    type Writes<'f> = &'f dyn Fn(&Terminal, &str);
    let cases: [(&str, &str, Writes<'_>); 6] = [
        ("long-file", "524288 bytes at most", &|to, at| file(to, at, "a.rs", &"/".repeat((512 << 10) + 1))),
        ("long-source", "2097152 may be pushed", &|to, at| {
            (0..5).for_each(|number| file(to, at, &format!("a{number}.rs"), &half));
        }),
        ("long-as-json", "count three times", &|to, at| {
            (0..2).for_each(|number| file(to, at, &format!("a{number}.rs"), &control));
        }),
        ("many-files", "too many files", &|to, at| {
            (0..128).for_each(|number| file(to, at, &format!("a{number}.rs"), ""));
        }),
        ("deep-file", "nested too deeply", &|to, at| file(to, at, "a/b/c/d/e/f/g/h/i.rs", "")),
        ("odd-name", "letters, digits and underscores", &|to, at| file(to, at, "a-b.rs", "")),
    ];
    for (name, says, files) in cases {
        write(&mut terminal, name, name, ("", &source));
        files(&terminal, name);
        judge(&terminal, name, says, &mut wrong);
    }
    write(&mut terminal, "long-manifest", "long-manifest", (&format!("# {}", "x".repeat(16 << 10)), &source));
    judge(&terminal, "long-manifest", "16384 bytes at most", &mut wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
