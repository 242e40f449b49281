//go:build integration

package pginbox_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lucius-project/lucius/internal/postgres/postgrestest"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/inbox"
	"github.com/lucius-project/lucius/pkg/inbox/pginbox"
	"github.com/lucius-project/lucius/pkg/problem"
)

func TestMain(m *testing.M) { os.Exit(postgrestest.Main(m)) }

const table = "luciusledger"

// fixture is an inbox in a separate database.
type fixture struct {
	*pginbox.Inbox
	url string
	app *pgx.Conn // an application's
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	at := postgrestest.Database(t)
	f := &fixture{Inbox: openInbox(t, pginbox.Options{URL: at}), url: at, app: connect(t, at)}
	if err := f.Claim(t.Context()); err != nil {
		t.Fatal(err)
	}
	execute(t, f.app, "INSERT INTO lucius.inbox_rights VALUES (session_user, '*')")
	return f
}

func openInbox(t *testing.T, options pginbox.Options) *pginbox.Inbox {
	t.Helper()
	if options.Table == "" {
		options.Table = table
	}
	opened, err := pginbox.Open(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(opened.Close)
	return opened
}

func connect(t *testing.T, at string) *pgx.Conn {
	t.Helper()
	connection, err := pgx.Connect(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close(context.Background()) }) //nolint:usetesting // Nothing is lost with it.
	return connection
}

// submitter is a connection or a transaction that submits commands.
type submitter interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// complete returns the command with the required fields that it lacks.
func complete(command string) string {
	const required = `"request_type":"r","schema_version":"1","input_ref":{"uri":"s3://in"},"output_ref":{"uri":"s3://out"}`
	if !strings.Contains(command, `"payload"`) {
		command = `{"payload":{},` + command[1:]
	}
	return "{" + required + "," + command[1:]
}

