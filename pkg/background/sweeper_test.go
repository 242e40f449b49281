package background_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

type bundle struct {
	*background.Sweeper
	ledger  *ledgertest.Ledger
	counter *storetest.Counter
}

func setup(t *testing.T, wrap func(*ledger.Ledger) background.SweeperLedger) *bundle {
	t.Helper()
	return setupWith(t, wrap, nil)
}

func setupWith(t *testing.T, wrap func(*ledger.Ledger) background.SweeperLedger, logger *slog.Logger) *bundle {
	t.Helper()
	store, counter := storetest.Counting(ledgertest.Atomic())
	b := &bundle{ledger: ledgertest.Publishing(t, ledger.Config{Store: store, Shards: 4}), counter: counter}
	var l background.SweeperLedger = b.ledger
	if wrap != nil {
		l = wrap(b.ledger.Ledger)
	}
	b.Sweeper = background.NewSweeper(background.SweeperConfig{Ledger: l, Page: 2, Logger: logger})
	return b
}

func (b *bundle) accept(hash string) string { return b.ledger.Submit(ledgertest.Command("t", hash)) }

// published accepts a job whose directive is published.
func (b *bundle) published() string { return b.publishedAs("h") }

func (b *bundle) publishedAs(hash string) string {
	id := b.accept(hash)
	b.ledger.Apply(id, ledgertest.Sent(b.ledger.Handoff.Last()))
	return id
}

func (b *bundle) step(id string) statemachine.Step { return b.ledger.Read(id).Steps[0] }

func (b *bundle) pass(t *testing.T) background.SweeperPass {
	t.Helper()
	result, err := b.RunOnce(t.Context())
	musttest.NoError(t, err)
	return result
}

func TestSweeper_ActsOnDeadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, nil)
		id := b.published()
		time.Sleep(31 * time.Second)
		b.pass(t)
		if step := b.step(id); step.State != statemachine.StepFailedRetry || step.LastErrorCode != statemachine.ErrorAckTimeout {
			t.Fatalf("step is %s, %s", step.State, step.LastErrorCode)
		}
		time.Sleep(time.Minute)
		b.pass(t)
		if step := b.step(id); step.State != statemachine.StepDispatching || step.AttemptNo != 2 {
			t.Fatalf("step is %s, attempt %d", step.State, step.AttemptNo)
		}
		m := b.ledger.Handoff.Last()
		b.ledger.Apply(id, ledgertest.Started(m))
		for range 4 {
			time.Sleep(10 * time.Minute)
			b.ledger.Apply(id, statemachine.Heartbeat{StepID: "one", Pair: ledgertest.Pair(m)})
			b.pass(t)
		}
		if step := b.step(id); step.State != statemachine.StepInProgress {
			t.Fatalf("step is %s despite heartbeats", step.State)
		}
		time.Sleep(16 * time.Minute)
		b.pass(t)
		if step := b.step(id); step.State != statemachine.StepFailedRetry || step.LastErrorCode != statemachine.ErrorLeaseExpired {
			t.Errorf("step is %s, %s", step.State, step.LastErrorCode)
		}
	})
}

func TestSweeper_GivesAGraceAfterTheStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, nil)
		id := b.published()
		time.Sleep(time.Hour)
		restarted := background.NewSweeper(background.SweeperConfig{Ledger: b.ledger})
		if _, err := restarted.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if step := b.step(id); step.State != statemachine.StepAwaitingAck {
			t.Fatalf("step is %s at once", step.State)
		}
		time.Sleep(31 * time.Second)
		if _, err := restarted.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if step := b.step(id); step.State != statemachine.StepFailedRetry {
			t.Errorf("step is %s after the grace", step.State)
		}
	})
}

// flaky is a ledger that cannot fire the entries of one job, and cannot be read while it is
// down.
type flaky struct {
	*ledger.Ledger
	bad  string // the job that cannot be fired
	err  error  // of that
	down bool   // nothing can be read
	full bool   // nothing can be written
}

