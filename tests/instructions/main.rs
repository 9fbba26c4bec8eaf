//! Promise: the inner parts of a request do not get longer unnoticed. The test counts the instructions of each under
//! valgrind, or step by step where valgrind cannot run them, and compares them with the recorded counts, so that the
//! machine and its load do not matter.
//!
//! `cargo test -p sandstorm-tests --test instructions`, with `--release` for the optimized code, and `-- TEXT` for the
//! pieces whose names contain that. The counts are in `tests/instructions/`, a file for each profile; `UPDATE_COUNTS=1`
//! rewrites it. A lower count is welcome and should be recorded, too: otherwise it could be lost again unnoticed.
//! Without valgrind nothing is counted, and a line says so.

mod pieces;
mod steps;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use pieces::{PIECES, Pieces, is_sandboxed};

/// Tells the child how often to run a piece.
const TIMES: &str = "SANDSTORM_INSTRUCTIONS_TIMES";
/// Tells the child which piece to run.
const PIECE: &str = "SANDSTORM_INSTRUCTIONS_PIECE";
/// Tells the child the folder of the extensions' libraries.
const LIBRARIES: &str = "SANDSTORM_INSTRUCTIONS_LIBRARIES";
/// Times that a piece is run between the two counts whose difference is taken.
const ROUNDS: u64 = 512;
/// Times that a piece is run step by step, tens of microseconds each, after as many that are not counted.
const STEPPED_ROUNDS: u64 = 16;
/// The difference that is not reported: hash tables are seeded anew in each process, so their chains differ.
const NOISE: f64 = 0.05;
/// The increase above which a count is an error. The compiler divides a crate into units anew with every change of it,
/// and its inlining changes with them. An unrelated change has moved the parser of 32 gets, the most sensitive, by 21
/// %.
const TOLERANCE: f64 = 0.25;

fn main() -> ExitCode {
    if let (Ok(piece), Ok(times)) = (std::env::var(PIECE), std::env::var(TIMES)) {
        let (piece, times) = (piece.parse().expect("the number of a piece"), times.parse().expect("a number"));
        let mut pieces = Pieces::new(piece, Path::new(&std::env::var(LIBRARIES).expect("a folder")));
        pieces.run(piece, times);
        if is_sandboxed(piece) {
            if steps::trace_me().is_err() {
                return ExitCode::from(steps::NOT_TRACED);
            }
            steps::mark();
            pieces.run(piece, times);
            steps::mark();
        }
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: there is no valgrind to count instructions with (Debian's package valgrind)");
        return ExitCode::SUCCESS;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    pieces::write_libraries(folder);
    let counted: BTreeMap<&str, u64> = (0..PIECES.len())
        .filter(|piece| wanted.is_empty() || wanted.iter().any(|text| PIECES[*piece].contains(text.as_str())))
        .filter_map(|piece| {
            if is_sandboxed(piece) {
                return count_steps(folder, piece).map(|counted| (PIECES[piece], counted));
            }
            let [once, often] = std::thread::scope(|scope| {
                let counts = |times| scope.spawn(move || count(folder, piece, times));
                [1, 1 + ROUNDS].map(counts).map(|counted| counted.join().expect("counted"))
            });
            Some((PIECES[piece], (often.saturating_sub(once) + ROUNDS / 2) / ROUNDS))
        })
        .collect();
    compare(&counted)
}

fn this_program() -> PathBuf {
    std::env::current_exe().expect("this program")
}

/// A program, told which piece it runs, and how often.
fn child(mut program: Command, folder: &Path, piece: usize, times: u64) -> Command {
    program.env(PIECE, piece.to_string()).env(TIMES, times.to_string()).env(LIBRARIES, folder);
    program
}

/// The instructions of a piece, counted step by step; `None`, and a line says so: the operating system refuses that.
fn count_steps(folder: &Path, piece: usize) -> Option<u64> {
    match steps::count(&mut child(Command::new(this_program()), folder, piece, STEPPED_ROUNDS)) {
        Ok(counted) => Some((counted + STEPPED_ROUNDS / 2) / STEPPED_ROUNDS),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            println!("not counted, since ptrace is refused: {}", PIECES[piece]);
            None
        }
        Err(error) => panic!("{}: {error}", PIECES[piece]),
    }
}

/// The instructions of the first thread of a process in which it runs a piece so often. The startup differs from
/// process to process: keys are random.
fn count(folder: &Path, piece: usize, times: u64) -> u64 {
    let out = folder.join(format!("counts-{piece}-{times}"));
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=callgrind", "--separate-threads=yes", "--toggle-collect=*pieces::Pieces::run"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(this_program());
    let run = child(valgrind, folder, piece, times).output().expect("valgrind runs");
    assert!(run.status.success(), "{}: {}", PIECES[piece], String::from_utf8_lossy(&run.stderr));
    // Each thread has a file, from 01 on: the watchdog's work is not counted.
    let file = PathBuf::from(format!("{}-01", out.display()));
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let totals = text.lines().find_map(|line| line.strip_prefix("totals: ").or_else(|| line.strip_prefix("summary: ")));
    let totals = totals.and_then(|number| number.trim().parse().ok()).expect("valgrind says how many");
    assert!(totals > 0, "valgrind has not found the function that it is to look into");
    totals
}

/// Compares with the recorded counts of this profile, or records them.
fn compare(counted: &BTreeMap<&str, u64>) -> ExitCode {
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("instructions/{profile}.txt"));
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let mut known: BTreeMap<&str, u64> = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(count, piece)| Some((piece.trim(), count.parse().ok()?)))
        .collect();
    let mut off = 0;
    for (piece, now) in counted {
        let before = known.insert(piece, *now);
        let change = before.map(|before| *now as f64 / before.max(1) as f64 - 1.0);
        let is_off = change.is_none_or(|change| change > TOLERANCE);
        off += usize::from(is_off);
        let mark = match change {
            _ if is_off => "  <-- too many",
            Some(change) if change.abs() > NOISE => "  <-- write it down, if it is meant",
            _ => "",
        };
        let change = change.map_or("not written down yet".into(), |change| format!("{:+.1} %", 100.0 * change));
        println!("{now:>8} instructions, {change}: {piece}{mark}");
    }
    if std::env::var_os("UPDATE_COUNTS").is_some() {
        let lines: String = known.iter().map(|(piece, count)| format!("{count} {piece}\n")).collect();
        std::fs::write(&file, lines).expect("room for the counts");
        println!("written: {}", file.display());
    } else if text.is_empty() {
        println!("nothing is written down for {profile} builds: UPDATE_COUNTS=1 does that");
    } else if off > 0 {
        println!(
            "{off} pieces take more than in {}, by more than {} %. If that is meant: UPDATE_COUNTS=1, and say why in the commit",
            file.display(),
            100.0 * TOLERANCE
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
