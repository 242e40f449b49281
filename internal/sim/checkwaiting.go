package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/audit"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/projections"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// moment is a live job at a time, with its rows and its surroundings. The checker derives
// from it which reasons are true, independently of how the program finds the reason.
type moment struct {
	job    *job
	now    time.Time
	step   *audit.StepRow   // the first step that has not ended
	row    *audit.OutboxRow // the row of its latest attempt
	around statemachine.Surroundings

	held   bool // a worker may have the attempt
	unsent bool // the attempt is not published
	queued bool // the directive waits in the pull queue
}

// moment returns the moment of a job, or nil if the job has ended.
func (c *checker) moment(j *job, now time.Time, around *statemachine.Surroundings) *moment {
	i := slices.IndexFunc(j.steps, func(s audit.StepRow) bool { return !s.Terminal() })
	if i < 0 || j.row.Terminal() {
		return nil
	}
	m := &moment{job: j, now: now, step: &j.steps[i], row: &audit.OutboxRow{}, around: *around}
	for _, row := range j.outbox {
		if row.ID == m.step.OutboxID {
			m.row = &row
		}
	}
	m.held = m.step.State == "IN_PROGRESS" || m.step.State == "AWAITING_ACK" && !m.step.Expires.IsZero()
	m.unsent = m.step.State == "DISPATCHING" && m.row.State == "PENDING"
	m.queued = j.evidence().Queued() != nil
	return m
}

// phase describes what the job waits for, by its rows. [job.phaseAt] is when the phase began.
func (m *moment) phase() string {
	if state := m.job.row.State; state == "PAUSED" || state == "PAUSING" || state == "CANCELLING" {
		return state
	}
	return fmt.Sprint(m.step.ID, m.step.Attempt, m.step.State, m.held, m.job.row.Parked)
}

// reasons returns all reasons that are true at the moment.
func (m *moment) reasons() []string {
	state := m.job.row.State
	free := state != "PAUSED" && state != "PAUSING" && state != "CANCELLING"
	delayed := m.step.State == "FAILED_RETRY" || m.unsent && m.row.Rejected && m.row.Due.After(m.now)
	ready := free && !delayed
	pause := m.around.Pause
	covered := pause != nil && (m.unsent || m.queued && pause.State == statemachine.ScopePaused)
	broken := m.around.Circuit != nil && m.row.Bus == "servicebus"
	unpolled := !m.around.Polled.IsZero() && m.now.Sub(m.around.Polled) > time.Minute
	quiet := m.now.Sub(m.job.heard) > leaseOf(m.step)/2
	var found []string
	for reason, holds := range map[string]bool{
		"scheduled":    m.job.row.Parked,
		"starting":     waitsInLine(&m.job.row),
		"job_paused":   state == "PAUSED" && !m.held,
		"pausing":      state == "PAUSING" && m.held,
		"cancelling":   state == "CANCELLING" && m.held,
		"backoff":      free && delayed && !m.step.Throttled,
		"rate_limited": free && delayed && m.step.Throttled,
		"scope_paused": ready && covered,
		"circuit_open": ready && m.unsent && !covered && broken,
		"publishing":   ready && m.unsent && !covered && !broken,
		"no_worker":    ready && m.queued && !covered && unpolled,
		"queued":       ready && m.queued && !covered && !unpolled,
		"delivered":    ready && m.held && m.step.State == "AWAITING_ACK",
		"running":      ready && m.step.State == "IN_PROGRESS" && !quiet,
		"silent":       ready && m.step.State == "IN_PROGRESS" && quiet,
	} {
		if holds {
			found = append(found, reason)
		}
	}
	return found
}

// since returns when the reason began to hold.
func (m *moment) since(reason string) time.Time {
	from := m.job.phaseAt
	switch reason {
	case "scope_paused":
		return later(from, m.around.Pause.CreatedAt)
	case "circuit_open":
		return later(from, m.around.Circuit.Since)
	case "no_worker":
		return later(from, m.around.Polled)
	case "silent":
		return m.job.heard.Add(leaseOf(m.step) / 2)
	case "backoff":
		if m.unsent {
			return m.row.Updated
		}
	}
	return from
}

// until returns when the program will act on its own.
func (m *moment) until(reason string) time.Time {
	switch {
	case reason == "scheduled":
		return m.job.row.NotBefore
	case reason == "scope_paused" && m.around.Pause.State == statemachine.ScopeRamping:
		return m.around.Pause.ResumedAt.Add(m.around.Pause.Ramp)
	case reason == "scope_paused":
		return m.around.Pause.Until
	case reason == "circuit_open":
		return m.around.Circuit.Until
	case reason == "backoff" && m.unsent:
		return m.row.Due
	case reason == "backoff" || reason == "rate_limited":
		return m.step.Next
	case m.held:
		return m.step.End()
	}
	return time.Time{}
}

// blocker returns the id of the pause, circuit or work item that must end first.
func (m *moment) blocker(reason string) string {
	switch {
	case reason == "scope_paused":
		return m.around.Pause.ID()
	case reason == "circuit_open":
		return m.around.Circuit.Name
	case m.held && m.row.Bus == "queue":
		for _, item := range m.job.items {
			if item.Open {
				return item.WorkID
			}
		}
	}
	return ""
}

