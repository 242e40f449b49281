package pebblestore_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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

// backUp takes a backup, which must succeed.
func backUp(t *testing.T, store *pebblestore.Store) []byte {
	t.Helper()
	backup, err := store.Backup(t.Context(), pebblestore.BackupNote{Version: "v1.2.3", Jobs: map[string]int{"RUNNING": 7}})
	if err != nil {
		t.Fatalf("backup: %v", err)
	}
	var stream bytes.Buffer
	if err := errors.Join(backup.Stream(t.Context(), &stream), backup.Close()); err != nil {
		t.Fatalf("backup: %v", err)
	}
	return stream.Bytes()
}

// restore restores a backup that must be good into the directory.
func restore(t *testing.T, backup []byte, options pebblestore.RestoreOptions) *pebblestore.BackupManifest {
	t.Helper()
	unpacked, err := pebblestore.Unpack(bytes.NewReader(backup), options)
	if err != nil {
		t.Fatalf("restore: %v", err)
	}
	if err := errors.Join(unpacked.Commit(), unpacked.Close()); err != nil {
		t.Fatalf("restore: %v", err)
	}
	return unpacked.Manifest
}

// racing is a file system that calls the hook once a reader of a log has reached the end of
// the written data, before it reads on.
type racing struct {
	vfs.FS
	heads sync.Map // of each log that was written, by name
	hook  atomic.Pointer[func()]
}

func (r *racing) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return r.count(name)(r.FS.Create(name, category))
}

func (r *racing) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return r.count(newname)(r.FS.ReuseForWrite(oldname, newname, category))
}

// count makes a file count its written bytes.
func (r *racing) count(name string) func(file vfs.File, err error) (vfs.File, error) {
	return func(file vfs.File, err error) (vfs.File, error) {
		head := new(atomic.Int64)
		r.heads.Store(name, head)
		return &counting{File: file, head: head}, err
	}
}

func (r *racing) Open(name string, options ...vfs.OpenOption) (vfs.File, error) {
	file, err := r.FS.Open(name, options...)
	hook, head := r.hook.Load(), (*atomic.Int64)(nil)
	if found, ok := r.heads.Load(name); ok {
		head = found.(*atomic.Int64)
	}
	if err == nil && hook != nil && strings.HasSuffix(name, ".log") && !strings.Contains(name, "BACKUP") {
		return &overtaken{File: file, head: head, hook: sync.OnceFunc(*hook)}, nil
	}
	return file, err
}

// counting is a file that counts the bytes written to it.
type counting struct {
	vfs.File
	head *atomic.Int64
}

func (c *counting) Write(p []byte) (int, error) {
	n, err := c.File.Write(p)
	c.head.Add(int64(n))
	return n, err
}

// overtaken is a log that is written once its reader is at the head.
type overtaken struct {
	vfs.File
	head *atomic.Int64
	read int64
	hook func()
}

func (o *overtaken) Read(p []byte) (int, error) {
	n, err := o.File.Read(p)
	if o.read += int64(n); o.read >= o.head.Load() {
		o.hook()
	}
	return n, err
}

// TestBackup_HasWhatWasAcknowledged takes backups while writers fill logs, which the engine
// reuses, and continue to write while it copies the end of a log.
func TestBackup_HasWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	disk := &racing{FS: vfs.Default}
	options := pebblestore.Options{Dir: filepath.Join(t.TempDir(), "data"), FS: disk}.WithMemTable(512 << 10)
	store := open(t, options)
	known := &knownRows{}
	var next atomic.Int64
	more := func() { write(t, store, &next, known) }
	for range 20 { // so that there are logs to reuse
		more()
	}
	for round := range 6 {
		rows := known.all()
		disk.hook.Store(&more)
		var group sync.WaitGroup
		group.Go(more)
		backup := backUp(t, store)
		group.Wait()
		disk.hook.Store(nil)
		dir := filepath.Join(t.TempDir(), "restored")
		manifest := restore(t, backup, pebblestore.RestoreOptions{Dir: dir})
		if manifest.Version != "v1.2.3" || manifest.Jobs["RUNNING"] != 7 || manifest.StoreOpened != 1 ||
			!manifest.StoreCreated.Equal(store.Info().Created) || time.Since(manifest.TakenAt) > time.Hour {
			t.Errorf("the manifest is %+v", manifest)
		}
		restored := open(t, pebblestore.Options{Dir: dir})
		if info := restored.Info(); info.New || info.Opened != 2 {
			t.Errorf("round %d: the restored store is %+v", round, info)
		}
		expectThere(t, restored, rows...)
		if err := commitOne(t, restored, rowOf(1_000_000, 10)); err != nil {
			t.Errorf("commit to the restored store: %v", err)
		}
		closeStore(t, restored)
	}
	expectThere(t, store, known.all()...)
	closeStore(t, store)
	store = open(t, options)
	expectThere(t, store, known.all()...)
	closeStore(t, store)
}

