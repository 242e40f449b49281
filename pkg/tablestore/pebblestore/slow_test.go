package pebblestore_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// TestASlowDisk accepts and cancels jobs on a disk that takes up to two seconds for each sync.
// No request fails, commits share syncs, and the store is called slow until a minute after the
// last slow commit.
func TestASlowDisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		store := open(t, d.options())
		defer closeStore(t, store)
		jobLedger, _ := jobsOn(t, store)
		if slow := store.Pace().Slow; !slow.IsZero() {
			t.Errorf("slow since %s, before it was", slow)
		}
		var syncs atomic.Uint64
		d.inject(".log", func() error {
			syncs.Add(1)
			time.Sleep(time.Second/2 + rand.N(3*time.Second/2))
			return nil
		}, errorfs.OpFileSync, errorfs.OpFileSyncData)
		began, before := time.Now(), store.Commits()
		const clients, jobs = 40, 10
		var group sync.WaitGroup
		for client := range clients {
			group.Go(func() {
				for job := range jobs {
					accepted, err := jobLedger.Accept(t.Context(), oneStep(int64(client*jobs+job)))
					if err == nil {
						_, err = jobLedger.Change(t.Context(), accepted.Job.ID, statemachine.Cancel{})
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		group.Wait()
		commits := store.Commits() - before
		if syncs.Load() > commits/4 {
			t.Errorf("%d syncs for %d commits", syncs.Load(), commits)
		}
		if slow := store.Pace().Slow; slow.Before(began) {
			t.Errorf("slow since %s", slow)
		}
		t.Logf("%d commits, %d syncs, %s", commits, syncs.Load(), time.Since(began))
		d.heal()
		time.Sleep(time.Minute + 1)
		if slow := store.Pace().Slow; !slow.IsZero() {
			t.Errorf("slow since %s, after it was", slow)
		}
	})
}
