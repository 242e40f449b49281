package pebblestore_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

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
	whole := musttest.ReadFile(t, manifest)
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

// TestDamage_FarFromTheEndOfALogShowsAfterACrash damages rows that were synced long before the
// crash.
func TestDamage_FarFromTheEndOfALogShowsAfterACrash(t *testing.T) {
	t.Parallel()
	options, log, durable, _ := crashedAfterLargeRows(t)
	whole := musttest.ReadFile(t, log)
	for at := 5_000; at < durable-60_000; at += 199_999 {
		damage(t, log, flip(at))
		expectOpenError(t, options, tablestore.ErrDamaged, "")
		damage(t, log, func([]byte) []byte { return whole })
	}
}

// TestATornEndOfALogIsAccepted tears the last row of a log at many places, as a loss of power
// before its sync does: any of its blocks may be missing, or hold anything.
func TestATornEndOfALogIsAccepted(t *testing.T) {
	t.Parallel()
	options, log, durable, rows := crashedAfterLargeRows(t)
	whole := musttest.ReadFile(t, log)
	noise := make([]byte, len(whole))
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise) // It never fails.
	for at := durable; at < len(whole); at += 8_999 {
		hole := min(at+4_096, len(whole))
		for what, torn := range map[string][]byte{
			"cut":           whole[:at],
			"zeros":         slices.Concat(whole[:at], make([]byte, len(whole)-at)),
			"noise":         slices.Concat(whole[:at], noise[at:]),
			"a flipped bit": flip(at)(slices.Clone(whole)),
			"a lost block":  slices.Concat(whole[:at], make([]byte, hole-at), whole[hole:]),
		} {
			d := newDisk()
			_, err := vfs.Clone(vfs.Default, d.memory, options.Dir, "data")
			musttest.NoError(t, err)
			file, err := d.memory.Create("data/"+filepath.Base(log), vfs.WriteCategoryUnspecified)
			musttest.NoError(t, err)
			_, err = file.Write(slices.Clone(torn)) // A write may modify what it is given.
			musttest.NoError(t, errors.Join(err, file.Close()))
			store, err := pebblestore.Open(d.options())
			if err != nil {
				t.Fatalf("%s at %d of %d bytes, %d of them durable: %v", what, at, len(whole), durable, err)
			}
			expectThere(t, store, 0, rows/2, rows-2)
			closeStore(t, store)
		}
	}
}

// crashedAfterLargeRows returns a store that crashed after rows that were committed one after the
// other, each larger than a block of the log; its log, how much of that was durable before the
// last row was written, and the number of rows.
func crashedAfterLargeRows(t *testing.T) (crashed pebblestore.Options, log string, durable, rows int) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	crashed.Dir = filepath.Join(t.TempDir(), "crashed")
	store := open(t, pebblestore.Options{Dir: dir})
	defer func() { closeStore(t, store) }()
	// The engine begins with small logs, and writes some logs over old ones.
	for size := 0; size < 1_200_000; rows++ {
		durable = size
		musttest.NoError(t, commitOne(t, store, rowOf(rows, 60_000)))
		log = slices.Max(matching(t, dir, "*.log"))
		size = len(musttest.ReadFile(t, log))
	}
	copyQuiet(t, dir, crashed.Dir)
	return crashed, filepath.Join(crashed.Dir, filepath.Base(log)), durable, rows
}

// TestDamage_AfterAnOrderlyStopChangesNothing damages files in ways that the engine takes
// for the effects of a crash: it would delete the tables that a manifest lost.
func TestDamage_AfterAnOrderlyStopChangesNothing(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		pattern, text string
		change        func(content []byte) []byte
	}{
		"manifest cut after a record": {"MANIFEST-*", "MANIFEST-000001 has changed since it was written, from ", cut(60)},
		"flipped byte of manifest":    {"MANIFEST-*", "MANIFEST-000001 has changed", flip(80)},
		"end of log":                  {"*.log", ".log has changed", cut(-30)},
		"no log":                      {"*.log", ".log is missing, which was there at the last stop", nil},
		"no table":                    {"*.sst", ".sst is missing, which was there at the last stop", nil},
		"added log":                   {"000999.log", "000999.log was added since the last stop", cut(0)},
		"no state":                    {"STATE", ".log exists, but STATE is missing", nil},
		"empty state":                 {"STATE", "STATE is damaged", cut(0)},
		"cut state":                   {"STATE", "STATE is damaged", cut(-1)},
		"state without its sum":       {"STATE", "STATE is damaged", cut(-len("checksum: 00000000\n"))},
		"flipped byte of state":       {"STATE", "STATE is damaged", flip(20)},
		"only the state":              {"[^S]*", "STATE exists, but marker.manifest.* is missing", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options, _ := filled(t)
			paths, err := filepath.Glob(filepath.Join(options.Dir, test.pattern))
			musttest.NoError(t, err)
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

// TestDamage_IsAcceptedWithAnOpenMark opens a store without the end of its log, at the
// operator's request.
func TestDamage_IsAcceptedWithTheStateOpen(t *testing.T) {
	t.Parallel()
	options := pebblestore.Options{Dir: filepath.Join(t.TempDir(), "data")}
	store := open(t, options)
	rows, err := fill(t, store, 10)
	musttest.NoError(t, err)
	closeStore(t, store)
	damage(t, matching(t, options.Dir, "*.log")[0], cut(-5_000)) // Half of the last row.
	expectOpenError(t, options, tablestore.ErrDamaged, ".log has changed")
	setOpen(t, options.Dir)
	for range 2 {
		store := open(t, options)
		expectThere(t, store, rows[:9]...)
		if err := getOne(t, store, rows[9]); !errors.Is(err, tablestore.ErrNotFound) {
			t.Errorf("the row at the end of the log: %v, want ErrNotFound", err)
		}
		closeStore(t, store)
	}
}

// setOpen makes a directory one in which a store crashed, as an operator may do.
func setOpen(t *testing.T, dir string) {
	t.Helper()
	damage(t, filepath.Join(dir, "STATE"), func([]byte) []byte { return []byte("open\n") })
}

// copyQuiet copies the directory of an open store at a moment in which the engine neither
// makes nor removes files.
func copyQuiet(t *testing.T, from, to string) {
	t.Helper()
	waittest.Until(t, "the files in "+from+" stay the same for the time of a copy", func() bool {
		before := matching(t, from, "*")
		err := os.CopyFS(to, os.DirFS(from))
		if err == nil && slices.Equal(before, matching(t, from, "*")) {
			return true
		}
		removeAll(t, to)
		return false
	})
}

// crashes returns the disks after losing power before each operation of the action; these
// percentages of the unsynced data survive.
func crashes(d *disk, action func(), percentages ...int) (crashed []*vfs.MemFS) {
	var mu sync.Mutex // The engine also works in the background.
	d.inject("", func() error {
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
