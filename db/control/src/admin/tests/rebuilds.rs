//! Extensions that are moved between tiers, with a builder of which each answer is known.

use std::path::Path;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::*;
use crate::admin::artifact_store::ArtifactStore;
use sandstorm_accounts::TenantUsage;
use sandstorm_catalog::TenantView;
use sandstorm_catalog::journal::Journal;
use sandstorm_extension::ExtensionLibrary;
use sandstorm_net::{CodePolicy, CodeTier};

/// A builder that signs a library of nothing for whatever is asked for. It refuses a source for the tiers that the text
/// of the source names (`not-native`, `not-sandboxed`), and natively one that has a denied text. It waits while it is
/// stopped, and fails while it is broken.
#[derive(Default)]
pub(super) struct ScriptedBuilder {
    asked: Mutex<Vec<(u32, u64, CodeTier)>>,
    pub(super) broken: Mutex<bool>,
    stopped: Mutex<bool>,
    goes_on: Condvar,
}

pub(super) fn scripted_key() -> BuilderKey {
    BuilderKey::from_seed([7; 32])
}

impl ScriptedBuilder {
    pub(super) fn stop(&self, stopped: bool) {
        *self.stopped.lock() = stopped;
        self.goes_on.notify_all();
    }

    pub(super) fn asked(&self) -> Vec<(u32, u64, CodeTier)> {
        self.asked.lock().clone()
    }
}

/// The text in which a scripted builder looks for its instructions.
fn text_of(code: &PushedCode) -> String {
    match code {
        PushedCode::Source(source) => source.files[0].text.clone(),
        PushedCode::Module(module) => String::from_utf8_lossy(&module.wasm).into_owned(),
    }
}

impl ArtifactBuilder for ScriptedBuilder {
    fn build(&self, request: &BuildRequest) -> Result<(Artifact, Vec<Diagnostic>), BuildError> {
        let BuildRequest { tenant, version, source, tier, .. } = request;
        self.asked.lock().push((*tenant, *version, *tier));
        let mut stopped = self.stopped.lock();
        while *stopped {
            self.goes_on.wait(&mut stopped);
        }
        drop(stopped);
        self.check(request)?;
        let text = &text_of(source);
        if let Some(at) = text.find(&format!("not-{tier}")) {
            let refused = Diagnostic::refused("src/lib.rs", text, at..at + 3, "static", "an extension has no statics");
            return Err(BuildError::Refused(vec![refused.clone(), refused]));
        }
        if text.contains("panics") {
            panic!("a builder that panics");
        }
        let header = ArtifactHeader {
            tenant: *tenant,
            abi_version: sandstorm_api::abi::ABI_VERSION,
            version: *version,
            compiler: 7,
            api_fingerprint: api_fingerprint(),
            checker: checker_fingerprint(),
            source_digest: source.digest(),
            elf_digest: [0; 32],
            tier: *tier,
            origin: source.origin(),
            name: source.name().to_owned(),
            schema: None,
        };
        Ok((Artifact::sign(&scripted_key(), header, tier.name().as_bytes().to_vec()), Vec::new()))
    }

    fn check(&self, request: &BuildRequest) -> Result<(), BuildError> {
        if *self.broken.lock() {
            return Err(BuildError::Internal("it is broken".to_owned()));
        }
        let text = &text_of(&request.source);
        let denied = request.denied.iter().filter(|_| request.tier == CodeTier::Native);
        let found = denied.filter_map(|pattern| text.find(pattern.as_str()));
        let refused =
            |at: usize| Diagnostic::refused("src/lib.rs", text, at..at + 1, "denied", "the operator denies it");
        let refused: Vec<Diagnostic> = found.map(refused).collect();
        if refused.is_empty() { Ok(()) } else { Err(BuildError::Refused(refused)) }
    }

    fn key(&self) -> Option<PublicKey> {
        Some(scripted_key().public())
    }

    fn compiler(&self) -> Option<u64> {
        Some(7)
    }

    fn release(&self) -> String {
        "scripted".to_owned()
    }

    fn slots(&self) -> usize {
        2
    }
}

