/*
 * What Sandstorm calls of DPDK beyond its exported functions: inline functions, and structures whose layout is DPDK's business, as plain
 * ones of fixed width. Bursts cross over in one call each.
 */
#ifndef SANDSTORM_DPDK_SHIM_H
#define SANDSTORM_DPDK_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rte_mempool;
struct rte_mbuf;
struct rte_flow;
struct rte_device;

/* Flags of a frame. Received: what the port says of its checksums. To be sent: what the port is to fill in. */
static const uint32_t SS_IP_GOOD = 1;
static const uint32_t SS_IP_BAD = 2;
static const uint32_t SS_UDP_GOOD = 4;
static const uint32_t SS_UDP_BAD = 8;
static const uint32_t SS_FILL_IP = 16;
static const uint32_t SS_FILL_UDP = 32;
static const uint32_t SS_IPV6 = 64;
static const uint32_t SS_VLAN = 128;

/* What a port can do. */
static const uint32_t SS_CAN_CHECK_IP = 1;
static const uint32_t SS_CAN_CHECK_UDP = 2;
static const uint32_t SS_CAN_FILL_IP = 4;
static const uint32_t SS_CAN_FILL_UDP = 8;
static const uint32_t SS_CAN_SPREAD = 16;
static const uint32_t SS_CAN_SEND_SEGMENTS = 32;
static const uint32_t SS_CAN_RECEIVE_SEGMENTS = 64;
/* It sends from the memory that it shares with its peer, and from no other. */
static const uint32_t SS_OWN_MEMORY_ONLY = 128;
/* It takes from an interface of the kernel's that its arguments name. */
static const uint32_t SS_HAS_REMOTE = 256;

/* Where configuring a port stopped. */
static const int32_t SS_STAGE_DEVICE = 1;
static const int32_t SS_STAGE_MTU = 2;
static const int32_t SS_STAGE_RX_QUEUE = 3;
static const int32_t SS_STAGE_TX_QUEUE = 4;

struct ss_port_info {
	char name[64];
	char driver[64];
	int32_t socket;
	uint8_t mac[6];
	uint16_t mtu;
	uint16_t max_mtu;
	uint16_t max_rx_queues;
	uint16_t max_tx_queues;
	uint16_t reta_size;
	uint32_t can;
};

struct ss_port_conf {
	uint16_t queues;
	uint16_t rx_descriptors;
	uint16_t tx_descriptors;
	uint16_t mtu;
	/* What of `ss_port_info.can` to switch on. */
	uint32_t want;
	/* Whether queues are to be waited for. */
	uint32_t interrupts;
};

struct ss_port_stats {
	uint64_t received;
	uint64_t sent;
	uint64_t received_bytes;
	uint64_t sent_bytes;
	uint64_t missed;
	uint64_t receive_errors;
	uint64_t send_errors;
	uint64_t no_buffer;
};

struct ss_frame {
	struct rte_mbuf *mbuf;
	/* The first segment's bytes. */
	uint8_t *data;
	/* Received: bytes at `data`. To be sent: bytes that were written there. */
	uint32_t len;
	/* Received: bytes of the whole frame. To be sent: room at `data`. */
	uint32_t total;
	uint32_t flags;
	/* Bytes of the Ethernet and the IP header, of a frame to be sent. */
	uint16_t l2;
	uint16_t l3;
	/* To be sent: bytes that were attached behind those at `data`. */
	uint32_t behind;
};

struct ss_udp_rule {
	/* 4 or 6. */
	uint8_t family;
	/* Whether `address` is looked at. */
	uint8_t has_address;
	uint16_t port;
	uint16_t queue;
	uint8_t address[16];
};

struct ss_flow_error {
	int32_t kind;
	int32_t code;
	char message[160];
};

int ss_errno(void);
/*
 * Two ports, "net_ring_" and each name, which are connected: what is sent at one arrives at the other, the buffer itself. So many frames are under way each
 * way, a power of two. Less than 0: why not.
 */
int ss_cable(const char *one, const char *other, uint16_t frames);
void ss_quiet(void);
uint32_t ss_pool_room(uint16_t frame);
/*
 * As rte_pktmbuf_pool_create, with all buffers in one piece of memory, each right behind the one before, across the ends of pages, too. Null: why not is
 * what ss_errno says.
 */
