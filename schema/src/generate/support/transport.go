package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// SandstormError is a call without a reply, from whichever transport: Code, for some Cause or Kind.
//
// Codes are those that docs/control.md lists of calls over HTTP, and this client's own: "unreachable" (no server was
// reached: it has not run), "lost" (the connection ended before the answer: it may have run), "timeout" and "cancelled"
// (its context ended: it may run all the same), "closed" (by Close), "wrong_server" (in a cluster: no server had its key
// in time, and it has not run), "reply" (it has run, and its reply is not of the type that this file has), "protocol"
// (what answered is no server of Sandstorm).
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
	// Timeout is how long a call may take, with all that it waits for, such as a connection; 10 s by default. A context
	// may end the wait earlier.
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
	Call(ctx context.Context, function string, args []byte, options CallOptions) (any, error)
	// Close ends its connections; what is under way gets an error.
	Close() error
}

// CallOptions are what a single call may say besides.
type CallOptions struct {
	// Key is that of WithKey.
	Key string
}

// CallOption is given behind the arguments of a call.
type CallOption func(*CallOptions)

// WithKey says what a call is about, such as the key of a record that it reads. While a version is tried on a share of
// the calls, all calls of a key go to the same one. Over RESP to a cluster the call runs at the server that has the key.
func WithKey(key string) CallOption {
	return func(options *CallOptions) { options.Key = key }
}

// callBy calls a function, and reads its reply as a type.
func callBy[T any](
	ctx context.Context, over Transport, function string, args any, options []CallOption, reply *T,
	read func(any, *T) error,
) error {
	body, err := json.Marshal(args)
	if err != nil {
		return failure("invalid", err.Error(), err)
	}
	var said CallOptions
	for _, option := range options {
		option(&said)
	}
	answer, err := over.Call(ctx, function, body, said)
	if err != nil {
		return err
	}
	if err := read(answer, reply); err != nil {
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
func (t *HTTPTransport) Call(ctx context.Context, function string, args []byte, options CallOptions) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, t.options.timeout())
	defer cancel()
	if err := checkKey(options.Key); err != nil {
		return nil, err
	}
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, failure("invalid", err.Error(), err)
	}
	for left := t.options.Retries; ; left-- {
		reply, failed := t.send(ctx, function, hex.EncodeToString(random[:]), args, options)
		if failed == nil {
			return reply, nil
		}
		if failed.Status != 0 || left <= 0 || ctx.Err() != nil {
			return nil, failed
		}
	}
}

// checkKey refuses what no header can have as it is.
func checkKey(key string) error {
	const most = 256
	isControl := func(r rune) bool { return r < ' ' || r == 0x7f }
	if len(key) > most || strings.Trim(key, " ") != key || strings.IndexFunc(key, isControl) >= 0 {
		text := "over HTTP a call's key is 1 to %d bytes without control characters, and without spaces around it: call over RESP"
		return failure("invalid", fmt.Sprintf(text, most), nil)
	}
	return nil
}

// Close implements Transport: the connections are those of Options.HTTP.
func (t *HTTPTransport) Close() error { return nil }

func (t *HTTPTransport) send(
	ctx context.Context, function, idempotency string, args []byte, options CallOptions,
) (any, *SandstormError) {
	address := t.options.Server + "/v1/call/" + url.PathEscape(t.options.Tenant) + "/" + function
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(args))
	if err != nil {
		return nil, failure("invalid", err.Error(), err)
	}
	request.Header.Set("authorization", "Bearer "+t.options.Token)
	request.Header.Set("content-type", "application/json")
	request.Header.Set("idempotency-key", idempotency)
	request.Header.Set("sandstorm-timeout-ms", strconv.FormatInt(serverTimeout(ctx).Milliseconds(), 10))
	if options.Key != "" {
		request.Header.Set("sandstorm-key", options.Key)
	}
	client := t.options.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, httpFailure(ctx, err)
	}
	defer response.Body.Close()
	said, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, httpFailure(ctx, err)
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

// serverTimeout is how long the server is to wait for a call: what is left, within what it takes.
func serverTimeout(ctx context.Context) time.Duration {
	const least, most = time.Millisecond, time.Minute
	until, ok := ctx.Deadline()
	left := time.Until(until)
	switch {
	case !ok || left > most:
		return most
	case left < least:
		return least
	}
	return left
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
