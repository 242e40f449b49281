package server

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/admission"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// The series of a limit exist from its first figure until it is deleted.
func TestMeters_ForgetADeletedLimit(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	m := newMeters(registry)
	series := func() (n int) {
		families, err := registry.Gather()
		musttest.NoError(t, err)
		for _, family := range families {
			if strings.HasPrefix(family.GetName(), "lucius_limit_") {
				n += len(family.GetMetric())
			}
		}
		return n
	}
	none := series()
	m.observeLimit(admission.Scope{Service: "ocr"}, admission.Spent, 1)
	kept := series()
	gone := admission.Scope{Service: "ocr", TenantID: "tenant"}
	m.observeLimit(gone, admission.Spent, 1)
	m.observeLimit(gone, admission.Running, 1)
	if all := series(); none != 0 || kept != len(m.limits) || all != 2*kept+1 {
		t.Errorf("%d, %d and %d series", none, kept, all)
	}
	m.observeLimit(gone, admission.Deleted, 0)
	if left := series(); left != kept {
		t.Errorf("%d series are left, want %d", left, kept)
	}
}

// A log record identifies the attempt, and contains no lease id.
func TestTransitions_AreLoggedWithTheirAttempt(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	after := &statemachine.Aggregate{
		Job: statemachine.Job{ID: "job", TenantID: "tenant", CurrentStepID: "ocr", CorrelationID: "c",
			Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", Rev: 7},
		Steps: []statemachine.Step{{ID: "ocr", LeaseID: "capability", LastErrorCode: statemachine.ErrorAckTimeout}},
	}
	logTransitions(log, false, after, []statemachine.Transition{
		{Object: statemachine.ObjectStep, ID: "ocr", Type: "step.failed_retry", From: "INITIATED", To: "FAILED_RETRY", AttemptNo: 2, Cause: "ACK timeout"},
		{Object: statemachine.ObjectOutbox, ID: "row", Type: "outbox.failed_final", From: "SENT", To: "FAILED_FINAL", AttemptNo: 2},
	})
	for _, want := range []string{
		`"jobId":"job","tenant_id":"tenant","stepId":"ocr","attempt_no":2,"correlation_id":"c","trace_id":"4bf92f3577b34da6a3ce929d0e0e4736"`,
		`"event":"step.failed_retry"`, `"cause":"ACK timeout"`, `"event":"outbox.failed_final"`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log has no %s:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "capability") {
		t.Error("the log holds the lease id")
	}
}

// The end of a job is one line at level info, with the fields of the job and of the attempt
// that ended it; failuresOnly leaves out all but failures.
func TestTransitions_LogTheEndOfEachJob(t *testing.T) {
	t.Parallel()
	accepted := time.Date(2026, 1, 27, 10, 2, 0, 0, time.UTC)
	for _, test := range []struct {
		state        statemachine.JobState
		code         string
		level        slog.Level
		failuresOnly bool
		want         string // Empty if the log has no line.
	}{
		{statemachine.JobSucceeded, "", slog.LevelInfo, false, `"state":"SUCCEEDED","attempts_total":3,"seconds":1.5}`},
		{statemachine.JobCancelled, "cancelled", slog.LevelInfo, false, `"seconds":1.5,"error_code":"cancelled","error_message":""}`},
		{statemachine.JobFailedFinal, "bad_scan", slog.LevelInfo, false, `"seconds":1.5,"error_code":"bad_scan","error_message":""}`},
		{statemachine.JobFailedFinal, "bad_scan", slog.LevelInfo, true, `"state":"FAILED_FINAL"`},
		{statemachine.JobSucceeded, "", slog.LevelInfo, true, ""},
		{statemachine.JobCancelled, "cancelled", slog.LevelInfo, true, ""},
		{statemachine.JobFailedFinal, "bad_scan", slog.LevelWarn, false, ""},
		{statemachine.JobInProgress, "", slog.LevelInfo, false, ""},
	} {
		var out bytes.Buffer
		logTransitions(slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: test.level})), test.failuresOnly, &statemachine.Aggregate{
			Job: statemachine.Job{
				ID: "job", TenantID: "tenant", RequestType: "doc.ingest", CorrelationID: "c", State: test.state, ErrorCode: test.code,
				AttemptsTotal: 3, CreatedAt: accepted, CompletedAt: accepted.Add(1500 * time.Millisecond),
			},
			Steps: []statemachine.Step{{ID: "ocr", AttemptNo: 2, Attempts: []statemachine.Attempt{{No: 2, LeaseDigest: "digest"}}}},
		}, []statemachine.Transition{
			{Object: statemachine.ObjectStep, ID: "ocr", From: "IN_PROGRESS", To: "SUCCEEDED", AttemptNo: 2},
			{Object: statemachine.ObjectJob, From: "CANCELLING", To: string(test.state)},
		})
		const about = `"level":"INFO","msg":"job ended","jobId":"job","tenant_id":"tenant","stepId":"ocr","attempt_no":2,` +
			`"lease_digest":"digest","correlation_id":"c","request_type":"doc.ingest",`
		got := out.String()
		if test.want == "" && got != "" || test.want != "" && (strings.Count(got, "\n") != 1 || !strings.Contains(got, about) || !strings.Contains(got, test.want)) {
			t.Errorf("%s at %s, failures only %t: logged %q, want %s", test.state, test.level, test.failuresOnly, got, test.want)
		}
	}
}

