//! Promise: the page works in a browser, shows the API's numbers, and takes nothing that a tenant has named for markup.
//! In headless Chromium, where it is installed; `UPDATE_DOCS=1` writes the pictures of docs/operations.md.

use std::fs;
use std::io::{BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::http::{get, has_program};
use crate::common::process::Server;
use crate::common::root;

/// A browser that is told what to do through a pipe (its DevTools protocol); ended when dropped.
pub(super) struct HeadlessBrowser {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    next_id: u64,
    session: Option<String>,
    /// What the page has written to its console, and what the browser complained of.
    pub(super) complaints: Vec<String>,
    /// Addresses that were asked for.
    requests: Vec<String>,
    _folder: tempfile::TempDir,
}

impl Drop for HeadlessBrowser {
    fn drop(&mut self) {
        let _ended_already = self.process.kill();
        let _status = self.process.wait();
    }
}

impl HeadlessBrowser {
    pub(super) fn start() -> HeadlessBrowser {
        let folder = tempfile::tempdir().expect("a folder");
        // The browser reads commands from file 3, and answers to file 4.
        let script = format!(
            "exec chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --no-first-run \
             --remote-debugging-pipe --user-data-dir={} about:blank 3<&0 4>&1 </dev/null >/dev/null 2>&1",
            folder.path().display()
        );
        let mut process = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a browser");
        let (to, from) = (process.stdin.take().expect("a pipe"), process.stdout.take().expect("a pipe"));
        let mut browser = HeadlessBrowser {
            process,
            to,
            from: BufReader::new(from),
            next_id: 0,
            session: None,
            complaints: Vec::new(),
            requests: Vec::new(),
            _folder: folder,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({"targetId": target, "flatten": true}));
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    fn read(&mut self) -> Value {
        let mut message = Vec::new();
        let mut byte = [0];
        while self.from.read_exact(&mut byte).is_ok() && byte[0] != 0 {
            message.push(byte[0]);
        }
        serde_json::from_slice(&message).expect("a message of the browser")
    }

    pub(super) fn call(&mut self, method: &str, parameters: Value) -> Value {
        let answer = self.ask(method, parameters);
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// Asks for something; a page that is about to go refuses.
    fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.next_id += 1;
        let mut message = json!({"id": self.next_id, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{message}\0").as_bytes()).expect("it listens");
        loop {
            let answer = self.read();
            if answer["id"] == self.next_id {
                return answer;
            }
            self.note(&answer);
        }
    }

    fn note(&mut self, event: &Value) {
        let parameters = &event["params"];
        match event["method"].as_str() {
            Some("Runtime.consoleAPICalled" | "Runtime.exceptionThrown") => {
                self.complaints.push(parameters.to_string())
            }
            Some("Log.entryAdded") if parameters["entry"]["level"] != "verbose" => {
                self.complaints.push(parameters["entry"].to_string());
            }
            Some("Network.requestWillBeSent") => {
                self.requests.push(parameters["request"]["url"].as_str().unwrap_or_default().to_owned());
            }
            _ => {}
        }
    }

    /// The value of an expression in the page.
    pub(super) fn evaluate(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        self.ask("Runtime.evaluate", parameters)["result"]["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub(super) fn wait_for(&mut self, expression: &str) {
        let until = Instant::now() + crate::common::EVENTUALLY;
        while self.evaluate(expression) != json!(true) {
            assert!(Instant::now() < until, "{expression}: {}", self.evaluate("document.body.innerText"));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn go(&mut self, address: &str) {
        self.call("Page.navigate", json!({"url": address}));
        self.wait_for(&format!("document.readyState === 'complete' && location.href.startsWith({address:?})"));
    }

    /// A picture of the window.
    fn picture(&mut self, (width, height): (u32, u32), dark: bool) -> Vec<u8> {
        let window = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", window);
        let scheme = if dark { "dark" } else { "light" };
        let scheme = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", scheme);
        let taken = self.call("Page.captureScreenshot", json!({"format": "png"}));
        from_base64(taken["data"].as_str().expect("a picture"))
    }
}

fn from_base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.bytes().filter_map(|c| DIGITS.iter().position(|digit| *digit == c));
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0_u32, 0);
    for digit in digits {
        bits = (bits << 6) | digit as u32;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    bytes
}

/// Names and texts that a page must not take for anything but text.
pub(super) const HOSTILE: &str = "<img src=x onerror=\"window.broken=1\">\u{202e}\u{7}";

/// A server with tenants, records, a refused push and events with hostile texts.
pub(super) fn filled_server() -> Server {
    let server = Server::start_as(&["--no-builder"]);
    for (tenant, quota) in [("shop", "tables=2"), ("reports", "tables=64"), ("games", "requests_per_s=50000")] {
        server.json(&format!("tenant create {tenant} --quota {quota}"));
        server.json(&format!("table create items --tenant {tenant}"));
    }
    for number in 0..20 {
        server.json(&format!("put items key{number} value --tenant shop"));
    }
    // An event with a text that its sender has chosen.
    let pushed = server.folder.path().join("x.wasm");
    fs::write(&pushed, HOSTILE).expect("room");
    let mut push = server.command();
    push.args(["ext", "push", "--name"]).arg("x").args(["--tenant", "shop", "--wasm"]).arg(&pushed);
    let _refused = push.output().expect("the command line");
    server
}

/// Signs in with a code, as `sandstorm ui` prints it.
pub(super) fn sign_in(browser: &mut HeadlessBrowser, server: &Server) {
    let made = server.json("ui");
    browser.go(made["address"].as_str().expect("an address"));
    let code = made["code"].as_str().expect("a code");
    browser.evaluate(&format!("document.getElementById('token').value = {code:?}; document.forms[0].submit()"));
    browser.wait_for("document.querySelector('.cards') !== null");
}

/// The page of a tenant draws what it used over time, as the history has it, and the overview names it.
fn check_past(browser: &mut HeadlessBrowser, server: &Server, operator: &str) {
    browser.wait_for("document.querySelector('#past [data-past=requests] polyline') !== null");
    let told =
        "JSON.stringify(past.periods.map((one) => [one.at_ms, one.rows.filter((row) => row.tenant === 'shop')]))";
    let told: Value = serde_json::from_str(browser.evaluate(told).as_str().expect("text")).expect("JSON");
    let by = browser.evaluate("past.by");
    let path = format!("/v1/history?by={}&tenant=shop", by.as_str().expect("a name"));
    let kept: Value = serde_json::from_str(&get(&server.control, &path, operator).1).expect("JSON");
    let kept = kept["periods"].as_array().expect("periods");
    for period in told.as_array().expect("periods") {
        let same = kept.iter().find(|one| one["at_ms"] == period[0]);
        assert!(same.is_none_or(|one| one["rows"] == period[1]), "{period} is not in {kept:?}");
    }
    let drawn =
        browser.evaluate("document.querySelector('#past [data-past=requests] polyline').getAttribute('points')");
    let lowest = drawn.as_str().expect("points").split(' ').filter_map(|point| point.split(',').nth(1)?.parse().ok());
    assert!(lowest.fold(60.0_f64, f64::min) < 10.0, "the most of it is near the top: {drawn}");
    browser.evaluate("location.hash = '#/overview'");
    browser.wait_for("document.querySelector('#past .names')?.textContent.includes('shop') === true");
}

#[test]
fn the_page_shows_the_numbers_of_the_api_and_takes_no_text_for_markup() {
    if !has_program("chromium", "chromium") {
        return;
    }
    let server = filled_server();
    let operator = fs::read_to_string(server.state().join("operator-token")).expect("a token");
    let mut browser = HeadlessBrowser::start();
    sign_in(&mut browser, &server);
    let (_, stat) = get(&server.control, "/v1/stat", operator.trim());
    let stat: Value = serde_json::from_str(&stat).expect("JSON");
    for name in ["tenants", "records", "extensions", "extensions_suspended", "throttled"] {
        let shown = browser.evaluate(&format!("document.querySelector('[data-name={name}]').textContent"));
        assert_eq!(shown, json!(stat["counters"][name].to_string()), "{name}");
    }
    assert_eq!(stat["counters"]["records"], 20);
    browser.wait_for("document.getElementById('findings')?.textContent.includes('There is no builder.') === true");
    // By keys alone: the second view, a tenant, its tables.
    browser.evaluate("document.dispatchEvent(new KeyboardEvent('keydown', {key: '2', bubbles: true}))");
    browser.wait_for("document.querySelectorAll('#tenants tbody tr').length === 3");
    browser.evaluate("location.hash = '#/tenant/shop'");
    browser.wait_for("document.getElementById('tables')?.textContent.includes('items') === true");
    let requests = browser.evaluate("document.querySelector('[data-name=requests]').textContent");
    let (_, own) = get(&server.control, "/v1/overview?tenant=shop", operator.trim());
    let own: Value = serde_json::from_str(&own).expect("JSON");
    assert_eq!(requests, json!(own["tenants"][0]["requests"].to_string()));
    check_past(&mut browser, &server, operator.trim());
    // What tenants have chosen is text.
    let hostile = serde_json::to_string(HOSTILE).expect("JSON");
    let lines = format!(
        "(() => {{ past.periods[0].rows.push({{...past.periods[0].rows[0], tenant: {hostile}, requests: 1e9}}); \
         const told = document.createElement('div'); told.append(...pastCharts()); \
         return [told.querySelectorAll('img').length, told.textContent.includes('<img src=x')]; }})()"
    );
    assert_eq!(browser.evaluate(&lines), json!([0, true]));
    let made = format!(
        "(() => {{ take = () => {{}}; latest.read.tenants[0].name = {hostile}; latest.read.events.push({{at_ms: Date.now(), code: 'push_refused', \
         actor: {hostile}, tenant: {hostile}, text: {hostile}, subject: {hostile}}}); latest.about = null; latest.part = 'events'; location.hash = '#/events'; draw(); return document.querySelectorAll('img').length; }})()"
    );
    assert_eq!(browser.evaluate(&made), json!(0));
    browser.wait_for(
        "document.getElementById('events').textContent.includes('<img src=x') && window.broken === undefined",
    );
    let text = browser.evaluate("document.getElementById('events').textContent");
    assert!(text.as_str().is_some_and(|text| text.contains("\\u{202e}") && !text.contains('\u{202e}')), "{text}");
    assert_eq!(browser.complaints, [""; 0], "the console is silent");
    let own = format!("http://{}/", server.control.trim_start_matches("http://"));
    let foreign: Vec<&String> =
        browser.requests.iter().filter(|url| !url.starts_with(&own) && *url != "about:blank").collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    let known = ["?tenant=", "/v1/overview?show=", "/v1/history?by="];
    let is_known = |url: &str| !url.contains('?') || known.iter().any(|known| url.contains(known));
    let secret = browser.requests.iter().any(|url| url.contains("token") || !is_known(url));
    assert!(!secret, "{:?}", browser.requests);
    assert_eq!(browser.evaluate("document.cookie"), json!(""), "the script does not see the session");
}

#[test]
fn what_is_looked_at_closely_is_drawn_and_takes_no_text_for_markup() {
    if !has_program("chromium", "chromium") {
        return;
    }
    let server = filled_server();
    server.json("slow --threshold-us 1");
    for number in 0..20 {
        server.json(&format!("get items key{number} --tenant shop"));
    }
    let mut browser = HeadlessBrowser::start();
    sign_in(&mut browser, &server);
    // A table's heat, counted while keys are read.
    browser.evaluate("location.hash = '#/table/shop/items'");
    browser.wait_for("document.getElementById('look') !== null");
    browser.evaluate(
        "(() => { const path = '/v1/tenants/shop/tables/items/heat'; \
         get(path + '?seconds=2').then((result) => { closeUp = {path, state: '', result}; draw(); }); })()",
    );
    while browser.evaluate("document.getElementById('heated') === null") == json!(true) {
        server.json("get items key7 --tenant shop");
    }
    let heat =
        browser.evaluate("[closeUp.result.accesses.length, closeUp.result.ranges.every((one) => one.first === null)]");
    assert_eq!(heat, json!([2, true]), "a viewer sees no key");
    let cells =
        browser.evaluate("document.querySelectorAll('.heats rect').length === 2 * closeUp.result.ranges.length");
    assert_eq!(cells, json!(true));
    // A slow request, and what it did.
    browser.evaluate("location.hash = '#/slow'");
    browser.wait_for("document.querySelectorAll('#slow tbody a').length > 1");
    browser.evaluate("document.querySelector('#slow tbody a').click()");
    browser.wait_for("document.getElementById('explained')?.textContent.includes('from arrival to answer') === true");
    // A profile, whose functions have whatever names their tenants chose.
    let hostile = serde_json::to_string(HOSTILE).expect("JSON");
    let drawn = format!(
        "(() => {{ const places = [{{function: {hostile}, file: 'src/lib.rs', line: 7}}, {{function: 'run', file: 'src/lib.rs', line: 3}}]; \
         const stacks = [{{samples: 30, in_host: false, places: [0, 1]}}, {{samples: 10, in_host: true, places: [1]}}]; \
         const profile = {{samples: 40, named: 40, version: 1, calls: 9, cpu_us: 5, waiting_us: 1, places, stacks}}; \
         document.getElementById('main').replaceChildren(...drawnProfile(profile)); \
         const widths = [...document.querySelectorAll('.flames rect')].map((box) => Math.round(box.getAttribute('width'))); \
         return [widths, document.querySelectorAll('img').length, document.getElementById('hottest').textContent.includes('<img src=x')]; }})()"
    );
    assert_eq!(browser.evaluate(&drawn), json!([[999, 999, 749, 249], 0, true]));
    // The time of library code that the compiler has put into a line is the line's.
    let hottest = "hottestPlaces({stacks: [{samples: 5, places: [0, 1]}], places: \
                   [{function: 'core::x', file: 'core/src/x.rs', line: 1}, \
                   {function: 'run', file: 'src/lib.rs', line: 3}]})[0].name";
    assert_eq!(browser.evaluate(hottest), json!("run src/lib.rs:3"));
    assert_eq!(browser.complaints, [""; 0], "the console is silent");
}

/// Requests of tenants, one more than others, so that pictures for the docs show something.
fn use_for_a_while(server: &Server) {
    let until = Instant::now() + crate::common::EVENTUALLY;
    let mut number = 0_u32;
    while Instant::now() < until {
        number += 1;
        // As often as a digit of its square root: some keys more than others.
        let key = f64::from(number % 400).sqrt() as u32;
        server.json(&format!("get items key{key} --tenant shop"));
        if number.is_multiple_of(5) {
            server.json(&format!("put items key{} value --tenant games", number % 7));
        }
    }
}

#[test]
fn the_page_fits_a_small_window_and_either_scheme() {
    if !has_program("chromium", "chromium") {
        return;
    }
    let server = filled_server();
    let mut browser = HeadlessBrowser::start();
    sign_in(&mut browser, &server);
    let mut pictures = Vec::new();
    let is_for_docs = std::env::var_os("UPDATE_DOCS").is_some();
    for (name, view, window, dark) in [
        ("overview", "overview", (1_000, 760), false),
        ("tenant", "tenant/shop", (1_000, 760), true),
        ("heat", "table/shop/items", (1_000, 760), true),
        ("small", "tenants", (400, 640), false),
    ] {
        browser.evaluate(&format!("location.hash = '#/{view}'"));
        if name == "heat" {
            browser.wait_for("document.getElementById('look') !== null");
            browser.evaluate("document.getElementById('look').click()");
        } else {
            browser.wait_for("document.querySelectorAll('main table tbody tr').length > 0");
        }
        if is_for_docs {
            use_for_a_while(&server);
        }
        let picture = browser.picture(window, dark);
        let (wide, back) = (
            browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth"),
            browser.evaluate("getComputedStyle(document.body).backgroundColor"),
        );
        assert_eq!(wide, json!(true), "{name}: nothing but tables scrolls sideways");
        assert_eq!(back != json!("rgb(255, 255, 255)"), dark, "{name}: {back}");
        assert!(picture.starts_with(b"\x89PNG") && picture.len() <= 100 << 10, "{name}: {} bytes", picture.len());
        pictures.push((name, picture));
    }
    assert_eq!(browser.complaints, [""; 0], "the console is silent");
    if is_for_docs {
        let folder = root().join("docs/pictures");
        fs::create_dir_all(&folder).expect("a folder");
        for (name, picture) in pictures {
            fs::write(folder.join(format!("{name}.png")), picture).expect("room");
        }
    }
}
