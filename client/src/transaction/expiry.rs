//! When records expire, within a client's transaction.

use std::time::Duration;

use super::{BufferedPut, ClientTransaction};
use crate::Error;
use crate::message::RecordExpiry;

impl ClientTransaction {
    /// Reads how long the record under `key` has left; `None` when there is none. It is a read of the record, which is
    /// the same at the commit. Of what the transaction has written itself it is the life from the commit on.
    ///
    /// # Errors
    /// As for [`ClientTransaction::get`].
    pub async fn ttl(&mut self, table: u64, key: &[u8]) -> Result<Option<RecordExpiry>, Error> {
        if let Some(written) = self.writes.get(&(table, key.to_vec())) {
            let of_put = |put: &BufferedPut| put.ttl.map_or(RecordExpiry::Never, RecordExpiry::After);
            return Ok(written.as_ref().map(of_put));
        }
        // First its version: a change of its expiry gives it another, and the commit detects that.
        if self.get(table, key).await?.is_none() {
            return Ok(None);
        }
        let found = self.client.ttl(table, key).await;
        self.noted(found)
    }

    /// Lets the record under `key` expire so long after the commit, in whole milliseconds and one at least (`None`:
    /// never); whether there is one. It is a read and a write of the whole record, which keeps its value and flags.
    ///
    /// # Errors
    /// As for [`ClientTransaction::get`].
    pub async fn touch(&mut self, table: u64, key: &[u8], ttl: Option<Duration>) -> Result<bool, Error> {
        let place = (table, key.to_vec());
        if let Some(written) = self.writes.get_mut(&place) {
            return Ok(match written {
                Some(put) => {
                    put.ttl = ttl;
                    true
                }
                None => false,
            });
        }
        let Some(record) = self.get(table, key).await? else { return Ok(false) };
        self.writes.insert(place, Some(BufferedPut { value: record.value, flags: record.flags, ttl }));
        Ok(true)
    }
}
