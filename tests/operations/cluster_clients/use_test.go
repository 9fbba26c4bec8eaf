// Calls with keys at a cluster whose slots move, over RESP and HTTP: each runs once, where its key is.
package bank

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"
)

func TestCallsRunOnceWhereTheirKeysAre(t *testing.T) {
	resp, err := NewRESPTransport(Options{Server: os.Getenv("RESP"), Tenant: "dev", Timeout: 2 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Close()
	options := Options{Server: os.Getenv("HTTP"), Tenant: "dev", Token: os.Getenv("TOKEN"), Timeout: 2 * time.Minute}
	clients := map[string]BankClient{"go": {Transport: resp}, "go over HTTP": {Options: options}}
	sums := map[string]uint64{}
	for {
		for prefix, client := range clients {
			for number := 0; number < 24; number++ {
				name := fmt.Sprintf("%s:%d", prefix, number)
				sum, err := client.Deposit(context.Background(), Account{Name: name, Balance: 1}, WithKey(name))
				for errors.Is(err, &SandstormError{Code: "failed", Kind: "wrong_server"}) {
					// Its slot was given away while it ran: its transaction has written nothing.
					sum, err = client.Deposit(context.Background(), Account{Name: name, Balance: 1}, WithKey(name))
				}
				if err != nil || sum != sums[name]+1 {
					t.Fatal(name, sum, err, sums[name])
				}
				sums[name] = sum
			}
		}
		if err := os.WriteFile(os.Getenv("READY"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(os.Getenv("STOP")); err == nil {
			return
		}
	}
}
