#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "bound.h"
#include <rte_dev.h>
#include <rte_devargs.h>
#include <rte_eth_ring.h>
#include <rte_flow.h>
#include <rte_interrupts.h>
#include <rte_log.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_udp.h>
#include <rte_version.h>

/* Frames of one call, as in limits.rs: mbufs are gathered on the stack. */
#define SS_BURST 64

int ss_errno(void)
{
	return rte_errno;
}

void ss_quiet(void)
{
	rte_log_set_global_level(RTE_LOG_WARNING);
}

int ss_cable(const char *one, const char *other, uint16_t frames)
{
	struct rte_ring *there, *back;

	/* One thread sends and one receives at each end. */
	there = rte_ring_create(one, frames, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ);
	back = there ? rte_ring_create(other, frames, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ) : NULL;
	if (!back || rte_eth_from_rings(one, &back, 1, &there, 1, rte_socket_id()) < 0 ||
	    rte_eth_from_rings(other, &there, 1, &back, 1, rte_socket_id()) < 0)
		return rte_errno ? -rte_errno : -ENOMEM;
	return 0;
}

/* Bytes of data room of a pool whose mbufs are to hold frames of so many bytes whole. */
uint32_t ss_pool_room(uint16_t frame)
{
	uint32_t room = (uint32_t)frame + RTE_PKTMBUF_HEADROOM;
	return room < RTE_MBUF_DEFAULT_BUF_SIZE ? RTE_MBUF_DEFAULT_BUF_SIZE : RTE_ALIGN(room, RTE_CACHE_LINE_SIZE);
}

struct rte_mempool *ss_dense_pool(const char *name, uint32_t count, uint32_t cache, uint16_t room, int32_t socket)
{
	struct rte_pktmbuf_pool_private sizes = { .mbuf_data_room_size = room };
	struct rte_mempool *pool = rte_mempool_create_empty(name, count, sizeof(struct rte_mbuf) + room, cache, sizeof(sizes), socket,
							    RTE_MEMPOOL_F_NO_IOVA_CONTIG);
	int done;

	if (!pool)
		return NULL;
	done = rte_mempool_set_ops_byname(pool, rte_mbuf_best_mempool_ops(), NULL);
	if (done >= 0) {
		rte_pktmbuf_pool_init(pool, &sizes);
		done = rte_mempool_populate_default(pool);
	}
	if (done >= 0 && pool->nb_mem_chunks != 1)
		done = -ENOMEM;
	if (done < 0) {
		rte_mempool_free(pool);
		rte_errno = -done;
		return NULL;
	}
	rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
	return pool;
}

/* What a device was given with --vdev or -a, behind its name. */
static const char *arguments(const struct rte_eth_dev_info *dev)
{
#if RTE_VERSION >= RTE_VERSION_NUM(22, 11, 0, 0)
	const struct rte_devargs *given = dev->device ? rte_dev_devargs(dev->device) : NULL;
#else
	const struct rte_devargs *given = dev->device ? dev->device->devargs : NULL;
#endif
	return given && given->args ? given->args : "";
}

static uint32_t can(const struct rte_eth_dev_info *dev)
{
	uint32_t can = 0;
	/* memif's other way of sending. */
	if (strstr(arguments(dev), "zero-copy=yes"))
		can |= SS_OWN_MEMORY_ONLY;
	if (strstr(arguments(dev), "remote="))
		can |= SS_HAS_REMOTE;
	if (dev->rx_offload_capa & RTE_ETH_RX_OFFLOAD_IPV4_CKSUM)
		can |= SS_CAN_CHECK_IP;
	if (dev->rx_offload_capa & RTE_ETH_RX_OFFLOAD_UDP_CKSUM)
		can |= SS_CAN_CHECK_UDP;
	if (dev->rx_offload_capa & RTE_ETH_RX_OFFLOAD_SCATTER)
		can |= SS_CAN_RECEIVE_SEGMENTS;
	if (dev->tx_offload_capa & RTE_ETH_TX_OFFLOAD_IPV4_CKSUM)
		can |= SS_CAN_FILL_IP;
	if (dev->tx_offload_capa & RTE_ETH_TX_OFFLOAD_UDP_CKSUM)
		can |= SS_CAN_FILL_UDP;
	if (dev->tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS)
		can |= SS_CAN_SEND_SEGMENTS;
	if (dev->flow_type_rss_offloads & (RTE_ETH_RSS_NONFRAG_IPV4_UDP | RTE_ETH_RSS_NONFRAG_IPV6_UDP))
		can |= SS_CAN_SPREAD;
	return can;
}

