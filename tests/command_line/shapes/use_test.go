// Over both transports: the same replies and the same errors. The suite runs it with `go test`.
package shapes

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

var background = context.Background()

func options(server string) Options {
	return Options{Server: server, Tenant: "shop", Token: os.Getenv("TOKEN"), Timeout: time.Minute}
}

func overRESP(t *testing.T, options Options) *RESPTransport {
	t.Helper()
	over, err := NewRESPTransport(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { over.Close() })
	return over
}

func transports(t *testing.T) map[string]Transport {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(os.Getenv("CERTIFICATE"))) {
		t.Fatal("no certificate")
	}
	single, secured, unix := options(os.Getenv("RESP")), options(os.Getenv("TLS")), options(os.Getenv("UNIX"))
	single.Connections = 1
	secured.TLS = &tls.Config{RootCAs: roots, ServerName: "localhost"}
	unix.Token = ""
	return map[string]Transport{
		"HTTP":                    NewHTTPTransport(options(os.Getenv("HTTP"))),
		"RESP":                    overRESP(t, options(os.Getenv("RESP"))),
		"RESP, one connection":    overRESP(t, single),
		"RESP with TLS":           overRESP(t, secured),
		"RESP over a Unix socket": overRESP(t, unix),
	}
}

func same(t *testing.T, found any, err error, expected any) {
	t.Helper()
	if err != nil || !reflect.DeepEqual(found, expected) {
		t.Fatalf("%+v %v, not %+v", found, err, expected)
	}
}

func fails(t *testing.T, err error, wanted SandstormError) *SandstormError {
	t.Helper()
	var found *SandstormError
	if !errors.As(err, &found) || !errors.Is(err, &wanted) {
		t.Fatalf("%v is not %+v", err, wanted)
	}
	return found
}

func pointer[T any](value T) *T { return &value }

var numbers = Numbers{
	255, 65535, math.MaxUint32, math.MaxUint64, -128, -32768, math.MinInt32, math.MinInt64, 0.5, -1e300, true,
}

var ofEachKind = []Shape{
	{Empty: true},
	{Circle: pointer(0.25)},
	{Segment: &ShapeSegment{math.MinInt64, math.MaxUint64}},
	{Labelled: &ShapeLabelled{"a \"label\"\r\n🏜 <&>", []string{"x", ""}}},
	{Blob: &[]byte{0, 1, 0xff, 0x80}},
	{Inner: pointer(ColourDarkGreen)},
	{Maybe: pointer(pointer(uint64(1<<53 + 1)))},
}

func TestRepliesAreTheSameOverAllTransports(t *testing.T) {
	for name, over := range transports(t) {
		client := ShapesClient{Transport: over}
		t.Run(name, func(t *testing.T) {
			found, err := client.Numbers(background, numbers)
			same(t, found, err, numbers)
			nested := Nested{
				pointer(ColourRed), []*string{pointer("a"), nil, pointer("")}, [][]uint32{{}, {1, 2}}, []byte{0xff},
				[][]byte{{}, {0}}, &[]byte{}, &numbers, ofEachKind,
			}
			all, err := client.Nested(background, nested)
			same(t, all, err, nested)
			// What is nil is empty, also where nothing would be something else.
			all, err = client.Nested(background, Nested{Grid: [][]uint32{nil}, Parts: [][]byte{nil}, Maybe: new([]byte)})
			same(t, all, err, Nested{
				Texts: []*string{}, Grid: [][]uint32{{}}, Blob: []byte{}, Parts: [][]byte{{}}, Maybe: &[]byte{}, Shapes: []Shape{},
			})
			for _, one := range ofEachKind {
				found, err := client.Shape(background, one)
				same(t, found, err, one)
			}
			named, err := client.Transport_(background, Transport_{[]Promise{{1}}})
			same(t, named, err, Transport_{[]Promise{{1}}})
			blob, err := client.Blob(background, nil)
			same(t, blob, err, []byte{})
			none, err := client.Maybe(background, nil)
			same(t, none, err, (*int64)(nil))
			some, err := client.Maybe(background, pointer(int64(math.MinInt64)))
			same(t, some, err, pointer(int64(math.MinInt64)))
			largest, err := client.Largest(background)
			same(t, largest, err, uint64(math.MaxUint64))
			same(t, nil, client.Nothing(background), nil)
			kept, err := client.Integer(background, 5, WithVersion(1))
			same(t, kept, err, uint64(5))
			_, err = client.Integer(background, 5, WithVersion(9))
			fails(t, err, SandstormError{Code: "unknown_extension"})
			long, err := client.Long(background, 30_000)
			same(t, len(long), err, 30_000)
			var all8 sync.WaitGroup
			for one := uint64(0); one < 8; one++ {
				all8.Add(1)
				go func(one uint64) {
					defer all8.Done()
					if found, err := client.Integer(background, one); err != nil || found != one {
						t.Error(found, err)
					}
				}(one)
			}
			all8.Wait()
		})
		t.Run(name+", errors", func(t *testing.T) { errorsAreTheSame(t, client) })
		t.Run(name+", costs", func(t *testing.T) { costsAreTold(t, client) })
	}
}

