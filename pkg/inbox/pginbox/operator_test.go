//go:build integration

package pginbox_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/inbox"
	"github.com/lucius-project/lucius/pkg/inbox/pginbox"
)

func TestOperator_RetriesAndDiscards(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var ids []string
	for range inbox.MaxHandled + 1 {
		ids = append(ids, submit(t, f.app, `{"tenant_id":"acme"}`))
	}
	for taken := 0; taken < len(ids); {
		taken += len(f.take(t, inbox.Outcome{Problem: apierror.Newf(apierror.UnknownRequestType, "No.")}))
	}
	var listed []string
	for after := ""; ; {
		page, next, err := f.List(t.Context(), inbox.Refused, 40, after)
		if err != nil {
			t.Fatal(err)
		}
		for i := range page {
			listed = append(listed, page[i].ID)
		}
		if after = next; next == "" {
			break
		}
	}
	if diff := cmp.Diff(ids, listed); diff != "" {
		t.Error(diff)
	}
	if handled, more, err := f.Discard(t.Context(), nil, inbox.Refused, "a \x00 test"); err != nil || !more || len(handled) != inbox.MaxHandled ||
		handled[0] != (inbox.Handled{ID: ids[0], Outcome: inbox.Discarded}) {
		t.Errorf("discarded %d, %t: %v", len(handled), more, err)
	}
	last, unknown := strings.ToUpper(ids[len(ids)-1]), uuid.NewString()
	handled, more, err := f.Retry(t.Context(), []string{ids[0], last, unknown})
	want := []inbox.Handled{
		{ID: ids[0], Outcome: inbox.Absent}, {ID: last, Outcome: inbox.Retried}, {ID: unknown, Outcome: inbox.Absent},
	}
	if diff := cmp.Diff(want, handled); diff != "" || more || err != nil {
		t.Error(diff, more, err)
	}
	if got := f.result(t, f.app, ids[0]); !strings.Contains(got, `"state":"discarded","problem":{"code": "unknown_request_type", "detail": "No.", "discarded": "a  test"}`) {
		t.Error(got)
	}
	for _, id := range []string{"x", "{" + unknown + "}", "urn:uuid:" + unknown} {
		if _, _, err := f.Retry(t.Context(), []string{id}); apierror.From(err).Code != apierror.InvalidEnvelope {
			t.Errorf("%s: %v", id, err)
		}
	}
	for _, after := range []string{"x", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z x"} {
		if _, _, err := f.List(t.Context(), inbox.Refused, 10, after); apierror.From(err).Code != apierror.InvalidEnvelope {
			t.Errorf("after %s: %v", after, err)
		}
	}
}

// discard discards one command, and returns the outcome.
func (f *fixture) discard(t *testing.T, id string) inbox.HandledOutcome {
	t.Helper()
	handled, _, err := f.Discard(t.Context(), []string{id}, inbox.Waiting, "a mistake")
	if err != nil {
		t.Fatal(err)
	}
	return handled[0].Outcome
}

// expectState fails the test unless lucius.result returns the state.
func (f *fixture) expectState(t *testing.T, id, state string) {
	t.Helper()
	want := `"state":"` + state + `"`
	got := f.result(t, f.app, id)
	if !strings.Contains(got, want) || strings.Contains(got, `"discarded": "a mistake"`) != (state == "discarded") {
		t.Errorf("%s, want %s", got, want)
	}
}

var errLater = apierror.Newf(apierror.TenantLimit, "Later.")

