package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Store is what an audit reads.
type Store interface {
	tablestore.Walker
	Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error)
	Scan(ctx context.Context, query tablestore.Query) (tablestore.Page, error)
}

// Config configures an audit.
type Config struct {
	Store   Store   // Required.
	Options Options // The audit sets Now, Split and the numbers of shards.
	// Confirm is how often a finding must be seen again before it counts: in a store
	// that is in use, rows that are read one after the other need not agree. Optional.
	// Defaults to 0, for a store without writers.
	Confirm int
}

const (
	confirmPause   = time.Second // before a finding is confirmed
	concurrentJobs = 8           // that are judged
)

// auditor audits a store once. It remembers some 30 bytes of a job that has ended, 300 of another, and 250 of a job's
// place in a line or claim of an occurrence. It keeps no text of a row, as that keeps all texts of the row.
type auditor struct {
	store   Store
	o       Options
	mu      sync.Mutex // Held for changes by concurrent judgements of jobs.
	report  Report
	known   map[string]fact        // By job id, of the jobs that are live, and of tombstones.
	ended   map[uuid.UUID]struct{} // The other jobs.
	turns   map[string][]turn      // By line and epoch.
	claims  map[string]string      // The job of each claim of an occurrence.
	seed    maphash.Seed
	kinds   map[string]bool // The kinds of work in the queue's catalog.
	suspect []suspicion
	line    string // The partition of the line, or of the schedule, that was judged last.
}

// fact is what the audit remembers of a job for the rows in other partitions.
type fact struct {
	rev       int64
	updated   time.Time
	tombstone bool
	// own are hashes of the keys of its slot, its row in the list of live jobs by state, the schedule entry that it names,
	// the ready hint of its queued item and the run slots of its held one.
	own  []uint64
	left *JobRow // Set if it has ended, its place in a line means nothing since and no look may come to it.
}

// suspicion holds findings that must be confirmed.
type suspicion struct {
	findings []Finding
	again    func(ctx context.Context) ([]Finding, error) // Reads and judges once more.
}

// ErrNoSettings is returned for a store without the row of settings that the first server
// writes: no server has used these tables, or the reader cannot see their rows.
var ErrNoSettings = errors.New("the store has no row of settings: no server has used these tables, or their rows are hidden")

// Run reads the whole store and reports. It returns [ErrNoSettings] or the store's errors; what
// is wrong with the rows is in the report.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if cfg.Store == nil {
		return nil, errors.New("audit: Config.Store is required")
	}
	if cfg.Options.Tables.Ledger == "" || cfg.Options.Tables.Schedule == "" {
		return nil, errors.New("audit: Config.Options.Tables is required")
	}
	a := &auditor{
		store: cfg.Store, o: cfg.Options, report: Report{States: map[string]int{}}, kinds: map[string]bool{}, seed: maphash.MakeSeed(),
		known: map[string]fact{}, ended: map[uuid.UUID]struct{}{}, turns: map[string][]turn{}, claims: map[string]string{},
	}
	a.o.Now, a.o.Slack = time.Now(), cmp.Or(a.o.Slack, defaultSlack)
	a.o.Clocks = cmp.Or(a.o.Clocks, DefaultClocks)
	_, atomic := cfg.Store.(tablestore.AtomicStore)
	a.o.Split = !atomic
	settings, _, err := a.get(ctx, tablestore.Key{Table: a.o.Tables.Schedule, Partition: "meta", Row: "settings"})
	if err != nil {
		return nil, err
	}
	a.o.Shards = int(settings.Properties.Get("shards").Int())
	a.o.ReadyShards = max(int(settings.Properties.Get("ready_shards").Int()), 1)
	a.o.ListsLive = settings.Properties.Get("lists_live").Bool()
	if a.o.Shards == 0 {
		return nil, fmt.Errorf("%w: the table %s has none", ErrNoSettings, a.o.Tables.Schedule)
	}
	if err := tablestore.CheckRowFormat(int(settings.Properties.Get("format").Int())); a.o.Split && err != nil {
		return nil, err
	}
	if err := a.jobs(ctx); err != nil {
		return nil, err
	}
	if err := a.strays(ctx); err != nil {
		return nil, err
	}
	a.order()
	if err := a.confirm(ctx, cfg.Confirm); err != nil {
		return nil, err
	}
	for _, s := range a.suspect {
		a.report.Findings = append(a.report.Findings, s.findings...)
	}
	late := map[bool]int{true: 1}
	slices.SortFunc(a.report.Findings, func(f, g Finding) int {
		return cmp.Or(late[f.Late]-late[g.Late], cmp.Compare(f.JobID, g.JobID),
			cmp.Compare(f.Invariant, g.Invariant), cmp.Compare(f.Detail, g.Detail))
	})
	a.report.Findings = slices.Compact(a.report.Findings)
	return &a.report, nil
}

