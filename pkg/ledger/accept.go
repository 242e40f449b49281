package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// ErrIdempotencyMismatch is returned for a command whose idempotency key belongs to
// another command.
var ErrIdempotencyMismatch = errors.New("idempotency key was used for another command")

// Command is a validated command. Job and Steps hold what never changes; Accept sets
// ids, states and times. Only the steps that a rerun takes over have a state,
// SUCCEEDED.
type Command struct {
	Job     statemachine.Job
	Steps   []statemachine.Step
	Payload []byte
	Actor   string
	// RequestID is the request's, for the history.
	RequestID string
	// Origin names the command in place of its key or hash, for a rerun. Optional.
	Origin string
	// Reason is for the history.
	Reason string
	// Claim is under what the command is accepted in place of its key, for an occurrence of a schedule. The job has
	// an [statemachine.Occurrence] then. Optional.
	Claim *OccurrenceClaim
	// MaxWaiting is the most jobs that the line of the command may have before it. Optional. 0 stands for
	// [DefaultMaxWaiting].
	MaxWaiting int
	// Blocker is the job that a rerun repeats, if it has a place in a line: the rerun takes it if it blocks.
	Blocker *statemachine.Job
}

// Accepted is the answer to a command.
type Accepted struct {
	Job statemachine.Job
	// Replayed says that an earlier command with the same key created the job.
	Replayed bool
	PostErr  error
}

// idempotencyRecord says which job has an idempotency key. The job's rows tell whether its command
// was accepted. If there are none, the accept is under way or has crashed: a purge deletes
// the record before the job.
//
// Source: Option B spec, 12.4.
type idempotencyRecord struct {
	JobID     string    `column:"job_id"`
	Key       string    `column:"idempotency_key"`
	Hash      string    `column:"idempotency_hash"`
	CreatedAt time.Time `column:"created_at"`
	claimState
	// The lists are those of the command that chose the job's id. Another accept that adopts the id
	// adopts the lists, so that both accepts write the same index rows.
	lists
}

// lists is what names the lists of a job, but for its tenant, its id and its state.
type lists struct {
	Correlation string            `column:"correlation_id"`
	DocID       string            `column:"doc_id"`
	Tags        statemachine.Tags `column:"tags"`
}

// listsOf returns what names the lists of the job.
func listsOf(job *statemachine.Job) lists { return lists{job.CorrelationID, job.DocID, job.Tags} }

var recordCodec = tablestore.NewCodec[idempotencyRecord]()

// acceptance is the state of one accept over its tries. Its methods that return an
// *Accepted return nil without an error to ask for another try.
type acceptance struct {
	l         *Ledger
	cmd       *Command
	limit     int // of the tenant's jobs in flight; 0 means no limit
	jobID     string
	lists     lists           // of the job
	record    tablestore.Key  // of the idempotency record
	recordTag tablestore.ETag // our version of the record, once it is written
	found     tablestore.ETag // the version of another accept's record, which this one replaces
	// adopted says that another accept may have the same jobID, and may still commit: it comes from
	// that accept's record, or that accept may have taken it from ours. It is used only over that
	// record: once the record is gone, the job may have been purged, and its id is never used again.
	//
	//	invariant: adopted ⇒ recordTag ≠ "" ∨ found is a version that named jobID
	adopted bool
	slot    slotRef
	slotTag tablestore.ETag // our version of the slot, once it is taken
	guessed bool            // slot was chosen without reading the taken ones
	handed  bool            // a try gave the item to a waiting worker
	place   placement       // in the command's line, if it has one
}

