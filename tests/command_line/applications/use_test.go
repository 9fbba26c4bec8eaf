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
	"strings"
	"testing"
	"time"

	"applications/chat"
	"applications/features"
	"applications/shop"
)

var ctx = context.Background()

func same(t *testing.T, found any, err error, expected any) {
	t.Helper()
	if err != nil || !reflect.DeepEqual(found, expected) {
		t.Fatalf("%+v %v, not %+v", found, err, expected)
	}
}

func request(t *testing.T, method, path, body string) (string, int) {
	t.Helper()
	request, err := http.NewRequest(method, os.Getenv("HTTP")+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("authorization", "Bearer "+os.Getenv("TOKEN"))
	request.Header.Set("sandstorm-timeout-ms", "60000")
	if method == "GET" {
		request.Header.Del("sandstorm-timeout-ms")
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	said, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(said), response.StatusCode
}

// invoke calls an extension that takes bytes: for those there is HTTP.
func invoke(t *testing.T, extension, args, expected string) string {
	t.Helper()
	said, status := request(t, "POST", "/v1/call/shop/"+extension, args)
	if status != 200 || !strings.Contains(said, expected) {
		t.Fatal(status, said)
	}
	return said
}

func TestLeaderboardAndQueue(t *testing.T) {
	invoke(t, "leaderboard", "add go 10", "10")
	invoke(t, "leaderboard", "add go 5", "15")
	place := invoke(t, "leaderboard", "place go", "")
	invoke(t, "leaderboard", "top 100", place+". go 15\n")
	said, status := request(t, "POST", "/v1/call/shop/leaderboard", "place nobody")
	if status != 404 || !strings.Contains(said, `"kind":"not_found"`) {
		t.Fatal(status, said)
	}
	invoke(t, "queue", "add 0 from go", "")
	job, words, _ := strings.Cut(invoke(t, "queue", "take 600", ""), " ")
	same(t, words, nil, "from go")
	same(t, invoke(t, "queue", "take 600", ""), nil, "")
	invoke(t, "queue", "done "+job, "done")
	same(t, invoke(t, "queue", "count", ""), nil, "0")
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
		said, status := request(t, "GET", "/v1/tenants/shop/tables/messages/changes"+query, "")
		if err := json.Unmarshal([]byte(said), &page); err != nil || status != 200 {
			t.Fatal(status, said)
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
