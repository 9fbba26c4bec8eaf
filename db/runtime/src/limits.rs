//! Limits of this crate: name, default, unit, reason.

/// Time from the end of an invocation's first poll for which it may be under way, as a multiple of its CPU time. An
/// invocation that always yields uses little CPU time, and pins replaced records meanwhile. Clients have long given up
/// by then.
pub const LIFE_PER_TOTAL: u64 = 100;
/// Minimum of that time, microseconds: small budgets must not end calls that only waited for others' turns.
pub const LIFE_MIN_US: u64 = 1_000_000;
/// Polls that an invocation still has after that time: on a machine that stood still for a second no invocation has had
/// a turn, and most end within a few.
pub const LIFE_LATE_POLLS: u32 = 16;
/// Time under way while too much memory waits for readers (`RECLAIM_PRESSURE_BYTES` of the store), microseconds,
/// whatever the budgets: five times the CPU time of a whole call. Memory waits for up to three such times, one for each
/// step of the epoch.
pub const RECLAIM_PRESSURE_LIFE_US: u64 = 50_000;
/// Polls that an invocation still has after that time: a worker that stood still while others wrote has soon polled
/// most of its invocations.
pub const RECLAIM_PRESSURE_LATE_POLLS: u32 = 2;
/// Functions, without those that were inlined into them, that a look at where code is follows, at most: it is made by
/// the worker, in microseconds.
pub const WALK_FRAMES: usize = 64;
/// Bytes of a stack that are searched for a library's function, where the code is not the library's own: as many as the
/// host's functions may use.
pub const WALK_SEARCH_BYTES: usize = HOST_CALL_STACK_BYTES;
/// Places that are kept of a call that was killed.
pub const KILL_PLACES: usize = 48;
/// Places that the text for its caller names, and bytes that they take there, at most.
pub const KILL_PLACES_IN_TEXT: usize = 4;
/// See there.
pub const KILL_PLACES_TEXT_BYTES: usize = 400;
/// Bytes of a stack that a sample has, from the stack pointer up: the handler copies them in less than a microsecond
/// where the code uses as few as most.
pub const SAMPLE_STACK_BYTES: usize = 16 << 10;
/// Samples of each worker a second, while a profile is taken: a signal and its handler take some microseconds. No
/// divisor of what code does at round times.
pub const SAMPLES_PER_S: u64 = 499;
/// Ways to places that one profile tells apart; the rest is counted together.
pub const PROFILE_STACKS: usize = 10_000;
/// Functions of one of them.
pub const PROFILE_PLACES: usize = 128;
/// Size of a side stack, bytes: it limits an extension's recursion.
pub const SIDE_STACK_BYTES: usize = 1 << 20;
/// Side stacks of the process, beside one for each worker: those that switched-out invocations take along, and those
/// that are kept for tenants. Each takes address space, and memory as far as it was used. Where none is left, a
/// switched-out invocation continues at once, until its total budget is spent.
pub const SIDE_STACKS: usize = 4_096;
/// The side stacks that are reserved for switched-out invocations: the other half may be kept for tenants. A dynamic
/// threshold divides them among tenants: one alone may have 1,365.
pub const SUSPENDED_STACKS: usize = SIDE_STACKS / 2;
/// Minimum charge to a tenant while one of its invocations is switched out, bytes. Few use more of their stacks, and
/// those are charged for their use. Deeper pages go back to the kernel, so no more than that is in memory.
pub const SUSPENDED_STACK_BYTES: usize = 64 << 10;
/// Side stacks that a worker keeps for tenants whose code it ran before: taking one costs no system call, clearing one
/// does.
pub const TENANT_STACKS_CACHED: usize = 1_024;
/// Cleared side stacks that a worker keeps: as many as are usually switched out at once.
pub const CLEAN_STACKS_CACHED: usize = 32;
/// Memory of a kept side stack that stays with it, bytes; pages that only deep recursion used go back to the kernel.
pub const STACK_HOT_BYTES: usize = 16 << 10;
/// Uppermost bytes of a sandboxed stack that are accessible from the start, and that a small call does not exceed. For
/// the next tenant they are cleared by writing zeroes.
pub const CLOSED_STACK_BYTES: usize = 8 << 10;
/// Bytes of a closed stack that a host call needs: the parameters, and the registers if it is switched out at its end.
pub const CLOSED_CALL_BYTES: usize = 1 << 10;
/// Bytes that the processor's extended registers may take: with AVX-512 about 2,700, and a host call must leave room
/// for them within its own part of the stack.
pub const XSTATE_MAX_BYTES: usize = 16 << 10;
/// Inaccessible bytes below a stack. The compiler probes large frames page by page, so one page would do.
pub const STACK_GUARD_BYTES: usize = 64 << 10;
/// Stack that a host call needs, bytes: with less left, the invocation ends with a stack overflow.
pub const HOST_CALL_STACK_BYTES: usize = 32 << 10;
/// Stack of the signal handlers, bytes, beside the size of the processor's registers.
pub const SIGNAL_STACK_BYTES: usize = 64 << 10;
/// The watchdog's signal, as an offset from the first real-time signal that programs may use.
pub const SWITCH_SIGNAL_OFFSET: i32 = 6;
/// Period of the watchdog, microseconds, while tenants' code runs: the delay with which it may see that a slice is
/// over. In a prototype that took 6-12 % of a core.
pub const WATCHDOG_PERIOD_US: u64 = 100;
/// Real-time priority of the watchdog: above that of the thread that writes the log, which may run for some
/// milliseconds when many MiB wait.
pub const WATCHDOG_PRIORITY: i32 = 2;
/// Real-time priority of the thread that writes the log of changes: the lowest one. It is above all ordinary threads.
pub const LOG_WRITER_PRIORITY: i32 = 1;
/// Microseconds of processor time for which it asks at a time where the kernel grants no such priority: it puts a MiB
/// of frames together in about that.
pub const LOG_WRITER_SLICE_US: u64 = 100;
/// The watchdog counts a look that comes later than planned by so much, microseconds: ten periods, far more than the
/// kernel takes to wake a thread where a processor is free.
pub const WATCHDOG_LATE_US: u64 = 1_000;
/// Minimum of that period, microseconds, where the watchdog knows when a slice will be over.
pub const WATCHDOG_MIN_PERIOD_US: u64 = 10;
/// Length of the watchdog's nap, microseconds: the delay with which it may see the end of the first slice after so many
/// calls. At 40,000 calls a second, one after another, fewer than 1 in 100 meets it, and a processor that has other
/// work is interrupted 250 times a second.
pub const WATCHDOG_NAP_US: u64 = 4_000;
/// The same for shorter naps, while code runs that has had a quarter of those calls, or while tens of thousands of
/// calls of all unproven code together had no long poll. A thousand looks a second take 1 or 2 % of a processor.
pub const WATCHDOG_SHORT_NAP_US: u64 = 1_000;
/// Calls of unproven extensions on a worker, of all tenants, that pay for one short nap beside them. They take 20 ms of
/// the worker's time at least, so at most a twentieth of that is lost to polls that are seen late.
pub const SHARED_TRUST_AFTER_CALLS: u64 = 20_480;
/// Short naps that such calls can save up: so many polls may be seen late one after the other.
pub const SHARED_TRUST_NAPS: u64 = 4;
/// Time after the last code ran that does not allow a nap until the watchdog takes it, microseconds.
pub const WATCHDOG_NAP_AFTER_US: u64 = 5_000;
/// Maximum charge of a poll beyond its slice, microseconds: the watchdog's delay, and that of a host call that it waits
/// for. Time measured beyond that counts as taken away by a hypervisor.
pub const SWITCH_LATE_US: u64 = 1_000;
/// Time without any tenant's code running until the watchdog parks, microseconds.
pub const WATCHDOG_IDLE_US: u64 = 5_000;
/// Length of a park on a kernel without `membarrier`, microseconds.
pub const WATCHDOG_PARK_FALLBACK_US: u64 = 10_000;
/// Maximum age of a reading of the worker's CPU clock by which polls are judged, microseconds; a reading takes 0.3 us.
pub const CPU_MARK_AGE_US: u64 = 50;
/// Charges above this are checked against the worker's CPU clock, microseconds: it may have been descheduled meanwhile.
pub const CHARGE_CHECK_US: u64 = 20;
/// Memory of an idle invocation that stays with it for the next, bytes; the rest goes back to the kernel.
pub const ARENA_HOT_BYTES: usize = sandstorm_accounts::limits::ARENA_CHUNK_BYTES;
/// Memory of ended invocations that goes back to the kernel in one turn of a worker's loop, bytes: about 15 us.
pub const RECLAIM_BYTES_PER_TURN: usize = 256 << 10;
/// Ended invocations of an engine whose memory has yet to go back; with more of them, the next goes back at once and
/// whole.
pub const MAX_DIRTY_INVOCATIONS: usize = 16;
/// Reply buffer of an idle invocation that stays with it for the next, bytes.
pub const REPLY_HOT_BYTES: usize = 64 << 10;
/// Idle invocations that a worker keeps; beyond that, half go to a heap that all workers share.
pub const IDLE_INVOCATIONS: usize = 1_024;
/// Idle invocations of a worker up to which a tenant that has none among them gets a new one. Beyond that it gets
/// another tenant's, which has to be cleared. Each takes some pages.
pub const IDLE_FOR_OWNERS: usize = 768;
/// Of the tenants that come anew while there is no room for more idle invocations, memories or side stacks, one in so
/// many gets room for good, from the one that has waited longest. Fewer would leave tenants that come anew without for
/// longer: now for so many of their calls, about. More would take room from those that find their own.
pub const NEWCOMERS_PER_RESIDENT: u32 = 16;
/// Side stacks that the other ones hand on among each other: as many as there are invocations that take turns, so that
/// one keeps its stack from its first poll to its last. Together they fit into the processor's second cache.
pub const NEWCOMERS_STACKS: usize = 32;
/// Idle invocations in the heap that all workers share.
pub const SPARE_INVOCATIONS: usize = 1_024;
/// Length of the text of an error or panic that reaches the caller, bytes.
pub const ERROR_TEXT_BYTES: usize = 1_024;
/// Maximum number of records that one scan call hands out: bounds the work of a host call.
pub const SCAN_CALL_RECORDS: usize = 256;
/// Part of a sandboxed module's stack that an idle memory may keep, bytes; beyond the first ones it is granted when it
/// is touched, as many bytes at a time.
pub const GUEST_SHADOW_STACK_HOT_BYTES: usize = 64 << 10;
/// Bytes of a stack, of a module's memory behind its data, and of the record window that a memory has at first. Each
/// grows by doubling where it is used, so a small call's memory is cleared for another tenant in a microsecond.
pub const GUEST_FIRST_BYTES: usize = 8 << 10;
/// Bytes of a module's memory, at least, for copies of the first records of a call: several of the usual 130 bytes.
/// Others go to the record window.
pub const GUEST_NEAR_RECORD_BYTES: usize = 2 << 10;
/// Memory of a tenant that is cleared for another one by writing zeroes, bytes. Longer memory goes back to the kernel,
/// which takes some 10 us, and a page fault for each page that is used again.
pub const WIPE_BY_WRITING_BYTES: usize = 64 << 10;
/// Part of the record window that an idle memory keeps, bytes; beyond that the window grows by as many.
pub const GUEST_RECORDS_HOT_BYTES: usize = 64 << 10;
/// Memory beyond what an invocation was granted that stays accessible to it, bytes: taking single pages away at each
/// call would cost a system call.
pub const GUEST_SLACK_BYTES: usize = 64 << 10;
/// Memories of sandboxed invocations in the process, in use or kept; half of them are for those in use. Each takes up
/// to seven of the 65,530 mappings that Linux allows a process, and 6 GiB of its addresses. A dynamic threshold divides
/// them among tenants: one alone may have 2,730.
pub const GUEST_MEMORIES: usize = 4_096;
/// Memory before the arguments that a sandboxed invocation of the builder's has without a charge, bytes: the usual part
/// of its stack, and its data unless that is long.
pub const GUEST_UNCHARGED_BYTES: usize = 192 << 10;
/// Memories of sandboxed invocations that a worker keeps for tenants whose code it ran before. Each takes some ten
/// pages.
pub const GUEST_MEMORIES_CACHED: usize = 1_024;
/// Idle memories of a worker up to which a tenant that has none among them gets a new one. Beyond that it gets another
/// tenant's, which has to be cleared. The difference is for those of the calls under way: they find room when they end.
pub const GUEST_MEMORIES_FOR_OWNERS: usize = GUEST_MEMORIES_CACHED - 64;
/// Memory that an idle memory keeps of a module that was made elsewhere, bytes.
pub const GUEST_MODULE_HOT_BYTES: usize = 1 << 20;
