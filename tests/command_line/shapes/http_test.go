// Over HTTP: what is sent again, and where a call with a key goes. The servers say what a test tells them.
package shapes

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// httpAnswer is what a server says to a request.
type httpAnswer struct {
	status int
	start  string
	body   string
}

// The connection ends without an answer.
var noAnswer = httpAnswer{}

// httpServer gives the answers of a test, and remembers what was asked.
type httpServer struct {
	*httptest.Server
	answers chan httpAnswer
	asked   chan http.Header
}

func newHTTPServer(t *testing.T, start func(http.Handler) *httptest.Server) *httpServer {
	server := &httpServer{answers: make(chan httpAnswer, 8), asked: make(chan http.Header, 8)}
	server.Server = start(http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		if _, err := io.ReadAll(request.Body); err != nil {
			t.Error(err)
		}
		server.asked <- request.Header.Clone()
		answer := <-server.answers
		if answer == noAnswer {
			panic(http.ErrAbortHandler)
		}
		if answer.start != "" {
			out.Header().Set("sandstorm-start", answer.start)
		}
		out.WriteHeader(answer.status)
		io.WriteString(out, answer.body)
	}))
	t.Cleanup(server.Close)
	return server
}

// overHTTP calls a server, whose answers are these.
func overHTTP(t *testing.T, options Options) func(answers map[*httpServer][]httpAnswer, said ...CallOption) (uint64, error) {
	client := ShapesClient{Transport: NewHTTPTransport(options)}
	return func(answers map[*httpServer][]httpAnswer, said ...CallOption) (uint64, error) {
		t.Helper()
		for server, all := range answers {
			for _, answer := range all {
				server.answers <- answer
			}
		}
		return client.Integer(background, 1, said...)
	}
}

func TestACallIsSentAgainToTheSameStartOfItsServerAlone(t *testing.T) {
	server := newHTTPServer(t, httptest.NewServer)
	call := overHTTP(t, options(server.URL))
	of := func(answers ...httpAnswer) map[*httpServer][]httpAnswer {
		return map[*httpServer][]httpAnswer{server: answers}
	}
	good := httpAnswer{200, "one", "7"}
	// Which start it was sent to is not known yet: another one may be asked next.
	_, err := call(of(noAnswer))
	fails(t, err, SandstormError{Code: "lost"})
	<-server.asked
	found, err := call(of(good))
	same(t, found, err, uint64(7))
	first := <-server.asked
	found, err = call(of(noAnswer, noAnswer, good))
	same(t, found, err, uint64(7))
	second, third, last := <-server.asked, <-server.asked, <-server.asked
	for name, expected := range map[string][3]string{
		"sandstorm-start": {"", "one", "one"},
		"idempotency-key": {second.Get("idempotency-key"), second.Get("idempotency-key"), second.Get("idempotency-key")},
	} {
		same(t, [3]string{second.Get(name), third.Get(name), last.Get(name)}, nil, expected)
	}
	same(t, first.Get("idempotency-key") != second.Get("idempotency-key"), nil, true)
	// Two times, no more.
	_, err = call(of(noAnswer, noAnswer, noAnswer))
	fails(t, err, SandstormError{Code: "lost"})
	same(t, len(server.answers), nil, 0)
	for len(server.asked) > 0 {
		<-server.asked
	}
	// What says nothing of the first request is not its end, and how a call has ended is.
	for code, expected := range map[string]string{
		"stale": "lost", "busy": "lost", "wrong_server": "lost", "conflict": "conflict", "timeout": "timeout",
	} {
		_, err = call(of(noAnswer, httpAnswer{500, "one", `{"code": "` + code + `", "message": "why"}`}))
		fails(t, err, SandstormError{Code: expected})
		<-server.asked
		<-server.asked
	}
	// What older servers call it.
	_, err = call(of(httpAnswer{401, "one", `{"code": "unauthorised", "message": "why"}`}))
	same(t, fails(t, err, SandstormError{Code: "unauthenticated"}).Code, nil, "unauthenticated")
	<-server.asked
	// What to do about it.
	for said, hint := range map[string]string{`, "hint": "wait a second"`: "wait a second", `, "hint": null`: "", "": ""} {
		_, err = call(of(httpAnswer{429, "one", `{"code": "over_quota", "message": "why"` + said + `}`}))
		same(t, fails(t, err, SandstormError{Code: "over_quota"}).Hint, nil, hint)
		<-server.asked
	}
	never := options(server.URL)
	never.Retries = -1
	call = overHTTP(t, never)
	found, err = call(of(good))
	same(t, found, err, uint64(7))
	_, err = call(of(noAnswer))
	fails(t, err, SandstormError{Code: "lost"})
}

