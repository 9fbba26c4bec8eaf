//! The host's function for lines of the tenant's log, and the line about a kill.
//!
//! Guarantees: as `host.rs`. The log's lock is not held when the function returns.
#![allow(unsafe_code)]

use sandstorm_accounts::{LineLevel, NewLogLine, TenantLog};
use sandstorm_api::abi::{self, LOG_LINE_BYTES};
use sandstorm_extension::{InvocationOutcome, KillCause, kill_text};

use super::host_call::{call, guest_bytes, status_code};
use super::invocation::InvocationState;

pub(super) unsafe extern "C" fn log_line(
    invocation: *mut abi::InvocationHeader,
    level: u32,
    text: *const u8,
    len: usize,
) -> u32 {
    // SAFETY: the library's text outlives the call.
    let write = |body: &mut InvocationState| unsafe {
        write_line(body, level, guest_bytes(text, len.min(LOG_LINE_BYTES), LOG_LINE_BYTES)?)
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, |body, _| status_code(write(body))) }
}

/// Hands a line to the log of the invocation's tenant.
pub(super) fn write_line(body: &mut InvocationState, level: u32, text: &[u8]) -> Result<(), u32> {
    let level = LineLevel::by_number(level).ok_or(abi::STATUS_INVALID)?;
    if level as u32 <= body.abi.log_level {
        body.keep_line(TenantLog::keep, level, text);
    }
    Ok(())
}

impl InvocationState {
    fn keep_line(&mut self, keep: fn(&TenantLog, &NewLogLine<'_>), level: LineLevel, text: &[u8]) {
        let Some(refs) = &self.refs else { return };
        let log = &refs.view.tenant.usage.log;
        if self.log_call == 0 {
            self.log_call = log.next_call();
        }
        let (extension, version) = (&*refs.extension.name, refs.extension.version);
        keep(log, &NewLogLine { level, extension, version, call: self.log_call, text });
    }

    /// Notes in the log that the server has ended the invocation, if it has, and why.
    #[inline]
    pub(super) fn log_kill(&mut self, outcome: InvocationOutcome) {
        if let InvocationOutcome::Killed(cause) = outcome
            && cause != KillCause::Unloaded
        {
            self.keep_kill(cause);
        }
    }

    #[cold]
    fn keep_kill(&mut self, cause: KillCause) {
        let text = match self.text.is_empty() {
            true => kill_text(cause).to_owned(),
            false => String::from_utf8_lossy(&self.text).into_owned(),
        };
        self.keep_line(TenantLog::keep_surely, LineLevel::Error, format!("killed: {text}").as_bytes());
    }
}