pub(super) fn sources(builder: &Arc<ScriptedBuilder>) -> ArtifactSources {
    let builder: Arc<dyn ArtifactBuilder> = builder.clone();
    ArtifactSources { loader: |_| Ok(ExtensionLibrary::of_nothing()), ..ArtifactSources::from(Ok(builder)) }
}

pub(super) fn server(builder: &Arc<ScriptedBuilder>) -> Server {
    Server::start_from(sources(builder).into())
}

/// A push of an extension with that comment in its source.
fn with_comment(name: &str, comment: &str) -> Value {
    source(name, &format!("/* {comment} */ Ok(())"))
}

impl Server {
    pub(super) fn create(&self, name: &str, code: CodePolicy) {
        let (status, created) = self.operator("POST", "/v1/tenants", json!({"name": name, "code": code}));
        assert_eq!((status, created["tenant"]["code"].as_str()), (201, Some(code.name())), "{created}");
    }

    pub(super) fn push_to(&self, tenant: &str, name: &str, comment: &str) -> (u16, Value) {
        let path = format!("/v1/tenants/{tenant}/extensions/{name}");
        self.operator("PUT", &path, with_comment(name, comment))
    }

    pub(super) fn extension(&self, tenant: &str, name: &str) -> Value {
        self.operator("GET", &format!("/v1/tenants/{tenant}/extensions/{name}"), Value::Null).1
    }

    /// Begins a change of the policy; the number of the rebuild.
    fn begin_move(&self, tenant: &str, code: CodePolicy) -> u64 {
        let (status, changed) = self.operator("PATCH", &format!("/v1/tenants/{tenant}"), json!({"code": code}));
        assert_eq!((status, changed["code"].as_str()), (200, Some(code.name())), "{changed}");
        changed["rebuild"].as_u64().expect("a rebuild")
    }

