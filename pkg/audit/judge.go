package audit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// The buses that an outbox row may be made for.
const (
	busQueue      = "queue"
	busServiceBus = "servicebus"
)

// judge checks one job against the rules.
type judge struct {
	*Evidence
	o        *Options
	findings []Finding
}

// judge returns what is wrong with one job.
func (e *Evidence) judge(o *Options) []Finding {
	j := &judge{Evidence: e, o: o}
	for _, text := range e.unreadable {
		j.violate(Readable, "%s", text)
	}
	switch {
	case e.Job == nil:
		if len(j.Steps)+len(j.Outbox)+len(j.changes) > 0 {
			j.violate(Accepted, "its rows are there but for JOB")
		}
		return j.findings
	case e.Job.Tombstone || len(e.unreadable) > 0:
		return j.findings
	}
	if !j.payload {
		j.violate(Accepted, "its payload is missing")
	}
	slices.SortFunc(j.changes, func(a, b change) int { return int(a.rev - b.rev) })
	slices.SortFunc(j.Steps, func(a, b StepRow) int { return a.Index - b.Index })
	j.judgeRejected()
	j.judgeJournal()
	j.judgeSteps()
	j.judgeLineage()
	j.judgeDates()
	j.judgeOutbox()
	j.judgeDirectives()
	j.judgeOutside()
	j.judgePlace()
	j.judgeItems()
	j.judgeSlots()
	j.judgeMoves()
	if e.Job.Terminal() {
		j.judgeEnd()
	} else {
		j.judgeForward()
	}
	return j.findings
}

// Shape judges the rows of the job without its history and the rows in other
// partitions: the rules that hold after every single change.
func (e *Evidence) Shape() []Finding {
	j := &judge{Evidence: e, o: &Options{}}
	j.judgeSteps()
	j.judgeLineage()
	j.judgeDates()
	j.judgeOutbox()
	j.judgeItems()
	return j.findings
}

// violate adds a violation.
func (j *judge) violate(rule Invariant, format string, args ...any) {
	j.findings = append(j.findings, Finding{Invariant: rule, JobID: j.JobID, Detail: fmt.Sprintf(format, args...)})
}

// late adds work that is overdue, or what a change of a clock or a setting explains.
func (j *judge) late(rule Invariant, format string, args ...any) {
	j.findings = append(j.findings, Finding{Invariant: rule, Late: true, JobID: j.JobID, Detail: fmt.Sprintf(format, args...)})
}

// stamp formats a time for a finding.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// judgeRejected checks the records of refused callbacks.
func (j *judge) judgeRejected() {
	const kept = 64
	for i := range j.Rejected {
		if j.Rejected[i].Kind == "RELEASE" { // A request to release the job, which is no callback.
			continue
		}
		switch one := &j.Rejected[i]; {
		case one.Rev < 1 || one.Rev > j.Job.Rev || one.Cause == "" || one.At.IsZero():
			j.violate(Rejected, "a callback of step %s was refused with %q at rev %d, at %s", one.Step, one.Cause, one.Rev, stamp(one.At))
		case !slices.ContainsFunc(j.Steps, func(s StepRow) bool { return s.ID == one.Step }):
			j.violate(Rejected, "a callback of step %q was recorded, which it does not have", one.Step)
		}
	}
	if n := len(j.Rejected); n > 2*kept { // Replicas that record at the same time may leave more than kept.
		j.violate(Rejected, "it keeps %d refused callbacks, not about %d", n, kept)
	}
}

// judgeJournal replays the history: it begins at 1, has no gap, takes only listed
// edges, never leaves a terminal state, ends in the states of the rows, and has a row for each object.
func (j *judge) judgeJournal() {
	states, operations := map[string]string{}, map[string]bool{}
	var last time.Time
	for i, c := range j.changes {
		if c.rev != int64(i)+1 {
			j.violate(Journal, "change %d of its history is numbered %d", i+1, c.rev)
			return
		}
		if c.operation == "" || operations[c.operation] {
			j.violate(Journal, "change %d was made by operation %q, which is missing or used twice", c.rev, c.operation)
		}
		if c.at.Add(j.o.Clocks).Before(last) { // Another process may have made it, whose clock differs.
			j.late(Journal, "change %d is of %s, before the one before it, as after a clock was set back", c.rev, stamp(c.at))
		}
		operations[c.operation], last = true, c.at
		for _, m := range c.moves {
			j.replay(states, c.rev, m)
		}
	}
	if n := int64(len(j.changes)); n != j.Job.Rev {
		j.violate(Journal, "it is at rev %d and its history has %d changes", j.Job.Rev, n)
		return
	}
	compare := func(name, state string) {
		if states[name] != state {
			j.violate(Journal, "%s is %s and its history ends in %q", name, state, states[name])
		}
		delete(states, name)
	}
	compare("job", j.Job.State)
	for i := range j.Steps {
		if s := &j.Steps[i]; s.State != "PENDING" || states["step "+s.ID] != "" {
			compare("step "+s.ID, s.State)
		}
	}
	for i := range j.Outbox {
		compare("outbox "+j.Outbox[i].ID, j.Outbox[i].State)
	}
	for _, name := range slices.Sorted(maps.Keys(states)) {
		j.violate(Accepted, "its history has %s, whose row is missing", name)
	}
}