// Accept turns a command into a job. It writes the idempotency record, then the
// in-flight slot with the schedule entry that makes the job findable, then commits. A
// numbered slot may be taken, so it comes before whatever names the job. The place in a line is
// the last before the commit. It returns [ErrIdempotencyMismatch], [ErrTenantLimit], [ErrLineFull],
// a [*LineBusyError], and the store's errors; a command whose outcome is unknown may be sent again.
//
// Source: Ledger and state model, Idempotency strategy; Option B spec, 15.1.
func (l *Ledger) Accept(ctx context.Context, cmd Command) (Accepted, error) {
	l.changing.Add(1)
	defer l.changing.Add(-1)
	ctx = l.operation(ctx)
	a := l.newAcceptance(&cmd)
	if err := a.newJob(); err != nil {
		return Accepted{}, err
	}
	var accepted *Accepted
	err := tablestore.Retry(ctx, l.cfg.Random, func() (err error) {
		if accepted, err = a.try(ctx); err == nil && accepted == nil {
			return tablestore.ErrConflict
		}
		if err == nil && accepted.Replayed {
			return l.confirm(ctx)
		}
		return err
	})
	if err != nil {
		return Accepted{}, err
	}
	return *accepted, nil
}

// Replay returns a command's existing job, if there is one, whatever else has changed since
// the command was accepted. It reads the tenant, the key and the hash of the command. Its
// errors are those of [Ledger.Accept].
func (l *Ledger) Replay(ctx context.Context, cmd Command) (Accepted, bool, error) {
	accepted, err := l.newAcceptance(&cmd).replay(ctx)
	if accepted == nil || err != nil {
		return Accepted{}, false, err
	}
	if err := l.confirm(ctx); err != nil {
		return Accepted{}, false, err
	}
	return *accepted, true, nil
}

// newAcceptance addresses the record by the command's key, or by its hash if it has
// none.
func (l *Ledger) newAcceptance(cmd *Command) *acceptance {
	row := tablestore.Join("hash", cmd.Job.IdempotencyHash)
	switch {
	case cmd.Claim != nil:
		row = cmd.Claim.Row
	case cmd.Origin != "":
		row = tablestore.Join("of", cmd.Origin)
	case cmd.Job.IdempotencyKey != "":
		sum := sha256.Sum256([]byte(cmd.Job.IdempotencyKey))
		row = tablestore.Join("key", hex.EncodeToString(sum[:]))
	}
	job := &cmd.Job
	record := l.recordKey(job.TenantID, job.Occurrence.ScheduleID, row)
	return &acceptance{l: l, cmd: cmd, limit: l.cfg.Limit(job.TenantID), record: record}
}

// newJob chooses an unused job id, and a first guess of a slot.
func (a *acceptance) newJob() error {
	id, err := a.l.NewJobID()
	if err != nil {
		return err
	}
	a.leavePlace()
	a.jobID, a.lists, a.adopted = id, listsOf(&a.cmd.Job), false
	a.guessSlot()
	return nil
}

// guessSlot chooses a slot without reading the taken ones.
func (a *acceptance) guessSlot() {
	if a.guessed = a.limit > 0; a.guessed {
		a.slot = a.l.numberedSlot(a.cmd.Job.TenantID, int(a.l.cfg.Random()*float64(a.limit)))
		return
	}
	a.slot = a.l.ownSlot(a.cmd.Job.TenantID, a.jobID)
}

// fitSlot chooses another slot if the kind of the chosen one does not suit the place.
func (a *acceptance) fitSlot(ctx context.Context) error {
	switch {
	case a.place.Took != "" && a.slotTag == "":
		// The jobs that wait for the rerun must not be able to refuse it.
		a.slot, a.guessed = a.l.ownSlot(a.cmd.Job.TenantID, a.jobID), false
	case a.limit > 0 && a.place.Took == "" && !a.slot.Numbered: // An earlier try was to take a place.
		if err := a.freeTaken(ctx); err != nil {
			return err
		}
		a.guessSlot()
	}
	return nil
}

