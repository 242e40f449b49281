package pebblestore_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

var (
	syncs  = []errorfs.OpKind{errorfs.OpFileSync, errorfs.OpFileSyncData}
	writes = []errorfs.OpKind{errorfs.OpFileWrite}
	makes  = []errorfs.OpKind{errorfs.OpCreate, errorfs.OpRename, errorfs.OpLink}
)

// fill commits rows of 10 kB until one fails, at most that many, and returns
// the acknowledged ones.
func fill(t *testing.T, store tablestore.Store, most int) (acknowledged []int, err error) {
	t.Helper()
	for n := range most {
		if err := commitOne(t, store, rowOf(n, 10_000)); err != nil {
			return acknowledged, err
		}
		acknowledged = append(acknowledged, n)
	}
	return acknowledged, nil
}

func TestFailingDiskEndsTheProcessAndKeepsWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	full := func() error { return syscall.ENOSPC }
	broken := func() error { return errDisk }
	for name, failure := range map[string]struct {
		suffix string
		rule   func() error
		kinds  []errorfs.OpKind
	}{
		"sync of the log":            {".log", broken, syncs},
		"write of the log":           {".log", broken, writes},
		"log on a full disk":         {".log", full, writes},
		"new log":                    {".log", broken, makes},
		"sync of the directory":      {"data", broken, syncs},
		"write of the manifest":      {"MANIFEST-000001", broken, writes},
		"sync of the manifest":       {"MANIFEST-000001", broken, syncs},
		"write of a table":           {".sst", broken, writes},
		"sync of a table":            {".sst", broken, syncs},
		"new table":                  {".sst", broken, makes},
		"everything, all at once":    {"", broken, append(append(makes, writes...), syncs...)},
		"everything on a full disk ": {".log", full, append(append(makes, writes...), syncs...)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !inChild(t) {
				return
			}
			d, acknowledged := newDisk(), &knownRows{}
			options := d.options()
			options.Fatal = ends(t, func(error) {
				rows := acknowledged.all()
				for _, kept := range []int{0, 50, 100} { // percent of the data that was not synced
					survives := vfs.CrashCloneCfg{UnsyncedDataPercent: kept, RNG: rand.New(rand.NewPCG(1, 2))}
					after := open(t, diskOf(d.memory.CrashClone(survives)).options())
					expectThere(t, after, rows...)
					closeStore(t, after)
				}
				say(len(rows), "rows acknowledged")
			})
			store := open(t, options)
			before, err := fill(t, store, 100)
			if err != nil {
				t.Fatalf("fill: %v", err)
			}
			for _, n := range before {
				acknowledged.add(n)
			}
			d.inject(failure.suffix, failure.rule, failure.kinds...)
			for n := range 2_000 {
				if err := commitOne(t, store, rowOf(10_000+n, 10_000)); err != nil {
					t.Fatalf("the failing commit returns %v", err)
				}
				acknowledged.add(10_000 + n)
			}
			t.Error("no commit fails")
		})
	}
}

// The engine's Open repeats the flush of the log that it has read until it succeeds.
func TestAFlushThatFailsInOpenEndsTheProcess(t *testing.T) {
	t.Parallel()
	for name, failing := range map[string]struct {
		file  string
		cause error
	}{
		"table on a full disk":    {".sst", syscall.ENOSPC},
		"table beyond a quota":    {".sst", syscall.EDQUOT},
		"table on a broken disk":  {".sst", errDisk},
		"manifest beyond a quota": {"MANIFEST-", syscall.EDQUOT},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cause := failing.cause
			if !inChild(t, `data directory "data"`, "flush of the log", cause.Error()) {
				return
			}
			d := newDisk()
			_, err := fill(t, open(t, d.options()), 20)
			musttest.NoError(t, err)
			d = d.crash()
			judge := func(op errorfs.Op) error {
				if strings.Contains(op.Path, failing.file) && (op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpFileWrite) {
					return cause
				}
				return nil
			}
			d.rule.Store(&judge)
			options := d.options()
			options.Fatal = ends(t, func(err error) {
				if !errors.Is(err, cause) || errors.Is(err, tablestore.ErrNoSpace) == errors.Is(cause, errDisk) ||
					errors.Is(err, tablestore.ErrDamaged) {
					t.Errorf("it ends for %v", err)
				}
			})
			open(t, options)
			t.Error("the store was opened")
		})
	}
}

func TestFailureAcknowledgesNoCommitUnderWay(t *testing.T) {
	t.Parallel()
	if !inChild(t, "sync 000002.log: input/output error of the test's disk") {
		return
	}
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		options := d.options()
		options.Fatal = ends(t, func(error) {})
		store := open(t, options)
		gate := make(chan struct{})
		d.inject(".log", func() error { <-gate; return errDisk }, syncs...)
		for n := range 50 {
			go func() { say("commit", n, "returns", commitOne(t, store, rowOf(n, 100))); exit(1) }()
		}
		synctest.Wait()
		for n := range 50 {
			go func() { say("get", n, "returns", getOne(t, store, n)); exit(1) }()
		}
		synctest.Wait()
		close(gate)
		synctest.Wait()
		t.Error("no commit fails")
	})
}

