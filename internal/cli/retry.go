package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
)

// retry holds the flags of lucius retry.
type retry struct {
	bulk
	edits

	ended, since string // --state, which alone selects no jobs, and --since
}

// retry returns lucius retry, which reruns ended jobs.
func (t *tool) retry() *cobra.Command {
	r := retry{bulk: bulk{rest: true}}
	cmd := t.command(spec{
		use: "retry [JOB...]", short: "Rerun failed jobs, or others that have ended", more: true, completes: jobIDs,
		long: "Reruns the named jobs, or those that the flags select, in the background on the server. Shows how many\n" +
			"match and asks for confirmation, then shows the progress. Ctrl-C leaves the operation running.\n" +
			"An operation has at most 10,000 jobs: without --limit another one follows until none is left.\n\n" +
			"Of jobs that succeeded it repeats those accepted before --created-before, by default a minute ago. Run\n" +
			"again without that flag, the same command goes on with the same jobs, as long as the server keeps the\n" +
			"operation, so that no job is repeated twice.",
		example: "  lucius retry --service ocr --since 24h --dry-run\n  lucius retry --service ocr --code bad_scan --yes\n" +
			"  lucius retry --code bad_language --patch '{\"language\": \"de\"}'\n" +
			"  lucius retry --state SUCCEEDED --request-type doc.ingest --since 30d --protocol current --rate 20/s --dry-run\n" +
			"  lucius failures --service ocr   # Did it help?",
	}, func(ctx context.Context, s *session, ids []string) error {
		rerun, err := r.edits.request()
		if err != nil {
			return err
		}
		state := api.RetryRequestState(strings.ToUpper(r.ended))
		switch {
		case state != "" && len(ids) > 0:
			return usagef("name jobs, or select them by --state, not both")
		case state != "" && !state.Valid():
			return usagef("--state is %q, it must be FAILED_FINAL, CANCELLED or SUCCEEDED", r.ended)
		}
		since, name := &r.endedAfter, "ended-after"
		if state != "" && state != api.RetryRequestStateFailedFinal {
			since, name = &r.createdAfter, "created-after"
		}
		if r.since != "" && *since != "" {
			return usagef("name --since or --%s, not both", name)
		}
		*since = cmp.Or(*since, r.since)
		selected, err := r.bulk.request(s, ids)
		if err != nil {
			return err
		}
		request := api.RetryRequest{
			TenantID: selected.TenantID, DocID: selected.DocID, Tags: selected.Tags, RequestType: selected.RequestType,
			Service: selected.Service, StepType: selected.StepType, ErrorCode: selected.ErrorCode, State: state,
			CreatedAfter: selected.CreatedAfter, CreatedBefore: selected.CreatedBefore,
			EndedAfter: r.EndedAfter, EndedBefore: r.EndedBefore,
			From: rerun.From, FromStep: rerun.FromStep, PayloadPatch: rerun.PayloadPatch,
			Protocol: rerun.Protocol, Callbacks: rerun.Callbacks, Priority: rerun.Priority,
		}
		switch {
		case r.after != "":
			err = s.takeTimes(ctx, &r, &request)
		case state == api.RetryRequestStateSucceeded && r.createdBefore == "" && len(ids) == 0:
			request.CreatedBefore, err = s.repetition(ctx, &r, &request)
		}
		if err != nil {
			return err
		}
		create := func(ctx context.Context, c *api.Client, key api.IdempotencyKey, b *api.BulkRequest) (*http.Response, error) {
			request.JobIDs, request.All, request.Limit, request.RatePerSecond = b.JobIDs, b.All, b.Limit, b.RatePerSecond
			request.Reason, request.DryRun, request.After = b.Reason, b.DryRun, optional(r.after)
			return c.CreateRetry(ctx, &api.CreateRetryParams{IdempotencyKey: &key}, request)
		}
		return s.operate(ctx, &r.bulk, selected, create)
	})
	r.bulk.register(t, cmd)
	r.registerEnded(cmd)
	r.edits.register(cmd, "default failed, and start with --state SUCCEEDED")
	cmd.Flags().StringVar(&r.ended, "state", "", "only jobs in this state: FAILED_FINAL, which is the default, CANCELLED or SUCCEEDED")
	cmd.Flags().StringVar(&r.after, "after", "",
		"only jobs that follow those of this operation, which had the same filters and was truncated; its times\n"+
			"take the place of ages, and of those that are not given")
	cmd.Flags().StringVar(&r.since, "since", "",
		"only jobs that failed since then, or of the other states that were accepted since then: "+momentHelp)
	cmd.Flags().Lookup("limit").Usage = "maximum number of jobs to rerun; 0 means all"
	completeWords(cmd, "state", string(api.JobStateFailedFinal), string(api.JobStateCancelled), string(api.JobStateSucceeded))
	cmd.GroupID = GroupOperate
	return t.calls(cmd)
}

