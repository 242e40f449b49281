package pebblestore_test

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

// lockedBuffer may be read while it is written to.
type lockedBuffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}

// expectSentence fails unless the text is one line that contains all wants.
func expectSentence(t *testing.T, what, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) || strings.Count(text, "\n") != 1 || strings.Contains(text, ".go:") {
			t.Errorf("the %s is not one sentence with %q:\n%s", what, want, text)
		}
	}
}

// filled returns the options of a closed store on disk with tables and logs, and
// the number of rows in it.
func filled(t *testing.T) (pebblestore.Options, int) {
	t.Helper()
	options := pebblestore.Options{Dir: filepath.Join(t.TempDir(), "data")}.WithMemTable(512 << 10)
	store := open(t, options)
	rows, err := fill(t, store, 0, 150)
	if err != nil {
		t.Fatal(err)
	}
	closeStore(t, store)
	return options, len(rows)
}

// matching returns the paths of the directory's files of that pattern.
func matching(t *testing.T, dir, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) == 0 {
		t.Fatalf("no file %s: %v", pattern, err)
	}
	return found
}

func removeAll(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
}

// expectUntouched fails unless opening the directory returns ErrDamaged and
// leaves every file unchanged.
func expectUntouched(t *testing.T, options pebblestore.Options, file string) {
	t.Helper()
	before := files(t, options.Dir)
	expectDamage(t, options, file)
	if diff := cmp.Diff(before, files(t, options.Dir)); diff != "" {
		t.Errorf("the directory changed (-before +after):\n%.2000s", diff)
	}
}

// expectDamage fails unless opening the directory, for writing and read-only,
// fails with one sentence about that file and what to do.
func expectDamage(t *testing.T, options pebblestore.Options, file string) {
	t.Helper()
	for _, readOnly := range []bool{false, true} {
		options.ReadOnly = readOnly
		expectOpenError(t, options, pebblestore.ErrDamaged, file)
		expectOpenError(t, options, pebblestore.ErrDamaged, "restore the directory from a backup, or move it away")
		if _, err := pebblestore.Open(options); err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("open: more than a sentence: %s", err)
		}
	}
}

// TestDamage_AStoreWithoutItsMarkersIsNotNew removes the files by
// which the engine distinguishes a store from an empty directory.
func TestDamage_AStoreWithoutItsMarkersIsNotNew(t *testing.T) {
	t.Parallel()
	for what, patterns := range map[string][]string{
		"marker.manifest.":       {"marker.manifest.*"},
		"marker.format-version.": {"marker.format-version.*"},
		"000":                    {"marker.*"},
		"OPTIONS-":               {"marker.*", "*.sst", "*.log", "MANIFEST-*"},
		"MANIFEST-":              {"marker.*", "*.sst", "*.log", "OPTIONS-*"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			options, _ := filled(t)
			for _, pattern := range patterns {
				removeAll(t, matching(t, options.Dir, pattern)...)
			}
			expectUntouched(t, options, what)
		})
	}
}

// TestDamage_AnyFileOfAStoreIsASignOfIt keeps one file of a store at a time.
func TestDamage_AnyFileOfAStoreIsASignOfIt(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"000007.sst", "000008.blob", "000002.log", "000002-001.log", "12.log", "MANIFEST-000001", "OPTIONS-000003",
		"marker.manifest.000001.MANIFEST-000001", "marker.format-version.000011.024",
	} {
		options := pebblestore.Options{Dir: t.TempDir()}
		if err := os.WriteFile(filepath.Join(options.Dir, name), []byte("content"), 0o600); err != nil {
			t.Fatal(err)
		}
		expectUntouched(t, options, name)
	}
}