struct rte_mempool *ss_dense_pool(const char *name, uint32_t count, uint32_t cache, uint16_t room, int32_t socket);
int ss_port_info(uint16_t port, struct ss_port_info *info);
int ss_port_configure(uint16_t port, const struct ss_port_conf *conf, struct rte_mempool *const *pools, int32_t *stage);
int ss_port_stats(uint16_t port, struct ss_port_stats *stats);
/* 1: up, 0: down, or the device is gone. */
int ss_port_link(uint16_t port);
/* Lets frames to these groups in, `count` addresses of 6 bytes, or to more than these. */
int ss_port_listen(uint16_t port, const uint8_t *groups, uint32_t count);
/* Has interrupts of a queue make the epoll descriptor readable, as a change. Less than 0: why not. */
int ss_interrupts_to(uint16_t port, uint16_t queue, int epoll);
/* Whether an interrupt has made that descriptor readable, once for all before this; what the driver's kind of descriptor needs is read. */
int ss_interrupted(int epoll);
/* Frames that wait to be received, or less than 0: unknown. */
int ss_waiting(uint16_t port, uint16_t queue);
/* The flags of a frame of whose checksums the device says: 0 nothing, 1 wrong, 2 right, 3 none there but vouched for. */
uint32_t ss_flags_of(int32_t ip, int32_t l4);
/* Of a received frame that a device gave back as it had been sent: what was to be filled in, as SS_FILL_* and SS_IPV6, and behind how much. */
uint32_t ss_asked_to_fill(const struct ss_frame *frame, uint16_t *l2, uint16_t *l3, uint16_t *l4);
uint16_t ss_receive(uint16_t port, uint16_t queue, struct ss_frame *frames, uint16_t count);
/* Copies a received frame of several segments; returns its bytes, or 0 if there is no room. */
uint32_t ss_copy(const struct ss_frame *frame, uint8_t *to, uint32_t room);
/* 0: `count` frames to be written, or less than 0: none. */
int ss_allocate(struct rte_mempool *pool, struct ss_frame *frames, uint16_t count);
/* Bytes of each buffer of a pool for ss_attach, beside a buffer without data room. */
uint16_t ss_hold_bytes(void);
/*
 * Has a frame to be sent end with these bytes, where they lie: `release` is called with `owner`, once, when nobody needs them any more, on whatever
 * thread frees the frame. Less than 0: there is no buffer for that, and nothing was done.
 */
int ss_attach(struct rte_mempool *pool, struct ss_frame *frame, const uint8_t *data, uint16_t len, void *owner,
	      void (*release)(void *owner));
/* The device behind a port; null: it has none. */
struct rte_device *ss_device(uint16_t port);
/* Whether devices are to read DPDK's memory by the addresses that it has in this process. */
bool ss_maps_as_here(void);
/* Makes addresses known to DPDK, of which memory may be mapped for a device later, in pages of so many bytes. Less than 0: why not. */
int ss_dma_register(void *at, size_t len, size_t page);
int ss_dma_unregister(void *at, size_t len);
/* Has a device read, and not read any more, what is mapped there, by the same addresses. Less than 0: why not. */
int ss_dma_map(struct rte_device *device, void *at, size_t len);
int ss_dma_unmap(struct rte_device *device, void *at, size_t len);
/* Returns how many of the first left; the others stay the caller's. */
uint16_t ss_send(uint16_t port, uint16_t queue, const struct ss_frame *frames, uint16_t count);
/* Sends these, behind each other, as one frame of several segments; for a device that gives back what was sent. Returns 1 if it left. */
uint16_t ss_send_joined(uint16_t port, uint16_t queue, const struct ss_frame *frames, uint16_t count);
void ss_free(struct ss_frame *frames, uint16_t count);
int ss_flow_validate(uint16_t port, const struct ss_udp_rule *rule, struct ss_flow_error *error);
struct rte_flow *ss_flow_create(uint16_t port, const struct ss_udp_rule *rule, struct ss_flow_error *error);
int ss_flow_destroy(uint16_t port, struct rte_flow *flow, struct ss_flow_error *error);
int ss_flow_isolate(uint16_t port, int set, struct ss_flow_error *error);

#endif
