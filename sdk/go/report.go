package lucius

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/lucius-project/lucius/sdk/go/internal/workerlog"
)

// completion is the end of one item, on its way to a batch.
type completion struct {
	ctx  context.Context //nolint:containedctx // The loop makes the call for its caller.
	item ItemCompletion
	// answer receives the error of one try. It has room for it.
	answer chan error
}

// report reports the end of an attempt, and logs it. A result that the server does not take
// fails the step.
func (r *run) report(
	ctx context.Context, item *WorkItem, log *slog.Logger, begun time.Time, result Result, failure *StepError,
) {
	took := time.Since(begun)
	outcome, reason := workerlog.Succeeded, ""
	var err error
	if failure == nil {
		err = r.complete(ctx, item, result)
		if refusesResult(err) {
			log.WarnContext(ctx, "result refused", "error", err)
			failure = &StepError{Code: codeRefused, Err: err}
		}
	}
	if failure != nil {
		reported := failure.Reported(r.Client.lastToken())
		outcome, reason = workerlog.Failure(reported.Code, reported.Message, failure.Retryable)
		err = r.fail(ctx, item, failure, reported)
	}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		outcome, reason = workerlog.NotSent, err.Error()
		log.WarnContext(ctx, "result not sent", "error", err)
	default:
		outcome, reason = workerlog.Refused, err.Error()
		log.WarnContext(ctx, "result refused", "error", err)
	}
	workerlog.Ended(ctx, log, took, outcome, reason)
}

// refusesResult reports whether the server does not take the result, so that another attempt would
// fail in the same way.
func refusesResult(err error) bool {
	refused, ok := errors.AsType[*Error](err)
	return ok && (refused.Status == http.StatusUnprocessableEntity || refused.Status == http.StatusRequestEntityTooLarge ||
		refused.Code == ProblemCodeInvalidEnvelope)
}

// complete reports success. The completions of items that end at the same time share a
// request.
func (r *run) complete(ctx context.Context, item *WorkItem, result Result) error {
	return r.atRev(ctx, item, "complete", func(ctx context.Context, rev int64, requestID string) error {
		c := &completion{
			ctx: ctx,
			item: ItemCompletion{
				WorkID: item.WorkID, Owner: r.Owner, ExpectedRev: rev, RequestID: requestID,
				OutputRef: result.Output, ResultRef: result.Ref,
			},
			answer: make(chan error, 1),
		}
		r.completions <- c // The loop reads until all items have ended.
		return <-c.answer
	})
}

// fail reports a failure.
func (r *run) fail(ctx context.Context, item *WorkItem, failure *StepError, reported ReportedError) error {
	return r.atRev(ctx, item, "fail", func(ctx context.Context, rev int64, requestID string) error {
		return r.Client.try(ctx, call{
			method: http.MethodPost, path: workPath(item.WorkID, ":fail"), answer: new(WorkItem),
			body: WorkFailure{
				Owner: r.Owner, ExpectedRev: rev, RequestID: requestID,
				Retryable: failure.Retryable, RetryAfterSeconds: failure.After.Seconds(), Scope: failure.Scope,
				Error: reported,
			},
		})
	})
}

// The longest code and message of a reported error, in bytes.
const (
	maxCode    = 128
	maxMessage = 1000
)

// cut returns the text, cut between characters to the length.
func cut(text string, length int) string {
	return strings.ToValidUTF8(text[:min(len(text), length)], "")
}

// atRev makes a call at the item's rev, and repeats it under one request id until it is
// answered. If the item is at another rev, such as after a heartbeat whose answer was lost,
// it makes the call at that rev: the server tells it to the owner alone. A refused token is
// not an answer about the attempt. Any other refusal is returned: the attempt has ended
// otherwise.
func (r *run) atRev(ctx context.Context, item *WorkItem, name string,
	send func(ctx context.Context, rev int64, requestID string) error,
) error {
	for {
		requestID := rand.Text()
		try := func(ctx context.Context) error { return send(ctx, item.Rev, requestID) }
		err := r.persist(ctx, name, longestBetween(item), attemptMayLast, try)
		refused, answered := errors.AsType[*Error](err)
		if !answered || refused.Code != ProblemCodeRevConflict || refused.CurrentRev <= item.Rev {
			return err
		}
		item.Rev = refused.CurrentRev
	}
}

