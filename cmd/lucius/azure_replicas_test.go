//go:build integration

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/azurite"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/projections/projectionstest"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
	lucius "github.com/lucius-project/lucius/sdk/go"
)

// onAzure starts a replica on the account with that layout.
func onAzure(t *testing.T, account *azurite.Server, layout string) *testServer {
	t.Helper()
	return serveOn(t, t.TempDir(), append([]string{
		"--storage-backend", layout, "--table-connection", account.ConnectionString(),
		"--sweep-interval", "1s", "--outbox-retry-interval", "1s",
	}, longTimeouts...)...)
}

// Replicas on one storage account share all work, in either layout: workers of one replica
// do the work that another accepts, and if one replica dies, the other continues.
func TestServe_ReplicasOnOneStorageAccount(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{config.BackendLedger, config.BackendTable} {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			account, err := azurite.Start(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(account.Stop)
			replica := doAJob(t, account, layout)
			if layout == config.BackendTable {
				assertShown(t, account)
				assertFound(t, account)
			}
			assertIDsAreSpread(t, replica)
			assertLayoutStays(t, account, layout)
		})
	}
}

// API, relay and sweeper may be separate processes: one commits entries to the schedule, and
// the others find them there, even after the bus was changed.
func TestServe_RolesApart(t *testing.T) {
	t.Parallel()
	account, err := azurite.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(account.Stop)
	serve := func(flags ...string) (front *testServer, stop func()) {
		var all []*testServer
		for _, role := range []string{config.RoleAPI, config.RoleRelay, config.RoleSweeper} {
			all = append(all, serveOn(t, t.TempDir(), append([]string{
				"--storage-backend", config.BackendLedger, "--table-connection", account.ConnectionString(),
				"--roles", role, "--sweep-interval", "1s", "--outbox-retry-interval", "1s",
			}, flags...)...))
		}
		return all[0], func() {
			for _, s := range all[1:] {
				assertProbesOnly(t, s)
			}
			for _, s := range all {
				if err := s.stop(); err != nil {
					t.Error(err)
				}
			}
		}
	}
	front, stop := serve("--ack-timeout", "300ms", "--lease-duration", "2h")
	jobID := front.submit(t)
	front.claim(t, "claimed and forgotten", false) // The sweeper takes it back.
	finish(t, front, jobID)
	job := front.wait(t, jobID)
	if job.State != api.JobStateSucceeded || job.AttemptsTotal != 4 {
		t.Errorf("the job is %s after %d attempts", job.State, job.AttemptsTotal)
	}
	stop()

	namespace := newNamespace(t)
	front, stop = serve(append(onBus(namespace), longTimeouts...)...)
	workOnBus(t, namespace, func(context.Context, *lucius.Task) (any, error) { return nil, nil })
	job = front.wait(t, front.submitAs(t, "on the bus")) // The relay publishes each step.
	if job.State != api.JobStateSucceeded || job.AttemptsTotal != 3 {
		t.Errorf("on the bus the job is %s after %d attempts", job.State, job.AttemptsTotal)
	}
	stop()
}

// assertProbesOnly checks that the process answers probes, and serves no API.
func assertProbesOnly(t *testing.T, s *testServer) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for path, want := range map[string]int{
		"/healthz": http.StatusOK, "/readyz": http.StatusOK, "/metrics": http.StatusOK,
		"/v1/jobs": http.StatusNotFound, "/v1/protocols": http.StatusNotFound, "/docs": http.StatusNotFound,
	} {
		response, err := client.Get(s.url + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, response.StatusCode, want)
		}
	}
	response, err := client.Post(s.url+"/v1/commands", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusNotFound || !strings.Contains(string(body), "does not serve the API") {
		t.Errorf("a command is answered %d %s, %v", response.StatusCode, body, err)
	}
}

// doAJob makes two replicas do a job together, and returns the remaining replica.
func doAJob(t *testing.T, account *azurite.Server, layout string) *testServer {
	t.Helper()
	one, two := onAzure(t, account, layout), onAzure(t, account, layout)

	jobID := one.submit(t)
	if again := two.submit(t); again != jobID {
		t.Errorf("the same command on the other replica is job %s, not %s", again, jobID)
	}
	two.complete(t, two.claim(t, "c1", true)) // The relay of two dispatches the next step.
	one.complete(t, one.claim(t, "c2", true))
	if err := one.stop(); err != nil {
		t.Fatal(err)
	}
	two.complete(t, two.claim(t, "c3", true))

	job, err := two.client.GetJobWithResponse(t.Context(), jobID, nil)
	if err != nil || job.JSON200 == nil || job.JSON200.State != api.JobStateSucceeded {
		t.Fatalf("%v, %s", err, bodyOf(job))
	}
	succeeded := api.JobStateSucceeded
	listed, err := two.client.ListJobsWithResponse(t.Context(), &api.ListJobsParams{State: &succeeded})
	if err != nil || listed.JSON200 == nil || len(listed.JSON200.Jobs) != 1 || listed.JSON200.Jobs[0].JobID != jobID {
		t.Errorf("listed: %v, %s", err, bodyOf(listed))
	}
	// The account is audited while a replica uses it.
	out, code := auditIn(t, map[string]string{
		"LUCIUS_STORAGE_BACKEND": layout, "LUCIUS_TABLE_CONNECTION": account.ConnectionString(),
	})
	if code != 0 || !strings.Contains(out, "1 jobs, 1 SUCCEEDED") {
		t.Errorf("the audit ends with %d: %s", code, out)
	}
	assertAddsUp(t, two)
	return two
}

