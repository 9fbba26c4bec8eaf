package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// Times that a call over HTTP is sent again, unless the options say otherwise.
	defaultRetries = 2
	// Before a call is sent again; twice as long before the next time. A part of it is left to chance.
	retryPause = 50 * time.Millisecond
	// Bytes of a response, at most: a server makes JSON of about 4 MiB.
	httpAnswerBytes = 8 << 20
	// Servers of a cluster that are remembered besides the first one, at most: as many as a cluster may have.
	httpServers = 64
	// Transports that are kept for clients without one of their own.
	sharedTransports = 64
)

// How a call has ended, or that it goes on; other codes of a response say nothing of an earlier request.
var endsOfACall = map[string]bool{
	"failed": true, "killed": true, "conflict": true, "reply": true, "not_durable": true, "not_kept": true,
	"stopped": true, "timeout": true, "cancelled": true,
}

// HTTPTransport calls over HTTP, and has the changes of tables. In a cluster a call with a key (WithKey) runs at the
// server that has it; a feed has the changes of the server that is asked.
type HTTPTransport struct {
	options Options
	// Closed by Close: feeds wait no more.
	closed chan struct{}

	mutex    sync.Mutex
	isClosed bool
	// Where the keys of a slot were found.
	owners map[uint16]string
	// The servers that are known, the first one included: which start of each has answered last ("": none).
	starts map[string]string
	// Those that others have named, the latest last.
	named []string
}

// NewHTTPTransport makes a transport to a control port.
func NewHTTPTransport(options Options) *HTTPTransport {
	return &HTTPTransport{
		options: options, closed: make(chan struct{}), owners: map[uint16]string{}, starts: map[string]string{},
	}
}

var (
	sharedMutex sync.Mutex
	sharedHTTP  = map[Options]*HTTPTransport{}
)

// sharedHTTPTransport is that of clients which have options alone.
func sharedHTTPTransport(options Options) *HTTPTransport {
	sharedMutex.Lock()
	defer sharedMutex.Unlock()
	if found := sharedHTTP[options]; found != nil {
		return found
	}
	if len(sharedHTTP) >= sharedTransports {
		sharedHTTP = map[Options]*HTTPTransport{}
	}
	made := NewHTTPTransport(options)
	sharedHTTP[options] = made
	return made
}

// httpCall is a call under way.
type httpCall struct {
	transport *HTTPTransport
	function  string
	args      []byte
	header    http.Header
	slot      uint16
	hasKey    bool
	server    string
	// Of a request that may have run. From then on the call is that server's, and that start's.
	lost *SandstormError
	// Where its cost is to be written; nil: nowhere.
	cost *CallCost
	// The version that is called; 0: the newest.
	version uint64
	// Servers that it was sent on by, and times that it was sent again.
	hops, repeats int
	random        [16]byte
}

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
	header := http.Header{}
	header.Set("authorization", "Bearer "+t.options.Token)
	header.Set("content-type", "application/json")
	header.Set("idempotency-key", hex.EncodeToString(random[:]))
	call := httpCall{
		transport: t, function: function, args: args, header: header, server: t.options.Server, random: random,
		cost: options.Cost, version: options.Version,
	}
	if options.Key != "" {
		header.Set("sandstorm-key", options.Key)
		call.slot, call.hasKey = slotOf(options.Key), true
		call.server = t.owner(call.slot)
	}
	for {
		start := t.start(call.server)
		reply, failed := call.send(ctx)
		if failed == nil {
			return reply, nil
		}
		if pause := call.next(failed, start); pause < 0 {
			if call.lost != nil && !endsOfACall[failed.Code] {
				failed = call.lost
			}
			return nil, failed
		} else if !waitFor(ctx, pause) && call.lost == nil {
			return nil, failed
		}
	}
}

