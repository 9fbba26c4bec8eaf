// The five applications of the cookbook, called from Go over RESP and HTTP. The suite runs it with `go test`.
package applications

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
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

// get reads a page of a change feed: that is plain HTTP.
func get(t *testing.T, path string) []byte {
	t.Helper()
	request, err := http.NewRequest("GET", os.Getenv("HTTP")+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("authorization", "Bearer "+os.Getenv("TOKEN"))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	said, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != 200 {
		t.Fatal(response.Status, string(said), err)
	}
	return said
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
	var page struct {
		Next    string
		Changes []struct{ Op, Value string }
	}
	changes := func(query string) {
		t.Helper()
		if err := json.Unmarshal(get(t, "/v1/tenants/shop/tables/messages/changes"+query), &page); err != nil {
			t.Fatal(err)
		}
	}
	changes("")
	client := chat.ChatClient{Options: chat.Options{
		Server: os.Getenv("HTTP"), Tenant: "shop", Token: os.Getenv("TOKEN"), Timeout: time.Minute,
	}}
	at, err := client.Say(ctx, chat.Message{Room: "go", Author: "ann", Text: "hello"})
	if err != nil {
		t.Fatal(err)
	}
	lines, err := client.Read(ctx, chat.Page{Room: "go", Limit: 9})
	same(t, lines, err, []chat.Line{{AtUs: at, Author: "ann", Text: "hello"}})
	changes("?after=" + page.Next)
	if len(page.Changes) != 1 || page.Changes[0].Op != "put" || page.Changes[0].Value != "ann: hello" {
		t.Fatal(page)
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