func TestCauseOf(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]string{
		"ack_timeout": "ack_timeout", "lease_expired": "lease_expired", "step_timeout": "step_timeout",
		"publish_rejected": "publish_rejected", "dispatch_exhausted": "dispatch_exhausted", "cancelled": "cancelled", "": "reported", "whatever a worker says": "reported",
	} {
		if got := causeOf(code); got != want {
			t.Errorf("%q is %q, want %q", code, got, want)
		}
	}
}

// The tenant is not a label, and the number of series is bounded, as docs/run/monitoring.md says.
func TestMetrics_AreBounded(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ services, most int }{{50, 7_000}, {2_000, 25_000}} {
		m := newMeters(prometheus.NewRegistry())
		tenants := 10_000
		for i := range tenants {
			n := i % test.services
			step := statemachine.Step{
				ID: "s", Service: fmt.Sprint("service", n), Type: fmt.Sprint("TYPE", n), LastErrorCode: fmt.Sprint("error", i),
			}
			job := statemachine.Job{TenantID: fmt.Sprint("tenant", i), RequestType: fmt.Sprint("request.", n)}
			kind := ledger.WorkKind{Service: step.Service, StepType: step.Type}
			if i < test.services {
				m.createKind(kind)
				m.createRequestType(job.RequestType)
			}
			m.waited(kind, 1)
			m.took(kind, statemachine.StepSucceeded, 1)
			m.observeTransitions(&statemachine.Aggregate{}, &statemachine.Aggregate{Job: job, Steps: []statemachine.Step{step}}, []statemachine.Transition{
				{Object: statemachine.ObjectStep, ID: "s", Type: "step.failed_final", From: "IN_PROGRESS", To: "FAILED_FINAL", Detail: "error"},
				{Object: statemachine.ObjectJob, Type: "job.failed_final", From: "IN_PROGRESS", To: "FAILED_FINAL"},
			})
		}
		families, err := m.Gather()
		musttest.NoError(t, err)
		series := 0
		for _, family := range families {
			for _, metric := range family.Metric {
				series++
				if h := metric.Histogram; h != nil {
					series += len(h.Bucket) + 2 // with +Inf, the sum and the count
				}
			}
		}
		t.Logf("%d services: %d series", test.services, series)
		if series > test.most {
			t.Errorf("%d series of %d services, and %d are documented at most", series, test.services, test.most)
		}
	}
}