// TestDamage_ACreationMarkDoesNotEraseAStore adds the mark of an interrupted
// creation to the files of a store.
func TestDamage_ACreationMarkDoesNotEraseAStore(t *testing.T) {
	t.Parallel()
	options, rows := filled(t)
	if err := os.WriteFile(filepath.Join(options.Dir, "CREATING"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	store := open(t, options)
	for n := range rows {
		expectThere(t, store, n)
	}
	closeStore(t, store)
	removeAll(t, matching(t, options.Dir, "marker.*")...)
	expectUntouched(t, options, "000")
}

func TestDamage_ForeignFilesDoNotCount(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"server.log", "notes.sst", "lost+found", "LOCK", "MANIFEST-old", "12.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("content"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	store := open(t, pebblestore.Options{Dir: dir})
	defer closeStore(t, store)
	if !store.Info().New {
		t.Error("the store is not new")
	}
}

// TestDamage_OfAnyFileIsOneSentence damages each kind of file in several ways, after a
// crash and after an orderly stop.
func TestDamage_OfAnyFileIsOneSentence(t *testing.T) {
	t.Parallel()
	half := func(b []byte) []byte { return b[:len(b)/2] }
	garbage := func([]byte) []byte { return []byte("garbage") }
	for name, test := range map[string]struct {
		pattern, file string                      // The damaged file, and the one that is named after a crash.
		damage        func(content []byte) []byte // nil removes the file.
	}{
		"no manifest":           {"MANIFEST-*", "MANIFEST-", nil},
		"empty manifest":        {"MANIFEST-*", "MANIFEST-", func([]byte) []byte { return nil }},
		"garbage in manifest":   {"MANIFEST-*", "MANIFEST-", garbage},
		"byte of manifest":      {"MANIFEST-*", "MANIFEST-", flip(0)},
		"half a manifest":       {"MANIFEST-*", ".sst", half},
		"no table":              {"*.sst", ".sst", nil},
		"empty table":           {"*.sst", ".sst", func([]byte) []byte { return nil }},
		"garbage in table":      {"*.sst", ".sst", garbage},
		"half a table":          {"*.sst", ".sst", half},
		"byte in head of table": {"*.sst", ".sst", flip(0)},
		"byte at end of table":  {"*.sst", ".sst", func(b []byte) []byte { return flip(len(b) - 1)(b) }},
		"garbage in options":    {"OPTIONS-*", "OPTIONS-", garbage},
		"half of the options":   {"OPTIONS-*", "OPTIONS-", half},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options, _ := filled(t)
			for _, path := range matching(t, options.Dir, test.pattern) {
				damage(t, path, test.damage)
			}
			expectDamage(t, options, strings.Trim(test.pattern, "*"))
			damage(t, filepath.Join(options.Dir, "OPEN"), cut(0))
			expectDamage(t, options, test.file)
		})
	}
}

