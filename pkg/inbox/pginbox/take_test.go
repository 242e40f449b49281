//go:build integration

package pginbox_test

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/inbox"
	"github.com/lucius-project/lucius/pkg/inbox/pginbox"
)

// Two processes take commands, without an open transaction. When the lease of the first ends,
// the second gets the command, with the attempt counted, and the first one's decision no longer
// counts.
func TestTake_LeasesCommands(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := submit(t, f.app, `{"tenant_id":"acme"}`)
	other := openInbox(t, pginbox.Options{URL: f.url})
	takeOther := func(ctx context.Context) (got []inbox.Command) {
		if _, err := other.Take(ctx, 100, nil, func(_ context.Context, taken []inbox.Command) []inbox.Outcome {
			got = taken
			return []inbox.Outcome{{JobID: "j-2"}}
		}); err != nil {
			t.Error(err)
		}
		return got
	}
	if _, err := f.Take(t.Context(), 100, nil, func(ctx context.Context, _ []inbox.Command) []inbox.Outcome {
		var ends time.Time
		deadline, _ := ctx.Deadline()
		if err := f.app.QueryRow(ctx, "SELECT due_at FROM lucius.inbox WHERE id = $1", id).Scan(&ends); err != nil || deadline.After(ends) {
			t.Errorf("the accepts may outlive the lease by %s: %v", deadline.Sub(ends), err)
		}
		second := submit(t, f.app, `{"tenant_id":"acme"}`)
		if got := takeOther(ctx); len(got) != 1 || got[0].ID != second {
			t.Errorf("took %+v, want %s", got, second)
		}
		var open int
		if err := f.app.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "+
			"AND state LIKE 'idle in transaction%'").Scan(&open); err != nil || open != 0 {
			t.Errorf("%d transactions are open: %v", open, err)
		}
		execute(t, f.app, "UPDATE lucius.inbox SET due_at = now() WHERE id = $1", id)
		if got := takeOther(ctx); len(got) != 1 || got[0].ID != id || got[0].Tries != 1 {
			t.Errorf("took %+v, want %s again", got, id)
		}
		return []inbox.Outcome{{JobID: "j-1"}}
	}); err != nil {
		t.Error(err)
	}
	var job string
	if err := f.app.QueryRow(t.Context(), "SELECT job_id FROM lucius.inbox WHERE id = $1", id).Scan(&job); err != nil || job != "j-2" {
		t.Errorf("it is job %q: %v", job, err)
	}
}

// A process ends while it handles a command.
func TestTake_TakesACommandAgainAfterItsLease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := submit(t, f.app, `{"tenant_id":"acme"}`)
	dying := openInbox(t, pginbox.Options{URL: f.url, Lease: time.Millisecond})
	if _, err := dying.Take(t.Context(), 100, nil, func(ctx context.Context, _ []inbox.Command) []inbox.Outcome {
		<-ctx.Done() // The lease bounds the accepts, too.
		dying.Close()
		return []inbox.Outcome{{JobID: "j-1"}}
	}); err == nil || apierror.From(err).Code != apierror.StoreUnavailable {
		t.Errorf("a process that ended: %v", err)
	}
	var again []string
	for len(again) == 0 {
		again = f.take(t, inbox.Outcome{JobID: "j-1"})
	}
	if !slices.Equal(again, []string{id}) {
		t.Errorf("took %v, want %s again", again, id)
	}
}

// The context ends while a command is being handled.
func TestTake_StoresDuringAShutdown(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := submit(t, f.app, `{"tenant_id":"acme"}`)
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := f.Take(ctx, 1, nil, func(context.Context, []inbox.Command) []inbox.Outcome {
		cancel()
		return []inbox.Outcome{{Problem: apierror.Newf(apierror.UnknownRequestType, "No.")}}
	}); err != nil {
		t.Error(err)
	}
	if got := f.result(t, f.app, id); !strings.Contains(got, `"state":"refused"`) {
		t.Error(got)
	}
}

// The server accepts connections and never answers.
func TestTake_GivesUpOnASilentServer(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }() // Nothing is lost with it.
	away := openInbox(t, pginbox.Options{
		URL: "postgres://u:p@" + listener.Addr().String() + "/x?sslmode=disable", Timeout: 10 * time.Millisecond,
	})
	if _, err := away.Take(t.Context(), 1, nil, nil); apierror.From(err).Code != apierror.StoreUnavailable {
		t.Error(err)
	}
}

