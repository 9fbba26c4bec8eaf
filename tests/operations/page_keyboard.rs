//! Promise: the page is used by keys alone, and its first chart is there with its first reading. In headless Chromium,
//! where it is installed, with the keys that a person presses.

use std::fs;
use std::time::Instant;

use serde_json::{Value, json};

use super::browser::{HeadlessBrowser, filled_server, sign_in};
use super::http::{get, has_program};
use crate::common::eventually;
use crate::common::process::Server;

/// What has the keyboard: its name for people, or its text.
const FOCUSED: &str = "(() => { const one = document.activeElement; \
     return one.getAttribute('aria-label') || one.textContent.trim() || one.id; })()";

/// Keeps pages that are opened from now on from reading a second time.
fn without_second_reading(browser: &mut HeadlessBrowser) {
    let source = "window.setTimeout = () => 0;";
    browser.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": source}));
}

/// Presses a key, and lets it go.
fn press(browser: &mut HeadlessBrowser, key: &str, code: &str, number: u32, text: &str) {
    let down = if text.is_empty() { "rawKeyDown" } else { "keyDown" };
    for kind in [down, "keyUp"] {
        let mut event = json!({"type": kind, "key": key, "code": code, "windowsVirtualKeyCode": number});
        if kind == "keyDown" {
            event["text"] = json!(text);
        }
        browser.call("Input.dispatchKeyEvent", event);
    }
}

fn tab(browser: &mut HeadlessBrowser) {
    press(browser, "Tab", "Tab", 9, "");
}

fn letter(browser: &mut HeadlessBrowser, letter: char) {
    let (text, number) = (letter.to_string(), letter.to_ascii_uppercase() as u32);
    press(browser, &text, &format!("Key{}", letter.to_ascii_uppercase()), number, &text);
}

fn has_past(server: &Server) -> bool {
    let operator = fs::read_to_string(server.state().join("operator-token")).expect("a token");
    let (_, kept) = get(&server.control, "/v1/history?by=seconds&tenant=shop", operator.trim());
    let kept: Value = serde_json::from_str(&kept).expect("JSON");
    let used = |period: &Value| period["rows"].as_array().is_some_and(|rows| !rows.is_empty());
    kept["periods"].as_array().is_some_and(|periods| periods.iter().filter(|one| used(one)).count() >= 2)
}

#[test]
fn the_first_reading_has_a_chart() {
    if !has_program("chromium", "chromium") {
        return;
    }
    let server = filled_server();
    let mut number = 0;
    let is_kept = eventually(|| {
        number += 1;
        server.json(&format!("get items key{} --tenant shop", number % 20));
        has_past(&server)
    });
    assert!(is_kept, "what a tenant used in two seconds is kept");
    let mut browser = HeadlessBrowser::start();
    without_second_reading(&mut browser);
    let begun = Instant::now();
    sign_in(&mut browser, &server);
    browser.wait_for("document.querySelector('#past [data-past=requests] polyline') !== null");
    println!("from the token to the first chart: {} ms", begun.elapsed().as_millis());
    assert_eq!(browser.evaluate("history.length"), json!(1), "the page has read once");
    assert_eq!(browser.complaints, [""; 0], "the console is silent");
}

#[test]
fn all_of_the_page_is_reached_by_keys_in_the_order_in_which_it_stands() {
    if !has_program("chromium", "chromium") {
        return;
    }
    let server = filled_server();
    let mut browser = HeadlessBrowser::start();
    without_second_reading(&mut browser);
    sign_in(&mut browser, &server);
    let names = ["Overview", "Tenants", "Extensions", "Kills", "Slow", "Events"];
    let mut order = Vec::new();
    let first = ["Skip to the content"].iter().chain(&names).chain(&["Sign out"]);
    for expected in first {
        tab(&mut browser);
        let focused = browser.evaluate(FOCUSED);
        order.push(focused.clone());
        assert_eq!(focused, json!(expected), "{order:?}");
    }
    // Then what the view has: each further on than the one before, and all that can be pressed.
    let reachable = "[...document.querySelectorAll('main a, main button, main input, main .wide')].length";
    let count = browser.evaluate(reachable).as_u64().expect("a number");
    assert!(count > 10, "tables, their headings and links");
    browser.evaluate("window.reached = []");
    for at in 0..count {
        tab(&mut browser);
        let is_next = browser.evaluate(
            "(() => { const one = document.activeElement; const last = reached[reached.length - 1]; reached.push(one); \
             return document.getElementById('main').contains(one) && (!last || \
             (last.compareDocumentPosition(one) & Node.DOCUMENT_POSITION_FOLLOWING) !== 0); })()",
        );
        assert_eq!(is_next, json!(true), "number {at} of {count}: {}", browser.evaluate(FOCUSED));
    }
    // A new reading leaves the keyboard where it is: at the second link to the same place, and at a table that scrolls.
    for which in [
        "[...document.querySelectorAll('main a[href=\"#/tenant/shop\"]')].at(-1)",
        "document.querySelector('main .wide')",
    ] {
        let place = format!(
            "(() => {{ const one = {which}; one.focus(); draw(); return [document.activeElement.isConnected, \
             document.activeElement === {which}]; }})()"
        );
        assert_eq!(browser.evaluate(&place), json!([true, true]), "{which}");
    }
    // A column is sorted by, and keeps the keyboard.
    browser.evaluate("document.querySelector('[data-sort=\"tenants.name\"]').focus()");
    press(&mut browser, "Enter", "Enter", 13, "\r");
    let sorted = "document.activeElement.closest('th').getAttribute('aria-sort')";
    assert_eq!(browser.evaluate(sorted), json!("ascending"));
    assert_eq!(browser.complaints, [""; 0], "the console is silent");
}

#[test]
fn keys_choose_the_view_filter_its_rows_and_pause() {
    if !has_program("chromium", "chromium") {
        return;
    }
    let server = filled_server();
    let mut browser = HeadlessBrowser::start();
    sign_in(&mut browser, &server);
    press(&mut browser, "2", "Digit2", 50, "2");
    browser.wait_for("document.querySelectorAll('#tenants tbody tr').length === 3");
    press(&mut browser, "/", "Slash", 191, "/");
    browser.wait_for("document.activeElement.id === 'filter' && document.activeElement.value === ''");
    "shop".chars().for_each(|one| letter(&mut browser, one));
    browser.wait_for("document.querySelectorAll('#tenants tbody tr').length === 1");
    assert_eq!(browser.evaluate("document.activeElement.value"), json!("shop"), "a letter of a filter is no command");
    press(&mut browser, "Escape", "Escape", 27, "");
    browser.wait_for("document.querySelectorAll('#tenants tbody tr').length === 3");
    // While it is paused nothing is read, and then again.
    letter(&mut browser, 'p');
    browser.wait_for("document.getElementById('state').textContent === 'paused'");
    server.json("tenant create late");
    browser.evaluate("poll()");
    assert_eq!(browser.evaluate("document.querySelectorAll('#tenants tbody tr').length"), json!(3));
    letter(&mut browser, 'p');
    browser.wait_for("document.querySelectorAll('#tenants tbody tr').length === 4");
    assert_eq!(browser.complaints, [""; 0], "the console is silent");
}
