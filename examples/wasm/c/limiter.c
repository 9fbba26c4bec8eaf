// A rate limiter: a token bucket per key, kept in a table.
//
// Arguments: table u64, tokens per second u32, most tokens u32, then the key. Reply: 1 and the tokens that are left
// (u8, u32), or 0 and the milliseconds until there is one (u8, u32). Integers are little-endian.
//
// A bucket is a record of 16 bytes: thousandths of tokens, and the time at which that was so (ms), u64 each. It is
// replaced if it is the version that was read, so calls at the same time never take the same token. It expires when it
// would be full anyway.
#include "sandstorm.h"

struct bucket {
  uint64_t millitokens;
  uint64_t at_ms;
};

// Attempts while other calls write the same bucket.
enum { ATTEMPTS = 16, ARGS_LEN = 16 };

static int32_t fail(uint32_t code, const char *text) {
  uint32_t len = 0;
  while (text[len])
    len++;
  sandstorm_fail(code, text, len);
  return SANDSTORM_FAILED;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

// What a bucket has now; a missing one is full.
static struct bucket refilled(const struct sandstorm_record *record, uint64_t now_ms, uint32_t per_s, uint64_t full) {
  struct bucket now = {full, now_ms};
  if (!record)
    return now;
  const struct bucket was = *(const struct bucket *)record->value;
  if (now_ms < was.at_ms)
    now.at_ms = was.at_ms;
  // At most a day, so that the product has its room.
  now.millitokens = least(full, was.millitokens + least(now.at_ms - was.at_ms, 86400000) * per_s);
  return now;
}

static int32_t answer(uint8_t allowed, uint32_t number) {
  uint8_t reply[5] = {allowed, number, number >> 8, number >> 16, number >> 24};
  if (sandstorm_reply(reply, sizeof reply) != SANDSTORM_OK)
    return fail(SANDSTORM_OTHER, "no room for the reply");
  return SANDSTORM_DONE;
}

int32_t SANDSTORM_EXPORT(sandstorm_start)(uint32_t slot, const struct sandstorm_header *invocation) {
  (void)slot;
  if (invocation->args_len <= ARGS_LEN)
    return fail(SANDSTORM_INVALID, "args: table u64, tokens per second u32, most tokens u32, key");
  const uint8_t *key = invocation->args + ARGS_LEN;
  const uint32_t key_len = invocation->args_len - ARGS_LEN;
  const uint64_t table = *(const uint64_t *)invocation->args;
  const uint32_t per_s = *(const uint32_t *)(invocation->args + 8);
  const uint64_t full = 1000ull * *(const uint32_t *)(invocation->args + 12);
  if (per_s == 0 || full == 0)
    return fail(SANDSTORM_INVALID, "tokens per second and most tokens are at least 1");
  for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
    struct sandstorm_record record;
    int32_t status = sandstorm_get(table, 0, key, key_len, &record);
    if (status == SANDSTORM_OK && record.value_len != sizeof(struct bucket))
      return fail(SANDSTORM_INVALID, "the record under the key is no bucket");
    if (status != SANDSTORM_OK && status != SANDSTORM_NOT_FOUND)
      return fail(status, "the bucket cannot be read");
    const int exists = status == SANDSTORM_OK;
    struct bucket bucket = refilled(exists ? &record : 0, invocation->now_ms, per_s, full);
    if (bucket.millitokens < 1000)
      return answer(0, (1000 - bucket.millitokens + per_s - 1) / per_s);
    bucket.millitokens -= 1000;
    const struct sandstorm_write how = {
        .condition = exists ? SANDSTORM_IF_VERSION : SANDSTORM_IF_ABSENT,
        .version = exists ? record.version : 0,
        .ttl_ms = (full - bucket.millitokens) / per_s + 1,
    };
    status = sandstorm_put(table, key, key_len, &bucket, sizeof bucket, &how, 0);
    if (status == SANDSTORM_OK)
      return answer(1, bucket.millitokens / 1000);
    if (status != SANDSTORM_CONFLICT && status != SANDSTORM_NOT_FOUND)
      return fail(status, "the bucket cannot be written");
  }
  return fail(SANDSTORM_CONFLICT, "other calls write the same bucket");
}
