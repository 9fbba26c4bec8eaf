// The five applications of the cookbook, called from Go over RESP and HTTP. The suite runs it with `go test`.
package applications

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"testing"
	"time"

	"applications/chat"
	"applications/features"
	"applications/leaderboard"
	"applications/queue"
	"applications/shop"
)

var ctx = context.Background()

func same(t *testing.T, found any, err error, expected any) {
	t.Helper()
	if err != nil || !reflect.DeepEqual(found, expected) {
		t.Fatalf("%+v %v, not %+v", found, err, expected)
	}
}

func TestLeaderboard(t *testing.T) {
	client := leaderboard.LeaderboardClient{Options: leaderboard.Options{
		Server: os.Getenv("HTTP"), Tenant: "shop", Token: os.Getenv("TOKEN"), Timeout: time.Minute,
	}}
	for _, points := range []uint64{10, 5} {
		if _, err := client.Add(ctx, leaderboard.Score{Player: "go", Points: points}); err != nil {
			t.Fatal(err)
		}
	}
	rank, err := client.Place(ctx, "go")
	same(t, rank.Points, err, uint64(15))
	lists := []func() ([]leaderboard.Rank, error){
		func() ([]leaderboard.Rank, error) { return client.Top(ctx, 100) },
		func() ([]leaderboard.Rank, error) { return client.Around(ctx, "go") },
	}
	for _, list := range lists {
		ranks, err := list()
		found := false
		for _, other := range ranks {
			found = found || other == rank
		}
		same(t, found, err, true)
	}
	_, err = client.Place(ctx, "nobody")
	if !errors.Is(err, &leaderboard.SandstormError{Code: "failed", Kind: "not_found"}) {
		t.Fatal(err)
	}
}

func TestQueue(t *testing.T) {
	client := queue.QueueClient{Options: queue.Options{
		Server: os.Getenv("HTTP"), Tenant: "shop", Token: os.Getenv("TOKEN"), Timeout: time.Minute,
	}}
	if _, err := client.Add(ctx, queue.NewJob{Work: "from go"}); err != nil {
		t.Fatal(err)
	}
	for tries := uint32(1); tries <= 2; tries++ {
		job, err := client.Take(ctx, 600)
		if err != nil || job == nil || job.Work != "from go" || job.Tries != tries {
			t.Fatal(job, err)
		}
		none, err := client.Take(ctx, 600)
		same(t, none, err, (*queue.Job)(nil))
		if tries == 1 {
			again, err := client.Retry(ctx, queue.Retry{Id: job.Id, DelayS: 0})
			same(t, again, err, true)
		} else if err := client.Done(ctx, job.Id); err != nil {
			t.Fatal(err)
		}
	}
	counts, err := client.Counts(ctx)
	same(t, counts, err, queue.Counts{Jobs: 0, GivenUp: 0})
}

func TestShop(t *testing.T) {
	over, err := shop.NewRESPTransport(shop.Options{
		Server: os.Getenv("RESP"), Tenant: "shop", Token: os.Getenv("TOKEN"), Timeout: 2 * time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer over.Close()
	client := shop.ShopClient{Transport: over}
	count, err := client.Offer(ctx, shop.Article{Name: "go tea", Price: 250, Count: 10})
	same(t, count, err, uint64(10))
	sum, err := client.Pay(ctx, shop.Payment{Customer: "go", Amount: 600})
	same(t, sum, err, uint64(600))
	order := shop.Order{Customer: "go", Article: "go tea", Count: 2}
	receipt := shop.Receipt{Article: "go tea", Count: 2, Total: 500}
	bought, err := client.Buy(ctx, order, shop.WithKey("go"))
	same(t, bought, err, shop.Bought{Receipt: receipt, Left: 8, Balance: 100})
	if _, err = client.Buy(ctx, order); !errors.Is(err, &shop.SandstormError{Code: "failed", Kind: "other"}) {
		t.Fatal(err)
	}
	orders, err := client.Orders(ctx, "go")
	same(t, orders, err, []shop.Receipt{receipt})
}

func TestChat(t *testing.T) {
	options := chat.Options{
		Server: os.Getenv("HTTP"), Tenant: "shop", Token: os.Getenv("TOKEN"), Timeout: time.Minute,
	}
	over := chat.NewHTTPTransport(options)
	client := chat.ChatClient{Transport: over}
	position, err := over.EndOfChanges(ctx, "messages")
	if err != nil {
		t.Fatal(err)
	}
	at := say(t, client, "ann", "hello")
	lines, err := client.Read(ctx, chat.Page{Room: "go", Limit: 9})
	same(t, lines, err, []chat.Line{{AtUs: at, Author: "ann", Text: "hello"}})
	listener := over.Changes("messages", position, chat.WaitForever)
	first, err := listener.Next(ctx)
	same(t, [2]string{first.Op, string(first.Value)}, err, [2]string{"put", "ann: hello"})
	same(t, first.IsLast, nil, true)
	// It waits for what is said.
	heard := make(chan string)
	go func() {
		change, err := listener.Next(ctx)
		heard <- fmt.Sprint(string(change.Value), err)
	}()
	say(t, client, "bob", "two sugars, please")
	same(t, <-heard, nil, "bob: two sugars, please<nil>")
	say(t, client, "ann", "here you are")
	// From a position that was kept, up to the end of the log.
	missed := over.Changes("messages", first.Position, 0)
	for _, text := range []string{"bob: two sugars, please", "ann: here you are"} {
		change, err := missed.Next(ctx)
		same(t, string(change.Value), err, text)
	}
	if _, err := missed.Next(ctx); !errors.Is(err, io.EOF) || missed.Position() == first.Position {
		t.Fatal(err, missed.Position())
	}
	_, err = over.EndOfChanges(ctx, "unlogged")
	hasCode(t, err, "not_logged")
	_, err = over.Changes("nothing", position, 0).Next(ctx)
	hasCode(t, err, "unknown_table")
	_, err = over.Changes("messages", "99999999999999", 0).Next(ctx)
	hasCode(t, err, "invalid")
	over.Close()
	_, err = listener.Next(ctx)
	hasCode(t, err, "closed")
}

func say(t *testing.T, client chat.ChatClient, author, text string) uint64 {
	t.Helper()
	at, err := client.Say(ctx, chat.Message{Room: "go", Author: author, Text: text})
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func hasCode(t *testing.T, err error, code string) {
	t.Helper()
	if !errors.Is(err, &chat.SandstormError{Code: code}) {
		t.Fatal(err, code)
	}
}

func TestFeatures(t *testing.T) {
	client := features.FeaturesClient{Options: features.Options{
		Server: os.Getenv("HTTP"), Tenant: "shop", Token: os.Getenv("TOKEN"), Timeout: time.Minute,
	}}
	for _, amount := range []float64{12.5, 2.5} {
		if _, err := client.Observe(ctx, features.Purchase{User: "go", Amount: amount}); err != nil {
			t.Fatal(err)
		}
	}
	users, err := client.Read(ctx, []string{"go", "nobody"})
	if err != nil || len(users) != 2 || users[0].Purchases != 2 || users[0].Mean != 7.5 || users[1].IdleMs != nil {
		t.Fatal(users, err)
	}
}