// One tenant has many commands, which are older than those of two other tenants. One of these
// must be skipped.
func TestTake_TakesTenantsInTurn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	execute(t, f.app, "SELECT lucius.submit($1) FROM generate_series(1, 500)", complete(`{"tenant_id":"many"}`))
	submit(t, f.app, `{"tenant_id":"skipped"}`)
	submit(t, f.app, `{"tenant_id":"zeta"}`)
	rows, err := f.app.Query(t.Context(), "SELECT id::text FROM lucius.inbox WHERE tenant_id = 'many' ORDER BY due_at")
	if err != nil {
		t.Fatal(err)
	}
	many, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // A command that is put back keeps its place, and the attempt does not count.
		if _, err := f.Take(t.Context(), 10, []string{"skipped"}, func(_ context.Context, taken []inbox.Command) []inbox.Outcome {
			var got []string
			for i := range taken {
				if got = append(got, taken[i].ID); taken[i].TenantID == "zeta" {
					got[i] = "zeta"
				}
				if taken[i].Tries != 0 {
					t.Errorf("%+v", taken[i])
				}
			}
			if want := slices.Insert(slices.Clone(many[:9]), 1, "zeta"); !slices.Equal(got, want) {
				t.Errorf("took %v, want %v", got, want)
			}
			return slices.Repeat([]inbox.Outcome{{PutBack: true, Problem: apierror.Newf(apierror.TenantLimit, "Later.")}}, len(taken))
		}); err != nil {
			t.Fatal(err)
		}
	}
	if got := f.result(t, f.app, many[0]); !strings.Contains(got, `"state":"waiting","problem":{"code": "tenant_limit"`) {
		t.Error(got)
	}
}

// The due commands exceed the bytes that are taken at once.
func TestTake_TakesFewLargeCommands(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	execute(t, f.app, "UPDATE lucius.inbox_owner SET max_payload = 1000000")
	execute(t, f.app, "SELECT lucius.submit($1::jsonb || jsonb_build_object('payload', jsonb_build_object('x', repeat('x', 999990)))) FROM generate_series(1, 8)",
		complete(`{"tenant_id":"acme"}`))
	for _, want := range []int{5, 3, 0} {
		if got := f.take(t, inbox.Outcome{JobID: "j"}); len(got) != want {
			t.Errorf("took %d, want %d", len(got), want)
		}
	}
}

func TestTake_StoresTheOutcomeOfACommand(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := submit(t, f.app, `{"tenant_id":"acme"}`)
	wait := inbox.Outcome{Problem: apierror.Newf(apierror.TenantLimit, "Later."), Wait: time.Hour}
	if got := f.take(t, wait); !slices.Equal(got, []string{id}) {
		t.Fatalf("took %v", got)
	}
	if got := f.result(t, f.app, id); !strings.Contains(got, `"state":"waiting","problem":{"code": "tenant_limit", "detail": "Later."}`) {
		t.Error(got)
	}
	if got := f.take(t, wait); len(got) != 0 {
		t.Errorf("took %v, which is not due", got)
	}
	execute(t, f.app, "UPDATE lucius.inbox SET due_at = now()")
	refused := inbox.Outcome{Problem: apierror.Refused([]apierror.Violation{{Pointer: "/mode", Message: "is \x00 odd"}})}
	if got := f.take(t, refused); !slices.Equal(got, []string{id}) {
		t.Fatalf("took %v", got)
	}
	page, next, err := f.List(t.Context(), inbox.Refused, 10, "")
	if err != nil || next != "" || len(page) != 1 {
		t.Fatalf("%+v, %q, %v", page, next, err)
	}
	want := inbox.Listed{
		State: inbox.Refused, DueAt: page[0].DueAt, Command: inbox.Command{
			ID: id, TenantID: "acme", SubmittedBy: "postgres", Tries: 2, SubmittedAt: page[0].SubmittedAt,
			Body: page[0].Body,
		},
		RefusedAt: page[0].RefusedAt, Code: apierror.InvalidEnvelope, Detail: "/mode is \uFFFD odd.",
		Errors: []apierror.Violation{{Pointer: "/mode", Message: "is \uFFFD odd"}},
	}
	if diff := gocmp.Diff(want, page[0]); diff != "" || page[0].RefusedAt.Before(page[0].SubmittedAt) {
		t.Error(diff)
	}
	if survey, err := f.Survey(t.Context()); err != nil || survey.Refused != 1 || survey.Waiting != 0 ||
		!survey.OldestRefused.Equal(page[0].SubmittedAt) || !survey.OldestWaiting.IsZero() {
		t.Errorf("%+v, %v", survey, err)
	}
	if handled, more, err := f.Retry(t.Context(), nil); err != nil || more ||
		!slices.Equal(handled, []inbox.Handled{{ID: id, Outcome: inbox.Retried}}) {
		t.Errorf("%+v, %t, %v", handled, more, err)
	}
	if survey, err := f.Survey(t.Context()); err != nil || survey.Waiting != 1 || survey.OldestWaiting.IsZero() {
		t.Errorf("%+v, %v", survey, err)
	}
	f.take(t, inbox.Outcome{JobID: "j"})
	execute(t, f.app, `INSERT INTO lucius.rows VALUES ($1, 'j', 'JOB', '1', '{"state":"SUCCEEDED","final_output":"{\"n\":1}"}')`, table)
	if got := f.result(t, f.app, id); got != `{"state":"accepted","problem":null,"job_id":"j","job_state":"SUCCEEDED",`+
		`"final_output":{"n":1},"error_code":null,"error_message":null}` {
		t.Error(got)
	}
	execute(t, f.app, `UPDATE lucius.rows SET props = '{"tombstone":true}' WHERE part = 'j'`)
	if got := f.result(t, f.app, id); got != "nothing" {
		t.Errorf("the job was purged: %s", got)
	}
}

