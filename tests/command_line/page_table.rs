//! Promise: each sample on the pages of tenants is run by a test, or this table says why it is not.

use std::fs;

use super::common::root;
use super::readme::{blocks, page};

/// What becomes of a sample.
#[derive(Clone, Copy)]
pub(super) enum SampleUse {
    /// A program in Python, run against a server: what stands before it, where it says `SAMPLE` its place, and after.
    Python(&'static str),
    /// Commands of a terminal, run after these.
    Shell(&'static str),
    /// The source of an extension, which passes `ext check`.
    Extension,
    /// The test of that name runs it.
    Elsewhere(&'static str),
    /// It is not run, for this reason.
    NotRun(&'static str),
}

/// A sample on a page.
pub(super) struct PageSample {
    pub(super) page: &'static str,
    /// What it begins with.
    pub(super) head: &'static str,
    pub(super) used: SampleUse,
}

use SampleUse::{Elsewhere, Extension, NotRun, Python, Shell};

const TUTORIAL: SampleUse = Elsewhere("the_tutorials_steps_and_samples_do_what_they_say");
const README: SampleUse = Elsewhere("the_readmes_first_extension_does_what_it_says");
const COOKBOOK: SampleUse = Elsewhere("the_cookbooks_applications_do_what_they_say");
const NO_PROGRAM: SampleUse = NotRun("it shows bytes or places in memory");
const OPTIONS: SampleUse =
    NotRun("it starts a server at ports that are taken; the tests of protocols use these options");

/// The languages of programs; others are parts of configurations. `rust,no_run` is compiled as documentation.
const LANGUAGES: [&str; 7] = ["", "sh", "text", "python", "rust", "ts", "go"];

const PAGES: [&str; 12] = [
    "README.md",
    "docs/extensions.md",
    "docs/types.md",
    "docs/cookbook.md",
    "docs/triggers.md",
    "docs/libraries.md",
    "docs/comparison.md",
    "docs/client.md",
    "docs/python.md",
    "docs/control.md",
    "docs/protocols.md",
    "docs/modules.md",
];

const fn sample(page: &'static str, head: &'static str, used: SampleUse) -> PageSample {
    PageSample { page, head, used }
}

pub(super) const SAMPLES: &[PageSample] = &[
    sample("README.md", "cargo run --release -- demo ", NotRun("it builds a release, and runs all tests")),
    sample("README.md", "$ cargo run --release -- demo", NotRun("the demo has its own tests in db/src/cli/demo")),
    sample("README.md", "$ cargo install", README),
    sample("README.md", "#![no_std]", README),
    sample("README.md", "$ sandstorm ext check sum", README),
    sample("README.md", "sandstorm stop", NotRun("it needs redis-cli; tests/protocols has such clients")),
    sample(
        "README.md",
        "sandstorm load",
        NotRun("it runs for half a minute; tests/command_line/load.rs has its options"),
    ),
    sample("docs/extensions.md", "$ sandstorm ext new hello", TUTORIAL),
    sample("docs/extensions.md", "#![no_std]", TUTORIAL),
    sample("docs/extensions.md", "$ sandstorm ext versions leaderboard", Shell(LEADERBOARD)),
    sample("docs/extensions.md", "$ sandstorm ext push leaderboard --stage", Shell("")),
    sample("docs/extensions.md", "let mut cursor", TUTORIAL),
    sample(
        "docs/extensions.md",
        "pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {\n    let (from, to)",
        Extension,
    ),
    sample("docs/extensions.md", "/// Places an order", Extension),
    sample(
        "docs/extensions.md",
        "$ sandstorm ext logs ",
        NotRun("it follows the log for ever; tests/command_line/dev.rs has it"),
    ),
    sample("docs/extensions.md", "$ echo 4f2a", Shell("")),
    sample(
        "docs/extensions.md",
        "$ sandstorm grant add",
        NotRun("two tenants type it in turns; tests/data/ordered.rs has grants"),
    ),
    sample("docs/extensions.md", "#[cfg(test)]", TUTORIAL),
    sample(
        "docs/extensions.md",
        "$ sandstorm ext check",
        Elsewhere("a_check_tells_the_tiers_in_which_a_source_passes"),
    ),
    sample("docs/extensions.md", "$ sandstorm invoke bad", Elsewhere("each_kind_of_kill_names_its_function_and_line")),
    sample("docs/types.md", "#![no_std]", COOKBOOK),
    sample("docs/types.md", "use sandstorm_api::prelude::*;\n\npub struct Account", Extension),
    sample("docs/types.md", "use sandstorm_api::prelude::*;\n\npub struct Transfer", Extension),
    sample("docs/types.md", "$ sandstorm ext push bank", COOKBOOK),
    sample("docs/types.md", "$ sandstorm ext generate", Shell("ln -s ROOT/ext ext; sandstorm ext push ext/bank")),
    sample("docs/types.md", "import {", Elsewhere("the_samples_in_typescript_compile")),
    sample("docs/types.md", "over, err :=", Elsewhere("the_samples_in_go_compile")),
    sample("docs/types.md", "import { HttpTransport } from", Elsewhere("the_samples_in_typescript_compile")),
    sample("docs/types.md", "over := bank.NewHTTPTransport", Elsewhere("the_samples_in_go_compile")),
    sample("docs/types.md", "xx xx xx xx", NO_PROGRAM),
    sample("docs/cookbook.md", "$ sandstorm ext new leaderboard", COOKBOOK),
    sample("docs/cookbook.md", "$ sandstorm ext new sessions", COOKBOOK),
    sample("docs/cookbook.md", "$ sandstorm ext new limiter", COOKBOOK),
    sample("docs/cookbook.md", "$ sandstorm ext new people", COOKBOOK),
    sample("docs/cookbook.md", "$ sandstorm ext new queue", COOKBOOK),
    sample("docs/cookbook.md", "$ sandstorm ext new graph", COOKBOOK),
    sample("docs/cookbook.md", "$ sandstorm ext new shop", COOKBOOK),
    sample("docs/cookbook.md", "$ sandstorm ext new chat", COOKBOOK),
    sample("docs/cookbook.md", "$ sandstorm ext new features", COOKBOOK),
    sample("docs/cookbook.md", "import sandstorm\nfrom queue_client", Python(WORKER)),
    sample("docs/cookbook.md", "async with await sandstorm", Python(CHAT)),
    sample("docs/cookbook.md", "import sandstorm\nfrom features", Python(FEATURES)),
    sample("docs/triggers.md", "sandstorm trigger create tidy", Shell(TRIGGERS)),
    sample(
        "docs/triggers.md",
        "use sandstorm_api::change::{Change,",
        Elsewhere("the_copy_of_the_triggers_page_keeps_the_newest_change"),
    ),
    sample("docs/triggers.md", "sandstorm trigger create counts", Shell("sandstorm trigger delete counts")),
    sample("docs/triggers.md", "use sandstorm_api::change::{ChangeOp,", Extension),
    sample(
        "docs/triggers.md",
        "use sandstorm_api::change::{Change, ChangeOp};\nuse sandstorm_api::prelude::*;\n\n/// Called by a trigger",
        Extension,
    ),
    sample(
        "docs/triggers.md",
        "sandstorm trigger create logout",
        Shell("sandstorm table create sessions --quota 64MiB"),
    ),
    sample("docs/triggers.md", "sandstorm trigger dead-letters", Shell("")),
    sample("docs/libraries.md", "use sandstorm_api::json", Extension),
    sample("docs/client.md", "$ sandstorm table create prices", README),
    sample("docs/client.md", "# items has", Shell(APPLES)),
    sample(
        "docs/python.md",
        "$ python3",
        Elsewhere("the_python_client_is_installed_from_its_wheel_and_keeps_its_promises"),
    ),
    sample("docs/python.md", "import sandstorm", Python("SAMPLE\n")),
    sample("docs/python.md", "async with await", Python(GATHER)),
    sample("docs/python.md", "def sell", Python(SELL)),
    sample("docs/python.md", "position =", Python(FEED)),
    sample("docs/control.md", "curl -H \"authorization: Bearer $TOKEN\" https", Shell("")),
    sample("docs/control.md", "curl -H \"authorization: Bearer $TOKEN\" -H", Shell("sandstorm ext push sum")),
    sample("docs/protocols.md", "$ sandstorm serve --redis tls", OPTIONS),
    sample("docs/protocols.md", "$ sandstorm serve --redis 127", OPTIONS),
    sample("docs/protocols.md", "import redis", Elsewhere("the_program_of_the_page_runs")),
    sample("docs/protocols.md", "number of keys", NO_PROGRAM),
    sample(
        "docs/modules.md",
        "$ sandstorm ext check --wasm",
        Elsewhere("the_examples_in_other_languages_do_what_their_pages_say"),
    ),
    sample("docs/modules.md", " 0 ", NO_PROGRAM),
    sample("docs/modules.md", "$ printf", Elsewhere("a_module_of_gos_own_compiler_is_refused_by_what_it_imports")),
];

/// Versions to go back to: the next one is the eighth, as the page says below.
const LEADERBOARD: &str = "sandstorm table create players --quota 64MiB
sandstorm table create places --ordered --quota 64MiB
sandstorm ext new leaderboard --template leaderboard
for number in 1 2 3 4 5 6 7; do sandstorm ext push leaderboard; done";

const APPLES: &str = "sandstorm table create items --quota 64MiB
sandstorm table create orders --quota 64MiB
sandstorm put items apple 3";

const TRIGGERS: &str = "sandstorm table create orders --quota 64MiB";

const WORKER: &str = r#"
done = []

def work(text):
    if text == "fails":
        raise ValueError(text)
    done.append(text)

with sandstorm.Client(address, "shop", token, timeout=60) as before:
    for text in ["one", "fails", "two"]:
        before.call("queue.add", {"work": text})

SAMPLE

assert sorted(done) == ["one", "two"], done
with sandstorm.Client(address, "shop", token, timeout=60) as after:
    assert after.call("queue.counts", None) == {"jobs": 1, "given_up": 0}
"#;

const CHAT: &str = r#"
class Shown(Exception):
    pass

async def show(key, value):
    assert key.startswith(b"tea") and value == b"ann: hello", (key, value)
    raise Shown

with sandstorm.Client(address, "shop", token, timeout=60) as before:
    position = before.end_of_changes("messages")
    before.call("chat.say", {"room": "tea", "author": "ann", "text": "hello"})

async def main():
    SAMPLE

try:
    asyncio.run(main())
    raise AssertionError("the feed has ended")
except Shown:
    pass
"#;

const FEATURES: &str = r#"
import contextlib
import io

with contextlib.redirect_stdout(io.StringIO()) as shown:
    SAMPLE
assert shown.getvalue() == "ann 1 12.5\nbob 0 0.0\n", shown.getvalue()
"#;

const GATHER: &str = r#"
async def main():
    SAMPLE

asyncio.run(main())
with sandstorm.Client(address, "shop", token, timeout=60) as after:
    assert after.get("items", "k999") == b"999"
"#;

const SELL: &str = r#"
with sandstorm.Client(address, "shop", token, timeout=60) as client:
    had = int(client.get("items", "apple"))
    client.delete("items", "pear")
    SAMPLE
    assert sold and int(client.get("items", "apple")) == had - 1
    assert client.get("items", "pear") == b"10"
"#;

/// The feed waits for more, so another thread writes until what is awaited has come.
const FEED: &str = r#"
import threading

class Saved(Exception):
    pass

def save(position):
    if copy.get(b"plum") == b"7" and b"kept" not in copy:
        raise Saved

copy, stop = {b"kept": b"1"}, threading.Event()
with sandstorm.Client(address, "shop", token, timeout=60) as client:
    def write():
        while not stop.is_set():
            client.put("items", "kept", "1")
            client.put("items", "plum", "7")
            client.delete("items", "kept")
            stop.wait(0.05)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        SAMPLE
        raise AssertionError("the feed has ended")
    except Saved:
        pass
    finally:
        stop.set()
        writer.join()
"#;

/// Whether a test of that name is somewhere in this repository.
fn is_test(name: &str) -> bool {
    let mut folders = vec![root().join("tests"), root().join("db/builder/src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("a file");
                if text.contains(&format!("#[test]\nfn {name}()")) {
                    return true;
                }
            }
        }
    }
    false
}

#[test]
fn each_sample_of_a_tenants_page_is_run_or_the_table_says_why_not() {
    let mut wrong = Vec::new();
    let mut used = vec![0; SAMPLES.len()];
    for name in PAGES {
        for (language, text) in blocks(&page(name)) {
            let rows = SAMPLES.iter().enumerate().filter(|(_, row)| row.page == name && text.starts_with(row.head));
            // The longest head: one may begin as another does.
            let row = rows.max_by_key(|(_, row)| row.head.len());
            match row {
                Some((index, _)) => used[index] += 1,
                None if LANGUAGES.contains(&language) => {
                    wrong.push(format!("{name}: no row for {:?}", text.lines().next().unwrap_or_default()));
                }
                None => {}
            }
        }
    }
    for (row, times) in SAMPLES.iter().zip(used) {
        if times != 1 {
            wrong.push(format!("{}: {times} samples begin with {:?}", row.page, row.head));
        }
        match row.used {
            Elsewhere(test) if !is_test(test) => wrong.push(format!("there is no test {test}")),
            NotRun("") => wrong.push(format!("{}: no reason", row.head)),
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
