package background

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// ReconcilerLedger is the part of the ledger that a [Reconciler] needs.
type ReconcilerLedger interface {
	ledger.Schedule
	Exclusive() bool
	Inspect(ctx context.Context, shard, limit int, from string) ([]ledger.Finding, string, error)
	InspectReady(ctx context.Context, w *ledger.ReadyWalk, limit int,
	) (seen, repaired int, ended bool, err error)
	Lines(ctx context.Context, tenantID string, shard, limit int, after string) ([]ledger.LineView, string, error)
	Job(ctx context.Context, jobID string) (*statemachine.Aggregate, error)
}

// ScheduleCounts counts the schedules.
type ScheduleCounts interface {
	// Count counts those of one page by state, and returns the token of the next page, empty at the end.
	Count(ctx context.Context, limit int, after string) (states map[string]int, next string, err error)
}

// LiveCounts counts the live jobs of each round.
type LiveCounts interface {
	// Begin starts a round, and reports whether the round should be fast.
	Begin() (fast bool)
	// Spare reports whether a pass of a fast round may take all of fastTime.
	Spare() bool
	// Walked counts a live job of the round.
	Walked(job *statemachine.Aggregate)
	// End ends the round.
	End()
}

const (
	// maxStuck bounds the stuck jobs of a report.
	maxStuck = 1000
	// A pass of a fast round checks at least fastPage jobs or hints within fastTime, which
	// takes a twentieth of a core; it uses all of fastTime if the process is otherwise idle.
	fastPage = 1000
	fastTime = 900 * time.Millisecond
	// countPage is how many lines or schedules one pass counts.
	countPage = 200
	// sharedAgeInterval is how often the age of the oldest due row is read if other processes
	// share the store, which may charge for reads.
	sharedAgeInterval = 5 * time.Second
)

// ReconcilerConfig configures a [Reconciler].
type ReconcilerConfig struct {
	// Ledger holds the jobs. Required.
	Ledger ReconcilerLedger
	// Page is the most jobs, or ready hints, that one pass checks, except in a fast round.
	// Optional. Defaults to 200, or to 50 on an exclusive store, whose reads cost this
	// process CPU time: 50 a second take a hundredth of a core.
	Page int
	// Rest is the time between two rounds, and between two counts. Optional. Defaults to 1 min.
	Rest time.Duration
	// Counts counts the live jobs of each round. Optional.
	Counts LiveCounts
	// Schedules are counted after the lines. Optional.
	Schedules ScheduleCounts
	// Logger logs each finding. Optional.
	Logger *slog.Logger
}

// Stuck is a live job that nothing will move forward.
type Stuck struct {
	JobID   string
	State   statemachine.JobState
	Reason  string
	FoundAt time.Time
}

// ReconcilerReport is what a [Reconciler] has found.
type ReconcilerReport struct {
	// These are of the last complete round, if there was one.
	Stuck      []Stuck // jobs that could not be repaired, at most 1000
	Checked    int     // slots of live jobs
	RoundEnded time.Time

	// These are of the last complete count, if there was one.
	Lines     LineCounts
	Schedules map[string]int // by state
	Counted   time.Time      // when it ended

	Repaired int // defects repaired since the process started
	// OldestPending is how long the oldest due row had waited to be published when
	// [Reconciler.AgeLoop] last read it.
	OldestPending time.Duration
}

// LineCounts counts the lines in which jobs wait, or that a failed job blocks.
type LineCounts struct {
	Moving, Blocked int
	BlockedSince    time.Time // of the line that is blocked for the longest time; zero if none is
}

// Reconciler walks the live jobs slowly, round after round, and checks that each can make
// progress: it has a pending row, a deadline or a retry time with its schedule entry, a
// directive in the pull queue with its ready hint, or a pause. At the end of each round it
// walks the ready index, for hints whose commit never came. Any number may run on one store. It counts
// the lines and the schedules in a walk of their own: a round over many jobs takes hours, and a blocked
// line is not to wait for it.
//
// Every change of a job should keep this true, so in a healthy system nothing is repaired
// or stuck. If there is a defect, the walk turns a lost job into a late one: it repairs and
// counts what it can, and reports the rest to the operator.
type Reconciler struct {
	cfg ReconcilerConfig
	// The next pass continues at jobs, or at the end of a round at ready in the ready index.
	jobs    place
	inReady bool
	ready   ledger.ReadyWalk
	round   ReconcilerReport // of the current round
	fast    bool             // the current round is fast
	// refused is how many passes in a row an outage has cut short at jobs.
	refused int

	// The next count continues at counting in the lines, or after them in the schedules.
	counting    place
	inSchedules bool
	count       ReconcilerReport // of the current count

	mu   sync.Mutex // Guards last; the round belongs to RunOnce, and the count to CountOnce.
	last ReconcilerReport
}

// place is where a walk of shards continues.
type place struct {
	shard int
	from  string
}

