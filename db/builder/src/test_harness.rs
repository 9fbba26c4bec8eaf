//! What runs an extension's tests as a module of the sandboxed tier. It is a crate of its own, compiled for wasm32 with
//! the standard library, and linked with the tests.
//!
//! Guarantees: only addresses and lengths of slices that are alive are passed to the host.
//!
//! Called without arguments, the module replies with its tests: for each the name's length (u32), the name, and flags
//! (1: ignored, 2: it should panic). Called with a number (u32), it runs that test. A panic is `abort` with its text,
//! after a `+` where the text is as the test says that it should be, and a `-` elsewhere.
#![feature(test)]

extern crate test;

use std::sync::Mutex;
use test::{ShouldPanic, TestDescAndFn, TestFn};

#[link(wasm_import_module = "sandstorm")]
unsafe extern "C" {
    fn reply(bytes: *const u8, len: usize) -> u32;
    fn abort(cause: u32, text: *const u8, len: usize) -> !;
    fn args_len() -> usize;
    fn args_copy(to: *mut u8);
}

unsafe extern "C" {
    /// What the compiler makes of the crate's tests: it calls [`run`].
    fn main(argc: i32, argv: *const *const u8) -> i32;
}

/// What the text of a panic should have in it.
static EXPECTED: Mutex<Option<&'static str>> = Mutex::new(None);

/// Lists the tests, or runs the one that the arguments name.
pub fn run(tests: &[&TestDescAndFn]) {
    let mut arguments = vec![0; unsafe { args_len() }];
    unsafe { args_copy(arguments.as_mut_ptr()) };
    let Some(number) = arguments.first_chunk::<4>() else { return list(tests) };
    let test = tests[u32::from_le_bytes(*number) as usize];
    if let ShouldPanic::YesWithMessage(text) = test.desc.should_panic {
        *EXPECTED.lock().unwrap() = Some(text);
    }
    match &test.testfn {
        TestFn::StaticTestFn(function) => {
            if let Err(why) = function() {
                panic!("{why}");
            }
        }
        _ => panic!("only functions with #[test] run as a module"),
    }
}

fn list(tests: &[&TestDescAndFn]) {
    let mut out = Vec::new();
    for test in tests {
        let name = test.desc.name.to_string();
        out.extend((name.len() as u32).to_le_bytes());
        out.extend(name.as_bytes());
        out.push(u8::from(test.desc.ignore) + 2 * u8::from(test.desc.should_panic != ShouldPanic::No));
    }
    unsafe { reply(out.as_ptr(), out.len()) };
}

/// Called by the host, in fresh memory each time.
#[unsafe(no_mangle)]
pub extern "C" fn sandstorm_start(_slot: u32, _invocation: u32) -> u32 {
    std::panic::set_hook(Box::new(|info| {
        let text = info.to_string();
        let is_expected = EXPECTED.lock().unwrap().is_none_or(|expected| text.contains(expected));
        let text = format!("{}{text}", if is_expected { '+' } else { '-' });
        unsafe { abort(1, text.as_ptr(), text.len()) }
    }));
    unsafe { main(0, std::ptr::null()) };
    1
}
