//! Builds a load's requests, and checks their replies.

use super::graph::EdgeKeySlots;
use super::keys::{check_value, write_value};
use super::load_request::{LoadRequest, ReplyVerdict};
use super::multi_get::split_multi_get_entry;
use super::{Class, Data, TenantLoad, rows};
use crate::message::{Message, PutOptions};

/// Properties of the tenant's mix on which replies depend.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VerifyRules {
    /// No tenant writes plain records, so that sums are known.
    read_only: bool,
    /// Plain records are deleted or evicted, so that any may be absent.
    deletes: bool,
    /// True if the computations of clients are done here.
    computes: bool,
    /// No tenant changes the graph.
    graph_unchanged: bool,
}

impl VerifyRules {
    /// The deletes of a pool are of missing records.
    pub(super) fn of(load: &TenantLoad) -> VerifyRules {
        let TenantLoad { mix, data, .. } = load;
        let deletes = data.may_lack || mix.has(Class::Delete) && data.pool.is_none();
        let exact = data.graph.as_ref().is_some_and(|graph| graph.exact);
        let graph_unchanged = exact && !mix.classes().any(Class::changes_graph);
        VerifyRules {
            graph_unchanged,
            read_only: !mix.classes().any(Class::rewrites),
            deletes,
            computes: load.client_takes.is_none(),
        }
    }
}

/// Buffers for keys and values, reused from request to request.
#[derive(Debug, Default)]
pub(super) struct RequestBuffers {
    key: Vec<u8>,
    value: Vec<u8>,
    keys: Vec<Vec<u8>>,
    computed: Vec<u8>,
    pub(super) edge_keys: EdgeKeySlots,
}

/// Largest amount that a transfer moves.
const MAX_TRANSFER: u64 = 10;
/// Stands in the reply of `range` where there is no record.
const NO_RECORD: u32 = u32::MAX;

impl Data {
    /// Appends the operation of `request`'s present step.
    pub(super) fn write_request(
        &self,
        request: &LoadRequest,
        salt: u64,
        message: &mut Message,
        scratch: &mut RequestBuffers,
    ) {
        if request.class.is_of_graph() {
            return self.write_graph_request(request, salt, message, &scratch.edge_keys);
        }
        let RequestBuffers { key, value, keys, .. } = scratch;
        match request.class {
            Class::Get | Class::Delete if request.twist != 0 => self.write_missing_key(request.id, key),
            class => self.write_key_of(class, request.id, key),
        }
        match request.class {
            Class::Get | Class::ChainGets | Class::AuthGets | Class::Balance => message.get(self.table, key),
            class if class.begins_with_get() && request.step == 0 => message.get(self.table, key),
            Class::Put | Class::Insert | Class::ReadModifyWrite => {
                write_value(request.id, salt, self.value_len_of(request.id), value);
                message.put(self.table, key, value, &PutOptions::default());
            }
            Class::Delete => message.delete(self.table, key, None),
            Class::Increment => message.increment(self.table, key, 1),
            Class::MultiGet | Class::AggregateGets | Class::ChecksumGets | Class::AnalysisGets | Class::LongGets => {
                let request_of_call = self.requested_members(request);
                keys.resize_with(request_of_call.len(), Vec::new);
                for (at, key) in request_of_call.zip(keys.iter_mut()) {
                    self.write_member_key(request.class, request.id, at, key);
                }
                message.multi_get(self.table, keys);
            }
            class => {
                self.write_args(request, salt, key, value);
                class.call(value, message);
            }
        }
    }

    /// Returns the members of its list that are read in its present step.
    fn requested_members(&self, request: &LoadRequest) -> std::ops::Range<u32> {
        if request.class == Class::LongGets { self.long_batch(request.step) } else { 0..self.list_len }
    }

