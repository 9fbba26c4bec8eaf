//! Calls of the tenant's other extensions: what an invocation asks for, and what comes back. The engine runs them. Of a
//! call nothing is believed but bounded bytes, which are copied.

use std::sync::Arc;

use sandstorm_api::abi::{
    CALL_INHERITED, CALL_NOTES, CALL_REPLY, STATUS_BUSY, STATUS_INVALID, STATUS_NOT_FOUND, STATUS_OUT_OF_MEMORY,
    STATUS_TOO_LARGE,
};
use sandstorm_api::limits::{CALL_BYTES, CALL_DEPTH};
use sandstorm_api::typed::callee::CalleeName;
use sandstorm_extension::LoadedExtension;

use super::{InvocationHandle, InvocationState};

/// The number of an error that has no kind: `ErrorKind::Other`.
const OTHER_ERROR: u32 = 100;

/// An invocation's calls of other extensions, and its own place among them. Most invocations have none.
#[derive(Debug, Default)]
pub(crate) struct NestedCalls {
    /// Callers above it; 0: a client has called it.
    pub(crate) depth: u32,
    /// The call that is to begin when the invocation has yielded.
    pub(crate) requested: Option<RequestedCall>,
    /// The call under way. The invocation is not polled meanwhile.
    pub(crate) callee: Option<InvocationHandle>,
    /// What has become of it, until the invocation asks.
    pub(crate) ended: Option<EndedNestedCall>,
    /// The same from then on, until the next call.
    last: Option<EndedNestedCall>,
    /// The transaction so far, as its caller has handed it over.
    pub(crate) inherited: Vec<u8>,
    /// The transaction as it hands it back.
    pub(crate) returned: Vec<u8>,
    /// CPU time of its callees, which counts as theirs.
    pub(crate) callee_ns: u64,
    /// Callees that have begun.
    pub(crate) begun: u32,
    /// When the last of them began, by the processor's counter.
    pub(crate) begun_ticks: u64,
    /// Bytes of these buffers that the tenant is charged for.
    charged: usize,
}

/// A call that is to begin.
#[derive(Debug)]
pub(crate) struct RequestedCall {
    pub(crate) extension: Arc<LoadedExtension>,
    /// As the caller has named it, with its types in a typed call. They are compared when the call begins, on the
    /// worker's stack: of the invocation's own no more is sure than a host call needs.
    pub(crate) name: String,
    pub(crate) args: Vec<u8>,
    /// The transaction so far.
    pub(crate) notes: Vec<u8>,
}

/// A call that has ended.
#[derive(Debug)]
pub(crate) struct EndedNestedCall {
    /// 0, or the kind of the error.
    pub(crate) code: u32,
    /// The reply, or the error's text.
    pub(crate) reply: Vec<u8>,
    /// What it has added to the transaction; empty: nothing.
    pub(crate) notes: Vec<u8>,
}

impl EndedNestedCall {
    pub(crate) fn failed(code: u32, text: &str) -> EndedNestedCall {
        EndedNestedCall { code, reply: text.as_bytes().to_vec(), notes: Vec::new() }
    }
}

impl InvocationState {
    /// Asks for a call of another extension, which begins when the invocation has yielded. A refusal is an end of the
    /// call, so that it has a text.
    pub(crate) fn request_call(&mut self, name: &[u8], args: &[u8], notes: &[u8]) -> Result<(), u32> {
        if args.len() > CALL_BYTES || notes.len() > CALL_BYTES {
            return Err(STATUS_TOO_LARGE);
        }
        let found = self.find_callee(name);
        let calls = self.calls.get_or_insert_default();
        if calls.requested.is_some() || calls.callee.is_some() || calls.ended.is_some() {
            return Err(STATUS_BUSY);
        }
        calls.last = None;
        match found {
            Err(refused) => calls.ended = Some(refused),
            Ok((extension, name)) => {
                if !self.charge_call(name.len() + args.len() + notes.len()) {
                    return Err(STATUS_OUT_OF_MEMORY);
                }
                let (name, args, notes) = (name.to_owned(), args.to_vec(), notes.to_vec());
                let request = RequestedCall { extension, name, args, notes };
                self.calls.get_or_insert_default().requested = Some(request);
            }
        }
        Ok(())
    }

