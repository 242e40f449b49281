package pebblestore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/metrics"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

// holdEnv names a directory that a child process of the test holds open.
const holdEnv = "PEBBLESTORE_TEST_HOLD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holdEnv); dir != "" {
		hold(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

// hold opens the directory, writes row 1, reports it, and keeps the directory
// open until its input ends.
func hold(dir string) {
	store, err := pebblestore.Open(pebblestore.Options{Dir: dir})
	if err == nil {
		_, err = store.Commit(context.Background(), rowOf(1, 10))
	}
	_, _ = fmt.Fprintln(os.Stdout, "opened:", err)
	_, _ = io.Copy(io.Discard, os.Stdin)
	if store != nil {
		_ = store.Close()
	}
}

// occupy has another process hold the directory until leave is called.
func occupy(t *testing.T, dir string) (leave func()) {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), holdEnv+"="+dir)
	child.Stderr = os.Stderr // So a parent that reads this process's output to its end also waits for the child.
	input, err := child.StdinPipe()
	musttest.NoError(t, err)
	output, err := child.StdoutPipe()
	musttest.NoError(t, err)
	musttest.NoError(t, child.Start())
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil || line != "opened: <nil>\n" {
		t.Fatalf("child: %q, %v", line, err)
	}
	return func() {
		if err := errors.Join(input.Close(), child.Wait()); err != nil {
			t.Errorf("child: %v", err)
		}
	}
}

// expectOpenError fails unless opening fails with that error and a message that
// contains the text and the directory.
func expectOpenError(t *testing.T, options pebblestore.Options, want error, text string) {
	t.Helper()
	store, err := pebblestore.Open(options)
	if err == nil {
		closeStore(t, store)
		t.Fatal("open succeeded")
	}
	if want != nil && !errors.Is(err, want) {
		t.Errorf("open: %v, want %v", err, want)
	}
	if !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), options.Dir) {
		t.Errorf("open: %q does not say %q of %q", err, text, options.Dir)
	}
}

func TestOpenNeedsADirectory(t *testing.T) {
	t.Parallel()
	if _, err := pebblestore.Open(pebblestore.Options{}); err == nil || !strings.Contains(err.Error(), "Options.Dir is required") {
		t.Errorf("open: %v, want an error that Dir is required", err)
	}
}

func TestOpenMakesTheDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "b")
	closeStore(t, open(t, pebblestore.Options{Dir: dir}))
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v, %v", info, err)
	}
}

func TestOpenRefusesAFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	musttest.WriteFile(t, file, "content")
	expectOpenError(t, pebblestore.Options{Dir: file}, nil, "is not a directory")
	expectOpenError(t, pebblestore.Options{Dir: filepath.Join(file, "below")}, nil, "cannot be made")
}

func TestOpenRefusesWhatItCannotWrite(t *testing.T) {
	t.Parallel()
	d := newDisk()
	denied := func() error { return &fs.PathError{Op: "open", Path: "data/LOCK", Err: fs.ErrPermission} }
	d.inject("LOCK", denied, errorfs.OpLock)
	expectOpenError(t, d.options(), fs.ErrPermission, "cannot be written")
	d.inject("", denied, errorfs.OpCreate)
	expectOpenError(t, d.options(), fs.ErrPermission, "cannot be opened")
	d.heal()
	closeStore(t, open(t, d.options()))
}

func TestOpenRefusesADirectoryInUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	musttest.NoError(t, os.Symlink(dir, link))
	store := open(t, pebblestore.Options{Dir: dir})
	expectOpenError(t, pebblestore.Options{Dir: dir}, pebblestore.ErrLocked, "in use")
	if _, err := pebblestore.Open(pebblestore.Options{Dir: link}); !errors.Is(err, pebblestore.ErrLocked) {
		t.Errorf("open by another name: %v, want ErrLocked", err)
	}
	closeStore(t, store)
	closeStore(t, open(t, pebblestore.Options{Dir: link}))
}

func TestOpenRefusesADirectoryOfAnotherProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	leave := occupy(t, dir)
	expectOpenError(t, pebblestore.Options{Dir: dir}, pebblestore.ErrLocked, "in use")
	leave()
	closeStore(t, open(t, pebblestore.Options{Dir: dir}))
}

// A store of another version is not damaged.
func TestOpenRefusesAnotherLayout(t *testing.T) {
	t.Parallel()
	for layout, want := range map[byte]string{
		5: "its rows have layout 5, and this program reads 6: use the version that wrote them",
		7: "its rows have layout 7, and this program reads 6: use the version that wrote them",
	} {
		options := pebblestore.Options{Dir: "data", FS: vfs.NewMem()}
		store := open(t, options)
		musttest.NoError(t, store.SetHeader([]byte{layout, 1, 1}))
		closeStore(t, store)
		expectOpenError(t, options, pebblestore.ErrLayout, want)
		if _, err := pebblestore.Open(options); errors.Is(err, tablestore.ErrDamaged) {
			t.Errorf("%v, which is no damage", err)
		}
	}
}

func TestOpenRefusesADamagedHeader(t *testing.T) {
	t.Parallel()
	for what, header := range map[string][]byte{
		"malformed": {6, 0x80}, "without a time": {6, 1}, "name cut short": {6, 1, 1, 2, 'n'},
		"name twice": {6, 1, 1, 1, 'n', 1, 'n'}, "empty": {},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			options := pebblestore.Options{Dir: "data", FS: vfs.NewMem()}
			store := open(t, options)
			musttest.NoError(t, store.SetHeader(header))
			closeStore(t, store)
			expectOpenError(t, options, tablestore.ErrDamaged, "cannot be read")
			expectOpenError(t, options, tablestore.ErrDamaged, "header")
		})
	}
}