int ss_port_info(uint16_t port, struct ss_port_info *info)
{
	struct rte_eth_dev_info dev;
	struct rte_ether_addr mac;
	char name[RTE_ETH_NAME_MAX_LEN] = "";
	int failed;

	memset(info, 0, sizeof(*info));
	if ((failed = rte_eth_dev_info_get(port, &dev)) || (failed = rte_eth_macaddr_get(port, &mac)) ||
	    (failed = rte_eth_dev_get_mtu(port, &info->mtu)) || (failed = rte_eth_dev_get_name_by_port(port, name)))
		return failed;
	snprintf(info->name, sizeof(info->name), "%.63s", name);
	snprintf(info->driver, sizeof(info->driver), "%.63s", dev.driver_name ? dev.driver_name : "");
	memcpy(info->mac, mac.addr_bytes, sizeof(info->mac));
	info->socket = rte_eth_dev_socket_id(port);
	info->max_mtu = dev.max_mtu;
	info->max_rx_queues = dev.max_rx_queues;
	info->max_tx_queues = dev.max_tx_queues;
	info->reta_size = dev.reta_size;
	info->can = can(&dev);
	return 0;
}

int ss_port_configure(uint16_t port, const struct ss_port_conf *conf, struct rte_mempool *const *pools, int32_t *stage)
{
	struct rte_eth_dev_info dev;
	struct rte_eth_conf eth;
	uint16_t rx = conf->rx_descriptors, tx = conf->tx_descriptors, mtu = 0;
	uint32_t want;
	int failed, socket;

	*stage = SS_STAGE_DEVICE;
	if ((failed = rte_eth_dev_info_get(port, &dev)))
		return failed;
	want = conf->want & can(&dev);
	memset(&eth, 0, sizeof(eth));
	if (want & SS_CAN_CHECK_IP)
		eth.rxmode.offloads |= RTE_ETH_RX_OFFLOAD_IPV4_CKSUM;
	if (want & SS_CAN_CHECK_UDP)
		eth.rxmode.offloads |= RTE_ETH_RX_OFFLOAD_UDP_CKSUM;
	if (want & SS_CAN_RECEIVE_SEGMENTS)
		eth.rxmode.offloads |= RTE_ETH_RX_OFFLOAD_SCATTER;
	if (want & SS_CAN_FILL_IP)
		eth.txmode.offloads |= RTE_ETH_TX_OFFLOAD_IPV4_CKSUM;
	if (want & SS_CAN_FILL_UDP)
		eth.txmode.offloads |= RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
	if (want & SS_CAN_SEND_SEGMENTS)
		eth.txmode.offloads |= RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
	if ((want & SS_CAN_SPREAD) && conf->queues > 1) {
		eth.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		eth.rx_adv_conf.rss_conf.rss_hf = dev.flow_type_rss_offloads &
			(RTE_ETH_RSS_NONFRAG_IPV4_UDP | RTE_ETH_RSS_NONFRAG_IPV6_UDP);
	}
	eth.rxmode.mtu = conf->mtu;
	eth.intr_conf.rxq = conf->interrupts != 0;
	if ((failed = rte_eth_dev_configure(port, conf->queues, conf->queues, &eth)))
		return failed;
	if ((failed = rte_eth_dev_adjust_nb_rx_tx_desc(port, &rx, &tx)))
		return failed;
	*stage = SS_STAGE_MTU;
	failed = rte_eth_dev_set_mtu(port, conf->mtu);
	/* Some cannot set it, and have it already. */
	if (failed && (rte_eth_dev_get_mtu(port, &mtu) || mtu != conf->mtu))
		return failed;
	socket = rte_eth_dev_socket_id(port);
	for (uint16_t queue = 0; queue < conf->queues; queue++) {
		struct rte_eth_rxconf rxconf = dev.default_rxconf;
		struct rte_eth_txconf txconf = dev.default_txconf;
		rxconf.offloads = eth.rxmode.offloads;
		txconf.offloads = eth.txmode.offloads;
		*stage = SS_STAGE_RX_QUEUE;
		failed = rte_eth_rx_queue_setup(port, queue, rx, (unsigned int)socket, &rxconf, pools[queue]);
		if (failed)
			return failed;
		*stage = SS_STAGE_TX_QUEUE;
		failed = rte_eth_tx_queue_setup(port, queue, tx, (unsigned int)socket, &txconf);
		if (failed)
			return failed;
	}
	*stage = 0;
	return 0;
}

