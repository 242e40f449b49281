package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/internal/musttest"
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
	if err := lockAll(t.Context(), forwards); err != nil {
		t.Error(err)
	}
	unlockAll(forwards)
}

func TestWaitingForAStripeEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := newStripes()
		set := []*stripe{s.all[1], s.all[2]}
		set[1].lock <- struct{}{}
		result := make(chan error, 1)
		go func() { result <- lockAll(ctx, set) }()
		synctest.Wait()
		cancel()
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Errorf("lock: %v, want context.Canceled", err)
		}
		unlockAll(set[1:])
		if err := lockAll(t.Context(), set); err != nil {
			t.Errorf("lock after giving up: %v", err)
		}
	})
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

// The ETags that a stripe knows are always those of the stored rows, even if it forgets
// partitions in between.
func TestKnownVersionsAreTheStoredOnes(t *testing.T) {
	t.Parallel()
	store := musttest.Make(t, Open, Options{Dir: "data", FS: vfs.NewMem(), Reserve: -1})
	defer func() { _ = store.Close() }()
	one := store.stripes.all[0]
	for i := range store.stripes.all {
		store.stripes.all[i] = one // All partitions compete for what one stripe knows.
	}
	random := rand.New(rand.NewPCG(1, 2))
	answered := 0
	for n := range 4000 {
		partition := fmt.Sprintf("p%d-%d", n/1000, random.IntN(n%1000/100+1)) // One partition at a time, then more than it can know.
		key := tablestore.Key{Table: "table", Partition: partition, Row: fmt.Sprint("r", random.IntN(maxKnownRows+maxKnownRows/2))}
		stored, closer, err := store.lookUp(key)
		musttest.NoError(t, err)
		want := ""
		if closer != nil {
			etag, _, _ := splitRow(stored)
			want = string(etag)
			_ = closer.Close()
		}
		if got, err := store.current(key); err != nil || string(got) != want {
			t.Fatalf("after %d writes, %s has the version %q, %v; stored is %q", n, key, got, err, want)
		}
		if p := one.known.find(key.Table, key.Partition); p != nil && p.rows != nil {
			answered++
		}
		op := tablestore.Op{Verb: tablestore.Put, Key: key, Properties: tablestore.Properties{{Name: "n", Value: tablestore.Int(int64(n))}}}
		switch {
		case random.IntN(4) == 0:
			op.Verb, op.Properties = tablestore.Discard, nil
		case want == "":
			op.Verb = tablestore.Insert
		case random.IntN(2) == 0:
			op.Verb, op.ETag = tablestore.Replace, tablestore.ETag(want)
		}
		if _, err := store.Commit(t.Context(), tablestore.Batch{op}); err != nil {
			t.Fatal(err)
		}
	}
	if answered < 300 || answered > 3000 {
		t.Errorf("%d of 4000 versions were known", answered)
	}
}

// The engine syncs its manifest while the store notes that the directory is open.
func TestState_IsReplacedConcurrently(t *testing.T) {
	t.Parallel()
	files := vfs.NewMem()
	folder := lockedFolder(files)
	manifest, err := files.Create("MANIFEST-000001", vfs.WriteCategoryUnspecified)
	musttest.NoError(t, errors.Join(err, manifest.Close()))
	var group errgroup.Group
	for range 8 {
		group.Go(func() error { return folder.note(stateOpen) })
		group.Go(func() error { folder.noteManifest("MANIFEST-000001"); return nil })
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	if state, list, err := readState(files, ""); state != stateOpen || len(list) > 1 || err != nil {
		t.Errorf("the state is %q, %q: %v", state, list, err)
	}
}
