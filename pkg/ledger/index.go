package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The index rows are hints: written before the commit that they describe, never
// changed, and compared with the job when they are read. A job has one in each list from its
// acceptance and one from its end, all sorted by the job's id, newest first, so that
// a command that is accepted on a second try is not listed twice. Only the index of live
// jobs follows each change, in the same atomic write.
const (
	indexJobs        = "jobs"        // by tenant and month of acceptance
	indexEnded       = "ended"       // by tenant, month of acceptance and terminal state
	indexLive        = "live"        // by tenant and state, see [Ledger.ListsLive]
	indexCorrelation = "correlation" // by correlation id, in it by tenant
	indexTenants     = "tenants"     // one row for each tenant
	indexDocuments   = "doc"         // by a hash of tenant and doc_id
	indexTags        = "tags"        // by tenant and month of acceptance, in it by key and value
	// indexReruns has a row for each rerun, by tenant, month of acceptance of the job that
	// it supersedes, and that job. The row is marked before the commit of the rerun's
	// cancellation, and deleted by its purge.
	indexReruns = "reruns"
)

// newestFirst minus a time in milliseconds is a key that sorts the newest first.
const newestFirst = 9_999_999_999_999

// IndexRow is one index row: a job that may match.
type IndexRow struct {
	JobID      string            `column:"job_id"`
	DocID      string            `column:"doc_id"`
	Tags       statemachine.Tags `column:"tags"`
	Supersedes string            `column:"supersedes"` // where the reruns of a cancelled job are listed
	// The rest is set in the rows of ended jobs, and of live jobs by state: the current or
	// last step, the code of its last failure if the job is live or FAILED_FINAL, and when
	// the job ended.
	RequestType string    `column:"request_type"`
	StepType    string    `column:"step_type"`
	Service     string    `column:"service"`
	ErrorCode   string    `column:"error_code"`
	EndedAt     time.Time `column:"ended_at"`
}

// IndexEntry is an index row, with the newest rerun of its job if the query asks for it. The rerun's
// accept may be under way, or have been lost within the last [RerunGrace].
type IndexEntry struct {
	IndexRow
	SupersededBy string
}

// RerunGrace is the age of a job id after which a listed rerun is known to be committed: by
// then the schedule entry of a lost accept has deleted its row.
const RerunGrace = 4 * orphanGrace

// tenantRow lists a tenant.
type tenantRow struct {
	TenantID string `column:"tenant_id"`
}

// rerunRow lists a rerun.
type rerunRow struct {
	JobID      string `column:"job_id"`
	Supersedes string `column:"supersedes"`
	Cancelled  bool   `column:"cancelled"` // the rerun may have been cancelled
}

var (
	indexCodec  = tablestore.NewCodec[IndexRow]()
	tenantCodec = tablestore.NewCodec[tenantRow]()
	rerunCodec  = tablestore.NewCodec[rerunRow]()
)

// IndexQuery names a list of jobs of one tenant.
type IndexQuery struct {
	TenantID string
	// Month is any time in the month of acceptance.
	Month time.Time
	// State is a terminal state, or empty for all jobs. If the ledger lists live jobs, it may
	// be any state; Month is not used for those of live jobs.
	State statemachine.JobState
	// Reruns asks for the newest rerun of each job that is in State, if that is terminal.
	Reruns bool
	// CorrelationID lists the jobs with that id, of all months.
	CorrelationID string
	// DocID lists the jobs of that document, of all months, and Tag, "key=value", those with that
	// tag.
	DocID, Tag string
	// After is the job after which the page begins, or empty. It need not be in the
	// list.
	After string
	Limit int
}

// Index returns one page of a list, newest first, and whether there is more.
func (l *Ledger) Index(ctx context.Context, q IndexQuery) ([]IndexEntry, bool, error) {
	first := l.indexKey(&q, "")
	query := tablestore.Query{Table: first.Table, Partition: first.Partition, From: first.Row, Limit: q.Limit}
	if first.Row != "" {
		query.To = tablestore.PrefixEnd(first.Row)
	}
	if q.After != "" {
		query.From = l.indexKey(&q, q.After).Row + "\x00"
	}
	page, err := l.page(ctx, query)
	if err != nil {
		return nil, false, fmt.Errorf("read the job index: %w", err)
	}
	entries := make([]IndexEntry, len(page.Rows))
	for i := range page.Rows {
		if err := indexCodec.Decode(&page.Rows[i], &entries[i].IndexRow); err != nil {
			return nil, false, fmt.Errorf("read the job index: %w", err)
		}
	}
	if q.Reruns {
		jobs := make([]*statemachine.Job, len(entries))
		for i := range entries {
			jobs[i] = &statemachine.Job{ID: entries[i].JobID, TenantID: q.TenantID, State: q.State, Supersedes: entries[i].Supersedes}
		}
		by, err := l.Superseded(ctx, jobs)
		if err != nil {
			return nil, false, err
		}
		for i := range by {
			entries[i].SupersededBy = by[i]
		}
	}
	return entries, page.Next != "", nil
}

