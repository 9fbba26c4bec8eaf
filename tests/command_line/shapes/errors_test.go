// How calls end, by name, over both transports.
package shapes

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"testing"
	"time"
)

func TestCallsEndByName(t *testing.T) {
	var ends [][4]string
	if err := json.Unmarshal([]byte(os.Getenv("ENDS")), &ends); err != nil {
		t.Fatal(err)
	}
	options := Options{Tenant: "shop", Token: os.Getenv("TOKEN"), Timeout: time.Minute}
	options.Server = os.Getenv("RESP")
	resp, err := NewRESPTransport(options)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Close()
	options.Server = os.Getenv("HTTP")
	for _, over := range []Transport{resp, NewHTTPTransport(options)} {
		client := ShapesClient{Transport: over}
		for _, end := range ends {
			var found *SandstormError
			var err error
			if end[0] == "shapes.end" {
				err = client.End(context.Background(), end[1])
			} else {
				word, _ := json.Marshal(end[1])
				_, err = over.Call(context.Background(), end[0], word, CallOptions{})
			}
			if !errors.As(err, &found) {
				t.Fatal(end[0], err)
			}
			if found.Code != end[2] || found.Kind+found.Cause != end[3] {
				t.Fatalf("%s: %+v instead of %s %s", end[0], found, end[2], end[3])
			}
		}
	}
}
