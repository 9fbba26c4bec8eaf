//! The state that a connection's commands read and change: its identity, its table, its transaction, and its wanted
//! answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::arguments::parse_integer;
use super::errors::CommandError;
use super::transaction_state::{PendingTransaction, WatchedKeys};
use crate::{ConnectionIdentity, PortService};
use sandstorm_accounts::{ClientRegistration, CommandPreview, RedisClientStatus, TenantUsage};
use sandstorm_catalog::{DirectorySnapshot, TenantView};
use sandstorm_metrics::ServerMetrics;
use sandstorm_schema::{ExtensionSchema, ValueType};

/// The state that a connection's commands read and change.
pub(super) struct RedisSessionState {
    pub(super) service: Arc<PortService>,
    pub(super) identity: Option<ConnectionIdentity>,
    /// The selected table.
    pub(super) table: Option<u64>,
    /// The default table, and the snapshot in which it was found.
    pub(super) default_table: Option<u64>,
    pub(super) seen_generation: u64,
    /// The number by which the table was selected.
    pub(super) database: i64,
    pub(super) resp3: bool,
    pub(super) handed_over: bool,
    pub(super) close_after_reply: bool,
    pub(super) replies: ReplyMode,
    pub(super) multi: Option<Box<PendingTransaction>>,
    pub(super) watched: WatchedKeys,
    /// Whether the commands of a transaction are running.
    pub(super) in_exec: bool,
    /// The time at which an invocation was requested, and its slow log entry.
    pub(super) pending_slow_log: Option<Box<PendingSlowLogEntry>>,
    /// Whether the answer of the running invocation is unwanted.
    pub(super) reply_suppressed: bool,
    /// A call that is to be made.
    pub(super) invokes: Option<Box<WantedCall>>,
    /// The types of the reply of the running call, if its function is a typed one.
    pub(super) typed_reply: Option<Box<TypedReply>>,
    /// A database that is to be made, and the number of one that is being made.
    pub(super) makes: Option<crate::WantedDatabase>,
    pub(super) making: Option<u64>,
    pub(super) more: Option<Box<ClientAttributes>>,
    /// Its registration among its tenant's connections.
    pub(super) registration: Option<ClientRegistration>,
    /// Whether its published state is outdated.
    pub(super) needs_publish: bool,
    /// The worker that has it, and its name there; its two addresses.
    pub(super) location: (u32, u64),
    pub(super) addresses: Option<(SocketAddr, SocketAddr)>,
    pub(super) tracked: TrackingState,
    /// Connections that it has killed.
    pub(super) kills: Vec<(u32, u64)>,
    /// The SCAN that waits for the disk, if one does.
    pub(super) scan_wait: Option<ScanWait>,
}

/// The types of a call of a typed function, and which of them its reply is of.
pub(super) type TypedReply = (Arc<ExtensionSchema>, ValueType);

/// A call of an extension.
pub(super) struct WantedCall {
    /// The extension's name.
    pub(super) extension: Vec<u8>,
    /// Its version; 0: the newest.
    pub(super) version: u64,
    pub(super) args: Vec<u8>,
    /// What the call is about, where its arguments do not say it: it decides on the version during a deployment.
    pub(super) key: Option<Vec<u8>>,
    /// Whether its answer tells what it cost.
    pub(super) with_cost: bool,
}

/// The tracking options that a connection has requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TrackingOptions {
    pub(super) broadcast: bool,
    pub(super) opt_in: bool,
    pub(super) opt_out: bool,
    pub(super) no_loop: bool,
    /// Whether it gave prefixes of keys.
    pub(super) has_prefixes: bool,
}

/// The tracking state of a connection.
#[derive(Debug, Default)]
pub(super) struct TrackingState {
    pub(super) options: Option<TrackingOptions>,
    /// Keys that commands of a transaction have read: they are invalidated behind its answer.
    pub(super) keys: Vec<Box<[u8]>>,
}

/// The start of a command, the usage with its slow log, the command, and the threshold.
pub(super) type PendingSlowLogEntry = (Instant, (Arc<TenantUsage>, CommandPreview, Arc<ServerMetrics>));

/// State that few clients need.
#[derive(Default)]
pub(super) struct ClientAttributes {
    pub(super) id: u64,
    pub(super) name: Box<[u8]>,
    pub(super) library: (Box<[u8]>, Box<[u8]>),
    /// Wrong tokens that it has shown.
    pub(super) failures: u32,
}

/// A SCAN that waits for records on the disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScanWait {
    /// The cursor behind the first of them.
    pub(super) behind: u64,
    /// Whether it waits for that one alone: one of those that it waited for before could not be read.
    pub(super) is_alone: bool,
}

/// The answers that the client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyMode {
    On,
    Off,
    /// Neither this one nor the next.
    SkipTwo,
    SkipOne,
}

static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

