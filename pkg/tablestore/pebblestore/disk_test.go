package pebblestore_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

var errDisk = fmt.Errorf("input/output error of the test's disk: %w", syscall.EIO)

// disk is a file system in memory that loses unsynced data in a crash and whose
// operations can be made to fail or block.
type disk struct {
	vfs.FS
	memory *vfs.MemFS
	rule   atomic.Pointer[func(op errorfs.Op) error]
}

func newDisk() *disk { return diskOf(vfs.NewCrashableMem()) }

func diskOf(memory *vfs.MemFS) *disk {
	d := &disk{memory: memory}
	d.FS = errorfs.Wrap(memory, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if rule := d.rule.Load(); rule != nil {
			return (*rule)(op)
		}
		return nil
	}))
	return d
}

// GetDiskUsage returns the usage that the test has set.
func (d *disk) GetDiskUsage(path string) (vfs.DiskUsage, error) { return d.memory.GetDiskUsage(path) }

// ReuseForWrite makes a new file, as errorfs would not judge a reused one.
func (d *disk) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := d.Remove(oldname); err != nil {
		return nil, err
	}
	return d.Create(newname, category)
}

// obey makes every operation of these kinds on files with that suffix call the
// rule first.
func (d *disk) obey(suffix string, rule func() error, kinds ...errorfs.OpKind) {
	judge := func(op errorfs.Op) error {
		for _, kind := range kinds {
			if op.Kind == kind && strings.HasSuffix(op.Path, suffix) {
				return rule()
			}
		}
		return nil
	}
	d.rule.Store(&judge)
}

// heal makes every operation succeed again.
func (d *disk) heal() { d.rule.Store(nil) }

// crash returns the disk as it is after a power loss.
func (d *disk) crash() *disk { return diskOf(d.memory.CrashClone(vfs.CrashCloneCfg{})) }

func (d *disk) options() pebblestore.Options {
	return pebblestore.Options{Dir: "data", FS: d}.WithMemTable(512 << 10)
}

func rowKey(n int) tablestore.Key {
	return tablestore.Key{Table: "table", Partition: fmt.Sprint("p", n%7), Row: fmt.Sprint("r", n)}
}

// rowOf returns a batch that inserts one row of about that many bytes.
func rowOf(n, size int) tablestore.Batch {
	return tablestore.Batch{{Verb: tablestore.Insert, Key: rowKey(n), Properties: tablestore.Properties{
		{Name: "n", Value: tablestore.Int(int64(n))}, {Name: "data", Value: tablestore.Bytes(make([]byte, size))}}}}
}

// expectThere fails unless the rows are stored.
func expectThere(t *testing.T, store tablestore.Store, rows ...int) {
	t.Helper()
	for _, n := range rows {
		row, err := store.Get(t.Context(), rowKey(n))
		if err != nil {
			t.Errorf("get row %d: %v", n, err)
		} else if got := row.Properties.Get("n").Int(); got != int64(n) {
			t.Errorf("row %d holds %d", n, got)
		}
	}
}

// expectRefused fails unless every call returns ErrUnavailable.
func expectRefused(t *testing.T, store tablestore.Store) {
	t.Helper()
	if _, err := store.Commit(t.Context(), rowOf(1_000_000, 1)); !errors.Is(err, tablestore.ErrUnavailable) {
		t.Errorf("commit: %v, want ErrUnavailable", err)
	}
	if _, err := store.Get(t.Context(), rowKey(0)); !errors.Is(err, tablestore.ErrUnavailable) {
		t.Errorf("get: %v, want ErrUnavailable", err)
	}
	query := tablestore.Query{Table: "table", Partition: "p0"}
	if _, err := store.Scan(t.Context(), query); !errors.Is(err, tablestore.ErrUnavailable) {
		t.Errorf("scan: %v, want ErrUnavailable", err)
	}
}

func closeStore(t testing.TB, store tablestore.Store) {
	t.Helper()
	if err := store.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}
