//! Counts and positions within a client's transaction: the keys of an ordered table, with the transaction's own writes
//! laid over them. Each is made of counts of the table's keys, which the commit compares.

use std::collections::BTreeSet;

use bytes::Bytes;
use sandstorm_net::rpc::{COMMIT_RANGES, COMMIT_ROW_BYTES};

use super::{ClientTransaction, NotedCount};
use crate::commit_message::{TOO_LONG_KEYS, TOO_MANY_RANGES};
use crate::{Error, limits};

/// The smallest key of a part of a table, and the key before which that ends; empty: it goes on to the table's end.
type KeySpan = (Vec<u8>, Vec<u8>);

/// A key that the transaction writes.
struct WrittenKey {
    key: Vec<u8>,
    /// It is to be there, not deleted.
    stays: bool,
}

impl WrittenKey {
    /// The part of the table that is this key alone.
    fn span(&self) -> KeySpan {
        (self.key.clone(), next_key(&self.key))
    }

    /// Whether it adds a key to the table, and whether it takes one away, where the table has so many of it.
    fn change(&self, found: u64) -> (u64, u64) {
        (u64::from(self.stays && found == 0), u64::from(!self.stays && found != 0))
    }
}

/// The key that comes directly after another.
fn next_key(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

impl ClientTransaction {
    /// Counts the keys of an ordered table with `from <= key < to` (empty `to`: to the end), as
    /// [`crate::Client::count`] does, with what the transaction itself has written and deleted there. At the commit the
    /// table must have as many keys in the range, whichever they are. What was counted before is not asked for again.
    ///
    /// A count is one of the 256 ranges that a transaction may read, and so is each of its own writes in the range.
    ///
    /// ```no_run
    /// # use sandstorm_client::{Client, Error};
    /// /// Takes a seat, if there is one left: never more than 100, however many ask at once.
    /// async fn take_seat(client: &Client, seats: u64, name: &[u8]) -> Result<bool, Error> {
    ///     client
    ///         .transact(async |transaction| {
    ///             transaction.put(seats, name, b"");
    ///             let has_room = transaction.count(seats, b"", b"").await? <= 100;
    ///             if !has_room {
    ///                 transaction.delete(seats, name);
    ///             }
    ///             Ok(has_room)
    ///         })
    ///         .await
    /// }
    /// ```
    ///
    /// # Errors
    /// As for [`crate::Client::count`]; [`Error::TooLarge`] over 256 ranges and counts.
    pub async fn count(&mut self, table: u64, from: &[u8], to: &[u8]) -> Result<u64, Error> {
        if !to.is_empty() && to <= from {
            return Ok(0);
        }
        let own = self.own_keys(table, from, to);
        let mut spans = vec![(from.to_vec(), to.to_vec())];
        spans.extend(own.iter().map(WrittenKey::span));
        let found = self.counted(table, &spans).await?;
        let (mut keys, mut found_of_own) = (0, &[][..]);
        if let Some((all, own)) = found.split_first() {
            (keys, found_of_own) = (*all, own);
        }
        for (own, found) in own.iter().zip(found_of_own) {
            let (added, taken) = own.change(*found);
            // Each of its own moment: at the commit they are of one, or it does not hold.
            keys = (keys + added).saturating_sub(taken);
        }
        spans.into_iter().zip(&found).for_each(|(span, keys)| self.note_count(table, span, *keys));
        Ok(keys)
    }

    /// Counts the keys of an ordered table before `key`, as [`crate::Client::rank`] does; the rest is as for
    /// [`ClientTransaction::count`].
    ///
    /// # Errors
    /// As for [`ClientTransaction::count`].
    pub async fn rank(&mut self, table: u64, key: &[u8]) -> Result<u64, Error> {
        if key.is_empty() {
            // As an end it would stand for none; before it there is nothing. The server still looks at the table.
            let found = self.client.rank(table, key).await;
            return self.noted(found);
        }
        self.count(table, b"", key).await
    }

    /// Finds the key of an ordered table before which there are `position` others, as [`crate::Client::nth`] does, with
    /// what the transaction itself has written and deleted; `None` beyond the last. At the commit it must be there. It
    /// uses up two of the 256 ranges that a transaction may read, and two for each of its own writes before the
    /// position.
    ///
    /// # Errors
    /// As for [`ClientTransaction::count`].
    pub async fn nth(&mut self, table: u64, position: u64) -> Result<Option<Bytes>, Error> {
        let own = self.own_keys(table, b"", b"");
        let before = |own: &WrittenKey| (Vec::new(), own.key.clone());
        let spans: Vec<KeySpan> = own.iter().flat_map(|own| [before(own), own.span()]).collect();
        let found = self.counted(table, &spans).await?;
        // Keys that its own writes before the position have added to the table, and taken away.
        let (mut added, mut taken) = (0, 0);
        for (own, found) in own.into_iter().zip(found.chunks_exact(2)) {
            let (found_before, found_itself) = if own.key.is_empty() { (0, found[1]) } else { (found[0], found[1]) };
            if !own.key.is_empty() {
                self.note_count(table, before(&own), found_before);
            }
            let own_position = (found_before + added).saturating_sub(taken);
            if position < own_position {
                break;
            }
            self.note_count(table, own.span(), found_itself);
            if position == own_position && own.stays {
                return Ok(Some(own.key.into()));
            }
            let change = own.change(found_itself);
            (added, taken) = (added + change.0, taken + change.1);
        }
        // Fewer than none: what was counted is of different moments, which the commit finds.
        let Some(position) = position.saturating_add(taken).checked_sub(added) else { return Ok(None) };
        self.found_at(table, position).await
    }

    /// The key at a position among those of the table itself.
    async fn found_at(&mut self, table: u64, position: u64) -> Result<Option<Bytes>, Error> {
        let mut all = 0;
        for _ in 0..limits::TRANSACTION_TRIES {
            let found = self.client.nth(table, position).await;
            if let Some(key) = self.noted(found)? {
                if !key.is_empty() {
                    self.note_count(table, (Vec::new(), key.to_vec()), position);
                }
                self.note_count(table, (key.to_vec(), next_key(&key)), 1);
                return Ok(Some(key));
            }
            // Asked anew, whatever is known: the answer rests on what is there now.
            let keys = self.client.count(table, b"", b"").await;
            let keys = self.noted(keys)?;
            if keys <= position {
                self.note_count(table, (Vec::new(), Vec::new()), keys);
                return Ok(None);
            }
            // Another has come between the two questions.
            all = keys;
        }
        // Both answers are noted. They cannot hold at one moment, so `transact` begins anew.
        self.note_count(table, (Vec::new(), Vec::new()), position);
        self.note_count(table, (Vec::new(), Vec::new()), all);
        Err(Error::TransactionConflict { table, key: Vec::new() })
    }

    /// The keys that the transaction writes between two keys, in their order.
    fn own_keys(&self, table: u64, from: &[u8], to: &[u8]) -> Vec<WrittenKey> {
        let written = self.written_within(table, from, to);
        written.map(|((_, key), put)| WrittenKey { key: key.clone(), stays: put.is_some() }).collect()
    }

    /// How many keys the table has in each part, those that were not counted before asked for in one message.
    async fn counted(&mut self, table: u64, spans: &[KeySpan]) -> Result<Vec<u64>, Error> {
        let known = |span: &KeySpan| self.known_count(table, span);
        let unknown: Vec<&KeySpan> =
            spans.iter().filter(|span| known(span).is_none()).collect::<BTreeSet<_>>().into_iter().collect();
        let asked = self.check_counts(&unknown);
        self.noted(asked)?;
        let asked: Vec<(&[u8], &[u8])> = unknown.iter().map(|(from, to)| (&from[..], &to[..])).collect();
        let found = match asked.is_empty() {
            true => Vec::new(),
            false => {
                let found = self.client.count_many(table, &asked).await;
                self.noted(found)?
            }
        };
        let keys_of = |span: &KeySpan| {
            let asked = unknown.binary_search(&span).ok().and_then(|at| found.get(at).copied());
            asked.or_else(|| self.known_count(table, span)).unwrap_or(0)
        };
        Ok(spans.iter().map(keys_of).collect())
    }

    /// Refuses to ask for more than a commit may have.
    fn check_counts(&self, unknown: &[&KeySpan]) -> Result<(), Error> {
        let noted = self.counts.iter().map(|noted| noted.from.len() + noted.to.len());
        let bytes = unknown.iter().map(|(from, to)| from.len() + to.len()).chain(noted).sum::<usize>();
        let what = if self.ranges.len() + self.counts.len() + unknown.len() > COMMIT_RANGES {
            TOO_MANY_RANGES
        } else if bytes > COMMIT_ROW_BYTES {
            TOO_LONG_KEYS
        } else {
            return Ok(());
        };
        Err(Error::TooLarge { what: what.to_owned() })
    }

    fn known_count(&self, table: u64, (from, to): &KeySpan) -> Option<u64> {
        let least = NotedCount { table, from: from.clone(), to: to.clone(), keys: 0 };
        let known = self.counts.range(least..).next()?;
        (known.table == table && known.from == *from && known.to == *to).then_some(known.keys)
    }

    fn note_count(&mut self, table: u64, (from, to): KeySpan, keys: u64) {
        self.counts.insert(NotedCount { table, from, to, keys });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::fake_server::{FakeServer, FakeServerOptions, TABLE, TENANT, TOKEN};
    use std::time::Duration;

    #[tokio::test]
    async fn a_position_at_which_others_come_and_go_all_the_time_does_not_hold_at_the_commit() {
        let fake = FakeServer::start(FakeServerOptions::default());
        let config = Config::new(fake.address, TENANT).token(TOKEN).deadline(Duration::from_secs(30));
        let client = crate::Client::connect(config).await.expect("a client");
        let mut transaction = client.transaction();
        let found = transaction.nth(TABLE, 3).await;
        assert!(matches!(found, Err(Error::TransactionConflict { table: TABLE, .. })), "{found:?}");
        // None at position 3, and five keys: as `transact` asks whether both hold, they do not.
        let all = |keys| NotedCount { table: TABLE, from: Vec::new(), to: Vec::new(), keys };
        assert_eq!(transaction.counts.into_iter().collect::<Vec<_>>(), [all(3), all(5)]);
    }
}