// surroundings returns possible surroundings of a job. The rows do not depend on them, so
// the checker makes up a different combination for each commit.
func surroundings(n int, now time.Time) statemachine.Surroundings {
	var around statemachine.Surroundings
	switch n % 3 {
	case 1:
		around.Pause = &statemachine.ScopePause{
			Scope: statemachine.Scope{Kind: "service", Value: "svc1"}, State: statemachine.ScopePaused, Actor: "operator",
			CreatedAt: now.Add(-5 * time.Second),
		}
		if n%2 == 0 {
			around.Pause.Until = now.Add(time.Hour)
		}
	case 2:
		around.Pause = &statemachine.ScopePause{
			State: statemachine.ScopeRamping, Actor: "operator", CreatedAt: now.Add(-time.Hour), ResumedAt: now, Ramp: time.Second,
		}
	}
	if n/3%2 == 1 {
		around.Circuit = &statemachine.OpenCircuit{Name: "topic1", Since: now.Add(-7 * time.Second), Until: now.Add(time.Second)}
	}
	switch n / 6 % 3 {
	case 1:
		around.Polled = now.Add(-time.Minute)
	case 2:
		around.Polled = now.Add(-time.Minute - time.Millisecond)
	}
	return around
}

// checkWaiting checks that exactly one reason is true of the job, and that the program gives
// this reason with correct details, now and, at every other commit, a while later.
func (c *checker) checkWaiting(j *job) {
	now := time.Now().UTC()
	around := surroundings(c.seq, now)
	m := c.moment(j, now, &around)
	if m == nil {
		return
	}
	if phase := m.phase(); phase != j.phase {
		j.phase, j.phaseAt = phase, j.row.Updated
	}
	if c.partial || c.w.disk.last(tableLedger, j.id) != 0 { // The store shows a later change.
		return
	}
	agg, err := c.reader().Job(context.Background(), j.id)
	if err != nil {
		c.violate("waiting", "job %s cannot be read: %v", j.id, err)
		return
	}
	if c.seq%2 == 1 {
		m.now = now.Add(leaseTime/2 + time.Second)
	}
	c.judgeWaiting(m, agg.Waiting(m.now, &around))
}

// judgeWaiting compares the program's answer with the moment.
func (c *checker) judgeWaiting(m *moment, got statemachine.Waiting) {
	truth := m.reasons()
	reason := string(got.Reason)
	if len(truth) != 1 || truth[0] != reason {
		c.violate("waiting", "job %s says that it waits for %q, want %q", m.job.id, reason, truth)
		return
	}
	c.waits[reason]++
	switch since, until, blocker := m.since(reason), m.until(reason), m.blocker(reason); {
	case !got.Since.Equal(since):
		c.violate("waiting", "job %s waits for %s since %s, it says %s", m.job.id, reason, since, got.Since)
	case !got.Until.Equal(until):
		c.violate("waiting", "job %s waits for %s until %s, it says %s", m.job.id, reason, until, got.Until)
	case got.BlockedBy.ID != blocker:
		c.violate("waiting", "job %s waits for %s, blocked by %q, it says %q", m.job.id, reason, blocker, got.BlockedBy.ID)
	case got.Detail == "" || strings.Contains(got.Detail, "%!"):
		c.violate("waiting", "job %s waits for %s: %q", m.job.id, reason, got.Detail)
	}
}

// takeHeard records the time of a worker's report, which ends its silence, and checks the
// lease that the report gets.
func (c *checker) takeHeard(who actor, j *job, old, next *audit.StepRow, row tablestore.Properties) {
	if next.State == "IN_PROGRESS" && (old.State != "IN_PROGRESS" || who.op != nil) {
		j.heard = row.Get("updated_at").Time()
		if want := j.heard.Add(leaseOf(next)); !next.Expires.Equal(want) {
			c.violate("lease", "a report on step %s of job %s got a lease until %s, want %s", next.ID, j.id, next.Expires, want)
		}
		if op := who.op; op != nil && op.lease > 0 {
			c.asked[next.Lease] = op.lease
			if next.ClaimLease != op.lease {
				c.violate("lease", "an ACK of step %s of job %s asked for %s, and the step has %s",
					next.ID, j.id, op.lease, next.ClaimLease)
			}
		}
	}
}

// leaseOf returns what each report of the step's worker gets: what its claim asked for, or
// what the step allows if that is less or the claim asked for nothing.
func leaseOf(step *audit.StepRow) time.Duration {
	if step.ClaimLease > 0 && step.ClaimLease < leaseTime {
		return step.ClaimLease
	}
	return leaseTime
}

// reader returns a ledger that reads the store directly, not through the gate.
func (c *checker) reader() *ledger.Ledger {
	if c.ledger == nil {
		cfg := ledger.Config{Store: c.w.store, Shards: shards}
		if c.w.scenario.table {
			cfg.Projector = projections.New(c.w.store, projections.Tables{}, nil)
		}
		l, err := ledger.Open(context.Background(), cfg)
		if err != nil {
			c.w.defect("open the checker's ledger: %v", err)
			return nil
		}
		c.ledger = l
	}
	return c.ledger
}
