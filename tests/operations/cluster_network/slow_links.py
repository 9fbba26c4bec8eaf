"""Links that are slow and lose packets, where the kernel has no netem: pairs of TAP devices, `nearN` and `portN`,
between which this program carries the frames. What comes from `nearN` waits, overtakes, is lost or doubled; what goes
there does not.

It is run in the namespace of the ports with the number of pairs and a seed, and says `ready`. A line of its input is
`DELAY_MS JITTER_MS LOSS REORDER DUPLICATE`, the last three as parts of one; it says `set`. It ends with its input.
"""
import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 2, 0x1000
MOST_BYTES = 65536


def open_tap(name):
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return descriptor


def deliver(descriptor, frame):
    try:
        os.write(descriptor, frame)
    except OSError:
        pass  # The other end is down, or its queue is full: the frame is lost.


def main():
    pairs, chance = int(sys.argv[1]), random.Random(int(sys.argv[2]))
    other, near = {}, set()
    poll = select.poll()
    for number in range(pairs):
        ends = open_tap(f"near{number}"), open_tap(f"port{number}")
        other[ends[0]], other[ends[1]] = ends[1], ends[0]
        near.add(ends[0])
        for end in ends:
            poll.register(end, select.POLLIN)
    poll.register(0, select.POLLIN)
    print("ready", flush=True)
    delay_ms = jitter_ms = loss = reorder = duplicate = 0.0
    waiting, count = [], 0
    while True:
        pause_ms = max(0, (waiting[0][0] - time.monotonic()) * 1000) if waiting else None
        for descriptor, event in poll.poll(pause_ms):
            if descriptor == 0:
                line = sys.stdin.readline()
                if not line:
                    return
                delay_ms, jitter_ms, loss, reorder, duplicate = map(float, line.split())
                print("set", flush=True)
                continue
            try:
                frame = os.read(descriptor, MOST_BYTES)
            except OSError:
                if event & (select.POLLERR | select.POLLHUP):
                    poll.unregister(descriptor)  # Its namespace is gone.
                continue
            if descriptor not in near:
                deliver(other[descriptor], frame)
                continue
            if chance.random() < loss:
                continue
            for _ in range(2 if chance.random() < duplicate else 1):
                wait_ms = 0 if chance.random() < reorder else delay_ms + chance.uniform(-jitter_ms, jitter_ms)
                count += 1
                heapq.heappush(waiting, (time.monotonic() + max(0, wait_ms) / 1000, count, other[descriptor], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, descriptor, frame = heapq.heappop(waiting)
            deliver(descriptor, frame)


main()
