package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Store is what an audit reads.
type Store interface {
	tablestore.Walker
	Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error)
	Scan(ctx context.Context, query tablestore.Query) (tablestore.Page, error)
}

// Config is what an [Auditor] is made of.
type Config struct {
	Store   Store   // Required.
	Options Options // Now, the numbers of shards and Split are filled in by the audit.
	// Confirm is how often a finding must be seen again before it counts, with
	// Pause between: in a store that is being written, rows that are read one
	// after the other need not agree. Optional. Defaults to 0, for a store that
	// nobody writes.
	Confirm int
	Pause   time.Duration // Optional. Defaults to one second.
	// Workers is how many jobs are looked at side by side. Optional. Defaults to 8.
	Workers int
}

// Auditor audits a store. It remembers about a hundred bytes of each job while it
// runs. One auditor runs one audit at a time.
type Auditor struct {
	cfg     Config
	o       Options
	mu      sync.Mutex
	report  Report
	known   map[string]fact
	kinds   map[string]bool // rows of the queue's catalog
	suspect []suspicion
}

// fact is what is remembered of a job for the rows beside it.
type fact struct {
	rev       int64
	updated   time.Time
	tombstone bool
	terminal  bool
	entry     tablestore.Key
	slot      tablestore.Key
	hint      tablestore.Key // that a queued item names
}

// New returns an auditor.
func New(cfg Config) (*Auditor, error) {
	if cfg.Store == nil {
		return nil, errors.New("audit: Config.Store is required")
	}
	if cfg.Options.Tables.Ledger == "" || cfg.Options.Tables.Schedule == "" {
		return nil, errors.New("audit: Config.Options.Tables is required")
	}
	if cfg.Workers == 0 {
		cfg.Workers = 8
	}
	if cfg.Pause == 0 {
		cfg.Pause = time.Second
	}
	return &Auditor{cfg: cfg}, nil
}

// Run reads the whole store and reports. It returns the store's errors; what is
// wrong with the rows is in the report.
func (a *Auditor) Run(ctx context.Context) (*Report, error) {
	a.o = a.cfg.Options.WithDefaults()
	a.o.Now = time.Now()
	a.report, a.known, a.suspect = Report{States: map[string]int{}}, map[string]fact{}, nil
	a.kinds = map[string]bool{}
	if err := a.settings(ctx); err != nil || a.o.Shards == 0 {
		return &a.report, err
	}
	if err := a.jobs(ctx); err != nil {
		return nil, err
	}
	for _, table := range a.strayTables() {
		if err := a.strays(ctx, table); err != nil {
			return nil, err
		}
	}
	if err := a.confirm(ctx); err != nil {
		return nil, err
	}
	a.report.sort()
	return &a.report, nil
}

// settings reads the numbers of shards that the store was made with; 0 says that
// nothing ever used it.
func (a *Auditor) settings(ctx context.Context) error {
	_, atomic := a.cfg.Store.(tablestore.AtomicStore)
	a.o.Split = !atomic
	row, err := a.cfg.Store.Get(ctx, tablestore.Key{Table: a.o.Tables.Schedule, Partition: "meta", Row: "settings"})
	if errors.Is(err, tablestore.ErrNotFound) {
		a.o.Shards = 0
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the store's settings: %w", err)
	}
	a.o.Shards = int(row.Properties.Get("shards").Int())
	a.o.ReadyShards = max(int(row.Properties.Get("ready_shards").Int()), 1)
	return nil
}

// jobs looks at every job, several side by side.
func (a *Auditor) jobs(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(a.cfg.Workers)
	var rows []tablestore.Row
	flush := func() {
		if len(rows) > 0 {
			of := rows
			group.Go(func() error { return a.job(ctx, of) })
		}
		rows = nil
	}
	err := a.walk(ctx, a.o.Tables.Ledger, func(row tablestore.Row) error {
		if len(rows) > 0 && rows[0].Key.Partition != row.Key.Partition {
			flush()
		}
		rows = append(rows, row)
		return nil
	})
	flush()
	return errors.Join(group.Wait(), err)
}

// walk reads a table whole.
func (a *Auditor) walk(ctx context.Context, table string, visit func(tablestore.Row) error) error {
	walk := tablestore.Walk{Table: table}
	for {
		rows, err := a.cfg.Store.Walk(ctx, walk)
		if err != nil {
			return fmt.Errorf("read table %s: %w", table, err)
		}
		if len(rows) == 0 {
			return nil
		}
		a.count(len(rows))
		for _, row := range rows {
			if err := visit(row); err != nil {
				return err
			}
		}
		walk = walk.After(rows)
	}
}

