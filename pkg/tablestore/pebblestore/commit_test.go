package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// batchesOn returns one batch for each partition.
func batchesOn(partitions ...string) (batches []tablestore.Batch) {
	for _, partition := range partitions {
		key := tablestore.Key{Table: "table", Partition: partition, Row: "r"}
		batches = append(batches, tablestore.Batch{{Verb: tablestore.Put, Key: key}})
	}
	return batches
}

func TestStripesAreTakenOnceAndInOneOrder(t *testing.T) {
	t.Parallel()
	s := newStripes()
	var partitions []string
	for i := range 3 * stripeCount {
		partitions = append(partitions, fmt.Sprint("p", i))
	}
	forwards := s.touched(batchesOn(partitions...))
	slices.Reverse(partitions)
	backwards := s.touched(batchesOn(partitions...))
	if !slices.Equal(forwards, backwards) {
		t.Error("two writers of the same partitions lock in another order")
	}
	if len(forwards) > stripeCount || len(forwards) < stripeCount/2 {
		t.Errorf("%d stripes of %d are used", len(forwards), stripeCount)
	}
	if err := lockAll(t.Context(), forwards, quietLatch()); err != nil {
		t.Error(err)
	}
	unlockAll(forwards)
}

func TestWaitingForAStripeEnds(t *testing.T) {
	t.Parallel()
	failure := errors.New("failure")
	for name, test := range map[string]struct {
		end  func(cancel func(), latch *latch)
		want error
	}{
		"with the context": {func(cancel func(), _ *latch) { cancel() }, context.Canceled},
		"with the store":   {func(_ func(), latch *latch) { latch.trip(failure) }, failure},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				latch, s := quietLatch(), newStripes()
				set := []*stripe{s.all[1], s.all[2]}
				set[1].lock <- struct{}{}
				result := make(chan error, 1)
				go func() { result <- lockAll(ctx, set, latch) }()
				synctest.Wait()
				test.end(cancel, latch)
				if err := <-result; !errors.Is(err, test.want) {
					t.Errorf("lock: %v, want %v", err, test.want)
				}
				unlockAll(set[1:])
				if err := lockAll(t.Context(), set, quietLatch()); err != nil {
					t.Errorf("lock after giving up: %v", err)
				}
			})
		})
	}
}

func TestAFinishedWriteIsForgottenAlone(t *testing.T) {
	t.Parallel()
	s := newStripes()
	a, b := s.all[1], s.all[2]
	first := &pending{done: make(chan struct{}), stripes: []*stripe{a, b}}
	second := &pending{done: make(chan struct{}), stripes: []*stripe{b}}
	first.announce()
	second.announce()
	first.finish()
	if got := lasts(a, b); !slices.Equal(got, []*pending{second}) {
		t.Errorf("pending writes %v, want the second alone", got)
	}
	second.finish()
	if got := lasts(a, b); len(got) != 0 {
		t.Errorf("pending writes %v, want none", got)
	}
}
