/* A prototype: code of tenants runs with the server's memory closed to it by a protection key (docs/soundness.md,
 * "Protection keys"). It stands alone; scripts/protection-keys builds it and runs it.
 *
 * "Server" memory has key K, all else has key 0. enter() closes K and calls a function on a side stack, host_call()
 * opens K for as long as it runs. Each check says ok or FAILED; one that failed makes the exit status 1. Where the
 * processor or the kernel has no protection keys, that is said in one line and the exit status is 0. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/reboot.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { STACK_BYTES = 64 << 10, PAGE = 4096, ROUNDS = 100000, EXTENT_BYTES = 2 << 20 };

static int failures;
static int key;
uint32_t closed, opened; /* for enter(), as the next */
static volatile uint64_t *server;
static uint64_t arena[8];
void *saved_stack;
static struct { volatile int code, key, count; volatile uint32_t rights; } fault;

static uint32_t rights(void) {
  uint32_t low, high;
  __asm__ volatile("rdpkru" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

/* "memory": nothing that the key closes may move across it. */
static inline __attribute__((always_inline)) void set_rights(uint32_t value) {
  __asm__ volatile("wrpkru" : : "a"(value), "c"(0), "d"(0) : "memory");
}

static void check(const char *what, int holds) {
  printf("%-72s %s\n", what, holds ? "ok" : "FAILED");
  failures += !holds;
}

/* enter(function, top): keeps what a call keeps, closes the server's memory, takes the side stack and calls. What
 * comes back, by return or by landing_pad, opens it first. */
uint64_t enter(uint64_t (*function)(void), void *top);
void landing_pad(void);
__asm__(".text\nenter:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, saved_stack(%rip)\n"
        "mov %rsi, %rsp\n"
        "xor %ecx, %ecx\nxor %edx, %edx\nmov closed(%rip), %eax\nwrpkru\n"
        "call *%rdi\n"
        "mov %rax, %rsi\n"
        "landing_pad:\n"
        "xor %ecx, %ecx\nxor %edx, %edx\nmov opened(%rip), %eax\nwrpkru\n"
        "mov %rsi, %rax\n"
        "mov saved_stack(%rip), %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

/* The server's function that tenants' code may call. */
static __attribute__((noinline)) uint64_t host_call(void) {
  set_rights(opened);
  uint64_t answer = ++*server;
  set_rights(closed);
  return answer;
}

static uint64_t computes(void) { return arena[1] = arena[0] + 1; }
static uint64_t calls(void) { return host_call(); }
static uint64_t reads(void) { return *server; }
static uint64_t writes(void) { return *server = 1; }
static uint64_t reads_after_a_call(void) { host_call(); return *server; }
static uint64_t calls_often(void) {
  for (int round = 0; round < ROUNDS; round++) host_call();
  return 0;
}

/* The kernel begins a handler with rights of its own: every key but 0 is closed. When it returns, the rights of the
 * interrupted code are back, so the landing pad has to open. */
static void on_fault(int signal, siginfo_t *info, void *context) {
  ucontext_t *interrupted = context;
  (void)signal;
  fault.rights = rights();
  fault.code = info->si_code;
  fault.key = (int)info->si_pkey;
  fault.count++;
  interrupted->uc_mcontext.gregs[REG_RSI] = 0xdead;
  interrupted->uc_mcontext.gregs[REG_RIP] = (greg_t)(uintptr_t)landing_pad;
}

static double now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int has_keys(void) {
  unsigned a, b, c = 0, d;
  /* Leaf 7: the processor's (bit 3), and that the kernel has switched them on (bit 4). */
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c >> 3 & 1) && (c >> 4 & 1);
}

static void check_faults(void *top) {
  struct { const char *what; uint64_t (*function)(void); } attacks[] = {
    {"a read of the server's memory faults", reads},
    {"a write to it faults", writes},
    {"a read after a host call faults: it has closed the memory again", reads_after_a_call},
  };
  for (unsigned at = 0; at < sizeof attacks / sizeof *attacks; at++) {
    int before = fault.count;
    uint64_t answer = enter(attacks[at].function, top);
    check(attacks[at].what, answer == 0xdead && fault.count == before + 1);
    check("  its cause is the key (SEGV_PKUERR), which the kernel names", fault.code == SEGV_PKUERR && fault.key == key);
    check("  in the handler the server's memory is closed as well", fault.rights >> 2 * key & 1);
    check("  after the landing it is open", rights() == opened);
  }
}

static void measure(void *top, void *extent) {
  double begun = now_ns();
  for (int round = 0; round < ROUNDS; round++) enter(computes, top);
  double calls_ns = (now_ns() - begun) / ROUNDS;
  begun = now_ns();
  enter(calls_often, top);
  double host_ns = (now_ns() - begun) / ROUNDS;
  begun = now_ns();
  for (int round = 0; round < ROUNDS; round++) { set_rights(closed); set_rights(opened); }
  double pair_ns = (now_ns() - begun) / ROUNDS;
  const int moves = 2000;
  begun = now_ns();
  for (int round = 0; round < moves; round++) pkey_mprotect(extent, EXTENT_BYTES, PROT_READ | PROT_WRITE, round & 1 ? key : 0);
  printf("ns, of this machine or its emulation: enter and return %.1f, host call %.1f, two WRPKRU %.1f, pkey_mprotect of 2 MiB %.0f\n",
         calls_ns, host_ns, pair_ns, (now_ns() - begun) / moves);
}

static int run(void) {
  if (!has_keys()) {
    puts("skipped: this processor has no protection keys, or the kernel has not switched them on");
    return 0;
  }
  key = pkey_alloc(0, 0);
  if (key < 0) {
    printf("skipped: no protection key: %s\n", strerror(errno));
    return 0;
  }
  const int both = PROT_READ | PROT_WRITE, kind = MAP_PRIVATE | MAP_ANONYMOUS;
  server = mmap(NULL, PAGE, both, kind, -1, 0);
  char *stack = mmap(NULL, STACK_BYTES, both, kind, -1, 0);
  void *extent = mmap(NULL, EXTENT_BYTES, both, kind | MAP_POPULATE, -1, 0);
  if (server == MAP_FAILED || stack == MAP_FAILED || extent == MAP_FAILED) {
    perror("mmap");
    return 1;
  }
  *server = 41;
  check("the server's memory gets the key", pkey_mprotect((void *)server, PAGE, both, key) == 0);
  opened = rights() & ~(3u << 2 * key);
  closed = opened | 3u << 2 * key;
  struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  static char handler_stack[STACK_BYTES];
  stack_t alternative = {.ss_sp = handler_stack, .ss_size = sizeof handler_stack};
  check("a handler on a stack of its own", sigaltstack(&alternative, NULL) == 0 && sigaction(SIGSEGV, &action, NULL) == 0);
  void *top = stack + STACK_BYTES;
  set_rights(opened);
  arena[0] = 6;
  check("a function computes in the arena, with the server's memory closed", enter(computes, top) == 7 && fault.count == 0);
  check("a host call opens it for as long as it runs", enter(calls, top) == 42 && fault.count == 0);
  check_faults(top);
  int more = 0;
  while (pkey_alloc(0, 0) > 0) more++;
  printf("keys beside 0 that a process gets: %d\n", more + 1);
  measure(top, extent);
  printf("protection keys: %s\n", failures ? "FAILED" : "all ok");
  return failures != 0;
}

int main(void) {
  int status = run();
  fflush(stdout);
  /* As the first process of an emulated machine, it switches that off. */
  if (getpid() == 1) reboot(RB_POWER_OFF);
  return status;
}