// TestFailureEndsTheProcessByDefault has no Fatal.
func TestFailureEndsTheProcessByDefault(t *testing.T) {
	t.Parallel()
	if !inChildWithStatus(t, 1, `level=ERROR msg="local store has failed and must be opened again: the process ends" dir=data`,
		`error="sync 000002.log: input/output error`) {
		return
	}
	d := newDisk()
	options := d.options()
	options.Logger = slog.New(slog.NewTextHandler(os.Stdout, nil))
	store := open(t, options)
	d.inject(".log", func() error { return errDisk }, syncs...)
	_ = commitOne(t, store, rowOf(0, 10))
	exit(0)
}

func TestAFailedReadDoesNotFailTheStore(t *testing.T) {
	t.Parallel()
	d := newDisk()
	store := open(t, d.options())
	rows, err := fill(t, store, 200)
	musttest.NoError(t, err)
	closeStore(t, store)
	store = open(t, d.options())
	defer closeStore(t, store)
	d.inject(".sst", func() error { return errDisk }, errorfs.OpFileRead, errorfs.OpFileReadAt)
	lost := slices.IndexFunc(rows, func(n int) bool { return getOne(t, store, n) != nil })
	if lost < 0 {
		t.Fatal("every row was read from memory")
	}
	query := tablestore.Query{Table: "table", Partition: rowKey(lost).Partition}
	_, scanErr := store.Scan(t.Context(), query)
	for what, err := range map[string]error{
		"get": getOne(t, store, lost), "scan": scanErr, "commit": commitOne(t, store, rowOf(lost, 10)),
	} {
		if !errors.Is(err, tablestore.ErrUnavailable) || !errors.Is(err, errDisk) {
			t.Errorf("%s: %v, want ErrUnavailable for the disk's error", what, err)
		}
	}
	d.heal()
	expectThere(t, store, rows...)
	if !errors.Is(commitOne(t, store, rowOf(lost, 10)), tablestore.ErrConflict) {
		t.Error("insert of a stored row does not conflict")
	}
}

func getOne(t *testing.T, store tablestore.Store, n int) error {
	_, err := store.Get(t.Context(), rowKey(n))
	return err
}

func TestFullDiskDuringAFlushDoesNotFailTheStore(t *testing.T) {
	t.Parallel()
	d := newDisk()
	store := open(t, d.options())
	d.inject(".sst", func() error { return syscall.ENOSPC }, writes...)
	acknowledged, err := fill(t, store, 60) // They fill a memtable, and not so many that commits wait for a flush.
	if err != nil && !errors.Is(err, tablestore.ErrUnavailable) {
		t.Fatalf("commit while the disk fills up: %v", err)
	}
	waittest.Until(t, "a flush fails on the full disk", func() bool {
		return errors.Is(store.Writable(t.Context()), tablestore.ErrNoSpace)
	})
	n := 10_000
	err = commitOne(t, store, rowOf(n, 10))
	if !errors.Is(err, tablestore.ErrUnavailable) || errors.Is(err, tablestore.ErrUnknown) {
		t.Fatalf("commit on a full disk: %v, want ErrUnavailable", err)
	}
	expectThere(t, store, acknowledged...)
	d.heal()
	for errors.Is(err, tablestore.ErrUnavailable) {
		err = commitOne(t, store, rowOf(n, 10))
	}
	if err != nil {
		t.Errorf("commit after space came back: %v", err)
	}
	expectThere(t, store, append(acknowledged, n)...)
	closeStore(t, store)
}

func TestFlushWithNothingToWriteDoesNotFailTheStore(t *testing.T) {
	t.Parallel()
	d := newDisk()
	store := open(t, d.options())
	for n := range 2_000 {
		key := tablestore.Key{Table: "queue", Partition: "ready", Row: tablestore.Pad(n, 5)}
		for _, verb := range []tablestore.Verb{tablestore.Put, tablestore.Discard} {
			if err := commitOne(t, store, tablestore.Batch{{Verb: verb, Key: key}}); err != nil {
				t.Fatalf("%s %d: %v", verb, n, err)
			}
		}
	}
	closeStore(t, store)
	closeStore(t, open(t, d.options()))
	expectThere(t, d.crashed(t))
}