// jobs judges every job, several concurrently.
func (a *auditor) jobs(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrentJobs)
	var rows []tablestore.Row // Of one job.
	flush := func() {
		if job := rows; len(job) > 0 {
			group.Go(func() error { return a.job(ctx, job) })
		}
		rows = nil
	}
	err := a.walk(ctx, []string{a.o.Tables.Ledger}, func(row tablestore.Row) error {
		if len(rows) > 0 && rows[0].Key.Partition != row.Key.Partition {
			flush()
		}
		rows = append(rows, row)
		return nil
	})
	flush()
	return errors.Join(group.Wait(), err)
}

// job judges one job, counts it, and remembers it for the rows in other partitions.
func (a *auditor) job(ctx context.Context, rows []tablestore.Row) error {
	jobID, err := tablestore.Unescape(rows[0].Key.Partition)
	if err != nil {
		return fmt.Errorf("partition %q: %w", rows[0].Key.Partition, err)
	}
	e, findings, err := a.judge(ctx, jobID, rows)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if e.Job != nil {
		if id, err := uuid.Parse(jobID); err == nil && e.Job.Terminal() && !e.Job.Tombstone {
			a.ended[id] = struct{}{}
		} else {
			a.known[jobID] = a.factOf(e)
		}
		if at := e.Job.Place; at.Line != "" {
			name := at.Line + " " + at.Epoch
			a.turns[name] = append(a.turns[name], e.turn())
		}
		a.occurrence(e)
		if e.Job.Tombstone {
			a.report.Tombstones++
		} else {
			a.report.Jobs++
			a.report.States[e.Job.State]++
		}
	}
	if len(findings) > 0 {
		a.suspect = append(a.suspect, suspicion{findings, func(ctx context.Context) ([]Finding, error) {
			rows, err := a.partition(ctx, jobID)
			if err != nil || len(rows) == 0 {
				return nil, err
			}
			_, findings, err := a.judge(ctx, jobID, rows)
			return findings, err
		}})
	}
	return nil
}

// judge reads the rows in other partitions that belong to a job, and judges it.
func (a *auditor) judge(ctx context.Context, jobID string, rows []tablestore.Row) (*Evidence, []Finding, error) {
	e := gather(jobID, rows)
	for _, key := range e.wants(&a.o) {
		if key.Partition == "" || key.Row == "" {
			continue
		}
		row, there, err := a.get(ctx, key)
		if err != nil {
			return nil, nil, fmt.Errorf("job %s: %w", jobID, err)
		}
		if there {
			e.outside[key] = row.Properties
		}
	}
	return e, e.judge(&a.o), nil
}

// factOf returns what to remember of a job that has a JOB row.
func (a *auditor) factOf(e *Evidence) fact {
	if e.Job.Tombstone {
		return fact{tombstone: true}
	}
	f := fact{rev: e.Job.Rev, updated: e.Job.Updated}
	own := []tablestore.Key{e.slotKey(&a.o)}
	if !e.Job.Terminal() {
		own = append(own, e.liveKey(&a.o))
	} else if e.Job.leftLine() {
		f.left = e.Job
	}
	if e.Job.EntryKind != "" {
		own = append(own, e.EntryKey(&a.o))
	}
	if item := e.Queued(); item != nil {
		own = append(own, e.HintKey(item, &a.o))
	}
	for i := range e.Items {
		own = append(own, e.Items[i].slotKeys(&a.o)...)
	}
	for _, key := range own {
		f.own = append(f.own, maphash.Comparable(a.seed, key))
	}
	return f
}

