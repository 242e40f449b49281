//go:build integration && !race

package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/waittest"
)

// TestCrash_CommandsInTransactions has the application of examples/orders submit commands in
// the transactions of its orders, and roll half of them back. The application and two replicas
// are killed. Each committed order has its own job, and there is no other job.
func TestCrash_CommandsInTransactions(t *testing.T) {
	t.Parallel()
	server := onPostgres(t)
	connection, err := pgx.Connect(t.Context(), server.URL.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close(context.WithoutCancel(t.Context())) }() // Nothing is lost with it.
	orders := filepath.Join(t.TempDir(), "orders")
	if out, err := exec.Command("go", "build", "-o", orders, "../../examples/orders").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	flags := []string{"--storage-backend", config.BackendPostgres, "--postgres-url", server.URL.String()}
	entry := newSite(t)
	replicas := []*process{entry.start(flags...), entry.start(flags...)}
	start := func() *exec.Cmd {
		application := exec.Command(orders, "sell", server.URL.String())
		application.Stderr = os.Stderr
		if err := application.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = application.Process.Kill() }) // It may have ended.
		return application
	}
	submitted := func() (count int) {
		if err := connection.QueryRow(t.Context(), "SELECT count(*) FROM lucius.inbox").Scan(&count); err != nil {
			t.Fatal(err)
		}
		return count
	}
	application := start()
	for round := range *crashRounds {
		enough := submitted() + 20
		waittest.Until(t, "twenty more orders", func() bool { return submitted() >= enough })
		if round%3 == 0 {
			kill(t, application)
			application = start()
			continue
		}
		victim := rand.IntN(len(replicas))
		replicas[victim].kill()
		replicas[victim] = entry.start(flags...)
	}
	kill(t, application)
	report, err := exec.CommandContext(t.Context(), orders, "report", server.URL.String()).CombinedOutput()
	if err != nil {
		t.Error(err)
	}
	for _, replica := range replicas {
		replica.terminate()
	}
	t.Logf("%s", report)
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