// damage changes the content of a file, or makes the file. A nil change removes it.
func damage(t *testing.T, path string, change func(content []byte) []byte) {
	t.Helper()
	if change == nil {
		removeAll(t, path)
		return
	}
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err = errors.Join(err, os.WriteFile(path, change(bytes.Clone(content)), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// cut keeps that many bytes of a file, or all but as many if negative.
func cut(size int) func(content []byte) []byte {
	return func(content []byte) []byte {
		if size < 0 {
			size += len(content)
		}
		return content[:size]
	}
}

// TestDamage_FoundLaterIsOneSentence damages the tables of an open store, which
// detects it on reading, and lets the engine retry for a while.
func TestDamage_FoundLaterIsOneSentence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		options, rows := filled(t)
		var log lockedBuffer
		options.Logger = slog.New(slog.NewTextHandler(&log, nil))
		store := open(t, options)
		time.Sleep(time.Minute) // Compactions have ended.
		for _, path := range matching(t, options.Dir, "*.sst") {
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for at := len(content) / 4; at < len(content)*3/4; at += 100 {
				content[at] ^= 1
			}
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var found error
		for n := 0; n < rows && found == nil; n++ {
			found = getOne(t, store, n)
		}
		if !errors.Is(found, tablestore.ErrUnavailable) || !errors.Is(found, pebblestore.ErrDamaged) {
			t.Errorf("get: %v, want ErrUnavailable and ErrDamaged", found)
		}
		for range 10 {
			expectRefused(t, store)
			time.Sleep(time.Second)
		}
		closeStore(t, store)
		expectSentence(t, "log", log.String(), ".sst is damaged", options.Dir, "restore the directory from a backup")
		expectSentence(t, "error", found.Error()+"\n", "must be opened again")
	})
}

// flip flips a bit of that byte.
func flip(at int) func(content []byte) []byte {
	return func(content []byte) []byte {
		content[at] ^= 1
		return content
	}
}

// TestDamage_ToTheManifestShowsAfterACrash copies the directory of an open store, which is
// quiet, instead of a crash.
func TestDamage_ToTheManifestShowsAfterACrash(t *testing.T) {
	t.Parallel()
	options, rows := filled(t)
	store := open(t, options)
	crashed := options
	crashed.Dir = filepath.Join(t.TempDir(), "copy")
	copyQuiet(t, options.Dir, crashed.Dir)
	closeStore(t, store)
	manifests := matching(t, crashed.Dir, "MANIFEST-*")
	manifest := manifests[len(manifests)-1]
	whole, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range []func([]byte) []byte{cut(60), flip(80)} {
		damage(t, manifest, change)
		expectUntouched(t, crashed, filepath.Base(manifest)+" has changed since it was written, from ")
		damage(t, manifest, func([]byte) []byte { return whole })
	}
	// A crash may interrupt the next change of the manifest.
	damage(t, manifest, func(content []byte) []byte { return append(content, 1, 2, 3) })
	store = open(t, crashed)
	expectThere(t, store, 0, rows-1)
	closeStore(t, store)
}

// TestDamage_AfterAnOrderlyStopChangesNothing damages files in ways that the engine takes
// for those of a crash: it would delete the tables that a manifest lost.
func TestDamage_AfterAnOrderlyStopChangesNothing(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		pattern, text string
		change        func(content []byte) []byte
	}{
		"manifest cut after a record": {"MANIFEST-*", "MANIFEST-000001 has changed since the last stop, from ", cut(60)},
		"flipped byte of manifest":    {"MANIFEST-*", "MANIFEST-000001 has changed", flip(80)},
		"end of log":                  {"*.log", ".log has changed", cut(-30)},
		"no log":                      {"*.log", ".log is missing, which was there at the last stop", nil},
		"no table":                    {"*.sst", ".sst is missing, which was there at the last stop", nil},
		"added log":                   {"000999.log", "000999.log was added since the last stop", cut(0)},
		"no list":                     {"FILES", "FILES is missing", nil},
		"cut list":                    {"FILES", "FILES is damaged", cut(-1)},
		"half a list":                 {"FILES", "FILES is damaged", cut(100)},
		"only the list":               {"[^F]*", "FILES exists, but marker.manifest.* is missing", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options, _ := filled(t)
			paths, err := filepath.Glob(filepath.Join(options.Dir, test.pattern))
			if err != nil {
				t.Fatal(err)
			}
			if paths == nil {
				paths = []string{filepath.Join(options.Dir, test.pattern)}
			}
			for _, path := range paths {
				damage(t, path, test.change)
			}
			expectUntouched(t, options, test.text)
		})
	}
}

// TestDamage_IsAcceptedWithAnOpenMark opens a store without the end of its log, as the
// operator asked for.
func TestDamage_IsAcceptedWithAnOpenMark(t *testing.T) {
	t.Parallel()
	options := pebblestore.Options{Dir: filepath.Join(t.TempDir(), "data")}
	store := open(t, options)
	rows, err := fill(t, store, 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	closeStore(t, store)
	damage(t, matching(t, options.Dir, "*.log")[0], cut(-5_000)) // Half of the last row.
	expectOpenError(t, options, pebblestore.ErrDamaged, ".log has changed")
	damage(t, filepath.Join(options.Dir, "OPEN"), cut(0))
	for range 2 {
		store := open(t, options)
		expectThere(t, store, rows[:9]...)
		if err := getOne(t, store, rows[9]); !errors.Is(err, tablestore.ErrNotFound) {
			t.Errorf("the row at the end of the log: %v, want ErrNotFound", err)
		}
		closeStore(t, store)
	}
}

// copyQuiet copies the directory of an open store at a moment in which the engine neither
// makes nor removes files.
func copyQuiet(t *testing.T, from, to string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		before := matching(t, from, "*")
		err := os.CopyFS(to, os.DirFS(from))
		if err == nil && slices.Equal(before, matching(t, from, "*")) {
			return
		}
		removeAll(t, to)
	}
	t.Fatalf("the files in %s change all the time", from)
}

