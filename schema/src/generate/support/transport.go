package client

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"net/http"
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
	// Hint is what to do about it, where the server says so: over HTTP.
	Hint string `json:"hint"`
	// Over HTTP: the control port of the server that has the call's key.
	Server string `json:"server"`

	below error
}

func (e *SandstormError) Error() string { return e.Code + ": " + e.Message }

// Unwrap has errors.Is(err, context.DeadlineExceeded) work.
func (e *SandstormError) Unwrap() error { return e.below }

// Is compares what the target says of Code, Kind and Cause.
func (e *SandstormError) Is(target error) bool {
	wanted, ok := target.(*SandstormError)
	same := func(wanted, found string) bool { return wanted == "" || wanted == found }
	return ok && same(currentCode(wanted.Code), e.Code) && same(wanted.Kind, e.Kind) && same(wanted.Cause, e.Cause)
}

// currentCode is the code that has an older name until the next release, which older servers say.
func currentCode(code string) string {
	if code == "unauthorised" {
		return "unauthenticated"
	}
	return code
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
	// Timeout is how long a call may take, with all that it waits for, such as a connection; 2 s by default. A context
	// may end the wait earlier.
	Timeout time.Duration
	// Retries is how often a call over HTTP is sent again when its connection is lost, or none was made; it runs once all
	// the same. 2 by default; -1: never. Over RESP a call is sent once.
	Retries int
	// HTTP is the client to use over HTTP; http.DefaultClient by default.
	HTTP *http.Client
	// TLS is for rediss://: which certificates are believed.
	TLS *tls.Config
	// Connections is how many a RESPTransport has at most; each runs one call after the other, so more are opened while
	// calls are under way. 4 by default: a few slow calls do not hold up the others.
	Connections int
}

const (
	// How long a call may take, unless the options say otherwise: as with the Rust client.
	defaultTimeout = 2 * time.Second
	// Connections of a RESPTransport to a server, unless the options say otherwise.
	defaultConnections = 4
)

func (o Options) timeout() time.Duration {
	if o.Timeout > 0 {
		return o.Timeout
	}
	return defaultTimeout
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
	// Version is that of WithVersion; 0: the newest.
	Version uint64
	// Cost is that of WithCost.
	Cost *CallCost
}

// CallCost is what one call cost its server, as docs/wire.md has it.
type CallCost struct {
	// CPU is how long it computed.
	CPU time.Duration
	// Wall is the time from its arrival to its answer, FirstTurn the part of it before its first turn.
	Wall, FirstTurn time.Duration
	// Turns are its turns; between two of them it waited. Switches are those that ended because it had computed for as
	// long as one may.
	Turns, Switches uint64
	// Reads are records that it read, ReadBytes those of their values.
	Reads, ReadBytes uint64
	// CommitTries are tries of its transaction that came to the commit.
	CommitTries uint64
}

// costOf reads a cost, of fields as the server names them: in a header, or in RESP.
func costOf(field func(name string) uint64) CallCost {
	duration := func(name string) time.Duration { return time.Duration(field(name)) }
	return CallCost{
		CPU: duration("cpu_ns"), Wall: duration("wall_ns"), FirstTurn: duration("first_turn_ns"),
		Turns: field("turns"), Switches: field("switches"),
		Reads: field("reads"), ReadBytes: field("read_bytes"), CommitTries: field("commit_tries"),
	}
}

// CallOption is given behind the arguments of a call.
type CallOption func(*CallOptions)

// WithKey says what a call is about, such as the key of a record that it reads. While a version is tried on a share of
// the calls, all calls of a key go to the same one. In a cluster the call runs at the server that has the key.
func WithKey(key string) CallOption {
	return func(options *CallOptions) { options.Key = key }
}

// WithVersion calls a kept version of the extension, instead of the newest. Its types have to be those of this file.
func WithVersion(version uint64) CallOption {
	return func(options *CallOptions) { options.Version = version }
}

// WithCost has what the call cost written there, also if it failed or was killed.
func WithCost(cost *CallCost) CallOption {
	return func(options *CallOptions) { options.Cost = cost }
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
	return failure("cancelled", "it was cancelled: "+ran, ctx.Err())
}

const (
	mayRun  = "the call may run all the same"
	notSent = "it was not sent"
)

func lost(err error, uncertain string) *SandstormError {
	return failure("lost", "the connection ended before the answer came: "+err.Error()+"; "+uncertain, err)
}
