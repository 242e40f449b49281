package ledger

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Kind is a kind of schedule entry. Each kind has its own key range in each shard, so
// that a backlog of one does not delay another.
type Kind string

// The kinds.
const (
	Dispatch Kind = "dispatch" // a relay publishes the job's outbox row
	Timer    Kind = "timer"    // the sweeper looks at the job
	Date     Kind = "date"     // the sweeper looks at a job that has not begun
	// An ended job may have any number of these, next to the entry that its head names.
	Webhook   Kind = "webhook"   // a dispatcher announces its end
	Retention Kind = "retention" // it may be purged
)

// Kinds lists all kinds.
var Kinds = []Kind{Dispatch, Timer, Date, Webhook, Retention}

// Entry is a schedule entry: "look at this job then". It is a hint; only the
// job's rows say what is due.
//
//	invariant: head.rev < Rev ⇒ the change that wrote the entry may still commit
type Entry struct {
	Kind  Kind
	Shard int
	Due   time.Time
	JobID string
	Nonce string
	Rev   int64 `column:"rev"` // the revision that the entry's change makes
	// Target and Topic are those of the directive. The entry of another kind has no lane,
	// service or topic.
	statemachine.Target
	Topic string `column:"topic"`
	// NotAfter is when the job expires, if its directive is not published until then.
	NotAfter time.Time `column:"not_after"`
	// AbandonIfMissing says that the job waits, or has a place in a line, and that its accept is to be
	// abandoned at once if the job is missing when the entry fires.
	AbandonIfMissing bool `column:"abandon_if_missing"`
	// Release says that the entry is of the release of a job that blocks its line.
	Release bool `column:"release"`
	// Reserved is freed if the accept that wrote the entry is abandoned.
	Reserved reservation
}

// Fields returns the log fields that identify the entry's job.
func (e *Entry) Fields() statemachine.LogFields {
	return statemachine.LogFields{JobID: e.JobID, TenantID: e.TenantID}
}

// reservation is what an accept writes before its commit, or what names it.
type reservation struct {
	Record     string `column:"claim"` // row key of the idempotency record
	Slot       slotRef
	Supersedes string `column:"supersedes"`
	Line       string `column:"line"` // in which the job has a place
	// ScheduleID is the job's schedule, in whose history the record stays.
	ScheduleID string `column:"schedule_id"`
	lists
}

// entryCodec holds the columns of an entry's row. The rest of the entry is its key.
var entryCodec = tablestore.NewCodec[Entry]()

func (e *Entry) ref() entryRef { return entryRef{Kind: e.Kind, Due: e.Due, Nonce: e.Nonce} }

// serves reports whether the entry can stay for this wake. A timer or a date may fire early,
// and is replaced then; a dispatch entry must have the exact time.
func (r entryRef) serves(wake entryRef) bool {
	if r.Kind == "" || r.Kind != wake.Kind {
		return false
	}
	if r.Kind == Timer || r.Kind == Date {
		return !r.Due.After(wake.Due)
	}
	return r.Due.Equal(wake.Due)
}

// entryKey addresses an entry's row.
func (l *Ledger) entryKey(jobID string, ref entryRef) tablestore.Key {
	return l.shardKey(l.shard(jobID), tablestore.Join(string(ref.Kind), tablestore.Pad(ref.Due.UnixMilli(), 13), jobID, ref.Nonce))
}

// putEntry writes an entry for the aggregate.
func (l *Ledger) putEntry(agg *statemachine.Aggregate, ref entryRef, r reservation) tablestore.Op {
	target := statemachine.Target{TenantID: agg.Job.TenantID, ProtocolID: agg.Job.ProtocolID}
	entry := Entry{
		Rev: agg.Job.Rev, Target: target, Reserved: r,
		AbandonIfMissing: r.Record != "" && (agg.Job.Parked || agg.Job.Place.Line != ""),
	}
	if ref.Kind == Dispatch {
		entry.Topic, entry.NotAfter = agg.Outbox.Routing.Topic, agg.Expiry()
		entry.Target = statemachine.TargetOf(&agg.Job, &agg.Steps[agg.Outbox.StepIndex])
	}
	return tablestore.Op{Verb: tablestore.Put, Key: l.entryKey(agg.Job.ID, ref), Properties: entryCodec.Encode(&entry, nil)}
}

