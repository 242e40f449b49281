package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The index rows are hints: written before the commit that they speak of, never
// changed, and held against the job when they are read. A job has one from its
// acceptance and one from its end, both placed by the time in the job's id, so
// that a command that is accepted on a second try is not listed twice.
const (
	indexJobs        = "jobs"        // by tenant and month of acceptance
	indexEnded       = "ended"       // by tenant, month of acceptance and terminal state
	indexCorrelation = "correlation" // by tenant and correlation id
	indexTenants     = "tenants"     // one row for each tenant
)

// newestFirst turns milliseconds into a key that sorts the newest first.
const newestFirst = 9_999_999_999_999

// IndexEntry is one index row: a job that may match, to be looked at.
type IndexEntry struct {
	JobID string
	// What the row of an ended job says beside: where and why it failed, and when
	// it ended. They are unset in the other rows.
	RequestType string
	StepType    string
	ErrorCode   string
	EndedAt     time.Time
}

var indexCodec = newCodec(
	text(columnJob, func(e *IndexEntry) *string { return &e.JobID }),
	text("request_type", func(e *IndexEntry) *string { return &e.RequestType }),
	text("step_type", func(e *IndexEntry) *string { return &e.StepType }),
	text("error_code", func(e *IndexEntry) *string { return &e.ErrorCode }),
	instant("ended_at", func(e *IndexEntry) *time.Time { return &e.EndedAt }),
)

// tenantCodec holds the columns of a row that lists a tenant.
var tenantCodec = newCodec(text(columnTenant, func(name *string) *string { return name }))

const columnTenant = "tenant_id"

// IndexQuery names a list of jobs of one tenant and, but for one by correlation
// id, one month.
type IndexQuery struct {
	TenantID string
	// Month is any time in the month of acceptance.
	Month time.Time
	// State is a terminal state, or empty for all jobs.
	State statemachine.JobState
	// CorrelationID lists the jobs with that id, of all months.
	CorrelationID string
	// After is the job behind which the page begins, or empty. It need not be in
	// the list.
	After string
	Limit int
}

// Index returns one page of a list, newest first, and whether there is more.
func (l *Ledger) Index(ctx context.Context, q IndexQuery) ([]IndexEntry, bool, error) {
	query := tablestore.Query{Table: l.tables.Index, Partition: q.partition(), Limit: q.Limit}
	if q.After != "" {
		query.From = indexRow(q.After) + "\x00"
	}
	page, err := l.page(ctx, query)
	if err != nil {
		return nil, false, fmt.Errorf("read the job index: %w", err)
	}
	entries := make([]IndexEntry, 0, len(page.Rows))
	for i := range page.Rows {
		var entry IndexEntry
		if err := indexCodec.decode(&page.Rows[i], &entry); err != nil {
			return nil, false, fmt.Errorf("read the job index: %w", err)
		}
		entries = append(entries, entry)
	}
	return entries, page.Next != "", nil
}

// page reads one page of a query, and reads on past empty ones, which a store may
// give before the end.
func (l *Ledger) page(ctx context.Context, query tablestore.Query) (tablestore.Page, error) {
	for {
		page, err := l.store.Scan(ctx, query)
		if err != nil || len(page.Rows) > 0 || page.Next == "" {
			return page, err
		}
		query.Continue = page.Next
	}
}

// partition is where the list's rows lie.
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

// indexRow is the key of a job's row, by the time in its id.
func indexRow(jobID string) string {
	return tablestore.Join(tablestore.Pad(newestFirst-IDTime(jobID).UnixMilli(), 13), jobID)
}

// IDTime is the time that a job id was made at, in milliseconds, and the zero
// time for text that is no such id.
func IDTime(jobID string) time.Time {
	id, err := uuid.Parse(jobID)
	if err != nil || id.Version() != 7 {
		return time.Time{}
	}
	return time.Unix(id.Time().UnixTime()).UTC().Truncate(time.Millisecond)
}