// TestBackup_IsOneAtATime also shows that the store takes writes during a backup, and
// closes after it.
func TestBackup_IsOneAtATime(t *testing.T) {
	t.Parallel()
	options := pebblestore.Options{Dir: filepath.Join(t.TempDir(), "data")}
	store := open(t, options)
	backup, err := store.Backup(t.Context(), pebblestore.BackupNote{})
	musttest.NoError(t, err)
	if _, err := store.Backup(t.Context(), pebblestore.BackupNote{}); !errors.Is(err, pebblestore.ErrBackupRunning) {
		t.Errorf("a second backup: %v, want ErrBackupRunning", err)
	}
	if err := commitOne(t, store, rowOf(1, 10)); err != nil {
		t.Errorf("commit during a backup: %v", err)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	if err := backup.Stream(gone, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("a backup whose client left: %v, want context.Canceled", err)
	}
	closed := started(store.Close)
	waittest.Until(t, "the store is being closed", func() bool {
		_, err := store.Get(t.Context(), rowKey(1))
		return store.Writable(t.Context()) != nil || errors.Is(err, tablestore.ErrUnavailable)
	})
	select {
	case err := <-closed:
		t.Errorf("the store closes while it has a backup: %v", err)
	default:
	}
	if err := backup.Close(); err != nil {
		t.Error(err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(options.Dir, "BACKUP")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the copy is still there: %v", err)
	}
	if _, err := store.Backup(t.Context(), pebblestore.BackupNote{}); !errors.Is(err, tablestore.ErrUnavailable) {
		t.Errorf("a backup of a closed store: %v, want ErrUnavailable", err)
	}
}

// TestBackup_FailsAlone makes each operation on the copy's files fail in turn: the store
// still takes writes, even after a crash, and the next backup succeeds.
func TestBackup_FailsAlone(t *testing.T) {
	t.Parallel()
	d := newDisk()
	store := open(t, d.options())
	rows, err := fill(t, store, 100)
	musttest.NoError(t, err)
	failures := 0
	for fails := 1; ; fails++ {
		var left atomic.Int64
		left.Store(int64(fails))
		judge := func(op errorfs.Op) error {
			changes := slices.Contains(slices.Concat(makes, writes, syncs, []errorfs.OpKind{errorfs.OpMkdirAll}), op.Kind)
			if strings.Contains(op.Path, "BACKUP") && changes && left.Add(-1) == 0 {
				return errDisk
			}
			return nil
		}
		d.rule.Store(&judge)
		backup, err := store.Backup(t.Context(), pebblestore.BackupNote{})
		d.heal()
		if err == nil {
			err = backup.Close()
			if left.Load() > 0 { // no operation was left to fail
				break
			}
		} else if !errors.Is(err, errDisk) {
			t.Errorf("backup with failure %d: %v", fails, err)
		}
		failures++
		if err != nil && !errors.Is(err, errDisk) {
			t.Error(err)
		}
		if err := commitOne(t, store, rowOf(1_000+fails, 10)); err != nil {
			t.Fatalf("commit after failure %d: %v", fails, err)
		}
		rows = append(rows, 1_000+fails)
	}
	if failures < 20 {
		t.Errorf("a backup has only %d operations", failures)
	}
	expectThere(t, d.crashed(t), rows...)
	backUp(t, store)
	closeStore(t, store)
}

// A directory of that name that no backup made is left alone.
func TestBackup_RemovesNoForeignFiles(t *testing.T) {
	t.Parallel()
	options := pebblestore.Options{Dir: t.TempDir()}
	photo := filepath.Join(options.Dir, "BACKUP", "photo.jpg")
	musttest.NoError(t, errors.Join(os.Mkdir(filepath.Dir(photo), 0o700), os.WriteFile(photo, nil, 0o600)))
	store := open(t, options)
	if _, err := store.Backup(t.Context(), pebblestore.BackupNote{}); err == nil || !strings.Contains(err.Error(), "BACKUP") {
		t.Errorf("backup: %v, want an error that names the directory", err)
	}
	closeStore(t, store)
	if _, err := os.Stat(photo); err != nil {
		t.Error(err)
	}
}

// A backup keeps deleted tables on the disk. It ends before the store refuses writes for it.
func TestBackup_EndsBeforeTheDiskIsFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		usage := func(free uint64) { d.memory.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: free, TotalBytes: 1 << 40}) }
		usage(pebblestore.DefaultReserve)
		store := open(t, d.options())
		defer closeStore(t, store)
		backup, err := store.Backup(t.Context(), pebblestore.BackupNote{})
		musttest.NoError(t, err)
		usage(pebblestore.DefaultReserve - 1)
		time.Sleep(2 * time.Second)
		if err := backup.Stream(t.Context(), io.Discard); !errors.Is(err, tablestore.ErrNoSpace) {
			t.Errorf("a backup below the reserve: %v, want ErrNoSpace", err)
		}
		if err := backup.Close(); err != nil {
			t.Error(err)
		}
		if _, err := store.Backup(t.Context(), pebblestore.BackupNote{}); !errors.Is(err, tablestore.ErrNoSpace) {
			t.Errorf("the next backup: %v, want ErrNoSpace", err)
		}
	})
}