func (f *flaky) Fire(ctx context.Context, entry ledger.Entry, event statemachine.Event) (ledger.FireOutcome, ledger.Result, error) {
	if entry.JobID == f.bad {
		return 0, ledger.Result{}, f.err
	}
	if f.full {
		return 0, ledger.Result{}, fmt.Errorf("%w: %w", tablestore.ErrUnavailable, tablestore.ErrNoSpace)
	}
	return f.Ledger.Fire(ctx, entry, event)
}

func (f *flaky) Due(ctx context.Context, kind ledger.Kind, shard int, now time.Time, limit int, from string,
) ([]ledger.Entry, string, error) {
	if f.down {
		return nil, "", tablestore.ErrUnavailable
	}
	return f.Ledger.Due(ctx, kind, shard, now, limit, from)
}

func TestSweeper_OneBadJobHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{err: errors.New("bad row")}
		b := setup(t, func(l *ledger.Ledger) background.SweeperLedger { f.Ledger = l; return f })
		var ids []string
		for i := range 20 {
			ids = append(ids, b.accept(fmt.Sprint(i)))
		}
		f.bad = ids[0]
		time.Sleep(16 * time.Second)
		result := b.pass(t)
		if result.Failed != 1 || result.Outcomes[ledger.Acted] != 19 {
			t.Errorf("%+v", result)
		}
		if again := b.pass(t); again.Failed != 1 || again.Read != 1 {
			t.Errorf("the next pass: %+v", again)
		}
	})
}

// damage writes rows that cannot be decoded before all others of the kind in the schedule, a page of them
// in each shard.
func (b *bundle) damage(kind ledger.Kind) {
	for shard := range b.ledger.Shards() {
		for _, id := range []string{"x", "y", "z"} {
			b.ledger.Put(tablestore.Key{
				Table: "luciusschedule", Partition: fmt.Sprintf("shard:%03d", shard), Row: string(kind) + ":0000000000000:" + id,
			}, tablestore.Properties{})
		}
	}
}

func TestSweeper_GoesPastBadRows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, nil)
		b.damage(ledger.Timer)
		id := b.published()
		for _, late := range []time.Duration{31 * time.Second, time.Minute} { // Each pass finds the row again.
			time.Sleep(late)
			if _, err := b.RunOnce(t.Context()); err == nil || !strings.Contains(err.Error(), "bad key") {
				t.Errorf("answered %v", err)
			}
		}
		if step := b.step(id); step.AttemptNo != 2 {
			t.Errorf("step is %s, attempt %d", step.State, step.AttemptNo)
		}
	})
}

// A bad row is no outage, not even after one.
func TestSweeper_BadRowsPutOffNoDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{}
		b := setup(t, func(l *ledger.Ledger) background.SweeperLedger { f.Ledger = l; return f })
		b.damage(ledger.Timer)
		id := b.published()
		f.down = true
		if _, err := b.RunOnce(t.Context()); !errors.Is(err, tablestore.ErrUnavailable) {
			t.Fatalf("answered %v", err)
		}
		f.down = false
		for range 40 {
			time.Sleep(time.Second)
			_, _ = b.RunOnce(t.Context())
		}
		if step := b.step(id); step.State != statemachine.StepFailedRetry {
			t.Errorf("step is %s after its deadline", step.State)
		}
	})
}

// ending is a ledger that calls end before it fires an entry, to end the context as a process
// that stops does.
type ending struct {
	*ledger.Ledger
	end func()
}

func (e *ending) Fire(ctx context.Context, _ ledger.Entry, _ statemachine.Event) (ledger.FireOutcome, ledger.Result, error) {
	e.end()
	if err := ctx.Err(); err != nil {
		return 0, ledger.Result{}, fmt.Errorf("fire: %w", err)
	}
	return 0, ledger.Result{}, errors.New("bad row")
}

