//go:build integration

package pginbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/inbox"
	"github.com/lucius-project/lucius/pkg/inbox/pginbox"
)

// A transaction that submits a command with a key keeps others of the key waiting until it ends,
// or until it returns to a savepoint before the call. Other keys, other tenants and commands
// without a key do not wait, and a command without a key takes no lock.
func TestSubmit_LetsTransactionsOfAKeyWait(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first, err := f.app.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	submit(t, first, `{"tenant_id":"acme"}`)
	var locks int
	if err := first.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()").
		Scan(&locks); err != nil || locks != 0 {
		t.Errorf("without a key, it took %d locks: %v", locks, err)
	}
	execute(t, first, "SAVEPOINT before")
	submit(t, first, `{"tenant_id":"acme","order_key":"k","doc_id":"d"}`)
	other := connect(t, f.url)
	waits := func(field string, want bool) bool {
		patience := 20 * time.Millisecond
		if !want { // PostgreSQL has locks of its own, which a slow machine may hold for longer.
			patience = waittest.Bound(t)
		}
		execute(t, other, fmt.Sprintf("SET lock_timeout = %d", patience.Milliseconds()))
		_, err := other.Exec(t.Context(), "SELECT lucius.submit($1)", complete(`{"tenant_id":"acme",`+field+`}`))
		if err != nil && codeOf(err) != "55P03" {
			t.Error(err)
		}
		return err != nil
	}
	for field, want := range map[string]bool{
		`"order_key":"k"`: true, `"doc_id":"k"`: true, `"order_key":null,"doc_id":"k"`: true, `"order_key":"k","order_mode":"newest"`: true,
		`"doc_id":"d"`: false, `"order_key":"K"`: false, `"doc_id":"k","order_key":"l"`: false, `"correlation_id":"k"`: false,
		`"order_key":"k","tenant_id":"globex"`: false,
	} {
		if waits(field, want) != want {
			t.Errorf("%s: waits: %t, want %t", field, !want, want)
		}
	}
	execute(t, first, "ROLLBACK TO before")
	if waits(`"order_key":"k"`, false) {
		t.Error("it waits after the call was rolled back")
	}
	submit(t, first, `{"tenant_id":"acme","order_key":"k"}`)
	if err := first.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if waits(`"order_key":"k"`, false) {
		t.Error("it waits after the transaction was rolled back")
	}
}

// Two transactions submit two keys in different orders. PostgreSQL ends one of them.
func TestSubmit_EndsADeadlock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var ended atomic.Int64
	var both, group sync.WaitGroup
	both.Add(2)
	for _, keys := range [][]string{{"a", "b"}, {"b", "a"}} {
		connection := connect(t, f.url)
		execute(t, connection, "SET deadlock_timeout = '10ms'")
		group.Go(func() {
			err := pgx.BeginFunc(t.Context(), connection, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), "SELECT lucius.submit($1)", complete(`{"tenant_id":"acme","order_key":"`+keys[0]+`"}`))
				both.Done()
				both.Wait()
				if err == nil {
					_, err = tx.Exec(t.Context(), "SELECT lucius.submit($1)", complete(`{"tenant_id":"acme","order_key":"`+keys[1]+`"}`))
				}
				return err
			})
			if codeOf(err) == "40P01" {
				ended.Add(1)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if got := f.take(t, inbox.Outcome{JobID: "j"}); ended.Load() != 1 || len(got) != 2 {
		t.Errorf("%d transactions were ended, and %d commands committed", ended.Load(), len(got))
	}
}

// names submits a command for each letter, all of one tenant: a small letter's key is k, that of a
// capital is the letter itself, and a digit has no key.
func (f *fixture) names(t *testing.T, letters string) map[string]string {
	t.Helper()
	names := map[string]string{}
	for letter := range strings.SplitSeq(letters, "") {
		command := `{"tenant_id":"acme","doc_id":"k"}`
		switch {
		case letter <= "9":
			command = `{"tenant_id":"acme"}`
		case letter <= "Z":
			command = `{"tenant_id":"acme","order_key":"` + letter + `","doc_id":"k"}`
		}
		names[submit(t, f.app, command)] = letter
	}
	return names
}

