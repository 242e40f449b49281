package ledger

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// postDelay is the delay of the timer that re-runs post-commit work that is not known to be
// done.
const postDelay = 5 * time.Second

// acceptDelay is the delay of the post timer of an accept whose job waits. If the job is missing then,
// the sweeper abandons the accept.
const acceptDelay = 10 * time.Second

// endDelay replaces postDelay at the end of a job if the job already has a timer entry that
// is due by then: that entry is kept. It equals the default ACK timeout and is longer than
// a relay's hold, so a short job needs no entry but the one of its accept.
const endDelay = 30 * time.Second

// plan holds the writes of one decision.
type plan struct {
	base      *snapshot // what the decision was made for
	change    tablestore.Change
	after     statemachine.Aggregate
	head      head
	open      *statemachine.ItemRecord // the open work item after the change, nil if there is none
	history   []statemachine.Transition
	operation string
	message   *Message
	hot       bool // the message is for this process's relay
	// queued is the ready hint that the change makes valid, and taken the hint that it
	// voids; nil if there is none.
	queued, taken *Hint
	// freed are the run slots of an item whose hold the change ends, and free deletes their rows after
	// the commit.
	freed    []statemachine.RunSlot
	free     tablestore.Stage
	light    bool       // a heartbeat: the change makes no revision
	ended    bool       // the change ends the job
	revision *Revision  // for the projector, else nil
	entries  []entryRef // the schedule entries that the change writes
	// forget deletes the entries that the change makes obsolete, after all post-commit
	// work is done. Without a projector it is the last post stage.
	forget tablestore.Stage
	// reserving is how many stages before the commit write the idempotency record and the slot.
	reserving int
	// takeover is the claim of the queued item in the same write, nil if there is none.
	takeover *takeover
	// looks says that the job's line is to be looked at after the commit. The entries in forget are kept
	// until that is done.
	looks bool
	// turn is the process's turn on the line whose LINE the change writes, and leaves LINE as it then is.
	turn    *lineTurn
	leaves  *line
	offered sync.Once
}

// planner builds the plan of one decision.
type planner struct {
	l         *Ledger
	s         *snapshot // without rows for an accept
	d         *statemachine.Decision
	moves     statemachine.ItemMoves
	fresh     fresh
	options   *options
	eventName string
	caller    string
	now       time.Time
	release   tablestore.Stage // frees the slot of a job that ends
}

// isAccept reports whether the job is new.
func (p *planner) isAccept() bool { return p.s.job.ETag == "" }

// write replaces a loaded row under its version, or inserts one that was not loaded.
func write(key tablestore.Key, loaded *tablestore.Row) tablestore.Op {
	if loaded.ETag == "" {
		return tablestore.Op{Verb: tablestore.Insert, Key: key}
	}
	return tablestore.Op{Verb: tablestore.Replace, Key: key, ETag: loaded.ETag}
}

// build makes the plan. payload is the command's if this is its accept; for any other
// change it is read if a new directive needs it.
func (p *planner) build(ctx context.Context, payload []byte) (*plan, error) {
	out := &plan{
		base: p.s, after: p.d.After, history: p.d.History, operation: p.fresh.operation, hot: p.d.Hot,
		light: p.d.Light, ended: p.d.Ended, head: p.s.head, open: p.s.open, looks: p.looks(),
	}
	if p.moves.Changed {
		out.open = p.moves.Open
	}
	p.stamp()
	job := &p.d.After.Job
	var err error
	if p.d.Dispatch != nil && !p.isAccept() {
		if payload, err = p.l.payload(ctx, p.s, job.ID); err != nil {
			return nil, err
		}
	}
	if p.d.Ended {
		if p.release, err = p.l.releaseSlot(ctx, p.s.head.Slot, job.ID); err != nil {
			return nil, err
		}
	}
	for _, i := range p.d.Steps {
		step := &p.d.After.Steps[i]
		loaded := &tablestore.Row{}
		if !p.isAccept() {
			loaded = &p.s.steps[i]
		}
		op := write(p.l.jobKey(job.ID, rowStep, tablestore.Pad(i, 4), step.ID), loaded)
		op.Properties = stepCodec.Encode(step, loaded.Properties)
		out.change.Commit = append(out.change.Commit, op)
	}
	if err := p.items(out); err != nil {
		return nil, err
	}
	if err := p.freeSlots(ctx, out); err != nil {
		return nil, err
	}
	if p.d.Light {
		return out, p.beats(out)
	}

	entry, isNew := p.entry()
	if isNew {
		out.entries = append(out.entries, entry)
	}
	p.entries(out)
	p.hints(out)
	switch {
	case p.isAccept():
		out.beforeCommit(p.l.indexAccepted(job))
		if job.Supersedes != "" {
			// The entry must be written first: if the commit never lands, only the entry
			// leads to this row.
			out.change.Pre = append(out.change.Pre, tablestore.Stage{p.l.indexRerun(job)})
		}
	case p.d.Ended:
		out.beforeCommit(p.l.indexEndedJob(&p.d.After))
	}
	if err := p.rows(out, entry, payload); err != nil {
		return nil, err
	}
	p.post(out, entry)
	p.relist(out)
	if also := p.options.also; len(also) > 0 {
		out.change.Pre = slices.Concat(also, out.change.Pre)
	}
	if p.l.cfg.Projector != nil {
		out.revision = p.revision(out.message)
	}
	if out.queued != nil {
		err = p.l.catalog(ctx, out.queued.WorkClass())
	}
	return out, err
}

