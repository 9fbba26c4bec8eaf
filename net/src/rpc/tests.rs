use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

type Owned = (usize, u8, usize, usize, u32, u64, u64, Vec<u8>, Vec<u8>);

fn operation() -> impl Strategy<Value = Owned> {
    let bytes = || vec(any::<u8>(), 0..40);
    let (ops, statuses, conditions) = (0..OpKind::ALL.len(), 0..RpcStatus::ALL.len(), 0..Condition::ALL.len());
    (ops, any::<u8>(), statuses, conditions, any::<u32>(), any::<u64>(), any::<u64>(), bytes(), bytes())
}

fn borrow(owned: &Owned) -> Operation<'_> {
    let (op, flags, status, condition, user_flags, table, number, key, value) = owned;
    Operation {
        op: OpKind::ALL[*op],
        flags: *flags,
        status: RpcStatus::ALL[*status],
        condition: Condition::ALL[*condition],
        user_flags: *user_flags,
        table: *table,
        number: *number,
        key,
        value,
    }
}

fn header() -> impl Strategy<Value = MessageHeader> {
    (any::<u8>(), any::<u32>(), any::<[u64; 3]>()).prop_map(|(flags, tenant, [session, sequence, acked])| {
        MessageHeader { flags, operations: 0, tenant, session, sequence, acked }
    })
}

fn decode_all(message: &[u8]) -> Result<(MessageHeader, Vec<Operation<'_>>), MessageDecodeError> {
    let (header, operations) = MessageHeader::decode(message)?;
    Ok((header, operations.collect::<Result<_, _>>()?))
}

proptest! {
    #[test]
    fn messages_come_back_as_they_went(mut header in header(), owned in vec(operation(), 0..6)) {
        header.operations = owned.len() as u16;
        let operations: Vec<_> = owned.iter().map(borrow).collect();
        let mut message = Vec::new();
        encode_message(&header, &operations, &mut message);
        let expected = MESSAGE_HEADER_LEN + operations.iter().map(Operation::encoded_len).sum::<usize>();
        prop_assert_eq!(message.len(), expected);
        prop_assert_eq!(decode_all(&message), Ok((header, operations)));
    }

    #[test]
    fn every_truncation_is_an_error_and_so_is_every_byte_behind(
        mut header in header(), owned in vec(operation(), 0..4), behind in vec(any::<u8>(), 1..5)
    ) {
        header.operations = owned.len() as u16;
        let operations: Vec<_> = owned.iter().map(borrow).collect();
        let mut message = Vec::new();
        encode_message(&header, &operations, &mut message);
        for end in 0..message.len() {
            let error = decode_all(&message[..end]).expect_err("a truncated message was taken");
            let expected = matches!(error, MessageDecodeError::ShortHeader | MessageDecodeError::ShortOperation(_) | MessageDecodeError::ShortBody(_));
            prop_assert!(expected, "{:?}", error);
        }
        message.extend_from_slice(&behind);
        prop_assert_eq!(decode_all(&message), Err(MessageDecodeError::Trailing(behind.len())));
    }

    #[test]
    fn random_bytes_never_panic_and_what_decodes_encodes_to_the_same(mut bytes in vec(any::<u8>(), 0..200), fix in any::<bool>()) {
        if fix && bytes.len() >= 12 {
            (bytes[0], bytes[3]) = (VERSION, 0);
        }
        crate::fuzzing::rpc(&bytes);
    }

    #[test]
    fn mutated_messages_never_panic(owned in vec(operation(), 1..4), flips in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let operations: Vec<_> = owned.iter().map(borrow).collect();
        let header = MessageHeader { flags: 0, operations: owned.len() as u16, tenant: 1, session: 2, sequence: 3, acked: 2 };
        let mut message = Vec::new();
        encode_message(&header, &operations, &mut message);
        for (at, byte) in flips {
            let at = at.index(message.len());
            message[at] = byte;
        }
        crate::fuzzing::rpc(&message);
    }

    #[test]
    fn key_lists_come_back(keys in vec(vec(any::<u8>(), 0..30), 0..20), cut in any::<prop::sample::Index>()) {
        let mut body = Vec::new();
        keys.iter().for_each(|key| push_key(&mut body, key));
        let read: Result<Vec<_>, _> = MultiGetKeys::new(keys.len() as u64, &body).collect();
        prop_assert_eq!(read.unwrap(), keys.iter().map(Vec::as_slice).collect::<Vec<_>>());
        if !body.is_empty() {
            let end = cut.index(body.len());
            let cut: Result<Vec<_>, _> = MultiGetKeys::new(keys.len() as u64, &body[..end]).collect();
            prop_assert!(matches!(cut, Err(BodyDecodeError::Short(_))));
            let fewer: Result<Vec<_>, _> = MultiGetKeys::new(keys.len() as u64 - 1, &body).collect();
            prop_assert!(matches!(fewer, Err(BodyDecodeError::Trailing(_))));
        }
        let endless: Vec<_> = MultiGetKeys::new(u64::MAX, &body).collect();
        prop_assert!(endless.len() <= keys.len() + 1, "a wrong count must not make an endless list");
    }

    #[test]
    fn answer_lists_come_back(
        answers in vec((0..RpcStatus::ALL.len(), any::<u32>(), any::<u64>(), vec(any::<u8>(), 0..30)), 0..20)
    ) {
        let answers: Vec<_> = answers.iter()
            .map(|(status, user_flags, version, value)| {
                MultiGetEntry { status: RpcStatus::ALL[*status], user_flags: *user_flags, version: *version, value }
            })
            .collect();
        let mut body = Vec::new();
        answers.iter().for_each(|answer| push_multiget_entry(&mut body, answer));
        prop_assert_eq!(body.len(), answers.iter().map(MultiGetEntry::encoded_len).sum::<usize>());
        prop_assert_eq!(MultiGetEntries::new(&body).collect::<Result<Vec<_>, _>>().unwrap(), answers);
    }

    #[test]
    fn the_rows_of_a_range_come_back(
        rows in vec((vec(any::<u8>(), 0..30), any::<u32>(), any::<u64>(), vec(any::<u8>(), 0..30)), 0..9)
    ) {
        let rows: Vec<_> = (rows.iter())
            .map(|(key, user_flags, version, value)| RangeEntry { key, user_flags: *user_flags, version: *version, value })
            .collect();
        let mut body = Vec::new();
        rows.iter().for_each(|row| push_range_entry(&mut body, row));
        prop_assert_eq!(body.len(), rows.iter().map(RangeEntry::encoded_len).sum::<usize>());
        prop_assert_eq!(RangeEntries::new(&body).collect::<Result<Vec<_>, _>>(), Ok(rows.clone()));
        for end in 0..body.len() {
            let cut: Vec<_> = RangeEntries::new(&body[..end]).collect();
            prop_assert!(cut.len() <= rows.len() && cut.iter().flatten().zip(&rows).all(|(cut, row)| cut == row));
        }
    }

    #[test]
    fn a_time_to_live_comes_back(ttl_ms in any::<u64>(), value in vec(any::<u8>(), 0..30)) {
        let body = [&ttl_prefix(ttl_ms), value.as_slice()].concat();
        prop_assert_eq!(split_ttl(&Operation::put_with_ttl(1, b"k", &body)), Ok((Some(ttl_ms), value.as_slice())));
        prop_assert_eq!(split_ttl(&Operation::put(1, b"k", &body)), Ok((None, body.as_slice())));
        prop_assert_eq!(split_ttl(&Operation::put_with_ttl(1, b"k", &body[..7])), Err(BodyDecodeError::Short(0)));
    }

    #[test]
    fn a_hello_answer_comes_back(workers in any::<u32>(), home in any::<u32>()) {
        let answer = HelloResponse { workers, home };
        prop_assert_eq!(HelloResponse::decode(&answer.encode()), Ok(answer));
        prop_assert_eq!(HelloResponse::decode(&answer.encode()[..7]), Err(BodyDecodeError::Short(0)));
    }
}

