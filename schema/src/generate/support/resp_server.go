package client

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"
)

// respServer is a port for Redis clients: connections to it are opened when they are needed.
type respServer struct {
	options          Options
	network, address string
	tls              *tls.Config

	mutex    sync.Mutex
	isClosed bool
	pool     []*pooledConnection
}

// pooledConnection is a connection, or room for one: at most one at a time.
type pooledConnection struct {
	// Whoever has put something in it may open the connection, and send.
	turn chan struct{}
	// Of the server's mutex: calls that use it, and the connection.
	load       int
	connection *respConnection
}

func newRespServer(options Options) (*respServer, *SandstormError) {
	s := &respServer{options: options, network: "tcp"}
	if path := strings.TrimPrefix(options.Server, "unix:"); path != options.Server {
		s.network, s.address = "unix", path
	} else {
		server, err := url.Parse(options.Server)
		if err != nil || server.Hostname() == "" || (server.Scheme != "redis" && server.Scheme != "rediss") {
			forms := "redis://HOST:PORT, rediss://HOST:PORT or unix:/PATH"
			return nil, failure("invalid", options.Server+" is no port for Redis clients: write "+forms, err)
		}
		port := server.Port()
		if port == "" {
			port = "6379"
		}
		s.address = net.JoinHostPort(server.Hostname(), port)
		if server.Scheme == "rediss" {
			s.tls = options.TLS.Clone()
			if s.tls == nil {
				s.tls = &tls.Config{}
			}
			if s.tls.ServerName == "" {
				s.tls.ServerName = server.Hostname()
			}
		}
	}
	count := options.Connections
	if count <= 0 {
		count = defaultConnections
	}
	for ; count > 0; count-- {
		s.pool = append(s.pool, &pooledConnection{turn: make(chan struct{}, 1)})
	}
	return s, nil
}

// call sends a command, and waits for its answer.
func (s *respServer) call(ctx context.Context, words ...string) (any, *SandstormError) {
	pooled := s.take()
	defer s.give(pooled)
	call, failed := s.send(ctx, pooled, words)
	if failed != nil {
		return nil, failed
	}
	return call.answered(ctx)
}

// isIdle says whether no call uses it.
func (s *respServer) isIdle() bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, pooled := range s.pool {
		if pooled.load > 0 {
			return false
		}
	}
	return true
}

func (s *respServer) close() {
	s.mutex.Lock()
	s.isClosed = true
	var open []*respConnection
	for _, pooled := range s.pool {
		if pooled.connection != nil {
			open = append(open, pooled.connection)
		}
	}
	s.mutex.Unlock()
	for _, connection := range open {
		connection.end(closedFailure())
	}
}

func closedFailure() *SandstormError {
	return failure("closed", "the transport was closed", net.ErrClosed)
}

// take picks the connection with the fewest calls, the first of those: a program that calls one after the other has one
// connection.
func (s *respServer) take() *pooledConnection {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	best := s.pool[0]
	for _, pooled := range s.pool {
		if pooled.load < best.load {
			best = pooled
		}
	}
	best.load++
	return best
}

func (s *respServer) give(pooled *pooledConnection) {
	s.mutex.Lock()
	pooled.load--
	s.mutex.Unlock()
}

func (s *respServer) send(ctx context.Context, pooled *pooledConnection, words []string) (*respCall, *SandstormError) {
	select {
	case pooled.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, contextFailure(ctx, notSent)
	}
	defer func() { <-pooled.turn }()
	for {
		s.mutex.Lock()
		connection, isClosed := pooled.connection, s.isClosed
		s.mutex.Unlock()
		switch {
		case isClosed:
			return nil, closedFailure()
		case ctx.Err() != nil:
			return nil, contextFailure(ctx, notSent)
		}
		if connection != nil {
			if call := connection.send(words); call != nil {
				return call, nil
			}
		}
		opened, failed := s.open(ctx)
		if failed != nil {
			return nil, failed
		}
		s.mutex.Lock()
		pooled.connection, isClosed = opened, s.isClosed
		s.mutex.Unlock()
		if isClosed {
			opened.end(closedFailure())
		}
	}
}