// next decides what becomes of a call that has failed at a server whose start was known as this one: the pause before it
// is sent again, or -1.
func (c *httpCall) next(failed *SandstormError, start string) time.Duration {
	t := c.transport
	if failed.Code == "wrong_server" && c.hasKey && c.lost == nil {
		c.hops++
		owner := t.follows(c.slot, failed.Server)
		// As over RESP.
		if owner != "" && owner != c.server && c.hops%clusterHops != 0 {
			c.server = owner
			return 0
		}
		c.server = t.options.Server
		return clusterPause
	}
	switch failed.Code {
	case "unreachable", "lost", "timeout":
		t.forget(c.server)
	}
	isLost := failed.Code == "lost" && (c.lost != nil || start != "")
	if (failed.Code != "unreachable" && !isLost) || c.repeats >= t.options.retries() {
		return -1
	}
	switch {
	case isLost && c.lost == nil:
		c.lost = failed
		// A server that has started since does not run it.
		c.header.Set("sandstorm-start", start)
	case c.lost == nil:
		c.server = t.options.Server
	}
	pause := pauseBefore(c.repeats, c.random)
	c.repeats++
	return pause
}

// pauseBefore is the pause before something is sent again. A part of it is left to chance.
func pauseBefore(repeats int, random [16]byte) time.Duration {
	half := retryPause << repeats / 2
	return half + half*time.Duration(random[repeats%len(random)])/256
}

func (o Options) retries() int {
	if o.Retries == 0 {
		return defaultRetries
	}
	return o.Retries
}

// waitFor says whether the context has not ended meanwhile.
func waitFor(ctx context.Context, pause time.Duration) bool {
	if pause == 0 {
		return true
	}
	select {
	case <-time.After(pause):
		return true
	case <-ctx.Done():
		return false
	}
}

// owner is the server where the keys of a slot were found; that of the options if they were at none.
func (t *HTTPTransport) owner(slot uint16) string {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if found := t.owners[slot]; found != "" {
		return found
	}
	return t.options.Server
}