// The jobs of some commands exist, others were purged, with or without a tombstone, and some
// commands were discarded: more of each than one call checks.
func TestForget(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	execute(t, f.app, `INSERT INTO lucius.rows VALUES
		('luciusledger', 'kept', 'JOB', '1', '{"state":"SUCCEEDED"}'), ('luciusledger', 'buried', 'JOB', '1', '{"tombstone":true}')`)
	execute(t, f.app, `INSERT INTO lucius.inbox (id, tenant_id, submitted_by, submitted_at, due_at, state, job_id, decided_at)
		SELECT gen_random_uuid(), 'acme', 'shop', now(), now(), CASE WHEN n % 4 < 3 THEN 'accepted' ELSE 'discarded' END,
			(ARRAY['kept', 'purged', 'buried'])[n % 4 + 1], now() - make_interval(hours => n % 4) FROM generate_series(0, 3999) n`)
	submit(t, f.app, `{"tenant_id":"acme"}`)
	forget := func(retention time.Duration) (deleted int) {
		for cursor := ""; ; {
			next, some, err := f.Forget(t.Context(), cursor, retention)
			if err != nil {
				t.Fatal(err)
			}
			deleted += some
			if cursor = next; next == "" {
				return deleted
			}
		}
	}
	for _, c := range []struct {
		retention time.Duration
		deleted   int
	}{{4 * time.Hour, 0}, {150 * time.Minute, 1000}, {30 * time.Minute, 2000}, {0, 0}} {
		if got := forget(c.retention); got != c.deleted {
			t.Errorf("forgot %d with a retention of %s, want %d", got, c.retention, c.deleted)
		}
	}
	var left int
	if err := f.app.QueryRow(t.Context(), "SELECT count(*) FROM lucius.inbox").Scan(&left); err != nil || left != 1001 {
		t.Errorf("%d left: %v", left, err)
	}
}

// A command whose job is kept is only read: a lock would write its row at each pass of each
// replica. xmax shows a lock even after its transaction.
func TestForget_LocksNothingThatItKeeps(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	execute(t, f.app, `INSERT INTO lucius.rows VALUES ('luciusledger', 'kept', 'JOB', '1', '{"state":"SUCCEEDED"}')`)
	execute(t, f.app, `INSERT INTO lucius.inbox (id, tenant_id, submitted_by, submitted_at, due_at, state, job_id, decided_at)
		SELECT gen_random_uuid(), 'acme', 'shop', now(), now(), 'accepted', CASE WHEN n % 2 = 0 THEN 'kept' ELSE 'purged' END,
			now() - interval '1 h' FROM generate_series(1, 2000) n`)
	deleted := 0
	for cursor := ""; ; {
		next, some, err := f.Forget(t.Context(), cursor, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		deleted += some
		if cursor = next; cursor == "" {
			break
		}
	}
	var kept, locked int
	err := f.app.QueryRow(t.Context(), "SELECT count(*), count(*) FILTER (WHERE xmax <> 0) FROM lucius.inbox").Scan(&kept, &locked)
	if err != nil || deleted != 1000 || kept != 1000 || locked != 0 {
		t.Errorf("deleted %d, kept %d and locked %d of these: %v", deleted, kept, locked, err)
	}
}

// Another process holds locks on the rows.
func TestForget_SkipsRowsThatAnotherProcessDeletes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	execute(t, f.app, `INSERT INTO lucius.inbox (id, tenant_id, submitted_by, submitted_at, due_at, state, decided_at)
		VALUES (gen_random_uuid(), 'acme', 'shop', now(), now(), 'discarded', now() - interval '1 hour')`)
	tx, err := f.app.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	execute(t, tx, "SELECT FROM lucius.inbox FOR UPDATE")
	if _, deleted, err := f.Forget(t.Context(), "", time.Minute); deleted != 0 || err != nil {
		t.Errorf("%d, %v", deleted, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, deleted, err := f.Forget(t.Context(), "", time.Minute); deleted != 1 || err != nil {
		t.Errorf("%d, %v", deleted, err)
	}
	if _, _, err := f.Forget(t.Context(), "x", time.Minute); apierror.From(err).Code != apierror.InvalidEnvelope {
		t.Errorf("a cursor that is none: %v", err)
	}
}
