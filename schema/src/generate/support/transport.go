package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// SandstormError is a call without a reply, from whichever transport: Code, for some Cause or Kind.
//
// Codes are those that docs/control.md lists of calls over HTTP, and this client's own: "unreachable" (no server was
// reached: it has not run), "lost" (the connection ended before the answer: it may have run), "timeout" and "cancelled"
// (its context ended: it may run all the same), "closed" (by Close), "reply" (it has run, and its reply is not of the
// type that this file has), "protocol" (what answered is no server of Sandstorm).
//
//	if errors.Is(err, &SandstormError{Code: "failed", Kind: "not_found"}) { … }
type SandstormError struct {
	// Status is HTTP's; 0 over RESP, and where there was no answer.
	Status  int    `json:"-"`
	Code    string `json:"code"`
	Message string `json:"message"`
	// Cause is why a call was killed, such as "panic".
	Cause string `json:"cause"`
	// Kind is that of an error which the extension returned, such as "not_found".
	Kind string `json:"kind"`

	below error
}

func (e *SandstormError) Error() string { return e.Code + ": " + e.Message }

// Unwrap has errors.Is(err, context.DeadlineExceeded) work.
func (e *SandstormError) Unwrap() error { return e.below }

// Is compares what the target says of Code, Kind and Cause.
func (e *SandstormError) Is(target error) bool {
	wanted, ok := target.(*SandstormError)
	same := func(wanted, found string) bool { return wanted == "" || wanted == found }
	return ok && same(wanted.Code, e.Code) && same(wanted.Kind, e.Kind) && same(wanted.Cause, e.Cause)
}

func failure(code, message string, below error) *SandstormError {
	return &SandstormError{Code: code, Message: message, below: below}
}

// Options say where the server is, and as whom to call.
type Options struct {
	// Server is, over HTTP, the control port, such as https://db.example:7399. Over RESP it is a port for Redis clients:
	// redis://db.example:6379, rediss://… with TLS, or unix:/PATH.
	Server string
	Tenant string
	// Token is the tenant's. Over RESP it may be empty, at a port that acts for a tenant.
	Token string
	// Timeout is how long an answer may take; 10 s by default. A context may end the wait earlier.
	Timeout time.Duration
	// Retries is how often a call over HTTP is sent again when its connection is lost; it runs once all the same. Over
	// RESP a call is sent once.
	Retries int
	// HTTP is the client to use over HTTP; http.DefaultClient by default.
	HTTP *http.Client
	// TLS is for rediss://: which certificates are believed.
	TLS *tls.Config
	// Connections is how many a RESPTransport has at most; each runs one call after the other, so more are opened while
	// calls are under way. 4 by default: a few slow calls do not hold up the others.
	Connections int
}

func (o Options) timeout() time.Duration {
	if o.Timeout > 0 {
		return o.Timeout
	}
	return 10 * time.Second
}

// Transport carries calls: HTTPTransport, RESPTransport, or what a test puts in their place. Goroutines may share one.
type Transport interface {
	// Call calls a function with its argument as JSON. The reply is as encoding/json has it with UseNumber, where an
	// integer may be an int64, a number a float64, and bytes and texts a []byte.
	Call(ctx context.Context, function string, args []byte) (any, error)
	// Close ends its connections; what is under way gets an error.
	Close() error
}

// callBy calls a function, and reads its reply as a type.
func callBy[T any](
	ctx context.Context, over Transport, function string, args any, reply *T, read func(any, *T) error,
) error {
	body, err := json.Marshal(args)
	if err != nil {
		return failure("invalid", err.Error(), err)
	}
	said, err := over.Call(ctx, function, body)
	if err != nil {
		return err
	}
	if err := read(said, reply); err != nil {
		return failure("reply", function+" has run, and its reply is not of its type: "+err.Error(), err)
	}
	return nil
}

// contextFailure is the error of a call whose context has ended.
func contextFailure(ctx context.Context, ran string) *SandstormError {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return failure("timeout", "no answer in time: "+ran, ctx.Err())
	}
	return failure("cancelled", "the call was cancelled: "+ran, ctx.Err())
}

const (
	mayRun  = "the call may run all the same"
	notSent = "it was not sent"
)

// HTTPTransport calls over HTTP.
type HTTPTransport struct{ options Options }

// NewHTTPTransport makes a transport to a control port.
func NewHTTPTransport(options Options) *HTTPTransport { return &HTTPTransport{options} }

// Call implements Transport.
func (t *HTTPTransport) Call(ctx context.Context, function string, args []byte) (any, error) {
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, failure("invalid", err.Error(), err)
	}
	for left := t.options.Retries; ; left-- {
		reply, failed := t.send(ctx, function, hex.EncodeToString(random[:]), args)
		if failed == nil {
			return reply, nil
		}
		if failed.Status != 0 || left <= 0 || ctx.Err() != nil {
			return nil, failed
		}
	}
}

// Close implements Transport: the connections are those of Options.HTTP.
func (t *HTTPTransport) Close() error { return nil }

func (t *HTTPTransport) send(ctx context.Context, function, key string, args []byte) (any, *SandstormError) {
	limited, cancel := context.WithTimeout(ctx, t.options.timeout()+5*time.Second)
	defer cancel()
	address := t.options.Server + "/v1/call/" + url.PathEscape(t.options.Tenant) + "/" + function
	request, err := http.NewRequestWithContext(limited, http.MethodPost, address, bytes.NewReader(args))
	if err != nil {
		return nil, failure("invalid", err.Error(), err)
	}
	request.Header.Set("authorization", "Bearer "+t.options.Token)
	request.Header.Set("content-type", "application/json")
	request.Header.Set("idempotency-key", key)
	request.Header.Set("sandstorm-timeout-ms", strconv.FormatInt(t.options.timeout().Milliseconds(), 10))
	client := t.options.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, httpFailure(limited, err)
	}
	defer response.Body.Close()
	said, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, httpFailure(limited, err)
	}
	reply, err := treeOf(said)
	if err == nil && response.StatusCode == http.StatusOK {
		return reply, nil
	}
	failed := &SandstormError{Status: response.StatusCode}
	if err := json.Unmarshal(said, failed); err != nil || failed.Code == "" {
		failed.Code, failed.Message, failed.below = "protocol", "no answer of a server: "+response.Status, err
	}
	return nil, failed
}

// httpFailure is the error of a request without a response.
func httpFailure(ctx context.Context, err error) *SandstormError {
	var dial *net.OpError
	switch {
	case ctx.Err() != nil:
		return contextFailure(ctx, mayRun)
	case errors.As(err, &dial) && dial.Op == "dial":
		return failure("unreachable", err.Error(), err)
	}
	return lost(err)
}

func lost(err error) *SandstormError {
	return failure("lost", "the connection ended before the answer came: "+err.Error()+"; the call may have run", err)
}