func TestReserveOfDiskSpace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		usage := func(free uint64) { d.memory.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: free, TotalBytes: 1 << 40}) }
		usage(pebblestore.DefaultReserve)
		store := open(t, d.options())
		defer closeStore(t, store)
		if err := commitOne(t, store, rowOf(1, 10)); err != nil {
			t.Errorf("commit with space left: %v", err)
		}
		usage(pebblestore.DefaultReserve - 1)
		time.Sleep(2 * time.Second)
		if err := commitOne(t, store, rowOf(2, 10)); !errors.Is(err, tablestore.ErrUnavailable) {
			t.Errorf("commit below the reserve: %v, want ErrUnavailable", err)
		}
		expectThere(t, store, 1)
		if err := store.Writable(t.Context()); !errors.Is(err, tablestore.ErrUnavailable) || !errors.Is(err, tablestore.ErrNoSpace) {
			t.Errorf("below the reserve it is writable: %v, want ErrUnavailable and ErrNoSpace", err)
		}
		usage(pebblestore.DefaultReserve)
		time.Sleep(2 * time.Second)
		// It measures the space even without writes.
		if err := store.Writable(t.Context()); err != nil {
			t.Errorf("with space again it is not writable: %v", err)
		}
		if err := commitOne(t, store, rowOf(3, 10)); err != nil {
			t.Errorf("commit with space again: %v", err)
		}
	})
}

// small is a disk of that many bytes, of which the files take theirs.
type small struct {
	*disk

	size atomic.Uint64
}

func (d *small) GetDiskUsage(string) (vfs.DiskUsage, error) {
	usage := vfs.DiskUsage{TotalBytes: d.size.Load(), AvailBytes: d.size.Load()}
	names, err := d.List("data")
	for _, name := range names {
		if info, err := d.Stat(d.PathJoin("data", name)); err == nil {
			usage.AvailBytes -= min(uint64(info.Size()), usage.AvailBytes)
		}
	}
	return usage, err
}

// A store that has filled its disk can be opened again, and emptied.
func TestAFullDiskIsNoDeadEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &small{disk: newDisk()}
		d.size.Store(16 << 20)
		options := d.options()
		options.FS, options.Reserve = d, 8<<20
		store := open(t, options)
		content := rand.NewChaCha8([32]byte{})
		row := func(n int) tablestore.Batch {
			batch := rowOf(n, 0)
			batch[0].Properties = tablestore.Properties{{Name: "data", Value: randomText(content)}}
			return batch
		}
		n := 0
		for ; commitOne(t, store, row(n)) == nil; n++ {
			time.Sleep(time.Millisecond)
		}
		closeStore(t, store)
		if free := d.free(t); n < 300 || free >= 8<<20 || free < 2<<20 {
			t.Fatalf("%d rows were taken, and %d MiB are free", n, free>>20)
		}

		store = open(t, options)
		defer func() { closeStore(t, store) }()
		if err := commitOne(t, store, row(n)); !errors.Is(err, tablestore.ErrNoSpace) {
			t.Errorf("commit on the full disk: %v, want ErrNoSpace", err)
		}
		for i := range n {
			deletion := tablestore.Batch{{Verb: tablestore.Discard, Key: rowKey(i)}}
			if _, err := store.Commit(tablestore.Reclaiming(t.Context()), deletion); err != nil {
				t.Fatalf("row %d is not deleted: %v", i, err)
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Minute)
		if err := commitOne(t, store, row(n)); err != nil {
			t.Errorf("commit after all rows were deleted: %v", err)
		}
		d.size.Store(0)
		time.Sleep(2 * time.Second)
		deletion := tablestore.Batch{{Verb: tablestore.Discard, Key: rowKey(n)}}
		if _, err := store.Commit(tablestore.Reclaiming(t.Context()), deletion); !errors.Is(err, tablestore.ErrNoSpace) {
			t.Errorf("deletion without any space: %v, want ErrNoSpace", err)
		}
	})
}

// free is the free space of the disk.
func (d *small) free(t *testing.T) uint64 {
	t.Helper()
	usage, err := d.GetDiskUsage("data")
	musttest.NoError(t, err)
	return usage.AvailBytes
}

func TestReserveIsMeasuredAfterManyWritesToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		d.memory.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 2 << 20, TotalBytes: 1 << 40})
		options := d.options()
		options.Reserve = 1 << 20
		store := open(t, options)
		defer closeStore(t, store)
		d.memory.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 19, TotalBytes: 1 << 40})
		acknowledged, err := fill(t, store, 2_000)
		if !errors.Is(err, tablestore.ErrUnavailable) || len(acknowledged) > 20 {
			t.Errorf("%d commits of 10 kB went through, then %v", len(acknowledged), err)
		}
	})
}

func TestCloseWaitsForAbandonedWrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		store := open(t, d.options())
		resume := stall(d)
		defer resume()
		ctx, cancel := context.WithCancel(t.Context())
		commit := started(func() error { _, err := store.Commit(ctx, rowOf(1, 10)); return err })
		synctest.Wait()
		cancel()
		if err := <-commit; err == nil {
			t.Error("an abandoned commit was acknowledged")
		}
		closed := started(store.Close)
		expectWaiting(t, "close", closed)
		resume()
		if err := <-closed; err != nil {
			t.Errorf("close: %v", err)
		}
		expectThere(t, d.crashed(t), 1)
	})
}
