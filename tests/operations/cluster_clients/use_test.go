// Calls with keys at a cluster whose slots move: each runs once, where its key is.
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
	over, err := NewRESPTransport(Options{Server: os.Getenv("RESP"), Tenant: "dev", Timeout: 2 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer over.Close()
	client, sums := BankClient{Transport: over}, make([]uint64, 24)
	for {
		for number := range sums {
			name := fmt.Sprintf("go:%d", number)
			sum, err := client.Deposit(context.Background(), Account{Name: name, Balance: 1}, WithKey(name))
			for errors.Is(err, &SandstormError{Code: "failed", Kind: "wrong_server"}) {
				// Its slot was given away while it ran: its transaction has written nothing.
				sum, err = client.Deposit(context.Background(), Account{Name: name, Balance: 1}, WithKey(name))
			}
			if err != nil || sum != sums[number]+1 {
				t.Fatal(name, sum, err, sums[number])
			}
			sums[number] = sum
		}
		if err := os.WriteFile(os.Getenv("READY"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(os.Getenv("STOP")); err == nil {
			return
		}
	}
}
