use super::*;
use sandstorm_client::control::ProfiledStackReport;

fn report() -> ProfileReport {
    let place =
        |function: &str, file: &str, line| CodePlaceReport { function: function.into(), file: file.into(), line };
    ProfileReport {
        extension: "two".into(),
        version: 3,
        seconds: 10,
        samples_per_s: 500,
        samples: 100,
        named: 98,
        unlisted: 0,
        calls: 7,
        cpu_us: 2_000,
        waiting_us: 500,
        stacks: vec![
            ProfiledStackReport { samples: 70, in_host: false, places: vec![1, 0] },
            ProfiledStackReport { samples: 28, in_host: true, places: vec![2, 0] },
            ProfiledStackReport { samples: 2, in_host: false, places: vec![] },
        ],
        places: vec![
            place("two::run", "src/lib.rs", 5),
            place("two::<script>alert(\"1\")&\u{1b}", "src/lib.rs", 9),
            place("two::b;c", "", 0),
        ],
    }
}

#[test]
fn each_format_has_all_samples_at_their_places() {
    let text = folded(&report());
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("two;two::run src/lib.rs:5;two::<script>") && lines[0].ends_with(" 70"), "{text}");
    assert_eq!(lines[1], "two;two::run src/lib.rs:5;two::b:c;[host call] 28");
    assert_eq!(lines[2], "two;[unknown] 2");
    let shown = table(&report());
    assert!(shown.contains("98.0 % of them named") && shown.contains("70.0    70.0"), "{shown}");
    let parsed: serde_json::Value = serde_json::from_str(&firefox::json(&report())).expect("JSON");
    let thread = &parsed["threads"][0];
    assert_eq!(thread["samples"]["weight"], serde_json::json!([70, 28, 2]));
    for (name, columns) in thread.as_object().expect("a thread") {
        let Some(length) = columns.get("length").and_then(serde_json::Value::as_u64) else { continue };
        for (column, values) in columns.as_object().expect("a table") {
            let count = values.as_array().map(|values| values.len() as u64);
            assert!(count.is_none_or(|count| count == length), "{name}.{column}");
        }
    }
}

#[test]
fn the_table_gives_the_time_of_library_code_to_the_line_that_has_it() {
    let mut report = report();
    report.places.push(CodePlaceReport {
        function: "<u64>::wrapping_mul".into(),
        file: "core/src/num/uint_macros.rs".into(),
        line: 2_533,
    });
    report.stacks = vec![
        ProfiledStackReport { samples: 60, in_host: false, places: vec![3, 1, 0] },
        ProfiledStackReport { samples: 30, in_host: false, places: vec![0] },
        ProfiledStackReport { samples: 8, in_host: true, places: vec![0] },
        // Nothing of it is the extension's.
        ProfiledStackReport { samples: 2, in_host: false, places: vec![3] },
    ];
    let shown = table(&report);
    let rows: Vec<Vec<&str>> = shown.lines().skip(2).map(|line| line.split_whitespace().take(2).collect()).collect();
    assert_eq!(rows, [["60.0", "60.0"], ["30.0", "98.0"], ["8.0", "8.0"], ["2.0", "62.0"]], "{shown}");
    assert!(shown.lines().nth(2).is_some_and(|first| first.ends_with("src/lib.rs:9")), "{shown}");
}

#[test]
fn a_flame_graph_is_xml_whatever_the_names_are() {
    let svg = flame_graph::svg(&report());
    assert!(!svg.contains("<script") && svg.contains("&lt;script&gt;alert(&quot;1&quot;)&amp;\u{fffd}"), "{svg}");
    assert!(svg.contains("(70 samples, 70.0 %)") && svg.contains("[host call] (28 samples"), "{svg}");
    // Every element that is opened is closed, in order.
    let mut open = Vec::new();
    for tag in svg.split('<').skip(2).map(|rest| rest.split('>').next().unwrap_or_default()) {
        let name: String = tag.trim_start_matches('/').chars().take_while(char::is_ascii_alphanumeric).collect();
        match (tag.starts_with('/'), tag.ends_with('/')) {
            (true, _) => assert_eq!(open.pop(), Some(name)),
            (false, false) => open.push(name),
            (false, true) => {}
        }
    }
    assert!(open.is_empty());
}

