package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The index rows are hints: written before the commit that they describe, never
// changed, and compared with the job when they are read. A job has one from its
// acceptance and one from its end, both sorted by the job's id, newest first, so that
// a command that is accepted on a second try is not listed twice.
const (
	indexJobs        = "jobs"        // by tenant and month of acceptance
	indexEnded       = "ended"       // by tenant, month of acceptance and terminal state
	indexCorrelation = "correlation" // by tenant and correlation id
	indexTenants     = "tenants"     // one row for each tenant
)

// newestFirst minus a time in milliseconds is a key that sorts the newest first.
const newestFirst = 9_999_999_999_999

// IndexEntry is one index row: a job that may match.
type IndexEntry struct {
	JobID string
	// The rest is set in the rows of ended jobs: when a job ended, and what failed.
	RequestType string
	StepType    string
	ErrorCode   string
	EndedAt     time.Time
}

const columnTenant = "tenant_id"

var (
	indexCodec = newCodec(
		text(columnJob, func(e *IndexEntry) *string { return &e.JobID }),
		text("request_type", func(e *IndexEntry) *string { return &e.RequestType }),
		text("step_type", func(e *IndexEntry) *string { return &e.StepType }),
		text("error_code", func(e *IndexEntry) *string { return &e.ErrorCode }),
		instant("ended_at", func(e *IndexEntry) *time.Time { return &e.EndedAt }),
	)
	tenantCodec = newCodec(text(columnTenant, func(name *string) *string { return name }))
)

// IndexQuery names a list of jobs of one tenant.
type IndexQuery struct {
	TenantID string
	// Month is any time in the month of acceptance.
	Month time.Time
	// State is a terminal state, or empty for all jobs.
	State statemachine.JobState
	// CorrelationID lists the jobs with that id, of all months.
	CorrelationID string
	// After is the job after which the page begins, or empty. It need not be in the
	// list.
	After string
	Limit int
}

// Index returns one page of a list, newest first, and whether there is more.
func (l *Ledger) Index(ctx context.Context, q IndexQuery) ([]IndexEntry, bool, error) {
	query := tablestore.Query{Table: l.tables.Index, Partition: q.partition(), Limit: q.Limit}
	if q.After != "" {
		query.From = ListOrder(q.After) + "\x00"
	}
	page, err := l.page(ctx, query)
	if err != nil {
		return nil, false, fmt.Errorf("read the job index: %w", err)
	}
	entries := make([]IndexEntry, len(page.Rows))
	for i := range page.Rows {
		if err := indexCodec.decode(&page.Rows[i], &entries[i]); err != nil {
			return nil, false, fmt.Errorf("read the job index: %w", err)
		}
	}
	return entries, page.Next != "", nil
}

// page reads one page of a query. A store may return empty pages before the end; it
// skips those.
func (l *Ledger) page(ctx context.Context, query tablestore.Query) (tablestore.Page, error) {
	for {
		page, err := l.store.Scan(ctx, query)
		if err != nil || len(page.Rows) > 0 || page.Next == "" {
			return page, err
		}
		query.Continue = page.Next
	}
}

// partition returns the partition of the list's rows.
func (q *IndexQuery) partition() string {
	switch month := q.Month.UTC().Format("200601"); {
	case q.CorrelationID != "":
		return tablestore.Join(indexCorrelation, q.TenantID, q.CorrelationID)
	case q.State != "":
		return tablestore.Join(indexEnded, q.TenantID, month, string(q.State))
	default:
		return tablestore.Join(indexJobs, q.TenantID, month)
	}
}

// indexKeys returns the keys of the rows that list a job. The row of its end is the
// last.
func (l *Ledger) indexKeys(job *statemachine.Job) []tablestore.Key {
	queries := []IndexQuery{{TenantID: job.TenantID, Month: IDTime(job.ID)}}
	if job.CorrelationID != "" {
		queries = append(queries, IndexQuery{TenantID: job.TenantID, CorrelationID: job.CorrelationID})
	}
	if job.State.Terminal() {
		queries = append(queries, IndexQuery{TenantID: job.TenantID, Month: IDTime(job.ID), State: job.State})
	}
	keys := make([]tablestore.Key, len(queries))
	for i := range queries {
		keys[i] = tablestore.Key{Table: l.tables.Index, Partition: queries[i].partition(), Row: ListOrder(job.ID)}
	}
	return keys
}

// indexAccepted lists an accepted job, and its tenant if that may be new.
func (l *Ledger) indexAccepted(job *statemachine.Job) tablestore.Stage {
	var stage tablestore.Stage
	put := func(key tablestore.Key, row tablestore.Properties) {
		stage = append(stage, tablestore.Batch{{Verb: tablestore.Put, Key: key, Properties: row}})
	}
	for _, key := range l.indexKeys(&statemachine.Job{
		ID: job.ID, TenantID: job.TenantID, CorrelationID: job.CorrelationID,
	}) {
		put(key, indexCodec.encode(&IndexEntry{JobID: job.ID}, nil))
	}
	if _, listed := l.tenants.Load(job.TenantID); !listed {
		put(tablestore.Key{Table: l.tables.Index, Partition: indexTenants, Row: tablestore.Join(job.TenantID)},
			tenantCodec.encode(&job.TenantID, nil))
	}
	return stage
}

// indexEndedJob lists an ended job by its end.
func (l *Ledger) indexEndedJob(agg *statemachine.Aggregate) tablestore.Batch {
	job := &agg.Job
	keys := l.indexKeys(job)
	entry := IndexEntry{JobID: job.ID, RequestType: job.RequestType, EndedAt: job.CompletedAt}
	if job.State == statemachine.JobFailedFinal {
		entry.StepType, entry.ErrorCode = agg.Steps[job.CurrentStepIndex].Type, job.ErrorCode
	}
	return tablestore.Batch{{Verb: tablestore.Put, Key: keys[len(keys)-1], Properties: indexCodec.encode(&entry, nil)}}
}

// Tenants returns one page of the names of all tenants that ever had a job, after
// that name.
func (l *Ledger) Tenants(ctx context.Context, after string, limit int) ([]string, error) {
	query := tablestore.Query{Table: l.tables.Index, Partition: indexTenants, Limit: limit}
	if after != "" {
		query.From = tablestore.Join(after) + "\x00"
	}
	page, err := l.page(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("read the tenants: %w", err)
	}
	tenants := make([]string, len(page.Rows))
	for i := range page.Rows {
		tenants[i] = page.Rows[i].Properties.Get(columnTenant).String()
	}
	return tenants, nil
}