func errorsAreTheSame(t *testing.T, client ShapesClient) {
	found := fails(t, client.End(background, "not_found"), SandstormError{Code: "failed", Kind: "not_found"})
	same(t, found.Message, nil, "no such order")
	found = fails(t, client.End(background, "invalid"), SandstormError{Code: "failed", Kind: "invalid"})
	same(t, found.Message, nil, "not (so)")
	fails(t, client.End(background, "unknown_table"), SandstormError{Code: "failed", Kind: "unknown_table"})
	fails(t, client.End(background, "any"), SandstormError{Code: "failed", Kind: "other"})
	fails(t, client.End(background, "panic"), SandstormError{Code: "killed", Cause: "panic"})
	fails(t, client.End(background, "loop"), SandstormError{Code: "killed", Cause: "total_budget"})
	if errors.Is(found, &SandstormError{Code: "failed", Kind: "not_found"}) {
		t.Fatal("kinds differ")
	}
	_, err := client.Shape(background, Shape{Inner: pointer(Colour("Mauve"))})
	fails(t, err, SandstormError{Code: "invalid"})
	for _, wrong := range []Shape{{}, {Empty: true, Inner: pointer(Colour("Red"))}} {
		_, err = client.Shape(background, wrong)
		fails(t, err, SandstormError{Code: "invalid"})
	}
	ended, end := context.WithCancel(background)
	end()
	_, err = client.Integer(ended, 1)
	fails(t, err, SandstormError{Code: "cancelled"})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	passed, end := context.WithDeadline(background, time.Now().Add(-time.Second))
	defer end()
	_, err = client.Integer(passed, 1)
	fails(t, err, SandstormError{Code: "timeout"})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	one, err := client.Integer(background, 1)
	same(t, one, err, uint64(1))
}

// What a call cost is told however it ended, and not of one that has not run.
func costsAreTold(t *testing.T, client ShapesClient) {
	var reply, killed, failed, none CallCost
	one, err := client.Integer(background, 7, WithCost(&reply), WithKey("a key"))
	same(t, one, err, uint64(7))
	fails(t, client.End(background, "panic", WithCost(&killed)), SandstormError{Code: "killed", Cause: "panic"})
	fails(t, client.End(background, "not_found", WithCost(&failed)), SandstormError{Code: "failed", Kind: "not_found"})
	for _, cost := range []CallCost{reply, killed, failed} {
		if cost.CPU <= 0 || cost.CPU > cost.Wall || cost.FirstTurn > cost.Wall || cost.Turns < 1 || cost.Switches > cost.Turns {
			t.Fatal(cost)
		}
		same(t, []uint64{cost.Reads, cost.ReadBytes, cost.CommitTries}, nil, []uint64{0, 0, 0})
	}
	_, err = client.Shape(background, Shape{Inner: pointer(Colour("Mauve"))}, WithCost(&none))
	fails(t, err, SandstormError{Code: "invalid"})
	same(t, none, nil, CallCost{})
}

func TestWhatOneTransportAloneHas(t *testing.T) {
	old := ShapesClient{Options: options(os.Getenv("HTTP"))}
	one, err := old.Integer(background, 1)
	same(t, one, err, uint64(1))
	infinite, err := old.Infinite(background)
	same(t, math.IsNaN(infinite), err, true)
	client := ShapesClient{Transport: overRESP(t, options(os.Getenv("RESP")))}
	infinite, err = client.Infinite(background)
	same(t, math.IsInf(infinite, 1), err, true)
	_, err = client.Long(background, 70_000)
	fails(t, err, SandstormError{Code: "reply"})
	_, err = client.Blob(background, make([]byte, 30_000))
	fails(t, err, SandstormError{Code: "too_large"})
}

