package pebblestore_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

// filled returns the options of a closed store on disk with tables and logs, and
// the number of rows in it.
func filled(t *testing.T) (pebblestore.Options, int) {
	t.Helper()
	options := pebblestore.Options{Dir: filepath.Join(t.TempDir(), "data")}.WithMemTable(512 << 10)
	store := open(t, options)
	rows, err := fill(t, store, 150)
	musttest.NoError(t, err)
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
		musttest.NoError(t, os.RemoveAll(path))
	}
}

// expectUntouched fails unless opening the directory returns tablestore.ErrDamaged and
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
		expectOpenError(t, options, tablestore.ErrDamaged, file)
		expectOpenError(t, options, tablestore.ErrDamaged, "restore the directory from a backup, or move it away")
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
		"marker.":                {"marker.*", "*.sst", "*.log", "MANIFEST-*"},
		"000":                    {"marker.*", "STATE"},
		"OPTIONS-":               {"marker.*", "*.sst", "*.log", "MANIFEST-*", "STATE"},
		"MANIFEST-":              {"marker.*", "*.sst", "*.log", "OPTIONS-*", "STATE"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			options, _ := filled(t)
			for _, pattern := range patterns {
				removeAll(t, matching(t, options.Dir, pattern)...)
			}
			expectUntouched(t, options, what)
			setOpen(t, options.Dir)
			expectUntouched(t, options, "marker.")
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
		musttest.WriteFile(t, filepath.Join(options.Dir, name), "content")
		expectUntouched(t, options, name)
	}
}

// TestDamage_ACreationMarkDoesNotEraseAStore adds the mark of an interrupted
// creation to the files of a store.
func TestDamage_ACreationMarkDoesNotEraseAStore(t *testing.T) {
	t.Parallel()
	options, rows := filled(t)
	creating := func([]byte) []byte { return []byte("creating\n") }
	damage(t, filepath.Join(options.Dir, "STATE"), creating)
	store := open(t, options)
	for n := range rows {
		expectThere(t, store, n)
	}
	closeStore(t, store)
	removeAll(t, matching(t, options.Dir, "marker.*")...)
	damage(t, filepath.Join(options.Dir, "STATE"), creating)
	expectUntouched(t, options, "marker.manifest.* is missing")
}

func TestDamage_ForeignFilesDoNotCount(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"server.log", "notes.sst", "lost+found", "LOCK", "MANIFEST-old", "12.txt"} {
		musttest.WriteFile(t, filepath.Join(dir, name), "content")
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
		"head of the options":   {"OPTIONS-*", "OPTIONS-", cut(len("[Version]\n  pebble"))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options, _ := filled(t)
			for _, path := range matching(t, options.Dir, test.pattern) {
				damage(t, path, test.damage)
			}
			expectDamage(t, options, strings.Trim(test.pattern, "*"))
			setOpen(t, options.Dir)
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
	musttest.NoError(t, errors.Join(err, os.WriteFile(path, change(bytes.Clone(content)), 0o600)))
}

// cut keeps that many bytes of a file, or all but as many if negative.
func cut(size int) func(content []byte) []byte {
	return func(content []byte) []byte {
		if size < 0 {
			return content[:len(content)+size]
		}
		return content[:size]
	}
}

// TestDamage_FoundLaterIsOneSentence damages the tables of an open store, which
// detects it on reading, and ends the process.
func TestDamage_FoundLaterIsOneSentence(t *testing.T) {
	t.Parallel()
	if !inChild(t, "data directory cannot be read: ", ".sst is damaged", "restore the directory from a backup") {
		return
	}
	synctest.Test(t, func(t *testing.T) {
		options, rows := filled(t)
		options.Fatal = ends(t, func(cause error) {
			if !errors.Is(cause, tablestore.ErrDamaged) {
				t.Errorf("the process ends for %v, want ErrDamaged", cause)
			}
		})
		store := open(t, options)
		time.Sleep(time.Minute) // Compactions have ended.
		for _, path := range matching(t, options.Dir, "*.sst") {
			content := musttest.ReadFile(t, path)
			for at := len(content) / 4; at < len(content)*3/4; at += 100 {
				content[at] ^= 1
			}
			musttest.WriteFile(t, path, content)
		}
		for n := range rows {
			_ = getOne(t, store, n)
		}
		t.Error("no damage is found")
	})
}

// flip flips a bit of that byte.
func flip(at int) func(content []byte) []byte {
	return func(content []byte) []byte {
		content[at] ^= 1
		return content
	}
}

// TestDamage_AStoreThatLostItsFirstLogIsNotNew removes the log of a store that
// has written nothing else, after a crash.
func TestDamage_AStoreThatLostItsFirstLogIsNotNew(t *testing.T) {
	t.Parallel()
	options := pebblestore.Options{Dir: t.TempDir()}
	closeStore(t, open(t, options))
	removeAll(t, matching(t, options.Dir, "*.log")...)
	setOpen(t, options.Dir)
	expectOpenError(t, options, tablestore.ErrDamaged, "a log or table is missing")
	expectOpenError(t, options, tablestore.ErrDamaged, "a log or table is missing")
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