// discardEntry deletes an entry.
func (l *Ledger) discardEntry(jobID string, ref entryRef) tablestore.Op {
	return tablestore.Op{Verb: tablestore.Discard, Key: l.entryKey(jobID, ref)}
}

// discardEntries deletes entries of one job.
func (l *Ledger) discardEntries(jobID string, refs []entryRef) tablestore.Stage {
	var batch tablestore.Batch
	for _, ref := range refs {
		batch = append(batch, l.discardEntry(jobID, ref))
	}
	return stageOf(batch)
}

// Due returns one page of entries of that kind and shard that are due at now,
// oldest first, and the start of the next page. See [Schedule] for the error.
func (l *Ledger) Due(ctx context.Context, kind Kind, shard int, now time.Time, limit int, from string,
) ([]Entry, string, error) {
	return DueEntries(ctx, l.store, l.shardKey(shard, tablestore.Join(string(kind), "")), kind, shard, now, limit, from)
}

// DueEntries returns a page for the Due of a [Schedule]. The rows of its entries begin with the prefix,
// and go on with when the entry is due, the job's id and the nonce. Rows that cannot be decoded are
// skipped, and the error joins theirs. The entries are not nil if the page was read.
func DueEntries(
	ctx context.Context, store tablestore.Store, prefix tablestore.Key, kind Kind, shard int, now time.Time, limit int, from string,
) ([]Entry, string, error) {
	page, err := store.Scan(ctx, tablestore.Query{
		Table: prefix.Table, Partition: prefix.Partition, From: prefix.Row,
		To: prefix.Row + tablestore.Pad(now.UnixMilli()+1, 13), Limit: limit, Continue: from,
	})
	if err != nil {
		return nil, "", fmt.Errorf("read the schedule in partition %s: %w", prefix.Partition, err)
	}
	entries := make([]Entry, 0, len(page.Rows))
	var bad error
	for i := range page.Rows {
		entry := Entry{Kind: kind, Shard: shard}
		if err := entry.decode(&page.Rows[i], prefix.Row); err != nil {
			bad = errors.Join(bad, err)
			continue
		}
		entries = append(entries, entry)
	}
	return entries, page.Next, bad
}

func (e *Entry) decode(row *tablestore.Row, prefix string) error {
	parts, err := tablestore.Split(strings.TrimPrefix(row.Key.Row, prefix))
	if err != nil || len(parts) != 3 {
		return fmt.Errorf("bad key %q in the schedule", row.Key.Row)
	}
	ms, err := strconv.ParseInt(parts[0], 10, 64)
	if err != nil {
		return fmt.Errorf("bad key %q in the schedule", row.Key.Row)
	}
	e.Due, e.JobID, e.Nonce = time.UnixMilli(ms).UTC(), parts[1], parts[2]
	return entryCodec.Decode(row, e)
}

// orphanGrace is how long after its time an entry stays though its change has not
// committed. It is far longer than a commit can be delayed after its entry.
const orphanGrace = 5 * time.Minute

// ActorSystem is the actor of changes without a caller: deadlines, and rows that a
// relay takes up.
const ActorSystem = "system"

// ActorPlatform is the actor of callbacks, and ActorWorker that of the workers' verbs.
const (
	ActorPlatform = "platform"
	ActorWorker   = "worker"
)

// FireOutcome is what [Ledger.Fire] did with a schedule entry.
type FireOutcome uint8

// The outcomes.
const (
	// Acted: the head names the entry, and the event was applied to the job.
	Acted FireOutcome = iota + 1
	// Stale: the head does not name the entry; it was deleted.
	Stale
	// Early: the entry's change may still commit; it was left alone.
	Early
	// Finished: the job has ended, and the work after its end was repeated.
	Finished
	// Orphaned: the change was made impossible, unless it committed first. The next
	// pass examines the entry again.
	Orphaned
)

// String returns the name of the outcome in metrics.
func (o FireOutcome) String() string {
	return [...]string{"", "acted", "stale", "early", "finished", "orphaned"}[o]
}

