package sim

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

const (
	// endTime bounds the time until the jobs end in the calm phase: it allows every step to
	// spend all budgets.
	endTime = 15 * time.Minute
	// cleanupTime bounds the time after that until leftover rows are gone: it allows for the
	// grace of an orphaned entry, twice, and a round of the reconciler.
	cleanupTime = 15 * time.Minute
	// countTime bounds the time after that until the replicas agree on the number of jobs: it
	// allows for two rounds of the reconciler, and two exchanges of counts.
	countTime = 4 * time.Minute
	// idleTime is how long the idle phase lasts.
	idleTime = 2 * time.Minute
)

// faultPhase runs the simulation with faults.
func (w *world) faultPhase() {
	w.until(w.start.Add(w.scenario.length), func() bool { return w.trace.n > 6000 })
}

// calmPhase runs the simulation without faults. By its end every job must have ended, and
// nothing may be left over.
func (w *world) calmPhase() {
	w.faulty = false
	w.throttled = time.Time{}
	clear(w.cut)
	clear(w.bus.down)
	w.setCalm()
	for _, c := range w.late {
		c.ready = time.Now()
	}
	unended := w.afterCommits(w.unended)
	w.until(time.Now().Add(endTime), func() bool { return len(w.pending()) == 0 && len(unended()) == 0 })
	w.requireNone("L2", w.pending())
	w.requireNone("L2", unended())
	w.mu.Lock()
	w.reconcile = true
	w.mu.Unlock()
	left, stale := w.afterCommits(w.leftOver), w.afterCommits(w.staleProjections)
	w.until(time.Now().Add(cleanupTime), func() bool { return len(left()) == 0 && len(stale()) == 0 })
	w.requireNone("left over", left())
	w.requireNone("projection", stale())
	w.checkAccepted()
	counts := afterChange(func() int { return w.check.seq + w.counted + w.running() }, w.miscounted)
	counted := eachSecond(func() bool { return len(counts()) == 0 })
	w.until(time.Now().Add(countTime), counted)
	w.requireNone("counts", w.miscounted())
	w.audit()
}

// afterCommits returns a function that returns list(), but calls it again only after a commit.
// The result of list must depend only on the rows.
func (w *world) afterCommits(list func() []string) func() []string {
	return afterChange(func() int { return w.check.seq }, list)
}

// afterChange returns a function that returns list(), but calls it again only after version
// has changed.
func afterChange(version func() int, list func() []string) func() []string {
	seen, last := -1, []string(nil)
	return func() []string {
		if now := version(); seen != now {
			seen, last = now, list()
		}
		return last
	}
}

// eachSecond returns a function that calls done at most once a second, and returns false in
// between.
func eachSecond(done func() bool) func() bool {
	var next time.Time
	return func() bool {
		if time.Now().Before(next) {
			return false
		}
		next = time.Now().Add(time.Second)
		return done()
	}
}

// requireNone reports each element of the list as a violation.
func (w *world) requireNone(invariant string, list []string) {
	for _, what := range list {
		if !w.broken() {
			w.check.violate(invariant, "%s", what)
		}
	}
}

// idlePhase checks that a system without work makes few calls.
func (w *world) idlePhase() {
	before := w.trace.n
	end := time.Now().Add(idleTime)
	w.until(end, func() bool { return false })
	// Each pass reads each shard, and each claim the catalog and a few lists.
	passes := int(idleTime/relayInterval+idleTime/sweepInterval+2*idleTime/reconcileInterval) + 3 // it walks and counts
	if w.scenario.dated {
		passes += int(idleTime / sweepInterval)
	}
	if w.scenario.scheduled {
		passes += int(idleTime / sweepInterval)
	}
	if w.scenario.announced {
		passes += int(idleTime / sweepInterval)
	}
	if w.scenario.pauses {
		passes += int(idleTime / time.Second) // the gate reads changes
	}
	if w.scenario.limits {
		passes += int(idleTime / time.Second) // the gate reads the limits
	}
	if w.scenario.running > 0 {
		passes += int(idleTime / time.Second) // and what runs
	}
	bound := w.scenario.replicas*passes*(shards+2)*2 + w.scenario.workers*int(idleTime/time.Second)*12
	if calls := w.trace.n - before; calls > bound && !w.broken() {
		w.check.violate("L3", "%d calls in %s without work, at most %d are expected", calls, idleTime, bound)
	}
}

// pending reports whether the driver still has something to do.
func (w *world) pending() []string {
	if len(w.late) > 0 || len(w.agenda) > 0 || !w.disk.next().IsZero() || w.scenario.announced && !w.check.webhooks.done {
		return []string{"writes or tasks are pending"}
	}
	return nil
}