// takes takes commands, returns their letters, and gives each the outcome of its letter, or else
// makes it a job.
func takes(t *testing.T, from *pginbox.Inbox, names map[string]string, outcomes map[string]inbox.Outcome) (letters string) {
	t.Helper()
	_, err := from.Take(t.Context(), 100, nil, func(_ context.Context, taken []inbox.Command) (got []inbox.Outcome) {
		for i := range taken {
			letter := names[taken[i].ID]
			outcome, found := outcomes[letter]
			if !found {
				outcome.JobID = "j"
			}
			letters, got = letters+letter, append(got, outcome)
		}
		return got
	})
	if err != nil {
		t.Fatal(err)
	}
	return letters
}

// empty deletes all commands, and begins the numbers again.
const empty = "TRUNCATE lucius.inbox; ALTER SEQUENCE lucius.inbox_number RESTART"

// A command comes only after those of its key before it, which are leased, locked, refused,
// discarded, or wait for another attempt.
func TestTake_TakesAKeyInOrder(t *testing.T) { //nolint:tparallel // The subtests share a database.
	t.Parallel()
	f := newFixture(t)
	putBack := inbox.Outcome{PutBack: true, Problem: apierror.Newf(apierror.TenantLimit, "Later.")}
	later := inbox.Outcome{Wait: time.Hour, Problem: apierror.Newf(apierror.Conflict, "Later.")}
	unsure := inbox.Outcome{Wait: time.Hour, Problem: later.Problem, Unsure: true}
	refused := inbox.Outcome{Problem: apierror.Newf(apierror.PayloadInvalid, "No.")}
	const due = "UPDATE lucius.inbox SET due_at = now() WHERE due_at > now()"
	type step struct {
		execute  string
		discard  string // letters
		retry    string
		outcomes map[string]inbox.Outcome
		want     string // what is taken
	}
	for name, test := range map[string]struct {
		submit string
		steps  []step
	}{
		"nothing before":    {"abAB1c2", []step{{want: "abAB1c2"}, {}}},
		"one that waits":    {"abA1", []step{{outcomes: map[string]inbox.Outcome{"a": later, "b": putBack}, want: "abA1"}, {}, {execute: due, want: "a"}, {want: "b"}, {}}},
		"one refused":       {"abc", []step{{outcomes: map[string]inbox.Outcome{"a": refused, "b": putBack, "c": putBack}, want: "abc"}, {want: "bc"}, {retry: "a", want: "a"}}},
		"a retried one":     {"abc", []step{{outcomes: map[string]inbox.Outcome{"a": refused, "b": later, "c": putBack}, want: "abc"}, {}, {retry: "a", execute: due, want: "ab"}, {want: "c"}}},
		"two that wait":     {"abc", []step{{outcomes: map[string]inbox.Outcome{"a": later, "b": putBack, "c": putBack}, want: "abc"}, {}, {execute: due, outcomes: map[string]inbox.Outcome{"a": refused}, want: "a"}, {outcomes: map[string]inbox.Outcome{"b": later, "c": putBack}, want: "bc"}, {}, {execute: due, want: "b"}, {want: "c"}}},
		"one to discard":    {"abc", []step{{outcomes: map[string]inbox.Outcome{"a": later, "b": putBack, "c": putBack}, want: "abc"}, {}, {discard: "a", want: "bc"}}},
		"one in the middle": {"abc", []step{{outcomes: map[string]inbox.Outcome{"a": later, "b": putBack, "c": putBack}, want: "abc"}, {}, {discard: "b"}, {execute: due, want: "a"}, {want: "c"}}},
		"one to discard that may be a job": {"abA", []step{
			{outcomes: map[string]inbox.Outcome{"a": unsure, "b": putBack}, want: "abA"}, {discard: "a"}, {}, {execute: due, outcomes: map[string]inbox.Outcome{"a": {PutBack: true}}, want: "a"}, {want: "b"},
		}},
		"an earlier one that is due later": {"abc", []step{{execute: "UPDATE lucius.inbox SET due_at = now() - number * interval '1 s'", want: "abc"}}},
		"an earlier one that is not due":   {"abc1", []step{{execute: "UPDATE lucius.inbox SET due_at = now() + interval '1 h' WHERE number = 1", want: "1"}, {execute: due, want: "a"}, {want: "bc"}}},
	} {
		t.Run(name, func(t *testing.T) {
			execute(t, f.app, empty)
			names := f.names(t, test.submit)
			ids := func(letters string) (ids []string) {
				for id, letter := range names {
					if letters != "" && strings.Contains(letters, letter) {
						ids = append(ids, id)
					}
				}
				return ids
			}
			for i, step := range test.steps {
				if step.execute != "" {
					execute(t, f.app, step.execute)
				}
				for _, id := range ids(step.retry) {
					if _, _, err := f.Retry(t.Context(), []string{id}); err != nil {
						t.Fatal(err)
					}
				}
				for _, id := range ids(step.discard) {
					f.discard(t, id)
				}
				if got := takes(t, f.Inbox, names, step.outcomes); got != step.want {
					t.Fatalf("step %d took %q, want %q", i+1, got, step.want)
				}
			}
		})
	}
}

