package ledger

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
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
	fresh     fresh
	options   *options
	eventName string
	now       time.Time
}

// build makes the writes of the decision. payload is the command's, needed
// where a directive is to be made; post are writes of other components.
func (p *planner) build(payload []byte, post []tablestore.Batch) (*plan, error) {
	out := &plan{after: p.d.After, history: p.d.History, operation: p.fresh.operation, hot: p.d.Hot}
	out.change.Commit = p.steps(out.change.Commit)
	if p.d.Light {
		out.change.Post = stages(post)
		return out, nil
	}
	entry := p.schedule(out)
	p.index(out)
	if err := p.rows(out, entry, payload); err != nil {
		return nil, err
	}
	p.post(out, entry, post)
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
		op.Properties = encodeStep(step, loaded)
		batch = append(batch, op)
	}
	return batch
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
	want := wakeRef(p.d.Wake, p.fresh.nonce())
	if p.d.Ended {
		want = p.soon(p.fresh.nonce())
	}
	if want.Kind == "" {
		return entryRef{}, false
	}
	fired := p.options.entry != nil && p.options.entry.ref() == old
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
	pre := out.change.Pre
	if len(pre) == 0 {
		out.change.Pre = stages(stage)
		return
	}
	pre[len(pre)-1] = append(pre[len(pre)-1], stage...)
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
			Properties: tablestore.AppendLarge(newColumns(2).list, "directive", out.message.Directive),
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
			Properties: encodeOutbox(row, p.s.outbox.Properties),
		})
	}
	if row := p.d.Added; row != nil {
		id, err := ParseOutboxID(row.ID)
		if err != nil {
			return nil, err
		}
		batch = append(batch, tablestore.Op{
			Verb: tablestore.Insert, Key: p.l.outboxKey(p.d.After.Job.ID, id), Properties: encodeOutbox(row, nil),
		})
	}
	return batch, nil
}

// journal is the insert of EVENT:{rev}: it makes two changes for one rev
// collide, and its operation id tells whose change came through.
func (p *planner) journal() (tablestore.Op, error) {
	job := &p.d.After.Job
	entries, err := json.Marshal(journalEntries(p.d.History))
	if err != nil {
		return tablestore.Op{}, fmt.Errorf("encode the journal of job %s: %w", job.ID, err)
	}
	c := newColumns(9)
	c.str("operation", p.fresh.operation)
	c.int("rev", job.Rev)
	c.time("at", p.now)
	c.str("event", p.eventName)
	c.str("actor", p.options.actor)
	c.str("request_id", p.options.requestID)
	return tablestore.Op{
		Verb: tablestore.Insert, Key: p.l.eventKey(job.ID, job.Rev),
		Properties: tablestore.AppendLarge(c.list, "entries", entries),
	}, nil
}

// post adds what follows the commit: first the clean-up, then the removal of
// the entries, so that a crash in between leaves one that finds the rest.
func (p *planner) post(out *plan, entry entryRef, others []tablestore.Batch) {
	job := &p.d.After.Job
	clean := append(tablestore.Stage(nil), others...)
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

// bind makes a companion's writes a condition of the change where the store can
// apply both at once: a race for its rows is then lost before the commit.
func (p *planner) bind(out *plan, companion []tablestore.Batch) {
	_, atomic := p.l.store.(tablestore.AtomicStore)
	if !atomic || p.options.post == nil || len(companion) == 0 {
		return
	}
	out.change.Pre = append(out.change.Pre, companion)
	rest := out.change.Post[0][len(companion):]
	out.change.Post = append(stages(rest), out.change.Post[1:]...)
}

// stages is one stage of the batches, none where there are none.
func stages(batches []tablestore.Batch) []tablestore.Stage {
	if len(batches) == 0 {
		return nil
	}
	return []tablestore.Stage{batches}
}
