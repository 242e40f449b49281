package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/problem"
)

// batchParallel is how many commands of one batch are accepted in parallel: enough
// to share the store's syncs, but too few for one client to monopolise the store.
const batchParallel = 16

// batch is a batch whose commands are not decoded yet: each is decoded, and accepted
// or refused, independently.
type batch struct {
	Commands []json.RawMessage `json:"commands"`
}

// Check returns what is wrong with the batch as a whole.
func (b *batch) Check() []problem.Violation {
	switch n := len(b.Commands); {
	case n == 0:
		return []problem.Violation{{Pointer: "/commands", Message: "is required and must not be empty"}}
	case n > api.MaxBatch:
		message := fmt.Sprintf("must not hold more than %d entries", api.MaxBatch)
		return []problem.Violation{{Pointer: "/commands", Message: message, Code: problem.TooLarge}}
	}
	return nil
}

// SubmitBatch is POST /v1/commands:batch.
func (e *endpoints) SubmitBatch(w http.ResponseWriter, r *http.Request) {
	var request batch
	if err := e.bodies.strict(w, r, &request); err != nil {
		e.respond.problem(w, r, err)
		return
	}
	result := api.BatchResult{Results: make([]api.BatchItem, len(request.Commands))}
	var group errgroup.Group
	group.SetLimit(batchParallel)
	for i, command := range request.Commands {
		group.Go(func() error {
			result.Results[i] = e.submitOne(r, command)
			return nil
		})
	}
	_ = group.Wait() // Each command has an outcome of its own.
	e.respond.json(w, r, http.StatusOK, result)
}

// submitOne accepts one command of a batch.
func (e *endpoints) submitOne(r *http.Request, command []byte) api.BatchItem {
	accepted, err := e.Commands.Submit(r.Context(), command, commands.Headers{}, e.mayName(r.Context()))
	if err != nil {
		fault := problem.From(err)
		e.respond.report(r, fault)
		body := e.respond.body(r, fault)
		return api.BatchItem{Status: body.Status, Error: &body}
	}
	return api.BatchItem{
		Status: http.StatusAccepted, JobID: accepted.Job.ID, State: api.JobState(accepted.Job.State),
		Replayed: &accepted.Replayed, CorrelationID: accepted.Job.CorrelationID,
	}
}