impl RedisSessionState {
    pub(super) fn new(service: &Arc<PortService>) -> RedisSessionState {
        RedisSessionState {
            service: Arc::clone(service),
            identity: None,
            table: None,
            default_table: None,
            seen_generation: u64::MAX,
            database: 0,
            resp3: false,
            handed_over: false,
            close_after_reply: false,
            replies: ReplyMode::On,
            multi: None,
            watched: WatchedKeys::default(),
            in_exec: false,
            pending_slow_log: None,
            reply_suppressed: false,
            invokes: None,
            typed_reply: None,
            makes: None,
            making: None,
            more: None,
            registration: None,
            needs_publish: false,
            location: (0, u64::MAX),
            addresses: None,
            tracked: TrackingState::default(),
            kills: Vec::new(),
            scan_wait: None,
        }
    }

    /// Resets the state, except for its number and its count of wrong tokens.
    pub(super) fn reset(&mut self) {
        let (id, failures) = (self.id(), self.more().failures);
        let (location, addresses, kills) = (self.location, self.addresses, std::mem::take(&mut self.kills));
        *self = RedisSessionState {
            handed_over: self.handed_over,
            location,
            addresses,
            kills,
            ..RedisSessionState::new(&self.service)
        };
        self.more = Some(Box::new(ClientAttributes { id, failures, ..ClientAttributes::default() }));
    }

    pub(super) fn more(&mut self) -> &mut ClientAttributes {
        self.more.get_or_insert_with(|| {
            Box::new(ClientAttributes {
                id: CONNECTIONS.fetch_add(1, Ordering::Relaxed) + 1,
                ..ClientAttributes::default()
            })
        })
    }

    /// The connection's number.
    pub(super) fn id(&mut self) -> u64 {
        self.more().id
    }

    pub(super) fn queued(&self) -> i64 {
        self.multi.as_ref().map_or(-1, |multi| multi.queued.len() as i64)
    }

    pub(super) fn watches(&self) -> usize {
        self.watched.count()
    }

    /// Registers it among its tenant's connections, if it is not there. Returns whether it may go on: another
    /// connection may have killed it.
    pub(super) fn register(&mut self, view: Option<&Arc<TenantView>>, now_ms: u64) -> bool {
        let Some(view) = view else {
            self.registration = None;
            return true;
        };
        let usage = &view.tenant.usage;
        if !self.registration.as_ref().is_some_and(|registration| registration.belongs_to(usage)) {
            let id = self.id();
            self.registration = Some(ClientRegistration::new(usage, id, self.addresses, self.location, now_ms));
            self.needs_publish = true;
        }
        self.registration.as_ref().is_none_or(|registration| {
            registration.client.last_active_ms.store(now_ms, Ordering::Relaxed);
            !registration.client.is_killed()
        })
    }

    /// Publishes its changes to its tenant's other connections.
    pub(super) fn publish_status(&mut self) {
        let (queued, watches) = (self.queued(), self.watches());
        let status = RedisClientStatus { database: self.database, resp3: self.resp3, queued, watches };
        let Some(registration) = &mut self.registration else { return };
        if registration.published == status && !self.needs_publish {
            return;
        }
        (registration.published, self.needs_publish) = (status, false);
        let mut attributes = registration.client.attributes.lock();
        attributes.state = status;
        if let Some(more) = &self.more {
            (attributes.name, attributes.library) = (more.name.clone(), more.library.clone());
        }
    }

    /// Sets another identity from here on.
    pub(super) fn begin(&mut self, identity: ConnectionIdentity) {
        self.identity = Some(identity);
        (self.table, self.database, self.seen_generation, self.handed_over) = (None, 0, u64::MAX, false);
        (self.multi, self.watched) = (None, WatchedKeys::default());
    }

    /// The id of the table that commands use.
    pub(super) fn table_id(&self) -> Option<u64> {
        self.table.or(self.default_table)
    }

    /// The table that `SELECT` names: by its id, by its name, or 0 for the default table.
    pub(super) fn selected(&self, view: &TenantView, word: &[u8]) -> Result<u64, CommandError> {
        let found = match parse_integer(word) {
            Some(0) => self.default_table,
            Some(id) => u64::try_from(id).ok().filter(|id| view.reach(*id, false).is_ok()),
            None => {
                let found = std::str::from_utf8(word).ok().and_then(|name| view.id_of(name));
                return found.ok_or_else(|| "ERR invalid DB index: the tenant has no table of this name".into());
            }
        };
        found.ok_or_else(|| "ERR DB index is out of range".into())
    }

    /// Checks its right to act for its tenant, and finds its default table.
    pub(super) fn refresh_identity<'s>(&mut self, snapshot: &'s DirectorySnapshot) -> Option<&'s Arc<TenantView>> {
        let mut view = self.identity.and_then(|identity| identity.view(snapshot));
        if view.is_none() {
            let had = self.identity.is_some();
            if had {
                (self.multi, self.watched, self.table) = (None, WatchedKeys::default(), None);
            }
            self.identity = ConnectionIdentity::from_port(snapshot, &self.service);
            view = self.identity.and_then(|identity| identity.view(snapshot));
            // With the answer to the next command.
            self.close_after_reply |= had && view.is_none();
        }
        if let Some(view) = view
            && self.seen_generation != snapshot.generation()
        {
            self.seen_generation = snapshot.generation();
            self.default_table = match &self.service.table {
                Some(name) => view.id_of(name),
                None => view.id_of("default").or_else(|| view.tables.keys().min().copied()),
            };
        }
        view
    }
}