// stamp writes the work item's id and owner to its step, which keeps them when the item
// ends.
func (p *planner) stamp() {
	for _, item := range []*statemachine.ItemRecord{p.moves.Ended, p.moves.Open} {
		if item == nil || !slices.Contains(p.d.Steps, item.StepIndex) {
			continue
		}
		switch step := &p.d.After.Steps[item.StepIndex]; {
		case item.Removed:
			step.WorkID, step.Owner = "", ""
		case item.Open():
			step.WorkID, step.Owner = item.WorkID, item.Owner
		}
	}
}

// items writes the work items that the change moves: the open one's row, and the row
// of one that has ended, which loading a job does not read.
func (p *planner) items(out *plan) error {
	if !p.moves.Changed {
		return nil
	}
	before, open := p.s.open, p.moves.Open
	goesOn := before != nil && open != nil && open.WorkID == before.WorkID
	if before != nil && !goesOn {
		out.change.Commit = append(out.change.Commit,
			tablestore.Op{Verb: tablestore.Delete, Key: p.s.openRow.Key, ETag: p.s.openRow.ETag})
	}
	put := func(kind string, r *statemachine.ItemRecord, loaded *tablestore.Row) error {
		if r == nil {
			return nil
		}
		id, err := ParseOutboxID(r.WorkID)
		if err != nil {
			return err
		}
		op := write(p.l.itemKey(kind, id), loaded)
		var columns tablestore.Properties
		if before != nil && before.WorkID == r.WorkID {
			columns = p.s.openRow.Properties
		}
		op.Properties = itemCodec.Encode(r, columns)
		out.change.Commit = append(out.change.Commit, op)
		return nil
	}
	if err := put(rowItem, p.moves.Ended, &tablestore.Row{}); err != nil {
		return err
	}
	if goesOn {
		return put(rowOpenItem, open, &p.s.openRow)
	}
	return put(rowOpenItem, open, &tablestore.Row{})
}

// beats writes a row for each heartbeat of an item, since a light change has no
// journal row.
func (p *planner) beats(out *plan) error {
	for _, e := range p.moves.Events {
		id, err := ParseOutboxID(e.WorkID)
		if err != nil {
			return err
		}
		row := beatRow{Moves: []statemachine.ItemEvent{e}, At: e.At}
		out.change.Commit = append(out.change.Commit, tablestore.Op{
			Verb: tablestore.Insert, Properties: beatCodec.Encode(&row, nil),
			Key: p.l.attemptKey(rowBeat, id.JobID, id.StepIndex, id.FirstAttempt, tablestore.Pad(e.Rev, 8)),
		})
	}
	return nil
}

// entry returns the schedule entry that the head is to name, and whether it is new.
func (p *planner) entry() (ref entryRef, isNew bool) {
	old := p.s.head.Entry
	fired := p.options.entry != nil && p.options.entry.ref() == old
	var want entryRef
	switch p.d.Wake.Kind {
	case statemachine.WakeDispatch:
		want = entryRef{Kind: Dispatch, Due: p.d.Wake.At, Nonce: p.fresh.nonce()}
	case statemachine.WakeTimer:
		want = entryRef{Kind: Timer, Due: p.d.Wake.At, Nonce: p.fresh.nonce()}
	case statemachine.WakeDate:
		want = entryRef{Kind: Date, Due: p.d.Wake.At, Nonce: p.fresh.nonce()}
	case statemachine.WakeNone:
	}
	i, queued := p.d.After.Queued()
	switch {
	case p.d.Ended && !fired && old.serves(p.timerAfter(endDelay, "")):
		return old, false
	case p.d.Ended:
		want = p.timerAfter(postDelay, p.fresh.nonce())
	case queued && p.l.atomic == nil && p.isAccept():
		// The process may crash between the reservations and the commit. The entry frees
		// the reservations, and checks once whether the hint exists.
		delay := p.d.After.Steps[i].Policy.AckTimeout
		if p.d.After.Job.Place.Line != "" { // The line stands still until a lost accept is abandoned.
			delay = min(delay, endDelay)
		}
		check := p.timerAfter(delay, p.fresh.nonce())
		if want.Kind == "" || check.Due.Before(want.Due) {
			want = check
		}
	case queued && p.l.atomic == nil && old.Kind == Timer && !fired && (want.Kind == "" || old.serves(want)):
		return old, false
	}
	if want.Kind == "" {
		return entryRef{}, false
	}
	if !fired && old.serves(want) {
		return old, false
	}
	return want, true
}