// passed continues after a page of a shard, and reports whether it was the last page of all shards.
func (p *place) passed(next string, shards int) (last bool) {
	if p.from = next; next == "" {
		p.shard = (p.shard + 1) % shards
		return p.shard == 0
	}
	return false
}

// NewReconciler returns a reconciler.
func NewReconciler(cfg ReconcilerConfig) *Reconciler {
	if cfg.Page == 0 && cfg.Ledger.Exclusive() {
		cfg.Page = 50
	}
	cfg.Page = cmp.Or(cfg.Page, 200)
	cfg.Rest = cmp.Or(cfg.Rest, time.Minute)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return &Reconciler{cfg: cfg}
}

// Report returns what the reconciler has found. It is safe for concurrent use.
func (r *Reconciler) Report() ReconcilerReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// Loop returns the loop that checks one page per interval, and rests after each round.
func (r *Reconciler) Loop() Loop { return r.loop("reconciler", r.RunOnce) }

// CountLoop returns the loop that counts the lines and the schedules, and rests after each count.
func (r *Reconciler) CountLoop() Loop { return r.loop("line counts", r.CountOnce) }

// loop returns a loop that rests when a pass has no more to do.
func (r *Reconciler) loop(name string, once func(context.Context) (Pass, error)) Loop {
	var last Pass
	return Loop{Name: name, Pass: func(ctx context.Context) (err error) {
		last, err = once(ctx)
		return err
	}, Rest: func() time.Duration {
		if last.More {
			return 0
		}
		return r.cfg.Rest
	}}
}

// AgeLoop returns the loop that reads how long the oldest due row has waited. It is separate
// because operators need the age while the walk rests, too.
func (r *Reconciler) AgeLoop() Loop {
	return Loop{Name: "outbox age", Pass: r.ReadAge, Rest: func() time.Duration {
		if r.cfg.Ledger.Exclusive() {
			return 0
		}
		return sharedAgeInterval
	}}
}