// follows notes which server has a slot, if the token may be sent there.
func (t *HTTPTransport) follows(slot uint16, server string) string {
	if !serverURL.MatchString(server) {
		return ""
	}
	found := schemeOf(server)
	if found == "" || (found != "https" && schemeOf(t.options.Server) != "http") {
		return ""
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.remember(server)
	t.owners[slot] = server
	return server
}

// serverURL is what may be followed: the URL of a server, without a user, a path or a query.
var serverURL = regexp.MustCompile(`^(?i:https?)://[^/?#@\\\s]+$`)

// schemeOf is the scheme of a URL in lower case; "": it is none.
func schemeOf(text string) string {
	place, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return place.Scheme
}

// remember notes a server, and forgets the one that was noted longest ago if there are too many. The caller has the
// mutex.
func (t *HTTPTransport) remember(server string) {
	if server == t.options.Server {
		return
	}
	for at, known := range t.named {
		if known == server {
			t.named = append(t.named[:at], t.named[at+1:]...)
			break
		}
	}
	t.named = append(t.named, server)
	if len(t.named) <= httpServers {
		return
	}
	oldest := t.named[0]
	t.named = t.named[1:]
	delete(t.starts, oldest)
	t.forgetLocked(oldest)
}

// forget forgets what was found at a server that has not answered: it may be another one's now.
func (t *HTTPTransport) forget(server string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.forgetLocked(server)
}

func (t *HTTPTransport) forgetLocked(server string) {
	for slot, owner := range t.owners {
		if owner == server {
			delete(t.owners, slot)
		}
	}
}

func (t *HTTPTransport) start(server string) string {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.starts[server]
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

// Close implements Transport. It ends feeds that wait for changes; the connections are those of Options.HTTP.
func (t *HTTPTransport) Close() error {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if !t.isClosed {
		t.isClosed = true
		close(t.closed)
	}
	return nil
}

func (c *httpCall) send(ctx context.Context) (any, *SandstormError) {
	options := c.transport.options
	address := c.server + "/v1/call/" + url.PathEscape(options.Tenant) + "/" + c.function
	query := url.Values{}
	if c.version != 0 {
		query.Set("version", strconv.FormatUint(c.version, 10))
	}
	if c.cost != nil {
		query.Set("cost", "true")
	}
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(c.args))
	if err != nil {
		return nil, failure("invalid", err.Error(), err)
	}
	// Without it net/http sends nothing again by itself that may have run.
	request.GetBody = nil
	request.Header = c.header.Clone()
	request.Header.Set("sandstorm-timeout-ms", strconv.FormatInt(serverTimeout(ctx).Milliseconds(), 10))
	answer, failed := exchange(ctx, options, request, httpAnswerBytes, mayRun, func(head http.Header) {
		if start := head.Get("sandstorm-start"); start != "" {
			c.transport.mutex.Lock()
			c.transport.remember(c.server)
			c.transport.starts[c.server] = start
			c.transport.mutex.Unlock()
		}
	})
	if failed != nil {
		return nil, failed
	}
	if told := answer.head.Get("sandstorm-cost"); told != "" && c.cost != nil {
		*c.cost = headerCost(told)
	}
	if failed := answer.failure(); failed != nil {
		return nil, failed
	}
	reply, err := treeOf(answer.body)
	if err != nil {
		return nil, answer.noAnswer(err)
	}
	return reply, nil
}

// httpResponse is the response to a request.
type httpResponse struct {
	status int
	head   http.Header
	body   []byte
}

// exchange sends a request and reads its response. What is uncertain is said where there is none.
func exchange(
	ctx context.Context, options Options, request *http.Request, most int64, uncertain string,
	noteHead func(http.Header),
) (*httpResponse, *SandstormError) {
	client := options.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, httpFailure(ctx, err, uncertain)
	}
	defer response.Body.Close()
	noteHead(response.Header)
	said, err := io.ReadAll(io.LimitReader(response.Body, most+1))
	if err != nil {
		return nil, httpFailure(ctx, err, uncertain)
	}
	if int64(len(said)) > most {
		return nil, failure("protocol", fmt.Sprintf("an answer of over %d bytes; %s", most, uncertain), nil)
	}
	return &httpResponse{status: response.StatusCode, head: response.Header, body: said}, nil
}

// failure is the error that a response is; nil: it is none.
func (r *httpResponse) failure() *SandstormError {
	if r.status == http.StatusOK {
		return nil
	}
	failed := &SandstormError{Status: r.status}
	if err := json.Unmarshal(r.body, failed); err != nil || failed.Code == "" {
		return r.noAnswer(err)
	}
	failed.Code = currentCode(failed.Code)
	return failed
}

// noAnswer is the error of a response that is none of a server of Sandstorm.
func (r *httpResponse) noAnswer(below error) *SandstormError {
	text := fmt.Sprintf("no answer of a server: %d %s", r.status, http.StatusText(r.status))
	return &SandstormError{Status: r.status, Code: "protocol", Message: text, below: below}
}

// headerCost reads a header such as `cpu_ns=4100, wall_ns=9000`.
func headerCost(header string) CallCost {
	fields := map[string]uint64{}
	for _, field := range strings.Split(header, ", ") {
		name, value, _ := strings.Cut(field, "=")
		fields[name], _ = strconv.ParseUint(value, 10, 64)
	}
	return costOf(func(name string) uint64 { return fields[name] })
}

// isCertificateError says whether the server's certificate is not believed: nothing was sent.
func isCertificateError(err error) bool {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	return errors.As(err, &unknown) || errors.As(err, &name) || errors.As(err, &invalid)
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
func httpFailure(ctx context.Context, err error, uncertain string) *SandstormError {
	var dial *net.OpError
	switch {
	case ctx.Err() != nil:
		return contextFailure(ctx, uncertain)
	case errors.As(err, &dial) && dial.Op == "dial", isCertificateError(err):
		return failure("unreachable", err.Error(), err)
	}
	return lost(err, uncertain)
}
