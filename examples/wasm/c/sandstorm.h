// The host's functions for extensions in C, and the structs that they take: docs/modules.md says what each does.
//
// Compile for wasm32 without a C library. Addresses are 32 bits long; integers are little-endian.
#ifndef SANDSTORM_H
#define SANDSTORM_H

#include <stdint.h>

#define SANDSTORM_IMPORT(name) __attribute__((import_module("sandstorm"), import_name(#name)))
// What the server calls: int32_t sandstorm_start(uint32_t slot, const struct sandstorm_header *invocation).
#define SANDSTORM_EXPORT(name) __attribute__((export_name(#name))) name

// What sandstorm_start and sandstorm_poll answer.
enum {
  SANDSTORM_PENDING = 0, // call sandstorm_poll, after others had their turn
  SANDSTORM_DONE = 1,    // the caller gets the reply
  SANDSTORM_FAILED = 2,  // the caller gets what sandstorm_fail said
  SANDSTORM_AGAIN = 3,   // sandstorm_commit met a conflict: start again
};

// What the host's functions answer.
enum {
  SANDSTORM_OK = 0,
  SANDSTORM_NOT_FOUND = 1,
  SANDSTORM_CONFLICT = 2,
  SANDSTORM_UNKNOWN_TABLE = 3,
  SANDSTORM_OUT_OF_MEMORY = 4,
  SANDSTORM_TOO_LARGE = 5,
  SANDSTORM_NOT_A_NUMBER = 6,
  SANDSTORM_WRONG_SERVER = 7,
  SANDSTORM_INVALID = 8,
  SANDSTORM_READ_ONLY = 9,
  SANDSTORM_CONTENDED = 10,
  SANDSTORM_NOT_ORDERED = 11,
};

// Why sandstorm_abort ends the call.
enum { SANDSTORM_PANIC = 1, SANDSTORM_ABORT_OUT_OF_MEMORY = 2 };

// Codes of sandstorm_fail: those of the statuses above, or this one: the extension's own.
enum { SANDSTORM_OTHER = 100 };

// The conditions of a write.
enum { SANDSTORM_ALWAYS = 0, SANDSTORM_IF_ABSENT = 1, SANDSTORM_IF_PRESENT = 2, SANDSTORM_IF_VERSION = 3 };

// The kinds of a transaction's changes.
enum { SANDSTORM_PUT = 0, SANDSTORM_DELETE = 1 };

// The beginning of what `invocation` points at.
struct sandstorm_header {
  uint32_t host; // zero
  const uint8_t *args;
  uint32_t args_len;
  uint32_t padding;
  uint64_t now_ms;
};

struct sandstorm_record {
  const uint8_t *value; // 0: there is no such record (get_many)
  uint32_t value_len;
  const uint8_t *key;
  uint32_t key_len;
  uint64_t version;
  uint32_t flags;
  uint32_t reserved;
};

struct sandstorm_key {
  const uint8_t *first;
  uint32_t len;
};

struct sandstorm_write {
  uint32_t condition;
  uint32_t flags;
  uint64_t version;
  uint64_t ttl_ms; // 0: it does not expire
};

struct sandstorm_cursor {
  uint64_t position;
  uint64_t finished;
};

struct sandstorm_range {
  const uint8_t *from;
  uint32_t from_len;
  const uint8_t *to;
  uint32_t to_len; // 0: to the table's end
  uint32_t backward;
  uint32_t past;
  uint32_t finished;
  uint32_t reserved;
};

struct sandstorm_keys {
  uint8_t *bytes;
  uint32_t bytes_len;
  uint32_t *ends;
  uint32_t ends_len;
  uint32_t filled;
};

struct sandstorm_row {
  const uint8_t *key;
  uint32_t key_len;
  uint64_t version;
};

struct sandstorm_range_read {
  uint64_t table;
  const uint8_t *from;
  uint32_t from_len;
  const uint8_t *to;
  uint32_t to_len;
  const struct sandstorm_row *rows;
  uint32_t rows_len;
  uint32_t included;
  uint32_t backward;
};

struct sandstorm_read {
  uint64_t table;
  uint64_t hash;
  const uint8_t *key;
  uint32_t key_len;
  uint64_t version; // 0: there was none
};

struct sandstorm_change {
  uint64_t table;
  const uint8_t *key;
  uint32_t key_len;
  const uint8_t *value;
  uint32_t value_len;
  uint64_t expires_at_ms; // 0: never
  uint32_t flags;
  uint32_t kind;
};

_Static_assert(sizeof(struct sandstorm_header) == 24, "the beginning of the header");
_Static_assert(sizeof(struct sandstorm_record) == 32 && sizeof(struct sandstorm_key) == 8, "records and keys");
_Static_assert(sizeof(struct sandstorm_write) == 24 && sizeof(struct sandstorm_cursor) == 16, "writes and cursors");
_Static_assert(sizeof(struct sandstorm_range) == 32 && sizeof(struct sandstorm_keys) == 20, "ranges");
_Static_assert(sizeof(struct sandstorm_row) == 16 && sizeof(struct sandstorm_range_read) == 40, "ranges that were read");
_Static_assert(sizeof(struct sandstorm_read) == 32 && sizeof(struct sandstorm_change) == 40, "transactions");

