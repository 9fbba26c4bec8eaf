//! Random commands: the usual ones, sometimes malformed.
#![allow(unreachable_pub)]

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

fn one<'a>(random: &mut StdRng, of: &[&'a str]) -> &'a str {
    of.choose(random).expect("there are some")
}

/// Times of expiry. They are far from each other and from the present, so that none ends even in a slow run.
const TIMES: [&str; 11] =
    ["0", "0", "0", "10000", "100000", "2592000", "2592001", "-1", "2000000000", "99999999999", "x"];

/// Keys whose values are appended to, and keys whose values are incremented. (Blanks that pad a number would precede
/// the appended bytes, but not where memcached just had to make a new item.)
const TEXTS: [&str; 3] = ["a", "b", "c"];
const NUMBERS: [&str; 2] = ["d", "e"];
/// A key that meta commands name in base64, too.
const BOTH: (&str, &str) = ("f", "Zg==");

fn value(random: &mut StdRng, wide: bool) -> String {
    let letters = |random: &mut StdRng, count| (0..count).map(|_| random.random_range('a'..='z')).collect();
    match random.random_range(0..40) {
        0..=9 => random.random_range(0..200u32).to_string(),
        10..=17 => String::new(),
        // Not 2^63 or more: there memcached looks for a minus, and continues beyond the item, so its answer is random.
        18..=27 => 4_000_000_000_000_000_000u64.to_string(),
        28 if wide => {
            let count = random.random_range(1000..20_000);
            letters(random, count)
        }
        _ => {
            let count = random.random_range(0..40);
            letters(random, count)
        }
    }
}

/// A command, and its key. `{cas}` stands for the current number of its record, `{older}` for the one before.
///
/// `wide`: with more errors, keys in base64, numbers of records, more times and flags. Some of that is still answered
/// differently.
pub fn command(random: &mut StdRng, wide: bool) -> (&'static str, String) {
    let keys = ["a", "b", "c", "d", "e", "f"];
    let key = one(random, if wide { &keys } else { &keys[..5] });
    let (texts, numbers) = (one(random, &TEXTS), one(random, &NUMBERS));
    let time = one(random, if wide { &TIMES } else { &["0", "0", "100", "-1", "2000000000", "x"] });
    let noreply = if random.random_ratio(1, 8) { " noreply" } else { "" };
    let value = value(random, wide);
    let len = if random.random_ratio(1, 20) { value.len() + 1 } else { value.len() };
    let delta = random.random_range(0..50u32);
    match random.random_range(0..if wide { 16 } else { 12 }) {
        0..=2 => {
            let verb = one(random, &["set", "set", "add", "replace", "append", "prepend"]);
            let key = if verb.ends_with("pend") { texts } else { key };
            (key, format!("{verb} {key} {delta} {time} {len}{noreply}\r\n{value}"))
        }
        3 => (key, format!("get {key} b c f")),
        4 => (key, format!("gets {key}")),
        5 => (key, format!("{} {time} {key} a", one(random, &["gat", "gats"]))),
        6 => (key, format!("delete {key}{noreply}")),
        7 => (numbers, format!("{} {numbers} {delta}{noreply}", one(random, &["incr", "decr"]))),
        8 => (key, format!("touch {key} {time}{noreply}")),
        9 if wide => {
            let number = one(random, &["{cas}", "{cas}", "{older}", "0", "x"]);
            (key, format!("cas {key} {delta} {time} {len} {number}{noreply}\r\n{value}"))
        }
        10 if wide && random.random_ratio(1, 2) => (key, wrong(random, key, noreply)),
        _ => meta(random, [key, texts, numbers], &value, len, wide),
    }
}

