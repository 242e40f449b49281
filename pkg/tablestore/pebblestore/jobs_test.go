package pebblestore_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/audit"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// jobsOn opens a ledger and its queue on the store.
func jobsOn(t *testing.T, store tablestore.Store) (*ledgertest.Ledger, *workqueue.Queue) {
	t.Helper()
	mirror := workqueue.NewMirror(1000)
	jobLedger := ledgertest.Open(t, ledger.Config{Store: store, Shards: 2, Ready: mirror.Ready, Taker: mirror.Taker})
	queue := workqueue.New(workqueue.Config{Ledger: jobLedger.Ledger, Store: store, Mirror: mirror})
	return jobLedger, queue
}

// oneStep is a command of one step.
func oneStep(serial int64) ledger.Command { return ledgertest.Command("tenant_a", fmt.Sprint(serial)) }

// told records the step states that workers and clients were told, by job id.
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

// All that was answered before a power loss is stored after it, even if several changes of
// a job were written at the same time, and the store is consistent.
func TestPowerLoss_LosesNothingThatWasAnswered(t *testing.T) {
	t.Parallel()
	d := newDisk()
	d.inject(".log", func() error { time.Sleep(2 * time.Millisecond); return nil }, errorfs.OpFileSyncData) // So that changes overlap.
	store := open(t, d.options())
	jobLedger, queue := jobsOn(t, store)
	log := &told{jobs: map[string]statemachine.StepState{}}
	all, ctx := errgroup.WithContext(t.Context())
	var serial, ended atomic.Int64
	const jobs = 200
	for range 8 {
		all.Go(func() error {
			for range jobs / 8 {
				accepted, err := jobLedger.Accept(ctx, oneStep(serial.Add(1)))
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
			for serial := 0; ended.Load() < jobs && ctx.Err() == nil; serial++ {
				views, err := queue.Claim(ctx, workqueue.ClaimRequest{
					Owner: owner, RequestID: fmt.Sprint(serial), Max: 5, Start: true, Wait: 100 * time.Millisecond,
				})
				for i := range views {
					item := views[i].Item
					log.tell(item.JobID, statemachine.StepInProgress)
					by := statemachine.ItemRequest{Actor: owner, ID: "e", ExpectedRev: item.Rev}
					if _, err = queue.Complete(ctx, item.WorkID, by, statemachine.Product{}); err != nil {
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
	for ; ended.Load() < jobs && ctx.Err() == nil; losses++ {
		log.mu.Lock()
		known := maps.Clone(log.jobs)
		log.mu.Unlock()
		crash := vfs.CrashCloneCfg{UnsyncedDataPercent: losses % 3 * 50, RNG: rand.New(rand.NewPCG(uint64(losses), 1))}
		expectTold(t, diskOf(d.memory.CrashClone(crash)), known)
	}
	if err := all.Wait(); err != nil {
		t.Error(err)
	}
	closeStore(t, store)
	t.Logf("%d power losses", losses)
}

// expectTold opens the disk after a power loss, and checks all that was answered before.
func expectTold(t *testing.T, d *disk, known map[string]statemachine.StepState) {
	t.Helper()
	store := open(t, d.options())
	defer closeStore(t, store)
	jobLedger, _ := jobsOn(t, store)
	order := []statemachine.StepState{
		statemachine.StepDispatching, statemachine.StepAwaitingAck, statemachine.StepInProgress, statemachine.StepSucceeded,
	}
	for jobID, state := range known {
		agg, err := jobLedger.Job(t.Context(), jobID)
		if err != nil {
			t.Errorf("job %s, which was %s: %v", jobID, state, err)
		} else if is := agg.Steps[0].State; slices.Index(order, is) < slices.Index(order, state) {
			t.Errorf("job %s, which was %s, is %s", jobID, state, is)
		}
	}
	tables := jobLedger.Tables()
	report, err := audit.Run(t.Context(), audit.Config{Store: store, Options: audit.Options{Tables: audit.Tables{
		Ledger: tables.Ledger, Schedule: tables.Schedule, Idempotency: tables.Idempotency, Index: tables.Index, Queue: tables.Queue,
	}}})
	musttest.NoError(t, err)
	for _, finding := range report.Findings {
		t.Errorf("audit: %s", finding)
	}
}
