package bench

import (
	"crypto/rand"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2"
)

// What is measured is the last version of each row, and not the log.
func TestDiskBytesAreThoseOfACompactedStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	db, err := pebble.Open(dir, engineOptions())
	if err != nil {
		t.Fatal(err)
	}
	value := make([]byte, 100<<10)
	for range 20 {
		_, _ = rand.Read(value) // It never fails.
		if err := db.Set([]byte("row"), value, pebble.NoSync); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	size, err := diskBytes(t.Context(), dir)
	if err != nil || size < 100<<10 || size > 200<<10 {
		t.Errorf("a row of 100 KiB takes %g bytes, %v", size, err)
	}
}

func TestDiskBytesNeedAStore(t *testing.T) {
	t.Parallel()
	if size, err := diskBytes(t.Context(), filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Errorf("a missing folder is a store of %g bytes", size)
	}
}
