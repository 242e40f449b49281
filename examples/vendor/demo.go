package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lucius-project/lucius/internal/postgres"
	lucius "github.com/lucius-project/lucius/sdk/go"
)

// The ways in which the jobs are done.
const (
	limited   = "limit"     // the service has a limit, and the workers report 429s
	reporting = "throttled" // the workers report 429s: they close the service
	neither   = "neither"   // a 429 is an error like any other, which comes with a delay
)

var ways = []string{limited, reporting, neither}

// demo does the jobs on servers of Lucius with one PostgreSQL.
type demo struct {
	lucius      string // the program
	postgres    string // the URL of a PostgreSQL on this machine; empty starts one
	jobs, quota int
	window      time.Duration
	call        time.Duration // how long the vendor takes for a call
	servers     int
	patience    time.Duration // how long the jobs may take
	ways        []string
	out         io.Writer
}

// result is what became of the jobs.
type result struct {
	way             string
	succeeded, lost int         // jobs
	starts          []time.Time // of attempts, as the ledger has them, ascending
	refused         int         // calls
	taken           []time.Time // the other calls, ascending
	took            time.Duration
}

// run does the jobs in each way, each time in a new database.
func (d *demo) run(ctx context.Context) (results []result, err error) {
	if d.jobs <= d.quota {
		return nil, fmt.Errorf("%d jobs do not exceed the quota of %d", d.jobs, d.quota)
	}
	for _, way := range d.ways {
		if !slices.Contains(ways, way) {
			return nil, fmt.Errorf("unknown run %q: the runs are %s", way, strings.Join(ways, ", "))
		}
	}
	dir, err := os.MkdirTemp("", "vendor-") // Another user than root has to enter it.
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	protocols := filepath.Join(dir, "protocols")
	if err := os.Mkdir(protocols, 0o750); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(protocols, "vendor.yaml"), []byte(protocol), 0o600); err != nil {
		return nil, err
	}
	if d.postgres == "" {
		fmt.Fprintln(d.out, "starting a PostgreSQL")
	}
	on, err := postgres.Open(ctx, dir, d.postgres)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, on.Stop()) }()
	for _, way := range d.ways {
		fmt.Fprintf(d.out, "%s: %d jobs on %d servers\n", way, d.jobs, d.servers)
		done, err := d.do(ctx, way, on, protocols)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", way, err)
		}
		results = append(results, *done)
	}
	return results, nil
}

// protocol has one step, the call of the vendor, and the default retries.
const protocol = `protocol_id: vendor
request_types: [vendor.call]
steps:
  - {step_id: call, step_type: CALL, service: vendor, input: job}
`

// do does the jobs in one way.
func (d *demo) do(whole context.Context, way string, on *postgres.Server, protocols string) (done *result, err error) {
	ctx, cancel := context.WithTimeout(whole, d.patience)
	defer cancel()
	database, drop, err := on.CreateDatabase(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, drop(context.WithoutCancel(ctx))) }()
	s := &site{demo: d, database: database, protocols: protocols}
	defer s.kill()
	if err := s.serve(ctx); err != nil {
		return nil, err
	}
	if way == limited {
		starts := fmt.Sprintf("%d/%s", d.quota, d.window)
		limit := s.command(ctx, "limit", "set", "service:vendor", "--starts", starts, "--reason", "the vendor's quota")
		limit.Env = append(limit.Env, "LUCIUS_URL="+s.urls[0])
		if err := limit.Run(); err != nil {
			return nil, fmt.Errorf("lucius limit set: %w", err)
		}
	}
	if err := s.submit(ctx); err != nil {
		return nil, err
	}
	fake := &vendor{quota: d.quota, window: d.window, call: d.call}
	url, stop, err := fake.serve(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	transport := &http.Transport{MaxIdleConnsPerHost: d.servers * parallel}
	defer transport.CloseIdleConnections()
	c := &caller{url: url, http: &http.Client{Transport: transport}, reports: way != neither}
	done = &result{way: way}
	begun := time.Now()
	if err := s.work(ctx, c, done); err != nil {
		return nil, err
	}
	done.took = time.Since(begun)
	done.refused, done.taken = fake.count()
	return done, nil
}