// takeTimes sets the times of the request to those of the operation that it goes on after, unless they
// are points in time: an age would be another time by now.
func (s *session) takeTimes(ctx context.Context, r *retry, request *api.RetryRequest) error {
	op, err := s.operation(ctx, r.after, 1)
	if err != nil {
		return err
	}
	var taken []string
	for _, bound := range []struct {
		flag, given string
		time        *api.Time
		was         api.Time
	}{
		{"created-after", r.createdAfter, &request.CreatedAfter, op.Filter.CreatedAfter},
		{"created-before", r.createdBefore, &request.CreatedBefore, op.Filter.CreatedBefore},
		{"ended-after", r.endedAfter, &request.EndedAfter, op.Filter.EndedAfter},
		{"ended-before", r.endedBefore, &request.EndedBefore, op.Filter.EndedBefore},
	} {
		if _, err := period(bound.given); !bound.was.IsZero() && (bound.given == "" || err == nil) {
			*bound.time = bound.was
			taken = append(taken, "--"+bound.flag+" "+bound.was.UTC().Format(time.RFC3339Nano))
		}
	}
	if len(taken) > 0 {
		fmt.Fprintf(s.Stderr, "lucius: takes the times of operation %s: %s\n", op.OperationID, strings.Join(taken, " "))
	}
	return nil
}

// repetitionLead is how long before now the jobs of a repetition were accepted at the latest, so that
// the clocks of this machine and of the server may differ by that much.
const repetitionLead = time.Minute

// repetition returns before when the jobs were accepted that the request repeats: as an earlier
// operation of the same request says, which this one goes on with; else a minute ago.
func (s *session) repetition(ctx context.Context, r *retry, request *api.RetryRequest) (before api.Time, err error) {
	before = api.NewTime(s.now().Add(-repetitionLead).Truncate(time.Second))
	page, err := call[api.OperationPage](s.ListRetries(ctx, &api.ListRetriesParams{
		TenantID: request.TenantID, Limit: new(api.Limit(largestPage)),
	}))
	if err != nil {
		return before, err
	}
	for i := range page.Operations {
		op := &page.Operations[i]
		if !r.repeats(op, request) || !op.Filter.CreatedBefore.After(request.CreatedAfter.Time) ||
			!op.Filter.CreatedBefore.After(request.EndedAfter.Time) {
			continue
		}
		patch := op.PayloadPatch
		if patch == nil { // A list leaves out a long one.
			full, err := s.operation(ctx, op.OperationID, 1)
			if err != nil {
				return before, err
			}
			patch = full.PayloadPatch
		}
		if sameJSON(patch, request.PayloadPatch) {
			fmt.Fprintf(s.Stderr,
				"lucius: goes on with the jobs accepted before %s, as operation %s did: --created-before selects others\n",
				op.Filter.CreatedBefore.UTC().Format(time.RFC3339), op.OperationID)
			return op.Filter.CreatedBefore, nil
		}
	}
	fmt.Fprintf(s.Stderr, "lucius: repeats jobs accepted before %s\n", before.UTC().Format(time.RFC3339))
	return before, nil
}

// sameJSON reports whether two values, which may be absent, are equal.
func sameJSON(a, b json.RawMessage) bool {
	return reflect.DeepEqual(exactly(a), exactly(b))
}

// exactly decodes JSON, or nothing, without rounding its numbers.
func exactly(text []byte) (value any) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	_ = decoder.Decode(&value) // It is JSON, or empty.
	return value
}

// repeats reports whether the operation has the filters and the edits of the request. It leaves out
// the patch, which lists may lack, the times of acceptance, and those of the end that are given as
// ages, which were other times then.
func (r *retry) repeats(op *api.Operation, request *api.RetryRequest) bool {
	describe := func(filter api.OperationFilter, start string, edits ...any) string {
		filter.CreatedAfter, filter.CreatedBefore = api.Time{}, api.Time{}
		text, _ := json.Marshal([]any{filter, start, edits})
		return string(text)
	}
	wanted := api.OperationFilter{
		TenantID: value(request.TenantID), DocID: value(request.DocID), Tags: request.Tags, RequestType: value(request.RequestType),
		State: api.JobState(request.State), Service: value(request.Service), StepType: value(request.StepType),
		ErrorCode: value(request.ErrorCode), EndedAfter: request.EndedAfter, EndedBefore: request.EndedBefore,
	}
	if _, err := period(r.endedAfter); err == nil && !op.Filter.EndedAfter.IsZero() {
		wanted.EndedAfter = op.Filter.EndedAfter
	}
	if _, err := period(r.endedBefore); err == nil && !op.Filter.EndedBefore.IsZero() {
		wanted.EndedBefore = op.Filter.EndedBefore
	}
	start := cmp.Or(value(request.FromStep), string(cmp.Or(request.From, api.RerunFromStart)))
	return !op.Named &&
		describe(op.Filter, cmp.Or(op.FromStep, string(op.From)), op.Protocol, op.Callbacks, op.Priority) ==
			describe(wanted, start, request.Protocol, request.Callbacks, request.Priority)
}
