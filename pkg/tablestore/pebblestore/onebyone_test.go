//go:build !race

package pebblestore_test

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

// These tests have one client, and repeat the same steps at each of many points. The
// race detector would see the accesses of the first repetition again, and those are also those of
// other tests.

// TestBackup_DamageIsNamed cuts a backup at many lengths, and flips bytes of it.
func TestBackup_DamageIsNamed(t *testing.T) {
	t.Parallel()
	store := open(t, newDisk().options())
	random := rand.NewChaCha8([32]byte{})
	for n := range 60 {
		batch := rowOf(n, 0)
		batch[0].Properties = tablestore.Properties{{Name: "data", Value: randomText(random)}}
		musttest.NoError(t, commitOne(t, store, batch))
	}
	backup := backUp(t, store)
	closeStore(t, store)
	var read, total int64
	if _, err := pebblestore.VerifyBackup(bytes.NewReader(backup), func(done, all int64) { read, total = done, all }); err != nil {
		t.Fatal(err)
	}
	if read != total || total < 60*10_000 {
		t.Errorf("progress ends at %d of %d bytes", read, total)
	}
	harmless := 0
	expectBad := func(what string, at int, damaged []byte) {
		t.Helper()
		_, verified := pebblestore.VerifyBackup(bytes.NewReader(damaged), nil)
		d := newDisk()
		unpacked, err := pebblestore.Unpack(bytes.NewReader(damaged), pebblestore.RestoreOptions{Dir: "data", FS: d})
		if verified == nil && err == nil && what == "flip" { // Some bits of the compression mean nothing.
			if err := errors.Join(unpacked.Commit(), unpacked.Close()); err != nil {
				t.Error(err)
			}
			harmless++
			return
		}
		for _, err := range []error{verified, err} {
			if !errors.Is(err, pebblestore.ErrBackup) {
				t.Errorf("%s at %d of %d: %v, want ErrBackup", what, at, len(backup), err)
			} else if !strings.ContainsAny(strings.TrimPrefix(err.Error(), pebblestore.ErrBackup.Error()), ".-") {
				t.Errorf("%s at %d of %d: %v names no file", what, at, len(backup), err)
			}
		}
		if _, err := d.Stat("data"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s at %d of %d leaves a directory: %v", what, at, len(backup), err)
		}
	}
	step := len(backup) / 60
	for at := 0; at < len(backup); at += step {
		expectBad("cut", at, backup[:at])
		expectBad("flip", at, flip(at)(slices.Clone(backup)))
	}
	for at := len(backup) - 12; at < len(backup); at++ {
		expectBad("cut", at, backup[:at])
		expectBad("flip", at, flip(at)(slices.Clone(backup)))
	}
	if harmless > 3 {
		t.Errorf("%d flips are not found", harmless)
	}
	expectBad("addition", len(backup), append(slices.Clone(backup), 0))
	expectBad("a second backup", len(backup), append(slices.Clone(backup), backup...))
}

// TestBackup_CrashLeavesNothing loses power before each operation of a backup.
func TestBackup_CrashLeavesNothing(t *testing.T) {
	t.Parallel()
	d := newDisk()
	store := open(t, d.options())
	rows, err := fill(t, store, 60)
	musttest.NoError(t, err)
	left := 0
	for _, memory := range crashes(d, func() { backUp(t, store) }, 0, 100) {
		if _, err := memory.Stat("data/BACKUP"); err == nil {
			left++
		}
		after := open(t, diskOf(memory).options())
		expectThere(t, after, rows...)
		closeStore(t, after)
		if _, err := memory.Stat("data/BACKUP"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the copy is still there: %v", err)
		}
	}
	if left == 0 {
		t.Error("no crash left a copy")
	}
	closeStore(t, store)
}

// TestRestore_InterruptedIsNoStore loses power before each operation of a restore: a start
// finds the whole store or nothing, or is refused, and the restore can be repeated.
func TestRestore_InterruptedIsNoStore(t *testing.T) {
	t.Parallel()
	backup := sample(t, 60)
	d := newDisk()
	options := pebblestore.RestoreOptions{Dir: "data", FS: d}
	refused, whole := 0, 0
	for n, memory := range crashes(d, func() { restore(t, backup, options) }, 0, 100) {
		crashed := diskOf(memory)
		readOnly := crashed.options()
		readOnly.ReadOnly = true
		store, err := pebblestore.Open(readOnly)
		switch {
		case err == nil:
			whole++
			expectThere(t, store, 0, 59)
			closeStore(t, store)
			continue
		case errors.Is(err, tablestore.ErrDamaged) && strings.Contains(err.Error(), "a restore into it was interrupted"):
			refused++
			expectOpenError(t, crashed.options(), tablestore.ErrDamaged, "a restore into it was interrupted")
		case !errors.Is(err, pebblestore.ErrNoStore):
			t.Errorf("open after crash %d: %v", n, err)
		}
		restore(t, backup, pebblestore.RestoreOptions{Dir: "data", FS: crashed})
		store = open(t, crashed.options())
		expectThere(t, store, 0, 59)
		closeStore(t, store)
	}
	if refused < 10 || whole == 0 {
		t.Errorf("after %d crashes the start is refused, after %d the store is there", refused, whole)
	}
	store := open(t, d.options())
	expectThere(t, store, 0, 59)
	closeStore(t, store)
}

// TestStop_InterruptedIsACrash loses power during an orderly stop and the start after it.
// The engine relies on a file system that keeps the order of its new files.
func TestStop_InterruptedIsACrash(t *testing.T) {
	t.Parallel()
	d := newDisk()
	store := open(t, d.options())
	rows, err := fill(t, store, 10)
	musttest.NoError(t, err)
	crashed := crashes(d, func() {
		closeStore(t, store)
		store = open(t, d.options())
	}, 0, 100)
	closeStore(t, store)
	if len(crashed) < 2*30 {
		t.Fatalf("a stop and a start have only %d operations", len(crashed)/2)
	}
	for _, memory := range crashed {
		for range 2 {
			store := open(t, diskOf(memory).options())
			expectThere(t, store, rows...)
			closeStore(t, store)
		}
	}
}

func TestCreation_InterruptedIsRepeated(t *testing.T) {
	t.Parallel()
	d := newDisk()
	var store *pebblestore.Store
	crashed := crashes(d, func() { store = open(t, d.options()) }, 0, 50, 100)
	closeStore(t, store)
	if len(crashed) < 3*20 {
		t.Fatalf("a creation has only %d operations", len(crashed)/3)
	}
	for n, memory := range crashed {
		options := diskOf(memory).options()
		store := open(t, options)
		if err := commitOne(t, store, rowOf(n, 10)); err != nil {
			t.Errorf("commit after crash %d of the creation: %v", n, err)
		}
		closeStore(t, store)
		if store = open(t, options); store.Info().New {
			t.Errorf("the store is new again after crash %d of the creation", n)
		}
		expectThere(t, store, n)
		closeStore(t, store)
	}
}