int ss_port_stats(uint16_t port, struct ss_port_stats *stats)
{
	struct rte_eth_stats from;
	int failed = rte_eth_stats_get(port, &from);

	memset(stats, 0, sizeof(*stats));
	if (failed)
		return failed;
	stats->received = from.ipackets;
	stats->sent = from.opackets;
	stats->received_bytes = from.ibytes;
	stats->sent_bytes = from.obytes;
	stats->missed = from.imissed;
	stats->receive_errors = from.ierrors;
	stats->send_errors = from.oerrors;
	stats->no_buffer = from.rx_nombuf;
	return 0;
}

int ss_port_link(uint16_t port)
{
	struct rte_eth_link link;

	/* What was unplugged may tell its last state for ever. */
	if (rte_eth_dev_is_removed(port))
		return 0;
	memset(&link, 0, sizeof(link));
	return rte_eth_link_get_nowait(port, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

int ss_port_listen(uint16_t port, const uint8_t *groups, uint32_t count)
{
	int failed = rte_eth_dev_set_mc_addr_list(port, (struct rte_ether_addr *)(uintptr_t)groups, count);

	if (failed)
		failed = rte_eth_allmulticast_enable(port);
	if (failed)
		failed = rte_eth_promiscuous_enable(port);
	return failed;
}

int ss_interrupts_to(uint16_t port, uint16_t queue, int epoll)
{
	return rte_eth_dev_rx_intr_ctl_q(port, queue, epoll, RTE_INTR_EVENT_ADD, NULL);
}

int ss_interrupted(int epoll)
{
	struct rte_epoll_event event;

	return rte_epoll_wait(epoll, &event, 1, 0) > 0;
}

int ss_waiting(uint16_t port, uint16_t queue)
{
	return rte_eth_rx_queue_count(port, queue);
}

static inline uint32_t received_flags(uint64_t ol)
{
	uint32_t flags = 0;

	/* "None": there is no right checksum in the frame, and the device vouches for it all the same: it never left the machine. */
	switch (ol & RTE_MBUF_F_RX_IP_CKSUM_MASK) {
	case RTE_MBUF_F_RX_IP_CKSUM_GOOD:
	case RTE_MBUF_F_RX_IP_CKSUM_NONE:
		flags |= SS_IP_GOOD;
		break;
	case RTE_MBUF_F_RX_IP_CKSUM_BAD:
		flags |= SS_IP_BAD;
		break;
	}
	switch (ol & RTE_MBUF_F_RX_L4_CKSUM_MASK) {
	case RTE_MBUF_F_RX_L4_CKSUM_GOOD:
	case RTE_MBUF_F_RX_L4_CKSUM_NONE:
		flags |= SS_UDP_GOOD;
		break;
	case RTE_MBUF_F_RX_L4_CKSUM_BAD:
		flags |= SS_UDP_BAD;
		break;
	}
	if (ol & RTE_MBUF_F_RX_VLAN_STRIPPED)
		flags |= SS_VLAN;
	return flags;
}

uint32_t ss_flags_of(int32_t ip, int32_t l4)
{
	static const uint64_t ip_says[] = { RTE_MBUF_F_RX_IP_CKSUM_UNKNOWN, RTE_MBUF_F_RX_IP_CKSUM_BAD,
		RTE_MBUF_F_RX_IP_CKSUM_GOOD, RTE_MBUF_F_RX_IP_CKSUM_NONE };
	static const uint64_t l4_says[] = { RTE_MBUF_F_RX_L4_CKSUM_UNKNOWN, RTE_MBUF_F_RX_L4_CKSUM_BAD,
		RTE_MBUF_F_RX_L4_CKSUM_GOOD, RTE_MBUF_F_RX_L4_CKSUM_NONE };

	return received_flags(ip_says[ip & 3] | l4_says[l4 & 3]);
}

uint32_t ss_asked_to_fill(const struct ss_frame *frame, uint16_t *l2, uint16_t *l3, uint16_t *l4)
{
	uint64_t ol = frame->mbuf->ol_flags;
	uint32_t flags = 0;

	*l2 = (uint16_t)frame->mbuf->l2_len;
	*l3 = (uint16_t)frame->mbuf->l3_len;
	*l4 = (uint16_t)frame->mbuf->l4_len;
	if (ol & RTE_MBUF_F_TX_IP_CKSUM)
		flags |= SS_FILL_IP;
	if ((ol & RTE_MBUF_F_TX_L4_MASK) == RTE_MBUF_F_TX_UDP_CKSUM)
		flags |= SS_FILL_UDP;
	/* Which family it is has to be said, and one of them alone. */
	if ((ol & RTE_MBUF_F_TX_IPV6) && !(ol & RTE_MBUF_F_TX_IPV4))
		flags |= SS_IPV6;
	if (!(ol & RTE_MBUF_F_TX_IPV6) && !(ol & RTE_MBUF_F_TX_IPV4) && flags)
		flags = UINT32_MAX;
	return flags;
}

uint16_t ss_receive(uint16_t port, uint16_t queue, struct ss_frame *frames, uint16_t count)
{
	struct rte_mbuf *mbufs[SS_BURST];
	uint16_t received = rte_eth_rx_burst(port, queue, mbufs, RTE_MIN(count, SS_BURST));

	for (uint16_t at = 0; at < received; at++)
		rte_prefetch0(rte_pktmbuf_mtod(mbufs[at], void *));
	for (uint16_t at = 0; at < received; at++) {
		struct rte_mbuf *mbuf = mbufs[at];
		frames[at] = (struct ss_frame){
			.mbuf = mbuf,
			.data = rte_pktmbuf_mtod(mbuf, uint8_t *),
			.len = rte_pktmbuf_data_len(mbuf),
			.total = rte_pktmbuf_pkt_len(mbuf),
			.flags = received_flags(mbuf->ol_flags),
		};
	}
	return received;
}

uint32_t ss_copy(const struct ss_frame *frame, uint8_t *to, uint32_t room)
{
	uint32_t at = 0;

	for (const struct rte_mbuf *part = frame->mbuf; part; part = part->next) {
		uint32_t len = rte_pktmbuf_data_len(part);
		if (len > room - at)
			return 0;
		memcpy(to + at, rte_pktmbuf_mtod(part, const uint8_t *), len);
		at += len;
	}
	return at;
}

int ss_allocate(struct rte_mempool *pool, struct ss_frame *frames, uint16_t count)
{
	struct rte_mbuf *mbufs[SS_BURST];

	if (count > SS_BURST || rte_pktmbuf_alloc_bulk(pool, mbufs, count))
		return -ENOMEM;
	for (uint16_t at = 0; at < count; at++) {
		frames[at] = (struct ss_frame){
			.mbuf = mbufs[at],
			.data = rte_pktmbuf_mtod(mbufs[at], uint8_t *),
			.total = rte_pktmbuf_tailroom(mbufs[at]),
		};
	}
	return 0;
}

/* In the private part of a buffer without data room: who owns the bytes that it stands for. */
struct hold {
	struct rte_mbuf_ext_shared_info info;
	void (*release)(void *owner);
	void *owner;
};

uint16_t ss_hold_bytes(void)
{
	return RTE_ALIGN(sizeof(struct hold), RTE_MBUF_PRIV_ALIGN);
}

static void let_go(void *data, void *opaque)
{
	struct hold *hold = opaque;

	(void)data;
	hold->release(hold->owner);
}

int ss_attach(struct rte_mempool *pool, struct ss_frame *frame, const uint8_t *data, uint16_t len, void *owner,
	      void (*release)(void *owner))
{
	struct rte_mbuf *mbuf = rte_pktmbuf_alloc(pool);
	struct hold *hold;

	if (!mbuf)
		return -ENOMEM;
	hold = rte_mbuf_to_priv(mbuf);
	hold->release = release;
	hold->owner = owner;
	hold->info.free_cb = let_go;
	hold->info.fcb_opaque = hold;
	rte_mbuf_ext_refcnt_set(&hold->info, 1);
	/* Nothing writes there: neither drivers nor we change what is to be sent behind the headers. */
	rte_pktmbuf_attach_extbuf(mbuf, (void *)(uintptr_t)data, (rte_iova_t)(uintptr_t)data, len, &hold->info);
	mbuf->data_len = len;
	mbuf->pkt_len = len;
	frame->mbuf->next = mbuf;
	frame->mbuf->nb_segs = 2;
	frame->behind = len;
	return 0;
}

struct rte_device *ss_device(uint16_t port)
{
	struct rte_eth_dev_info dev;

	return rte_eth_dev_info_get(port, &dev) ? NULL : dev.device;
}

bool ss_maps_as_here(void)
{
	return rte_eal_iova_mode() == RTE_IOVA_VA;
}

/* What fails says why in one way or the other, or not at all. */
static int why(int failed)
{
	int code = rte_errno ? rte_errno : errno;

	if (!failed)
		return 0;
	return code ? -code : -EIO;
}

static void begin(void)
{
	rte_errno = 0;
	errno = 0;
}

int ss_dma_register(void *at, size_t len, size_t page)
{
	begin();
	return why(rte_extmem_register(at, len, NULL, len / page, page));
}

int ss_dma_unregister(void *at, size_t len)
{
	begin();
	return why(rte_extmem_unregister(at, len));
}

int ss_dma_map(struct rte_device *device, void *at, size_t len)
{
	begin();
	return why(rte_dev_dma_map(device, at, (uintptr_t)at, len));
}

int ss_dma_unmap(struct rte_device *device, void *at, size_t len)
{
	begin();
	return why(rte_dev_dma_unmap(device, at, (uintptr_t)at, len));
}

uint16_t ss_send(uint16_t port, uint16_t queue, const struct ss_frame *frames, uint16_t count)
{
	struct rte_mbuf *mbufs[SS_BURST];

	count = RTE_MIN(count, SS_BURST);
	/* Not all drivers bear an empty burst. */
	if (!count)
		return 0;
	for (uint16_t at = 0; at < count; at++) {
		const struct ss_frame *frame = &frames[at];
		struct rte_mbuf *mbuf = frame->mbuf;
		mbufs[at] = mbuf;
		mbuf->data_len = (uint16_t)frame->len;
		mbuf->pkt_len = frame->len + frame->behind;
		if (frame->flags & (SS_FILL_IP | SS_FILL_UDP)) {
			mbuf->l2_len = frame->l2;
			mbuf->l3_len = frame->l3;
			mbuf->ol_flags |= frame->flags & SS_IPV6 ? RTE_MBUF_F_TX_IPV6 : RTE_MBUF_F_TX_IPV4;
			if (frame->flags & SS_FILL_IP)
				mbuf->ol_flags |= RTE_MBUF_F_TX_IP_CKSUM;
			if (frame->flags & SS_FILL_UDP) {
				mbuf->ol_flags |= RTE_MBUF_F_TX_UDP_CKSUM;
				/* DPDK asks for it with segmentation alone; net_tap of its older versions sends a wrong checksum without. */
				mbuf->l4_len = sizeof(struct rte_udp_hdr);
			}
		}
	}
	return rte_eth_tx_burst(port, queue, mbufs, count);
}

uint16_t ss_send_joined(uint16_t port, uint16_t queue, const struct ss_frame *frames, uint16_t count)
{
	struct rte_mbuf *head = count ? frames[0].mbuf : NULL, *last = NULL;

	for (uint16_t at = 0; at < count; at++) {
		struct rte_mbuf *mbuf = frames[at].mbuf;
		mbuf->data_len = (uint16_t)frames[at].len;
		mbuf->pkt_len = frames[at].len;
		if (last) {
			last->next = mbuf;
			head->nb_segs++;
			head->pkt_len += frames[at].len;
		}
		last = mbuf;
	}
	return head ? rte_eth_tx_burst(port, queue, &head, 1) : 0;
}

void ss_free(struct ss_frame *frames, uint16_t count)
{
	for (uint16_t at = 0; at < count; at++) {
		rte_pktmbuf_free(frames[at].mbuf);
		frames[at].mbuf = NULL;
	}
}

/* What a rule's pattern and actions point to. */
struct rule_parts {
	struct rte_flow_attr attr;
	struct rte_flow_item_ipv4 ipv4, ipv4_mask;
	struct rte_flow_item_ipv6 ipv6, ipv6_mask;
	struct rte_flow_item_udp udp, udp_mask;
	struct rte_flow_action_queue queue;
	struct rte_flow_item pattern[4];
	struct rte_flow_action actions[2];
};

static void rule_parts(const struct ss_udp_rule *rule, struct rule_parts *parts)
{
	struct rte_flow_item *ip = &parts->pattern[1];

	memset(parts, 0, sizeof(*parts));
	parts->attr.ingress = 1;
	parts->pattern[0].type = RTE_FLOW_ITEM_TYPE_ETH;
	if (rule->family == 6) {
		ip->type = RTE_FLOW_ITEM_TYPE_IPV6;
		if (rule->has_address) {
			memcpy(parts->ipv6.hdr.dst_addr, rule->address, 16);
			memset(parts->ipv6_mask.hdr.dst_addr, 0xff, 16);
			ip->spec = &parts->ipv6;
			ip->mask = &parts->ipv6_mask;
		}
	} else {
		ip->type = RTE_FLOW_ITEM_TYPE_IPV4;
		if (rule->has_address) {
			memcpy(&parts->ipv4.hdr.dst_addr, rule->address, 4);
			memset(&parts->ipv4_mask.hdr.dst_addr, 0xff, 4);
			ip->spec = &parts->ipv4;
			ip->mask = &parts->ipv4_mask;
		}
	}
	parts->udp.hdr.dst_port = rte_cpu_to_be_16(rule->port);
	parts->udp_mask.hdr.dst_port = 0xffff;
	parts->pattern[2].type = RTE_FLOW_ITEM_TYPE_UDP;
	parts->pattern[2].spec = &parts->udp;
	parts->pattern[2].mask = &parts->udp_mask;
	parts->pattern[3].type = RTE_FLOW_ITEM_TYPE_END;
	parts->queue.index = rule->queue;
	parts->actions[0].type = RTE_FLOW_ACTION_TYPE_QUEUE;
	parts->actions[0].conf = &parts->queue;
	parts->actions[1].type = RTE_FLOW_ACTION_TYPE_END;
}

static void tell(struct ss_flow_error *to, const struct rte_flow_error *from, int code)
{
	memset(to, 0, sizeof(*to));
	to->kind = (int32_t)from->type;
	to->code = code < 0 ? -code : code;
	snprintf(to->message, sizeof(to->message), "%s", from->message ? from->message : "");
}

int ss_flow_validate(uint16_t port, const struct ss_udp_rule *rule, struct ss_flow_error *error)
{
	struct rule_parts parts;
	struct rte_flow_error flow = {0};
	int failed;

	rule_parts(rule, &parts);
	failed = rte_flow_validate(port, &parts.attr, parts.pattern, parts.actions, &flow);
	tell(error, &flow, failed);
	return failed;
}

struct rte_flow *ss_flow_create(uint16_t port, const struct ss_udp_rule *rule, struct ss_flow_error *error)
{
	struct rule_parts parts;
	struct rte_flow_error flow = {0};
	struct rte_flow *made;

	rule_parts(rule, &parts);
	made = rte_flow_create(port, &parts.attr, parts.pattern, parts.actions, &flow);
	tell(error, &flow, made ? 0 : rte_errno);
	return made;
}

int ss_flow_destroy(uint16_t port, struct rte_flow *made, struct ss_flow_error *error)
{
	struct rte_flow_error flow = {0};
	int failed = rte_flow_destroy(port, made, &flow);

	tell(error, &flow, failed);
	return failed;
}

int ss_flow_isolate(uint16_t port, int set, struct ss_flow_error *error)
{
	struct rte_flow_error flow = {0};
	int failed = rte_flow_isolate(port, set, &flow);

	tell(error, &flow, failed);
	return failed;
}
