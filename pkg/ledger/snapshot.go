package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// ErrJobNotFound is returned for a job that does not exist or belongs to another
// tenant.
var ErrJobNotFound = errors.New("job not found")

// snapshot is an aggregate as it was loaded, with the rows whose versions its
// writes need.
type snapshot struct {
	agg      statemachine.Aggregate
	head     head
	job      tablestore.Row
	steps    []tablestore.Row
	outbox   tablestore.Row   // of the active attempt
	outboxes []tablestore.Row // of all attempts
	// open is the open work item with its row, nil if the job has none.
	open    *statemachine.ItemRecord
	openRow tablestore.Row
	// command and directive are the rows of the payload and of the last directive, if
	// this process wrote them. They never change.
	command, directive tablestore.Row
}

// queued reports whether the job's active attempt waits in the pull queue.
func (s *snapshot) queued() bool {
	_, queued := s.agg.Queued()
	return queued
}

// carries reports whether the job's open item has that id and attempt.
func (s *snapshot) carries(workID string, attemptNo int) bool {
	return s.open != nil && s.open.WorkID == workID && s.open.AttemptNo == attemptNo
}

// load reads a job by one scan. A tombstone is a snapshot with head.Tombstone.
func (l *Ledger) load(ctx context.Context, jobID string) (*snapshot, error) {
	if jobID == "" || len(tablestore.Escape(jobID)) > tablestore.MaxKeyBytes { // No row can have such a key.
		return nil, ErrJobNotFound
	}
	rows, err := l.scanJob(ctx, jobID)
	if err == nil && (len(rows) == 0 || rows[0].Key.Row != rowJob) {
		return nil, ErrJobNotFound
	}
	var s *snapshot
	if err == nil {
		s, err = l.decodeRows(rows)
	}
	if err != nil {
		return nil, fmt.Errorf("load job %s: %w", jobID, err)
	}
	return s, nil
}

// loadExisting is load, but returns [ErrJobNotFound] for a tombstone.
func (l *Ledger) loadExisting(ctx context.Context, jobID string) (*snapshot, error) {
	s, err := l.load(ctx, jobID)
	if err == nil && s.head.Tombstone {
		return nil, ErrJobNotFound
	}
	return s, err
}

// JobWithOutbox returns a job with the outbox row of its latest attempt, which
// [Ledger.Job] leaves out of one that has ended. It returns [ErrJobNotFound].
func (l *Ledger) JobWithOutbox(ctx context.Context, jobID string) (*statemachine.Aggregate, error) {
	s, err := l.loadExisting(ctx, jobID)
	if err != nil {
		return nil, err
	}
	for i := 0; s.agg.Outbox == nil && i < len(s.outboxes); i++ {
		var row statemachine.Outbox
		if err := outboxCodec.Decode(&s.outboxes[i], &row); err != nil {
			return nil, err
		}
		if row.ID == s.agg.Steps[s.agg.Job.CurrentStepIndex].OutboxID {
			s.agg.Outbox = &row
		}
	}
	return &s.agg, nil
}

// scanJob reads the rows from which a job is loaded, all at one revision. A store
// may split a scan into pages anywhere, and a change that commits between two pages
// would be visible in the second alone. Each change but a heartbeat writes the Job
// row, which is on the first page, so that row tells.
func (l *Ledger) scanJob(ctx context.Context, jobID string) ([]tablestore.Row, error) {
	query := tablestore.Query{
		Table: l.tables.Ledger, Partition: tablestore.Escape(jobID),
		From: rowJob, To: tablestore.PrefixEnd(rowStep + ":"),
	}
	var rows []tablestore.Row
	err := tablestore.Retry(ctx, l.cfg.Random, func() error {
		page, err := l.store.Scan(ctx, query)
		rows = page.Rows
		if err != nil || page.Next == "" {
			return err
		}
		rest := query
		rest.Continue = page.Next
		more, err := tablestore.ScanAll(ctx, l.store, rest)
		if rows = append(rows, more...); err != nil || len(rows) == 0 {
			return err
		}
		job, err := l.store.Get(ctx, rows[0].Key)
		if errors.Is(err, tablestore.ErrNotFound) || err == nil && job.ETag != rows[0].ETag {
			return tablestore.ErrConflict
		}
		return err
	})
	return rows, err
}