// unended returns the jobs that have not ended.
func (w *world) unended() []string {
	var list []string
	for _, j := range w.check.all() {
		lapsed := !j.evidence().Expiry().IsZero() && j.row.NotAfter.Before(time.Now())
		if !j.row.Terminal() && (j.row.State != "PAUSED" && !w.check.excused(j) || lapsed) {
			list = append(list, "job "+j.id+" is "+j.row.State+stepsOf(j))
		}
	}
	return list
}

// leftOver returns the rows that should have been deleted.
func (w *world) leftOver() []string {
	var list []string
	for key := range w.check.rows {
		if what := w.surplus(key); what != "" {
			list = append(list, what+" "+key.String())
		}
	}
	slices.Sort(list) // Map iteration has a random order.
	return list
}

// stepsOf returns the states of a job's steps.
func stepsOf(j *job) string {
	var b strings.Builder
	for i := range j.steps {
		s := &j.steps[i]
		b.WriteString(", " + s.ID + " is " + s.State + " at attempt " + strconv.Itoa(s.Attempt))
	}
	return b.String()
}

// surplus describes a row that should have been deleted. It returns "" for any other.
func (w *world) surplus(key tablestore.Key) string {
	row := w.check.rows[key]
	switch {
	case key.Table == tableCron && row.Get("outcome").String() == "claimed" &&
		(strings.HasPrefix(key.Row, "FIRE:") || row.Get("backfill_id").String() != ""):
		return "undecided occurrence"
	case key.Table == tableSchedule && key.Partition == "cron":
		return "entry of a schedule"
	case key.Table == tableSchedule && timed(strings.Split(key.Row, ":")):
		return "entry"
	case key.Table == tableSchedule && strings.HasPrefix(key.Row, "webhook:"):
		return "entry of a webhook"
	case key.Table == tableLedger && strings.HasPrefix(key.Row, "WEBHOOK:") && row.Get("state").String() == "PENDING" &&
		!w.check.outlived[key.String()]:
		return "pending webhook"
	case undelivered(key):
		if j := w.check.job(row.Get("job_id").String()); !j.exists && !w.check.outlived[key.String()] {
			return "row of a job that does not exist:"
		}
	case key.Table == tableSchedule && strings.HasPrefix(key.Row, "live:"):
		// Among explored ledgers is no reconciler, which frees a slot that a very late write has taken again.
		if j := w.check.job(row.Get("job_id").String()); j.row.State != "PAUSED" && !w.check.excused(j) && !w.scenario.bare {
			return "slot of a job that is " + j.row.State + ":"
		}
	case key.Table == tableLedger && strings.HasPrefix(key.Row, "OPENITEM:"):
		if j := w.check.job(key.Partition); j.row.State != "PAUSED" {
			return "open item of a job that is " + j.row.State + ":"
		}
	case key.Table == tableQueue && strings.HasPrefix(key.Partition, "ready:") && !w.scenario.bare: // There, no claim deletes it.
		return "hint"
	case key.Table == tableSchedule && strings.HasPrefix(key.Partition, "line:"):
		if id, _ := lineID(key.Partition); !w.check.stands(id) && !w.check.idle(id) {
			return "row of a line"
		}
	case describes(key):
		return w.check.surplusRow(key)
	}
	return ""
}

// running returns how many replicas have started. In the calm phase none crashes.
func (w *world) running() int {
	n := 0
	for _, r := range w.replicas {
		if r.now.up() != nil {
			n++
		}
	}
	return n
}

// miscounted describes how the counts of each replica differ from the rows. At this point, no
// step has work left, and jobs that have not ended are paused, or wait in a line behind one that is.
func (w *world) miscounted() []string {
	left := map[statemachine.JobState]int{}
	for _, j := range w.check.all() {
		if j.row.State == string(statemachine.JobPaused) || w.check.excused(j) {
			left[statemachine.JobState(j.row.State)]++
		}
	}
	var list []string
	for _, r := range w.replicas {
		up := r.now.up()
		if up == nil {
			continue
		}
		report := up.counts.Report()
		for state, n := range report.Jobs {
			if want := left[state]; n != want {
				list = append(list, fmt.Sprintf("%s counts %d jobs that are %s, there are %d", r.now.name, n, state, want))
			}
		}
		for _, s := range report.Services {
			if s.Dispatching+s.Queued+s.Claimed+s.Running+s.Backoff != 0 {
				list = append(list, fmt.Sprintf("%s counts steps of a service that has no work: %+v", r.now.name, s))
			}
		}
	}
	slices.Sort(list)
	return list
}

// checkAccepted checks that every accepted command has its job.
func (w *world) checkAccepted() {
	for _, name := range slices.Sorted(maps.Keys(w.check.keys)) {
		first := w.check.keys[name]
		if j := w.check.job(first.jobID); !j.exists && !j.purged {
			w.check.violate("S1", "job %s of command %s is lost", j.id, name)
		}
	}
}