// owns reports whether the job names the row, which is judged with it.
func (a *auditor) owns(f *fact, key tablestore.Key) bool {
	return slices.Contains(f.own, maphash.Comparable(a.seed, key))
}

// fact returns what is known of a job: of one that has ended only that it is there, unless the whole is asked for. It
// reads that, and a job that was accepted after the walk over the ledger.
func (a *auditor) fact(ctx context.Context, jobID string, whole bool) (fact, bool, error) {
	if f, ok := a.known[jobID]; ok {
		return f, true, nil
	}
	if id, err := uuid.Parse(jobID); err == nil && !whole {
		if _, there := a.ended[id]; there {
			return fact{}, true, nil
		}
	}
	e, err := a.read(ctx, jobID)
	if err != nil || e.Job == nil {
		return fact{}, false, err
	}
	return a.factOf(e), true, nil
}

// read reads the rows of a job's partition.
func (a *auditor) read(ctx context.Context, jobID string) (*Evidence, error) {
	rows, err := a.partition(ctx, jobID)
	return gather(jobID, rows), err
}

// strays judges the rows of the other tables; each must belong to a job.
func (a *auditor) strays(ctx context.Context) error {
	t := &a.o.Tables
	outside := []string{t.Schedule, t.Idempotency, t.Index, t.Queue}
	if t.Cron != "" {
		outside = append(outside, t.Cron)
	}
	return a.walk(ctx, outside, func(row tablestore.Row) error {
		judge := a.stray
		switch {
		case row.Key.Table == t.Cron:
			if p := row.Key.Partition; p == a.line || p == "names" || p == "lost" || p == "deleted" {
				return nil
			}
			a.line = row.Key.Partition
			return a.schedule(ctx, row.Key.Partition)
		case row.Key.Table == t.Schedule && strings.HasPrefix(row.Key.Partition, "line:"):
			return a.lineRow(ctx, &row)
		case row.Key.Table == t.Queue && strings.HasPrefix(row.Key.Partition, "limit:"):
			judge = a.strayRun
		}
		findings, err := judge(ctx, &row)
		if err != nil || len(findings) == 0 {
			return err
		}
		a.suspect = append(a.suspect, suspicion{findings, func(ctx context.Context) ([]Finding, error) {
			now, there, err := a.get(ctx, row.Key)
			if err != nil || !there {
				return nil, err
			}
			for _, finding := range findings {
				delete(a.known, finding.JobID) // The job is read again, too.
			}
			return judge(ctx, &now)
		}})
		return nil
	})
}

const (
	slotRow  = "live" // begins the rows of the live set, which lie between the schedule's
	liveList = "live" // begins the partitions of the lists of live jobs by state
)

// reference is a row outside of the ledger's table that belongs to a job.
type reference struct {
	jobID string    // Empty if the row belongs to no job.
	kind  string    // Of a schedule entry, of a list, or of the work of a ready hint.
	since time.Time // The time for which, or at which, the row was written.
	rev   int64     // The revision for which it was written.
}

// refer reads to which job a row belongs.
func (a *auditor) refer(row *tablestore.Row) (r reference, err error) {
	area, rest, _ := strings.Cut(row.Key.Partition, ":")
	parts, err := tablestore.Split(row.Key.Row)
	switch row.Key.Table {
	case a.o.Tables.Schedule:
		switch {
		case area == "shard" && len(parts) == 3 && parts[0] == slotRow:
		case area == "shard" && len(parts) == 4 && slices.Contains([]string{"timer", "dispatch", "date", "webhook", "retention"}, parts[0]):
			ms, err := strconv.ParseInt(parts[1], 10, 64)
			return reference{parts[2], parts[0], time.UnixMilli(ms), row.Properties.Get("rev").Int()}, err
		default:
			return r, nil
		}
	case a.o.Tables.Queue:
		if area != "ready" {
			return r, nil
		}
		if err != nil || len(parts) != 5 {
			return r, errors.Join(errors.New("its key has not five parts"), err)
		}
		jobID := parts[2]
		for range 2 { // A work id is the job's, the step's index and an attempt.
			jobID = jobID[:max(strings.LastIndexByte(jobID, '.'), 0)]
		}
		if jobID == "" {
			err = fmt.Errorf("%q is no work id", parts[2])
		}
		ms, err1 := strconv.ParseInt(parts[1], 10, 64)
		rev, err2 := strconv.ParseInt(parts[4], 10, 64)
		of := strings.Split(rest, ":") // service, step type, shard, and the class unless it is normal
		if len(of) > 2 {
			of = slices.Delete(of, 2, 3)
		}
		return reference{jobID, strings.Join(of, ":"), time.UnixMilli(ms), rev}, errors.Join(err, err1, err2)
	case a.o.Tables.Index:
		if area == "tenants" {
			return r, nil
		}
		r.kind = area
	}
	r.jobID, r.since = row.Properties.Get("job_id").String(), row.Properties.Get("created_at").Time()
	if r.since.IsZero() {
		r.since, _ = idTime(r.jobID)
	}
	return r, nil
}

