package jobs_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/lucius-project/lucius/pkg/jobs"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
)

// inbox keeps the newest message that the ledger hands over.
type inbox struct {
	mu   sync.Mutex
	last ledger.Message
}

func (i *inbox) Offer(message ledger.Message) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.last = message
}

// reported accepts a job of one step of that service, whose worker reports a result unless
// the status is empty.
func reported(t *testing.T, l *ledger.Ledger, in *inbox, service string, status statemachine.ResultStatus, code string) string {
	t.Helper()
	policy := statemachine.Policy{
		AckTimeout: time.Second, Lease: time.Minute,
		Dispatch: []time.Duration{time.Second}, Ack: []time.Duration{time.Second}, Execution: []time.Duration{time.Second},
	}
	accepted, err := l.Accept(t.Context(), ledger.Command{
		Job:   statemachine.Job{TenantID: "t", IdempotencyHash: uuid.NewString(), RequestType: "r." + service, InputRef: []byte(`{"uri":"s3://b/in"}`)},
		Steps: []statemachine.Step{{ID: "one", Type: "X", Service: service, Input: statemachine.InputJob, Policy: policy}}, Payload: []byte(`{}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	if status == "" {
		return accepted.Job.ID
	}
	m := in.last
	change(t, l, []string{m.JobID}, statemachine.Published{OutboxID: m.OutboxID, AttemptNo: m.AttemptNo})
	change(t, l, []string{m.JobID}, statemachine.Result{
		StepID: m.StepID, Pair: statemachine.Pair{AttemptNo: m.AttemptNo, LeaseID: m.LeaseID}, Status: status, ErrorCode: code,
	})
	return accepted.Job.ID
}

// Service and error code are those of the failed or current step, and only the jobs that may
// match are read.
func TestList_OfAServiceOrAnErrorCode(t *testing.T) {
	t.Parallel()
	store, in := &lossy{Store: memstore.New(memstore.Options{Split: true})}, &inbox{}
	l, err := ledger.Open(t.Context(), ledger.Config{Store: store, Bus: statemachine.BusServiceBus, Handoff: in})
	if err != nil {
		t.Fatal(err)
	}
	done := reported(t, l, in, "ocr", statemachine.ResultSucceeded, "")
	bad := reported(t, l, in, "ocr", statemachine.ResultFailedFinal, "bad")
	again := reported(t, l, in, "ocr", statemachine.ResultFailedRetry, "timeout")
	late := reported(t, l, in, "embed", statemachine.ResultFailedFinal, "timeout")
	waits := reported(t, l, in, "ocr", "", "")
	stopped := reported(t, l, in, "embed", "", "")
	change(t, l, []string{stopped}, statemachine.Cancel{})

	const failed, succeeded = statemachine.JobFailedFinal, statemachine.JobSucceeded
	for name, test := range map[string]struct {
		filter jobs.Filter
		want   []string
		reads  int // How many jobs are read at most.
	}{
		"of a service":               {jobs.Filter{Service: "ocr"}, []string{waits, again, bad, done}, 6},
		"of a code":                  {jobs.Filter{ErrorCode: "timeout"}, []string{late, again}, 3},
		"of both":                    {jobs.Filter{Service: "ocr", ErrorCode: "timeout"}, []string{again}, 2},
		"of an unknown code":         {jobs.Filter{ErrorCode: "x"}, nil, 2},
		"failed of a service":        {jobs.Filter{State: failed, Service: "ocr"}, []string{bad}, 1},
		"failed with a code":         {jobs.Filter{State: failed, ErrorCode: "timeout"}, []string{late}, 1},
		"failed of a request type":   {jobs.Filter{State: failed, RequestType: "r.embed"}, []string{late}, 1},
		"of a service that succeeds": {jobs.Filter{State: succeeded, Service: "ocr"}, []string{done}, 1},
		"succeeded with a code":      {jobs.Filter{State: succeeded, ErrorCode: "bad"}, nil, 0},
		"that try again after one":   {jobs.Filter{State: statemachine.JobInProgress, ErrorCode: "timeout"}, []string{again}, 2},
		"of a tenant":                {jobs.Filter{TenantID: "t", ErrorCode: "timeout"}, []string{late, again}, 3},
		"of another tenant":          {jobs.Filter{TenantID: "u", ErrorCode: "timeout"}, nil, 0},
	} {
		for maxLive, reads := range map[int]int{1000: test.reads, 0: 6} { // As if there were too many live jobs to be listed.
			s := jobs.New(l, &jobs.Ended{}, jobs.Surroundings{})
			s.SetMaxLive(maxLive)
			store.jobs.Store(0)
			if diff := cmp.Diff(test.want, pages(t, s, test.filter, 10)); diff != "" {
				t.Errorf("jobs %s, %d live at most (-want +got):\n%s", name, maxLive, diff)
			}
			if got := int(store.jobs.Load()); got > reads {
				t.Errorf("jobs %s, %d live at most: read %d jobs", name, maxLive, got)
			}
			if diff := cmp.Diff(test.want, pages(t, s, test.filter, 1)); diff != "" {
				t.Errorf("jobs %s, %d live at most, one a page (-want +got):\n%s", name, maxLive, diff)
			}
		}
	}
}
