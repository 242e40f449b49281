package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/config"
	lucius "github.com/lucius-project/lucius/sdk/go"
)

// helpDatabase is the database of a helper process that is an application.
const helpDatabase = "LUCIUS_TEST_HELP_DATABASE"

// helpSell is an application that takes orders until it is killed, and has each carried out
// in the transaction that stores it. It rolls half of them back.
func helpSell() {
	ctx := context.Background()
	connection, err := pgx.Connect(ctx, os.Getenv(helpDatabase))
	if err != nil {
		panic(err)
	}
	for n := 0; ; n++ {
		if err := sell(ctx, connection, n%2 == 0); err != nil {
			panic(err)
		}
	}
}

// sell stores an order with the id of its command, and commits it or not.
func sell(ctx context.Context, connection *pgx.Conn, commit bool) error {
	tx, err := connection.Begin(ctx)
	if err != nil {
		return err
	}
	id, err := lucius.SubmitTx(ctx, tx.QueryRow, lucius.Command{
		TenantID: "shop", RequestType: "doc.ingest", SchemaVersion: "1", Payload: map[string]string{"language": "en"},
		InputRef: lucius.URI("s3://orders/in"), OutputRef: lucius.URI("s3://orders/out"),
	})
	if err == nil {
		_, err = tx.Exec(ctx, "INSERT INTO orders (command_id) VALUES ($1)", id)
	}
	if err != nil || !commit {
		return errors.Join(err, tx.Rollback(ctx))
	}
	return tx.Commit(ctx)
}

// TestCrash_CommandsInTransactions has an application submit commands in the transactions of
// its orders, and roll half of them back. The application and the replicas are killed. Each
// committed order has its own job, and there is no other job.
func TestCrash_CommandsInTransactions(t *testing.T) {
	t.Parallel()
	server := onPostgres(t)
	connection, err := pgx.Connect(t.Context(), server.URL.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close(context.WithoutCancel(t.Context())) }() // Nothing is lost with it.
	if _, err := connection.Exec(t.Context(), "CREATE TABLE orders (command_id uuid PRIMARY KEY); "+
		"INSERT INTO lucius.inbox_rights VALUES (session_user, 'shop')"); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--storage-backend", config.BackendPostgres, "--postgres-url", server.URL.String()}
	entry := newSite(t)
	replicas := []*process{entry.start(flags...), entry.start(flags...)}
	application := startApplication(t, server.URL)
	for round := range *crashRounds {
		for until := countOf(t, connection, "orders") + 20; countOf(t, connection, "orders") < until; {
			time.Sleep(10 * time.Millisecond)
		}
		if round%3 == 0 {
			kill(t, application)
			application = startApplication(t, server.URL)
			continue
		}
		victim := rand.IntN(len(replicas))
		replicas[victim].kill()
		replicas[victim] = entry.start(flags...)
	}
	kill(t, application)
	for countOf(t, connection, "lucius.inbox WHERE state = 'waiting'") > 0 {
		time.Sleep(50 * time.Millisecond)
	}
	rows, err := connection.Query(t.Context(), "SELECT r.job_id FROM orders o CROSS JOIN LATERAL lucius.result(o.command_id) r "+
		"WHERE r.state = 'accepted' ORDER BY 1")
	if err != nil {
		t.Fatal(err)
	}
	ordered, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	jobs := listJobs(t, entry.client, api.ListJobsParams{})
	slices.Sort(jobs)
	if orders := countOf(t, connection, "orders"); len(ordered) != orders || !slices.Equal(ordered, jobs) {
		t.Errorf("%d orders have %d jobs, and there are %d jobs", orders, len(ordered), len(jobs))
	}
	for _, replica := range replicas {
		replica.terminate()
	}
	t.Logf("%d orders", len(ordered))
}

// countOf counts the rows of a table, or of a part of it.
func countOf(t *testing.T, connection *pgx.Conn, from string) (rows int) {
	t.Helper()
	if err := connection.QueryRow(t.Context(), "SELECT count(*) FROM "+from).Scan(&rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

// startApplication starts the application of [helpSell].
func startApplication(t *testing.T, database *url.URL) *exec.Cmd {
	t.Helper()
	application := exec.Command(os.Args[0])
	application.Env = append(os.Environ(), helpEnv+"=shop", helpDatabase+"="+database.String())
	application.Stderr = os.Stderr
	if err := application.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = application.Process.Kill() }) // It may have ended.
	return application
}

// kill kills a process that must still run.
func kill(t *testing.T, process *exec.Cmd) {
	t.Helper()
	if err := process.Process.Kill(); err != nil {
		t.Error(err)
	}
	exit, killed := errors.AsType[*exec.ExitError](process.Wait())
	if !killed || exit.Exited() {
		t.Errorf("the application ended by itself: %v", exit)
	}
}
