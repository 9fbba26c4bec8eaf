package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

const (
	// Bytes of a page of changes, at most: about a MiB of them, and as much more as the largest change has.
	pageBytes = 16 << 20
	// How long a page waits for a change. One that was given up keeps its place, of a tenant's few, so long.
	pageWait = 5 * time.Second
	// For a page, besides its wait: as with the Rust client.
	pageTimeout = time.Minute
	// Tries while as many pages are made for the tenant as there may be, and the pause behind the first one. Each further
	// pause is twice as long: half a minute together.
	busyTries = 8
	busyPause = 100 * time.Millisecond
)

// WaitForever has a feed wait for changes for as long as its context does.
const WaitForever time.Duration = -1

// TableChange is a change of a table.
type TableChange struct {
	// Position is behind it; the changes of one transaction have the same.
	Position string
	// Op is "put", "delete", "expire", or "clear" of all records up to Version.
	Op string
	// Key is nil for "clear". Value is that of a put.
	Key, Value []byte
	Version    uint64
	Flags      uint32
	// ExpiresAtMs are milliseconds since the Unix epoch from which on the record counts as absent, or did; 0: never.
	ExpiresAtMs uint64
	// IsLast says that no other change of the same position follows: now Position may be remembered.
	IsLast bool
}

type changePage struct {
	changes []TableChange
	next    string
	atEnd   bool
}

// ChangeFeed has the changes of a table, of HTTPTransport.Changes. One that has given an error, such as "unreachable",
// may be asked again: it goes on from where it was. Closing the transport ends the wait, with "closed". One goroutine at
// a time may use it.
type ChangeFeed struct {
	transport *HTTPTransport
	table     string
	wait      time.Duration
	// What is there already.
	waiting []TableChange
	// The last change that was taken.
	taken TableChange
	// The position of what was handled, and the one from which to go on.
	handled, following string
	// Since when there was no change; zero: there was one just now.
	quietSince time.Time
	// Tries in a row for which there was no room, and the pause behind the first one.
	busy      int
	busyPause time.Duration
	isEnded   bool
}

// EndOfChanges is where the log of a table's changes ends now: what is read of the table from now on has all before.
func (t *HTTPTransport) EndOfChanges(ctx context.Context, table string) (string, error) {
	page, failed := t.page(ctx, table, "", 0)
	if failed != nil {
		return "", failed
	}
	return page.next, nil
}

// Changes are the changes of a table behind a position, in their order; without a position those from the first step on.
// A feed ends after so long without a change: 0 ends at the log's end, WaitForever never. The table needs durability.
//
//	for feed := http.Changes("items", position, WaitForever); ; {
//		change, err := feed.Next(ctx)
//		if err != nil {
//			return err // io.EOF: it has ended
//		}
//		…
//	}
func (t *HTTPTransport) Changes(table, from string, wait time.Duration) *ChangeFeed {
	return &ChangeFeed{
		transport: t, table: table, wait: wait, handled: from, following: from, busyPause: busyPause,
	}
}

// Position is where to go on another time: behind what was handled before the last step. It moves on while other tables
// change, too. "": before the first step.
func (f *ChangeFeed) Position() string { return f.handled }

// Next is the next change, or io.EOF at the end of the feed. If its context ends nothing is lost.
func (f *ChangeFeed) Next(ctx context.Context) (TableChange, error) {
	for {
		if f.taken.IsLast {
			f.handled = f.taken.Position
		}
		f.taken = TableChange{}
		if len(f.waiting) > 0 {
			f.taken, f.waiting = f.waiting[0], f.waiting[1:]
			return f.taken, nil
		}
		f.handled = f.following
		if f.isEnded {
			return TableChange{}, io.EOF
		}
		if f.quietSince.IsZero() {
			f.quietSince = time.Now()
		}
		page, failed := f.transport.page(ctx, f.table, f.following, f.pageWait())
		if failed == nil {
			f.note(page)
			continue
		}
		pause := f.pause(failed)
		if pause < 0 {
			return TableChange{}, failed
		}
		f.transport.waitOpen(ctx, pause)
	}
}

// pageWait is how long the next page waits for a change.
func (f *ChangeFeed) pageWait() time.Duration {
	if f.following == "" {
		return 0
	}
	if f.wait < 0 {
		return pageWait
	}
	left := time.Until(f.quietSince.Add(f.wait))
	switch {
	case left < 0:
		return 0
	case left > pageWait:
		return pageWait
	}
	return left
}

