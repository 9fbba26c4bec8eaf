// Change feeds: what is asked for, and what becomes of the answers. The server says what a test tells it; one of Sandstorm
// is asked by the applications.
package shapes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// feedServer gives the answers of a test, and remembers what was asked.
type feedServer struct {
	*httptest.Server
	answers chan httpAnswer
	asked   chan string
	// Requests whose callers wait no more.
	left chan struct{}
}

func newFeedServer(t *testing.T, answers ...httpAnswer) *feedServer {
	server := &feedServer{
		answers: make(chan httpAnswer, 32), asked: make(chan string, 32), left: make(chan struct{}, 32),
	}
	server.say(answers...)
	server.Server = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		server.asked <- fmt.Sprint(request.Method, " ", request.RequestURI, " ", request.Header.Get("authorization"))
		select {
		case answer := <-server.answers:
			if answer == noAnswer {
				panic(http.ErrAbortHandler)
			}
			out.WriteHeader(answer.status)
			io.WriteString(out, answer.body)
		case <-request.Context().Done():
			server.left <- struct{}{}
		}
	}))
	t.Cleanup(server.Close)
	return server
}

func (s *feedServer) say(answers ...httpAnswer) {
	for _, answer := range answers {
		s.answers <- answer
	}
}

func pageAnswer(next string, changes string) httpAnswer {
	return httpAnswer{200, "", fmt.Sprintf(`{"changes": [%s], "next": %q, "at_end": true}`, changes, next)}
}

const aPut = `{"position": "20", "op": "put", "key": "a", "value_base64": "/wA=", "version": 18446744073709551615,
	"flags": 7, "expires_at_ms": 1700000000000}`
const aDelete = `{"position": "20", "op": "delete", "key_base64": "/w==", "version": 4, "flags": 0, "expires_at_ms": 0}`
const aClear = `{"position": "30", "op": "clear", "version": 5, "flags": 0, "expires_at_ms": 0}`

func asked(path string) string { return "GET /v1/tenants/shop/tables/" + path + " Bearer " }

func TestAFeedHasChangesInTheirOrderFromAPosition(t *testing.T) {
	server := newFeedServer(t, pageAnswer("10", ""), pageAnswer("30", aPut+","+aDelete+","+aClear), pageAnswer("40", ""))
	over := NewHTTPTransport(options(server.URL))
	feed := over.Changes("a/b", "", 0)
	feed.wait = WaitForever
	same(t, feed.Position(), nil, "")
	change, err := feed.Next(background)
	same(t, change, err, TableChange{
		Position: "20", Op: "put", Key: []byte("a"), Value: []byte{255, 0}, Version: 1<<64 - 1, Flags: 7,
		ExpiresAtMs: 1700000000000,
	})
	same(t, feed.Position(), nil, "10")
	change, err = feed.Next(background)
	same(t, change, err, TableChange{Position: "20", Op: "delete", Key: []byte{255}, Version: 4, IsLast: true})
	// Only what was handled is behind its position, and a transaction is whole.
	same(t, feed.Position(), nil, "10")
	change, err = feed.Next(background)
	same(t, change, err, TableChange{Position: "30", Op: "clear", Version: 5, IsLast: true})
	same(t, feed.Position(), nil, "20")
	token := options("").Token
	same(t, <-server.asked, nil, asked("a%2Fb/changes?wait_s=0")+token)
	same(t, <-server.asked, nil, asked("a%2Fb/changes?wait_s=5&after=10")+token)
	// At the log's end, which has moved on.
	feed.wait = 0
	for range [2]int{} {
		_, err = feed.Next(background)
		same(t, errors.Is(err, io.EOF), nil, true)
		same(t, feed.Position(), nil, "40")
	}
	same(t, <-server.asked, nil, asked("a%2Fb/changes?wait_s=0&after=30")+token)
	same(t, len(server.asked), nil, 0)
}

