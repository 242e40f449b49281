package ledger

import (
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
	"github.com/lucius-project/lucius/pkg/workqueue/workitem"
)

// postDelay is how soon the schedule comes back to a job whose post stage was
// not known done. It bounds how long a slot of an ended job can leak.
const postDelay = 5 * time.Second

// plan is one decision as writes.
type plan struct {
	change    tablestore.Change
	after     statemachine.Aggregate
	history   []statemachine.Transition
	operation string
	message   *Message
	// hot says that the message is for this process's own relay.
	hot bool
	// queued is the ready hint that the change makes named, and taken the one that
	// it stops to be; nil if there is none.
	queued, taken *Hint
	// light says that the change has no revision, and ended that it ends the job.
	light, ended bool
	// revision is for the projector, nil where there is none or nothing for it.
	revision *Revision
	// forget removes the entries that remember this change, once all that follows
	// it is known done. Without a projector it is the last post stage.
	forget tablestore.Stage
}

// planner builds the plan of one decision.
type planner struct {
	l         *Ledger
	s         *snapshot
	d         *statemachine.Decision
	moves     workitem.Moves
	fresh     fresh
	options   *options
	eventName string
	now       time.Time
}

// build makes the writes of the decision. payload is the command's, needed for a
// directive that is to be made.
func (p *planner) build(payload []byte) (*plan, error) {
	out := &plan{after: p.d.After, history: p.d.History, operation: p.fresh.operation, hot: p.d.Hot,
		light: p.d.Light, ended: p.d.Ended,
	}
	items, err := p.items()
	if err != nil {
		return nil, err
	}
	out.change.Commit = append(p.steps(nil), items...)
	if p.d.Light {
		beats, err := p.beats()
		out.change.Commit = append(out.change.Commit, beats...)
		return out, err
	}
	entry := p.schedule(out)
	p.hints(out)
	p.index(out)
	if err := p.rows(out, entry, payload); err != nil {
		return nil, err
	}
	p.post(out, entry)
	if p.l.projector != nil {
		out.revision = p.revision(out.message)
	}
	return out, nil
}

// steps adds the changed Step rows.
func (p *planner) steps(batch tablestore.Batch) tablestore.Batch {
	job := &p.d.After.Job
	for _, i := range p.d.Steps {
		step := &p.d.After.Steps[i]
		op := tablestore.Op{Verb: tablestore.Insert, Key: p.l.stepKey(job.ID, i, step.ID)}
		var loaded tablestore.Properties
		if p.s != nil {
			loaded = p.s.steps[i].Properties
			op.Verb, op.ETag = tablestore.Replace, p.s.steps[i].ETag
		}
		op.Properties = stepCodec.encode(step, loaded)
		batch = append(batch, op)
	}
	return batch
}

// items adds the rows of the work items that the change moves: the open one's, and
// the row of one that has ended, which loading the job does not read.
func (p *planner) items() (tablestore.Batch, error) {
	if !p.moves.Changed {
		return nil, nil
	}
	var batch tablestore.Batch
	var before *workitem.Record
	if p.s != nil {
		before = p.s.open
	}
	goesOn := before != nil && p.moves.Open != nil && p.moves.Open.WorkID == before.WorkID
	if before != nil && !goesOn {
		batch = append(batch, tablestore.Op{Verb: tablestore.Delete, Key: p.s.openRow.Key, ETag: p.s.openRow.ETag})
	}
	write := func(kind string, verb tablestore.Verb, r *workitem.Record) error {
		id, err := ParseOutboxID(r.WorkID)
		if err != nil {
			return err
		}
		op := tablestore.Op{Verb: verb, Key: p.l.itemKey(kind, id)}
		var loaded tablestore.Properties
		if before != nil && before.WorkID == r.WorkID {
			loaded = p.s.openRow.Properties
		}
		if verb == tablestore.Replace {
			op.ETag = p.s.openRow.ETag
		}
		op.Properties = itemCodec.encode(r, loaded)
		batch = append(batch, op)
		return nil
	}
	if p.moves.Ended != nil {
		if err := write(rowItem, tablestore.Insert, p.moves.Ended); err != nil {
			return nil, err
		}
	}
	switch {
	case p.moves.Open == nil:
		return batch, nil
	case goesOn:
		return batch, write(rowOpenItem, tablestore.Replace, p.moves.Open)
	}
	err := write(rowOpenItem, tablestore.Insert, p.moves.Open)
	return batch, err
}