    /// Writes the arguments of a call about the record under `key`.
    fn write_args(&self, request: &LoadRequest, salt: u64, key: &mut Vec<u8>, args: &mut Vec<u8>) {
        args.clear();
        args.extend_from_slice(&self.table.to_le_bytes());
        match request.class {
            Class::Chain => args.extend_from_slice(&self.depth.to_le_bytes()),
            Class::Aggregate => args.extend_from_slice(&self.rounds.to_le_bytes()),
            Class::Scan => args.extend_from_slice(&request.twist.to_le_bytes()),
            Class::Long => {
                args.extend_from_slice(&self.long_gets.to_le_bytes());
                args.extend_from_slice(&self.long_yield_every.to_le_bytes());
            }
            Class::Auth => {
                args.push(0);
                args.extend_from_slice(&(key.len() as u16).to_le_bytes());
                args.extend_from_slice(key);
                args.extend_from_slice(rows::password(request.id, request.twist == 0).as_bytes());
                return;
            }
            Class::Transfer => {
                args.extend_from_slice(&(1 + salt % MAX_TRANSFER).to_le_bytes());
                args.extend_from_slice(&(key.len() as u16).to_le_bytes());
                args.extend_from_slice(key);
                self.write_key_of(Class::Transfer, self.transfer_target(request), key);
            }
            Class::Analysis => {
                args.extend_from_slice(&self.table.to_le_bytes());
                let list = std::mem::take(key);
                self.write_tree_key(key);
                args.extend_from_slice(&(key.len() as u16).to_le_bytes());
                args.extend_from_slice(key);
                *key = list;
            }
            _ => {}
        }
        args.extend_from_slice(if request.class == Class::Bad { self.bad.as_bytes() } else { key });
    }

    /// Returns the target of a transfer: the account that was drawn for it, or the next one if the drawn one is its
    /// source.
    fn transfer_target(&self, request: &LoadRequest) -> u64 {
        let drawn = u64::from(request.twist);
        if drawn == request.id { (drawn + 1) % self.accounts.max(1) } else { drawn }
    }

    /// Looks at a successful reply.
    pub(super) fn check_reply(
        &self,
        request: &mut LoadRequest,
        found: bool,
        reply: &[u8],
        rules: VerifyRules,
        scratch: &mut RequestBuffers,
    ) -> ReplyVerdict {
        if request.class.is_of_graph() {
            return self.check_graph_reply(request, found, reply, rules.graph_unchanged, &mut scratch.edge_keys);
        }
        match request.class {
            Class::ChainGets if request.step + 1 < self.depth => {
                if !found {
                    return ReplyVerdict::Wrong;
                }
                // The client needs the reply for its next step, as any client would; it is checked at the end.
                request.id = self.next_link(request.id);
                request.step += 1;
                return ReplyVerdict::NextStep;
            }
            Class::ReadModifyWrite if request.step == 0 => {
                request.step = 1;
                let right = !request.verify || self.is_record(request.id, found, reply, rules);
                return if right { ReplyVerdict::NextStep } else { ReplyVerdict::Wrong };
            }
            class if class.begins_with_get() && request.step == 0 => {
                request.step = 1;
                return if found { ReplyVerdict::NextStep } else { ReplyVerdict::Wrong };
            }
            Class::LongGets if self.long_batch(request.step).end < self.long_gets => {
                let right = found && (!request.verify || self.are_correct_members(request, reply, rules));
                request.step += 1;
                return if right { ReplyVerdict::NextStep } else { ReplyVerdict::Wrong };
            }
            _ => {}
        }
        if let Some(called) = request.class.called().filter(|_| request.class != Class::ChainGets) {
            return self.check_computed(request, called, (found, reply), rules, scratch);
        }
        if !request.verify || self.is_right(request, found, reply, rules, scratch) {
            ReplyVerdict::Done
        } else {
            ReplyVerdict::Wrong
        }
    }

    /// Does the client's computation over the last answer, and compares the result with the extension's reply.
    fn check_computed(
        &self,
        request: &LoadRequest,
        called: Class,
        (found, reply): (bool, &[u8]),
        rules: VerifyRules,
        scratch: &mut RequestBuffers,
    ) -> ReplyVerdict {
        if !rules.computes && !request.verify {
            return ReplyVerdict::Done;
        }
        let mut computed = std::mem::take(&mut scratch.computed);
        self.compute(request, reply, &mut computed);
        std::hint::black_box(&computed);
        let members = matches!(request.class, Class::AggregateGets | Class::ChecksumGets | Class::LongGets);
        let right = || {
            let request_of_call = LoadRequest { class: called, ..*request };
            found
                && (!members || self.are_correct_members(request, reply, rules))
                && self.is_right(&request_of_call, true, &computed, rules, &mut RequestBuffers::default())
        };
        let seen = if !request.verify || right() { ReplyVerdict::Done } else { ReplyVerdict::Wrong };
        scratch.computed = computed;
        seen
    }

    /// Returns whether a get of plain record `id` may be answered so.
    fn is_record(&self, id: u64, found: bool, reply: &[u8], rules: VerifyRules) -> bool {
        if found { reply.len() == self.value_len_of(id) && check_value(id, reply) } else { rules.deletes }
    }

