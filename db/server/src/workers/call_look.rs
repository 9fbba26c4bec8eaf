//! The questions to a worker about the calls under way there, and its answers.

use std::sync::{Arc, Weak};

use sandstorm_catalog::TenantView;
use sandstorm_runtime::CallLevel;

/// A question about a tenant's calls at one worker.
pub struct CallLook {
    /// The tenant's id.
    pub tenant: u32,
    /// Its serial number: the id may be that of another tenant before, whose calls have not ended yet.
    pub serial: u64,
    /// Calls of this extension, whichever it has called meanwhile; `None`: of all.
    pub extension: Option<Arc<str>>,
    /// Whether to find out where they are.
    pub with_places: bool,
    /// Ends when no caller waits for the answer any more: then there is none.
    pub asked: Weak<()>,
    /// Takes the answer, on the worker's thread: it must not block. If the server stops before, it is dropped.
    pub done: CallLookDone,
}

impl CallLook {
    /// Whether a caller waits for the answer.
    pub(super) fn is_wanted(&self) -> bool {
        self.asked.strong_count() > 0
    }

    /// Whether a call is meant, which has begun with this view of its tenant and in the extension of this name.
    pub(super) fn is_about(&self, view: &TenantView, called: Option<&str>) -> bool {
        let is_tenant = (view.tenant.id, view.tenant.serial) == (self.tenant, self.serial);
        is_tenant && self.extension.as_deref().is_none_or(|name| called == Some(name))
    }
}

/// Takes the calls of a worker.
pub type CallLookDone = Box<dyn FnOnce(WorkerCalls) + Send>;

/// The calls of a tenant at one worker.
#[derive(Debug, Default)]
pub struct WorkerCalls {
    /// The calls, no more than [`crate::limits::CALLS_SHOWN`].
    pub calls: Vec<CallUnderWay>,
    /// Further ones, which are not listed.
    pub more: usize,
}

/// A call under way.
#[derive(Debug)]
pub struct CallUnderWay {
    /// The worker.
    pub worker: u32,
    /// Time since it arrived, nanoseconds.
    pub age_ns: u64,
    /// Time since its last turn, nanoseconds; since it arrived, if it has had none.
    pub waiting_ns: u64,
    /// Whether a record that it waits for is behind its table, in a backing: else it is on the disk.
    pub awaits_backing: bool,
    /// Its turns, and those of them that ended because it computed past its slice.
    pub turns: u32,
    /// See `turns`.
    pub switches: u32,
    /// Its CPU time, nanoseconds.
    pub cpu_ns: u64,
    /// The extensions that it is in, the one that was called last first.
    pub levels: Vec<CallLevel>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandstorm_catalog::{Directory, DirectoryOptions, NewTenant};

    #[test]
    fn calls_of_a_tenant_that_had_the_same_id_before_are_not_meant() {
        let directory = Directory::with_options(sandstorm_store::Epochs::new(), DirectoryOptions::default());
        let create = || directory.create_tenant(NewTenant { id: Some(7), ..NewTenant::named("a") }).expect("made").0;
        let before = create();
        directory.delete_tenant("a").expect("deleted");
        let now = create();
        assert_eq!((before.tenant.id, before.tenant.name.as_str()), (now.tenant.id, now.tenant.name.as_str()));
        let asked = Arc::new(());
        let look = |extension: Option<&str>| CallLook {
            tenant: now.tenant.id,
            serial: now.tenant.serial,
            extension: extension.map(Arc::from),
            with_places: true,
            asked: Arc::downgrade(&asked),
            done: Box::new(|_| ()),
        };
        assert!(look(None).is_about(&now, Some("sum")) && !look(None).is_about(&before, Some("sum")));
        assert!(look(Some("sum")).is_about(&now, Some("sum")) && !look(Some("sum")).is_about(&before, Some("sum")));
        assert!(!look(Some("sum")).is_about(&now, Some("min")) && !look(Some("sum")).is_about(&now, None));
    }
}