// linkless is a file system without hard links, whose disk has room for that many bytes more than the reserve.
type linkless struct {
	*disk

	room atomic.Int64
	made func() // is called for each file of a copy
}

func (*linkless) Link(_, newname string) error {
	return &fs.PathError{Op: "link", Path: newname, Err: syscall.EOPNOTSUPP}
}

func (d *linkless) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.Contains(name, "BACKUP") {
		d.made()
	}
	return d.disk.Create(name, category)
}

func (d *linkless) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: uint64(linklessReserve + d.room.Load() - d.copied()), TotalBytes: 1 << 40}, nil
}

// copied returns how many bytes the copy has.
func (d *linkless) copied() (bytes int64) {
	names, _ := d.List("data/BACKUP") // It may be missing.
	for _, name := range names {
		if info, err := d.Stat("data/BACKUP/" + name); err == nil {
			bytes += info.Size()
		}
	}
	return bytes
}

const linklessReserve = 1 << 20

// Without hard links a backup copies the store, and must not take the space that the store needs for writes.
func TestBackup_WithoutLinksEndsBeforeTheDiskIsFull(t *testing.T) {
	t.Parallel()
	d := &linkless{disk: newDisk(), made: func() {}}
	d.room.Store(1 << 30)
	options := d.options()
	options.FS, options.Reserve = d, linklessReserve
	store := open(t, options)
	defer closeStore(t, store)
	content := rand.NewChaCha8([32]byte{})
	for n := range 400 {
		batch := rowOf(n, 0)
		batch[0].Properties[1].Value = randomText(content)
		musttest.NoError(t, commitOne(t, store, batch))
	}
	_, err := store.Compact(t.Context())
	musttest.NoError(t, err)
	backUp(t, store)

	refused := func(ctx context.Context, want error) {
		backup, err := store.Backup(ctx, pebblestore.BackupNote{})
		if err == nil {
			err = backup.Close()
		}
		if copied := d.copied(); !errors.Is(err, want) || copied > 0 {
			t.Errorf("backup: %v, want %v; %d bytes of the copy are left", err, want, copied)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	d.made = cancel // The client leaves.
	refused(ctx, context.Canceled)
	d.made = func() {}
	d.room.Store(2 << 20)
	refused(t.Context(), tablestore.ErrNoSpace)
	expectThere(t, store, 0, 399)
}