// ReadAge reads how long the oldest due row has waited to be published.
func (r *Reconciler) ReadAge(ctx context.Context) error {
	oldest, err := r.oldestPending(ctx)
	if err != nil {
		return fmt.Errorf("age of the oldest pending row: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last.OldestPending = oldest
	return nil
}

// RunOnce checks one page of jobs or, at the end of a round, of the ready index; in a fast round it checks
// several. It reports More until the round ends. The next pass repeats a page that an outage of the store has
// cut short; a job that the store refuses [ledger.MaxRefused] times in a row, and rows that cannot be read,
// are passed over. One pass runs at a time.
func (r *Reconciler) RunOnce(ctx context.Context) (Pass, error) {
	begun := time.Now()
	pass, repaired, err := r.checkPage(ctx)
	for err == nil && ctx.Err() == nil && r.fast && pass.More && time.Since(begun) < fastTime &&
		(pass.Done < fastPage || r.cfg.Counts.Spare()) {
		done := pass.Done
		var fixed int
		pass, fixed, err = r.checkPage(ctx)
		pass.Done, repaired = done+pass.Done, repaired+fixed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last.Repaired += repaired
	if !pass.More {
		r.last.Stuck, r.last.Checked, r.last.RoundEnded = r.round.Stuck, r.round.Checked, time.Now()
		r.round = ReconcilerReport{}
	}
	if err != nil {
		return pass, fmt.Errorf("reconcile: %w", err)
	}
	return pass, nil
}

// checkPage checks one page of the round's current part.
func (r *Reconciler) checkPage(ctx context.Context) (pass Pass, repaired int, err error) {
	if r.inReady {
		return r.checkReady(ctx)
	}
	return r.checkJobs(ctx)
}

// checkJobs checks one page of live jobs.
func (r *Reconciler) checkJobs(ctx context.Context) (pass Pass, repaired int, err error) {
	counts := r.cfg.Counts
	if counts != nil && r.jobs == (place{}) {
		r.fast = counts.Begin()
	}
	findings, next, err := r.cfg.Ledger.Inspect(ctx, r.jobs.shard, r.cfg.Page, r.jobs.from)
	if tablestore.IsOutage(err) || ctx.Err() != nil {
		// In the end it is the job and not the store, which did answer with the page.
		if r.refused++; r.refused < ledger.MaxRefused || next == "" || ctx.Err() != nil {
			return Pass{More: true}, 0, err
		}
	}
	r.refused = 0
	for i := range findings { // After any other error, too: a row that cannot be read must not end the walk.
		found := &findings[i]
		if counts != nil && found.Job != nil {
			counts.Walked(found.Job)
		}
		switch {
		case found.Repaired != "":
			r.cfg.Logger.WarnContext(ctx, "defect repaired", found.Fields().With("defect", found.Repaired)...)
			repaired++
		case found.Stuck != "" && len(r.round.Stuck) < maxStuck:
			r.cfg.Logger.ErrorContext(ctx, "job is stuck", found.Fields().With("reason", found.Stuck)...)
			r.round.Stuck = append(r.round.Stuck, Stuck{
				JobID: found.JobID, State: found.Job.Job.State, Reason: found.Stuck, FoundAt: time.Now(),
			})
		}
	}
	r.round.Checked += len(findings)
	if r.jobs.passed(next, r.cfg.Ledger.Shards()) {
		r.inReady = true
		if counts != nil {
			counts.End()
		}
	}
	return Pass{Done: len(findings), More: true}, repaired, err
}

// checkReady checks one page of the ready index.
func (r *Reconciler) checkReady(ctx context.Context) (pass Pass, repaired int, err error) {
	var ended bool
	pass.Done, repaired, ended, err = r.cfg.Ledger.InspectReady(ctx, &r.ready, r.cfg.Page)
	if repaired > 0 {
		r.cfg.Logger.WarnContext(ctx, "defect repaired", "hints", repaired, "defect", "ready hint of a commit that never came")
	}
	r.inReady, pass.More = !ended, !ended
	return pass, repaired, err
}

// CountOnce counts one page of the lines or, after them, of the schedules. It reports More until all are
// counted. The next call repeats a page that an outage of the store has cut short. One runs at a time.
func (r *Reconciler) CountOnce(ctx context.Context) (pass Pass, err error) {
	if r.inSchedules {
		pass, err = r.countSchedules(ctx)
	} else {
		pass, err = r.countLines(ctx)
	}
	if err != nil {
		return pass, fmt.Errorf("count the lines and schedules: %w", err)
	}
	if !pass.More {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.last.Lines, r.last.Schedules, r.last.Counted = r.count.Lines, r.count.Schedules, time.Now()
		r.count = ReconcilerReport{}
	}
	return pass, nil
}

// countLines counts one page of the lines.
func (r *Reconciler) countLines(ctx context.Context) (Pass, error) {
	at := &r.counting
	views, next, err := r.cfg.Ledger.Lines(ctx, "", at.shard, countPage, at.from)
	switch {
	case errors.Is(err, tablestore.ErrUnavailable), ctx.Err() != nil:
		return Pass{More: true}, err
	case err != nil: // A row that cannot be read must not hide the lines of the other shards.
		r.cfg.Logger.ErrorContext(ctx, "the other lines of a shard are not counted", "shard", at.shard, "error", err)
	}
	lines := &r.count.Lines
	for i := range views {
		since := views[i].BlockedSince()
		if since.IsZero() {
			lines.Moving++
			continue
		}
		lines.Blocked++
		if lines.BlockedSince.IsZero() || since.Before(lines.BlockedSince) {
			lines.BlockedSince = since
		}
	}
	last := at.passed(next, r.cfg.Ledger.Shards())
	r.inSchedules = last && r.cfg.Schedules != nil
	return Pass{Done: len(views), More: !last || r.inSchedules}, nil
}

// countSchedules counts one page of the schedules.
func (r *Reconciler) countSchedules(ctx context.Context) (Pass, error) {
	states, next, err := r.cfg.Schedules.Count(ctx, countPage, r.counting.from)
	switch {
	case errors.Is(err, tablestore.ErrUnavailable), ctx.Err() != nil:
		return Pass{More: true}, err
	case err != nil: // A row that cannot be read must not hide the lines.
		r.cfg.Logger.ErrorContext(ctx, "the other schedules are not counted", "error", err)
	}
	if r.count.Schedules == nil {
		r.count.Schedules = map[string]int{}
	}
	done := 0
	for state, n := range states {
		r.count.Schedules[state] += n
		done += n
	}
	r.counting.from, r.inSchedules = next, next != ""
	return Pass{Done: done, More: r.inSchedules}, nil
}

// oldestPending returns the age of the oldest row that is due to be published. The age
// counts from the row's creation, because each failed publish makes it due later.
func (r *Reconciler) oldestPending(ctx context.Context) (time.Duration, error) {
	now := time.Now()
	oldest := time.Duration(0)
	for shard := range r.cfg.Ledger.Shards() {
		entries, next, err := r.cfg.Ledger.Due(ctx, ledger.Dispatch, shard, now, 1, "")
		for err != nil && entries != nil && next != "" { // The row cannot be decoded. The relay logs it.
			entries, next, err = r.cfg.Ledger.Due(ctx, ledger.Dispatch, shard, now, 1, next)
		}
		if err != nil && entries == nil {
			return 0, err
		}
		if len(entries) == 0 {
			continue
		}
		job, err := r.cfg.Ledger.Job(ctx, entries[0].JobID)
		switch {
		case errors.Is(err, ledger.ErrJobNotFound):
		case errors.Is(err, tablestore.ErrUnavailable):
			return 0, err
		case err != nil: // A job that cannot be read must not hide the others.
			r.cfg.Logger.ErrorContext(ctx, "age of a pending row unknown", entries[0].Fields().With("error", err)...)
		case job.Outbox != nil && job.Outbox.State == statemachine.OutboxPending:
			oldest = max(oldest, now.Sub(job.Outbox.CreatedAt))
		}
	}
	return oldest, nil
}