#[test]
fn numbers_and_names_agree() {
    for (number, op) in OpKind::ALL.iter().enumerate() {
        assert_eq!(OpKind::from_byte(number as u8), Some(*op));
    }
    for (number, status) in RpcStatus::ALL.iter().enumerate() {
        assert_eq!(*status as usize, number);
    }
    assert_eq!(OpKind::from_byte(OpKind::ALL.len() as u8), None);
    assert_eq!(Condition::from_byte(4), None);
    assert_eq!(KillCause::from_byte(0), None);
}

#[test]
fn what_is_wrong_is_named() {
    let header = MessageHeader { flags: 0, operations: 1, tenant: 1, session: 2, sequence: 3, acked: 2 };
    let mut message = Vec::new();
    encode_message(&header, &[Operation::get(7, b"key")], &mut message);
    let with = |at: usize, byte: u8| {
        let mut changed = message.clone();
        changed[at] = byte;
        decode_all(&changed).err()
    };
    assert_eq!(with(0, 9), Some(MessageDecodeError::Version(9)));
    assert_eq!(with(3, 0xFF), Some(MessageDecodeError::Operations(0xFF01)));
    assert_eq!(with(MESSAGE_HEADER_LEN, 200), Some(MessageDecodeError::UnknownOp(0, 200)));
    assert_eq!(with(MESSAGE_HEADER_LEN + 2, 200), Some(MessageDecodeError::UnknownEnum(0)));
    assert_eq!(with(MESSAGE_HEADER_LEN + 6, 0xFF), Some(MessageDecodeError::TooLarge(0)));
    assert_eq!(with(2, 2), Some(MessageDecodeError::ShortOperation(1)));
    assert_eq!(with(2, 0), Some(MessageDecodeError::Trailing(OP_HEADER_LEN + 3)));
}

#[test]
fn a_response_can_be_begun_and_counted_at_the_end() {
    let request =
        MessageHeader { flags: MESSAGE_FLAG_IDEMPOTENT, operations: 2, tenant: 1, session: 2, sequence: 3, acked: 2 };
    let mut message = vec![1, 2, 3];
    request.response(0).begin(&mut message);
    encode_operation(&Operation::get(7, b"k").answer(RpcStatus::NotFound), &mut message);
    set_operation_count(&mut message, 1);
    let (header, operations) = decode_all(&message).unwrap();
    assert_eq!(
        header,
        MessageHeader { flags: MESSAGE_FLAG_IDEMPOTENT | MESSAGE_FLAG_RESPONSE, operations: 1, ..request }
    );
    assert_eq!(operations, [Operation { status: RpcStatus::NotFound, table: 7, ..Operation::new(OpKind::Get) }]);
}

/// The longest value fits beside a time to live and in a multiget, and beside the longest key in a range.
const _: () =
    assert!(MAX_VALUE_LEN + 8 <= MAX_BODY_LEN && MAX_VALUE_LEN + body::MULTIGET_ENTRY_HEADER_LEN <= MAX_BODY_LEN);
const _: () = assert!(MAX_VALUE_LEN + MAX_KEY_LEN + body::RANGE_ENTRY_HEADER_LEN <= MAX_BODY_LEN);