// beats are the rows of an item's heartbeats: a light change has no journal row.
func (p *planner) beats() (tablestore.Batch, error) {
	var batch tablestore.Batch
	for _, e := range p.moves.Events {
		id, err := ParseOutboxID(e.WorkID)
		if err != nil {
			return nil, err
		}
		moves, err := encodeMoves([]lifecycle.Event{e})
		if err != nil {
			return nil, fmt.Errorf("encode a heartbeat of work item %s: %w", e.WorkID, err)
		}
		batch = append(batch, tablestore.Op{
			Verb: tablestore.Insert, Key: p.l.beatKey(id, e.Rev),
			Properties: largeRow("moves", moves),
		})
	}
	return batch, nil
}

// hints writes the ready hint that the change makes named, before the commit. Its
// kind must be in the catalog by now.
func (p *planner) hints(out *plan) {
	var before *Hint
	if p.s != nil && p.s.open != nil {
		hint := p.l.hintOf(&p.s.agg, p.s.open)
		before = &hint
		if _, queued := p.s.agg.Queued(); queued {
			out.taken = before
		}
	}
	if _, queued := p.d.After.Queued(); !queued || p.moves.Open == nil {
		return
	}
	hint := p.l.hintOf(&p.d.After, p.moves.Open)
	if out.taken != nil && out.taken.Row() == hint.Row() {
		out.taken = nil // It is named before and after.
		return
	}
	out.queued = &hint
	batch := tablestore.Batch{p.l.putHint(&hint)}
	if before != nil && out.taken == nil && before.WorkID == hint.WorkID {
		batch = append(batch, p.l.discardHint(before)) // A claimer may have died before it deleted it.
	}
	p.beside(out, tablestore.Stage{batch})
}

// beside adds batches to the last stage before the commit.
func (p *planner) beside(out *plan, stage tablestore.Stage) {
	pre := out.change.Pre
	if len(pre) == 0 {
		out.change.Pre = stages(stage)
		return
	}
	pre[len(pre)-1] = append(pre[len(pre)-1], stage...)
}

// schedule chooses the entry that stands for the job from now on. Before the
// commit it writes that where it is new, and the one that remembers what follows.
func (p *planner) schedule(out *plan) entryRef {
	entry, fresh := p.entry()
	var refs []entryRef
	if fresh {
		refs = append(refs, entry)
	}
	if after := p.afterRef(); after.Kind != "" {
		refs = append(refs, after)
	}
	var puts tablestore.Stage
	for _, ref := range refs {
		puts = inBatches(puts, p.l.putEntry(&p.d.After, ref, p.options.reserved))
	}
	out.change.Pre = append(out.change.Pre, stages(puts)...)
	return entry
}

