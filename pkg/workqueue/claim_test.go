package workqueue_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

func TestClaim_NamesTheInvalidField(t *testing.T) {
	t.Parallel()
	whole := workqueue.ClaimRequest{Owner: "w", RequestID: "1", Max: 1}
	tests := map[string]func(*workqueue.ClaimRequest){
		"/owner":         func(r *workqueue.ClaimRequest) { r.Owner = "" },
		"/request_id":    func(r *workqueue.ClaimRequest) { r.RequestID = "" },
		"/max":           func(r *workqueue.ClaimRequest) { r.Max = 0 },
		"/wait_seconds":  func(r *workqueue.ClaimRequest) { r.Wait = -1 },
		"/lease_seconds": func(r *workqueue.ClaimRequest) { r.Lease = -1 },
	}
	for pointer, spoil := range tests {
		t.Run(pointer, func(t *testing.T) {
			t.Parallel()
			request := whole
			spoil(&request)
			_, err := setup(t, false).Claim(t.Context(), request)
			assertPointer(t, err, pointer)
		})
	}
}

func TestClaim_TakesTheWorkOfNamedTenants(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		tenants []string
		caller  workqueue.Caller
		want    string
	}{
		{"all", nil, workqueue.Caller{}, "abcaba"},
		{"of the request", []string{"a", "c"}, workqueue.Caller{}, "acaa"},
		{"of the caller", nil, workqueue.Caller{Tenants: []string{"b", "c"}}, "bcb"},
		{"of both", []string{"a", "b"}, workqueue.Caller{Tenants: []string{"b", "c"}}, "bb"},
		{"of neither", []string{"a"}, workqueue.Caller{Tenants: []string{"b"}}, ""},
		{"of an unknown tenant", []string{"z"}, workqueue.Caller{}, ""},
		{"of another service", nil, workqueue.Caller{Services: []string{"embed"}}, ""},
		{"of the caller's service", []string{"b"}, workqueue.Caller{Services: []string{"ocr"}}, "bb"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for name, open := range map[string]func(*bundle) *bundle{
				"this process":    func(b *bundle) *bundle { return b },
				"another process": func(b *bundle) *bundle { return reopen(t, b.store) },
			} {
				b := setup(t, false)
				for _, tenant := range []string{"a", "a", "b", "a", "b", "c"} {
					b.accept(tenant, "ocr", "OCR")
				}
				if got := turnsOf(t, open(b).As(test.caller), test.tenants); got != test.want {
					t.Errorf("%s claimed in the order %q, want %q", name, got, test.want)
				}
			}
		})
	}
}

// turnsOf claims one item at a time, so that the rotation continues from claim to claim,
// and returns the tenants of the items.
func turnsOf(t *testing.T, q *workqueue.Queue, tenants []string) string {
	t.Helper()
	var order strings.Builder
	for n := range 7 {
		views, err := q.Claim(t.Context(), workqueue.ClaimRequest{
			Owner: "w", RequestID: fmt.Sprint(n), Max: 1, Tenants: tenants,
		})
		musttest.NoError(t, err)
		for _, view := range views {
			order.WriteString(view.Item.TenantID)
		}
	}
	return order.String()
}

func TestClaim_OfNamedTenantsFindsWhatOthersEnqueued(t *testing.T) {
	t.Parallel()
	b := setup(t, true)
	for _, tenant := range []string{"a", "b", "c"} {
		b.accept(tenant, "ocr", "OCR")
	}
	views, err := reopen(t, b.store).Claim(t.Context(), workqueue.ClaimRequest{
		Owner: "w", RequestID: "1", Max: 5, Tenants: []string{"c", "b", "b"},
	})
	if err != nil || len(views) != 2 {
		t.Errorf("claimed %d items (%v), want 2", len(views), err)
	}
}

func TestClaim_OthersKeepTheirTurnWhileOneTenantIsServed(t *testing.T) {
	t.Parallel()
	b := setup(t, false)
	for _, tenant := range []string{"a", "b", "c", "c"} {
		b.accept(tenant, "ocr", "OCR")
	}
	first, err := b.Claim(t.Context(), workqueue.ClaimRequest{Owner: "w", RequestID: "1", Max: 1, Tenants: []string{"c"}})
	if err != nil || len(first) != 1 {
		t.Fatalf("claimed %+v (%v)", first, err)
	}
	var order string
	for _, view := range b.claim(t, "w", "2", 5, false) {
		order += view.Item.TenantID
	}
	if order != "abc" {
		t.Errorf("claimed in the order %q, want abc", order)
	}
}