    fn is_right(
        &self,
        request: &LoadRequest,
        found: bool,
        reply: &[u8],
        rules: VerifyRules,
        scratch: &mut RequestBuffers,
    ) -> bool {
        let RequestBuffers { key, value, .. } = scratch;
        match request.class {
            Class::Get if request.twist != 0 => !found,
            Class::Get | Class::InvokeGet => self.is_record(request.id, found, reply, rules),
            Class::Delete => request.twist == 0 || !found,
            Class::Put | Class::Insert | Class::ReadModifyWrite | Class::Increment | Class::Bad => found,
            Class::Long => found && reply.first_chunk::<4>() == Some(&self.long_gets.to_le_bytes()),
            Class::ChainGets => {
                self.write_link(request.id, value, key);
                found && reply == value.as_slice()
            }
            Class::Chain => {
                self.write_link(self.link_after(request.id, u64::from(self.depth.max(1)) - 1), value, key);
                found && reply == value.as_slice()
            }
            Class::MultiGet => found && self.are_correct_members(request, reply, rules),
            Class::Aggregate => {
                let Some((sum, counts)) = reply.split_first_chunk::<8>() else { return false };
                let counted = [self.list_len.to_le_bytes(), [0; 4]].concat();
                found
                    && (rules.deletes || counts == counted)
                    && (!rules.read_only || u64::from_le_bytes(*sum) == self.expected_sum(request.id))
            }
            Class::Checksum => {
                found && reply.len() == 32 && (!rules.read_only || reply == self.expected_digest(request.id).as_slice())
            }
            Class::Analysis => {
                let rows = (0..self.list_len).map(|at| Some(rows::expected_class(self.row_member(request.id, at))));
                found && reply == rows::encode_analysis(rows).as_slice()
            }
            Class::Balance => found && reply.len() == 8,
            Class::Transfer => found && reply.len() == 16,
            Class::Auth => found && *reply == [u8::from(request.twist == 0)],
            Class::Scan => found && self.is_correct_range(request, reply, rules),
            Class::AggregateGets | Class::ChecksumGets | Class::AnalysisGets | Class::AuthGets | Class::LongGets => {
                // The result computed from them is compared like a reply of the extension.
                false
            }
            // See `see_graph`.
            _ => false,
        }
    }

    /// Returns whether a multi-get's answer holds the plain records that were asked for, in order.
    fn are_correct_members(&self, request: &LoadRequest, mut reply: &[u8], rules: VerifyRules) -> bool {
        for at in self.requested_members(request) {
            let Some((value, rest)) = split_multi_get_entry(reply) else { return false };
            let member = self.list_member(request.id, at);
            if !self.is_record(member, value.is_some(), value.unwrap_or_default(), rules) {
                return false;
            }
            reply = rest;
        }
        reply.is_empty()
    }

    /// Returns whether `range` has answered with the records of a scan. Records under insertion may be there or not.
    fn is_correct_range(&self, request: &LoadRequest, mut reply: &[u8], rules: VerifyRules) -> bool {
        for id in request.id..request.id + u64::from(request.twist) {
            let Some((len, rest)) = reply.split_first_chunk::<4>() else { return false };
            let len = u32::from_le_bytes(*len);
            let found = len != NO_RECORD;
            let Some((value, rest)) = rest.split_at_checked(if found { len as usize } else { 0 }) else { return false };
            let may_lack = !found && id >= self.records;
            if !may_lack && !self.is_record(id, found, value, rules) {
                return false;
            }
            reply = rest;
        }
        reply.is_empty()
    }

    /// Returns what `aggregate` answers for list `id` while every record is as first loaded.
    fn expected_sum(&self, id: u64) -> u64 {
        let mut sum = 0u64;
        self.for_each_member(id, |value| {
            value.resize(value.len().max(8), 0);
            let number = value.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            sum = sum.wrapping_add(rows::lcg_rounds(number, self.rounds));
        });
        sum
    }

    /// Returns what `checksum` answers for list `id` while every record is as first loaded.
    fn expected_digest(&self, id: u64) -> [u8; 32] {
        let mut digest = hmac_sha256::Hash::new();
        self.for_each_member(id, |value| digest.update(value));
        digest.finalize()
    }

    /// The values of a list's records as they are first loaded.
    fn for_each_member(&self, id: u64, mut each: impl FnMut(&mut Vec<u8>)) {
        let mut value = Vec::new();
        for at in 0..self.list_len {
            let member = self.list_member(id, at);
            write_value(member, Data::first_salt(member), self.value_len_of(member), &mut value);
            each(&mut value);
        }
    }
}