// replay applies one move of the change rev to the states.
func (j *judge) replay(states map[string]string, rev int64, m move) {
	name := m.Object
	if m.ID != "" {
		name += " " + m.ID
	}
	was := states[name]
	if was == "" && m.Object == "step" {
		was = "PENDING"
	}
	states[name] = m.To
	switch {
	case m.From == "" && was == "":
	case (m.Type == statemachine.EventStepCarried || m.Type == statemachine.EventStepResolved) && was == "PENDING":
		if rev != 1 {
			j.violate(Lineage, "at rev %d %s is taken over, not at the start", rev, name)
		}
	case m.From != was:
		j.violate(Journal, "at rev %d %s goes from %s, and was %s", rev, name, m.From, was)
	case ended(was) && m.Object != "outbox" && m.From != m.To:
		j.violate(Terminal, "at rev %d %s leaves %s", rev, name, was)
	case m.From != m.To &&
		!(m.Object == "job" && listed(statemachine.JobEdges, m) || m.Object == "step" && listed(statemachine.StepEdges, m) ||
			m.Object == "outbox" && listed(statemachine.OutboxEdges, m)):
		j.violate(Edges, "at rev %d %s goes from %s to %s", rev, name, m.From, m.To)
	}
}

// listed reports whether the move is one of the edges.
func listed[S ~string](edges []statemachine.Edge[S], m move) bool {
	return slices.ContainsFunc(edges, func(e statemachine.Edge[S]) bool {
		return string(e.From) == m.From && string(e.To) == m.To
	})
}

// judgeLineage checks that the steps which a rerun did not execute come before all others, and have
// succeeded without an attempt.
func (j *judge) judgeLineage() {
	executed := ""
	for i := range j.Steps {
		s := &j.Steps[i]
		switch {
		case s.Outcome == "":
			executed = cmp.Or(executed, s.ID)
		case j.Job.RerunOf == "":
			j.violate(Lineage, "step %s is %s, and the job is no rerun", s.ID, s.Outcome)
		case executed != "":
			j.violate(Lineage, "step %s is %s, after step %s, which the job executes", s.ID, s.Outcome, executed)
		case s.State != "SUCCEEDED" || s.Attempt != 0:
			j.violate(Lineage, "step %s is %s, and %s with %d attempts", s.ID, s.Outcome, s.State, s.Attempt)
		}
	}
}

// judgeDates checks that a job that waits for its date has not begun, and that no job began or expired
// before its date. The process that decided a change recorded the time by which it did.
func (j *judge) judgeDates() {
	job := j.Job
	if job.Parked && (job.State != "QUEUED" || job.Attempts > 0 || job.EntryKind != "date") {
		j.violate(Dates, "it waits for its date, is %s with %d attempts, and its entry is of the kind %q",
			job.State, job.Attempts, job.EntryKind)
	}
	if job.Code == statemachine.ErrorExpired && (job.Started || job.NotAfter.IsZero() || job.Completed.Before(job.NotAfter)) {
		j.violate(Dates, "it expired at %s, its not_after is %s, and started is %t", stamp(job.Completed), stamp(job.NotAfter), job.Started)
	}
	if at := j.began(); !at.IsZero() && at.Before(job.NotBefore) {
		j.violate(Dates, "it began at %s, and its not_before is %s", stamp(at), stamp(job.NotBefore))
	}
}

// Expiry returns when the job expires by itself, the zero time if it does not.
func (e *Evidence) Expiry() time.Time {
	s := (&judge{Evidence: e}).active()
	if s == nil || e.Job.Started || e.Job.State == "CANCELLING" || s.State == "AWAITING_ACK" && !s.Expires.IsZero() {
		return time.Time{}
	}
	return e.Job.NotAfter
}