// try submits the whole change once.
func (a *acceptance) try(ctx context.Context) (*Accepted, error) {
	defer a.placed(tablestore.Applied{})
	retry, err := a.findPlace(ctx)
	if err != nil && (errors.Is(err, ErrLineFull) || busyWith(err) != "") {
		return a.refuse(ctx, err)
	}
	if err != nil || retry {
		return nil, err
	}
	if err := a.fitSlot(ctx); err != nil {
		return nil, err
	}
	if a.guessed && !a.l.mayGuess(a.cmd.Job.TenantID, a.limit) {
		if accepted, err := a.resolveSlotConflict(ctx); accepted != nil || err != nil {
			return accepted, err
		}
	}
	a.guessed = false
	plan, err := a.plan(ctx)
	if err != nil {
		return nil, fmt.Errorf("accept: %w", err)
	}
	a.l.hand(plan, &a.handed)
	defer plan.takeover.release()
	applied, err := a.l.apply(ctx, plan.change, plan)
	// Remember which reservations are ours, so that the next try does not write them
	// again. A failed write to an atomic store leaves none.
	if tag, ok := applied.ETags[a.record]; ok {
		a.recordTag = tag
	}
	a.cmd.Claim.wrote(applied)
	if tag, ok := applied.ETags[a.l.slotKey(a.slot)]; ok {
		a.slotTag = tag
	}
	a.placed(applied)
	if err == nil {
		return a.accepted(ctx, plan, applied), nil
	}
	if errors.Is(err, tablestore.ErrUnknown) {
		a.l.cfg.Unsure() // The next try may find the job, as if another process had accepted it.
	}
	conflict, lost := errors.AsType[*tablestore.ConflictError](err)
	switch {
	case lost && conflict.Key == a.record:
		return a.resolveRecordConflict(ctx)
	case lost && a.cmd.Claim.goesWith(conflict.Key):
		return nil, errors.Join(a.freeOwnSlot(ctx), ErrClaimConflict)
	case lost && conflict.Key == a.l.slotKey(a.slot):
		return a.resolveSlotConflict(ctx)
	case lost && a.place.writes(conflict.Key):
		return nil, nil
	case lost || errors.Is(err, tablestore.ErrUnknown):
		return a.resolveOutcome(ctx, plan, err)
	}
	return nil, fmt.Errorf("accept: %w", err)
}

// plan makes the writes of the accept: the record and the slot before those of the
// decision, and the payload in the commit.
func (a *acceptance) plan(ctx context.Context) (*plan, error) {
	now := tablestore.Now()
	f, err := a.l.fresh()
	if err != nil {
		return nil, err
	}
	agg := statemachine.Aggregate{Job: a.cmd.Job, Steps: make([]statemachine.Step, len(a.cmd.Steps))}
	agg.Job.ID, agg.Job.CorrelationID, agg.Job.DocID, agg.Job.Tags = a.jobID, a.lists.Correlation, a.lists.DocID, a.lists.Tags
	if sample := a.l.cfg.Sample; sample != nil && agg.Job.Traceparent == "" {
		agg.Job.Traceparent = statemachine.NewTrace(a.jobID, sample).String()
	}
	agg.Job.TenantBucket = TenantBucket(agg.Job.TenantID, IDTime(a.jobID))
	agg.Job.State = statemachine.JobQueued
	copy(agg.Steps, a.cmd.Steps)
	for i := range agg.Steps {
		agg.Steps[i].Index = i
		if agg.Steps[i].State == "" {
			agg.Steps[i].State = statemachine.StepPending
		}
	}
	agg.Job.Place = a.place.Place
	event := statemachine.Accept{Reason: a.cmd.Reason, Behind: a.place.behind}
	d, err := statemachine.Decide(agg, event, a.l.env(f, now))
	if err != nil {
		return nil, err
	}
	p := &planner{l: a.l, d: &d, fresh: f, eventName: event.Name(), caller: CallerOf(ctx), now: now}
	p.s = &snapshot{head: head{Slot: a.slot, Record: a.record.Row}}
	p.options = &options{
		actor: a.cmd.Actor, requestID: a.cmd.RequestID,
		reserved: reservation{
			Record: a.record.Row, Slot: a.slot, Supersedes: a.cmd.Job.Supersedes, Line: a.place.Line, lists: a.lists,
		},
	}
	if p.moves, err = statemachine.FollowItem(&agg, nil, &d, statemachine.ItemAsk{}, now); err != nil {
		return nil, err
	}
	p.options.reserved.ScheduleID = a.cmd.Job.Occurrence.ScheduleID
	plan, err := p.build(ctx, a.cmd.Payload)
	if err != nil {
		return nil, err
	}

	pre := []tablestore.Stage(nil)
	if a.recordTag == "" {
		batch := tablestore.Batch{a.writeRecord(now)}
		if claim := a.cmd.Claim; claim != nil && claim.With != nil {
			batch = append(batch, *claim.With)
		}
		pre = append(pre, tablestore.Stage{batch})
	}
	if a.slot.Numbered && a.slotTag == "" {
		pre = append(pre, tablestore.Stage{{a.l.takeSlot(a.slot, a.jobID, now)}})
	}
	if !a.place.taken && len(a.place.batch) > 0 {
		// The entry must be written first: it looks at the line if the commit never lands.
		stage := tablestore.Stage{a.place.batch}
		if a.place.lists {
			stage = append(stage, a.l.list(a.place.line))
		}
		plan.change.Pre = append(plan.change.Pre, stage)
		plan.turn, plan.leaves = a.place.turn, a.place.line
	}
	plan.reserving = len(pre)
	plan.change.Pre = append(pre, plan.change.Pre...)
	plan.change.Commit = append(plan.change.Commit, tablestore.Op{
		Verb: tablestore.Insert, Key: a.l.jobKey(a.jobID, rowCommand), Properties: largeRow("payload", a.cmd.Payload),
	})
	return plan, nil
}

