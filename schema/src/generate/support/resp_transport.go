package client

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// RESPTransport calls over a port for Redis clients, with FCALL and RESP3. Connections are opened when they are needed.
// In a cluster a call with a key (WithKey) runs at the server that has it.
type RESPTransport struct {
	options Options
	first   *respServer

	mutex    sync.Mutex
	isClosed bool
	// Servers of a cluster that others have named, by their addresses.
	named map[string]*respServer
	// Where the keys of a slot were found.
	owners map[uint16]*respServer
}

const (
	// Servers that are remembered, at most: as many as a cluster may have.
	clusterServers = 64
	// Servers that are asked one after the other, before the first one is asked again.
	clusterHops = 4
	// Between two questions while a slot changes its server, which takes some milliseconds.
	clusterPause = 20 * time.Millisecond
	// Slots of keys, as Redis Cluster has them.
	clusterSlots = 16384
)

// NewRESPTransport makes a transport to a port for Redis clients.
func NewRESPTransport(options Options) (*RESPTransport, error) {
	first, failed := newRespServer(options)
	if failed != nil {
		return nil, failed
	}
	return &RESPTransport{
		options: options, first: first, named: map[string]*respServer{}, owners: map[uint16]*respServer{},
	}, nil
}

// Call implements Transport. A call whose context has ended may run all the same.
func (t *RESPTransport) Call(ctx context.Context, function string, args []byte, options CallOptions) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, t.options.timeout())
	defer cancel()
	command := "FCALL"
	if options.Cost != nil {
		command = "FCALL_COST"
	}
	if options.Version != 0 {
		function += "@" + strconv.FormatUint(options.Version, 10)
	}
	if options.Key == "" {
		return replyOf(options.Cost)(t.first.call(ctx, command, function, "0", string(args)))
	}
	slot := slotOf(options.Key)
	server := t.owner(slot)
	for hop := 1; ; hop++ {
		reply, failed := server.call(ctx, command, function, "1", options.Key, string(args))
		var elsewhere *respElsewhere
		switch {
		case failed == nil:
			return replyOf(options.Cost)(reply, nil)
		case !errors.As(failed, &elsewhere):
			if failed.Code == "unreachable" || failed.Code == "lost" || failed.Code == "timeout" {
				t.forget(server)
			}
			return nil, failed
		}
		owner, refused := t.learn(slot, elsewhere.owner)
		if refused != nil {
			return nil, refused
		}
		// Servers that learn of a change at different times send on to each other for a moment.
		if owner != nil && owner != server && hop%clusterHops != 0 {
			server = owner
			continue
		}
		// The slot is changing its server: the first one knows when that is over.
		select {
		case <-time.After(clusterPause):
		case <-ctx.Done():
			return nil, failed
		}
		server = t.first
	}
}

// replyOf reads an answer, which tells what the call cost besides if that was asked for. An error that is none has no
// value then: see https://go.dev/doc/faq#nil_error.
func replyOf(cost *CallCost) func(answer any, failed *SandstormError) (any, error) {
	return func(answer any, failed *SandstormError) (any, error) {
		if failed != nil {
			return nil, failed
		}
		if cost == nil {
			return answer, nil
		}
		both, _ := answer.([]any)
		var fields map[string]any
		if len(both) == 2 {
			fields, _ = both[0].(map[string]any)
		}
		if fields == nil {
			return nil, failure("protocol", "what answered tells no cost; the call has run", nil)
		}
		*cost = costOf(func(name string) uint64 {
			value, _ := fields[name].(int64)
			return uint64(value)
		})
		if line, ok := both[1].(respErrorLine); ok {
			return nil, errorOf(string(line))
		}
		return both[1], nil
	}
}

// Close implements Transport.
func (t *RESPTransport) Close() error {
	t.mutex.Lock()
	t.isClosed = true
	servers := []*respServer{t.first}
	for _, server := range t.named {
		servers = append(servers, server)
	}
	t.mutex.Unlock()
	for _, server := range servers {
		server.close()
	}
	return nil
}

// owner is the server where the keys of a slot were found; the first one if they were at none.
func (t *RESPTransport) owner(slot uint16) *respServer {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if found := t.owners[slot]; found != nil {
		return found
	}
	return t.first
}

// learn notes which server has a slot; nil: none has it now.
func (t *RESPTransport) learn(slot uint16, address string) (*respServer, *SandstormError) {
	if address == "" {
		return nil, nil
	}
	options := t.options
	options.Server = "redis://" + address
	if t.first.tls != nil {
		options.Server = "rediss://" + address
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	server := t.named[address]
	switch {
	case t.isClosed:
		return nil, closedFailure()
	case options.Server == t.options.Server:
		server = t.first
	case server == nil:
		if len(t.named) >= clusterServers && !t.dropIdle() {
			text := fmt.Sprintf("over %d servers were named: the call has not run", clusterServers)
			return nil, failure("wrong_server", text, nil)
		}
		var failed *SandstormError
		if server, failed = newRespServer(options); failed != nil {
			return nil, failed
		}
		t.named[address] = server
	}
	t.owners[slot] = server
	return server, nil
}

// dropIdle makes room for another server. The caller has the mutex.
func (t *RESPTransport) dropIdle() bool {
	for address, server := range t.named {
		if server.isIdle() {
			delete(t.named, address)
			t.forgetLocked(server)
			server.close()
			return true
		}
	}
	return false
}

// forget forgets what was found at a server that has not answered: it may be another one's now.
func (t *RESPTransport) forget(server *respServer) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.forgetLocked(server)
}

func (t *RESPTransport) forgetLocked(server *respServer) {
	for slot, owner := range t.owners {
		if owner == server {
			delete(t.owners, slot)
		}
	}
}

// respElsewhere says that a call has not run: its key is at another server, or at none now.
type respElsewhere struct {
	// HOST:PORT, if there is one.
	owner string
}

func (e *respElsewhere) Error() string { return "another server of the cluster has the key " + e.owner }

// slotOf is the slot of a key: by what stands between its first { and the next }, or by all of it.
func slotOf(key string) uint16 {
	if _, behind, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(behind, "}"); ok && tag != "" {
			key = tag
		}
	}
	crc := uint16(0)
	for at := 0; at < len(key); at++ {
		crc ^= uint16(key[at]) << 8
		for bit := 0; bit < 8; bit++ {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % clusterSlots
}