func submit(t *testing.T, in submitter, command string) (id string) {
	t.Helper()
	if err := in.QueryRow(t.Context(), "SELECT lucius.submit($1)", complete(command)).Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

func execute(t *testing.T, in submitter, sql string, args ...any) {
	t.Helper()
	if _, err := in.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// take takes the due commands, gives each the outcome, and returns their ids.
func (f *fixture) take(t *testing.T, outcome inbox.Outcome) (ids []string) {
	t.Helper()
	_, err := f.Take(t.Context(), 100, nil, func(_ context.Context, taken []inbox.Command) []inbox.Outcome {
		for i := range taken {
			ids = append(ids, taken[i].ID)
		}
		return slices.Repeat([]inbox.Outcome{outcome}, len(taken))
	})
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// result is what lucius.result returns to the application.
func (f *fixture) result(t *testing.T, in submitter, id string) string {
	t.Helper()
	var shown string
	err := in.QueryRow(t.Context(), "SELECT to_json(r)::text FROM lucius.result($1) r", id).Scan(&shown)
	if errors.Is(err, pgx.ErrNoRows) {
		return "nothing"
	}
	if err != nil {
		t.Fatal(err)
	}
	return shown
}

func TestSubmit_IsPartOfTheTransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for i := range 6 {
		tx, err := f.app.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		id := submit(t, tx, fmt.Sprintf(`{"tenant_id":"acme","payload":{"n":1.50,"i":%d}}`, i))
		if got := f.take(t, inbox.Outcome{JobID: "none"}); len(got) != 0 {
			t.Fatalf("%v was taken before its transaction ended", got)
		}
		if i%2 == 1 {
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := f.take(t, inbox.Outcome{JobID: "none"}); len(got) != 0 {
				t.Fatalf("%v was taken though it was rolled back", got)
			}
			continue
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Take(t.Context(), 100, nil, func(_ context.Context, taken []inbox.Command) []inbox.Outcome {
			want := []inbox.Command{{
				ID: id, TenantID: "acme", SubmittedBy: "postgres", SubmittedAt: taken[0].SubmittedAt,
				Body: fmt.Appendf(nil, `{"payload": {"i": %d, "n": 1.50}, "input_ref": {"uri": "s3://in"}, "tenant_id": "acme", `+
					`"output_ref": {"uri": "s3://out"}, "request_type": "r", "schema_version": "1", "idempotency_key": %q}`, i, id),
			}}
			if diff := gocmp.Diff(want, taken); diff != "" {
				t.Error(diff)
			}
			return []inbox.Outcome{{JobID: "j"}}
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSubmit_KeepsTheKeyOfTheCommand(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	submit(t, f.app, `{"tenant_id":"acme","idempotency_key":"order-7"}`)
	if _, err := f.Take(t.Context(), 1, nil, func(_ context.Context, taken []inbox.Command) []inbox.Outcome {
		if !strings.Contains(string(taken[0].Body), `"idempotency_key": "order-7"`) {
			t.Errorf("%s", taken[0].Body)
		}
		return []inbox.Outcome{{JobID: "j"}}
	}); err != nil {
		t.Fatal(err)
	}
}

// wrong are commands that can never be a job, each with one field that replaces that of a
// valid command; null removes it.
var wrong = map[string]string{
	"no tenant":                          `"tenant_id":null`,
	"a tenant that is a number":          `"tenant_id":7`,
	"a blank tenant":                     `"tenant_id":" \t"`,
	"a long tenant":                      `"tenant_id":"` + strings.Repeat("é", 65) + `"`,
	"a tenant with a newline":            `"tenant_id":"a\nb"`,
	"no request type":                    `"request_type":null`,
	"a long request type":                `"request_type":"` + strings.Repeat("x", 129) + `"`,
	"a version that is a number":         `"schema_version":1`,
	"a long version":                     `"schema_version":"` + strings.Repeat("1", 33) + `"`,
	"a key that is a number":             `"idempotency_key":4711`,
	"a key that is an object":            `"idempotency_key":{}`,
	"an empty key":                       `"idempotency_key":""`,
	"a long key":                         `"idempotency_key":"` + strings.Repeat("k", 256) + `"`,
	"a long correlation id":              `"correlation_id":"` + strings.Repeat("c", 129) + `"`,
	"a correlation id that is a boolean": `"correlation_id":true`,
	"a long doc id":                      `"doc_id":"` + strings.Repeat("d", 257) + `"`,
	"no payload":                         `"payload":null`,
	"a payload that is an array":         `"payload":[]`,
	"no input":                           `"input_ref":null`,
	"an input that is a string":          `"input_ref":"s3://in"`,
	"an input without a URI":             `"input_ref":{}`,
	"an input with a null URI":           `"input_ref":{"uri":null}`,
	"a URI that is a number":             `"output_ref":{"uri":1}`,
	"a blank URI":                        `"workspace_ref":{"uri":" "}`,
	"a long URI":                         `"input_ref":{"uri":"` + strings.Repeat("u", 2049) + `"}`,
	"a URI with a tab":                   `"input_ref":{"uri":"s3://\t"}`,
	"a large reference":                  `"input_ref":{"uri":"s3://in","x":"` + strings.Repeat("\\\"", 5000) + `"}`,
	"another mode":                       `"mode":"FAST"`,
	"a mode that is a number":            `"mode":1`,
	"a burst without a document":         `"mode":"BURST"`,
	"callbacks that are a string":        `"callback_urls":"https://example.org"`,
	"too many callbacks":                 `"callback_urls":["https://e.org/1","https://e.org/2","https://e.org/3","https://e.org/4","https://e.org/5","https://e.org/6","https://e.org/7","https://e.org/8","https://e.org/9"]`,
	"a callback that is null":            `"callback_urls":["https://example.org",null]`,
	"a long callback":                    `"callback_urls":["https://example.org/` + strings.Repeat("x", 2048) + `"]`,
	"a field that is misspelt":           `"idempotency_ke":"k"`,
	"a field with a slash":               `"a/b~c":1`,
	"a deep payload":                     `"payload":` + strings.Repeat(`{"a":`, 63) + `[]` + strings.Repeat(`}`, 63),
}

// with returns a valid command with that field.
func with(t *testing.T, field string) []byte {
	t.Helper()
	var command, change map[string]json.RawMessage
	err := errors.Join(json.Unmarshal([]byte(complete(`{"tenant_id":"acme"}`)), &command), json.Unmarshal([]byte("{"+field+"}"), &change))
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(command, change)
	body, err := json.Marshal(command)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// refusal returns the problem with which lucius.submit refused a command.
func refusal(t *testing.T, err error) (found problem.Error) {
	t.Helper()
	answer, _ := errors.AsType[*pgconn.PgError](err)
	if answer == nil || answer.Code != "LC002" || answer.Hint == "" {
		t.Fatalf("answered %v", err)
	}
	var stored struct {
		Code   problem.Code
		Errors []problem.Violation
	}
	if err := json.Unmarshal([]byte(answer.Detail), &stored); err != nil {
		t.Fatal(err)
	}
	for _, violation := range stored.Errors {
		if !strings.Contains(answer.Message, strings.TrimSpace(violation.Pointer+" "+violation.Message)) {
			t.Errorf("%q does not say %+v", answer.Message, violation)
		}
	}
	return problem.Error{Code: stored.Code, Errors: stored.Errors}
}

// The transaction fails with the problem that the server would have found after its commit.
func TestSubmit_RefusesWhatCanNeverBeAJob(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, field := range wrong {
		command := with(t, field)
		_, err := commands.Decode(command, commands.Headers{}, commands.Policy{})
		want := problem.From(err)
		_, err = f.app.Exec(t.Context(), "SELECT lucius.submit($1)", string(command))
		got := refusal(t, err)
		if strings.HasPrefix(name, "a deep") { // The server names the place.
			want.Errors = []problem.Violation{{Message: "is nested deeper than 64 levels"}}
		}
		if diff := gocmp.Diff(want.Errors, got.Errors, cmpopts.SortSlices(func(a, b problem.Violation) bool { return a.Pointer < b.Pointer }),
			cmpopts.IgnoreFields(problem.Violation{}, "Code")); diff != "" || got.Code != want.Code {
			t.Errorf("%s: %s, want %s (-server +submit):\n%s", name, got.Code, want.Code, diff)
		}
	}
	for _, command := range []any{nil, `[]`, `"x"`, `null`, `7`, `true`, complete(`{"payload":"` + strings.Repeat("x", 1<<20) + `"}`)} {
		_, err := f.app.Exec(t.Context(), "SELECT lucius.submit($1)", command)
		if got := refusal(t, err); len(got.Errors) != 1 || got.Errors[0].Pointer != "" {
			t.Errorf("%.30v: %+v", command, got)
		}
	}
	_, err := f.app.Exec(t.Context(), "SELECT lucius.submit($1)", complete(`{"tenant_id":1,"output_ref":{},"x":2}`))
	if got := refusal(t, err); got.Code != problem.InvalidEnvelope || len(got.Errors) != 3 {
		t.Errorf("several faults: %+v", got)
	}
	if got := f.take(t, inbox.Outcome{JobID: "j"}); len(got) > 0 {
		t.Errorf("%d commands are in the inbox", len(got))
	}
}

// Only a server can refuse these: they are valid at least for some protocol and policy.
func TestSubmit_TakesWhatMayBeAJob(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, field := range []string{
		`"tenant_id":"` + strings.Repeat("x", 128) + `"`, `"correlation_id":null`, `"mode":"DEFAULT"`, `"mode":"BURST","doc_id":"d"`,
		`"callback_urls":["https://example.org"]`, `"callback_urls":[]`, `"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"`,
		`"payload":` + strings.Repeat(`{"a":`, 62) + `[]` + strings.Repeat(`}`, 62),
		`"payload":{"x":[` + strings.Repeat("1,", 65_530) + `1]}`, // PostgreSQL writes a blank after each comma.
		`"input_ref":{"uri":"s3://in","x":[` + strings.Repeat("1,", 4_000) + `1]}`, `"workspace_ref":{"uri":"x","a, b: c":"\" , : "}`,
	} {
		command := with(t, field)
		if _, err := commands.Decode(command, commands.Headers{}, commands.Policy{}); err != nil {
			t.Fatal(err)
		}
		if _, err := f.app.Exec(t.Context(), "SELECT lucius.submit($1)", string(command)); err != nil {
			t.Errorf("%.50s: %v", field, err)
		}
	}
}

// The limit of a payload is that of the server that started last.
func TestSubmit_KnowsTheLimitOfAPayload(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	payload := func(size int) string {
		return `{"payload":{"x":"` + strings.Repeat("x", size-8) + `"},"tenant_id":"acme"}`
	}
	for _, limit := range []int{0, 100, 200_000} { // 0 keeps the limit.
		if err := openInbox(t, pginbox.Options{URL: f.url, MaxPayload: limit}).Claim(t.Context()); err != nil {
			t.Fatal(err)
		}
		most := cmp.Or(limit, commands.DefaultMaxPayload)
		submit(t, f.app, payload(most))
		_, err := f.app.Exec(t.Context(), "SELECT lucius.submit($1)", complete(payload(most+1)))
		want := []problem.Violation{{Pointer: "/payload", Message: fmt.Sprintf("is %d bytes long; at most %d are allowed", most+1, most)}}
		if got := refusal(t, err); got.Code != problem.TooLarge || !slices.Equal(got.Errors, want) {
			t.Errorf("limit %d: %+v", limit, got)
		}
	}
}

// Transactions that notify wait for each other. So only one notifies of those that commit at the
// same time, and one that goes on for long keeps no other from it.
func TestSubmit_NotifiesUnlessAnotherCommitDoes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	listener, other := connect(t, f.url), connect(t, f.url)
	execute(t, listener, "LISTEN "+pginbox.Channel)
	heard := func(what string, want bool) {
		t.Helper()
		execute(t, f.app, "SELECT pg_notify($1, 'end')", pginbox.Channel)
		got := 0
		for {
			notification, err := listener.WaitForNotification(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if notification.Payload == "end" {
				break
			}
			got++
		}
		if (got == 1) != want || got > 1 {
			t.Errorf("%s: %d notifications", what, got)
		}
	}
	long, err := other.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	submit(t, long, `{"tenant_id":"acme"}`)
	heard("a transaction that goes on", false)
	submit(t, f.app, `{"tenant_id":"acme"}`)
	heard("a commit beside it", true)
	submit(t, long, `{"tenant_id":"acme"}`)
	if err := long.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	heard("its commit, with two commands", true)

	committing, err := other.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	submit(t, committing, `{"tenant_id":"acme"}`)
	execute(t, committing, "SET CONSTRAINTS ALL IMMEDIATE") // It takes the lock, as a commit does.
	submit(t, f.app, `{"tenant_id":"acme"}`)
	heard("a commit during another one", false)
	if err := committing.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	heard("the other one", true)

	execute(t, other, "SET lucius.notify = off")
	submit(t, other, `{"tenant_id":"acme"}`)
	heard("a session that leaves it to polls", false)
}

// codeOf returns the code of the server's answer.
func codeOf(err error) string {
	answer, _ := errors.AsType[*pgconn.PgError](err)
	if answer == nil {
		return ""
	}
	return answer.Code
}

// newRole creates a login role without rights, and returns the URL with which it connects. All
// databases of the server share roles.
func newRole(t *testing.T, f *fixture) (role, at string) {
	t.Helper()
	role = "app_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	execute(t, f.app, "CREATE ROLE "+role+" LOGIN PASSWORD 'secret'")
	t.Cleanup(func() {
		_, err := f.app.Exec(context.WithoutCancel(t.Context()), "DROP OWNED BY "+role+"; DROP ROLE "+role)
		if err != nil {
			t.Error(err)
		}
	})
	own, err := url.Parse(f.url)
	if err != nil {
		t.Fatal(err)
	}
	own.User = url.UserPassword(role, "secret")
	return role, own.String()
}

// An application may only submit commands and read results of the tenants to which its role is
// bound.
func TestRights(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	role, at := newRole(t, f)
	app := connect(t, at)
	command := complete(`{"tenant_id":"acme"}`)
	if _, err := app.Exec(t.Context(), "SELECT lucius.submit($1)", command); codeOf(err) != "42501" {
		t.Errorf("a role without rights: %v", err)
	}
	execute(t, f.app, "GRANT USAGE ON SCHEMA lucius TO "+role)
	for _, sql := range []string{"SELECT lucius.submit('{}')", "SELECT * FROM lucius.result(gen_random_uuid())"} {
		if _, err := app.Exec(t.Context(), sql); codeOf(err) != "42501" {
			t.Errorf("%s without EXECUTE: %v", sql, err)
		}
	}
	execute(t, f.app, "GRANT EXECUTE ON FUNCTION lucius.submit(jsonb), lucius.result(uuid) TO "+role)
	if _, err := app.Exec(t.Context(), "SELECT lucius.submit($1)", command); codeOf(err) != "42501" {
		t.Errorf("a role that is bound to no tenant: %v", err)
	}
	execute(t, f.app, "INSERT INTO lucius.inbox_rights VALUES ($1, '*')", role)
	id := submit(t, app, command)
	if got := f.result(t, app, id); !strings.Contains(got, `"state":"waiting"`) {
		t.Error(got)
	}
	for _, sql := range []string{
		"SELECT * FROM lucius.inbox", "SELECT * FROM lucius.rows", "SELECT * FROM lucius.jobs", "SELECT lucius.inbox_allows('a')",
		"DELETE FROM lucius.inbox", "INSERT INTO lucius.inbox_rights VALUES ('a', 'b')",
	} {
		if _, err := app.Exec(t.Context(), sql); codeOf(err) != "42501" {
			t.Errorf("%s: %v", sql, err)
		}
	}
	// A temporary table of the same name does not replace the schema's table.
	execute(t, app, "CREATE TEMP TABLE inbox_rights (role name, tenant_id text); SET search_path = pg_temp, lucius")
	execute(t, f.app, "UPDATE lucius.inbox_rights SET tenant_id = 'globex' WHERE role = $1", role)
	if _, err := app.Exec(t.Context(), "SELECT lucius.submit($1)", command); codeOf(err) != "42501" {
		t.Errorf("a command of a foreign tenant: %v", err)
	}
	if got := f.result(t, app, id); got != "nothing" {
		t.Errorf("the result of a foreign tenant: %s", got)
	}
	submit(t, app, `{"tenant_id":"globex"}`)
}

func TestClaim_MakesOneLedgerTheOwner(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	execute(t, f.app, "DELETE FROM lucius.inbox_owner")
	ledgers := []string{"luciusledger", "other"}
	var claims [2]error
	var group sync.WaitGroup
	for i, ledger := range ledgers {
		opened := openInbox(t, pginbox.Options{URL: f.url, Table: ledger})
		group.Go(func() { claims[i] = opened.Claim(t.Context()) })
	}
	group.Wait()
	loser := 0
	if claims[0] == nil {
		loser = 1
	}
	if err := claims[1-loser]; err != nil {
		t.Errorf("the first ledger: %v", err)
	}
	want := "it belongs to the ledger " + ledgers[1-loser] + ", and LUCIUS_LEDGER_TABLE is " + ledgers[loser] + ": give this one a database of its own"
	if err := claims[loser]; !errors.Is(err, pginbox.ErrUnusable) || !strings.Contains(err.Error(), want) {
		t.Errorf("the second ledger: %v, want %s", err, want)
	}
	execute(t, f.app, "DELETE FROM lucius.inbox_owner") // as the error says
	if err := openInbox(t, pginbox.Options{URL: f.url, Table: ledgers[loser]}).Claim(t.Context()); err != nil {
		t.Errorf("an inbox that was released: %v", err)
	}
}

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
	}); err == nil || problem.From(err).Code != problem.StoreUnavailable {
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
		return []inbox.Outcome{{Problem: problem.Newf(problem.UnknownRequestType, "No.")}}
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
	if _, err := away.Take(t.Context(), 1, nil, nil); problem.From(err).Code != problem.StoreUnavailable {
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
			return slices.Repeat([]inbox.Outcome{{PutBack: true, Problem: problem.Newf(problem.TenantLimit, "Later.")}}, len(taken))
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
	wait := inbox.Outcome{Problem: problem.Newf(problem.TenantLimit, "Later."), Wait: time.Hour}
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
	refused := inbox.Outcome{Problem: problem.Refused([]problem.Violation{{Pointer: "/mode", Message: "is \x00 odd"}})}
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
		RefusedAt: page[0].RefusedAt, Code: problem.InvalidEnvelope, Detail: "/mode is \uFFFD odd.",
		Errors: []problem.Violation{{Pointer: "/mode", Message: "is \uFFFD odd"}},
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
	if _, _, err := f.Forget(t.Context(), "x", time.Minute); problem.From(err).Code != problem.InvalidEnvelope {
		t.Errorf("a cursor that is none: %v", err)
	}
}

func TestInbox_ReportsAnUnavailableServer(t *testing.T) {
	t.Parallel()
	if _, err := pginbox.Open(t.Context(), pginbox.Options{URL: "postgres://u:secret@[", Table: table}); err == nil ||
		strings.Contains(err.Error(), "secret") {
		t.Errorf("an invalid URL: %v", err)
	}
	away := openInbox(t, pginbox.Options{URL: "postgres://u:p@127.0.0.1:1/x?sslmode=disable"})
	_, taking := away.Take(t.Context(), 1, nil, nil)
	_, counting := away.Survey(t.Context())
	_, _, forgetting := away.Forget(t.Context(), "", 0)
	_, _, listing := away.List(t.Context(), inbox.Refused, 1, "")
	_, _, retrying := away.Retry(t.Context(), nil)
	for i, err := range []error{away.Check(t.Context()), taking, counting, forgetting, listing, retrying} {
		if problem.From(err).Code != problem.StoreUnavailable {
			t.Errorf("%d: %v", i, err)
		}
	}
}
