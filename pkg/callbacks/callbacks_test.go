package callbacks_test

import (
	"errors"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/projections/projectionstest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
)

// inbox keeps the newest message.
type inbox struct{ last ledger.Message }

func (i *inbox) Offer(message ledger.Message) { i.last = message }

// setup is a service, its ledger, and the identity of a fresh job's step.
func setup(t *testing.T) (*callbacks.Service, *ledger.Ledger, callbacks.Identity) {
	t.Helper()
	in := &inbox{}
	store := memstore.New(memstore.Options{})
	l, err := ledger.Open(t.Context(), ledger.Config{
		Store: store, Handoff: in, Projector: projectionstest.Projector(t, store),
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.Accept(t.Context(), ledger.Command{
		Job: statemachine.Job{TenantID: "tenant_a", IdempotencyHash: "h"},
		Steps: []statemachine.Step{{ID: "one", Policy: statemachine.Policy{
			AckTimeout: time.Minute, Lease: time.Hour, Execution: []time.Duration{time.Minute},
		}}},
		Payload: []byte(`{}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	return callbacks.New(l), l, callbacks.Identity{
		JobID: in.last.JobID, StepID: in.last.StepID, TenantID: "tenant_a", Actor: "platform",
		Pair: statemachine.Pair{AttemptNo: in.last.AttemptNo, LeaseID: in.last.LeaseID},
	}
}

func TestService_AWorkerReports(t *testing.T) {
	t.Parallel()
	s, l, id := setup(t)
	answer, err := s.Ack(t.Context(), id)
	if err != nil || answer.Outcome != statemachine.Applied || answer.StepState != statemachine.StepInProgress ||
		answer.JobState != statemachine.JobInProgress || answer.LeaseExpiresAt.IsZero() || answer.CancelRequested {
		t.Fatalf("ACK: %+v, %v", answer, err)
	}
	if again, err := s.Ack(t.Context(), id); err != nil || again.Outcome != statemachine.Duplicate {
		t.Errorf("the repeated ACK: %+v, %v", again, err)
	}
	if _, err := l.Change(t.Context(), id.JobID, statemachine.Cancel{}); err != nil {
		t.Fatal(err)
	}
	beat, err := s.Heartbeat(t.Context(), id)
	if err != nil || !beat.CancelRequested || beat.LeaseExpiresAt.Before(answer.LeaseExpiresAt) {
		t.Errorf("heartbeat: %+v, %v", beat, err)
	}
	done, err := s.Result(t.Context(), id, callbacks.Report{Status: statemachine.ResultSucceeded})
	if err != nil || done.StepState != statemachine.StepSucceeded || done.JobState != statemachine.JobCancelled {
		t.Errorf("RESULT: %+v, %v", done, err)
	}
}

func TestService_RefusalsHaveTheirCodes(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		call func(*callbacks.Service, callbacks.Identity) error
		code problem.Code
	}{
		{"a guessed lease", func(s *callbacks.Service, id callbacks.Identity) error {
			id.Pair.LeaseID = "guessed"
			_, err := s.Ack(t.Context(), id)
			return err
		}, problem.StaleAttempt},
		{"another attempt", func(s *callbacks.Service, id callbacks.Identity) error {
			id.Pair.AttemptNo = 2
			_, err := s.Heartbeat(t.Context(), id)
			return err
		}, problem.StaleAttempt},
		{"an unknown step", func(s *callbacks.Service, id callbacks.Identity) error {
			id.StepID = "two"
			_, err := s.Ack(t.Context(), id)
			return err
		}, problem.StepNotFound},
		{"an unknown job", func(s *callbacks.Service, id callbacks.Identity) error {
			id.JobID = "gone"
			_, err := s.Ack(t.Context(), id)
			return err
		}, problem.JobNotFound},
		{"another tenant's job", func(s *callbacks.Service, id callbacks.Identity) error {
			id.TenantID = "tenant_b"
			_, err := s.Ack(t.Context(), id)
			return err
		}, problem.JobNotFound},
		{"a contradiction", func(s *callbacks.Service, id callbacks.Identity) error {
			if _, err := s.Result(t.Context(), id, callbacks.Report{Status: statemachine.ResultFailedRetry}); err != nil {
				return err
			}
			_, err := s.Result(t.Context(), id, callbacks.Report{Status: statemachine.ResultSucceeded})
			return err
		}, problem.ContradictoryResult},
		{"a heartbeat after the end", func(s *callbacks.Service, id callbacks.Identity) error {
			if _, err := s.Result(t.Context(), id, callbacks.Report{Status: statemachine.ResultSucceeded}); err != nil {
				return err
			}
			_, err := s.Heartbeat(t.Context(), id)
			return err
		}, problem.IllegalTransition},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s, _, id := setup(t)
			err := test.call(s, id)
			if known, ok := errors.AsType[*problem.Error](err); !ok || known.Code != test.code {
				t.Errorf("answered %v, want %s", err, test.code)
			}
		})
	}
}