// Another process has leased or locked the first commands of a key, or is deciding about one.
func TestTake_PassesNoCommandOfAnotherProcess(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other := openInbox(t, pginbox.Options{URL: f.url})
	names := f.names(t, "abcA1")
	tx, err := connect(t, f.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	execute(t, tx, "SELECT FROM lucius.inbox WHERE number = 1 FOR UPDATE")
	if got := takes(t, f.Inbox, names, nil); got != "A1" {
		t.Errorf("took %q while a is locked, want A1", got)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Take(t.Context(), 2, nil, func(context.Context, []inbox.Command) []inbox.Outcome { // a and b
		if got := takes(t, other, names, nil); got != "" {
			t.Errorf("took %q after commands that are leased", got)
		}
		return []inbox.Outcome{{JobID: "j"}, {JobID: "j"}}
	}); err != nil {
		t.Fatal(err)
	}
	if got := takes(t, other, names, nil); got != "c" {
		t.Errorf("took %q, want c after those before it are decided", got)
	}
	names = f.names(t, "de")
	if tx, err = f.app.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	execute(t, tx, "UPDATE lucius.inbox SET state = 'accepted', job_id = 'j', command = NULL, decided_at = now() WHERE number = 5") // d
	if got := takes(t, other, names, nil); got != "" {
		t.Errorf("took %q before the decision about d is committed", got)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := takes(t, other, names, nil); got != "e" {
		t.Errorf("took %q, want e", got)
	}
}

// node is a node of a plan.
type node struct {
	Type    string  `json:"Node Type"`
	Rows    float64 `json:"Actual Rows"`
	Loops   float64 `json:"Actual Loops"`
	Removed float64 `json:"Rows Removed by Filter"`
	Plans   []node
}

// read returns how many rows the node and those below it read.
func (n *node) read() (rows int) {
	rows = int(n.Loops * (n.Rows + n.Removed))
	for i := range n.Plans {
		rows += n.Plans[i].read()
	}
	return rows
}

// explain returns how many rows a take reads, and how many it leases or sets behind. It is rolled
// back.
func explain(t *testing.T, in *pgx.Conn) (read, changed int) {
	t.Helper()
	tx, err := in.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var text []byte
	if err := tx.QueryRow(t.Context(), "EXPLAIN (ANALYZE, TIMING off, FORMAT json) "+pginbox.TakeCommands,
		pgx.QueryExecModeSimpleProtocol, 64, []string{}, uuid.NewString(), 30.0, 4<<20).Scan(&text); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	var plans []struct{ Plan node }
	if err := json.Unmarshal(text, &plans); err != nil {
		t.Fatal(err)
	}
	return plans[0].Plan.read(), int(plans[0].Plan.Rows)
}

// The reads of a take do not grow with the commands that wait.
func TestTake_ReadsFewRows(t *testing.T) { //nolint:tparallel // The subtests share a database.
	t.Parallel()
	f := newFixture(t)
	execute(t, f.app, "SET session_replication_role = replica") // without the triggers
	for name, test := range map[string]struct {
		key, behind string
		firstDue    string // when the first command is due
		changed     int
	}{
		"no key":                          {"NULL", "false", "-1 h", 64},
		"one key":                         {"'k'", "false", "-1 h", 64},
		"one key, the first waits":        {"'k'", "false", "1 h", 64}, // 64 are set behind.
		"behind one that is due":          {"'k'", "n > 1", "-1 h", 1},
		"behind one that waits":           {"'k'", "n > 1", "1 h", 0},
		"many keys":                       {"n::text", "false", "-1 h", 64},
		"many keys with several commands": {"(n % 10000)::text", "n >= 10000", "-1 h", 64},
	} {
		t.Run(name, func(t *testing.T) {
			execute(t, f.app, empty)
			execute(t, f.app, fmt.Sprintf(`INSERT INTO lucius.inbox (id, tenant_id, command, submitted_by, submitted_at, due_at, order_key, number, behind)
				SELECT gen_random_uuid(), 'acme', '{}', 'shop', now(), now() + CASE n WHEN 1 THEN '%s' ELSE '-30 min' END::interval + n * interval '1 us',
					%s, CASE WHEN %[2]s IS NOT NULL THEN n END, %s FROM generate_series(1, 30000) n`, test.firstDue, test.key, test.behind))
			execute(t, f.app, "ANALYZE lucius.inbox")
			if read, changed := explain(t, f.app); read > 10_000 || changed != test.changed {
				t.Errorf("it read %d rows and changed %d, want %d", read, changed, test.changed)
			}
		})
	}
}

// world is the application and the ledger of TestOrder_IsThatOfTheCommits.
type world struct {
	mu        sync.Mutex
	committed map[string]map[string]int // key → command → its number among the commits, by the application
	accepted  map[string][]string       // key → commands as they became jobs
	jobs      map[string]bool
	calm      atomic.Bool // No process fails any more.
}

var orderKeys = []string{"", "a", "b", "c", "d"}

// application runs transactions that submit commands for some keys. It numbers each at its end,
// before the commit. Some are rolled back, in whole or in part.
func (w *world) application(t *testing.T, connection *pgx.Conn, transactions int) error {
	for range transactions {
		levels := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}
		tx, err := connection.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: levels[rand.N(len(levels))]})
		if err != nil {
			return err
		}
		if _, err := tx.Exec(t.Context(), "SELECT count(*) FROM pg_class"); err != nil { // The snapshot is older than the calls.
			return err
		}
		type call struct{ key, id string }
		var calls []call
		for _, key := range orderKeys { // in a fixed order, so that there are no deadlocks
			for range rand.N(3) {
				undo := rand.N(6) == 0
				if _, err := tx.Exec(t.Context(), "SAVEPOINT s"); err != nil {
					return err
				}
				field := []string{"", `,"doc_id":"` + key + `"`, `,"doc_id":"x","order_key":"` + key + `"`}[min(len(key), 1)*(1+rand.N(2))]
				id := ""
				if err := tx.QueryRow(t.Context(), "SELECT lucius.submit($1)", complete(`{"tenant_id":"acme"`+field+`}`)).Scan(&id); err != nil {
					return err
				}
				if undo {
					if _, err := tx.Exec(t.Context(), "ROLLBACK TO s"); err != nil {
						return err
					}
					continue
				}
				calls = append(calls, call{key, id})
			}
		}
		time.Sleep(rand.N(3 * time.Millisecond))
		if rand.N(5) == 0 {
			if err := tx.Rollback(t.Context()); err != nil {
				return err
			}
			continue
		}
		var at int
		if err := tx.QueryRow(t.Context(), "SELECT nextval('commits')").Scan(&at); err != nil {
			return err
		}
		if err := tx.Commit(t.Context()); err != nil {
			return err
		}
		w.mu.Lock()
		for i, c := range calls {
			w.committed[c.key][c.id] = at*100 + i
		}
		w.mu.Unlock()
	}
	return nil
}