func TestOverHTTPACallGoesToTheServerOfItsKey(t *testing.T) {
	first, second := newHTTPServer(t, httptest.NewServer), newHTTPServer(t, httptest.NewServer)
	call := overHTTP(t, options(first.URL))
	type given = map[*httpServer][]httpAnswer
	good := func(body string) []httpAnswer { return []httpAnswer{{200, "one", body}} }
	elsewhere := func(server string) httpAnswer {
		return httpAnswer{409, "one", `{"code": "wrong_server", "message": "elsewhere", "epoch": 3, "server": "` + server + `"}`}
	}
	changing := httpAnswer{503, "one", `{"code": "wrong_server", "message": "changing", "epoch": 3}`}
	found, err := call(given{first: {elsewhere(second.URL)}, second: good("1")}, WithKey("foo"))
	same(t, found, err, uint64(1))
	same(t, (<-first.asked).Get("idempotency-key"), nil, (<-second.asked).Get("idempotency-key"))
	// A key of the same slot goes there at once; others, and calls without one, go to the first server.
	found, err = call(given{second: good("2")}, WithKey("x{foo}y{bar}"))
	same(t, found, err, uint64(2))
	found, err = call(given{first: good("3")})
	same(t, found, err, uint64(3))
	found, err = call(given{first: good("4")}, WithKey("{}foo"))
	same(t, found, err, uint64(4))
	// It is asked again while a slot changes its server.
	found, err = call(given{second: {changing}, first: append([]httpAnswer{changing}, good("5")...)}, WithKey("foo"))
	same(t, found, err, uint64(5))
	// What may have run at one server is not sent to another one.
	_, err = call(given{second: {noAnswer, elsewhere(first.URL)}}, WithKey("foo"))
	fails(t, err, SandstormError{Code: "lost"})
	// Where no server is any more is forgotten: nothing was sent there.
	gone := httptest.NewServer(nil)
	gone.Close()
	found, err = call(given{first: append([]httpAnswer{elsewhere(gone.URL)}, good("6")...)}, WithKey("bar"))
	same(t, found, err, uint64(6))
	same(t, len(first.answers)+len(second.answers), nil, 0)
}

// Where a token may go is said by schemes, however they are written, and what is followed is a server alone.
func TestOverHTTPAServerIsFollowedWhereTheTokenMayGo(t *testing.T) {
	for _, one := range []struct {
		server, owner string
		may           bool
	}{
		{"HTTPS://one", "http://two", false}, {"https://one", "HTTP://two", false},
		{"HTTPS://one", "https://two:7399", true}, {"https://one", "HTTPS://two", true},
		{"HTTP://one", "http://two", true}, {"http://one", "https://two", true}, {"http://one", "http://two/", false},
		{"http://one", "http://two/path", false}, {"http://one", "http://two?a=b", false},
		{"http://one", "http://two#a", false}, {"http://one", "http://a@two", false}, {"http://one", "ftp://two", false},
		{"http://one", "http://", false}, {"http://one", "http://[::1]:7399", true},
	} {
		expected := ""
		if one.may {
			expected = one.owner
		}
		same(t, NewHTTPTransport(options(one.server)).follows(1, one.owner), nil, expected)
	}
	resp, err := NewRESPTransport(options("REDISS://one"))
	if err != nil {
		t.Fatal(err)
	}
	if server, failed := resp.learn(1, "two:6379"); failed != nil || server.tls == nil {
		t.Fatal("the token would go without TLS", failed)
	}
}

// As many servers are remembered as a cluster may have, besides the first one: the latest.
func TestOverHTTPAsManyServersAreRememberedAsAClusterMayHave(t *testing.T) {
	transport := NewHTTPTransport(options("http://first"))
	for number := 0; number < 200; number++ {
		server := fmt.Sprintf("http://server%d", number)
		transport.follows(uint16(number), server)
		transport.starts[server] = "one"
	}
	same(t, [3]int{len(transport.named), len(transport.starts), len(transport.owners)}, nil, [3]int{64, 64, 64})
	same(t, [2]string{transport.owners[199], transport.owners[135]}, nil, [2]string{"http://server199", ""})
}

func TestATokenOfTLSIsSentOverTLSAlone(t *testing.T) {
	first, plain := newHTTPServer(t, httptest.NewTLSServer), newHTTPServer(t, httptest.NewServer)
	secured := options(first.URL)
	secured.HTTP = first.Client()
	call := overHTTP(t, secured)
	elsewhere := httpAnswer{409, "one", `{"code": "wrong_server", "message": "elsewhere", "server": "` + plain.URL + `"}`}
	found, err := call(map[*httpServer][]httpAnswer{first: {elsewhere, {200, "one", "1"}}}, WithKey("foo"))
	same(t, found, err, uint64(1))
	same(t, len(plain.asked), nil, 0)
	// A certificate that is not believed: nothing was sent.
	secured.HTTP = nil
	_, err = overHTTP(t, secured)(nil)
	var found2 *SandstormError
	if !errors.As(err, &found2) || found2.Code != "unreachable" {
		t.Fatal(err)
	}
	// An answer that is too long.
	call = overHTTP(t, options(plain.URL))
	long := make([]byte, 9<<20)
	for at := range long {
		long[at] = '1'
	}
	_, err = call(map[*httpServer][]httpAnswer{plain: {{200, "one", string(long)}}})
	fails(t, err, SandstormError{Code: "protocol"})
}
