//go:build integration

package pginbox_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/inbox"
	"github.com/lucius-project/lucius/pkg/inbox/pginbox"
)

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
	"tags that are an array":             `"tags":["a=b"]`,
	"too many tags":                      `"tags":{"a":"1","b":"1","c":"1","d":"1","e":"1","f":"1","g":"1","h":"1","i":"1"}`,
	"a tag in capitals":                  `"tags":{"ok":"1","Env":"prod"}`,
	"a tag with a slash":                 `"tags":{"a/b~c":"prod"}`,
	"a long key of a tag":                `"tags":{"k` + strings.Repeat("k", 32) + `":"1"}`,
	"a tag of the system":                `"tags":{"lucius.operation":"1"}`,
	"a tag that is a number":             `"tags":{"a":1}`,
	"a tag that is null":                 `"tags":{"a":null}`,
	"an empty tag":                       `"tags":{"a":""}`,
	"a long tag":                         `"tags":{"a":"` + strings.Repeat("é", 65) + `"}`,
	"a tag with a newline":               `"tags":{"a":"b\nc"}`,
	"a field that is misspelt":           `"idempotency_ke":"k"`,
	"a field with a slash":               `"a/b~c":1`,
	"a blank order key":                  `"order_key":" "`,
	"a long order key":                   `"order_key":"` + strings.Repeat("k", 257) + `"`,
	"an order key with a newline":        `"order_key":"a\nb"`,
	"an order key that is a number":      `"order_key":42`,
	"another order mode":                 `"order_mode":"lifo"`,
	"an order mode that is a list":       `"order_mode":["fifo"]`,
	"another priority":                   `"priority":"high"`,
	"a priority that is a number":        `"priority":1`,
	"a date that is a number":            `"not_before":1769565600`,
	"a date without a time":              `"not_after":"2026-01-28"`,
	"a blank date":                       `"not_before":" "`,
	"a delay that is a string":           `"delay_seconds":"60"`,
	"a negative delay":                   `"delay_seconds":-1`,
	"half a second":                      `"delay_seconds":0.5`,
	"a delay of years":                   `"delay_seconds":31622401`,
	"a delay of ages":                    `"delay_seconds":1000000000000`,
	"a date and a delay":                 `"not_before":"2026-01-28T02:00:00Z","delay_seconds":60`,
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
func refusal(t *testing.T, err error) (found apierror.Error) {
	t.Helper()
	answer, _ := errors.AsType[*pgconn.PgError](err)
	if answer == nil || answer.Code != "LC002" || answer.Hint == "" {
		t.Fatalf("answered %v", err)
	}
	var stored struct {
		Code   apierror.Code
		Errors []apierror.Violation
	}
	if err := json.Unmarshal([]byte(answer.Detail), &stored); err != nil {
		t.Fatal(err)
	}
	for _, violation := range stored.Errors {
		if !strings.Contains(answer.Message, strings.TrimSpace(violation.Pointer+" "+violation.Message)) {
			t.Errorf("%q does not say %+v", answer.Message, violation)
		}
	}
	return apierror.Error{Code: stored.Code, Errors: stored.Errors}
}

// The transaction fails with the problem that the server would have found after its commit.
func TestSubmit_RefusesWhatCanNeverBeAJob(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, field := range wrong {
		command := with(t, field)
		_, err := commands.Decode(command, commands.Headers{}, commands.Policy{})
		want := apierror.From(err)
		_, err = f.app.Exec(t.Context(), "SELECT lucius.submit($1)", string(command))
		got := refusal(t, err)
		if strings.HasPrefix(name, "a deep") { // The server names the place.
			want.Errors = []apierror.Violation{{Message: "is nested deeper than 64 levels"}}
		}
		if diff := gocmp.Diff(want.Errors, got.Errors, cmpopts.SortSlices(func(a, b apierror.Violation) bool { return a.Pointer < b.Pointer }),
			cmpopts.IgnoreFields(apierror.Violation{}, "Code")); diff != "" || got.Code != want.Code {
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
	if got := refusal(t, err); got.Code != apierror.InvalidEnvelope || len(got.Errors) != 3 {
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
		`"tenant_id":"` + strings.Repeat("x", 128) + `"`, `"correlation_id":null`, `"mode":"DEFAULT"`, `"mode":"BURST","doc_id":"d"`, `"tags":{}`, `"tags":{"a":" b=\u2028","z-_.9":"` + strings.Repeat("é", 64) + `"}`, `"tags":null`,
		`"order_key":"` + strings.Repeat("k", 256) + `"`, `"order_key":"k","order_mode":"newest"`, `"order_key":null,"order_mode":null`,
		`"priority":"bulk"`, `"priority":"normal"`, `"priority":null`,
		`"not_before":"2026-01-28T02:00:00+01:00"`, `"not_after":"` + time.Now().Add(time.Hour).Format(time.RFC3339Nano) + `"`,
		`"not_before":null,"delay_seconds":0,"not_after":null`, `"delay_seconds":31622400`,
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
		want := []apierror.Violation{{Pointer: "/payload", Message: fmt.Sprintf("is %d bytes long; at most %d are allowed", most+1, most)}}
		if got := refusal(t, err); got.Code != apierror.TooLarge || !slices.Equal(got.Errors, want) {
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
	heard("a commit during the other one", true)
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