func TestClaim_AWaitingOneIsWokenByWorkOfItsTenants(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, false)
		claimed := make(chan string, 2)
		for _, tenant := range []string{"a", "b"} {
			go func() {
				views, err := b.Claim(t.Context(), workqueue.ClaimRequest{
					Owner: tenant, RequestID: "1", Max: 5, Wait: time.Minute, Tenants: []string{tenant},
				})
				if err != nil || len(views) != 1 {
					t.Errorf("%s claimed %d items (%v)", tenant, len(views), err)
					close(claimed)
					return
				}
				claimed <- tenant + views[0].Item.TenantID
			}()
			synctest.Wait()
		}
		started := time.Now()
		for _, tenant := range []string{"b", "a"} {
			b.accept(tenant, "ocr", "OCR")
			if got := <-claimed; got != tenant+tenant {
				t.Errorf("claimed %q", got)
			}
		}
		if waited := time.Since(started); waited >= time.Second {
			t.Errorf("woken after %s, by the poll", waited)
		}
	})
}

func TestClaim_FindsOlderWorkOfAnotherProcessUnderLoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, true)
		for n := range 3 { // It has read the store, and does not read again within a second.
			b.work()
			b.claim(t, "w", fmt.Sprint("first-", n), 1, false)
		}
		old := reopen(t, b.store).work()
		for n := range 4 {
			for range 3 { // More items are queued than claimed.
				b.work()
			}
			if views := b.claim(t, "w", fmt.Sprint("then-", n), 1, false); views[0].Item.WorkID == old.OutboxID {
				return
			}
			time.Sleep(500 * time.Millisecond)
		}
		t.Error("the oldest item of the tenant was not handed out in two seconds")
	})
}

func TestClaim_GivesItsLeaseAgainWithEachHeartbeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, false)
		b.work()
		views, err := b.Claim(t.Context(), workqueue.ClaimRequest{Owner: "w", RequestID: "c", Max: 1, Lease: time.Hour})
		musttest.NoError(t, err)
		item := views[0].Item
		for n := range 20 {
			time.Sleep(7*time.Minute + 300*time.Microsecond)
			view, err := b.Heartbeat(t.Context(), item.WorkID, by("w", fmt.Sprint("h", n), item), nil)
			musttest.NoError(t, err)
			item = view.Item
			if got := item.LeaseExpiresAt.Sub(item.UpdatedAt); got != time.Hour {
				t.Fatalf("heartbeat %d gave %s, the claim 1h", n, got)
			}
		}
	})
}

func assertPointer(t *testing.T, err error, pointer string) {
	t.Helper()
	assertCode(t, err, apierror.InvalidEnvelope)
	known := asKnown(err)
	if known == nil || len(known.Errors) != 1 || known.Errors[0].Pointer != pointer {
		t.Errorf("error is %v, want one at %s", err, pointer)
	}
}

// A claim that has a few megabytes of directives leaves the rest to the next claim, and
// reserves memory before it loads any.
func TestClaim_IsBoundedInBytes(t *testing.T) {
	t.Parallel()
	const jobs, size = 64, 400 << 10
	b := setup(t, false)
	for range jobs {
		cmd := b.command("a", "ocr", "OCR")
		cmd.Payload = json.RawMessage(`{"x":"` + strings.Repeat("x", size) + `"}`)
		b.ledger.Submit(cmd)
	}
	var reserved []int64
	request := workqueue.ClaimRequest{Owner: "w", RequestID: "1", Max: 100, Reserve: func(_ context.Context, bytes int64) error {
		reserved = append(reserved, bytes)
		return nil
	}}
	views, err := b.Claim(t.Context(), request)
	if err != nil || len(views) < 10 || len(views) > 48 {
		t.Fatalf("claimed %d items of %d bytes: %v", len(views), size, err)
	}
	if again, err := b.Claim(t.Context(), request); err != nil || len(again) != len(views) {
		t.Errorf("a repeat is answered with %d items, %v", len(again), err)
	}
	for request.RequestID = "2"; len(views) < jobs; request.RequestID += "2" {
		more, err := b.Claim(t.Context(), request)
		if err != nil || len(more) == 0 {
			t.Fatalf("%d of %d items claimed, and no more: %v", len(views), jobs, err)
		}
		views = append(views, more...)
	}
	if slices.Min(reserved) < 1<<20 {
		t.Errorf("reserved %v", reserved)
	}
	request.RequestID, request.Reserve = "3", func(_ context.Context, bytes int64) error {
		if bytes != 0 {
			t.Errorf("a claim without items reserves %d bytes", bytes)
		}
		return context.Canceled
	}
	if _, err := b.Claim(t.Context(), request); !errors.Is(err, context.Canceled) {
		t.Errorf("answered %v", err)
	}
}
