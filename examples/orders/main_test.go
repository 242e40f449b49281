//go:build integration && !race

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/lucius-project/lucius/internal/postgres/postgrestest"
	lucius "github.com/lucius-project/lucius/sdk/go"
)

// TestMain turns this binary into the application if its arguments say so.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "sell" {
		main()
		return
	}
	os.Exit(postgrestest.Main(m))
}

// TestDemo runs the whole demo, with a few kills.
func TestDemo(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "lucius")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../../cmd/lucius")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var out strings.Builder
	d := demo{self: os.Args[0], lucius: program, protocols: "../../protocols", postgres: postgrestest.Server.URL.String(), kills: 3, out: &out}
	if err := d.run(t.Context()); err != nil {
		t.Errorf("%v\n%s", err, &out)
	}
	for _, want := range []string{"killed the ", " orders committed\n", " rolled back", " jobs\n", "Each order has its own job"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, &out)
		}
	}
}

// An order whose command can never be a job fails in its transaction, with an error that names
// the fields.
func TestSubmit_RefusesWhatCanNeverBeAJob(t *testing.T) {
	t.Parallel()
	connection, err := pgx.Connect(t.Context(), postgrestest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close(t.Context()) }() // Nothing is lost with it.
	tx, err := connection.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = lucius.SubmitTx(t.Context(), tx.QueryRow, lucius.Command{TenantID: tenant, SchemaVersion: "1"})
	refused, ok := errors.AsType[*lucius.Error](err)
	if !ok || refused.Code != lucius.ProblemCodeInvalidEnvelope || refused.Status != 400 || len(refused.Errors) != 3 ||
		refused.Errors[0].Pointer != "/request_type" {
		t.Errorf("answered %v", err)
	}
	if err := tx.Commit(t.Context()); !errors.Is(err, pgx.ErrTxCommitRollback) {
		t.Errorf("the transaction ended with %v", err)
	}
}

// TestReport_FindsWhatDoesNotMatch has an order without a job, a job without an order, and two
// orders with the same job.
func TestReport_FindsWhatDoesNotMatch(t *testing.T) {
	t.Parallel()
	const order = "INSERT INTO orders (command_id) VALUES ('5b3a1d0e-8c7f-4c1b-9a51-0d6f2c3b4a59');"
	const job = `INSERT INTO lucius.rows VALUES ('luciusledger', 'j', 'JOB', '1', '{"job_id":"j","state":"QUEUED"}');`
	accepted := func(id string) string {
		return `INSERT INTO lucius.inbox (id, tenant_id, submitted_by, submitted_at, due_at, state, job_id, decided_at)
			VALUES ('` + id + `', 'shop', 'shop', now(), now(), 'accepted', 'j', now());`
	}
	const again = "INSERT INTO orders (command_id) VALUES ('6b3a1d0e-8c7f-4c1b-9a51-0d6f2c3b4a59');"
	first, second := accepted("5b3a1d0e-8c7f-4c1b-9a51-0d6f2c3b4a59"), accepted("6b3a1d0e-8c7f-4c1b-9a51-0d6f2c3b4a59")
	for name, c := range map[string]struct{ sql, says string }{
		"a match":                  {order + first + job, ""},
		"an order without a job":   {order, "1 orders without a job or jobs without an order"},
		"a job without an order":   {job, "1 orders without a job or jobs without an order"},
		"two orders with one job":  {order + first + again + second + job, "1 orders that share a job"},
		"a job that is not theirs": {order + job, "2 orders without a job or jobs without an order"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := postgrestest.Database(t)
			connection, err := pgx.Connect(t.Context(), at)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = connection.Close(t.Context()) }() // Nothing is lost with it.
			if _, err := connection.Exec(t.Context(), tables+";INSERT INTO lucius.inbox_owner (ledger) VALUES ('luciusledger');"+c.sql); err != nil {
				t.Fatal(err)
			}
			err = report(t.Context(), at, t.Output())
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
}