// TestDamage_OfACopyOfAnOpenStore copies a directory while a store has it open.
func TestDamage_OfACopyOfAnOpenStore(t *testing.T) {
	t.Parallel()
	options, rows := filled(t)
	store := open(t, options)
	var log lockedBuffer
	twin := options
	twin.Dir, twin.Logger = filepath.Join(t.TempDir(), "copy"), slog.New(slog.NewTextHandler(&log, nil))
	copyQuiet(t, options.Dir, twin.Dir)
	closeStore(t, store)
	clone := open(t, twin)
	expectThere(t, clone, rows-10)
	expectSentence(t, "log", log.String(), "is a copy that was made while a store had it open", twin.Dir)
	closeStore(t, clone)
	closeStore(t, open(t, twin))
	expectSentence(t, "log", log.String(), "is a copy") // Once: it is a store of its own now.

	store = open(t, options)
	twin.Dir += "2"
	copyQuiet(t, options.Dir, twin.Dir)
	closeStore(t, store)
	removeAll(t, matching(t, twin.Dir, "*.sst")...)
	expectOpenError(t, twin, pebblestore.ErrDamaged, ".sst is missing or damaged")
	expectOpenError(t, twin, pebblestore.ErrDamaged, "made while a store had the directory open, and no such copy is a backup")
}

// TestDamage_AStoreThatLostItsFirstLogIsNotNew removes the log of a store that
// has written nothing else, after a crash.
func TestDamage_AStoreThatLostItsFirstLogIsNotNew(t *testing.T) {
	t.Parallel()
	options := pebblestore.Options{Dir: t.TempDir()}
	closeStore(t, open(t, options))
	removeAll(t, matching(t, options.Dir, "*.log")...)
	damage(t, filepath.Join(options.Dir, "OPEN"), cut(0))
	expectOpenError(t, options, pebblestore.ErrDamaged, "a log or table is missing")
	expectOpenError(t, options, pebblestore.ErrDamaged, "a log or table is missing")
}

// crashes returns the disks after losing power before each operation of the action; these
// percentages of the unsynced data survive.
func crashes(d *disk, action func(), percentages ...int) (crashed []*vfs.MemFS) {
	var mu sync.Mutex // The engine also works in the background.
	d.obey("", func() error {
		mu.Lock()
		defer mu.Unlock()
		for _, kept := range percentages {
			cfg := vfs.CrashCloneCfg{UnsyncedDataPercent: kept, RNG: rand.New(rand.NewPCG(uint64(len(crashed)), 1))}
			crashed = append(crashed, d.memory.CrashClone(cfg))
		}
		return nil
	}, slices.Concat(makes, writes, syncs, []errorfs.OpKind{errorfs.OpRemove})...)
	action()
	d.heal()
	mu.Lock()
	defer mu.Unlock()
	return slices.Clone(crashed)
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

// TestStop_InterruptedIsACrash loses power during an orderly stop and the start after it.
// The engine relies on a file system that keeps the order of its new files.
func TestStop_InterruptedIsACrash(t *testing.T) {
	t.Parallel()
	d := newDisk()
	store := open(t, d.options())
	rows, err := fill(t, store, 0, 10)
	if err != nil {
		t.Fatal(err)
	}
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

func TestInfo(t *testing.T) {
	t.Parallel()
	options := pebblestore.Options{Dir: t.TempDir()}
	store := open(t, options)
	made := store.Info()
	closeStore(t, store)
	if !made.New || made.Opened != 1 || made.Created.IsZero() || made.Bytes == 0 || !filepath.IsAbs(made.Dir) {
		t.Errorf("a new store: %+v", made)
	}
	store = open(t, options)
	defer closeStore(t, store)
	opened := store.Info()
	made.New, made.Opened, made.Bytes = false, 2, opened.Bytes
	made.Created = opened.Created.Add(made.Created.Sub(opened.Created).Truncate(1e6))
	if diff := cmp.Diff(made, opened); diff != "" {
		t.Errorf("the store opened again (-want +got):\n%s", diff)
	}
}
