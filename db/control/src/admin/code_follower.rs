//! Loads what other servers of a cluster have pushed: the directory lists the versions, etcd has their artifacts. They
//! pass the same checks as any artifact, so each server has to trust the keys of all that sign.
//!
//! It checks the directory some times a second, and the tenants that were changed. Until a new version is loaded, calls
//! go to the version before. If a version cannot be loaded, loading is tried again from time to time. State of its own
//! that this server keeps for a tenant, such as viewers' tokens, goes when another server deletes the tenant.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use super::ControlState;
use super::access_tokens::AccessTokenTenant;
use super::artifact_store::record_skipped;
use crate::limits::{FOLLOW_INTERVAL, FOLLOW_RETRY_INTERVAL};
use sandstorm_catalog::{DirectoryError, DirectorySnapshot, LoadedVersion, TenantView};
use sandstorm_extension::LoadedExtension;

/// The thread; stops when dropped.
#[derive(Debug)]
pub(super) struct CodeFollower {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl CodeFollower {
    /// Starts it. `loaded` is the directory of which all is loaded that can be.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn start(control: &Arc<ControlState>) -> std::io::Result<CodeFollower> {
        let stop = Arc::new(AtomicBool::new(false));
        let follow = FollowedCode::new(control, &stop);
        let thread = std::thread::Builder::new().name("cluster-code".to_owned()).spawn(move || follow.run())?;
        Ok(CodeFollower { stop, thread: Some(thread) })
    }
}

impl Drop for CodeFollower {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ended = thread.join();
        }
    }
}

pub(super) struct FollowedCode {
    control: Arc<ControlState>,
    stop: Arc<AtomicBool>,
    /// The directory that was looked at last.
    seen: Arc<DirectorySnapshot>,
    /// What could not be loaded, by tenant, extension and version, with the reason that was told.
    failed: HashMap<(u32, String, u64), String>,
    /// Whether the durability of a table that another server has changed does not hold here yet.
    is_unsettled: bool,
    /// Whether such a table waits for a checkpoint, which takes as long as it does.
    awaits_checkpoint: bool,
    /// Whether it was told that such a change has failed.
    has_told_unsettled: bool,
    /// The time of the last try of those.
    tried: Instant,
}

impl FollowedCode {
    /// Begins with the directory as it is now. What tenants have left that were deleted before is removed.
    pub(super) fn new(control: &Arc<ControlState>, stop: &Arc<AtomicBool>) -> FollowedCode {
        let seen = control.directory.snapshot();
        control.access_tokens.drop_of_gone(|of| of.find(&seen).is_none());
        FollowedCode {
            control: Arc::clone(control),
            stop: Arc::clone(stop),
            seen,
            failed: HashMap::new(),
            is_unsettled: false,
            awaits_checkpoint: false,
            has_told_unsettled: false,
            tried: Instant::now(),
        }
    }

    fn run(mut self) {
        while !self.stop.load(Ordering::Acquire) {
            let is_changed = self.control.directory.generation() != self.seen.generation();
            let again = (self.is_unsettled || !self.failed.is_empty()) && self.tried.elapsed() >= FOLLOW_RETRY_INTERVAL;
            if is_changed || again {
                self.look(again);
            } else if self.awaits_checkpoint && self.control.directory.checkpoint_requests().pending().is_none() {
                self.settle();
            }
            std::thread::park_timeout(FOLLOW_INTERVAL);
        }
    }

    /// Follows what has changed since the last look. `again`: tries what has failed once more.
    pub(super) fn look(&mut self, again: bool) {
        let now = self.control.directory.snapshot();
        let before = std::mem::replace(&mut self.seen, Arc::clone(&now));
        // First what must not wait for a disk: tokens of tenants that are gone.
        for old in before.iter() {
            self.forget(old, now.tenant(old.tenant.id), &now);
        }
        self.settle();
        let failed: Vec<u32> = self.failed.keys().map(|(tenant, ..)| *tenant).collect();
        for view in now.iter().filter(|view| view.check_code().is_ok()) {
            let id = view.tenant.id;
            let is_same = before.tenant(id).is_some_and(|old| Arc::ptr_eq(old, view));
            if !is_same || again && failed.contains(&id) {
                self.load(view);
            }
        }
        if again {
            self.tried = Instant::now();
        }
    }

    /// Has the durability of tables hold that other servers have changed, as far as this server's disk is.
    fn settle(&mut self) {
        let settled = self.control.directory.settle_durability();
        if let (Err(error), false) = (&settled, self.has_told_unsettled) {
            tracing::error!(%error, "a table's durability, which another server has changed, does not hold here yet");
        }
        (self.is_unsettled, self.awaits_checkpoint) = (settled != Ok(true), settled == Ok(false));
        self.has_told_unsettled = settled.is_err() || self.has_told_unsettled && self.is_unsettled;
    }

