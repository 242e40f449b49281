package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2"
)

// engineOptions are those of a bare Pebble store.
func engineOptions() *pebble.Options {
	return &pebble.Options{FormatMajorVersion: pebble.FormatNewest, Logger: silent{}}
}

// silent discards the engine's messages. What goes wrong is returned as an error.
type silent struct{}

func (silent) Infof(string, ...any)  {}
func (silent) Errorf(string, ...any) {}
func (silent) Fatalf(format string, arguments ...any) {
	panic(fmt.Sprintf(format, arguments...))
}

// diskBytes compacts the data directory of a stopped server and returns its size. Without
// the compaction most of it would be the log and rows that were replaced since.
func diskBytes(ctx context.Context, dir string) (float64, error) {
	if _, err := os.Stat(dir); err != nil {
		return 0, fmt.Errorf("open the server's store: %w", err) // The engine would make one.
	}
	db, err := pebble.Open(dir, engineOptions())
	if err != nil {
		return 0, fmt.Errorf("open the server's store: %w", err)
	}
	err = db.Compact(ctx, []byte{0}, []byte{0xff, 0xff}, false)
	if err = errors.Join(err, db.Close()); err != nil {
		return 0, fmt.Errorf("compact the server's store: %w", err)
	}
	return folderBytes(dir)
}

// folderBytes returns the size of the files in the folder.
func folderBytes(dir string) (float64, error) {
	var bytes int64
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("measure %s: %w", dir, err)
	}
	return float64(bytes), nil
}