// entry is the entry that stands for the job from now on, and whether it is new.
func (p *planner) entry() (ref entryRef, fresh bool) {
	old := p.head().entry
	fired := p.options.entry != nil && p.options.entry.ref() == old
	want := wakeRef(p.d.Wake, p.fresh.nonce())
	i, queued := p.d.After.Queued()
	switch {
	case p.d.Ended:
		want = p.soon(p.fresh.nonce())
	case queued && p.l.atomic == nil && p.s == nil:
		// The accept may be torn from its reservations. Its entry frees them, and
		// looks once whether the hint is there.
		due := p.now.Add(p.d.After.Steps[i].Policy.AckTimeout)
		want = entryRef{Kind: Timer, Due: due.Truncate(time.Millisecond), Nonce: p.fresh.nonce()}
	case queued && p.l.atomic == nil && old.Kind == Timer && !fired:
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

// afterRef is the entry that remembers what follows this change; none where
// nothing does, or where the entry that stands for an ended job does it.
func (p *planner) afterRef() entryRef {
	if p.l.projector == nil || p.d.Ended {
		return entryRef{}
	}
	return p.soon(p.fresh.nonce() + "p") // No other entry's, whatever its time.
}

// soon is an entry that brings the sweeper back to what follows this change.
func (p *planner) soon(nonce string) entryRef {
	return entryRef{Kind: Timer, Due: p.now.Add(postDelay).Truncate(time.Millisecond), Nonce: nonce}
}

// index makes the job findable by its acceptance, or by its end, beside the
// entry where that is new.
func (p *planner) index(out *plan) {
	var stage tablestore.Stage
	switch {
	case p.s == nil:
		stage = p.l.indexAccepted(&p.d.After.Job)
	case p.d.Ended:
		stage = tablestore.Stage{p.l.indexEndedJob(&p.d.After)}
	default:
		return
	}
	p.beside(out, stage)
}

// head is the Job row's own part as it was loaded.
func (p *planner) head() head {
	if p.s == nil {
		return p.options.head
	}
	return p.s.head
}

// rows adds the Job, Outbox, directive and journal rows.
func (p *planner) rows(out *plan, entry entryRef, payload []byte) error {
	job := &p.d.After.Job
	h := p.head()
	h.entry = entry
	op := tablestore.Op{Verb: tablestore.Insert, Key: p.l.jobKey(job.ID, rowJob)}
	var loaded tablestore.Properties
	if p.s != nil {
		loaded = p.s.job.Properties
		op.Verb, op.ETag = tablestore.Replace, p.s.job.ETag
	}
	op.Properties = encodeJob(job, &h, loaded)

	journal, err := p.journal()
	if err != nil {
		return err
	}
	batch := append(tablestore.Batch{journal, op}, out.change.Commit...)
	if batch, err = p.outbox(batch); err != nil {
		return err
	}
	if p.d.Dispatch != nil {
		if out.message, err = p.message(payload); err != nil {
			return err
		}
		batch = append(batch, tablestore.Op{
			Verb:       tablestore.Insert,
			Key:        p.l.directiveKey(job.ID, p.d.Dispatch.StepIndex, p.d.Dispatch.AttemptNo),
			Properties: largeRow("directive", out.message.Directive),
		})
	}
	out.change.Commit = batch
	return nil
}

// outbox adds the changed and the new outbox row.
func (p *planner) outbox(batch tablestore.Batch) (tablestore.Batch, error) {
	if row := p.d.Replaced; row != nil {
		batch = append(batch, tablestore.Op{
			Verb: tablestore.Replace, Key: p.s.outbox.Key, ETag: p.s.outbox.ETag,
			Properties: outboxCodec.encode(row, p.s.outbox.Properties),
		})
	}
	if row := p.d.Added; row != nil {
		id, err := ParseOutboxID(row.ID)
		if err != nil {
			return nil, err
		}
		batch = append(batch, tablestore.Op{
			Verb: tablestore.Insert, Key: p.l.outboxKey(p.d.After.Job.ID, id), Properties: outboxCodec.encode(row, nil),
		})
	}
	return batch, nil
}

// journal is the insert of EVENT:{rev}: it makes two changes for one rev
// collide, and its operation id tells whose change came through.
func (p *planner) journal() (tablestore.Op, error) {
	job := &p.d.After.Job
	properties, err := encodeJournal(&journalRow{
		operation: p.fresh.operation, rev: job.Rev, at: p.now, event: p.eventName,
		actor: p.options.actor, requestID: p.options.requestID,
	}, p.d.History)
	if err != nil {
		return tablestore.Op{}, fmt.Errorf("encode the journal of job %s: %w", job.ID, err)
	}
	if len(p.moves.Events) > 0 {
		moves, err := encodeMoves(p.moves.Events)
		if err != nil {
			return tablestore.Op{}, fmt.Errorf("encode the moves of job %s: %w", job.ID, err)
		}
		properties = tablestore.AppendLarge(properties, "moves", moves)
	}
	return tablestore.Op{Verb: tablestore.Insert, Key: p.l.eventKey(job.ID, job.Rev), Properties: properties}, nil
}

// post adds what follows the commit: first the clean-up, then the removal of
// the entries, so that a crash in between leaves one that finds the rest.
func (p *planner) post(out *plan, entry entryRef) {
	job := &p.d.After.Job
	var clean tablestore.Stage
	if out.taken != nil { // Not remembered by an entry: a void hint is deleted on sight.
		clean = append(clean, tablestore.Batch{p.l.discardHint(out.taken)})
	}
	if p.d.Ended {
		rows, entries := p.l.announce(job)
		clean = append(clean, p.options.release...)
		clean = append(clean, append(p.l.retain(job), append(entries, rows...)...)...)
	}
	out.change.Post = stages(clean)
	var gone []entryRef
	if old := p.head().entry; old.Kind != "" && old != entry {
		gone = append(gone, old)
	}
	if p.d.Ended {
		gone = append(gone, entry)
	}
	if after := p.afterRef(); after.Kind != "" {
		gone = append(gone, after)
	}
	out.forget = p.l.discardEntries(job.ID, gone)
	if p.l.projector == nil {
		out.change.Post = append(out.change.Post, stages(out.forget)...)
	}
}

// stages is one stage of the batches, none where there are none.
func stages(batches []tablestore.Batch) []tablestore.Stage {
	if len(batches) == 0 {
		return nil
	}
	return []tablestore.Stage{batches}
}