// decodeRows reads the job from its rows, of which the Job row is the first.
func (l *Ledger) decodeRows(rows []tablestore.Row) (*snapshot, error) {
	s := &snapshot{job: rows[0], outboxes: make([]tablestore.Row, 0, 4)}
	if err := decodeJob(&s.job, &s.agg.Job, &s.head); err != nil || s.head.Tombstone {
		return s, err
	}
	for _, row := range rows[1:] {
		switch kind, _, _ := strings.Cut(row.Key.Row, ":"); kind {
		case rowOutbox:
			s.outboxes = append(s.outboxes, row)
		case rowStep:
			s.steps = append(s.steps, row)
		case rowOpenItem:
			s.open, s.openRow = &statemachine.ItemRecord{}, row
			if err := itemCodec.Decode(&row, s.open); err != nil {
				return nil, err
			}
		}
	}
	s.agg.Steps = make([]statemachine.Step, len(s.steps))
	for i := range s.steps {
		if err := stepCodec.Decode(&s.steps[i], &s.agg.Steps[i]); err != nil {
			return nil, err
		}
		if s.agg.Steps[i].Index != i {
			return nil, fmt.Errorf("step %d is missing", i)
		}
	}
	active, ok := s.agg.Active()
	if !ok || s.agg.Steps[active].OutboxID == "" {
		return s, nil
	}
	id, err := ParseOutboxID(s.agg.Steps[active].OutboxID)
	if err != nil {
		return nil, err
	}
	for _, row := range s.outboxes {
		if row.Key.Row == l.itemKey(rowOutbox, id).Row {
			s.outbox, s.agg.Outbox = row, &statemachine.Outbox{}
			return s, outboxCodec.Decode(&s.outbox, s.agg.Outbox)
		}
	}
	return nil, fmt.Errorf("outbox row %s is missing", s.agg.Steps[active].OutboxID)
}

// Job returns the job with its steps. It returns [ErrJobNotFound].
func (l *Ledger) Job(ctx context.Context, jobID string) (*statemachine.Aggregate, error) {
	s, err := l.loadExisting(ctx, jobID)
	if err != nil {
		return nil, err
	}
	return &s.agg, nil
}

// Payload returns the command's payload, as it was submitted.
func (l *Ledger) Payload(ctx context.Context, jobID string) ([]byte, error) {
	return l.payload(ctx, &snapshot{}, jobID)
}

func (l *Ledger) payload(ctx context.Context, s *snapshot, jobID string) ([]byte, error) {
	return l.large(ctx, &s.command, l.jobKey(jobID, rowCommand), "payload")
}

// Directive returns the bytes of an attempt's directive, as they were composed.
func (l *Ledger) Directive(ctx context.Context, jobID string, stepIndex, attemptNo int) ([]byte, error) {
	return l.directive(ctx, &snapshot{}, jobID, stepIndex, attemptNo)
}

func (l *Ledger) directive(ctx context.Context, s *snapshot, jobID string, stepIndex, attemptNo int) ([]byte, error) {
	return l.large(ctx, &s.directive, l.attemptKey(rowDirective, jobID, stepIndex, attemptNo), "directive")
}

// large returns one large value of a row that never changes, from remembered if that
// is the row.
func (l *Ledger) large(ctx context.Context, remembered *tablestore.Row, key tablestore.Key, name string) ([]byte, error) {
	row := *remembered
	if row.Key != key {
		var err error
		if row, err = l.store.Get(ctx, key); errors.Is(err, tablestore.ErrNotFound) {
			err = ErrJobNotFound // A purge has deleted the row.
		}
		if err != nil {
			return nil, fmt.Errorf("read %s of job %s: %w", key.Row, key.Partition, err)
		}
	}
	return tablestore.Large(row.Properties, name), nil
}