// site is the servers on one database.
type site struct {
	*demo

	database, protocols string
	processes           []*exec.Cmd
	urls                []string
}

// command returns a command on the database.
func (s *site) command(ctx context.Context, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, s.lucius, args...) //nolint:gosec // the program of the demo
	command.Env = append(os.Environ(), "LUCIUS_STORAGE_BACKEND=postgres", "LUCIUS_POSTGRES_URL="+s.database)
	command.Stderr = os.Stderr
	return command
}

// serve starts the servers.
func (s *site) serve(ctx context.Context) error {
	if err := s.command(ctx, "postgres", "migrate").Run(); err != nil {
		return fmt.Errorf("lucius postgres migrate: %w", err)
	}
	for range s.servers {
		server := s.command(ctx, "serve", "--listen-addr", "127.0.0.1:0", "--protocols-dir", s.protocols, "--log-level", "error")
		out, err := server.StdoutPipe()
		if err == nil {
			err = server.Start()
		}
		if err != nil {
			return fmt.Errorf("start a server: %w", err)
		}
		s.processes = append(s.processes, server)
		line, err := bufio.NewReader(out).ReadString('\n')
		url, ok := strings.CutPrefix(strings.TrimSpace(line), "lucius serves ")
		if err != nil || !ok {
			return fmt.Errorf("lucius serve: %q, %w", line, err)
		}
		s.urls = append(s.urls, url)
	}
	return nil
}

// kill kills the servers.
func (s *site) kill() {
	for _, server := range s.processes {
		_ = server.Process.Kill() // It may have ended.
		_ = server.Wait()         // It was killed.
	}
}

// client returns a client of the nth server.
func (s *site) client(n int) (*lucius.Client, error) {
	return lucius.NewClient(lucius.ClientConfig{URL: s.urls[n%len(s.urls)]})
}

// submit submits the jobs, and returns once all are accepted.
func (s *site) submit(ctx context.Context) error {
	client, err := s.client(0)
	if err != nil {
		return err
	}
	defer client.Close()
	commands := make([]lucius.Command, s.jobs)
	for i := range commands {
		commands[i] = lucius.Command{
			TenantID: "tenant_" + strconv.Itoa(i%4), RequestType: "vendor.call", SchemaVersion: "1",
			InputRef: lucius.URI("s3://documents/" + strconv.Itoa(i)), OutputRef: lucius.URI("s3://answers/" + strconv.Itoa(i)),
			IdempotencyKey: "call-" + strconv.Itoa(i),
		}
	}
	results, err := client.SubmitBatch(ctx, commands)
	if err != nil {
		return err
	}
	for i := range results {
		if results[i].Status != http.StatusAccepted {
			return fmt.Errorf("command %d was answered %d: %+v", i, results[i].Status, results[i].Error)
		}
	}
	return nil
}

// parallel is how many calls of a worker are under way at once at most.
const parallel = 32

// work runs a worker of each server until all jobs have ended, and reads what became of them.
func (s *site) work(whole context.Context, c *caller, done *result) error {
	ctx, stop := context.WithCancel(whole)
	var workers sync.WaitGroup
	failed := make(chan error, s.servers)
	defer workers.Wait()
	defer stop()
	for n := range s.servers {
		client, err := s.client(n)
		if err != nil {
			return err
		}
		worker := lucius.NewWorker(lucius.WorkerConfig{
			Client: client, Service: "vendor", Parallel: parallel, Log: slog.New(slog.DiscardHandler),
		})
		worker.Handle("CALL", c.call)
		workers.Go(func() {
			defer client.Close()
			failed <- worker.Run(ctx)
		})
	}
	connection, err := pgx.Connect(ctx, s.database)
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close(context.WithoutCancel(ctx)) }() // Nothing is lost with it.
	for {
		err := connection.QueryRow(ctx, `SELECT count(*) FILTER (WHERE state = 'SUCCEEDED'), count(*) FILTER (WHERE state = 'FAILED_FINAL')
			FROM lucius.jobs`).Scan(&done.succeeded, &done.lost)
		switch {
		case err != nil:
			return fmt.Errorf("%d of %d jobs had ended: %w", done.succeeded+done.lost, s.jobs, err)
		case done.succeeded+done.lost == s.jobs:
			done.starts, err = starts(ctx, connection)
			return err
		}
		select {
		case err := <-failed:
			return fmt.Errorf("a worker ended: %w", err)
		case <-ctx.Done():
		case <-time.After(look):
		}
	}
}