// longestBetween returns the longest wait between two tries of a call about the item. After an
// outage the server extends its lease by a third: a call must be made within that time.
func longestBetween(item *WorkItem) time.Duration {
	if item.Lease == nil {
		return longestWait
	}
	return min(max(item.Lease.ExpiresAt.Sub(item.UpdatedAt)/6, firstDelay), longestWait)
}

// attemptMayLast reports whether the error of a call about an attempt may pass while the
// attempt lasts: it is not the server's answer about the attempt.
func attemptMayLast(err error) bool { return mayPass(err) || tokenRefused(err) || fromProxy(err) }

const (
	// maxRequests is how many requests with completions are made at once.
	maxRequests = 16
	// maxBatchBytes is how many bytes of references a batch holds before it is sent.
	maxBatchBytes = 256 << 10
)

// sendCompletions sends completions until their channel is closed. One that is alone is sent
// at once; those that are ready at the same time share a request, as do those that wait
// while as many requests as may be are under way.
func (r *run) sendCompletions(ctx context.Context) {
	requests := make(chan struct{}, maxRequests)
	var sending sync.WaitGroup
	defer sending.Wait()
	for first := range r.completions {
		requests <- struct{}{}
		runtime.Gosched() // Handlers that have ended as well get here.
		batch := r.collect(first)
		sending.Go(func() {
			defer func() { <-requests }()
			if len(batch) == 1 {
				first.answer <- r.completeOne(first)
			} else {
				r.completeBatch(ctx, batch)
			}
		})
	}
}

// collect returns the completion with those that are ready, too, as many as one request takes.
func (r *run) collect(first *completion) []*completion {
	batch := []*completion{first}
	size := len(first.item.OutputRef) + len(first.item.ResultRef)
	for len(batch) < maxBatch && size < maxBatchBytes {
		select {
		case next, open := <-r.completions:
			if !open {
				return batch
			}
			batch = append(batch, next)
			size += len(next.item.OutputRef) + len(next.item.ResultRef)
		default:
			return batch
		}
	}
	return batch
}

// completeOne makes one try to complete an item, as part of its trace.
func (r *run) completeOne(c *completion) error {
	return r.Client.try(c.ctx, call{
		method: http.MethodPost, path: workPath(c.item.WorkID, ":complete"), answer: new(WorkItem),
		body: WorkCompletion{
			Owner: c.item.Owner, ExpectedRev: c.item.ExpectedRev, RequestID: c.item.RequestID,
			OutputRef: c.item.OutputRef, ResultRef: c.item.ResultRef,
		},
	})
}

// completeBatch makes one try to complete the batch, and tells each completion its answer. If
// the batch as a whole is refused, one of its items may be at fault: each is sent alone.
func (r *run) completeBatch(ctx context.Context, batch []*completion) {
	request := WorkCompletionBatch{}
	for _, c := range batch {
		request.Items = append(request.Items, c.item)
	}
	var answer WorkCompletionResults
	err := r.Client.try(ctx, call{
		method: http.MethodPost, path: "/v1/work:complete", body: request, timeout: batchTimeout, answer: &answer,
	})
	if err == nil && len(answer.Results) != len(batch) {
		err = &Error{Problem: Problem{Status: http.StatusOK, Detail: "it answered another number of completions"}}
	}
	if err != nil && !attemptMayLast(err) {
		var alone sync.WaitGroup
		defer alone.Wait()
		for _, c := range batch {
			alone.Go(func() { c.answer <- r.completeOne(c) })
		}
		return
	}
	for i, c := range batch {
		switch {
		case err != nil:
			c.answer <- err
		case answer.Results[i].Error != nil:
			c.answer <- &Error{Problem: *answer.Results[i].Error}
		default:
			c.answer <- nil
		}
	}
}