// refuses reports whether the ledger refuses a command for good.
func refuses(id string) bool { return strings.HasPrefix(id, "0") }

// process accepts commands until it crashes, or ctx ends. Its crashes come before or after a job
// was created. Each failure makes a command wait up to twice as long, so the failures end when
// the world becomes calm.
func (w *world) process(ctx context.Context, t *testing.T, url string) {
	lease := waittest.Scale(300 * time.Millisecond)
	source := openInbox(t, pginbox.Options{URL: url, Lease: lease})
	running, crash := context.WithCancel(ctx)
	defer crash()
	die := func() {
		crash()
		source.Close()
	}
	reader, err := inbox.NewReader(inbox.Config{
		Source: source,
		Find:   func(context.Context, *inbox.Command) (string, error) { return "", nil },
		Accept: func(_ context.Context, c *inbox.Command) (string, error) {
			fate := rand.N(150)
			if w.calm.Load() {
				fate = -1
			}
			if fate == 0 {
				die()
			}
			if running.Err() != nil || fate == 1 {
				return "", &apierror.Error{Code: apierror.StoreUnavailable}
			}
			if refuses(c.ID) {
				return "", &apierror.Error{Code: apierror.PayloadInvalid}
			}
			if fate == 2 { // It stands still for longer than its lease.
				time.Sleep(lease + lease/3)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if !w.jobs[c.ID] {
				w.jobs[c.ID] = true
				w.accepted[c.OrderKey] = append(w.accepted[c.OrderKey], c.ID)
			}
			if fate == 3 {
				die()
			}
			return "j", nil
		},
	})
	if err != nil {
		t.Error(err)
		return
	}
	for running.Err() == nil {
		_ = reader.RunOnce(running) // A crash is an error, too.
		time.Sleep(time.Millisecond)
	}
}

// TestOrder_IsThatOfTheCommits has an application with several connections commit commands of a
// few keys, while several processes take them and crash. The commands of each key become jobs in
// the order of the commits.
func TestOrder_IsThatOfTheCommits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	execute(t, f.app, "CREATE SEQUENCE commits")
	w := &world{committed: map[string]map[string]int{}, accepted: map[string][]string{}, jobs: map[string]bool{}}
	for _, key := range orderKeys {
		w.committed[key] = map[string]int{}
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var applications, processes sync.WaitGroup
	for range 6 {
		connection := connect(t, f.url)
		applications.Go(func() {
			if err := w.application(t, connection, 30); err != nil {
				t.Error(err)
			}
		})
	}
	for range 3 {
		processes.Go(func() {
			for ctx.Err() == nil {
				w.process(ctx, t, f.url)
			}
		})
	}
	applications.Wait()
	w.calm.Store(true)
	waittest.Until(t, "all commands are decided", func() bool {
		var waiting int
		if err := f.app.QueryRow(t.Context(), "SELECT count(*) FROM lucius.inbox WHERE state = 'waiting'").Scan(&waiting); err != nil {
			t.Fatal(err)
		}
		return waiting == 0
	})
	stop()
	processes.Wait()
	for key, committed := range w.committed {
		var want []string
		for id := range committed {
			if !refuses(id) {
				want = append(want, id)
			}
		}
		got := w.accepted[key]
		if slices.SortFunc(want, func(a, b string) int { return committed[a] - committed[b] }); key == "" {
			slices.Sort(want)
			got = slices.Sorted(slices.Values(got))
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("key %q (-committed +accepted):\n%s", key, diff)
		}
	}
}