#[test]
fn no_file_has_characters_that_a_terminal_or_a_browser_acts_on() {
    let mut report = report();
    report.places[1].function = "two::\u{202e}\u{1b}]0;x\u{7}\u{200b}\u{2066}".into();
    report.places[0].file = "src/\u{202e}\tlib.rs".into();
    for format in ProfileFormat::value_variants() {
        let bytes = format.bytes(&report);
        let text = String::from_utf8_lossy(&bytes);
        for harmful in ["\u{202e}", "\u{1b}]", "\u{7}", "\u{200b}", "\u{2066}"] {
            // Lengths and numbers of pprof's fields are bytes of any value.
            let found = text.contains(harmful) && (*format != ProfileFormat::Pprof || harmful.len() > 1);
            assert!(!found, "{format:?} has {harmful:?}");
        }
        assert!(text.contains("u{202e}"), "{format:?} shows it by its number");
    }
}

/// Fields of a message: number, and a value or bytes.
fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (first, rest) = bytes.split_first().expect("a whole number");
            *bytes = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                break;
            }
        }
        value
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let value = varint(&mut bytes);
        let content = match tag & 7 {
            0 => Vec::new(),
            2 => {
                let (content, rest) = bytes.split_at(value as usize);
                bytes = rest;
                content.to_vec()
            }
            other => panic!("type {other}"),
        };
        found.push((tag >> 3, value, content));
    }
    found
}

#[test]
fn pprof_reads_what_is_written() {
    let bytes = pprof::encode(&report());
    let all = fields(&bytes);
    let of = |number: u64| all.iter().filter(move |field| field.0 == number).map(|field| fields_or_text(&field.2));
    fn fields_or_text(bytes: &[u8]) -> Vec<u8> {
        bytes.to_vec()
    }
    let texts: Vec<String> = of(6).map(|text| String::from_utf8(text).expect("text")).collect();
    assert_eq!(texts[0], "", "the first text is empty");
    assert!(texts.contains(&"two::run".to_owned()) && texts.contains(&HOST_CALL.to_owned()), "{texts:?}");
    let samples: Vec<_> = of(2).map(|sample| fields(&sample)).collect();
    assert_eq!(samples.len(), 3);
    assert_eq!(samples[0][0].2, [2, 1], "the innermost location first, from 1");
    assert_eq!(samples[1][0].2[0], 4, "the host's");
    let locations: Vec<u64> = of(4).map(|location| fields(&location)[0].1).collect();
    assert_eq!(locations, [1, 2, 3, 4, 5]);
}

/// With Go's own program, where it is installed.
#[test]
fn pprof_shows_the_names_of_functions_whole() {
    const NAMES: [&str; 4] = [
        "<two::Key as core::cmp::PartialOrd>::lt",
        "two::sum::<u64>",
        "two::<impl two::Walk for two::Key>::go",
        "two::run",
    ];
    let place = |name: &&str| CodePlaceReport { function: (*name).into(), file: "src/lib.rs".into(), line: 5 };
    let stack = |at| ProfiledStackReport { samples: 10, in_host: false, places: vec![at] };
    let report = ProfileReport {
        places: NAMES.iter().map(place).collect(),
        stacks: (0..NAMES.len()).map(stack).collect(),
        ..report()
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("two.pb");
    std::fs::write(&file, pprof::encode(&report)).expect("room");
    let run = std::process::Command::new("go").args(["tool", "pprof", "-top"]).arg(&file).output();
    let output = match run {
        Ok(output) if output.status.success() => output,
        other => return println!("skipped: there is no `go tool pprof` ({other:?})"),
    };
    let shown = String::from_utf8_lossy(&output.stdout);
    for name in NAMES {
        assert!(shown.lines().any(|line| line.ends_with(&format!("  {name}"))), "{name}:\n{shown}");
    }
}
