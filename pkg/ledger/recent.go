package ledger

import (
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The limits of what a process remembers: 32 MiB at most, a few MiB with usual jobs.
const (
	maxRecentJobs = 1024
	maxRecentSize = 32 << 10 // the bytes of a job's rows
)

// recent remembers the live jobs that this process changed last, so that the next
// change of a job need not read it. Another process may have changed a job since.
// The rows' versions then fail the commit, as they do for any process that is slow
// between its load and its commit. A decision that commits nothing proves nothing,
// so it is made again for the job as it is stored: see [Ledger.change].
//
// A snapshot is taken out to be used, so no two changes share one, and a snapshot
// that lost a race is gone.
type recent struct {
	mu   sync.Mutex // A snapshot is found and taken out in one step.
	jobs *simplelru.LRU[string, *snapshot]
}

func newRecent() *recent {
	jobs, _ := simplelru.NewLRU[string, *snapshot](maxRecentJobs, nil) // It only fails without a size.
	return &recent{jobs: jobs}
}

// take removes the job's snapshot and returns it, nil if there is none.
func (r *recent) take(jobID string) *snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, _ := r.jobs.Peek(jobID)
	r.jobs.Remove(jobID)
	return s
}

// committed remembers the job as the plan left it. etags has the versions that the
// commit wrote; without them the job is not remembered.
func (r *recent) committed(plan *plan, etags map[tablestore.Key]tablestore.ETag) {
	if len(etags) == 0 || plan.ended {
		return
	}
	next := plan.snapshot(etags)
	if next.size() > maxRecentSize {
		next.command, next.directive = tablestore.Row{}, tablestore.Row{}
	}
	if next.size() <= maxRecentSize {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.jobs.Add(next.agg.Job.ID, next)
	}
}

// snapshot returns what loading the job would return after the commit, except the rows of
// earlier attempts.
func (out *plan) snapshot(etags map[tablestore.Key]tablestore.ETag) *snapshot {
	next := *out.base
	next.agg, next.head, next.open, next.outboxes = out.after, out.head, out.open, nil
	next.steps = slices.Clone(next.steps)
	for i := range out.change.Commit {
		op := &out.change.Commit[i]
		row := tablestore.Row{Key: op.Key, ETag: etags[op.Key], Properties: op.Properties}
		switch kind, _, _ := strings.Cut(op.Key.Row, ":"); kind {
		case rowCommand:
			next.command = row
		case rowDirective:
			next.directive = row
		case rowJob:
			next.job = row
		case rowOutbox:
			next.outbox = row // In the batch a new attempt's row comes after the row that it replaces.
		case rowOpenItem:
			next.openRow = row // A new item's row comes after the deletion of the old item's.
		case rowStep:
			same := func(step tablestore.Row) bool { return step.Key == row.Key }
			if at := slices.IndexFunc(next.steps, same); at >= 0 {
				next.steps[at] = row
			} else {
				next.steps = append(next.steps, row)
			}
		}
	}
	if next.agg.Outbox == nil {
		next.outbox = tablestore.Row{}
	}
	if next.open == nil {
		next.openRow = tablestore.Row{}
	}
	return &next
}

// size returns the approximate size of the rows in bytes.
func (s *snapshot) size() int {
	size := 0
	add := func(row *tablestore.Row) {
		for i := range row.Properties {
			size += len(row.Properties[i].Value.String())
		}
	}
	for _, row := range []*tablestore.Row{&s.job, &s.outbox, &s.openRow, &s.command, &s.directive} {
		add(row)
	}
	for i := range s.steps {
		add(&s.steps[i])
	}
	return size
}
