//! Promise: a web page in a browser on the server's machine cannot run commands on a port that acts for a tenant.

use std::net::TcpListener;

use super::*;

/// Chromium 156's bytes for `fetch(url, {method: 'POST', mode: 'no-cors', body: '\r\nSET stolen 1\r\n'})` from a page
/// of another origin.
const POSTED: &str = "POST / HTTP/1.1\r\nHost: 127.0.0.1:6379\r\nConnection: keep-alive\r\nContent-Length: 16\r\nsec-ch-ua-platform: \"Linux\"\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) HeadlessChrome/156.0.0.0 Safari/537.36\r\n\
    sec-ch-ua: \"Not:A-Brand\";v=\"8\", \"Chromium\";v=\"156\"\r\nContent-Type: text/plain;charset=UTF-8\r\nsec-ch-ua-mobile: ?0\r\nAccept: */*\r\n\
    Origin: http://localhost:57763\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: empty\r\n\
    Referer: http://localhost:57763/\r\nAccept-Encoding: gzip, deflate, br, zstd\r\nAccept-Language: en-US,en;q=0.9\r\n\r\n\
    \r\nSET stolen 1\r\n";

fn spoke_http(plane: &DataPlane) -> u64 {
    let read = plane.metrics.read();
    flat(&read).find(|(name, _)| name == "connections_refused.http").map_or(0, |(_, count)| count)
}

/// Two ports that act for tenant `shop`: Redis' and memcached's.
fn ports() -> (DataPlane, SocketAddr, SocketAddr) {
    let plane = data_plane_with(
        "workers = 2\npin = false\n[[redis]]\naddress = '127.0.0.1:0'\ntenant = 'shop'\ntable = 'items'\n\
         [[memcached]]\naddress = '127.0.0.1:0'\ntenant = 'shop'\ntable = 'items'\nudp = false\n\
         [[tenants]]\nname = 'shop'\nopen = true\ntables = [{ name = 'items' }]\n",
    );
    // memcached's ports are bound first.
    let (memcached, redis) = (plane.listening()[0], plane.listening()[1]);
    (plane, redis, memcached)
}

/// The number of records that pages have managed to store.
fn stolen(redis: SocketAddr) -> String {
    let mut stream = TcpStream::connect(redis).expect("a connection");
    exchange(&mut stream, "EXISTS stolen\r\n", "\r\n")
}

#[test]
fn what_a_browser_posts_is_not_run_however_it_is_cut() {
    let (plane, redis, memcached) = ports();
    let lines = "set stolen 0 0 1\r\n1\r\n";
    let other = POSTED.replace("SET stolen 1\r\n", lines);
    let mut sent = 0;
    for first in ["POST / ", "GET /?a=b ", "PUT /' ", "OPTIONS * "] {
        for (port, text) in [(redis, POSTED), (memcached, other.as_str())] {
            let text = text.replacen("POST / ", first, 1);
            for cut in [1, 6, 16, text.len() / 2, text.len() - 14, text.len()] {
                let mut stream = TcpStream::connect(port).expect("a connection");
                stream.set_nodelay(true).expect("set");
                // It may be closed before the second part arrives.
                let _ended = stream.write_all(&text.as_bytes()[..cut]);
                std::thread::yield_now();
                let _ended = stream.write_all(&text.as_bytes()[cut..]);
                stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
                // Closed with unread bytes of this client, the connection may be reset instead of ended.
                let _ended = stream.read_to_end(&mut Vec::new());
                sent += 1;
            }
        }
    }
    assert_eq!(stolen(redis), ":0\r\n");
    // Redis' half of them; an unterminated quote is no command either. memcached's parser has its own error for it.
    assert_eq!(spoke_http(&plane), sent / 2 * 3 / 4);
}

/// The same from a real browser, where one is installed.
#[test]
fn a_page_in_chromium_has_nothing_stored() {
    let (plane, redis, memcached) = ports();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port for the page");
    let address = listener.local_addr().expect("an address");
    let fetch = |port: SocketAddr, body: &str| {
        format!(
            "fetch('http://127.0.0.1:{}/', {{method: 'POST', mode: 'no-cors', body: '{body}'}}).catch(() => 0)",
            port.port()
        )
    };
    let html = format!(
        "<script>Promise.all([{}, {}]).then(() => document.title = 'posted')</script>",
        fetch(redis, "\\r\\nSET stolen 1\\r\\n"),
        fetch(memcached, "\\r\\nset stolen 0 0 1\\r\\n1\\r\\n")
    );
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _asked = stream.read(&mut [0; 4096]);
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length:";
            let _told = stream.write_all(format!("{head} {}\r\n\r\n{html}", html.len()).as_bytes());
        }
    });
    let profile = tempfile::tempdir().expect("a folder");
    let mut command = Command::new("timeout");
    command.args([
        "120",
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=8000",
        "--dump-dom",
    ]);
    command.arg(format!("--user-data-dir={}", profile.path().display()));
    command.arg(format!("http://localhost:{}/", address.port()));
    let Some(output) = run(command, "timeout", "") else { return };
    if !text(&output).contains("posted") {
        eprintln!("skipped: no chromium that shows a page (Debian package chromium)");
        return;
    }
    assert_eq!(stolen(redis), ":0\r\n");
    assert!(spoke_http(&plane) >= 1, "the browser was heard");
}