// assertAddsUp checks that the replica's counts include those of the stopped replica that
// accepted the job. A walk of the live jobs corrects them, of which there is one a minute.
func assertAddsUp(t *testing.T, s *testServer) {
	t.Helper()
	var last *api.Overview
	for end := time.Now().Add(waittest.Bound(t)); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		response, err := s.client.GetOverviewWithResponse(t.Context(), nil)
		if err != nil || response.JSON200 == nil {
			t.Fatalf("overview: %v, %s", err, bodyOf(response))
		}
		if last = response.JSON200; last.Accepted.Total == 1 && last.Jobs["DISPATCHING"]+last.Jobs["IN_PROGRESS"] == 0 {
			break
		}
	}
	if last.Exact || last.Accepted.Total != 1 || last.Ended["SUCCEEDED"].Total != 1 || last.Backlog != 0 || last.Bus != api.BusQueue ||
		last.Jobs["DISPATCHING"]+last.Jobs["IN_PROGRESS"] != 0 {
		t.Errorf("the counts do not add up: %+v", last)
	}
}

// assertIDsAreSpread checks that the ids of jobs, which are their partition keys, are
// UUIDv8s that begin at random, and that lists are in the order of submission.
func assertIDsAreSpread(t *testing.T, s *testServer) {
	t.Helper()
	var want []string // newest first
	ranges := map[string]bool{}
	for i := range 8 {
		id := s.submitAs(t, fmt.Sprint("spread ", i))
		if parsed, err := uuid.Parse(id); err != nil || parsed.Version() != 8 {
			t.Errorf("%s is no UUID of version 8: %v", id, err)
		}
		want, ranges[id[:4]] = slices.Insert(want, 0, id), true
	}
	if len(ranges) <= len(want)/2 {
		t.Errorf("the ids begin in %d ways: %s", len(ranges), want)
	}
	limit, tenant, live := api.Limit(3), "tenant_a", api.JobStateDispatching
	for name, filter := range map[string]api.ListJobsParams{
		"all": {}, "of a tenant": {TenantID: &tenant}, "in a live state": {State: &live},
	} {
		filter.Limit = &limit
		listed := listJobs(t, s.client, filter)
		if diff := cmp.Diff(want, listed[:min(len(listed), len(want))]); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}

// assertShown checks that the tables of Phase 1 show the finished job.
func assertShown(t *testing.T, account *azurite.Server) {
	t.Helper()
	loaded, err := config.LoadArgs(
		[]string{"--storage-backend", config.BackendTable, "--table-connection", account.ConnectionString()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	store, err := aztablestore.Open(t.Context(), aztablestore.Options{
		Connection: account.ConnectionString(), Tables: tableNames(&loaded.Config),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	found, err := projectionstest.Compare(t.Context(), store, "luciussteps")
	if err != nil || len(found) > 0 {
		t.Errorf("not shown: %v, %v", found, err)
	}
}

// assertFound checks that filters with plain numbers, which are Edm.Int32, find the rows of
// the finished job: other programs read the tables of Phase 1.
func assertFound(t *testing.T, account *azurite.Server) {
	t.Helper()
	service, err := aztables.NewServiceClientFromConnectionString(account.ConnectionString(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		table, filter string
		want          int
	}{
		{"luciusjobs", "current_step_index eq 2 and attempts_total eq 3", 1},
		{"luciusjobs", "current_step_index eq 0", 0},
		{"luciussteps", "step_type eq 'EXTRACT' and step_index eq 0 and attempt_no eq 1 and lane eq 15", 1},
		{"luciusoutbox", "lane eq 15 and partition eq 15 and attempt_no ge 1 and step_index eq 0", 1},
		{"luciusoutbox", "lane eq 0", 0},
	} {
		found := 0
		pager := service.NewClient(test.table).NewListEntitiesPager(&aztables.ListEntitiesOptions{Filter: &test.filter})
		for pager.More() {
			page, err := pager.NextPage(t.Context())
			if err != nil {
				t.Fatalf("%s: %v", test.filter, err)
			}
			found += len(page.Entities)
		}
		if found != test.want {
			t.Errorf("%s where %s: %d rows, want %d", test.table, test.filter, found, test.want)
		}
	}
}

// assertLayoutStays checks that a replica with another layout than the account's does
// not start.
func assertLayoutStays(t *testing.T, account *azurite.Server, layout string) {
	t.Helper()
	other := map[string]string{config.BackendLedger: config.BackendTable, config.BackendTable: config.BackendLedger}[layout]
	p := &program{Env: cli.Env{Stdout: &output{}, Stderr: &output{}}}
	err := p.run(t.Context(), []string{
		"serve", "--storage-backend", other, "--table-connection", account.ConnectionString(), "--listen-addr", "127.0.0.1:0",
		"--protocols-dir", "../../protocols",
	})
	if err == nil || !strings.Contains(err.Error(), "the store keeps its jobs in the layout "+layout+", not "+other) {
		t.Errorf("a replica for %s was told %v", other, err)
	}
}