// Fire applies a due schedule entry to its job: the event, if the head names the
// entry. Two processes may fire one entry.
func (l *Ledger) Fire(ctx context.Context, entry Entry, event statemachine.Event) (FireOutcome, Result, error) {
	s, err := l.load(ctx, entry.JobID)
	missing := errors.Is(err, ErrJobNotFound)
	switch {
	case err != nil && !missing:
		return 0, Result{}, err
	case missing || !s.head.Tombstone && s.agg.Job.Rev < entry.Rev:
		return l.fireEarly(ctx, entry, s)
	case s.head.Tombstone:
		return l.firePurged(ctx, entry)
	case entry.Release:
		return l.fireRelease(ctx, entry, s)
	case s.head.Entry != entry.ref():
		// The entry may be the timer that re-runs unfinished post-commit work.
		if err := l.projectAgain(ctx, s); err != nil {
			return 0, Result{}, err
		}
		if job := &s.agg.Job; job.Place.Line != "" {
			if err := l.follow(ctx, job, nil); err != nil {
				return 0, Result{}, err
			}
		}
		if s.agg.Job.State.Terminal() {
			// An accept that lost the race for this job may have taken its slot after
			// the end of the job freed it.
			if err := l.freeReserved(ctx, l.slotKey(entry.Reserved.Slot), entry.JobID); err != nil {
				return 0, Result{}, err
			}
		}
		return Stale, Result{}, l.drop(ctx, entry)
	case s.agg.Job.State.Terminal():
		if err := l.finishEnd(ctx, s); err != nil {
			return 0, Result{}, err
		}
		return Finished, Result{Job: s.agg}, l.drop(ctx, entry)
	}
	restored, err := l.restoreHint(ctx, s)
	if err != nil {
		return 0, Result{}, err
	}
	if restored {
		l.restored.Add(1)
	}
	result, err := l.change(ctx, entry.JobID, s, event, &options{actor: ActorSystem, entry: &entry})
	if err != nil {
		return 0, Result{}, err
	}
	return Acted, result, nil
}

// fireEarly leaves an entry alone whose change may still commit. After the grace it
// first makes that change impossible; the next pass then deletes the entry. s is nil
// if the job is missing.
func (l *Ledger) fireEarly(ctx context.Context, entry Entry, s *snapshot) (FireOutcome, Result, error) {
	// Only an accept writes an entry before its job exists: the one that names its reservations, and
	// that of its date. A projection of a purged job may still land within the grace.
	purged := s == nil && entry.Reserved.Record == ""
	wait := orphanGrace
	if entry.AbandonIfMissing && s == nil {
		wait = 0
		if entry.Kind == Dispatch { // It may be due at once, while the accept is under way.
			wait = acceptDelay
		}
	}
	grace := time.Since(entry.Due) < wait
	switch {
	case purged && (!grace || l.cfg.Projector == nil && entry.Kind != Date):
		return l.firePurged(ctx, entry)
	case grace:
		return Early, Result{}, nil
	}
	var err error
	if s == nil {
		_, err = l.insertTombstone(ctx, &statemachine.Job{ID: entry.JobID})
	} else {
		_, err = l.change(ctx, entry.JobID, s, statemachine.DeadlinePassed{}, &options{actor: ActorSystem})
	}
	return Orphaned, Result{}, err
}

// firePurged deletes an entry of a purged or abandoned job, with its reservations
// and with projections that a process may have written after the purge. The tombstone of
// an abandoned accept is deleted by a separate entry.
func (l *Ledger) firePurged(ctx context.Context, entry Entry) (FireOutcome, Result, error) {
	reserved := []tablestore.Key{l.slotKey(entry.Reserved.Slot)}
	if entry.Reserved.ScheduleID == "" {
		reserved = append(reserved, l.recordKey(entry.TenantID, "", entry.Reserved.Record))
	}
	for _, key := range reserved {
		if err := l.freeReserved(ctx, key, entry.JobID); err != nil {
			return 0, Result{}, err
		}
	}
	job := &statemachine.Job{
		ID: entry.JobID, TenantID: entry.TenantID, CorrelationID: entry.Reserved.Correlation, Supersedes: entry.Reserved.Supersedes,
		DocID: entry.Reserved.DocID, Tags: entry.Reserved.Tags,
	}
	if err := l.deleteProjections(ctx, job); err != nil {
		return 0, Result{}, err
	}
	if entry.Reserved.Record != "" {
		if err := l.commitEach(ctx, l.retainTombstone(job)); err != nil {
			return 0, Result{}, fmt.Errorf("forget the accept of job %s: %w", entry.JobID, err)
		}
		if err := l.purgeAgain(ctx, entry); err != nil {
			return 0, Result{}, err
		}
	}
	if line := entry.Reserved.Line; line != "" {
		if err := l.look(ctx, line, nil); err != nil {
			return 0, Result{}, err
		}
	}
	return Stale, Result{}, l.drop(ctx, entry)
}

