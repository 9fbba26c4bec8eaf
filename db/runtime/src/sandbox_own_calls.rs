//! Expiry, random numbers and secrets as sandboxed code asks for them.
//!
//! Guarantees: as `sandbox_calls`.

use sandstorm_api::abi::{self, LOG_LINE_BYTES, MAX_RANDOM_BYTES};

use sandstorm_api::limits::CALL_BYTES;

use super::guest_value::GuestAddress;
use super::log_calls::write_line;
use super::own_calls::{expiry_of, secret_of, touch_record};
use super::sandbox_calls::{CallResult, SandboxCall};

impl SandboxCall<'_> {
    pub(super) fn expiry(
        &mut self,
        table: u64,
        hash: u64,
        (key, key_len): (GuestAddress, u32),
        expires_at_ms: GuestAddress,
    ) -> CallResult<()> {
        let key = self.key(key, key_len)?;
        let found = expiry_of(self.body, table, hash, key)?;
        Ok(self.memory.write(expires_at_ms, found)?)
    }

    pub(super) fn touch(&mut self, table: u64, (key, key_len): (GuestAddress, u32), ttl_ms: u64) -> CallResult<()> {
        let key = self.key(key, key_len)?;
        let (now_ms, participant) = (self.body.abi.now_ms, self.participant);
        match touch_record(self.body.table_to_write(table)?, participant, key, now_ms, ttl_ms) {
            Ok(true) => Ok(()),
            Ok(false) => Err(abi::STATUS_NOT_FOUND.into()),
            Err(error) => Err(self.body.write_status(error).into()),
        }
    }

    pub(super) fn secret(
        &mut self,
        (name, name_len): (GuestAddress, u32),
        (to, capacity): (GuestAddress, u32),
        len: GuestAddress,
    ) -> CallResult<()> {
        let name = self.key(name, name_len)?;
        let refs = self.body.refs.as_ref().ok_or(abi::STATUS_INVALID)?;
        let value = secret_of(&refs.view, name)?;
        self.write_wanted(len, value.len() as u32)?;
        if value.len() > capacity as usize {
            return Err(abi::STATUS_TOO_LARGE.into());
        }
        Ok(self.memory.write_bytes(to, value)?)
    }

    pub(super) fn log_line(&mut self, level: u32, text: GuestAddress, len: u32) -> CallResult<()> {
        let text = self.bytes(text, len.min(LOG_LINE_BYTES as u32), LOG_LINE_BYTES)?;
        Ok(write_line(self.body, level, text)?)
    }

    pub(super) fn call_begin(
        &mut self,
        (name, name_len): (GuestAddress, u32),
        (args, args_len): (GuestAddress, u32),
        (notes, notes_len): (GuestAddress, u32),
    ) -> CallResult<()> {
        let name = self.key(name, name_len)?;
        let (args, notes) = (self.bytes(args, args_len, CALL_BYTES)?, self.bytes(notes, notes_len, CALL_BYTES)?);
        Ok(self.body.request_call(name, args, notes)?)
    }

    pub(super) fn call_end(&mut self, code: GuestAddress) -> CallResult<()> {
        if code == 0 {
            self.body.forget_call();
            return Ok(());
        }
        let ended = self.body.take_ended_call().inspect_err(|_| self.body.note_look())?;
        Ok(self.memory.write(code, ended)?)
    }

    pub(super) fn call_part(
        &mut self,
        part: u32,
        (to, capacity): (GuestAddress, u32),
        len: GuestAddress,
    ) -> CallResult<()> {
        let bytes = self.body.call_part(part)?;
        self.memory.write(len, bytes.len() as u32)?;
        if bytes.len() > capacity as usize {
            return Err(abi::STATUS_TOO_LARGE.into());
        }
        if !bytes.is_empty() {
            self.memory.write_bytes(to, bytes)?;
        }
        Ok(())
    }

    pub(super) fn call_return(&mut self, notes: GuestAddress, len: u32) -> CallResult<()> {
        let notes = self.bytes(notes, len, CALL_BYTES)?;
        Ok(self.body.return_notes(notes)?)
    }

    pub(super) fn random(&mut self, to: GuestAddress, len: u32) -> CallResult<()> {
        let mut bytes = [0; MAX_RANDOM_BYTES];
        let bytes = bytes.get_mut(..len as usize).ok_or(abi::STATUS_INVALID)?;
        self.body.random.fill(bytes)?;
        Ok(self.memory.write_bytes(to, bytes)?)
    }
}
