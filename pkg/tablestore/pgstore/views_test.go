//go:build integration

package pgstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lucius-project/lucius/internal/postgres"
	"github.com/lucius-project/lucius/internal/postgres/postgrestest"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// manyJobs copies the rows of a job, one job for each ten minutes before it.
const manyJobs = `INSERT INTO lucius.rows
	SELECT r.tbl, lucius.job_id_at(lucius.at(j.props->'created_at') - n * interval '10 minutes') || substr(j.part, 14), r.row, r.etag, r.props
	FROM generate_series(1, 5000) n, lucius.rows j JOIN lucius.rows r ON r.tbl = j.tbl AND r.part = j.part
	WHERE j.row = 'JOB'`

// TestViews_DocumentedQueriesUseAnIndex runs the queries of docs/run/postgres.md on many jobs, as the
// role for reports. Those with a condition or a limit read few blocks.
func TestViews_DocumentedQueriesUseAnIndex(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]*postgres.Server{"newest": postgrestest.Server, "oldest": postgrestest.StartOldest(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := postgrestest.DatabaseOn(t, server)
			ledger, _ := replica(t, database)
			id := ledger.Submit(ledgertest.Command("t", "k"))
			execute(t, database, manyJobs)
			execute(t, database, "ANALYZE lucius.rows")
			role, at := newRole(t, database)
			connection, err := pgx.Connect(t.Context(), at)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = connection.Close(context.WithoutCancel(t.Context())) }() // Nothing is lost with it.
			indexed, all := 0, 0
			for _, statement := range documented(t, "Read it with SQL", role) {
				if strings.HasPrefix(statement, "GRANT ") {
					execute(t, database, statement)
				}
			}
			for _, statement := range documented(t, "Read it with SQL", role) {
				_, query, found := strings.Cut(statement, "SELECT ")
				if !found || strings.HasPrefix(statement, "GRANT ") {
					continue
				}
				blocks := blocksRead(t, connection, "SELECT "+strings.ReplaceAll(query, "…", id))
				switch few := strings.Contains(query, " WHERE ") || strings.Contains(query, " LIMIT "); {
				case few && blocks <= 100:
					indexed++
				case few:
					t.Errorf("%s\nreads %d blocks", statement, blocks)
				case blocks > 500:
					all++
				}
			}
			if indexed != 6 || all != 1 {
				t.Errorf("%d queries use an index, want 6, and %d read all, want 1", indexed, all)
			}
			_, err = connection.Exec(t.Context(), "SELECT FROM lucius.rows")
			if refused, ok := errors.AsType[*pgconn.PgError](err); !ok || refused.Code != "42501" {
				t.Errorf("the role for reports reads the table: %v", err)
			}
		})
	}
}

// blocksRead returns how many blocks the query reads.
func blocksRead(t *testing.T, connection *pgx.Conn, query string) int {
	t.Helper()
	var text []byte
	if err := connection.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+query).Scan(&text); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal(text, &plans); err != nil {
		t.Fatal(err)
	}
	return plans[0].Plan.Hit + plans[0].Plan.Read
}

// TestJobIDAt holds the bound against ids of a known time, on both sides.
func TestJobIDAt(t *testing.T) {
	t.Parallel()
	database := postgrestest.Database(t)
	before := time.Now().Truncate(time.Millisecond)
	id, err := uuid.NewV7()
	if err != nil {
		t.Fatal(err)
	}
	after := time.Now().Truncate(time.Millisecond).Add(time.Millisecond)
	for _, test := range []struct {
		at    time.Time
		bound bool
	}{{before, true}, {after, false}, {time.UnixMilli(1), true}} {
		var bound string
		query(t, database, "SELECT lucius.job_id_at('"+test.at.UTC().Format(time.RFC3339Nano)+"')", &bound)
		if got := id.String() >= bound; got != test.bound {
			t.Errorf("%s is not less than %s, of %s: %t", id, bound, test.at, got)
		}
	}
}

// TestViews_ShowTheOrderOfAJob reads its order key and mode, and the id of its line from its place.
func TestViews_ShowTheOrderOfAJob(t *testing.T) {
	t.Parallel()
	database := postgrestest.Database(t)
	l, _ := replica(t, database)
	command := ledgertest.Command("t", "k")
	command.Job.Order = statemachine.Order{Key: "customer:42", Mode: statemachine.OrderNewest}
	ordered, other := l.Submit(command), l.Submit(ledgertest.Command("t", "other"))
	execute(t, database, `UPDATE lucius.rows SET props = jsonb_set(props, '{place}', to_jsonb('{"line":"ab12","epoch":"e","seq":7}'::text)) `+
		`WHERE row = 'JOB' AND part = '`+ordered+`'`)
	for id, want := range map[string]string{ordered: "customer:42 newest ab12", other: ""} {
		var got string
		if query(t, database, "SELECT concat_ws(' ', order_key, order_mode, line_id) FROM lucius.jobs WHERE job_id = '"+id+"'", &got); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestViews_ShowThePriorityOfAJob reads the class of a job that has one, and of one that does not.
func TestViews_ShowThePriorityOfAJob(t *testing.T) {
	t.Parallel()
	database := postgrestest.Database(t)
	l, _ := replica(t, database)
	bulk := ledgertest.Command("t", "k")
	bulk.Job.Class = statemachine.ClassBulk
	for id, want := range map[string]string{l.Submit(bulk): "bulk", l.Submit(ledgertest.Command("t", "other")): "normal"} {
		var got string
		if query(t, database, "SELECT priority FROM lucius.jobs WHERE job_id = '"+id+"'", &got); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestViews_ShowWhatARerunCorrects reads the tags, the corrections and the outcomes of steps with SQL.
func TestViews_ShowWhatARerunCorrects(t *testing.T) {
	t.Parallel()
	database := postgrestest.Database(t)
	l, _ := replica(t, database)
	command := ledgertest.Command("t", "k", ledgertest.Step("one", "OCR", "ocr"), ledgertest.Step("two", "EMBED", "embed"))
	command.Job.Tags = "customer=42\nenv=prod"
	old := l.Submit(command)
	l.Apply(old, statemachine.Cancel{})
	rerun, err := l.Rerun(t.Context(), ledger.Rerun{
		JobID: old, From: ledger.FromFailed, Digest: "d", Resolved: map[string]json.RawMessage{"one": json.RawMessage(`{"uri":"s3://by/hand"}`)},
		Edit: func(_ *statemachine.Aggregate, command *ledger.Command) error {
			command.Job.RerunEdits = []string{"/payload/a", "/payload/b"}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for question, want := range map[string]string{
		"SELECT tags::text FROM lucius.jobs WHERE job_id = '" + rerun.Job.ID + "'":                                                          "{customer=42,env=prod}",
		"SELECT rerun_edits::text FROM lucius.jobs WHERE job_id = '" + rerun.Job.ID + "'":                                                   "{/payload/a,/payload/b}",
		"SELECT string_agg(coalesce(outcome, 'executed'), ' ' ORDER BY step_index) FROM lucius.steps WHERE job_id = '" + rerun.Job.ID + "'": "resolved executed",
	} {
		var got string
		if query(t, database, question, &got); got != want {
			t.Errorf("%s: %s, want %s", question, got, want)
		}
	}
}