    /// The results of a rebuild, once it is over: extension, version, result, and the reason.
    pub(super) fn results(&self, id: u64) -> Vec<(String, u64, String, String)> {
        let begun = std::time::Instant::now();
        loop {
            let (status, rebuild) = self.operator("GET", &format!("/v1/rebuilds/{id}"), Value::Null);
            assert_eq!(status, 200, "{rebuild}");
            if rebuild["done"] == true {
                assert_eq!(rebuild["waiting"], 0);
                let text = |one: &Value, field: &str| one[field].as_str().unwrap().to_owned();
                let results = rebuild["results"].as_array().unwrap().iter();
                let result = |one: &Value| {
                    let version = one["version"].as_u64().unwrap();
                    (text(one, "extension"), version, text(one, "result"), text(one, "text"))
                };
                return results.map(result).collect();
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{rebuild}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(super) fn moved(&self, tenant: &str, code: CodePolicy) -> Vec<(String, u64, String, String)> {
        self.results(self.begin_move(tenant, code))
    }

    pub(super) fn view(&self, tenant: &str) -> Arc<TenantView> {
        self.control.directory.snapshot().by_name(tenant).unwrap().clone()
    }
}

#[test]
fn a_tenant_without_code_is_refused_everything_and_has_all_again_when_it_may() {
    let builder = Arc::new(ScriptedBuilder::default());
    let server = server(&builder);
    server.create("a", CodePolicy::Native);
    for name in ["one", "two"] {
        assert_eq!(server.push_to("a", name, "").0, 201);
    }
    let before = server.view("a").extension("one").unwrap().clone();
    let results = server.moved("a", CodePolicy::None);
    let suspended: Vec<_> = results.iter().map(|(name, version, result, _)| (&**name, *version, &**result)).collect();
    assert_eq!(suspended, [("one", 1, "suspended"), ("two", 1, "suspended")]);
    let view = server.view("a");
    assert!(view.suspension("one").unwrap().text.contains("sandstorm tenant set a --code sandboxed"));
    let shown = server.extension("a", "one");
    assert_eq!((&shown["suspended"], &shown["tier"]), (&json!(true), &json!("native")));
    assert!(shown["notice"].as_str().unwrap().contains("code policy is none"), "{shown}");
    let (status, refused) = server.push_to("a", "one", "");
    assert_eq!((status, refused["code"].as_str()), (403, Some("code_policy")), "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("code policy of tenant \"a\" is none"), "{refused}");
    assert!(refused["hint"].as_str().unwrap().contains("sandstorm tenant set NAME --code"), "{refused}");
    let artifact = server.raw("PUT", "/v1/tenants/a/extensions/one/artifact", Some(&server.operator), b"x");
    assert_eq!(artifact.0, 403, "{}", artifact.1);
    let resumed = server.operator("POST", "/v1/tenants/a/extensions/one/resume", Value::Null);
    assert_eq!(resumed.0, 403, "{}", resumed.1);

    let results = server.moved("a", CodePolicy::Native);
    assert!(results.iter().all(|(_, _, result, _)| result == "unchanged"), "{results:?}");
    assert!(Arc::ptr_eq(server.view("a").extension("one").unwrap(), &before), "nothing was built again");
    assert!(!server.view("a").is_suspended("one"));
    assert_eq!(builder.asked().len(), 2);
}

#[test]
fn a_module_stays_in_the_sandboxed_tier_wherever_its_tenant_is_moved() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Arc::new(ScriptedBuilder::default());
    let server = started(folder.path(), &builder);
    server.create("a", CodePolicy::Native);
    let path = "/v1/tenants/a/extensions/one/module";
    let push = |server: &Server, bytes: &[u8]| {
        let (status, answer) = server.raw("PUT", path, Some(&server.operator), bytes);
        (status, serde_json::from_str::<Value>(&answer).unwrap())
    };
    let module = b"\0asm\x01\0\0\0";
    let (status, pushed) = push(&server, module);
    assert_eq!((status, &pushed["extension"]["tier"]), (201, &json!("sandboxed")), "{pushed}");
    let shown = server.extension("a", "one");
    assert_eq!((&shown["origin"], &shown["source_kept"]), (&json!("module"), &json!(true)));
    let digest = "93a44bbb96c751218e4c00d479e4c14358122a389acca16205b1e4d0dc5f9476";
    assert_eq!(shown["source_digest"], digest, "that of the module's bytes");
    for code in [CodePolicy::Sandboxed, CodePolicy::Native, CodePolicy::None, CodePolicy::Native] {
        let expected = if code == CodePolicy::None { "suspended" } else { "unchanged" };
        assert_eq!(server.moved("a", code)[0].2, expected, "{code}");
    }
    assert_eq!(builder.asked().len(), 1, "nothing was built again");
    let (status, refused) = push(&server, b"\0asm\x01\0\0\0not-sandboxed");
    assert_eq!((status, &refused["code"]), (422, &json!("refused")), "{refused}");
    assert!(refused["hint"].as_str().unwrap().contains("ext check --wasm"), "{refused}");
    let (status, refused) = push(&server, b"#![no_std]");
    assert_eq!((status, &refused["code"]), (422, &json!("refused")), "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("it is no WebAssembly module"), "{refused}");
    let (status, refused) = push(&server, &vec![0; sandstorm_builder::limits::MODULE_BYTES + 1]);
    assert_eq!((status, &refused["code"]), (413, &json!("too_large")), "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("4194304 for a module"), "{refused}");
    drop(server);

    let id = 1;
    std::fs::write(folder.path().join(format!("extensions/{id}-1-one.artifact")), b"sandart\x01").unwrap();
    let server = started(folder.path(), &builder);
    let begun = std::time::Instant::now();
    while server.view("a").extension("one").is_none() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it is built again from the kept module");
        std::thread::sleep(Duration::from_millis(2));
    }
    let shown = server.extension("a", "one");
    assert_eq!((&shown["origin"], &shown["tier"]), (&json!("module"), &json!("sandboxed")));
    assert_eq!(server.push_to("a", "one", "").1["extension"]["tier"], "native", "source is as the policy says");
}

#[test]
fn a_tenant_is_moved_while_the_old_versions_serve_and_nothing_but_the_tier_changes() {
    let builder = Arc::new(ScriptedBuilder::default());
    let server = server(&builder);
    server.create("a", CodePolicy::Native);
    for _ in 0..3 {
        assert_eq!(server.push_to("a", "one", "").0, 201);
    }
    server.operator("PUT", "/v1/tenants/a/extensions/one/budget", json!({"total_us": 5_000}));
    let (id, old) = (server.view("a").tenant.id, server.view("a").extension("one").unwrap().clone());
    old.begun(0);
    let shown = server.extension("a", "one");
    assert_eq!((&shown["tier"], &shown["source_kept"]), (&json!("native"), &json!(true)));

    builder.stop(true);
    let rebuild = server.begin_move("a", CodePolicy::Sandboxed);
    while builder.asked().len() < 4 {
        std::thread::sleep(Duration::from_millis(2));
    }
    let view = server.view("a");
    assert!(Arc::ptr_eq(view.extension("one").unwrap(), &old) && !view.is_suspended("one"), "it serves meanwhile");
    assert_eq!(server.operator("GET", &format!("/v1/rebuilds/{rebuild}"), Value::Null).1["done"], false);
    builder.stop(false);
    assert_eq!(server.results(rebuild), [("one".to_owned(), 3, "rebuilt".to_owned(), String::new())]);
    assert_eq!(builder.asked().last(), Some(&(id, 3, CodeTier::Sandboxed)));

    let moved = server.extension("a", "one");
    for same in ["name", "version", "manifest_version", "source_digest", "source_kept", "budget", "suspended"] {
        assert_eq!(moved[same], shown[same], "{same}");
    }
    assert_eq!((&moved["tier"], &moved["stats"]["invocations"]), (&json!("sandboxed"), &json!(1)));
    let versions = moved["versions"].as_array().unwrap().iter();
    let versions: Vec<_> =
        versions.map(|one| (one["version"].clone(), one["tier"].clone(), one["state"].clone())).collect();
    assert_eq!(versions[0], (json!(3), json!("sandboxed"), json!("current")));
    assert_eq!(versions[1], (json!(3), json!("native"), json!("draining")), "a call of it runs");
    old.stats.ended(0, sandstorm_extension::InvocationOutcome::Done, 0);
    let gone = Arc::downgrade(&old);
    drop((old, view));
    server.control.settle();
    assert!(gone.upgrade().is_none(), "the old library is closed when its last user lets go");
    assert_eq!(server.extension("a", "one")["stats"]["ok"], 1, "its counters stay");

    assert_eq!(server.push_to("a", "one", "").1["extension"]["tier"], "sandboxed");
    assert_eq!(server.extension("a", "one")["version"], 4, "and pushes go on");
    let again = server.moved("a", CodePolicy::Sandboxed);
    assert_eq!(again, [("one".to_owned(), 4, "unchanged".to_owned(), String::new())], "it can be asked for again");
}

#[test]
fn what_cannot_be_built_for_the_other_tier_is_suspended_and_says_why() {
    let builder = Arc::new(ScriptedBuilder::default());
    let server = server(&builder);
    server.create("a", CodePolicy::Native);
    assert_eq!(server.push_to("a", "good", "").0, 201);
    assert_eq!(server.push_to("a", "refused", "not-sandboxed").0, 201);
    assert_eq!(server.push_to("a", "panics", "later").0, 201);
    let request = |name: &str| {
        let files = serde_json::from_value(source(name, "Ok(())")["files"].clone()).unwrap();
        let source = PushedSource::new(&format!("name = \"{name}\""), files).unwrap();
        BuildRequest {
            tenant: server.view("a").tenant.id,
            version: 1,
            source: source.into(),
            tier: CodeTier::Native,
            denied: Vec::new(),
            check_only: false,
        }
    };
    let artifact = builder.build(&request("uploaded")).unwrap().0.encode();
    let path = "/v1/tenants/a/extensions/uploaded/artifact";
    assert_eq!(server.raw("PUT", path, Some(&server.operator), &artifact).0, 201);
    assert_eq!(server.extension("a", "uploaded")["source_kept"], false);

    let results = server.moved("a", CodePolicy::Sandboxed);
    let found = |name: &str| {
        let (_, _, result, text) = results.iter().find(|(one, ..)| one == name).unwrap();
        (result.as_str(), text.as_str())
    };
    assert_eq!(found("good").0, "rebuilt");
    let (result, why) = found("refused");
    assert_eq!(result, "suspended");
    let expected = "does not run in the sandboxed tier: the checker refuses it: src/lib.rs:4:";
    assert!(why.contains(expected) && why.contains("[static], and 1 more"), "{why}");
    let (result, why) = found("uploaded");
    assert!(result == "suspended" && why.contains("its source is not kept"), "{result}: {why}");
    for name in ["refused", "uploaded"] {
        let shown = server.extension("a", name);
        assert_eq!((&shown["suspended"], &shown["tier"]), (&json!(true), &json!("native")), "{name}");
        assert!(shown["notice"].as_str().unwrap().contains("push it again"), "{shown}");
        let path = format!("/v1/tenants/a/extensions/{name}/resume");
        let (status, refused) = server.operator("POST", &path, Value::Null);
        assert_eq!((status, refused["code"].as_str()), (403, Some("code_policy")), "not even the operator: {refused}");
    }
    assert_eq!(server.push_to("a", "refused", "better").0, 201);
    let shown = server.extension("a", "refused");
    assert_eq!(
        (&shown["suspended"], &shown["tier"], &shown["version"]),
        (&json!(false), &json!("sandboxed"), &json!(2))
    );

    let back = server.moved("a", CodePolicy::Native);
    assert!(
        back.iter().any(|one| *one == ("uploaded".to_owned(), 1, "unchanged".to_owned(), String::new())),
        "{back:?}"
    );
    assert_eq!(server.extension("a", "uploaded")["suspended"], false, "what is loaded is right again");
}

#[test]
fn without_a_builder_nothing_is_changed_that_would_need_one() {
    let builder = Arc::new(ScriptedBuilder::default());
    let with = server(&builder);
    with.create("a", CodePolicy::Native);
    assert_eq!(with.push_to("a", "one", "").0, 201);
    let view = with.view("a");
    let without = Server::without_builder();
    without.create("a", CodePolicy::Native);
    without.control.directory.put_extension("a", view.extension("one").unwrap().clone()).unwrap();
    let (status, refused) = without.operator("PATCH", "/v1/tenants/a", json!({"code": "sandboxed"}));
    assert_eq!((status, refused["code"].as_str()), (503, Some("builder")), "{refused}");
    assert_eq!(without.view("a").tenant.code.policy(), CodePolicy::Native);
    assert!(!without.view("a").is_suspended("one"));
    assert_eq!(without.moved("a", CodePolicy::None).len(), 1, "none needs no builder");
    assert_eq!(without.moved("a", CodePolicy::Native)[0].2, "unchanged", "nor does going back");
}

#[test]
fn a_panic_while_building_suspends_and_a_tenant_that_goes_meanwhile_is_left_alone() {
    let builder = Arc::new(ScriptedBuilder::default());
    let server = server(&builder);
    server.create("a", CodePolicy::Native);
    assert_eq!(server.push_to("a", "one", "").0, 201);
    let sources = server.control.artifacts.sources();
    let id = server.view("a").tenant.id;
    let mut kept = sources.read(id, "one", 1).unwrap().expect("kept");
    let PushedCode::Source(source) = &mut kept else { panic!("{kept:?}") };
    source.files[0].text.push_str("// panics");
    sources.keep(id, 1, &kept).unwrap();
    let results = server.moved("a", CodePolicy::Sandboxed);
    assert!(results[0].2 == "suspended" && results[0].3.contains("the server failed to build it"), "{results:?}");
    assert!(server.view("a").is_suspended("one"));

    server.create("b", CodePolicy::Native);
    assert_eq!(server.push_to("b", "one", "").0, 201);
    let usage: Arc<TenantUsage> = server.view("b").tenant.usage.clone();
    builder.stop(true);
    let asked = builder.asked().len();
    let rebuild = server.begin_move("b", CodePolicy::Sandboxed);
    while builder.asked().len() == asked {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(server.operator("DELETE", "/v1/tenants/b", Value::Null).0, 200);
    builder.stop(false);
    let results = server.results(rebuild);
    assert_eq!((results[0].2.as_str(), usage.policy_events().len()), ("gone", 0), "{results:?}");
}

#[test]
fn what_is_unloaded_while_it_is_built_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Arc::new(ScriptedBuilder::default());
    let server = started(folder.path(), &builder);
    server.create("a", CodePolicy::Native);
    assert_eq!(server.push_to("a", "one", "").0, 201);
    builder.stop(true);
    let rebuild = server.begin_move("a", CodePolicy::Sandboxed);
    while builder.asked().len() < 2 {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(server.operator("DELETE", "/v1/tenants/a/extensions/one", Value::Null).0, 200);
    builder.stop(false);
    assert_eq!(server.results(rebuild)[0].2, "gone");
    assert_eq!(std::fs::read_dir(folder.path().join("extensions")).unwrap().count(), 0);
    assert_eq!(server.operator("GET", "/v1/tenants/a/extensions/one", Value::Null).0, 404);
}

#[test]
fn a_push_that_was_built_before_the_policy_changed_is_refused() {
    let builder = Arc::new(ScriptedBuilder::default());
    let server = server(&builder);
    server.create("a", CodePolicy::Native);
    builder.stop(true);
    std::thread::scope(|scope| {
        let push = scope.spawn(|| server.push_to("a", "one", ""));
        while builder.asked().is_empty() {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(server.moved("a", CodePolicy::Sandboxed), [], "nothing was loaded");
        builder.stop(false);
        let (status, refused) = push.join().unwrap();
        assert_eq!((status, refused["code"].as_str()), (403, Some("code_policy")), "{refused}");
        assert!(refused["message"].as_str().unwrap().contains("native tier"), "{refused}");
    });
    assert_eq!(server.push_to("a", "one", "").1["extension"]["tier"], "sandboxed");
}

#[test]
fn rebuilds_are_bounded_and_the_last_ones_are_remembered() {
    let builder = Arc::new(ScriptedBuilder::default());
    let server = server(&builder);
    for number in 0..crate::limits::REBUILDS_RUNNING + 1 {
        server.create(&format!("t{number}"), CodePolicy::Native);
        assert_eq!(server.push_to(&format!("t{number}"), "one", "").0, 201);
    }
    builder.stop(true);
    let running: Vec<u64> = (0..crate::limits::REBUILDS_RUNNING)
        .map(|number| server.begin_move(&format!("t{number}"), CodePolicy::Sandboxed))
        .collect();
    let last = format!("/v1/tenants/t{}", crate::limits::REBUILDS_RUNNING);
    let (status, refused) = server.operator("PATCH", &last, json!({"code": "sandboxed"}));
    assert_eq!((status, refused["code"].as_str()), (503, Some("busy")), "{refused}");
    assert_eq!(server.operator("GET", &last, Value::Null).1["code"], "native", "nothing was changed");
    builder.stop(false);
    for rebuild in &running {
        assert_eq!(server.results(*rebuild)[0].2, "rebuilt");
    }
    for _ in 0..crate::limits::REBUILDS_KEPT {
        server.moved("t0", CodePolicy::None);
    }
    let forgotten = server.operator("GET", &format!("/v1/rebuilds/{}", running[0]), Value::Null);
    assert_eq!(forgotten.0, 404, "{}", forgotten.1);
}

/// A server with its state in that folder, as a start finds it.
fn started(folder: &Path, builder: &Arc<ScriptedBuilder>) -> Server {
    started_with(folder, sources(builder), &[])
}

/// The same with a configuration that denies these patterns.
pub(super) fn started_with(folder: &Path, sources: ArtifactSources, deny: &[&str]) -> Server {
    let begun = std::time::Instant::now();
    let (journal, kept) = loop {
        match Journal::open(folder) {
            Ok(opened) => break opened,
            // The server before it may still be ending its last housekeeping.
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(60), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let options = DirectoryOptions { workers: 2, ..DirectoryOptions::default() };
    let directory = Directory::with_options(Epochs::new(), options);
    directory.restore(&kept).unwrap();
    directory.start_journal(journal).unwrap();
    let deny = DenyList::open(folder, deny.iter().map(|one| (*one).to_owned()).collect()).unwrap();
    let extensions = RestoredExtensions::read(ArtifactStore::open(folder).unwrap(), sources, deny, &directory);
    Server::start_with(directory, extensions)
}

#[test]
fn sources_are_private_survive_a_restart_and_go_with_their_extensions() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let builder = Arc::new(ScriptedBuilder::default());
    let files = || {
        let found = std::fs::read_dir(folder.path().join("extensions")).unwrap().flatten();
        let mut names: Vec<_> = found.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let server = started(folder.path(), &builder);
    server.create("a", CodePolicy::Native);
    let id = server.view("a").tenant.id;
    for _ in 0..2 {
        assert_eq!(server.push_to("a", "one", "secret").0, 201);
    }
    let of = |version: u64| [format!("{id}-{version}-one.artifact"), format!("{id}-{version}-one.source")];
    assert_eq!(files(), [of(1), of(2)].concat(), "those of the version that is loaded, and of the one before");
    let [_, source] = of(2);
    let path = folder.path().join("extensions").join(&source);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    drop(server);

    let server = started(folder.path(), &builder);
    assert_eq!(builder.asked().len(), 2, "the artifact is good: nothing is built");
    assert_eq!(server.extension("a", "one")["source_kept"], true);
    let results = server.moved("a", CodePolicy::Sandboxed);
    assert_eq!(results[0].2, "rebuilt", "{results:?}");
    assert_eq!(builder.asked().last(), Some(&(id, 2, CodeTier::Sandboxed)));
    drop(server);
    let server = started(folder.path(), &builder);
    let shown = server.extension("a", "one");
    assert_eq!((&shown["tier"], &shown["version"]), (&json!("sandboxed"), &json!(2)));

    // A file that is not what was written is not built.
    let good = std::fs::read(&path).unwrap();
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bad).unwrap();
    let results = server.moved("a", CodePolicy::Native);
    assert!(results[0].2 == "suspended" && results[0].3.contains("it is not what was written"), "{results:?}");
    std::fs::write(&path, good).unwrap();
    assert_eq!(server.moved("a", CodePolicy::Native)[0].2, "rebuilt", "what was suspended for that goes on");
    assert!(!server.view("a").is_suspended("one"));
    assert_eq!(server.operator("DELETE", "/v1/tenants/a/extensions/one", Value::Null).0, 200);
    assert_eq!(files(), [] as [String; 0]);
    assert_eq!(server.push_to("a", "one", "").0, 201);
    assert_eq!(server.operator("DELETE", "/v1/tenants/a", Value::Null).0, 200);
    assert_eq!(files(), [] as [String; 0]);
}

#[test]
fn what_a_start_cannot_load_is_built_again_from_its_source() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Arc::new(ScriptedBuilder::default());
    let server = started(folder.path(), &builder);
    server.create("a", CodePolicy::Native);
    assert_eq!(server.push_to("a", "one", "").0, 201);
    assert_eq!(server.push_to("a", "refused", "not-sandboxed").0, 201);
    // As a server that was killed while it moved the tenant: the policy is written, and nothing is built yet.
    let change = sandstorm_catalog::TenantChange { code: Some(CodePolicy::Sandboxed), ..Default::default() };
    server.control.directory.update_tenant("a", &change).unwrap();
    drop(server);
    let server = started(folder.path(), &builder);
    assert_eq!(server.results(1).len(), 2);
    let shown = server.extension("a", "one");
    assert_eq!((&shown["tier"], &shown["version"]), (&json!("sandboxed"), &json!(1)));
    assert_eq!(server.operator("GET", "/v1/tenants/a/extensions/refused", Value::Null).0, 404);
    let kills = server.operator("GET", "/v1/tenants/a/kills", Value::Null).1;
    assert!(kills.to_string().contains("it is built again from its source") && kills.to_string().contains("[static]"));
    drop(server);

    // A tenant that may have no code has nothing loaded, and loses nothing.
    let server = started(folder.path(), &builder);
    server.moved("a", CodePolicy::None);
    drop(server);
    let server = started(folder.path(), &builder);
    let asked = builder.asked().len();
    assert_eq!(server.operator("GET", "/v1/tenants/a/extensions/one", Value::Null).0, 404);
    let results = server.moved("a", CodePolicy::Sandboxed);
    assert!(results.contains(&("one".to_owned(), 1, "rebuilt".to_owned(), String::new())), "{results:?}");
    assert!(!builder.asked()[asked..].contains(&(server.view("a").tenant.id, 1, CodeTier::Native)));
    assert_eq!(server.extension("a", "one")["tier"], "sandboxed");
}
