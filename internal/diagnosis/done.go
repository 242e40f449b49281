package diagnosis

import (
	"strings"

	"github.com/lucius-project/lucius/api"
)

// mostFollowed bounds the operations that [Situation.Done] returns.
const mostFollowed = 5

// Done returns the last operation about each finding. The caller reads their results into them, so
// that [Findings] can say whether the operations helped.
func (s *Situation) Done() (last []*api.Operation) {
	known := map[*api.Operation]bool{}
	for _, f := range Findings(s) {
		if op := s.lastDone(&f); op != nil && !known[op] && len(last) < mostFollowed {
			known[op], last = true, append(last, op)
		}
	}
	return last
}

// lastDone returns the newest operation that selected jobs by the cause, or nil.
func (s *Situation) lastDone(f *Finding) *api.Operation {
	if f.Service == "" {
		return nil
	}
	for i := range s.Operations {
		op := &s.Operations[i]
		by := &op.Filter
		if op.Matched > 0 && by.State != api.JobStateSucceeded && by.Service == f.Service &&
			(by.ErrorCode == "" || by.ErrorCode == f.ErrorCode) && (f.Tenant == "" || by.TenantID == f.Tenant) {
			return op
		}
	}
	return nil
}

// doneAbout says what an operation did, when, by whom, and what became of its jobs.
func doneAbout(op *api.Operation) Sentence {
	verb := map[api.OperationKind]string{
		api.OperationKindRetry: "retried", api.OperationKindCancel: "cancelled",
		api.OperationKindPause: "paused", api.OperationKindResume: "resumed",
	}[op.Kind]
	count := Counted(op.Applied, "job", "jobs")
	if op.State == api.OperationStateRunning {
		count = Number(op.Applied) + " of " + Counted(op.Matched, "job", "jobs") + " so far"
	}
	text := say(verb, " ", count, " ", when{Ago, op.CreatedAt.Time})
	if op.Filter.TenantID != "" {
		text = say(text, ", of tenant ", op.Filter.TenantID)
	}
	if op.Caller != "" {
		text = say(text, " by ", op.Caller)
	}
	if results := Results(op); results != "" {
		text = say(text, ": ", results)
	}
	return text
}

// Results says what became of the jobs of an operation, empty if that is not known.
func Results(op *api.Operation) string {
	of := op.Results
	if of == nil || of.Counted == 0 {
		return ""
	}
	failed, live := "failed", "still run"
	if op.Kind == api.OperationKindRetry {
		failed = "failed again"
	}
	if of.Live == 1 {
		live = "still runs"
	}
	var parts []string
	for _, part := range []struct {
		n    int
		what string
	}{{of.Succeeded, "succeeded"}, {of.Failed, failed}, {of.Cancelled, "cancelled"}, {of.Live, live}} {
		if part.n > 0 {
			parts = append(parts, Number(part.n)+" "+part.what)
		}
	}
	text := strings.Join(parts, ", ")
	if of.Counted < op.Applied {
		text += " of the " + Number(of.Counted) + " that were looked at"
	}
	return text
}