/// A malformed command, which may request no reply.
fn wrong(random: &mut StdRng, key: &str, noreply: &str) -> String {
    let front = one(
        random,
        &[
            "set KEY 1 0 x",
            "set KEY 1 0 -1",
            "set KEY x 0 1",
            "set LONG 0 0 1",
            "add KEY 1 0",
            "cas KEY 1 0 1",
            "append KEY",
            "incr KEY x",
            "decr KEY -1",
            "incr KEY",
            "incr LONG 1",
            "touch KEY x",
            "touch KEY",
            "touch LONG 0",
            "delete KEY 0",
            "delete KEY 5",
            "delete KEY 0 0",
            "delete LONG",
            "gat x KEY",
            "gat 0",
            "get LONG",
            "verbosity x",
            "flush_all x",
            "mg LONG",
            "ms LONG 1",
            "ms KEY x",
            "ms KEY",
            "md",
            "mg !!! b",
            "ms Zg 1 b",
            "nothing KEY",
        ],
    );
    front.replace("KEY", key).replace("LONG", &"k".repeat(251)) + noreply
}

/// The flags of a meta command.
fn flags_of(verb: &str, wide: bool) -> &'static [&'static str] {
    match verb {
        "mg" if !wide => {
            &["v", "f", "s", "t", "k", "O7", "q", "h", "N100", "N0", "R30", "R1000", "T200", "T0", "c", "v", "z"]
        }
        "ms" if !wide => {
            &["ME", "MA", "MP", "MR", "MS", "F7", "T100", "T0", "q", "O9", "k", "I", "C999999999", "Tx", "MX"]
        }
        "md" if !wide => &["q", "I", "T50", "O3", "k", "C999999999", "z"],
        "ma" if !wide => &["MI", "MD", "D7", "J5", "N100", "N0", "T60", "v", "t", "c", "q", "O5", "k", "M+", "Dx"],
        "mg" => &[
            "v", "v", "f", "s", "t", "k", "O7", "q", "h", "c", "N10000", "N0", "R5000", "R50000", "R0", "T100000",
            "T0", "T-1", "Nx", "z",
        ],
        "ms" => &[
            "ME",
            "MA",
            "MP",
            "MR",
            "MS",
            "me",
            "F7",
            "Fx",
            "T10000",
            "T0",
            "T-1",
            "q",
            "O9",
            "k",
            "c",
            "I",
            "I",
            "C{cas}",
            "C{cas}",
            "C{older}",
            "C{older}",
            "C999999999",
            "C0",
            "Tx",
            "MX",
        ],
        "md" => &["q", "I", "I", "T50000", "T-1", "O3", "k", "C999999999", "C{cas}", "C{older}", "C0", "Cx", "z"],
        _ => &[
            "MI",
            "MD",
            "D7",
            "D18446744073709551615",
            "J5",
            "N10000",
            "N0",
            "T50000",
            "T-1",
            "v",
            "v",
            "t",
            "c",
            "q",
            "O5",
            "k",
            "M+",
            "m-",
            "Dx",
            "Jx",
            "C{cas}",
            "C{older}",
            "C0",
        ],
    }
}

fn meta(random: &mut StdRng, keys: [&'static str; 3], value: &str, len: usize, wide: bool) -> (&'static str, String) {
    let [key, texts, numbers] = keys;
    let verb = one(random, &["mg", "mg", "ms", "ms", "md", "ma"]);
    let all = flags_of(verb, wide);
    let count = random.random_range(0..if wide { 7 } else { 5 });
    let mut flags: Vec<&str> = (0..count).filter_map(|_| all.choose(random).copied()).collect();
    let key = match verb {
        "ma" => numbers,
        "ms" if flags.iter().any(|flag| matches!(*flag, "MA" | "MP")) => texts,
        _ => key,
    };
    let mut written = key;
    if key == BOTH.0 {
        // Whether such a key is returned in base64 depends on how it was stored there.
        flags.retain(|flag| *flag != "k");
        if random.random_ratio(1, 2) {
            written = BOTH.1;
            flags.insert(random.random_range(0..=flags.len()), "b");
        }
    }
    let flags = flags.join(" ");
    match verb {
        "ms" => (key, format!("ms {written} {len} {flags}\r\n{value}")),
        verb => (key, format!("{verb} {written} {flags}")),
    }
}