    /// The current version of the extension of that name, as it was when the whole call began, and the name as a text.
    fn find_callee<'n>(&self, name: &'n [u8]) -> Result<(Arc<LoadedExtension>, &'n str), EndedNestedCall> {
        if self.call_depth() + 1 > CALL_DEPTH {
            let text = format!("extensions call each other {CALL_DEPTH} deep at most");
            return Err(EndedNestedCall::failed(STATUS_INVALID, &text));
        }
        let unknown = || EndedNestedCall::failed(STATUS_NOT_FOUND, "the tenant has no extension of this name");
        let view = self.refs.as_ref().map(|refs| &refs.view).ok_or_else(unknown)?;
        let name = std::str::from_utf8(name).map_err(|_| unknown())?;
        let extension = view.extension(CalleeName::parse(name).extension).ok_or_else(unknown)?;
        if let Some(refusal) = view.tenant.code.refusal() {
            return Err(EndedNestedCall::failed(OTHER_ERROR, &refusal.text));
        }
        if let Some(suspension) = view.suspension(&extension.name) {
            return Err(EndedNestedCall::failed(OTHER_ERROR, &suspension.text));
        }
        if extension.throttle.calls_per_s() != 0 {
            // Clients' calls have a rate; a caller that calls on and on would take all of it.
            let text = "its calls keep being killed, so only clients may call it; `sandstorm kills` shows why";
            return Err(EndedNestedCall::failed(OTHER_ERROR, text));
        }
        Ok((Arc::clone(extension), name))
    }

    /// Callers above it; 0: a client has called it.
    pub(crate) fn call_depth(&self) -> u32 {
        self.calls.as_ref().map_or(0, |calls| calls.depth)
    }

    /// Charges for so many bytes that are kept for calls, as far as it is not charged for as many already.
    pub(crate) fn charge_call(&mut self, bytes: usize) -> bool {
        let charged = self.calls.as_ref().map_or(0, |calls| calls.charged);
        if bytes <= charged {
            return true;
        }
        let is_allowed = self.charge(bytes - charged);
        if is_allowed {
            self.calls.get_or_insert_default().charged = bytes;
        }
        is_allowed
    }

    /// The code of the call that has ended, once.
    pub(crate) fn take_ended_call(&mut self) -> Result<u32, u32> {
        let calls = self.calls.as_mut().ok_or(STATUS_NOT_FOUND)?;
        let ended = calls.ended.take().ok_or(STATUS_NOT_FOUND)?;
        Ok(calls.last.insert(ended).code)
    }

    /// Forgets the call that was asked for, or has ended.
    pub(crate) fn forget_call(&mut self) {
        if let Some(calls) = &mut self.calls {
            (calls.requested, calls.ended, calls.last) = (None, None, None);
        }
    }

    /// Forgets what belongs to a run that begins anew.
    pub(crate) fn forget_calls(&mut self) {
        self.forget_call();
        if let Some(calls) = &mut self.calls {
            calls.returned.clear();
        }
    }

    /// A part of the call that has ended, or of this one.
    pub(crate) fn call_part(&self, part: u32) -> Result<&[u8], u32> {
        let calls = self.calls.as_deref();
        let last = calls.and_then(|calls| calls.last.as_ref());
        Ok(match part {
            CALL_REPLY => last.map_or(&[], |last| &last.reply),
            CALL_NOTES => last.map_or(&[], |last| &last.notes),
            CALL_INHERITED => calls.map_or(&[], |calls| &calls.inherited),
            _ => return Err(STATUS_INVALID),
        })
    }

    /// Keeps the transaction that a called invocation hands back.
    pub(crate) fn return_notes(&mut self, notes: &[u8]) -> Result<(), u32> {
        if self.call_depth() == 0 {
            return Err(STATUS_INVALID);
        }
        if notes.len() > CALL_BYTES {
            return Err(STATUS_TOO_LARGE);
        }
        if !self.charge_call(notes.len()) {
            return Err(STATUS_OUT_OF_MEMORY);
        }
        self.calls.get_or_insert_default().returned = notes.to_vec();
        Ok(())
    }
}