// judgeSteps checks that one step is executed at a time, in order, and that the job's
// state agrees with those of its steps.
func (j *judge) judgeSteps() {
	active, done, failed, total := 0, 0, 0, 0
	leases := map[string]string{}
	var states []string
	for i := range j.Steps {
		s := &j.Steps[i]
		states = append(states, s.State)
		total += s.Attempt
		if s.Index != i {
			j.violate(OneStep, "step %d is missing", i)
			return
		}
		if s.State != "PENDING" && s.State != "CANCELLED" && done < i {
			j.violate(OneStep, "step %s is %s before all before it have succeeded", s.ID, s.State)
		}
		switch {
		case s.State == "SUCCEEDED":
			done++
		case s.State == "FAILED_FINAL":
			failed++
		case s.State != "PENDING" && !s.Terminal():
			active++
		}
		j.judgeStep(s, leases)
	}
	state := j.Job.State
	switch {
	case active > 1:
		j.violate(OneStep, "%d steps are in progress", active)
	case state == "QUEUED" && !j.Job.Parked && j.Job.Place.Line == "",
		state == "SUCCEEDED" && done < len(j.Steps), state == "FAILED_FINAL" && failed != 1,
		j.Job.Terminal() && active > 0, !j.Job.Terminal() && active == 0 && done == len(j.Steps),
		failed > 0 && state != "FAILED_FINAL" && state != "CANCELLED":
		j.violate(OneStep, "it is %s and its steps are %s", state, strings.Join(states, ", "))
	case state == "PAUSED" && slices.ContainsFunc(j.Steps, func(s StepRow) bool { return s.Live() }):
		j.violate(OneStep, "it is PAUSED with an attempt in hand")
	case int64(total) != j.Job.Attempts:
		j.violate(Pair, "it counts %d attempts and its steps %d", j.Job.Attempts, total)
	case state == "FAILED_FINAL" && j.Job.Code == "":
		j.violate(Budget, "it failed and does not say why")
	}
}

// judgeStep checks one step by itself, and its lease against those of earlier steps.
func (j *judge) judgeStep(s *StepRow, leases map[string]string) {
	if s.Live() && s.Lease == "" {
		j.violate(Pair, "step %s is %s without a lease", s.ID, s.State)
	}
	if other := leases[s.Lease]; s.Lease != "" && other != "" {
		j.violate(Pair, "steps %s and %s have one lease", other, s.ID)
	}
	leases[s.Lease] = s.ID
	final := s.ErrorCode == "dispatch_exhausted" // The bus reported that it can never accept the message.
	for _, m := range s.Memory {
		final = final || m.Result == "FAILED_FINAL"
		if m.No > s.Attempt {
			j.violate(Pair, "step %s remembers attempt %d and is at %d", s.ID, m.No, s.Attempt)
		}
	}
	spent := 0
	for i := range s.Spent {
		final = final || s.Spent[i] > s.Budget[i]
		spent += s.Spent[i]
		if s.Spent[i] > s.Budget[i]+1 {
			j.violate(Budget, "step %s spent %d of a budget of %d", s.ID, s.Spent[i], s.Budget[i])
		}
	}
	final = final || s.MaxAttempts > 0 && spent >= s.MaxAttempts || s.ErrorCode == statemachine.ErrorExpired && j.Job.Code == s.ErrorCode
	if s.State == "FAILED_FINAL" && (!final || s.ErrorCode == "") {
		j.violate(Budget, "step %s failed for good (%q) with budget left", s.ID, s.ErrorCode)
	}
}

// judgeOutbox checks that the outbox agrees with the steps: it has a pending row for
// the attempt that is to be dispatched and no other, and a SENT row only for an
// attempt that was sent.
func (j *judge) judgeOutbox() {
	leases, pending := map[string]string{}, map[int]int{}
	for i := range j.Outbox {
		o := &j.Outbox[i]
		if other := leases[o.Lease]; o.Lease != "" && other != "" {
			j.violate(Pair, "outbox rows %s and %s have one lease", other, o.ID)
		}
		leases[o.Lease] = o.ID
		if o.State == "SENT" && o.Sent.IsZero() {
			j.violate(Published, "outbox row %s is SENT and does not say when", o.ID)
		}
		if o.Bus != busQueue && o.Bus != busServiceBus {
			j.violate(Outbox, "outbox row %s is made for the bus %q", o.ID, o.Bus)
		}
		if o.Step >= len(j.Steps) || o.Attempt > j.Steps[o.Step].Attempt {
			j.violate(Outbox, "outbox row %s is of attempt %d of step %d, which does not exist", o.ID, o.Attempt, o.Step)
		}
		if o.State == "PENDING" {
			pending[o.Step]++
			if s := j.step(o.Step); s != nil && (o.Attempt != s.Attempt || o.Lease != s.Lease) {
				j.violate(Outbox, "outbox row %s is PENDING for attempt %d, the step is at %d", o.ID, o.Attempt, s.Attempt)
			}
		}
	}
	j.judgePending(pending)
}