func TestSweeper_WarnsOfFailuresButNotWhenStopping(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]bool{"fails": false, "stops": true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			e := &ending{end: func() {}}
			if ends {
				e.end = cancel
			}
			var log bytes.Buffer
			b := setupWith(t, func(l *ledger.Ledger) background.SweeperLedger { e.Ledger = l; return e }, slog.New(slog.NewTextHandler(&log, nil)))
			b.accept(name)
			time.Sleep(16 * time.Second)
			result, _ := b.RunOnce(ctx)
			if result.Failed != 1 || strings.Contains(log.String(), "deadline not handled") == ends {
				t.Errorf("%s: %+v, and the log says %q", name, result, &log)
			}
		})
	}
}

func TestSweeper_GivesAGraceAfterAnOutageOfTheStore(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fails func(f *flaky, down bool)
		err   error
	}{
		"of all":               {func(f *flaky, down bool) { f.down = down }, tablestore.ErrUnavailable},
		"of writes, by a disk": {func(f *flaky, down bool) { f.full = down }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := &flaky{}
				b := setup(t, func(l *ledger.Ledger) background.SweeperLedger { f.Ledger = l; return f })
				id := b.published()
				c.fails(f, true)
				for range 10 {
					time.Sleep(time.Minute)
					if _, err := b.RunOnce(t.Context()); !errors.Is(err, c.err) {
						t.Fatalf("answered %v", err)
					}
				}
				c.fails(f, false)
				if _, err := b.RunOnce(t.Context()); err != nil {
					t.Fatal(err)
				}
				if step := b.step(id); step.State != statemachine.StepAwaitingAck {
					t.Fatalf("step is %s as soon as the store is back", step.State)
				}
				time.Sleep(31 * time.Second)
				b.pass(t)
				if step := b.step(id); step.State != statemachine.StepFailedRetry {
					t.Errorf("step is %s after the grace", step.State)
				}
			})
		})
	}
}

// One job whose writes fail for long does not put off the deadlines of the others.
func TestSweeper_OneJobThatCannotBeWrittenIsNoOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{err: tablestore.ErrUnavailable}
		b := setup(t, func(l *ledger.Ledger) background.SweeperLedger { f.Ledger = l; return f })
		other := b.published()
		f.bad = b.publishedAs("2")
		time.Sleep(time.Minute)
		b.pass(t)
		if step := b.step(other); step.Spent.Ack == 0 {
			t.Errorf("the first deadline did not count: %s", step.State)
		}
		id := b.publishedAs("3")
		for range 3 {
			time.Sleep(time.Minute)
			b.pass(t)
		}
		if step := b.step(id); step.Spent.Ack == 0 {
			t.Errorf("the deadline did not count: %s", step.State)
		}
	})
}

// After a start, only jobs that cannot be written may be due: each other job gets one grace at most.
func TestSweeper_JobsThatCannotBeWrittenAreNoOutageForLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{err: tablestore.ErrUnavailable}
		b := setup(t, func(l *ledger.Ledger) background.SweeperLedger { f.Ledger = l; return f })
		f.bad = b.publishedAs("1")
		time.Sleep(time.Minute)
		b.pass(t)
		id := b.publishedAs("2")
		for range 180 {
			time.Sleep(1100 * time.Millisecond) // No deadline is at the moment of a pass.
			b.pass(t)
		}
		if step := b.step(id); step.Spent.Ack == 0 {
			t.Errorf("the deadline did not count: %s", step.State)
		}
	})
}

// While the bus is down, no deadline counts. Afterwards there is a grace, and no retry is
// spent.
func TestSweeper_AnOutageOfTheBusHoldsDeadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, nil)
		var end time.Time
		var broken error
		s := background.NewSweeper(background.SweeperConfig{Ledger: b.ledger, Outages: func(context.Context) (background.Outages, error) {
			return background.Outages{Topic: func(string) time.Time { return end }}, broken
		}})
		b.Sweeper = s
		id := b.published()
		for range 100 {
			time.Sleep(12 * time.Second)
			end = time.Now()
			b.pass(t)
			if step := b.step(id); step.State != statemachine.StepAwaitingAck {
				t.Fatalf("step is %s during the outage", step.State)
			}
		}
		broken = tablestore.ErrUnavailable
		if _, err := b.RunOnce(t.Context()); !errors.Is(err, tablestore.ErrUnavailable) {
			t.Errorf("without the store: %v", err)
		}
		broken = nil
		time.Sleep(2 * time.Minute) // The store was unavailable too, which gives another grace.
		b.pass(t)
		time.Sleep(31 * time.Second)
		b.pass(t)
		if step := b.step(id); step.State != statemachine.StepFailedRetry || step.Spent.Ack != 1 {
			t.Errorf("after the grace step is %s, %+v", step.State, step.Spent)
		}
	})
}

