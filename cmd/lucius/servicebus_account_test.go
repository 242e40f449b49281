//go:build integration

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/azurite"
	"github.com/lucius-project/lucius/internal/waittest"
	lucius "github.com/lucius-project/lucius/sdk/go"
)

// The variables of Option B, 21.1, and no others, select Service Bus with its reply topics
// and one table for all of a job. Temporal's are left out, and the tables have the closest
// names that Azure accepts.
func TestServe_WithTheVariablesOfOptionB(t *testing.T) {
	t.Parallel()
	account, err := azurite.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(account.Stop)
	const lanes = 16
	namespace := newNamespaceOf(t, lanes)
	s := serveIn(t, entries(map[string]string{
		"LUCIUS_SERVICEBUS_CONNECTION":         namespace.ConnectionString(),
		"LUCIUS_SERVICEBUS_REPLY_PREFIX":       "global-bus-replies-p",
		"LUCIUS_SERVICEBUS_REPLY_SUBSCRIPTION": "lucius-invoker",
		"LUCIUS_SERVICEBUS_LANES":              fmt.Sprint(lanes),
		"LUCIUS_LEDGER_TABLE":                  "luciusledger",
		"LUCIUS_IDEMPOTENCY_TABLE":             "jobidempotency",
		"LUCIUS_STORAGE_BACKEND":               "ledger",
		"LUCIUS_TABLE_CONNECTION":              account.ConnectionString(),
		"LUCIUS_JOBS_TABLE":                    "jobs",
		"LUCIUS_STEPS_TABLE":                   "steps",
		"LUCIUS_JOB_INDEX_TABLE":               "jobindex",
		"LUCIUS_MAX_INFLIGHT_PER_TENANT":       "100",
		"LUCIUS_MAX_ATTEMPTS":                  "3",
		"LUCIUS_STEP_RESULT_TIMEOUT_SECONDS":   "600",
	}), t.TempDir(), longTimeouts...)
	workOnLanes(t, namespace, lanes, succeed)
	job := s.wait(t, s.submit(t))
	if job.State != api.JobStateSucceeded || string(job.FinalOutput) != `{"uri":"s3://result"}` {
		t.Errorf("the job is %s, its output %s", job.State, job.FinalOutput)
	}
}

// While replies cannot arrive, for longer than a lease, the server does not treat workers
// as dead: no attempt is spent and no work is done twice. The lease is long, so that workers
// reconnect in time: two calls of a worker in a row may hang for 20 s each.
func TestServe_HoldsLeasesWhileRepliesCannotCome(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	lease := 50*time.Second + waittest.Scale(10*time.Second)
	s := serveOn(t, filepath.Join(t.TempDir(), "data"), append(onBus(namespace), "--ack-timeout", lease.String(),
		"--lease-duration", lease.String(), "--publish-timeout", waittest.Scale(time.Second).String(), "--outbox-retry-interval", "100ms")...)
	inHand, release := make(chan struct{}, 10), make(chan struct{})
	workOnBus(t, namespace, func(context.Context, *lucius.Task) (any, error) {
		inHand <- struct{}{}
		<-release
		return nil, nil
	})
	jobID := s.submit(t)
	<-inHand
	namespace.Stop()
	time.Sleep(lease + lease/4)
	if err := namespace.Restart(); err != nil {
		t.Fatal(err)
	}
	close(release)
	job := s.wait(t, jobID)
	if job.State != api.JobStateSucceeded || job.AttemptsTotal != 3 {
		t.Errorf("the job is %s after %d attempts: %s", job.State, job.AttemptsTotal, job.Steps[0].LastErrorMessage)
	}
}