// purgeAgain writes another entry of an abandoned accept, for after the grace. A slow accept may still
// write the rows that this entry leads to, and end before it finds its tombstone.
func (l *Ledger) purgeAgain(ctx context.Context, entry Entry) error {
	if time.Since(IDTime(entry.JobID)) >= orphanGrace {
		return nil
	}
	again := entryRef{Kind: Timer, Due: tablestore.Now().Add(orphanGrace).Truncate(time.Millisecond), Nonce: entry.Nonce}
	_, err := l.store.Commit(ctx, tablestore.Batch{{
		Verb: tablestore.Put, Key: l.entryKey(entry.JobID, again), Properties: entryCodec.Encode(&entry, nil),
	}})
	if err != nil {
		return fmt.Errorf("forget the accept of job %s: %w", entry.JobID, err)
	}
	return nil
}

// drop deletes an entry from the schedule.
func (l *Ledger) drop(ctx context.Context, entry Entry) error {
	if _, err := l.store.Commit(ctx, tablestore.Batch{l.discardEntry(entry.JobID, entry.ref())}); err != nil {
		return fmt.Errorf("delete a schedule entry of job %s: %w", entry.JobID, err)
	}
	return nil
}

// insertTombstone makes the accept of a missing job impossible. It returns false if
// the job exists after all. The purge of the tombstone deletes the rows that list a job of
// that tenant, document, tags and correlation id.
func (l *Ledger) insertTombstone(ctx context.Context, job *statemachine.Job) (bool, error) {
	_, err := l.store.Commit(ctx, tablestore.Batch{{
		Verb: tablestore.Insert, Key: l.jobKey(job.ID, rowJob), Properties: encodeJob(job, &head{Tombstone: true}, nil),
	}})
	if errors.Is(err, tablestore.ErrConflict) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("insert a tombstone for job %s: %w", job.ID, err)
	}
	return true, nil
}

// freeReserved deletes an idempotency record or a slot if it names the job.
func (l *Ledger) freeReserved(ctx context.Context, key tablestore.Key, jobID string) error {
	if key.Row == "" {
		return nil
	}
	row, err := l.ownRow(ctx, key, jobID)
	if err == nil && row.ETag != "" {
		_, err = l.deleteVersion(ctx, key, row.ETag)
	}
	return err
}

// ownRow returns an idempotency record or a slot if it names the job, else the zero row.
func (l *Ledger) ownRow(ctx context.Context, key tablestore.Key, jobID string) (tablestore.Row, error) {
	row, err := l.store.Get(ctx, key)
	if errors.Is(err, tablestore.ErrNotFound) {
		return tablestore.Row{}, nil
	}
	if err != nil {
		return tablestore.Row{}, fmt.Errorf("read a reservation of job %s: %w", jobID, err)
	}
	if !ofJob(&row, jobID) {
		return tablestore.Row{}, nil
	}
	return row, nil
}

// ofJob reports whether an idempotency record or a slot names the job; the zero row names none.
func ofJob(row *tablestore.Row, jobID string) bool {
	return row.Properties.Get(columnJob).String() == jobID
}

// deleteVersion deletes a row under its version. It returns false if another
// process has changed or deleted the row.
func (l *Ledger) deleteVersion(ctx context.Context, key tablestore.Key, tag tablestore.ETag) (bool, error) {
	_, err := l.store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Delete, Key: key, ETag: tag}})
	if errors.Is(err, tablestore.ErrConflict) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("delete %s: %w", key, err)
	}
	return true, nil
}
