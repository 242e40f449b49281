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

// strayTables are the tables whose rows must each be some job's.
func (a *Auditor) strayTables() []string {
	t := &a.o.Tables
	return []string{t.Schedule, t.Inflight, t.Idempotency, t.Index, t.Queue}
}

// strays looks for rows of a table that no job accounts for.
func (a *Auditor) strays(ctx context.Context, table string) error {
	return a.walk(ctx, table, func(row tablestore.Row) error {
		finding, err := a.stray(ctx, &row)
		if err != nil || finding == nil {
			return err
		}
		a.suspect = append(a.suspect, suspicion{
			findings: []Finding{*finding},
			again:    func(ctx context.Context) ([]Finding, error) { return a.strayAgain(ctx, row.Key) },
		})
		return nil
	})
}

// strayAgain looks at a row anew, and at its job.
func (a *Auditor) strayAgain(ctx context.Context, key tablestore.Key) ([]Finding, error) {
	row, err := a.cfg.Store.Get(ctx, key)
	if errors.Is(err, tablestore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	delete(a.known, a.subject(&row))
	finding, err := a.stray(ctx, &row)
	if err != nil || finding == nil {
		return nil, err
	}
	return []Finding{*finding}, nil
}

// subject is the job that a row is about, empty where it is about none.
func (a *Auditor) subject(row *tablestore.Row) string {
	kind, _, _ := strings.Cut(row.Key.Partition, ":")
	switch row.Key.Table {
	case a.o.Tables.Schedule:
		parts, err := tablestore.Split(row.Key.Row)
		if err != nil || len(parts) != 3 || !scheduled[kind] {
			return ""
		}
		return parts[1]
	case a.o.Tables.Queue:
		hint, _ := readHint(row)
		return hint.jobID
	case a.o.Tables.Index:
		if kind == "tenants" {
			return ""
		}
	}
	return row.Properties.Get("job_id").String()
}

// scheduled are the kinds of schedule entries.
var scheduled = map[string]bool{"timer": true, "dispatch": true, "webhook": true, "retention": true}

// stray judges one row against its job.
func (a *Auditor) stray(ctx context.Context, row *tablestore.Row) (*Finding, error) {
	if row.Key.Table == a.o.Tables.Queue {
		return a.strayQueue(ctx, row)
	}
	jobID := a.subject(row)
	if jobID == "" {
		return nil, nil
	}
	job, there, err := a.fact(ctx, jobID)
	if err != nil {
		return nil, err
	}
	finding := func(rule Invariant, late bool, format string, args ...any) (*Finding, error) {
		return &Finding{Invariant: rule, Late: late, JobID: jobID, Detail: fmt.Sprintf(format, args...)}, nil
	}
	if row.Key.Table == a.o.Tables.Schedule {
		if text := a.strayEntry(row, &job, there); text != "" {
			return finding(Forward, true, "%s", text)
		}
		return nil, nil
	}
	age := row.Properties.Get("created_at").Time()
	if age.IsZero() {
		age = idTime(jobID)
	}
	old := a.o.Now.After(age.Add(a.o.Slack))
	gone := !there || job.tombstone
	switch table := row.Key.Table; {
	case table == a.o.Tables.Idempotency && !there && row.Properties.Get("state").String() == "committed":
		return finding(Accepted, false, "its idempotency key was confirmed, and it is not there")
	case table == a.o.Tables.Idempotency && gone && old:
		return finding(Claim, true, "its idempotency key is claimed since %s, and it never came", stamp(age))
	case table == a.o.Tables.Inflight && old && (gone || job.slot != row.Key):
		return finding(Slot, true, "slot %s is taken for it since %s, and it does not hold it", row.Key.Row, stamp(age))
	case table == a.o.Tables.Index && !there && old:
		return finding(Listed, true, "it is in the list %s, and not there", row.Key.Partition)
	}
	return nil, nil
}

// strayEntry says what is wrong with a schedule entry that is long overdue.
func (a *Auditor) strayEntry(row *tablestore.Row, job *fact, there bool) string {
	parts, _ := tablestore.Split(row.Key.Row)
	ms, err := strconv.ParseInt(parts[0], 10, 64)
	due := time.UnixMilli(ms)
	if err != nil {
		return "schedule entry " + row.Key.Row + " has no time"
	}
	if !a.o.Now.After(due.Add(a.o.Slack)) || row.Key == job.entry {
		return "" // The entry that the job names is judged with the job.
	}
	kind, _, _ := strings.Cut(row.Key.Partition, ":")
	switch {
	case !there:
		return fmt.Sprintf("a %s entry was due at %s, and the job is not there", kind, stamp(due))
	case row.Properties.Get("rev").Int() > job.rev && !job.tombstone:
		return fmt.Sprintf("a %s entry for rev %d was due at %s, and the job is at %d",
			kind, row.Properties.Get("rev").Int(), stamp(due), job.rev)
	default:
		return fmt.Sprintf("a %s entry was due at %s and is still there", kind, stamp(due))
	}
}

// fact is what is known of a job, which is read where it came after the walk.
func (a *Auditor) fact(ctx context.Context, jobID string) (fact, bool, error) {
	if f, ok := a.known[jobID]; ok {
		return f, true, nil
	}
	rows, err := a.partition(ctx, a.o.Tables.Ledger, tablestore.Escape(jobID))
	if err != nil {
		return fact{}, false, fmt.Errorf("read job %s: %w", jobID, err)
	}
	e := Gather(jobID, rows)
	if e.Job == nil {
		return fact{}, false, nil
	}
	return a.factOf(e), true, nil
}
