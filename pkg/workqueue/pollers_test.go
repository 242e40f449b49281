package workqueue_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

func TestLastPoll_IsOfTheWorkThatTheClaimAskedFor(t *testing.T) {
	t.Parallel()
	ocr, scan := ledger.WorkKind{Service: "ocr", StepType: "OCR"}, ledger.WorkKind{Service: "ocr", StepType: "SCAN"}
	embed := ledger.WorkKind{Service: "embed", StepType: "EMBED"}
	for _, c := range []struct {
		name   string
		asks   workqueue.ClaimRequest
		caller workqueue.Caller
		kind   ledger.WorkKind
		tenant string
		want   bool
	}{
		{name: "no filter asks for everything", kind: embed, tenant: "a", want: true},
		{name: "its service", asks: workqueue.ClaimRequest{Services: []string{"x", "ocr"}}, kind: ocr, tenant: "a", want: true},
		{name: "another service", asks: workqueue.ClaimRequest{Services: []string{"ocr"}}, kind: embed, tenant: "a"},
		{name: "its step type", asks: workqueue.ClaimRequest{StepTypes: []string{"OCR"}}, kind: ocr, tenant: "a", want: true},
		{name: "another step type", asks: workqueue.ClaimRequest{StepTypes: []string{"OCR"}}, kind: scan, tenant: "a"},
		{name: "its tenant", asks: workqueue.ClaimRequest{Tenants: []string{"a"}}, kind: ocr, tenant: "a", want: true},
		{name: "another tenant", asks: workqueue.ClaimRequest{Tenants: []string{"a"}}, kind: ocr, tenant: "b"},
		{name: "a service that the caller may see", caller: workqueue.Caller{Services: []string{"ocr"}}, kind: scan, tenant: "a", want: true},
		{name: "a service that it may not", caller: workqueue.Caller{Services: []string{"ocr"}}, kind: embed, tenant: "a"},
		{name: "a tenant that it may not", caller: workqueue.Caller{Tenants: []string{"a"}}, kind: ocr, tenant: "b"},
		{
			name: "a service that it asks for and may not see", asks: workqueue.ClaimRequest{Services: []string{"embed"}},
			caller: workqueue.Caller{Services: []string{"ocr"}}, kind: embed, tenant: "a",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				b := setup(t, false)
				time.Sleep(time.Minute)
				c.asks.Owner, c.asks.RequestID, c.asks.Max = "w", "1", 1
				if _, err := b.As(c.caller).Claim(t.Context(), c.asks); err != nil {
					t.Fatal(err)
				}
				want := began
				if c.want {
					want = time.Now()
				}
				time.Sleep(time.Minute)
				if at, ok := b.LastPoll(c.kind, c.tenant); ok != c.want || !at.Equal(want) {
					t.Errorf("last poll at %s (%v), want %s (%v)", at, ok, want, c.want)
				}
			})
		})
	}
}

func TestLastPoll_IsNowWhileAClaimWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, false)
		ended := make(chan struct{})
		for _, owner := range []string{"one", "two"} {
			go func() {
				asks := workqueue.ClaimRequest{Owner: owner, RequestID: "1", Max: 1, Wait: time.Hour, Ended: ended}
				asks.Services = []string{"ocr"}
				if _, err := b.Claim(t.Context(), asks); err != nil {
					t.Error(err)
				}
			}()
		}
		time.Sleep(20 * time.Minute)
		kind := ledger.WorkKind{Service: "ocr", StepType: "OCR"}
		if at, ok := b.LastPoll(kind, "a"); !ok || !at.Equal(time.Now()) {
			t.Errorf("last poll at %s (%v), want now", at, ok)
		}
		close(ended)
		synctest.Wait()
		end := time.Now()
		time.Sleep(time.Minute)
		if at, ok := b.LastPoll(kind, "a"); !ok || !at.Equal(end) {
			t.Errorf("last poll at %s (%v), want %s", at, ok, end)
		}
		filter := workqueue.PollFilter{Services: []string{"ocr"}}
		want := []workqueue.Poller{
			{PollFilter: filter, Owner: "one", LastPoll: end}, {PollFilter: filter, Owner: "two", LastPoll: end},
		}
		if diff := cmp.Diff(want, b.Pollers()); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]workqueue.Poller{{PollFilter: filter, LastPoll: end}}, b.LastPolls()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestPollers_AreBoundedAndKeepTheLatest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, false)
		ended := make(chan struct{})
		go func() {
			asks := workqueue.ClaimRequest{Owner: "waits", RequestID: "1", Max: 1, Wait: time.Hour, Ended: ended}
			if _, err := b.Claim(t.Context(), asks); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		poll := func(owner, service string) {
			time.Sleep(time.Millisecond)
			asks := workqueue.ClaimRequest{Owner: owner, RequestID: "1", Max: 1, Services: []string{service}}
			if _, err := b.Claim(t.Context(), asks); err != nil {
				t.Fatal(err)
			}
		}
		for n := range 1000 {
			poll("w", fmt.Sprint("service-", n))
		}
		if n := len(b.Pollers()); n > 256 {
			t.Errorf("%d filters are remembered", n)
		}
		for n := range 5000 {
			poll(fmt.Sprint("owner-", n), "ocr")
		}
		time.Sleep(time.Millisecond)
		found := b.Pollers()
		if len(found) > 2048 || found[0].Owner != "waits" || found[1].Owner != "owner-4999" || found[1000].Owner != "owner-4000" {
			t.Errorf("%d owners are remembered, first %s and %s", len(found), found[0].Owner, found[1].Owner)
		}
		close(ended)
	})
}