func TestAFeedGoesOnAfterAnError(t *testing.T) {
	refused := func(status int, code string) httpAnswer {
		return httpAnswer{status, "", `{"code": "` + code + `", "message": "why"}`}
	}
	// As many pages are made as there may be; the connection is lost.
	server := newFeedServer(t, refused(503, "busy"), noAnswer, pageAnswer("20", aPut))
	feed := NewHTTPTransport(options(server.URL)).Changes("items", "10", WaitForever)
	change, err := feed.Next(background)
	same(t, string(change.Key), err, "a")
	// Three times, and once more where net/http itself asks again.
	server.say(noAnswer, noAnswer, noAnswer, noAnswer)
	_, err = feed.Next(background)
	fails(t, err, SandstormError{Code: "lost"})
	for len(server.answers) > 0 {
		<-server.answers
	}
	for _, answer := range []httpAnswer{refused(410, "too_old"), refused(409, "not_logged"), refused(404, "unknown_table")} {
		server.say(answer)
		_, err = feed.Next(background)
		var failed *SandstormError
		same(t, errors.As(err, &failed) && failed.Status == answer.status, nil, true)
	}
	for _, body := range []string{"{}", `{"next": "1", "changes": [{"version": -1}]}`, "<html>"} {
		server.say(httpAnswer{200, "", body})
		_, err = feed.Next(background)
		fails(t, err, SandstormError{Code: "protocol"})
	}
	server.say(pageAnswer("30", aClear))
	change, err = feed.Next(background)
	same(t, change.Op, err, "clear")
	// It asks again while there is no room for it, and not for ever.
	busy := &SandstormError{Code: "busy"}
	for number := 0; number < busyTries; number++ {
		same(t, feed.pause(busy), nil, busyPause<<number)
	}
	same(t, [2]bool{feed.pause(busy) < 0, feed.pause(busy) < 0}, nil, [2]bool{true, false})
}

func TestTheEndOfAContextOrOfTheTransportEndsTheWait(t *testing.T) {
	server := newFeedServer(t)
	over := NewHTTPTransport(options(server.URL))
	feed := over.Changes("items", "10", WaitForever)
	ctx, cancel := context.WithCancel(background)
	ended := make(chan error)
	wait := func(ctx context.Context) {
		_, err := feed.Next(ctx)
		ended <- err
	}
	go wait(ctx)
	<-server.asked
	cancel()
	fails(t, <-ended, SandstormError{Code: "cancelled"})
	// It would take the answer to the next request otherwise.
	<-server.left
	server.say(pageAnswer("20", aPut))
	change, err := feed.Next(background)
	same(t, change.Op, err, "put")
	<-server.asked
	go wait(background)
	<-server.asked
	same(t, over.Close(), over.Close(), nil)
	fails(t, <-ended, SandstormError{Code: "closed"})
	_, err = over.EndOfChanges(background, "items")
	fails(t, err, SandstormError{Code: "closed"})
}

func TestTheEndOfTheTransportOrOfAContextEndsThePauseOfABusyServer(t *testing.T) {
	// Where it ends while the answer is read there is no pause: so several times.
	for number := range [20]int{} {
		server := newFeedServer(t, httpAnswer{503, "", `{"code": "busy", "message": "why"}`})
		over := NewHTTPTransport(options(server.URL))
		feed := over.Changes("items", "10", WaitForever)
		feed.busyPause = time.Hour
		ctx, cancel := context.WithCancel(background)
		defer cancel()
		end, code := func() { over.Close() }, "closed"
		if number%2 == 1 {
			end, code = cancel, "cancelled"
		}
		ended := make(chan error)
		go func() {
			_, err := feed.Next(ctx)
			ended <- err
		}()
		<-server.asked
		time.Sleep(20 * time.Millisecond)
		end()
		fails(t, <-ended, SandstormError{Code: code})
		_, err := feed.Next(ctx)
		fails(t, err, SandstormError{Code: code})
		same(t, len(server.asked), nil, 0)
		same(t, feed.Position(), nil, "10")
	}
}