// writeRecord writes the record, over that of another accept if there is one.
func (a *acceptance) writeRecord(now time.Time) tablestore.Op {
	op := tablestore.Op{Verb: tablestore.Insert, Key: a.record}
	if a.found != "" {
		op.Verb, op.ETag = tablestore.Replace, a.found
	}
	record := idempotencyRecord{
		JobID: a.jobID, Key: a.cmd.Job.IdempotencyKey, Hash: a.cmd.Job.IdempotencyHash, CreatedAt: now, lists: a.lists,
	}
	var columns tablestore.Properties
	if a.cmd.Claim != nil {
		record.Outcome, columns = ClaimOpen, a.cmd.Claim.Columns
	}
	op.Properties = recordCodec.Encode(&record, columns)
	return op
}

// accepted runs the post-commit work and returns the answer.
func (a *acceptance) accepted(ctx context.Context, plan *plan, applied tablestore.Applied) *Accepted {
	a.l.tenants.Store(plan.after.Job.TenantID, true)
	a.l.committed(ctx, plan)
	return &Accepted{Job: plan.after.Job, PostErr: a.l.finish(ctx, plan, applied.PostErr)}
}

// readRecord reads the record of the command's key. It returns
// [tablestore.ErrNotFound] if there is none.
func (a *acceptance) readRecord(ctx context.Context) (idempotencyRecord, tablestore.Row, error) {
	var c idempotencyRecord
	row, err := a.l.store.Get(ctx, a.record)
	if err == nil {
		err = recordCodec.Decode(&row, &c)
	}
	if err != nil {
		err = fmt.Errorf("accept: read the idempotency record: %w", err)
	}
	return c, row, err
}

