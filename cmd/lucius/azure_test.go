package main

import (
	"strings"
	"testing"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/azurite"
)

// onAzure starts a replica on the account.
func onAzure(t *testing.T, account *azurite.Server) *server {
	t.Helper()
	return serveOn(t, t.TempDir(), "--storage-backend", "ledger", "--table-connection", account.ConnectionString(),
		"--ack-timeout", "10s", "--lease-duration", "10s", "--sweep-interval", "100ms", "--outbox-retry-interval", "100ms")
}

// Replicas on one storage account share all work: what one accepts another's
// workers do, and when one dies in the middle the other goes on.
func TestServe_ReplicasOnOneStorageAccount(t *testing.T) {
	t.Parallel()
	account, err := azurite.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(account.Stop)
	one, two := onAzure(t, account), onAzure(t, account)

	jobID := one.submit(t)
	if again := two.submit(t); again != jobID {
		t.Errorf("the same command on the other replica is job %s, not %s", again, jobID)
	}
	two.complete(t, two.claim(t, "c1", true)) // Its next step is two's relay's.
	one.complete(t, one.claim(t, "c2", true))
	if err := one.stop(); err != nil {
		t.Fatal(err)
	}
	two.complete(t, two.claim(t, "c3", true))

	job, err := two.client.GetJobWithResponse(t.Context(), jobID, nil)
	if err != nil || job.JSON200 == nil || job.JSON200.State != api.JobStateSucceeded {
		t.Fatalf("%v, %s", err, job.Body)
	}
	listed, err := two.client.ListJobsWithResponse(t.Context(), &api.ListJobsParams{State: api.JobStateSucceeded})
	if err != nil || listed.JSON200 == nil || len(listed.JSON200.Jobs) != 1 || listed.JSON200.Jobs[0].JobID != jobID {
		t.Errorf("listed: %v, %s", err, listed.Body)
	}
	// The account is audited while a replica is at work on it.
	out, code := auditIn(t, map[string]string{
		"LUCIUS_STORAGE_BACKEND": "ledger", "LUCIUS_TABLE_CONNECTION": account.ConnectionString(),
	})
	if code != 0 || !strings.Contains(out, "1 jobs, 1 SUCCEEDED") {
		t.Errorf("the audit ends with %d: %s", code, out)
	}
}