// entries writes the schedule entries of the change, and with them the slot of a new job.
func (p *planner) entries(out *plan) {
	if timer := p.postTimer(); timer.Kind != "" {
		out.entries = append(out.entries, timer)
	}
	var batch tablestore.Batch
	if slot := p.s.head.Slot; p.isAccept() && !slot.Numbered {
		batch = append(batch, p.l.takeSlot(slot, p.d.After.Job.ID, p.now))
	}
	for _, ref := range out.entries {
		reserved := p.options.reserved
		if ref.Kind == Date { // It may be due in a year.
			reserved = reservation{}
		}
		batch = append(batch, p.l.putEntry(&p.d.After, ref, reserved))
	}
	out.change.Pre = stages(stageOf(batch))
}

// postTimer returns the timer that re-runs unfinished post-commit work; empty if there is none, or if
// the entry of an ended job does it. If a job waits for its date or its line, the timer of its accept
// frees the accept's reservations after a crash, because the entry of the date may be due in a year.
func (p *planner) postTimer() entryRef {
	delay := postDelay
	switch {
	case p.isAccept() && p.l.atomic == nil && p.d.After.Job.Waits(), p.looks() && !p.d.Ended:
		delay = acceptDelay
	case p.l.cfg.Projector == nil || p.d.Ended:
		return entryRef{}
	}
	return p.timerAfter(delay, p.fresh.nonce()+"p") // Distinct from the head's entry at any time.
}

// looks reports whether the change is followed by a look at the job's line: after the end of the job, and
// once it waits for its turn. An accept on an atomic store writes its place in the same write, so no look
// can have missed it; but it supersedes, and a rerun that took a place begins by its own look.
func (p *planner) looks() bool {
	job := &p.d.After.Job
	switch {
	case job.Place.Line == "" || p.d.Light:
		return false
	case p.d.Ended:
		return true
	case p.isAccept() && p.l.atomic != nil:
		return job.Waits() && (job.Place.Took != "" || job.Order.Mode == statemachine.OrderNewest)
	case p.isAccept():
		return job.Waits()
	}
	return job.AwaitsTurn() && !p.s.agg.Job.AwaitsTurn()
}

func (p *planner) timerAfter(delay time.Duration, nonce string) entryRef {
	return entryRef{Kind: Timer, Due: p.now.Add(delay).Truncate(time.Millisecond), Nonce: nonce}
}

// hints writes the ready hint that the change makes valid, before the commit.
func (p *planner) hints(out *plan) {
	var before *Hint
	if p.s.open != nil {
		hint := p.l.hintOf(&p.s.agg, p.s.open)
		before = &hint
		if p.s.queued() {
			out.taken = before
		}
	}
	if _, queued := p.d.After.Queued(); !queued || p.moves.Open == nil {
		return
	}
	hint := p.l.hintOf(&p.d.After, p.moves.Open)
	if out.taken != nil && out.taken.Row() == hint.Row() { // A change of the class has another rev.
		out.taken = nil // It stays valid.
		return
	}
	out.queued = &hint
	stage := tablestore.Stage{{p.l.putHint(&hint)}}
	if before != nil && out.taken == nil && before.WorkID == hint.WorkID {
		// A claim may have crashed before it deleted this one, which may be of another class.
		stage = append(stage, tablestore.Batch{p.l.discardHint(before)})
	}
	out.beforeCommit(merged(stage))
}