SANDSTORM_IMPORT(args_len) uint32_t sandstorm_args_len(void);
SANDSTORM_IMPORT(args_copy) void sandstorm_args_copy(void *to);
SANDSTORM_IMPORT(now_ms) uint64_t sandstorm_now_ms(void);
SANDSTORM_IMPORT(now_us) uint64_t sandstorm_now_us(void);
SANDSTORM_IMPORT(secret)
int32_t sandstorm_secret(const void *name, uint32_t name_len, void *to, uint32_t capacity, uint32_t *len);
SANDSTORM_IMPORT(random) int32_t sandstorm_random(void *to, uint32_t len);
SANDSTORM_IMPORT(table_by_name)
int32_t sandstorm_table_by_name(const void *name, uint32_t name_len, uint64_t *table);
SANDSTORM_IMPORT(get)
int32_t sandstorm_get(uint64_t table, uint64_t hash, const void *key, uint32_t key_len, struct sandstorm_record *record);
SANDSTORM_IMPORT(get_copy)
int32_t sandstorm_get_copy(uint64_t table, const void *key, uint32_t key_len, void *to, uint32_t capacity,
                           uint32_t *value_len);
SANDSTORM_IMPORT(get_many)
int32_t sandstorm_get_many(uint64_t table, const struct sandstorm_key *keys, const uint64_t *hashes, uint32_t count,
                           struct sandstorm_record *records);
SANDSTORM_IMPORT(put)
int32_t sandstorm_put(uint64_t table, const void *key, uint32_t key_len, const void *value, uint32_t value_len,
                      const struct sandstorm_write *options, uint64_t *version);
SANDSTORM_IMPORT(delete)
int32_t sandstorm_delete(uint64_t table, const void *key, uint32_t key_len, const struct sandstorm_write *options);
SANDSTORM_IMPORT(increment)
int32_t sandstorm_increment(uint64_t table, const void *key, uint32_t key_len, int64_t delta, int64_t *sum);
SANDSTORM_IMPORT(scan)
int32_t sandstorm_scan(uint64_t table, struct sandstorm_cursor *cursor, struct sandstorm_record *records, uint32_t limit,
                       uint32_t *filled);
SANDSTORM_IMPORT(range)
int32_t sandstorm_range(uint64_t table, struct sandstorm_range *range, struct sandstorm_record *records, uint32_t limit,
                        uint32_t *filled);
SANDSTORM_IMPORT(range_keys)
int32_t sandstorm_range_keys(uint64_t table, struct sandstorm_range *range, struct sandstorm_keys *keys);
SANDSTORM_IMPORT(count)
int32_t sandstorm_count(uint64_t table, const struct sandstorm_range *range, uint64_t *count);
SANDSTORM_IMPORT(nth) int32_t sandstorm_nth(uint64_t table, uint64_t position, struct sandstorm_keys *keys);
SANDSTORM_IMPORT(expiry)
int32_t sandstorm_expiry(uint64_t table, uint64_t hash, const void *key, uint32_t key_len, uint64_t *expires_at_ms);
SANDSTORM_IMPORT(touch)
int32_t sandstorm_touch(uint64_t table, const void *key, uint32_t key_len, uint64_t ttl_ms);
SANDSTORM_IMPORT(reply) int32_t sandstorm_reply(const void *bytes, uint32_t len);
SANDSTORM_IMPORT(fail) int32_t sandstorm_fail(uint32_t code, const void *text, uint32_t text_len);
SANDSTORM_IMPORT(abort)
_Noreturn void sandstorm_abort(uint32_t cause, const void *text, uint32_t text_len);
SANDSTORM_IMPORT(commit)
int32_t sandstorm_commit(const struct sandstorm_read *reads, uint32_t reads_len,
                         const struct sandstorm_range_read *ranges, uint32_t ranges_len,
                         const struct sandstorm_change *changes, uint32_t changes_len);
// The processor's cache misses: see docs/modules.md.
SANDSTORM_IMPORT(prefetch)
int32_t sandstorm_prefetch(uint64_t table, const void *key, uint32_t key_len, uint64_t *hash);
SANDSTORM_IMPORT(prefetch_record) int32_t sandstorm_prefetch_record(uint64_t table, uint64_t hash);
SANDSTORM_IMPORT(prefetch_many)
int32_t sandstorm_prefetch_many(uint64_t table, const struct sandstorm_key *keys, uint32_t count, uint64_t *hashes);
SANDSTORM_IMPORT(prefetch_records)
int32_t sandstorm_prefetch_records(uint64_t table, const uint64_t *hashes, uint32_t count);

#endif