func TestSweeper_GivesAGraceAfterASuspension(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, nil)
		id := b.published()
		loop := b.Loop()
		time.Sleep(10 * time.Minute) // The loop does not run, as in a process that stands still.
		loop.Resumed(time.Now())
		b.pass(t)
		if step := b.step(id); step.State != statemachine.StepAwaitingAck {
			t.Errorf("step is %s as soon as the process resumes", step.State)
		}
		time.Sleep(31 * time.Second)
		b.pass(t)
		if step := b.step(id); step.State != statemachine.StepFailedRetry {
			t.Errorf("step is %s after the grace", step.State)
		}
	})
}

// standing is a ledger whose process stands still once, after it has read what is due.
type standing struct {
	*ledger.Ledger
	still func()
}

func (s *standing) Due(ctx context.Context, kind ledger.Kind, shard int, now time.Time, limit int, from string,
) ([]ledger.Entry, string, error) {
	entries, next, err := s.Ledger.Due(ctx, kind, shard, now, limit, from)
	if len(entries) > 0 {
		s.still()
	}
	return entries, next, err
}

// A pass that stood still between its read and its act fences no worker whose lease ended
// meanwhile. The next pass gives the grace.
func TestSweeper_GivesAGraceAfterASuspensionInAPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &standing{still: sync.OnceFunc(func() { time.Sleep(time.Hour) })}
		b := setup(t, func(l *ledger.Ledger) background.SweeperLedger { s.Ledger = l; return s })
		id := b.published()
		time.Sleep(20 * time.Second)
		b.ledger.Apply(id, ledgertest.Started(b.ledger.Handoff.Last())) // The entry of the ACK timeout stays.
		time.Sleep(11 * time.Second)
		if pass := b.pass(t); pass.Read != 1 {
			t.Fatalf("%+v", pass)
		}
		if step := b.step(id); step.State != statemachine.StepInProgress {
			t.Fatalf("step is %s, %s as soon as the process resumes", step.State, step.LastErrorCode)
		}
		b.Loop().Resumed(time.Now())
		b.pass(t)
		if step := b.step(id); step.State != statemachine.StepInProgress {
			t.Fatalf("step is %s, %s in the next pass", step.State, step.LastErrorCode)
		}
		time.Sleep(time.Hour)
		b.pass(t)
		if step := b.step(id); step.State != statemachine.StepFailedRetry || step.LastErrorCode != statemachine.ErrorLeaseExpired {
			t.Errorf("step is %s, %s after the grace", step.State, step.LastErrorCode)
		}
	})
}

func TestSweeper_AnIdlePassReadsOnePagePerShard(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for i := range 50 {
		b.accept(fmt.Sprint(i))
	}
	b.counter.Reset()
	if result := b.pass(t); result.Read != 0 {
		t.Errorf("%+v", result)
	}
	if spent := b.counter.Counts(); spent.Scans != 4 || spent.RowsRead != 0 || spent.Commits != 0 || spent.Gets != 0 {
		t.Errorf("an idle pass cost %+v", spent)
	}
}

// timers is a fake ledger whose entries are a minute overdue and are fired with that outcome.
type timers struct{ outcome ledger.FireOutcome }

func (*timers) Shards() int { return 1 }

