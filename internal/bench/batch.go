package bench

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/api"
)

const (
	// batchSize is the number of commands in a batch, the most that the server accepts.
	batchSize = 100
	// batchClients is the number of clients that send batches concurrently.
	batchClients = 8
)

// batchLoop makes each client send one batch after the other, with commands for a service
// without a worker. It counts the commands of batches that are answered in the window.
func batchLoop(ctx context.Context, r *run) error {
	group, ctx := errgroup.WithContext(ctx)
	for client := range batchClients {
		group.Go(func() error {
			for n := 1; ; n++ {
				begun := time.Now()
				if !begun.Before(r.window.end) {
					return nil
				}
				names := r.batchNames(client, n, batchSize)
				if err := r.submitBatch(ctx, names, waitingType, client); err != nil {
					return err
				}
				now := time.Now()
				for range names {
					r.count()
				}
				if r.window.holds(now) {
					r.counted.Add(int64(len(names)))
					r.submit.record(now.Sub(begun))
				}
			}
		})
	}
	return group.Wait()
}

// batchNames returns the names of the commands of a client's nth batch.
func (r *run) batchNames(client, n, size int) []string {
	names := make([]string, size)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d-%d-%d", r.name, client, n, i)
	}
	return names
}

// submitBatch sends one batch of commands with these names. It returns an error if a command
// is refused.
func (r *run) submitBatch(ctx context.Context, names []string, requestType string, client int) error {
	request := api.BatchRequest{Commands: make([]api.Command, len(names))}
	for i, name := range names {
		request.Commands[i] = r.command(name, requestType, client)
	}
	var answer api.BatchResult
	const path = "/v1/commands:batch"
	if err := r.client.post(ctx, path, request, &answer); err != nil {
		return err
	}
	if len(answer.Results) != len(names) {
		return fmt.Errorf("%s: %d results for %d commands", path, len(answer.Results), len(names))
	}
	for i := range answer.Results {
		switch result := &answer.Results[i]; {
		case result.Error != nil:
			reason := string(result.Error.Code) + ": " + result.Error.Detail
			return &StatusError{Method: "POST", Path: path, Status: int(result.Status), Body: reason}
		case result.Replayed != nil && *result.Replayed:
			return fmt.Errorf("command %s: %w", names[i], ErrReplayed)
		}
	}
	return nil
}