// stray judges one row against its job.
func (a *auditor) stray(ctx context.Context, row *tablestore.Row) ([]Finding, error) {
	hint := row.Key.Table == a.o.Tables.Queue
	if hint && row.Key.Partition == "catalog" { // It comes before the hints.
		a.kinds[row.Key.Row] = true
	}
	name := ""
	if hint {
		name = "ready hint " + row.Key.Row + " in " + row.Key.Partition + ": "
	}
	r, err := a.refer(row)
	finding := func(rule Invariant, late bool, format string, args ...any) ([]Finding, error) {
		return []Finding{{Invariant: rule, Late: late, JobID: r.jobID, Detail: name + fmt.Sprintf(format, args...)}}, nil
	}
	switch {
	case err != nil && hint:
		return finding(Readable, false, "%v", err)
	case err != nil:
		return finding(Forward, true, "schedule entry %s has no time", row.Key.Row)
	case r.jobID == "":
		return nil, nil
	case hint:
		if known, err := a.cataloged(ctx, r.kind); err != nil {
			return nil, err
		} else if !known {
			return finding(Queue, false, "its kind of work is not in the catalog")
		}
	}
	late := a.past(r.since)
	job, there, err := a.fact(ctx, r.jobID, late && a.works(row))
	if err != nil {
		return nil, err
	}
	gone := !there || job.tombstone
	ahead := !gone && r.rev > job.rev && r.kind != "webhook" // Its entry has the revision of the webhook.
	switch table, since := row.Key.Table, stamp(r.since); {
	case table == a.o.Tables.Idempotency && !there && (late || !a.o.Split):
		return finding(Accepted, a.o.Split, "its idempotency key is taken since %s, and it is missing", since)
	case table == a.o.Tables.Index && r.kind == liveList && !a.owns(&job, row.Key):
		return finding(Listed, false, "it is in the list %s, and not there", row.Key.Partition)
	case table == a.o.Tables.Index && late && !there:
		return finding(Listed, true, "it is in the list %s, and not there", row.Key.Partition)
	case !late, a.owns(&job, row.Key):
	case table == a.o.Tables.Idempotency && gone:
		return finding(Key, true, "its idempotency key is taken since %s, and it was abandoned or is purged", since)
	case table == a.o.Tables.Schedule && r.kind == "":
		return finding(Slot, true, "slot %s is taken for it since %s, and it does not hold it", row.Key.Row, since)
	case table == a.o.Tables.Schedule && !there:
		return finding(Forward, true, "a %s entry was due at %s, and the job is missing", r.kind, since)
	case table == a.o.Tables.Schedule && ahead:
		return finding(Forward, true, "a %s entry for rev %d was due at %s, and the job is at %d", r.kind, r.rev, since, job.rev)
	case table == a.o.Tables.Schedule:
		return finding(Forward, true, "a %s entry was due at %s and is still there", r.kind, since)
	case hint && !there && r.rev == 1:
		return finding(Queue, true, "the job was never committed")
	case hint && ahead:
		return finding(Queue, true, "the job is at rev %d", job.rev)
	case hint && (!there || a.past(job.updated)): // A work item may have named it until the job's last change.
		return finding(Queue, !a.o.Quiescent, "no work item names it")
	}
	return nil, nil
}

