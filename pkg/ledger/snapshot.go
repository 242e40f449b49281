package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/workitem"
)

// ErrJobNotFound is returned for a job that does not exist, or that belongs to
// another tenant than the one who asks.
var ErrJobNotFound = errors.New("job not found")

// snapshot is an aggregate as it was loaded, with what its rows' writes need.
type snapshot struct {
	agg    statemachine.Aggregate
	head   head
	job    tablestore.Row
	steps  []tablestore.Row
	outbox tablestore.Row
	// outboxes are the rows of all attempts, outbox among them.
	outboxes []tablestore.Row
	// open is the open work item with its row, nil if the job has none.
	open    *workitem.Record
	openRow tablestore.Row
}

// jobID is the id of the job that was loaded.
func (s *snapshot) jobID() string { return s.agg.Job.ID }

// queued reports whether the job's active attempt waits in the pull queue.
func (s *snapshot) queued() bool {
	_, queued := s.agg.Queued()
	return queued
}

// load reads a job by one scan of its partition's short range. A tombstone is
// returned as a snapshot with head.tombstone.
func (l *Ledger) load(ctx context.Context, jobID string) (*snapshot, error) {
	rows, err := l.jobRows(ctx, jobID)
	if err != nil {
		return nil, fmt.Errorf("load job %s: %w", jobID, err)
	}
	s := &snapshot{outboxes: make([]tablestore.Row, 0, 4)}
	for i := range rows {
		switch kind, _, _ := strings.Cut(rows[i].Key.Row, ":"); kind {
		case rowJob:
			s.job = rows[i]
		case rowOutbox:
			s.outboxes = append(s.outboxes, rows[i])
		case rowStep:
			s.steps = append(s.steps, rows[i])
		case rowOpenItem:
			s.openRow = rows[i]
		}
	}
	if s.job.ETag == "" {
		return nil, ErrJobNotFound
	}
	if err := s.decode(l); err != nil {
		return nil, fmt.Errorf("load job %s: %w", jobID, err)
	}
	return s, nil
}

// decode turns the rows into the aggregate.
func (s *snapshot) decode(l *Ledger) error {
	if err := decodeJob(&s.job, &s.agg.Job, &s.head); err != nil || s.head.tombstone {
		return err
	}
	s.agg.Steps = make([]statemachine.Step, len(s.steps))
	for i := range s.steps {
		if err := stepCodec.decode(&s.steps[i], &s.agg.Steps[i]); err != nil {
			return err
		}
		if s.agg.Steps[i].Index != i {
			return fmt.Errorf("step %d is missing", i)
		}
	}
	if s.openRow.ETag != "" {
		s.open = &workitem.Record{}
		if err := itemCodec.decode(&s.openRow, s.open); err != nil {
			return err
		}
	}
	active, ok := s.agg.Active()
	if !ok || s.agg.Steps[active].OutboxID == "" {
		return nil
	}
	return s.decodeOutbox(l, s.agg.Steps[active].OutboxID)
}

// decodeOutbox finds the row of the active attempt.
func (s *snapshot) decodeOutbox(l *Ledger, outboxID string) error {
	id, err := ParseOutboxID(outboxID)
	if err != nil {
		return err
	}
	key := l.outboxKey(s.agg.Job.ID, id)
	for i := range s.outboxes {
		if s.outboxes[i].Key.Row != key.Row {
			continue
		}
		s.outbox, s.agg.Outbox = s.outboxes[i], &statemachine.Outbox{}
		return outboxCodec.decode(&s.outbox, s.agg.Outbox)
	}
	return fmt.Errorf("outbox row %s is missing", outboxID)
}

// Job returns the job with its steps. It returns [ErrJobNotFound].
func (l *Ledger) Job(ctx context.Context, jobID string) (*statemachine.Aggregate, error) {
	s, err := l.load(ctx, jobID)
	if err != nil {
		return nil, err
	}
	if s.head.tombstone {
		return nil, ErrJobNotFound
	}
	return &s.agg, nil
}

// Payload returns the command's payload, as it was submitted.
func (l *Ledger) Payload(ctx context.Context, jobID string) ([]byte, error) {
	return l.large(ctx, l.jobKey(jobID, rowCommand), "payload")
}

// Directive returns the bytes of an attempt's directive, as they were made
// with it.
func (l *Ledger) Directive(ctx context.Context, jobID string, stepIndex, attemptNo int) ([]byte, error) {
	return l.large(ctx, l.directiveKey(jobID, stepIndex, attemptNo), "directive")
}

// large reads one large value of a row.
func (l *Ledger) large(ctx context.Context, key tablestore.Key, name string) ([]byte, error) {
	row, err := l.store.Get(ctx, key)
	if errors.Is(err, tablestore.ErrNotFound) {
		err = ErrJobNotFound // It is being purged.
	}
	if err != nil {
		return nil, fmt.Errorf("read %s of job %s: %w", key.Row, key.Partition, err)
	}
	return tablestore.Large(row.Properties, name), nil
}
