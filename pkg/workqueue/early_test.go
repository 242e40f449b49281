package workqueue_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/audit"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// slow is an atomic store whose writes are applied at once, and durable when they are
// released. If it fails, the outcome of those under way is unknown, and it can no longer be
// read.
type slow struct {
	tablestore.AtomicStore

	release chan struct{} // nil: without a delay
	failed  error
	held    atomic.Int64
}

func (s *slow) CommitAll(
	ctx context.Context, batches []tablestore.Batch, applied func([][]tablestore.ETag),
) ([][]tablestore.ETag, error) {
	etags, err := s.AtomicStore.CommitAll(ctx, batches, applied)
	if s.release == nil || err != nil {
		return etags, err
	}
	s.held.Add(1)
	<-s.release
	return etags, s.failed
}

func (s *slow) Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	if s.failed != nil {
		return tablestore.Row{}, tablestore.ErrUnavailable
	}
	return s.AtomicStore.Get(ctx, key)
}

// The next change of a job need not wait until the one before it is durable: both become so
// together. Neither is answered earlier, and if the store fails, neither is told as done.
func TestChanges_ShareTheWayToTheDisk(t *testing.T) {
	t.Parallel()
	for name, failed := range map[string]error{"durable": nil, "failed": tablestore.ErrUnknown} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				mem, _ := memstore.New(memstore.Options{}).(tablestore.AtomicStore)
				store := &slow{AtomicStore: mem}
				b := reopen(t, store)
				b.work(t)
				b.claim(t, "w0", "c0", 1, true)

				store.release = make(chan struct{})
				results := make(chan error, 2)
				go func() {
					_, err := b.ledger.Accept(t.Context(), b.command(t, "tenant_a", "ocr", "OCR"))
					results <- err
				}()
				synctest.Wait()
				go func() {
					views, err := b.Claim(t.Context(), workqueue.ClaimRequest{Owner: "w1", RequestID: "c1", Max: 1, Start: true})
					if err == nil && len(views) != 1 {
						err = fmt.Errorf("claimed %d items", len(views))
					}
					results <- err
				}()
				synctest.Wait()
				if held := store.held.Load(); held != 2 {
					t.Errorf("%d writes are on their way to the disk, want those of the accept and of the claim", held)
				}
				if len(results) > 0 {
					t.Error("answered before it was durable")
				}
				store.failed = failed
				close(store.release)
				for range 2 {
					if err := <-results; (err == nil) != (failed == nil) {
						t.Errorf("answered with %v", err)
					}
				}
			})
		})
	}
}

// told is what workers and clients were told of jobs, by job id: the state of its step.
type told struct {
	mu   sync.Mutex
	jobs map[string]statemachine.StepState
}

func (l *told) tell(jobID string, state statemachine.StepState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.jobs[jobID] != statemachine.StepSucceeded { // Answers may overtake each other.
		l.jobs[jobID] = state
	}
}

// Whatever was answered before a power loss is there after it, however many changes of a job
// were on their way to the disk together, and the store is consistent.
func TestPowerLoss_LosesNothingThatWasAnswered(t *testing.T) {
	t.Parallel()
	memory := vfs.NewCrashableMem()
	disk := errorfs.Wrap(memory, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSyncData {
			time.Sleep(2 * time.Millisecond) // So that changes meet on the way.
		}
		return nil
	}))
	store, err := pebblestore.Open(pebblestore.Options{Dir: "data", FS: disk})
	if err != nil {
		t.Fatal(err)
	}
	b, log := reopen(t, store), &told{jobs: map[string]statemachine.StepState{}}
	var all errgroup.Group
	var ended atomic.Int64
	const jobs = 400
	for range 8 {
		all.Go(func() error {
			for range jobs / 8 {
				accepted, err := b.ledger.Accept(t.Context(), b.command(t, "tenant_a", "ocr", "OCR"))
				if err != nil {
					return err
				}
				log.tell(accepted.Job.ID, statemachine.StepDispatching)
			}
			return nil
		})
	}
	for n := range 4 {
		all.Go(func() error {
			owner := fmt.Sprint("w", n)
			for serial := 0; ended.Load() < jobs; serial++ {
				views, err := b.Claim(t.Context(), workqueue.ClaimRequest{
					Owner: owner, RequestID: fmt.Sprint(serial), Max: 5, Start: true, Wait: 100 * time.Millisecond,
				})
				for i := range views {
					item := views[i].Item
					log.tell(item.JobID, statemachine.StepInProgress)
					if _, err = b.Complete(t.Context(), item.WorkID, by(owner, "e", item), nil, nil); err != nil {
						break
					}
					log.tell(item.JobID, statemachine.StepSucceeded)
					ended.Add(1)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	losses := 0
	for ; ended.Load() < jobs; losses++ {
		log.mu.Lock()
		known := maps.Clone(log.jobs)
		log.mu.Unlock()
		crash := vfs.CrashCloneCfg{UnsyncedDataPercent: losses % 3 * 50, RNG: rand.New(rand.NewPCG(uint64(losses), 1))}
		expectTold(t, memory.CrashClone(crash), known)
	}
	if err := errors.Join(all.Wait(), store.Close()); err != nil {
		t.Error(err)
	}
	t.Logf("%d power losses", losses)
}

// expectTold opens the disk as a power loss left it, and looks for what was answered before.
func expectTold(t *testing.T, disk *vfs.MemFS, known map[string]statemachine.StepState) {
	t.Helper()
	store, err := pebblestore.Open(pebblestore.Options{Dir: "data", FS: disk})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }() // Nothing is written to it.
	b := reopen(t, store)
	order := []statemachine.StepState{statemachine.StepDispatching, statemachine.StepAwaitingAck, statemachine.StepInProgress, statemachine.StepSucceeded}
	for jobID, state := range known {
		agg, err := b.ledger.Job(t.Context(), jobID)
		if err != nil {
			t.Errorf("job %s, which was %s: %v", jobID, state, err)
		} else if is := agg.Steps[0].State; slices.Index(order, is) < slices.Index(order, state) {
			t.Errorf("job %s, which was %s, is %s", jobID, state, is)
		}
	}
	tables := b.ledger.Tables()
	report, err := audit.Run(t.Context(), audit.Config{Store: store, Options: audit.Options{Tables: audit.Tables{
		Ledger: tables.Ledger, Schedule: tables.Schedule, Idempotency: tables.Idempotency, Index: tables.Index, Queue: tables.Queue,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, finding := range report.Findings {
		t.Errorf("audit: %s", finding)
	}
}