    /// Removes the files, the history and the viewers of what is no more.
    fn forget(&mut self, old: &Arc<TenantView>, now: Option<&Arc<TenantView>>, snapshot: &DirectorySnapshot) {
        let id = old.tenant.id;
        let same = now.filter(|now| Arc::ptr_eq(&now.tenant.usage, &old.tenant.usage));
        if same.is_some_and(|now| Arc::ptr_eq(now, old)) {
            return;
        }
        if same.is_none() {
            self.control.artifacts.remove_local(old);
            self.control.history.deleted(id);
            // Another tenant may have its name and its id by now, and tokens of its own.
            let gone = AccessTokenTenant::of(&old.tenant);
            self.control.access_tokens.drop_of_gone(|of| *of == gone);
            self.control.page_sessions.end_of_tenant(id);
            self.failed.retain(|(tenant, ..), _| *tenant != id);
            return;
        }
        for (name, _) in old.versions.loaded() {
            self.control.artifacts.forget_dropped_here(name, old, snapshot);
            if let (Some(now), Some(code)) = (now, old.extension(name))
                && now.extension(name).is_none()
            {
                self.control.history.unloaded(id, code);
            }
        }
        self.failed.retain(|(tenant, name, version), _| {
            let is_known = |view: &&Arc<TenantView>| view.versions.all_of(name).any(|known| known.version == *version);
            *tenant != id || now.as_ref().is_some_and(is_known)
        });
    }

    fn load(&mut self, view: &Arc<TenantView>) {
        for (name, loaded) in view.versions.loaded() {
            let done = self.load_current(view, name, loaded);
            self.note(view, name, loaded.version, done);
            for kept in view.versions.kept(name) {
                let is_there = view.kept_versions(name).iter().any(|one| one.version == kept.version);
                if kept.refused.is_none() && !is_there {
                    let done = self.load_kept(view, name, kept);
                    self.note(view, name, kept.version, done);
                }
            }
        }
        for (name, of) in &view.enabled {
            if view.extension(name).is_some_and(|code| code.version == of.version) {
                continue;
            }
            let done = self.control.artifacts.reload_one_enabled(
                &self.control.directory,
                (view.tenant.id, name, of),
                &self.control.artifact_sources,
            );
            self.note(view, name, of.version, done);
        }
    }

    fn load_current(&self, view: &TenantView, name: &str, loaded: &LoadedVersion) -> Result<(), String> {
        let control = &self.control;
        let tier = view.tier_of(name).ok_or("the tenant may have no code")?;
        let is_it = |code: &&Arc<LoadedExtension>| (code.version, code.tier) == (loaded.version, tier);
        if view.extension(name).as_ref().is_some_and(is_it) {
            return Ok(());
        }
        let id = view.tenant.id;
        let words = |error: DirectoryError| error.to_string();
        if let Some(kept) = view.kept_versions(name).iter().find(is_it) {
            let replaced = control.directory.adopt_version(id, Arc::clone(kept)).map_err(words)?;
            control.history.activated(id, kept, replaced);
            return Ok(());
        }
        let found = control.artifacts.reload_one(view, name, loaded, &control.artifact_sources)?;
        let replaced = control.directory.adopt_version(id, Arc::clone(&found.extension)).map_err(words)?;
        control.history.loaded(id, &found.extension, found.about, replaced);
        let (tenant, version) = (&*view.tenant.name, loaded.version);
        tracing::info!(tenant, extension = name, version, "extension loaded that another server was given");
        Ok(())
    }

    fn load_kept(&self, view: &TenantView, name: &str, kept: &LoadedVersion) -> Result<(), String> {
        let control = &self.control;
        let found = control.artifacts.reload_one(view, name, kept, &control.artifact_sources)?;
        let loaded = control.directory.reload_kept(found.tenant, Arc::clone(&found.extension));
        loaded.map_err(|error| error.to_string())?;
        control.history.kept(found.tenant, &found.extension, found.about);
        Ok(())
    }

    /// Tells once why a version is not loaded.
    fn note(&mut self, view: &TenantView, name: &str, version: u64, done: Result<(), String>) {
        let key = (view.tenant.id, name.to_owned(), version);
        match done {
            Ok(()) => drop(self.failed.remove(&key)),
            Err(why) if self.failed.get(&key) == Some(&why) => {}
            Err(why) => {
                // The newest state may be another one by now.
                let now = self.control.directory.snapshot();
                if now.tenant(view.tenant.id).is_some_and(|now| std::ptr::eq(&**now, view)) {
                    record_skipped(view, name, version, &why, "it is tried again from time to time");
                    self.failed.insert(key, why);
                }
            }
        }
    }
}