// Tenants returns one page of the tenants that ever had a job, by name, behind
// that one.
func (l *Ledger) Tenants(ctx context.Context, after string, limit int) ([]string, error) {
	query := tablestore.Query{Table: l.tables.Index, Partition: indexTenants, Limit: limit}
	if after != "" {
		query.From = tablestore.Join(after) + "\x00"
	}
	page, err := l.page(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("read the tenants: %w", err)
	}
	tenants := make([]string, 0, len(page.Rows))
	for i := range page.Rows {
		tenants = append(tenants, page.Rows[i].Properties.Get(columnTenant).String())
	}
	return tenants, nil
}

// indexKeys are the rows that list a job of which that is known.
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
		keys[i] = tablestore.Key{Table: l.tables.Index, Partition: queries[i].partition(), Row: indexRow(job.ID)}
	}
	return keys
}

// indexAccepted are the writes that make an accepted job findable.
func (l *Ledger) indexAccepted(job *statemachine.Job) tablestore.Stage {
	var stage tablestore.Stage
	for _, key := range l.indexKeys(&statemachine.Job{
		ID: job.ID, TenantID: job.TenantID, CorrelationID: job.CorrelationID,
	}) {
		row := indexCodec.encode(&IndexEntry{JobID: job.ID}, nil)
		stage = append(stage, tablestore.Batch{{Verb: tablestore.Put, Key: key, Properties: row}})
	}
	if !l.seen.has(job.TenantID) {
		key := tablestore.Key{Table: l.tables.Index, Partition: indexTenants, Row: tablestore.Join(job.TenantID)}
		row := tenantCodec.encode(&job.TenantID, nil)
		stage = append(stage, tablestore.Batch{{Verb: tablestore.Put, Key: key, Properties: row}})
	}
	return stage
}

// indexEndedJob is the write that makes an ended job findable by its end.
func (l *Ledger) indexEndedJob(agg *statemachine.Aggregate) tablestore.Batch {
	job := &agg.Job
	keys := l.indexKeys(job)
	entry := IndexEntry{JobID: job.ID, RequestType: job.RequestType, EndedAt: job.CompletedAt}
	if job.State == statemachine.JobFailedFinal {
		entry.StepType, entry.ErrorCode = agg.Steps[job.CurrentStepIndex].Type, job.ErrorCode
	}
	return tablestore.Batch{{Verb: tablestore.Put, Key: keys[len(keys)-1], Properties: indexCodec.encode(&entry, nil)}}
}

// tenantSet is the tenants that this process has put into the index.
type tenantSet struct{ names sync.Map }

func (s *tenantSet) has(name string) bool {
	_, ok := s.names.Load(name)
	return ok
}

func (s *tenantSet) add(name string) { s.names.Store(name, true) }

// LiveJobs returns one page of the jobs of a tenant, or of all, in one shard of
// the live set, as [Ledger.LiveOf] does, but themselves. Ended and missing ones
// are left out.
func (l *Ledger) LiveJobs(ctx context.Context, tenantID string, shard, limit int, from string,
) ([]*statemachine.Aggregate, string, error) {
	ids, next, err := l.LiveOf(ctx, tenantID, shard, limit, from)
	if err != nil {
		return nil, "", err
	}
	found := make([]*statemachine.Aggregate, 0, len(ids))
	for _, id := range ids {
		agg, err := l.Job(ctx, id)
		if errors.Is(err, ErrJobNotFound) || err == nil && agg.Job.State.Terminal() {
			continue
		}
		if err != nil {
			return nil, "", err
		}
		found = append(found, agg)
	}
	return found, next, nil
}

// ParseJobID returns an error for text that cannot be a job's id.
func ParseJobID(text string) error {
	if IDTime(text).IsZero() || strings.ToLower(text) != text {
		return fmt.Errorf("%q is not a job id", text)
	}
	return nil
}