// rows writes the journal, Job, Outbox and directive rows.
func (p *planner) rows(out *plan, entry entryRef, payload []byte) error {
	job := &p.d.After.Job
	out.head.Entry = entry
	jobOp := write(p.l.jobKey(job.ID, rowJob), &p.s.job)
	jobOp.Properties = encodeJob(job, &out.head, p.s.job.Properties)
	// Two changes for one rev collide at the journal row, and its operation id tells
	// which of them was committed.
	journal := tablestore.Op{
		Verb: tablestore.Insert, Key: p.l.eventKey(job.ID, job.Rev), Properties: journalCodec.Encode(p.journalRow(), nil),
	}
	batch := append(tablestore.Batch{journal, jobOp}, out.change.Commit...)
	if row := p.d.Replaced; row != nil {
		op := write(p.s.outbox.Key, &p.s.outbox)
		op.Properties = outboxCodec.Encode(row, p.s.outbox.Properties)
		batch = append(batch, op)
	}
	if row := p.d.Added; row != nil {
		id, err := ParseOutboxID(row.ID)
		if err != nil {
			return err
		}
		batch = append(batch, tablestore.Op{
			Verb: tablestore.Insert, Key: p.l.itemKey(rowOutbox, id), Properties: outboxCodec.Encode(row, nil),
		})
	}
	if row := p.d.Dispatch; row != nil {
		var err error
		if out.message, err = p.message(payload); err != nil {
			return err
		}
		batch = append(batch, tablestore.Op{
			Verb: tablestore.Insert, Key: p.l.attemptKey(rowDirective, job.ID, row.StepIndex, row.AttemptNo),
			Properties: largeRow("directive", out.message.Directive),
		})
	}
	out.change.Commit = batch
	return nil
}

func (p *planner) journalRow() *journalRow {
	return &journalRow{Operation: p.fresh.operation, HistoryEntry: HistoryEntry{
		Rev: p.d.After.Job.Rev, At: p.now, Event: p.eventName, Actor: p.options.actor, Caller: p.caller,
		RequestID: p.options.requestID, Report: p.d.Report,
	}, Entries: p.d.History, Moves: p.moves.Events}
}

// post plans the post-commit work: first the clean-up, then the deletion of obsolete
// entries, so that after a crash an entry still finds the rest.
func (p *planner) post(out *plan, entry entryRef) {
	job := &p.d.After.Job
	var clean, slot tablestore.Stage
	obsolete := slices.Clone(p.options.lost)
	if old := p.s.head.Entry; old.Kind != "" && old != entry {
		obsolete = append(obsolete, old)
	}
	if p.d.Ended {
		rows, entries := p.l.announce(job)
		if clean, slot = p.release, nil; out.looks && p.l.atomic == nil && !p.s.head.Slot.Numbered {
			// The look comes in between, and meanwhile a late write may take the slot again.
			clean, slot = nil, p.release
		}
		clean = merged(slices.Concat(clean, p.l.retain(job), entries, rows))
		obsolete = append(obsolete, entry)
	}
	if timer := p.postTimer(); timer.Kind != "" {
		obsolete = append(obsolete, timer)
	}
	out.forget = merged(slices.Concat(slot, p.l.discardEntries(job.ID, obsolete)))
	var last []tablestore.Stage
	if p.l.cfg.Projector == nil && !out.looks {
		if all := merged(slices.Concat(clean, out.forget)); len(all) == 1 {
			clean = all // One batch does both.
		} else {
			last = stages(out.forget)
		}
	}
	if p.l.atomic != nil { // On any other store [Ledger.freeRuns] does it: a lost race must not stop the rest.
		clean = append(clean, out.free...)
	}
	if out.taken != nil { // No entry is needed: any reader of a void hint deletes it.
		clean = append(clean, tablestore.Batch{p.l.discardHint(out.taken)})
	}
	out.change.Post = append(stages(clean), last...)
}

// merged returns the stage with neighbouring batches of one partition made one.
func merged(stage tablestore.Stage) tablestore.Stage {
	var out tablestore.Stage
	for _, batch := range stage {
		if n := len(out); n > 0 && out[n-1][0].Key.Table == batch[0].Key.Table && out[n-1][0].Key.Partition == batch[0].Key.Partition {
			out[n-1] = slices.Concat(out[n-1], batch)
		} else {
			out = append(out, batch)
		}
	}
	return out
}

// beforeCommit adds batches to the last stage before the commit.
func (out *plan) beforeCommit(stage tablestore.Stage) {
	pre := out.change.Pre
	if len(pre) == 0 {
		out.change.Pre = stages(stage)
		return
	}
	pre[len(pre)-1] = append(pre[len(pre)-1], stage...)
}

// stageOf returns a stage of the batch, or none if that is empty.
func stageOf(batch tablestore.Batch) tablestore.Stage {
	if len(batch) == 0 {
		return nil
	}
	return tablestore.Stage{batch}
}

// stages returns one stage of the batches, or none if there are no batches.
func stages(batches []tablestore.Batch) []tablestore.Stage {
	if len(batches) == 0 {
		return nil
	}
	return []tablestore.Stage{batches}
}
