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
	var ends [][3]string
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
			if err := client.End(context.Background(), end[0]); !errors.As(err, &found) {
				t.Fatal(end, err)
			}
			if found.Code != end[1] || found.Kind+found.Cause != end[2] {
				t.Fatalf("%v: %+v", end, found)
			}
		}
	}
}