// strayRun judges a taken run slot: the job's held item names it, or its claim is under way. The limit's
// servers look for others once a minute.
func (a *auditor) strayRun(ctx context.Context, row *tablestore.Row) ([]Finding, error) {
	c := columns(row.Properties)
	workID := c.text("work_id")
	jobID, _, _ := strings.Cut(workID, ".")
	job, there, err := a.fact(ctx, jobID, true)
	if err != nil || a.owns(&job, row.Key) || !a.past(c.time("at")) || there && !a.past(job.updated) {
		return nil, err
	}
	limit := tablestore.Key{Table: row.Key.Table, Partition: "admission", Row: row.Key.Partition}
	if set, there, err := a.get(ctx, limit); err != nil || !there || columns(set.Properties).int("max_running") == 0 {
		return nil, err // No server looks at the slots of a limit that was deleted, and they hold nothing back.
	}
	return []Finding{{Invariant: Queue, Late: true, JobID: jobID, Detail: fmt.Sprintf(
		"run slot %s in %s is taken for work item %s since %s, and no held item names it", row.Key.Row, row.Key.Partition, workID,
		stamp(c.time("at")))}}, nil
}

// works reports whether a row takes part in the work on its job; others list it, or are its key.
func (a *auditor) works(row *tablestore.Row) bool {
	return row.Key.Table == a.o.Tables.Schedule || row.Key.Table == a.o.Tables.Queue
}

// past reports whether what was due at that time is late.
func (a *auditor) past(t time.Time) bool { return a.o.Now.After(t.Add(a.o.Slack)) }

// cataloged reports whether a kind of work is in the queue's catalog, which claims read. It
// may have been added after the walk passed the catalog.
func (a *auditor) cataloged(ctx context.Context, kind string) (bool, error) {
	var err error
	if !a.kinds[kind] {
		_, a.kinds[kind], err = a.get(ctx, tablestore.Key{Table: a.o.Tables.Queue, Partition: "catalog", Row: kind})
	}
	return a.kinds[kind], err
}

// confirm reads everything suspect again, that many rounds, and keeps the findings that
// remain.
func (a *auditor) confirm(ctx context.Context, rounds int) error {
	for round := 0; round < rounds && len(a.suspect) > 0; round++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(confirmPause):
		}
		a.o.Now = time.Now()
		for i := range a.suspect {
			s := &a.suspect[i]
			found, err := s.again(ctx)
			if err != nil {
				return err
			}
			s.findings = slices.DeleteFunc(s.findings, func(f Finding) bool { return !slices.Contains(found, f) })
		}
		a.suspect = slices.DeleteFunc(a.suspect, func(s suspicion) bool { return len(s.findings) == 0 })
	}
	return nil
}

// walk reads whole tables.
func (a *auditor) walk(ctx context.Context, tables []string, visit func(tablestore.Row) error) error {
	for _, table := range tables {
		for walk := (tablestore.Walk{Table: table}); ; {
			rows, err := a.store.Walk(ctx, walk)
			if err != nil {
				return fmt.Errorf("read table %s: %w", table, err)
			}
			if len(rows) == 0 {
				break
			}
			a.report.Rows += len(rows)
			for _, row := range rows {
				if err := visit(row); err != nil {
					return err
				}
			}
			walk = walk.After(rows)
		}
	}
	return nil
}

// partition reads the partition of a job.
func (a *auditor) partition(ctx context.Context, jobID string) ([]tablestore.Row, error) {
	query := tablestore.Query{Table: a.o.Tables.Ledger, Partition: tablestore.Escape(jobID)}
	var rows []tablestore.Row
	for {
		page, err := a.store.Scan(ctx, query)
		if err != nil {
			return nil, fmt.Errorf("read job %s: %w", jobID, err)
		}
		if rows = append(rows, page.Rows...); page.Next == "" {
			return rows, nil
		}
		query.Continue = page.Next
	}
}

// get reads a row, and reports whether it is there.
func (a *auditor) get(ctx context.Context, key tablestore.Key) (row tablestore.Row, there bool, err error) {
	row, err = a.store.Get(ctx, key)
	if errors.Is(err, tablestore.ErrNotFound) {
		return tablestore.Row{}, false, nil
	}
	if err != nil {
		return tablestore.Row{}, false, fmt.Errorf("read %s: %w", key, err)
	}
	return row, true, nil
}