func TestOperator_ListsAndDiscardsWaitingCommands(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tried := submit(t, f.app, `{"tenant_id":"acme"}`)
	f.take(t, inbox.Outcome{PutBack: true, Problem: errLater})
	fresh := submit(t, f.app, `{"tenant_id":"acme"}`)
	page, next, err := f.List(t.Context(), inbox.Waiting, 10, "")
	if err != nil || next != "" || len(page) != 2 {
		t.Fatalf("%+v, %q, %v", page, next, err)
	}
	want := inbox.Listed{
		State: inbox.Waiting, Code: apierror.TenantLimit, Detail: "Later.", DueAt: page[0].DueAt, Command: inbox.Command{
			ID: tried, TenantID: "acme", SubmittedBy: "postgres", SubmittedAt: page[0].SubmittedAt,
			Body: page[0].Body,
		},
	}
	if diff := cmp.Diff(want, page[0]); diff != "" || page[0].DueAt.IsZero() || page[1].ID != fresh || page[1].Code != "" {
		t.Error(diff, page[1])
	}
	if handled, more, err := f.Discard(t.Context(), nil, inbox.Refused, "why"); len(handled) != 0 || more || err != nil {
		t.Errorf("discarded %+v among the refused: %v", handled, err)
	}
	handled, more, err := f.Discard(t.Context(), nil, inbox.Waiting, "a mistake")
	if diff := cmp.Diff([]inbox.Handled{{ID: tried, Outcome: inbox.Discarded}, {ID: fresh, Outcome: inbox.Discarded}}, handled); diff != "" ||
		more || err != nil {
		t.Error(diff, more, err)
	}
	f.expectState(t, tried, "discarded")
	f.expectState(t, fresh, "discarded")
	if got := f.result(t, f.app, fresh); !strings.Contains(got, `"problem":{"code": "", "detail": "", "discarded": "a mistake"}`) {
		t.Error(got)
	}
	if got := f.take(t, inbox.Outcome{JobID: "j"}); len(got) != 0 {
		t.Errorf("took %v, which were discarded", got)
	}
	if got := f.discard(t, tried); got != inbox.Absent {
		t.Errorf("discarded again: %s", got)
	}
}

// An operator discards a command after a replica has leased it and before the replica decides.
func TestDiscard_LeavesATakenCommandToItsReplica(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		outcome inbox.Outcome
		state   string
	}{
		"accepted": {inbox.Outcome{JobID: "j"}, "accepted"},
		"refused":  {inbox.Outcome{Problem: apierror.Newf(apierror.UnknownRequestType, "No.")}, "discarded"},
		"put back": {inbox.Outcome{PutBack: true, Problem: errLater}, "discarded"},
		"unknown":  {inbox.Outcome{Unsure: true, Wait: time.Hour, Problem: apierror.Newf(apierror.StoreUnavailable, "No answer.")}, "waiting"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			execute(t, f.app, `INSERT INTO lucius.rows VALUES ($1, 'j', 'JOB', '1', '{"state":"QUEUED"}')`, table)
			id := submit(t, f.app, `{"tenant_id":"acme"}`)
			if _, err := f.Take(t.Context(), 1, nil, func(context.Context, []inbox.Command) []inbox.Outcome {
				if got := f.discard(t, id); got != inbox.Discarding {
					t.Errorf("in hand: %s", got)
				}
				f.expectState(t, id, "waiting")
				return []inbox.Outcome{c.outcome}
			}); err != nil {
				t.Fatal(err)
			}
			f.expectState(t, id, c.state)
		})
	}
}