func TestOpenKeepsTheReserve(t *testing.T) {
	t.Parallel()
	d := newDisk()
	d.memory.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 63 << 20, TotalBytes: 1 << 40})
	expectOpenError(t, d.options(), tablestore.ErrNoSpace, "63 MiB of disk space are free, and 64 MiB are needed to open")
	options := d.options()
	options.Reserve = 1 << 30
	expectOpenError(t, options, tablestore.ErrNoSpace, "256 MiB are needed to open")
	options.Reserve = -1
	closeStore(t, open(t, options))
	options.Reserve = 4 * 63 << 20
	closeStore(t, open(t, options))
}

// files returns the contents of a directory's files by name, except the lock.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries := musttest.Make(t, os.ReadDir, dir)
	found := map[string]string{}
	for _, entry := range entries {
		data := musttest.ReadFile(t, filepath.Join(dir, entry.Name()))
		if entry.Name() != "LOCK" {
			found[entry.Name()] = string(data)
		}
	}
	return found
}

// TestReadOnly_ChangesNothing opens a directory with writes that are only in
// the log.
func TestReadOnly_ChangesNothing(t *testing.T) {
	t.Parallel()
	options := pebblestore.Options{Dir: t.TempDir()}
	key := tablestore.Key{Table: "table", Partition: "p", Row: "r"}
	batch := tablestore.Batch{{Verb: tablestore.Put, Key: key}}
	store := open(t, options)
	if _, err := store.Commit(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	closeStore(t, store)
	before := files(t, options.Dir)

	options.ReadOnly = true
	store = open(t, options)
	if _, err := store.Get(t.Context(), key); err != nil {
		t.Errorf("read: %v", err)
	}
	if _, err := store.Commit(t.Context(), batch); !errors.Is(err, tablestore.ErrInvalid) {
		t.Errorf("write: %v, want ErrInvalid", err)
	}
	if err := store.Writable(t.Context()); !errors.Is(err, tablestore.ErrInvalid) {
		t.Errorf("it is writable: %v, want ErrInvalid", err)
	}
	rows, err := store.Walk(t.Context(), tablestore.Walk{Table: "table"})
	if err != nil || len(rows) != 1 {
		t.Errorf("walk: %d rows, %v", len(rows), err)
	}
	expectOpenError(t, options, pebblestore.ErrLocked, "in use")
	closeStore(t, store)
	if diff := cmp.Diff(before, files(t, options.Dir)); diff != "" {
		t.Errorf("the directory changed (-before +after):\n%.2000s", diff)
	}
}

func TestReadOnly_NeedsAnExistingStore(t *testing.T) {
	t.Parallel()
	empty := t.TempDir()
	for _, dir := range []string{empty, filepath.Join(empty, "missing")} {
		expectOpenError(t, pebblestore.Options{Dir: dir, ReadOnly: true}, pebblestore.ErrNoStore, "no data directory")
	}
	if found, err := os.ReadDir(empty); err != nil || len(found) != 0 { // Not even a lock.
		t.Errorf("the directory holds %v, %v", found, err)
	}
}

// A batch of several partitions is one commit, and what writes nothing is none.
func TestCountsCommitsAndReads(t *testing.T) {
	t.Parallel()
	var seen []string
	store := open(t, pebblestore.Options{Dir: t.TempDir(), Observe: func(operation string, took time.Duration, err error) {
		if took <= 0 {
			t.Errorf("%s took %s", operation, took)
		}
		seen = append(seen, fmt.Sprint(operation, " ", err == nil))
	}})
	defer closeStore(t, store)
	row := func(verb tablestore.Verb, partition string) tablestore.Batch {
		return tablestore.Batch{{Verb: verb, Key: tablestore.Key{Table: "table", Partition: partition, Row: "r"}}}
	}
	if _, err := store.CommitAll(t.Context(), []tablestore.Batch{row(tablestore.Insert, "p"), row(tablestore.Insert, "q")}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Commit(t.Context(), row(tablestore.Insert, "p")); !errors.Is(err, tablestore.ErrConflict) {
		t.Fatal(err)
	}
	if _, err := store.Get(t.Context(), row(tablestore.Insert, "p")[0].Key); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Scan(t.Context(), tablestore.Query{Table: "table", Partition: "p"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"commit true", "commit false", "get true", "scan true"}, seen); diff != "" {
		t.Errorf("(-want +observed):\n%s", diff)
	}
	registry := metrics.Registry{Registry: prometheus.NewRegistry()}
	store.Watch(registry)
	families, err := registry.Gather()
	musttest.NoError(t, err)
	got := map[string]float64{}
	for _, family := range families {
		metric := family.GetMetric()[0]
		got[strings.TrimPrefix(family.GetName(), "lucius_store_")] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
	}
	if got["commits_total"] != 1 || got["reads_total"] != 2 || got["rows_read_total"] != 2 || got["write_stalls_total"] != 0 ||
		got["log_written_bytes_total"] == 0 || got["bytes"] == 0 {
		t.Errorf("metrics %v", got)
	}
}