func (a *Auditor) count(rows int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.report.Rows += rows
}

// job looks at one job.
func (a *Auditor) job(ctx context.Context, rows []tablestore.Row) error {
	partition := rows[0].Key.Partition
	jobID, err := tablestore.Unescape(partition)
	if err != nil {
		return fmt.Errorf("partition %q: %w", partition, err)
	}
	e, err := a.gather(ctx, jobID, rows)
	if err != nil {
		return fmt.Errorf("job %s: %w", jobID, err)
	}
	findings := e.Judge(&a.o)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.know(e)
	if len(findings) > 0 {
		a.suspect = append(a.suspect, suspicion{findings: findings, again: func(ctx context.Context) ([]Finding, error) {
			return a.again(ctx, jobID)
		}})
	}
	return nil
}

// know counts a job and remembers what the rows beside it are held against.
func (a *Auditor) know(e *Evidence) {
	switch {
	case e.Job == nil:
		return
	case e.Job.Tombstone:
		a.report.Tombstones++
	default:
		a.report.Jobs++
		a.report.States[e.Job.State]++
	}
	a.known[e.JobID] = a.factOf(e)
}

// factOf is what is remembered of a job that is there.
func (a *Auditor) factOf(e *Evidence) fact {
	if e.Job.Tombstone {
		return fact{tombstone: true}
	}
	f := fact{rev: e.Job.Rev, updated: e.Job.Updated, terminal: e.Job.Terminal(), slot: e.slotKey(&a.o)}
	if e.Job.EntryKind != "" {
		f.entry = e.EntryKey(&a.o)
	}
	if item := e.Queued(); item != nil {
		f.hint = e.HintKey(item, &a.o)
	}
	return f
}

// gather reads what lies beside a job's rows.
func (a *Auditor) gather(ctx context.Context, jobID string, rows []tablestore.Row) (*Evidence, error) {
	e := Gather(jobID, rows)
	for _, key := range e.Wants(&a.o) {
		if key.Partition == "" || key.Row == "" {
			continue
		}
		row, err := a.cfg.Store.Get(ctx, key)
		if errors.Is(err, tablestore.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", key, err)
		}
		e.Beside[key] = row.Properties
	}
	return e, nil
}

// partition reads a partition whole.
func (a *Auditor) partition(ctx context.Context, table, partition string) ([]tablestore.Row, error) {
	query := tablestore.Query{Table: table, Partition: partition}
	var rows []tablestore.Row
	for {
		page, err := a.cfg.Store.Scan(ctx, query)
		if err != nil {
			return nil, fmt.Errorf("read %s/%s: %w", table, partition, err)
		}
		if rows = append(rows, page.Rows...); page.Next == "" {
			return rows, nil
		}
		query.Continue = page.Next
	}
}

// again reads a job anew and judges it.
func (a *Auditor) again(ctx context.Context, jobID string) ([]Finding, error) {
	rows, err := a.partition(ctx, a.o.Tables.Ledger, tablestore.Escape(jobID))
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	e, err := a.gather(ctx, jobID, rows)
	if err != nil {
		return nil, err
	}
	return e.Judge(&a.o), nil
}

// suspicion is findings that are to be confirmed.
type suspicion struct {
	findings []Finding
	// again finds once more.
	again func(ctx context.Context) ([]Finding, error)
}

// confirm looks at everything suspect again, and keeps what is still so.
func (a *Auditor) confirm(ctx context.Context) error {
	for round := 0; round < a.cfg.Confirm && len(a.suspect) > 0; round++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(a.cfg.Pause):
		}
		a.o.Now = time.Now()
		var left []suspicion
		for _, s := range a.suspect {
			found, err := s.again(ctx)
			if err != nil {
				return err
			}
			s.findings = slices.DeleteFunc(s.findings, func(f Finding) bool { return !slices.Contains(found, f) })
			if len(s.findings) > 0 {
				left = append(left, s)
			}
		}
		a.suspect = left
	}
	for _, s := range a.suspect {
		a.report.Findings = append(a.report.Findings, s.findings...)
	}
	return nil
}