// A replica ends while it handles a command, and another one checks whether there is a job.
func TestDiscard_ChecksACommandThatMayBeAJob(t *testing.T) {
	t.Parallel()
	for state, found := range map[string]inbox.Outcome{"accepted": {JobID: "j"}, "discarded": {PutBack: true}} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			execute(t, f.app, `INSERT INTO lucius.rows VALUES ($1, 'j', 'JOB', '1', '{"state":"QUEUED"}')`, table)
			id := submit(t, f.app, `{"tenant_id":"acme"}`)
			dying := openInbox(t, pginbox.Options{URL: f.url, Lease: time.Millisecond})
			if _, err := dying.Take(t.Context(), 1, nil, func(context.Context, []inbox.Command) []inbox.Outcome {
				dying.Close()
				return []inbox.Outcome{{JobID: "j"}}
			}); err == nil {
				t.Error("a process that ended stored an outcome")
			}
			if got := f.discard(t, id); got != inbox.Discarding {
				t.Errorf("it may be a job: %s", got)
			}
			if page, _, err := f.List(t.Context(), inbox.Waiting, 1, ""); err != nil || page[0].DiscardReason != "a mistake" || !page[0].Unsure {
				t.Errorf("%+v, %v", page, err)
			}
			// The tenant is at its limit, and has a command that is due earlier.
			submit(t, f.app, `{"tenant_id":"acme"}`)
			execute(t, f.app, "UPDATE lucius.inbox SET due_at = submitted_at - interval '1 hour' WHERE id <> $1", id)
			for taken := 0; taken == 0; {
				var err error
				if taken, err = f.Take(t.Context(), 1, []string{"acme"}, func(_ context.Context, taken []inbox.Command) []inbox.Outcome {
					if !taken[0].Unsure || !taken[0].Discard {
						t.Errorf("%+v", taken[0])
					}
					return []inbox.Outcome{found}
				}); err != nil {
					t.Fatal(err)
				}
			}
			f.expectState(t, id, state)
		})
	}
}

// Two replicas accept commands, often without learning the outcome, while an operator discards
// waiting ones. Each command becomes a job or is discarded, never both.
func TestDiscard_RacesWithReplicas(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	execute(t, f.app, `SELECT lucius.submit($1::jsonb || jsonb_build_object('tenant_id', 't' || n)) FROM generate_series(1, 300) n`, complete(`{"tenant_id":""}`))
	var mu sync.Mutex
	jobs := map[string]bool{}
	find := func(_ context.Context, command *inbox.Command) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if jobs[command.ID] {
			return command.ID, nil
		}
		return "", nil
	}
	accept := func(ctx context.Context, command *inbox.Command) (string, error) {
		switch rand.IntN(4) {
		case 0:
			return "", &apierror.Error{Code: apierror.Conflict}
		case 1:
			return "", &apierror.Error{Code: apierror.RateLimited}
		}
		mu.Lock()
		jobs[command.ID] = true
		mu.Unlock()
		if rand.IntN(2) == 0 {
			return "", &apierror.Error{Code: apierror.StoreUnavailable}
		}
		return find(ctx, command)
	}
	var replicas sync.WaitGroup
	ended := make(chan struct{})
	for range 2 {
		reader, err := inbox.NewReader(inbox.Config{Source: f.Inbox, Accept: accept, Find: find})
		if err != nil {
			t.Fatal(err)
		}
		replicas.Go(func() {
			for {
				if err := reader.RunOnce(t.Context()); err != nil {
					t.Error(err)
				}
				select {
				case <-ended:
					return
				case <-time.After(time.Millisecond):
				}
			}
		})
	}
	for page := make([]inbox.Listed, 1); len(page) > 0; {
		var err error
		if page, _, err = f.List(t.Context(), inbox.Waiting, 100, ""); err != nil {
			t.Fatal(err)
		}
		for i := range page {
			if !page[i].Discard && rand.IntN(4) == 0 {
				f.discard(t, page[i].ID)
			}
		}
	}
	close(ended)
	replicas.Wait()
	rows, err := f.app.Query(t.Context(), "SELECT id::text, state FROM lucius.inbox")
	if err != nil {
		t.Fatal(err)
	}
	states := map[string]int{}
	var id, state string
	for rows.Next() {
		if err := rows.Scan(&id, &state); err != nil {
			t.Fatal(err)
		}
		if states[state]++; (state == "accepted") != jobs[id] {
			t.Errorf("command %s is %s, and a job: %t", id, state, jobs[id])
		}
	}
	if states["accepted"]+states["discarded"] != 300 || states["accepted"] == 0 || states["discarded"] == 0 {
		t.Errorf("%v", states)
	}
}