func TestWhoIsRefused(t *testing.T) {
	for server, wanted := range map[string]string{
		os.Getenv("HTTP"): "unauthenticated", os.Getenv("RESP"): "unauthenticated",
		// A certificate that is not believed; a port that is none.
		os.Getenv("TLS"): "unreachable", "redis://127.0.0.1:1": "unreachable", "http://127.0.0.1:1": "unreachable",
	} {
		wrong := options(server)
		wrong.Token = "wrong"
		client := ShapesClient{Options: wrong}
		if !strings.HasPrefix(server, "http") {
			client.Transport = overRESP(t, wrong)
		}
		_, err := client.Integer(background, 1)
		fails(t, err, SandstormError{Code: wanted})
		same(t, errors.Is(err, &SandstormError{Code: "unauthorised"}), nil, wanted == "unauthenticated")
	}
	for _, server := range []string{"http://db.example", "redis://", "db.example:6379", "rediss:/x"} {
		_, err := NewRESPTransport(options(server))
		fails(t, err, SandstormError{Code: "invalid"})
	}
}

func TestConnectionsThatTheServerEndsAreFollowedByOthers(t *testing.T) {
	client := ShapesClient{Transport: overRESP(t, options(os.Getenv("RESP")))}
	for at := 0; at < 3; at++ {
		if _, err := client.Integer(background, 5); err != nil {
			t.Fatal(err)
		}
		other, err := net.Dial("unix", strings.TrimPrefix(os.Getenv("UNIX"), "unix:"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(other, "CLIENT KILL TYPE normal SKIPME yes\r\n")
		if killed, err := bufio.NewReader(other).ReadString('\n'); err != nil || !strings.HasPrefix(killed, ":") || killed == ":0\r\n" {
			t.Fatal(killed, err)
		}
		other.Close()
		for {
			// A call that was under way is lost, and the next one has another connection.
			found, err := client.Integer(background, 5)
			if !errors.Is(err, &SandstormError{Code: "lost"}) {
				same(t, found, err, uint64(5))
				break
			}
		}
	}
}

// fakeServer answers what a test says: "" says nothing, "!" ends the connection.
func fakeServer(t *testing.T, said chan string) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	serve := func(stream net.Conn) {
		defer stream.Close()
		lines := bufio.NewScanner(stream)
		for lines.Scan() {
			answer := ""
			switch lines.Text() {
			case "HELLO":
				answer = "%1\r\n$5\r\nproto\r\n:3\r\n"
			case "FCALL":
				answer = <-said
			}
			if answer == "!" {
				return
			}
			fmt.Fprint(stream, answer)
		}
	}
	go func() {
		for {
			stream, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(stream)
		}
	}()
	return "redis://" + listener.Addr().String()
}

func TestAServerThatSaysWhatNoServerOfOursSays(t *testing.T) {
	said := make(chan string, 4)
	one := options(fakeServer(t, said))
	one.Connections = 1
	client := ShapesClient{Transport: overRESP(t, one)}
	call := func(answers ...string) (uint64, error) {
		for _, answer := range answers {
			said <- answer
		}
		return client.Integer(background, 1)
	}
	found, err := call(":4\r\n")
	same(t, found, err, uint64(4))
	_, err = call("!")
	fails(t, err, SandstormError{Code: "lost"})
	found, err = call(":5\r\n")
	same(t, found, err, uint64(5))
	found, err = call(">2\r\n+invalidate\r\n_\r\n:6\r\n")
	same(t, found, err, uint64(6))
	for answer, wanted := range map[string]SandstormError{
		"?\r\n":                                 {Code: "protocol"},
		"$99999999999\r\n":                      {Code: "protocol"},
		"*99999999\r\n":                         {Code: "protocol"},
		strings.Repeat("*1\r\n", 100):           {Code: "protocol"},
		strings.Repeat("x", 5<<20):              {Code: "protocol"},
		":1\n":                                  {Code: "protocol"},
		"+OK\r\n":                               {Code: "reply"},
		"-KILLED (of_tomorrow) why\r\n":         {Code: "killed", Cause: "of_tomorrow"},
		"-TRYAGAIN later\r\n":                   {Code: "wrong_server"},
		"-LOADING the server is stopping\r\n":   {Code: "shutting_down"},
		"-BUSY the worker is full\r\n":          {Code: "overloaded"},
		"-MISCONF the disk has failed\r\n":      {Code: "not_durable"},
		"-OVERQUOTA requests_per_s\r\n":         {Code: "over_quota"},
		"%1\r\n*0\r\n:1\r\n":                    {Code: "protocol"},
		"*2\r\n:1\r\n-ERR inside of a list\r\n": {Code: "reply"},
	} {
		_, err := call(answer)
		fails(t, err, wanted)
	}

	// The answer of a call whose context has ended is its own: what comes behind it has another one.
	soon, end := context.WithCancel(background)
	ended := make(chan error)
	wait := func(left int) {
		for len(said) > left {
			time.Sleep(time.Millisecond)
		}
	}
	go func() {
		_, err := client.Integer(soon, 1)
		ended <- err
	}()
	said <- ""
	wait(0)
	end()
	fails(t, <-ended, SandstormError{Code: "cancelled"})
	found, err = call(":9\r\n:10\r\n")
	same(t, found, err, uint64(10))

	// What is under way when it is closed is told so, and so is what comes after.
	go func() {
		_, err := client.Integer(background, 1)
		ended <- err
	}()
	said <- ""
	wait(0)
	client.Transport.Close()
	fails(t, <-ended, SandstormError{Code: "closed"})
	_, err = client.Integer(background, 1)
	fails(t, err, SandstormError{Code: "closed"})
}

// Each server of a cluster says where a key is. Slots are those of Redis Cluster.
func TestACallGoesToTheServerOfItsKey(t *testing.T) {
	ofFirst, ofSecond := make(chan string, 4), make(chan string, 4)
	first, second := fakeServer(t, ofFirst), fakeServer(t, ofSecond)
	moved := func(server string) string {
		return "-MOVED 12182 " + strings.TrimPrefix(server, "redis://") + "\r\n"
	}
	client := ShapesClient{Transport: overRESP(t, options(first))}
	call := func(expected uint64, said ...CallOption) {
		t.Helper()
		found, err := client.Integer(background, 1, said...)
		same(t, found, err, expected)
	}
	ofFirst <- moved(second)
	ofSecond <- ":1\r\n"
	call(1, WithKey("foo"))
	// A key of the same slot goes there at once; others, and calls without one, go to the first server.
	ofSecond <- ":2\r\n"
	call(2, WithKey("x{foo}y{bar}"))
	ofFirst <- ":3\r\n"
	call(3)
	ofFirst <- ":4\r\n"
	call(4, WithKey("{}foo"))
	// It is asked again while a slot changes its server.
	ofSecond <- "-TRYAGAIN The slot is changing its server\r\n"
	ofFirst <- "-CLUSTERDOWN Hash slot not served\r\n"
	ofFirst <- ":5\r\n"
	call(5, WithKey("foo"))
	// Servers that send on to each other.
	ofSecond <- moved(first)
	ofFirst <- moved(second)
	ofSecond <- moved(first)
	ofFirst <- ":6\r\n"
	call(6, WithKey("foo"))
	// Where nothing answered is forgotten.
	ofFirst <- moved(second)
	ofSecond <- "!"
	_, err := client.Integer(background, 1, WithKey("foo"))
	fails(t, err, SandstormError{Code: "lost"})
	ofFirst <- ":7\r\n"
	call(7, WithKey("foo"))
	ofFirst <- "-MOVED 12182 127.0.0.1:1\r\n"
	_, err = client.Integer(background, 1, WithKey("foo"))
	fails(t, err, SandstormError{Code: "unreachable"})
}

func TestAKeyOfACall(t *testing.T) {
	for name, over := range transports(t) {
		client := ShapesClient{Transport: over}
		found, err := client.Integer(background, 1, WithKey("user ä:7"))
		same(t, found, err, uint64(1))
		if name == "HTTP" {
			for _, key := range []string{"a\nb", " a", strings.Repeat("a", 257)} {
				_, err := client.Integer(background, 1, WithKey(key))
				fails(t, err, SandstormError{Code: "invalid"})
			}
		}
	}
}

func TestAConnectionThatSaysNothingIsGivenUp(t *testing.T) {
	said := make(chan string, 2)
	one := options(fakeServer(t, said))
	one.Connections, one.Timeout = 1, 200*time.Millisecond
	client := ShapesClient{Transport: overRESP(t, one)}
	said <- ""
	for {
		// A busy machine takes its time for the login.
		if _, err := client.Integer(background, 1); !errors.Is(err, &SandstormError{Code: "unreachable"}) && len(said) == 0 {
			fails(t, err, SandstormError{Code: "timeout"})
			break
		}
	}
	for {
		// On the connection that says nothing this would never come to an end.
		said <- ":11\r\n"
		found, err := client.Integer(background, 1)
		if err == nil {
			same(t, found, err, uint64(11))
			break
		}
		for len(said) > 0 {
			<-said
		}
	}
}