// open makes a connection that is logged in.
func (s *respServer) open(ctx context.Context) (*respConnection, *SandstormError) {
	var dialer net.Dialer
	stream, err := dialer.DialContext(ctx, s.network, s.address)
	if err == nil && s.tls != nil {
		secured := tls.Client(stream, s.tls)
		if err = secured.HandshakeContext(ctx); err != nil {
			stream.Close()
		}
		stream = secured
	}
	if err != nil {
		return nil, failure("unreachable", "no connection to "+s.options.Server+": "+err.Error(), err)
	}
	connection := &respConnection{stream: stream, patience: s.options.timeout()}
	go connection.receive()
	hello := []string{"HELLO", "3"}
	if s.options.Token != "" {
		tenant := s.options.Tenant
		if tenant == "" {
			tenant = "default"
		}
		hello = append(hello, "AUTH", tenant, s.options.Token)
	}
	failed := failure("lost", "it ended while it was opened", nil)
	if call := connection.send(hello); call != nil {
		if _, failed = call.answered(ctx); failed == nil {
			return connection, nil
		}
	}
	connection.end(failed)
	switch failed.Code {
	case "lost", "timeout", "cancelled":
		// What ended while it was opened has carried no call.
		return nil, failure("unreachable", "no connection to "+s.options.Server+": "+failed.Message, failed)
	}
	return nil, failed
}

// respConnection is a connection: calls are sent at once, and answered in their order.
type respConnection struct {
	stream net.Conn
	// How long an answer may take.
	patience time.Duration

	mutex sync.Mutex
	// Calls that wait for their answers, in the order in which they were sent.
	pending []*respCall
	heard   time.Time
	broken  *SandstormError
}

type respCall struct {
	connection *respConnection
	sent       time.Time
	// It has room for the answer of a call that waits no more.
	answer chan respAnswer
}

type respAnswer struct {
	value  any
	failed *SandstormError
}

func (c *respCall) answered(ctx context.Context) (any, *SandstormError) {
	select {
	case answer := <-c.answer:
		return answer.value, answer.failed
	case <-ctx.Done():
		// Its answer, if it comes, is taken in its turn and dropped.
		c.connection.isUsable()
		return nil, contextFailure(ctx, mayRun)
	}
}

// isUsable says whether another call may be sent. One that answers nothing for as long as an answer may take is given
// up.
func (c *respConnection) isUsable() bool {
	c.mutex.Lock()
	isBroken, isStalled := c.broken != nil, false
	if !isBroken && len(c.pending) > 0 {
		since := c.pending[0].sent
		if c.heard.After(since) {
			since = c.heard
		}
		isStalled = time.Since(since) >= c.patience
	}
	c.mutex.Unlock()
	if isStalled {
		c.end(lost(fmt.Errorf("it has answered nothing for %v", c.patience), mayRun))
	}
	return !isBroken && !isStalled
}

// send sends a command; nil: nothing was sent. The caller has the turn.
func (c *respConnection) send(words []string) *respCall {
	if !c.isUsable() {
		return nil
	}
	var command bytes.Buffer
	fmt.Fprintf(&command, "*%d\r\n", len(words))
	for _, word := range words {
		fmt.Fprintf(&command, "$%d\r\n%s\r\n", len(word), word)
	}
	call := &respCall{connection: c, sent: time.Now(), answer: make(chan respAnswer, 1)}
	c.mutex.Lock()
	if c.broken != nil {
		c.mutex.Unlock()
		return nil
	}
	c.pending = append(c.pending, call)
	c.mutex.Unlock()
	err := c.stream.SetWriteDeadline(time.Now().Add(c.patience))
	if err == nil {
		_, err = c.stream.Write(command.Bytes())
	}
	if err != nil {
		c.end(lost(err, mayRun))
	}
	return call
}

// end ends it; calls that wait are told so.
func (c *respConnection) end(why *SandstormError) {
	c.mutex.Lock()
	waiting := c.pending
	if c.broken == nil {
		c.broken = why
	}
	c.pending = nil
	c.mutex.Unlock()
	c.stream.Close()
	for _, call := range waiting {
		call.answer <- respAnswer{failed: why}
	}
}

func (c *respConnection) receive() {
	reader := respReader{reader: bufio.NewReader(c.stream)}
	for {
		answer, err := reader.next()
		if err != nil {
			var broken *respProtocolError
			if errors.As(err, &broken) {
				c.end(failure("protocol", "what answered speaks no RESP3: "+err.Error()+"; the call may have run", err))
			} else {
				c.end(lost(err, mayRun))
			}
			return
		}
		c.mutex.Lock()
		if len(c.pending) == 0 {
			c.mutex.Unlock()
			c.end(failure("protocol", "what answered speaks no RESP3: an answer to nothing", nil))
			return
		}
		call := c.pending[0]
		c.pending, c.heard = c.pending[1:], time.Now()
		c.mutex.Unlock()
		if line, ok := answer.(respErrorLine); ok {
			call.answer <- respAnswer{failed: errorOf(string(line))}
		} else {
			call.answer <- respAnswer{value: answer}
		}
	}
}
