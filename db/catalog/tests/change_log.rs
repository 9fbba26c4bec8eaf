//! Promise: the log tells of each change of the directory at `info`, never of a token, and of none at the usual level.
//!
//! In a program of its own, one test after another: while another thread uses a call of `tracing` for the first time, a
//! subscriber that is set just then may not get what comes from there.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandstorm_catalog::{Directory, GrantAccess, GrantIssuer, NewTable, NewTenant, QuotaChanges, journal};
use sandstorm_store::{Epochs, StorageMode};
use tracing::Level;

/// Held by the test that runs.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The lines that are logged at this level during `work`.
fn logged(level: Level, work: impl FnOnce()) -> Vec<String> {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_max_level(level).with_ansi(false).without_time().with_target(false);
    tracing::subscriber::with_default(subscriber.with_writer(move || writer.clone()).finish(), work);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    text.lines().map(|line| line.trim().to_owned()).collect()
}

fn new(name: &str) -> NewTenant {
    NewTenant { name: name.to_owned(), ..NewTenant::default() }
}

#[test]
fn the_log_tells_of_each_change_at_info_and_never_a_token() {
    let directory = Directory::new(Epochs::new());
    let mut tokens = Vec::new();
    let lines = logged(Level::INFO, || {
        tokens.push(directory.create_tenant(new("shop")).unwrap().1);
        directory.create_tenant(new("reports")).unwrap();
        let (name, mode) = ("carts".to_owned(), StorageMode::Cache);
        let carts = NewTable { name, id: None, mode, quota_bytes: None, ..NewTable::named("") };
        directory.create_table("shop", carts).unwrap();
        let changes = QuotaChanges { requests_per_s: Some(50), weight: Some(2), ..QuotaChanges::default() };
        directory.set_quotas("shop", &changes).unwrap();
        directory.grant("shop", "carts", "reports", GrantAccess::ReadWrite, GrantIssuer::Operator).unwrap();
        directory.revoke("shop", "carts", "reports").unwrap();
        tokens.push(directory.rotate_with_grace("shop", Duration::from_secs(60)).unwrap());
        tokens.push(directory.rotate_token("shop").unwrap());
        directory.drop_table("shop", "carts").unwrap();
        directory.delete_tenant("shop").unwrap();
    });
    let expected = [
        "INFO tenant created tenant=\"shop\" id=1 origin=\"made\" open=false home_worker=0 code=\"sandboxed\"",
        "INFO tenant created tenant=\"reports\" id=2 origin=\"made\" open=false home_worker=0 code=\"sandboxed\"",
        "INFO table created tenant=\"shop\" table=\"carts\" id=1 mode=\"cache\" ordered=false quota_bytes=536870912",
        "INFO quotas changed tenant=\"shop\" changed=\"requests_per_s 0 -> 50, weight 1 -> 2\"",
        "INFO table granted tenant=\"shop\" table=\"carts\" to=\"reports\" access=\"read_write\"",
        "INFO grant ended tenant=\"shop\" table=\"carts\" to=\"reports\"",
        "INFO granted table dropped tenant=\"reports\" table=\"shop/carts\" id=281474976710656",
        "INFO token replaced; the old one works until its grace ends tenant=\"shop\"",
        "INFO token replaced tenant=\"shop\"",
        "INFO table dropped tenant=\"shop\" table=\"carts\" id=1",
        "INFO tenant deleted tenant=\"shop\" id=1 tables=0",
    ];
    let sorted = |mut lines: Vec<String>| {
        lines.sort();
        lines
    };
    assert_eq!(sorted(lines.clone()), sorted(expected.map(str::to_owned).to_vec()));
    assert!(tokens.iter().all(|token| token.len() >= 20 && !lines.concat().contains(token.as_str())));
}

#[test]
fn tenants_of_a_journal_without_tiers_are_named_in_one_line_at_the_usual_level() {
    let tenant = |id: u32, code: &str| {
        let text = format!(
            r#"{{"id":{id},"name":"t{id}","origin":"made","open":true,"home_worker":0,"quotas":{{}},{code}
            "token":"","budgets":{{}},"tables":[],"next_table":1,"given":[],"received":[],"next_granted":1,
            "suspended":{{}},"versions":{{"loaded":{{}},"unloaded":{{}},"floor":0}}}}"#
        );
        let mut tenant: journal::JournalTenant = serde_json::from_str(&text).unwrap();
        tenant.token =
            journal::JournalToken::of(&sandstorm_accounts::TokenHash::of_chosen("a-token-of-twenty-letters").unwrap());
        (id, tenant)
    };
    let old = (1..=12).map(|id| tenant(id, ""));
    let tenants = old.chain([tenant(13, r#""code":"none","#)]).collect();
    let kept = journal::DirectoryImage { tenants, next_tenant: 14, next_home: 0 };
    let directory = Directory::new(Epochs::new());
    let lines = logged(Level::WARN, || directory.restore(&kept).unwrap());
    let [line] = lines.as_slice() else { panic!("one line: {lines:?}") };
    assert!(line.starts_with("WARN 12 tenants of an earlier version keep code = native"), "{line}");
    assert!(line.contains("t1, t2") && line.contains("t10 and 2 more)") && line.contains("--code sandboxed"));
}

#[test]
fn nothing_is_said_of_changes_at_the_usual_level() {
    let directory = Directory::new(Epochs::new());
    let lines = logged(Level::WARN, || {
        directory.create_tenant(new("shop")).unwrap();
        directory.delete_tenant("shop").unwrap();
    });
    assert_eq!(lines, Vec::<String>::new());
}