func (f *ChangeFeed) note(page *changePage) {
	f.busy = 0
	f.waiting, f.following = page.changes, page.next
	if len(page.changes) > 0 {
		f.quietSince = time.Time{}
	} else if f.wait >= 0 && page.atEnd {
		f.isEnded = time.Since(f.quietSince) >= f.wait
	}
}

// pause is the time until the next try, or -1.
func (f *ChangeFeed) pause(failed *SandstormError) time.Duration {
	switch failed.Code {
	case "busy", "overloaded", "over_quota", "shutting_down":
		if f.busy < busyTries {
			f.busy++
			return f.busyPause << (f.busy - 1)
		}
	}
	f.busy = 0
	return -1
}

// page asks for a page of changes, or for the end of the log. It asks again if the connection was lost.
func (t *HTTPTransport) page(ctx context.Context, table, after string, wait time.Duration) (*changePage, *SandstormError) {
	// Whole seconds, no fewer than are left.
	waitS := int64((wait + time.Second - 1) / time.Second)
	address := fmt.Sprintf(
		"%s/v1/tenants/%s/tables/%s/changes?wait_s=%d",
		t.options.Server, url.PathEscape(t.options.Tenant), url.PathEscape(table), waitS,
	)
	if after != "" {
		address += "&after=" + url.QueryEscape(after)
	}
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, failure("invalid", err.Error(), err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-t.closed:
			cancel()
		case <-ctx.Done():
		}
	}()
	for repeats := 0; ; repeats++ {
		// The context may not have ended yet.
		if t.isEnding() {
			return nil, closedFailure()
		}
		page, failed := t.pageOnce(ctx, address, pageTimeout+time.Duration(waitS)*time.Second)
		switch {
		case failed == nil:
			return page, nil
		case t.isEnding():
			return nil, closedFailure()
		case failed.Code != "lost" && failed.Code != "unreachable", repeats >= t.options.retries():
			return nil, failed
		}
		waitFor(ctx, pauseBefore(repeats, random))
	}
}

// waitOpen waits so long, unless the transport is closed or the context ends.
func (t *HTTPTransport) waitOpen(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.closed:
	case <-ctx.Done():
	}
}

// isEnding says whether it was closed.
func (t *HTTPTransport) isEnding() bool {
	select {
	case <-t.closed:
		return true
	default:
		return false
	}
}

func (t *HTTPTransport) pageOnce(ctx context.Context, address string, limit time.Duration) (*changePage, *SandstormError) {
	const uncertain = "ask again"
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, failure("invalid", err.Error(), err)
	}
	request.Header.Set("authorization", "Bearer "+t.options.Token)
	answer, failed := exchange(ctx, t.options, request, pageBytes, uncertain, func(http.Header) {})
	if failed != nil {
		return nil, failed
	}
	if failed := answer.failure(); failed != nil {
		return nil, failed
	}
	page, err := changePageOf(answer.body)
	if err != nil {
		return nil, failure("protocol", "no page of changes: "+err.Error(), err)
	}
	return page, nil
}

// changePageOf reads a page. Keys and values are texts, or bytes in base64.
func changePageOf(body []byte) (*changePage, error) {
	var said struct {
		Changes []struct {
			Position    string  `json:"position"`
			Op          string  `json:"op"`
			Key         *string `json:"key"`
			KeyBytes    []byte  `json:"key_base64"`
			Value       *string `json:"value"`
			ValueBytes  []byte  `json:"value_base64"`
			Version     uint64  `json:"version"`
			Flags       uint32  `json:"flags"`
			ExpiresAtMs uint64  `json:"expires_at_ms"`
		} `json:"changes"`
		Next  *string `json:"next"`
		AtEnd bool    `json:"at_end"`
	}
	if err := json.Unmarshal(body, &said); err != nil {
		return nil, err
	}
	if said.Next == nil {
		return nil, errors.New("it says no position from which to go on")
	}
	page := &changePage{changes: make([]TableChange, len(said.Changes)), next: *said.Next, atEnd: said.AtEnd}
	for at, row := range said.Changes {
		change := TableChange{
			Position: row.Position, Op: row.Op, Version: row.Version, Flags: row.Flags, ExpiresAtMs: row.ExpiresAtMs,
		}
		if change.Key = row.KeyBytes; row.Key != nil {
			change.Key = []byte(*row.Key)
		}
		if change.Value = row.ValueBytes; row.Value != nil {
			change.Value = []byte(*row.Value)
		}
		// A page ends where a unit of the log does.
		change.IsLast = at+1 == len(said.Changes) || said.Changes[at+1].Position != row.Position
		page.changes[at] = change
	}
	return page, nil
}