func (*timers) Due(_ context.Context, kind ledger.Kind, _ int, now time.Time, _ int, _ string) ([]ledger.Entry, string, error) {
	return []ledger.Entry{{Kind: kind, Due: now.Add(-time.Minute)}}, "", nil
}

func (f *timers) Fire(context.Context, ledger.Entry, statemachine.Event) (ledger.FireOutcome, ledger.Result, error) {
	return f.outcome, ledger.Result{}, nil
}

// An entry that must wait because its change may still commit does not make the sweeper late.
func TestSweeper_IsLateOnlyForEntriesThatItMayFire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for outcome, want := range map[ledger.FireOutcome]time.Duration{
			ledger.Acted: time.Minute, ledger.Stale: time.Minute, ledger.Early: 0,
		} {
			s := background.NewSweeper(background.SweeperConfig{Ledger: &timers{outcome}})
			if pass, err := s.RunOnce(t.Context()); err != nil || pass.Late != want {
				t.Errorf("%s: late by %s, %v, want %s", outcome, pass.Late, err, want)
			}
		}
	})
}

func TestSweeper_IsNotLateOnceNothingIsDue(t *testing.T) {
	t.Parallel()
	for _, damaged := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := setup(t, nil)
			if damaged {
				b.damage(ledger.Timer)
			}
			var late []time.Duration
			s := background.NewSweeper(background.SweeperConfig{
				Ledger: b.ledger, Observe: func(pass background.SweeperPass) { late = append(late, pass.Late) },
			})
			b.published()
			time.Sleep(time.Minute)
			for range 2 {
				if _, err := s.RunOnce(t.Context()); damaged != (err != nil) {
					t.Errorf("answered %v", err)
				}
			}
			if len(late) != 2 || late[0] == 0 || late[1] != 0 {
				t.Errorf("damaged %t: late by %v", damaged, late)
			}
		})
	}
}

// backlog is a fake ledger of two shards with jobs to purge or to fire.
type backlog struct {
	mu     sync.Mutex
	shards [2][]string
	bad    []string      // the jobs that cannot be purged or fired
	taken  []string      // the jobs that another process purges
	takes  time.Duration // of a page of purges
	due    time.Time     // of all entries
	down   error
	full   error // of every purge
	tried  int   // purges
	purged []string

	unreadable error // of a row on each page that has no job
}

func (b *backlog) Shards() int { return len(b.shards) }

func (b *backlog) Due(_ context.Context, kind ledger.Kind, shard int, _ time.Time, limit int, from string,
) ([]ledger.Entry, string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down != nil {
		return nil, "", b.down
	}
	var entries []ledger.Entry
	for _, id := range b.shards[shard] {
		if id < from {
			continue
		}
		if len(entries) == limit {
			return entries, id, b.unreadable
		}
		entries = append(entries, ledger.Entry{Kind: kind, Shard: shard, JobID: id, Due: b.due})
	}
	return entries, "", nil
}

// do removes the job of an entry, unless it is bad.
func (b *backlog) do(entry ledger.Entry) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if slices.Contains(b.bad, entry.JobID) {
		return errors.New("no")
	}
	b.shards[entry.Shard] = slices.DeleteFunc(b.shards[entry.Shard], func(id string) bool { return id == entry.JobID })
	b.purged = append(b.purged, entry.JobID)
	return nil
}

func (b *backlog) Purge(_ context.Context, entries []ledger.Entry) []ledger.PurgeResult {
	time.Sleep(b.takes)
	results := make([]ledger.PurgeResult, len(entries))
	b.mu.Lock()
	b.tried += len(entries)
	full := b.full
	b.mu.Unlock()
	for i, entry := range entries {
		if full != nil {
			results[i].Err = full
			continue
		}
		if entry.JobID == "busy" {
			results[i].Err = tablestore.ErrUnavailable
			continue
		}
		results[i] = ledger.PurgeResult{Outcome: ledger.PurgeDone, Err: b.do(entry)}
		if slices.Contains(b.taken, entry.JobID) {
			results[i].Outcome = ledger.PurgeElsewhere
		}
	}
	return results
}