// judgePending checks how many pending outbox rows each step has, and that a live step
// has its outbox row.
func (j *judge) judgePending(pending map[int]int) {
	for i := range j.Steps {
		s := &j.Steps[i]
		if n := pending[s.Index]; n > 1 || (n == 1) != (s.State == "DISPATCHING") {
			j.violate(Outbox, "step %s is %s with %d pending outbox rows", s.ID, s.State, n)
		}
		if row := j.outboxRow(s.OutboxID); s.Live() && (row == nil || row.Step != s.Index) {
			j.violate(Outbox, "step %s is %s and its outbox row %q is missing", s.ID, s.State, s.OutboxID)
		}
	}
}

// judgeDirectives checks that each attempt has one content, its own, and that no two
// attempts share a lease.
func (j *judge) judgeDirectives() {
	leases := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(j.directives)) {
		var d struct {
			Type      string `json:"type"`
			JobID     string `json:"jobId"`
			StepID    string `json:"stepId"`
			TenantID  string `json:"tenant_id"`
			AttemptNo int    `json:"attempt_no"`
			LeaseID   string `json:"lease_id"`
		}
		if err := json.Unmarshal(j.directives[name], &d); err != nil {
			j.violate(Directive, "the directive of attempt %s is not JSON", name)
			continue
		}
		if other := leases[d.LeaseID]; other != "" || d.LeaseID == "" {
			j.violate(Pair, "attempts %s and %s have one lease", other, name)
		}
		leases[d.LeaseID] = name
		if d.Type != "DIRECTIVE" || d.JobID != j.JobID || d.TenantID != j.Job.Tenant || !slices.ContainsFunc(j.Steps, func(s StepRow) bool {
			return name == attempt(s.Index, d.AttemptNo) && d.StepID == s.ID && d.AttemptNo <= s.Attempt
		}) {
			j.violate(Directive, "the directive of attempt %s says that it is attempt %d of step %q of job %s",
				name, d.AttemptNo, d.StepID, d.JobID)
		}
	}
	for i := range j.Outbox {
		o := &j.Outbox[i]
		if j.directives[attempt(o.Step, o.Attempt)] == nil {
			j.violate(Directive, "attempt %d of outbox row %s has no directive", o.Attempt, o.ID)
		} else if o.Lease != "" && leases[o.Lease] != attempt(o.Step, o.Attempt) {
			j.violate(Directive, "outbox row %s and its directive have different leases", o.ID)
		}
	}
}

// judgeOutside checks the rows in other partitions that are written before the commit
// that they belong to: the lists, the slot, and the idempotency key for as long as it
// is the job's own.
func (j *judge) judgeOutside() {
	for _, key := range j.ListKeys(j.o) {
		if _, ok := j.outside[key]; !ok {
			j.violate(Listed, "it is missing in the list %s", key.Partition)
		}
	}
	slot := j.outside[j.slotKey(j.o)].Get("job_id").String()
	if !j.Job.Terminal() && slot != j.JobID {
		j.violate(Slot, "its slot %s names %q", j.Job.SlotRow, slot)
	}
	past := func(kept time.Duration) bool { return kept > 0 && !j.o.Now.Before(j.Job.Completed.Add(kept)) }
	if j.Job.Terminal() && (past(j.o.KeyTTL) || past(max(j.o.KeyTTL, j.o.Retention))) {
		return // The key may name another job by now, or none because this one is about to be purged.
	}
	record := j.outside[j.recordKey(j.o)]
	if owner := record.Get("job_id").String(); owner == "" && j.Job.Occurrence.ScheduleID != "" && j.Job.Terminal() {
		return // The history of its schedule was trimmed.
	} else if made := record.Get("created_at").Time(); j.Job.Terminal() && owner != "" && owner != j.JobID && made.After(j.Job.Completed) {
		j.late(Key, "its idempotency key names job %q, accepted at %s, after its end: keys were kept less long then", owner, stamp(made))
	} else if owner != j.JobID {
		j.violate(Key, "its idempotency key names job %q", owner)
	} else if record.Get("idempotency_hash").String() != j.Job.Hash && j.Job.Occurrence.ScheduleID == "" {
		j.violate(Key, "its idempotency key has another hash")
	}
}

