package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"sync"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/ledger"
)

// SubmitCommand is POST /v1/commands.
func (e *endpoints) SubmitCommand(w http.ResponseWriter, r *http.Request, params api.SubmitCommandParams) {
	e.submit(w, r, commands.Headers{IdempotencyKey: orZero(params.IdempotencyKey), Traceparent: orZero(params.Traceparent)})
}

// Orchestrate is POST /v1/orchestrate, another name of POST /v1/commands.
func (e *endpoints) Orchestrate(w http.ResponseWriter, r *http.Request, params api.OrchestrateParams) {
	e.submit(w, r, commands.Headers{IdempotencyKey: orZero(params.IdempotencyKey), Traceparent: orZero(params.Traceparent)})
}

// submit passes the raw body on: the use case needs its canonical form.
func (e *endpoints) submit(w http.ResponseWriter, r *http.Request, headers commands.Headers) {
	e.answer(w, r, http.StatusAccepted, func(ctx context.Context) (any, error) {
		body, err := e.readBody(w, r)
		if err != nil {
			e.countRefused(err)
			return nil, err
		}
		accepted, err := e.submitText(ctx, body, headers)
		return acceptedOf(w, &accepted, err)
	})
}

// submitText submits a command for the caller, who must be allowed to name its tenant.
func (e *endpoints) submitText(ctx context.Context, text []byte, headers commands.Headers) (accepted ledger.Accepted, err error) {
	defer func() { e.countRefused(err) }()
	submission, err := e.prepare(ctx, text, headers)
	if err != nil {
		return ledger.Accepted{}, err
	}
	return submission.Accept(ctx)
}

// prepare decodes and checks a command.
func (e *endpoints) prepare(ctx context.Context, text []byte, headers commands.Headers) (*commands.Submission, error) {
	release, err := e.reserveTree(ctx, text)
	if err != nil {
		return nil, err
	}
	defer release() // Other callers decode while this command is committed.
	return e.Commands.Prepare(text, headers, func(tenantID string) error { return e.guard.authorizeTenant(ctx, tenantID) })
}

// countRefused counts a command that was refused, not one that met a fault of the server.
func (e *endpoints) countRefused(err error) {
	if err != nil && apierror.From(err).Code.Status() < http.StatusInternalServerError {
		e.Counts.Refused()
	}
}

// acceptedOf encodes an accepted job and sets its Location, unless err is set.
func acceptedOf(w http.ResponseWriter, accepted *ledger.Accepted, err error) (api.CommandAccepted, error) {
	if err != nil {
		return api.CommandAccepted{}, err
	}
	job := &accepted.Job
	w.Header().Set("Location", "/v1/jobs/"+url.PathEscape(job.ID))
	return api.CommandAccepted{
		JobID: job.ID, State: api.JobState(job.State), Replayed: accepted.Replayed, CorrelationID: job.CorrelationID,
	}, nil
}

// inParallel calls each for every index of a batch, all concurrently, so that they share
// the store's syncs. That is no more load than as many clients.
func inParallel(entries int, each func(i int)) {
	var group sync.WaitGroup
	for i := range entries {
		group.Go(func() { each(i) })
	}
	group.Wait()
}

// contained turns a panic into an error: one that leaves a goroutine other than the request's own ends the
// process, with all that it does for others.
func contained[V any](call func() (V, error)) (value V, err error) {
	defer func() {
		if recovered := recover(); recovered != nil {
			err = panicError(recovered)
		}
	}()
	return call()
}

// batch is a batch whose commands are not decoded yet: each is decoded, and accepted
// or refused, independently.
type batch struct {
	Commands []json.RawMessage `json:"commands"`
}

// Check validates the batch as a whole.
func (b *batch) Check() []apierror.Violation { return api.CheckBatch("/commands", len(b.Commands)) }

// SubmitBatch is POST /v1/commands:batch.
func (e *endpoints) SubmitBatch(w http.ResponseWriter, r *http.Request) {
	e.answer(w, r, http.StatusOK, func(ctx context.Context) (any, error) {
		if r.Header.Get("Idempotency-Key") != "" {
			return nil, invalid("header Idempotency-Key is not for a batch: give each command an idempotency_key", nil)
		}
		var request batch
		if err := e.decode(w, r, strict, &request); err != nil {
			return nil, err
		}
		results := make([]api.BatchItem, len(request.Commands))
		e.submitAll(ctx, request.Commands, func(i int, accepted *ledger.Accepted, err error) {
			if e.countRefused(err); err != nil {
				fault := e.respond.partOf(r, err)
				results[i] = api.BatchItem{Status: fault.Status, Error: fault}
				return
			}
			results[i] = api.BatchItem{
				Status: http.StatusAccepted, JobID: accepted.Job.ID, State: api.JobState(accepted.Job.State),
				Replayed: &accepted.Replayed, CorrelationID: accepted.Job.CorrelationID,
			}
		})
		return api.BatchResult{Results: results}, nil
	})
}

// submitAll submits the commands of a batch and tells what became of each: those of one line one after
// the other, in their order, and lines in parallel. Once a command fails for a reason that passes, the
// rest of its line is not tried, because a repetition of it would come after them. If its line is not
// known yet, that is the rest of all lines.
func (e *endpoints) submitAll(ctx context.Context, texts []json.RawMessage, tell func(i int, accepted *ledger.Accepted, err error)) {
	submissions, faults := make([]*commands.Submission, len(texts)), make([]error, len(texts))
	inParallel(len(texts), func(i int) {
		submissions[i], faults[i] = contained(func() (*commands.Submission, error) { return e.prepare(ctx, texts[i], commands.Headers{}) })
	})
	var groups [][]int
	ofLine := map[string]int{} // the index of the line's group
	for i, submission := range submissions {
		line := ""
		if submission != nil {
			line = submission.Line()
		}
		group, known := ofLine[line]
		if line == "" || !known {
			group = len(groups)
			groups = append(groups, nil)
		}
		if line != "" {
			ofLine[line] = group
		}
		groups[group] = append(groups[group], i)
	}
	open := slices.IndexFunc(faults, apierror.MayPass) // the first command whose line is not known, or -1
	inParallel(len(groups), func(group int) {
		before := -1 // the command of this line that is to be repeated
		for _, i := range groups[group] {
			var accepted ledger.Accepted
			err := faults[i]
			if before < 0 && open >= 0 && open < i && err == nil && submissions[i].Line() != "" {
				before = open
			}
			switch {
			case err != nil:
			case before >= 0:
				err = apierror.Newf(apierror.PredecessorRefused,
					"Command %d of the batch, which comes before it in its line, was not accepted: repeat both in this order.", before)
			default:
				accepted, err = contained(func() (ledger.Accepted, error) { return submissions[i].Accept(ctx) })
				if apierror.MayPass(err) {
					before = i
				}
			}
			tell(i, &accepted, err)
		}
	})
}