// reruns returns the newest rerun that was not cancelled, by the job that it supersedes.
func (l *Ledger) reruns(ctx context.Context, tenantID string, rows []rerunRow) (map[string]string, error) {
	reruns := make(map[string]string, len(rows))
	for _, row := range rows {
		if reruns[row.Supersedes] != "" { // The newest is the first.
			continue
		}
		id, err := row.JobID, error(nil)
		if row.Cancelled {
			id, err = l.standing(ctx, tenantID, id)
		}
		if err != nil {
			return nil, err
		}
		reruns[row.Supersedes] = id
	}
	return reruns, nil
}

// Superseded returns [Ledger.SupersededBy] of each of the jobs, in their order. It reads the jobs
// of one tenant and month in one scan, unless that would read many rows of other jobs.
func (l *Ledger) Superseded(ctx context.Context, jobs []*statemachine.Job) ([]string, error) {
	by := make([]string, len(jobs))
	groups := map[string][]int{}
	for i, job := range jobs {
		if id := supersedable(job); job.State.Terminal() {
			group := fmt.Sprint(l.rerunsOf(job.TenantID, id).Partition, id == job.ID) // Others may be much older.
			groups[group] = append(groups[group], i)
		}
	}
	for _, group := range groups {
		order := func(i int) string { return ListOrder(supersedable(jobs[i])) }
		slices.SortFunc(group, func(i, j int) int { return strings.Compare(order(i), order(j)) })
		first, last := jobs[group[0]], jobs[group[len(group)-1]]
		reruns, few, err := l.rerunsBetween(ctx, first.TenantID, supersedable(first), supersedable(last), len(group))
		for _, i := range group {
			if by[i] = reruns[supersedable(jobs[i])]; err == nil && (!few || by[i] == jobs[i].ID) { // A late write removed its mark.
				by[i], err = l.SupersededBy(ctx, jobs[i])
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return by, nil
}

// rerunsBetween returns [Ledger.reruns] of all jobs in a list from the first to the last, which are of
// one tenant and month. It returns nothing, and false, if these have many more reruns than the jobs
// that the caller asks for: then it is cheaper to read those of each.
func (l *Ledger) rerunsBetween(ctx context.Context, tenantID, first, last string, asked int) (map[string]string, bool, error) {
	query := l.rerunsOf(tenantID, last)
	query.From, query.Limit = ListOrder(first), 1000
	var rows []rerunRow
	for {
		page, err := l.page(ctx, query)
		if err != nil {
			return nil, false, fmt.Errorf("read the reruns of jobs: %w", err)
		}
		for i := range page.Rows {
			var row rerunRow
			if err := rerunCodec.Decode(&page.Rows[i], &row); err != nil {
				return nil, false, fmt.Errorf("read the reruns of jobs: %w", err)
			}
			rows = append(rows, row)
		}
		if query.Continue = page.Next; query.Continue == "" {
			reruns, err := l.reruns(ctx, tenantID, rows)
			return reruns, err == nil, err
		}
		if len(rows) >= 1000+2*asked {
			return nil, false, nil
		}
	}
}

// standing returns the id of a listed rerun that was not cancelled. If it was, it returns
// the newest uncancelled rerun of that rerun, empty if there is none.
func (l *Ledger) standing(ctx context.Context, tenantID, id string) (string, error) {
	agg, err := l.Job(ctx, id)
	switch {
	case errors.Is(err, ErrJobNotFound):
		return "", nil
	case err != nil || agg.Job.State != statemachine.JobCancelled:
		return id, err
	}
	return l.newestRerun(ctx, tenantID, id)
}

// newestRerun returns the newest rerun that is listed under a job and was not cancelled.
func (l *Ledger) newestRerun(ctx context.Context, tenantID, jobID string) (string, error) {
	rows, err := rerunCodec.ScanAll(ctx, l.store, l.rerunsOf(tenantID, jobID))
	if err != nil {
		return "", fmt.Errorf("read the reruns of job %s: %w", jobID, err)
	}
	for _, row := range rows {
		if id, err := l.standing(ctx, tenantID, row.JobID); id != "" || err != nil {
			return id, err
		}
	}
	return "", nil
}

// SupersededBy returns the newest rerun of this job that was not cancelled, empty if there
// is none.
func (l *Ledger) SupersededBy(ctx context.Context, job *statemachine.Job) (string, error) {
	if !job.State.Terminal() {
		return "", nil
	}
	return l.newestRerun(ctx, job.TenantID, supersedable(job))
}

// supersedable returns the id of the job under which reruns of this job are listed: a
// cancelled rerun leaves the chain, and its own rerun takes its place.
func supersedable(job *statemachine.Job) string {
	if job.State == statemachine.JobCancelled && job.Supersedes != "" {
		return job.Supersedes
	}
	return job.ID
}

// rerunsOf selects the rows of a job's reruns, the newest first.
func (l *Ledger) rerunsOf(tenantID, jobID string) tablestore.Query {
	prefix := ListOrder(jobID) + ":"
	return tablestore.Query{
		Table: l.tables.Index, Partition: tablestore.Join(indexReruns, tenantID, IDTime(jobID).Format("200601")),
		From: prefix, To: tablestore.PrefixEnd(prefix),
	}
}

// rerunKey addresses the row that lists a rerun under the job that it supersedes.
func (l *Ledger) rerunKey(job *statemachine.Job) tablestore.Key {
	query := l.rerunsOf(job.TenantID, job.Supersedes)
	return tablestore.Key{Table: query.Table, Partition: query.Partition, Row: query.From + ListOrder(job.ID)}
}

// indexRerun lists a rerun, or marks it if it is being cancelled.
func (l *Ledger) indexRerun(job *statemachine.Job) tablestore.Batch {
	row := rerunRow{job.ID, job.Supersedes, job.State == statemachine.JobCancelled}
	return tablestore.Batch{{Verb: tablestore.Put, Key: l.rerunKey(job), Properties: rerunCodec.Encode(&row, nil)}}
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

// indexKey returns the key of a job's row in a list. Without a job, the key's row is the
// prefix of all rows of the list.
func (l *Ledger) indexKey(q *IndexQuery, jobID string) tablestore.Key {
	key := tablestore.Key{Table: l.tables.Index}
	if jobID != "" {
		key.Row = ListOrder(jobID)
	}
	switch month := q.Month.UTC().Format("200601"); {
	case q.DocID != "":
		sum := sha256.Sum256([]byte(tablestore.Join(q.TenantID, q.DocID)))
		key.Partition = tablestore.Join(indexDocuments, hex.EncodeToString(sum[:]))
	case q.Tag != "":
		name, value, _ := strings.Cut(q.Tag, "=")
		key.Partition = tablestore.Join(indexTags, q.TenantID, month)
		key.Row = tablestore.Join(name, value, "") + key.Row
	case q.CorrelationID != "":
		key.Partition = tablestore.Join(indexCorrelation, q.CorrelationID)
		key.Row = tablestore.Join(q.TenantID, "") + key.Row
	case q.State != "" && !q.State.Terminal():
		key.Partition = tablestore.Join(indexLive, q.TenantID, string(q.State))
	case q.State != "":
		key.Partition = tablestore.Join(indexEnded, q.TenantID, month, string(q.State))
	default:
		key.Partition = tablestore.Join(indexJobs, q.TenantID, month)
	}
	return key
}

// CorrelatedTenants returns at most limit tenants that have jobs with that correlation id.
// It reads one row per tenant.
func (l *Ledger) CorrelatedTenants(ctx context.Context, correlationID string, limit int) ([]string, error) {
	query := tablestore.Query{
		Table: l.tables.Index, Partition: tablestore.Join(indexCorrelation, correlationID), Limit: 1,
	}
	var tenants []string
	for len(tenants) < limit {
		page, err := l.page(ctx, query)
		if err != nil {
			return nil, fmt.Errorf("read the job index: %w", err)
		}
		if len(page.Rows) == 0 {
			break
		}
		parts, err := tablestore.Split(page.Rows[0].Key.Row)
		if err != nil {
			return nil, fmt.Errorf("read the job index: %w", err)
		}
		tenants = append(tenants, parts[0])
		query.From = tablestore.PrefixEnd(tablestore.Join(parts[0], ""))
	}
	return tenants, nil
}

// indexKeys returns the keys of the rows that list a job. For an ended job, the last one is
// in the index of ended jobs.
func (l *Ledger) indexKeys(job *statemachine.Job) []tablestore.Key {
	queries := []IndexQuery{{TenantID: job.TenantID, Month: IDTime(job.ID)}}
	if job.CorrelationID != "" {
		queries = append(queries, IndexQuery{TenantID: job.TenantID, CorrelationID: job.CorrelationID})
	}
	if job.DocID != "" {
		queries = append(queries, IndexQuery{TenantID: job.TenantID, DocID: job.DocID})
	}
	for tag := range job.Tags.All() {
		queries = append(queries, IndexQuery{TenantID: job.TenantID, Month: IDTime(job.ID), Tag: tag})
	}
	if job.State.Terminal() {
		queries = append(queries, IndexQuery{TenantID: job.TenantID, Month: IDTime(job.ID), State: job.State})
	}
	keys := make([]tablestore.Key, len(queries))
	for i := range queries {
		keys[i] = l.indexKey(&queries[i], job.ID)
	}
	if job.Supersedes != "" {
		keys = append([]tablestore.Key{l.rerunKey(job)}, keys...)
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
		ID: job.ID, TenantID: job.TenantID, CorrelationID: job.CorrelationID, DocID: job.DocID, Tags: job.Tags,
	}) {
		put(key, indexCodec.Encode(&IndexRow{JobID: job.ID, DocID: job.DocID, Tags: job.Tags, Supersedes: job.Supersedes}, nil))
	}
	if _, listed := l.tenants.Load(job.TenantID); !listed {
		put(tablestore.Key{Table: l.tables.Index, Partition: indexTenants, Row: tablestore.Join(job.TenantID)},
			tenantCodec.Encode(&tenantRow{job.TenantID}, nil))
	}
	return merged(stage)
}

// indexEndedJob adds an ended job to the index of ended jobs, and marks the row of a
// cancelled rerun.
func (l *Ledger) indexEndedJob(agg *statemachine.Aggregate) tablestore.Stage {
	job := &agg.Job
	keys := l.indexKeys(job)
	entry := IndexRowOf(agg)
	stage := tablestore.Stage{{{Verb: tablestore.Put, Key: keys[len(keys)-1], Properties: indexCodec.Encode(&entry, nil)}}}
	if job.Supersedes != "" && job.State == statemachine.JobCancelled {
		stage = append(stage, l.indexRerun(job))
	}
	return stage
}

// IndexRowOf returns the row of a job in the index of its state.
func IndexRowOf(agg *statemachine.Aggregate) IndexRow {
	job, step := &agg.Job, &agg.Steps[agg.Job.CurrentStepIndex]
	row := IndexRow{
		JobID: job.ID, DocID: job.DocID, Tags: job.Tags, Supersedes: job.Supersedes,
		RequestType: job.RequestType, StepType: step.Type, Service: step.Service, EndedAt: job.CompletedAt,
	}
	switch {
	case job.State == statemachine.JobFailedFinal:
		row.ErrorCode = job.ErrorCode
	case !job.State.Terminal():
		row.ErrorCode = step.LastErrorCode
	}
	return row
}

// ListsLive reports whether live jobs are listed by their state. If they are, each live job
// has one row, which its changes move in the same write. The store must be atomic, and other
// processes write it too, or else [search.Counts] knows the live jobs without it. It must have been
// so since its first job.
func (l *Ledger) ListsLive() bool { return l.listsLive }

// relist writes the job's row in the index of live jobs, and removes the row of its former
// state.
func (p *planner) relist(out *plan) {
	before, after := &p.s.agg, &p.d.After
	if !p.l.listsLive || before.Job.State.Terminal() {
		return
	}
	keyOf := func(job *statemachine.Job) tablestore.Key {
		return p.l.indexKey(&IndexQuery{TenantID: job.TenantID, State: job.State}, job.ID)
	}
	moved := !p.isAccept() && before.Job.State != after.Job.State
	if moved { // Not in a Post stage, which a conflict of another may leave out.
		out.beforeCommit(tablestore.Stage{{{Verb: tablestore.Discard, Key: keyOf(&before.Job)}}})
	}
	if row := IndexRowOf(after); !after.Job.State.Terminal() && (moved || p.isAccept() || row != IndexRowOf(before)) {
		out.beforeCommit(tablestore.Stage{{{Verb: tablestore.Put, Key: keyOf(&after.Job), Properties: indexCodec.Encode(&row, nil)}}})
	}
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
		tenants[i] = page.Rows[i].Properties.Get("tenant_id").String()
	}
	return tenants, nil
}