// replay returns the job of an existing record, or nil if the command must be accepted.
func (a *acceptance) replay(ctx context.Context) (*Accepted, error) {
	c, row, err := a.readRecord(ctx)
	if errors.Is(err, tablestore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s, err := a.l.load(ctx, c.JobID)
	missing := errors.Is(err, ErrJobNotFound)
	switch {
	case err != nil && !missing:
		return nil, fmt.Errorf("accept: %w", err)
	case !missing && a.l.keyExpired(s, time.Now()):
		return nil, nil
	case !a.same(&c):
		return nil, ErrIdempotencyMismatch
	case missing || s.head.Tombstone:
		return nil, a.settled(&c, &row)
	}
	return &Accepted{Job: s.agg.Job, Replayed: true}, nil
}

// resolveRecordConflict handles a key that is already taken. If the record is of the
// same command, its job is the answer; if that job does not exist, the record is
// rolled forward under its job id. If it is of another command, this one is refused.
func (a *acceptance) resolveRecordConflict(ctx context.Context) (*Accepted, error) {
	c, row, err := a.readRecord(ctx)
	if errors.Is(err, tablestore.ErrNotFound) {
		return nil, a.recordGone(ctx)
	}
	if err != nil {
		return nil, err
	}
	s, err := a.l.load(ctx, c.JobID)
	switch {
	case err == nil && a.l.keyExpired(s, time.Now()):
		return nil, a.rollForward(ctx, &c, &row, true)
	case !a.same(&c) && err == nil && !s.head.Tombstone:
		return nil, ErrIdempotencyMismatch
	case !a.same(&c):
		// The accept that wrote the record may have been refused and released it since.
		return nil, a.refuseIfUnchanged(ctx, &row, ErrIdempotencyMismatch)
	case err == nil && !s.head.Tombstone:
		return &Accepted{Job: s.agg.Job, Replayed: true}, nil
	case err != nil && !errors.Is(err, ErrJobNotFound):
		return nil, fmt.Errorf("accept: %w", err)
	}
	if err := a.settled(&c, &row); err != nil {
		return nil, errors.Join(a.freeOwnSlot(ctx), err)
	}
	return nil, a.rollForward(ctx, &c, &row, err == nil || c.JobID == "")
}

// refuseIfUnchanged returns the refusal if the record is still as it was read.
// Otherwise it asks for another try.
func (a *acceptance) refuseIfUnchanged(ctx context.Context, record *tablestore.Row, refusal error) error {
	now, err := a.l.store.Get(ctx, record.Key)
	switch {
	case errors.Is(err, tablestore.ErrNotFound), err == nil && now.ETag != record.ETag:
		return a.recordGone(ctx)
	case err != nil:
		return fmt.Errorf("accept: read the idempotency record: %w", err)
	}
	return refusal
}

// recordGone makes the next try write a record where there is none.
func (a *acceptance) recordGone(ctx context.Context) error {
	a.recordTag, a.found = "", ""
	if !a.adopted {
		return nil
	}
	return a.startOver(ctx)
}

// startOver gives up the job id and the slot that was taken for it.
func (a *acceptance) startOver(ctx context.Context) error {
	a.recordTag, a.found = "", ""
	if err := a.freeOwnSlot(ctx); err != nil {
		return err
	}
	return a.newJob()
}

// rollForward makes the next try take an orphaned record over by rewriting it under its
// version. It keeps its job id unless that is used: by a tombstone, or by a job
// whose key has expired.
func (a *acceptance) rollForward(ctx context.Context, c *idempotencyRecord, row *tablestore.Row, used bool) error {
	var err error
	if used {
		err = a.startOver(ctx)
	} else if err = a.freeOwnSlot(ctx); err == nil {
		a.leavePlace()
		a.jobID, a.lists, a.adopted = c.JobID, c.lists, true
		if a.limit == 0 {
			a.slot = a.l.ownSlot(a.cmd.Job.TenantID, a.jobID)
		}
	}
	a.recordTag, a.found = "", row.ETag
	return err
}

// resolveSlotConflict chooses another slot. If there is none, it refuses the command.
func (a *acceptance) resolveSlotConflict(ctx context.Context) (*Accepted, error) {
	a.slotTag = ""
	slot, err := a.l.freeSlot(ctx, a.cmd.Job.TenantID, a.limit)
	if err == nil {
		a.slot = slot
		return nil, nil
	}
	if !errors.Is(err, ErrTenantLimit) {
		return nil, err
	}
	return a.refuse(ctx, ErrTenantLimit)
}

// resolveOutcome handles a conflict on the job's rows, or an unknown outcome: the
// change may be committed, or another accept that rolled the same record forward may
// have won, or the rows are absent.
func (a *acceptance) resolveOutcome(ctx context.Context, plan *plan, cause error) (*Accepted, error) {
	winner, err := a.l.committedBy(ctx, plan)
	if err != nil {
		return nil, fmt.Errorf("accept: %w: %w", tablestore.ErrUnknown, err)
	}
	switch {
	case winner == plan.operation:
		return a.accepted(ctx, plan, tablestore.Applied{}), nil
	case winner != "":
		return a.adoptWinner(ctx)
	case errors.Is(cause, tablestore.ErrConflict):
		return nil, a.startOver(ctx) // The job id has a tombstone.
	case ctx.Err() != nil:
		return nil, fmt.Errorf("accept: %w", cause)
	}
	return a.resubmit(ctx, plan)
}

// resubmit sends the identical change again after an unknown outcome. The first
// submission may have written the record and a numbered slot: then they are ours.
func (a *acceptance) resubmit(ctx context.Context, plan *plan) (*Accepted, error) {
	if a.adopted && a.recordTag == "" {
		return a.resolveRecordConflict(ctx) // The record names the job with and without our write.
	}
	if err := a.recoverPlace(ctx); err != nil {
		return nil, err
	}
	row, err := a.l.ownRow(ctx, a.record, a.jobID)
	if err != nil {
		return nil, err
	}
	// The version may be that of an accept that adopted our job id meanwhile.
	a.recordTag, a.adopted = row.ETag, a.adopted || row.ETag != ""
	if a.slot.Numbered {
		if row, err = a.l.ownRow(ctx, a.l.slotKey(a.slot), a.jobID); err != nil {
			return nil, err
		}
		a.slotTag = row.ETag
	}
	plan.change.Pre = plan.change.Pre[plan.reserving:]
	if a.recordTag == "" || a.slot.Numbered && a.slotTag == "" || a.place.Line != "" && !a.place.taken {
		return nil, nil
	}
	if a.place.Line != "" { // Its batch is never sent twice: see findPlace.
		plan.change.Pre = without(plan.change.Pre, a.l.lineKey(a.place.Line, rowLine))
		plan.change.Pre = without(plan.change.Pre, a.l.placeKey(a.place.Line, a.place.Seq))
	}
	// If the first submission arrives before this one, the job may even have ended, and this one takes the
	// slot again. So the entry stays: it frees what an ended job holds.
	plan.change.Post, plan.forget = nil, nil
	applied, err := a.l.submit(ctx, plan)
	if err != nil {
		return nil, err
	}
	return a.accepted(ctx, plan, applied), nil
}

// busyWith returns the job of a [*LineBusyError], empty for another error.
func busyWith(err error) string {
	if busy, ok := errors.AsType[*LineBusyError](err); ok {
		return busy.JobID
	}
	return ""
}

// adoptWinner ends an acceptance whose record another accept rolled forward to a job:
// that job is the answer. Both accepts use one job id, so the other may have found
// the slot that was taken here, and its job may hold it.
func (a *acceptance) adoptWinner(ctx context.Context) (*Accepted, error) {
	if a.place.taken { // The job has another place. If this look fails, that of the next accept removes this one.
		_ = a.l.look(ctx, a.place.Line, nil)
	}
	s, err := a.l.load(ctx, a.jobID)
	if err != nil && !errors.Is(err, ErrJobNotFound) {
		return nil, fmt.Errorf("accept: %w", err)
	}
	if err == nil && !s.head.Tombstone && !s.agg.Job.State.Terminal() && s.head.Slot == a.slot {
		a.slotTag = ""
	}
	if err := a.freeOwnSlot(ctx); err != nil {
		return nil, err
	}
	a.recordTag = ""
	return a.resolveRecordConflict(ctx)
}

// freeOwnSlot frees the numbered slot that was taken under the current job id. One without a number may be
// that of another accept under that id.
func (a *acceptance) freeOwnSlot(ctx context.Context) error {
	if !a.slot.Numbered {
		a.slotTag = ""
		return nil
	}
	return a.freeTaken(ctx)
}

// freeTaken frees the slot if this accept was the last to take it.
func (a *acceptance) freeTaken(ctx context.Context) error {
	tag := a.slotTag
	if a.slotTag = ""; tag == "" {
		return nil
	}
	if _, err := a.l.deleteVersion(ctx, a.l.slotKey(a.slot), tag); err != nil {
		return fmt.Errorf("accept: release the slot: %w", err)
	}
	return nil
}