// judgeForward checks that a schedule entry leads to the job at or before its next
// deadline, or that workers can find it, and that the entry names what a pause may cover.
func (j *judge) judgeForward() {
	if j.o.Quiescent {
		j.violate(Quiet, "it is %s", j.Job.State)
	}
	queued := j.Queued()
	if queued != nil {
		key := j.HintKey(queued, j.o)
		hint, there := j.outside[key]
		protocol, lane := hint.Get("protocol_id").String(), int(hint.Get("lane").Int())
		if step := j.step(queued.Step); !there {
			j.violate(Forward, "it waits for a worker, and its ready hint %s is missing", key.Row)
		} else if protocol != j.Job.Protocol || lane != step.Lane {
			j.violate(Queue, "its ready hint says that it is of protocol %q and lane %d, and it is of %q and %d",
				protocol, lane, j.Job.Protocol, step.Lane)
		}
	}
	named, due := j.Job.EntryKind != "", j.due()
	switch {
	case named && j.outside[j.EntryKey(j.o)] == nil:
		j.violate(Forward, "its schedule entry %s is missing", j.EntryKey(j.o).Row)
	case named && !due.IsZero() && j.Job.EntryDue.After(due):
		j.violate(Forward, "its schedule entry is due at %s, and it at %s", stamp(j.Job.EntryDue), stamp(due))
	case named && j.o.Now.After(j.Job.EntryDue.Add(j.o.Slack)):
		j.late(Forward, "its schedule entry was due at %s", stamp(j.Job.EntryDue))
	case named:
	case !due.IsZero():
		j.violate(Forward, "it is %s and has no schedule entry", j.Job.State)
	case j.Job.State == "PAUSED" || j.Job.State == "QUEUED" && j.Job.Place.Line != "":
	case queued == nil:
		j.violate(Forward, "it is %s, and neither a worker nor a schedule entry will take it up", j.Job.State)
	case j.o.Split && j.Job.Rev == 1:
		j.violate(Forward, "it was accepted, and no schedule entry remembers what the accept reserved")
	}
}

// publishHold is how long after its due time an outbox row may still be held by the
// process that publishes it.
const publishHold = 15 * time.Minute

// due returns the job's next deadline, the zero time if it has none: it does not expire, and is
// paused, or waits for a worker in the pull queue.
func (j *judge) due() time.Time {
	due, expiry := j.progress(), j.Expiry()
	if due.IsZero() || !expiry.IsZero() && expiry.Before(due) {
		return expiry
	}
	return due
}

// progress is due for a job that does not expire.
func (j *judge) progress() (due time.Time) {
	s := j.active()
	switch {
	case s == nil || j.Job.State == "PAUSED":
		return due
	case j.Job.Parked:
		return j.Job.NotBefore
	}
	switch s.State {
	case "AWAITING_ACK", "IN_PROGRESS":
		return s.End()
	case "FAILED_RETRY":
		return s.Next
	case "DISPATCHING":
		for k := range j.Outbox {
			if o := &j.Outbox[k]; o.State == "PENDING" && o.Due.After(due) {
				due = o.Due
			}
		}
		return due.Add(publishHold)
	}
	return due
}

// active returns the first step that has not ended, nil if the job has ended.
func (j *judge) active() *StepRow {
	for i := range j.Steps {
		if s := &j.Steps[i]; !s.Terminal() && !j.Job.Terminal() {
			return s
		}
	}
	return nil
}

// judgeEnd checks the post work of the job's end. It may be pending for as long as a
// schedule entry will repeat it.
func (j *judge) judgeEnd() {
	if j.Job.EntryKind != "" && j.outside[j.EntryKey(j.o)] != nil {
		if j.o.Quiescent || j.o.Now.After(j.Job.EntryDue.Add(j.o.Slack)) {
			j.late(Ended, "work after its end was due at %s", stamp(j.Job.EntryDue))
		}
		return
	}
	if j.outside[j.slotKey(j.o)].Get("job_id").String() == j.JobID {
		j.violate(Slot, "it has ended, and its slot is taken")
	}
	if n := len(j.webhooks); n != j.Job.Callbacks {
		j.violate(Ended, "%d of its %d announcements are there", n, j.Job.Callbacks)
	}
	for _, w := range j.webhooks {
		if key := j.webhookEntry(w, j.o); w.text("state") == "PENDING" && j.outside[key] == nil {
			j.violate(Ended, "its webhook %d is pending, and the entry %s is missing", w.int("index"), key.Row)
		}
	}
}
