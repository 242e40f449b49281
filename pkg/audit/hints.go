package audit

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// hint is a row of the ready index, as its key has it.
type hint struct {
	jobID string
	since time.Time
	rev   int64
}

// readHint reads the key of a ready hint; any other row of the queue's table is the
// zero hint.
func readHint(row *tablestore.Row) (hint, error) {
	if !strings.HasPrefix(row.Key.Partition, "ready:") {
		return hint{}, nil
	}
	parts, err := tablestore.Split(row.Key.Row)
	if err != nil || len(parts) != 5 {
		return hint{}, errors.Join(errors.New("its key has not five parts"), err)
	}
	ms, err1 := strconv.ParseInt(parts[1], 10, 64)
	rev, err2 := strconv.ParseInt(parts[4], 10, 64)
	jobID := parts[2]
	for range 2 { // A work id is the job's, the step's index and an attempt.
		jobID = jobID[:max(strings.LastIndexByte(jobID, '.'), 0)]
	}
	if jobID == "" {
		err = fmt.Errorf("%q is no work id", parts[2])
	}
	return hint{jobID: jobID, since: time.UnixMilli(ms).UTC(), rev: rev}, errors.Join(err, err1, err2)
}

// strayQueue judges one row of the queue's table. Its catalog comes first in it.
func (a *Auditor) strayQueue(ctx context.Context, row *tablestore.Row) (*Finding, error) {
	if row.Key.Partition == "catalog" {
		a.kinds[row.Key.Row] = true
		return nil, nil
	}
	h, err := readHint(row)
	finding := func(rule Invariant, late bool, format string, args ...any) (*Finding, error) {
		text := fmt.Sprintf("ready hint %s in %s: ", row.Key.Row, row.Key.Partition)
		return &Finding{Invariant: rule, Late: late, JobID: h.jobID, Detail: text + fmt.Sprintf(format, args...)}, nil
	}
	switch {
	case err != nil:
		return finding(Readable, false, "%v", err)
	case h.jobID == "":
		return nil, nil
	}
	known, err := a.cataloged(ctx, row.Key.Partition)
	if err != nil {
		return nil, err
	}
	if !known {
		return finding(Queue, false, "its kind of work is not in the catalog")
	}
	job, there, err := a.fact(ctx, h.jobID)
	if err != nil {
		return nil, err
	}
	overdue := a.o.Now.After(h.since.Add(a.o.Slack))
	switch {
	case row.Key == job.hint || !overdue:
		return nil, nil
	case !there && h.rev == 1:
		return finding(Queue, true, "the job never came")
	case there && !job.tombstone && h.rev > job.rev:
		return finding(Queue, true, "the job is at rev %d", job.rev)
	case there && !a.o.Now.After(job.updated.Add(a.o.Slack)):
		return nil, nil // It may have been named until the job's last change.
	default:
		return finding(Queue, !a.o.Quiescent, "no work item names it")
	}
}

// cataloged reports whether the kind of work of a partition of the ready index is in
// the catalog, by which claims find it.
func (a *Auditor) cataloged(ctx context.Context, partition string) (bool, error) {
	name := strings.TrimPrefix(partition, "ready:")
	name = name[:max(strings.LastIndexByte(name, ':'), 0)]
	if a.kinds[name] {
		return true, nil
	}
	// It may have come after the walk went past the catalog.
	_, err := a.cfg.Store.Get(ctx, tablestore.Key{Table: a.o.Tables.Queue, Partition: "catalog", Row: name})
	if errors.Is(err, tablestore.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the catalog of the pull queue: %w", err)
	}
	a.kinds[name] = true
	return true, nil
}