// look is the pause between two looks at the jobs.
const look = time.Second

// starts returns when the attempts were started: a worker claims and starts in one change.
func starts(ctx context.Context, connection *pgx.Conn) ([]time.Time, error) {
	rows, err := connection.Query(ctx, "SELECT at FROM lucius.events WHERE event = 'ack' ORDER BY at")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[time.Time])
}

// caller calls the vendor.
type caller struct {
	url     string
	http    *http.Client
	reports bool // whether a 429 is reported as such
}

// call does one step.
func (c *caller) call(ctx context.Context, task *lucius.Task) (any, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(io.Discard, response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusTooManyRequests {
		return lucius.URI(task.OutputRef.URI()), nil
	}
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	after := time.Duration(seconds) * time.Second
	switch {
	case err != nil:
		return nil, err
	case c.reports:
		return nil, lucius.Throttled(after, "RATE_LIMITED", "the vendor's quota is used for another %s", after)
	}
	return nil, lucius.RetryAfter(after, "RATE_LIMITED", "the vendor's quota is used for another %s", after)
}

// The promise of a limit.
const (
	mostRefused = 0.01 // of all calls
	leastPace   = 0.88 // of the quota
)

// report prints the table. The error says how the run with a limit broke its promise.
func (d *demo) report(results []result) error {
	fmt.Fprintf(d.out, "\n%d jobs, the vendor takes %d calls in %s\n\n", d.jobs, d.quota, d.window)
	table := tabwriter.NewWriter(d.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\tlimit\tthe 429s are\tjobs failed\tcalls\trefused\tmost starts in a window\tof the quota\ttook\t")
	var broken error
	for i := range results {
		r := &results[i]
		calls := len(r.taken) + r.refused
		refused, of := float64(r.refused)/float64(calls), pace(r.taken, d.quota, d.window)/float64(d.quota)
		most := fullest(r.starts, d.window)
		limit, are := "none", "reported"
		if r.way == limited {
			limit = fmt.Sprintf("%d/%s", d.quota, d.window)
		}
		if r.way == neither {
			are = "errors"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%d (%.1f %%)\t%d\t%.0f %%\t%s\t\n",
			r.way, limit, are, r.lost, calls, r.refused, 100*refused, most, 100*of, r.took.Round(time.Second))
		if r.way == limited {
			broken = errors.Join(d.kept(r), check(refused < mostRefused, "the vendor refused %.2f %% of the calls", 100*refused),
				check(of >= leastPace, "only %.1f %% of the quota was used", 100*of))
		}
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return broken
}

// kept returns an error if a job failed under the limit, or more attempts started in a window
// than the quota: that holds on any machine.
func (d *demo) kept(r *result) error {
	most := fullest(r.starts, d.window)
	return errors.Join(check(r.lost == 0, "%d jobs failed", r.lost),
		check(len(r.starts) >= d.jobs, "%d starts of %d jobs are known", len(r.starts), d.jobs),
		check(most <= d.quota, "%d attempts started in a window of %s", most, d.window))
}

// check returns an error of that text unless the condition holds.
func check(holds bool, format string, args ...any) error {
	if holds {
		return nil
	}
	return fmt.Errorf(format, args...)
}