func (b *backlog) Fire(_ context.Context, entry ledger.Entry, _ statemachine.Event) (ledger.FireOutcome, ledger.Result, error) {
	return ledger.Acted, ledger.Result{}, b.do(entry)
}

// The jobs that fail fill a whole pass over a shard.
func TestSweeper_ManyBadJobsHoldUpNoOther(t *testing.T) {
	t.Parallel()
	b := &backlog{}
	for i := range 4096 {
		b.bad = append(b.bad, fmt.Sprintf("%04d", i))
	}
	b.shards[1] = append(slices.Clone(b.bad), "good")
	s := background.NewSweeper(background.SweeperConfig{Ledger: b})
	for range 3 {
		if pass, err := s.RunOnce(t.Context()); err != nil || pass.Read > 4096 {
			t.Errorf("a pass read %d, %v", pass.Read, err)
		}
	}
	if !slices.Equal(b.purged, []string{"good"}) {
		t.Errorf("fired %v", b.purged)
	}
}

// TestTableLayout runs these tests, which use the layout "ledger", in the layout "table".
func TestTableLayout(t *testing.T) { //nolint:paralleltest // Each of them says it for itself.
	for name, test := range map[string]func(*testing.T){
		"Sweeper_DeadlinesAreActedOn":                          TestSweeper_ActsOnDeadlines,
		"Sweeper_ADeadlineThatPassedBeforeTheStartGetsAGrace":  TestSweeper_GivesAGraceAfterTheStart,
		"Sweeper_OneBadJobHoldsUpNoOther":                      TestSweeper_OneBadJobHoldsUpNoOther,
		"Sweeper_AnOutageOfTheStoreGivesAGraceAfterwards":      TestSweeper_GivesAGraceAfterAnOutageOfTheStore,
		"Sweeper_AStandstillOfTheProcessGivesAGraceAfterwards": TestSweeper_GivesAGraceAfterASuspension,
		"Sweeper_AnIdlePassReadsOnePagePerShard":               TestSweeper_AnIdlePassReadsOnePagePerShard,
	} {
		t.Run(name, test)
	}
}

// slowSchedule is a ledger that takes a second to read a shard or to fire an entry, and counts
// the reads and the entries that are under way.
type slowSchedule struct {
	background.SweeperLedger

	mu                   sync.Mutex
	reading, mostReading int
	firing, mostFiring   int
}

func (s *slowSchedule) Due(ctx context.Context, kind ledger.Kind, shard int, now time.Time, limit int, from string,
) ([]ledger.Entry, string, error) {
	defer s.enter(&s.reading, &s.mostReading)()
	return s.SweeperLedger.Due(ctx, kind, shard, now, limit, from)
}

func (s *slowSchedule) Fire(ctx context.Context, entry ledger.Entry, event statemachine.Event) (ledger.FireOutcome, ledger.Result, error) {
	defer s.enter(&s.firing, &s.mostFiring)()
	return s.SweeperLedger.Fire(ctx, entry, event)
}

func (s *slowSchedule) enter(n, most *int) (leave func()) {
	s.mu.Lock()
	*n++
	*most = max(*most, *n)
	s.mu.Unlock()
	time.Sleep(time.Second)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		*n--
	}
}

// With a slow store, a shard must not wait for the reads and the entries of the others.
func TestSweeper_ShardsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := &slowSchedule{}
		b := setup(t, func(l *ledger.Ledger) background.SweeperLedger {
			slow.SweeperLedger = l
			return slow
		})
		for i := range 40 {
			b.accept(fmt.Sprint(i))
		}
		time.Sleep(time.Minute)
		pass, err := b.RunOnce(t.Context())
		if err != nil || pass.Read != 40 {
			t.Fatalf("%+v, %v", pass, err)
		}
		if slow.mostReading != 4 || slow.mostFiring < 5 || slow.mostFiring > 16 {
			t.Errorf("%d shards were read at once, and %d entries fired", slow.mostReading, slow.mostFiring)
		}
	})
}
