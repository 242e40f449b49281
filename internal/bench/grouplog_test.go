package bench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"
)

func openLog(t *testing.T) *groupLog {
	t.Helper()
	log, err := openGroupLog(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return log
}

func TestAppendsAreOnDiskWhenTheyReturn(t *testing.T) {
	t.Parallel()
	log := openLog(t)
	var group errgroup.Group
	var want [][]byte
	for i := range 100 {
		record := fmt.Appendf(nil, "record %02d\n", i)
		want = append(want, record)
		group.Go(func() error {
			if err := log.append(record); err != nil {
				return err
			}
			written, err := os.ReadFile(log.file.Name())
			if err == nil && !bytes.Contains(written, record) {
				err = fmt.Errorf("%q is not in the file", record)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	written, err := os.ReadFile(log.file.Name())
	if err != nil {
		t.Fatal(err)
	}
	got := slices.SortedFunc(bytes.Lines(written), bytes.Compare)
	if !slices.EqualFunc(want, got, bytes.Equal) {
		t.Errorf("the file holds %d records, want each of the %d once", len(got), len(want))
	}
	if err := log.close(); err != nil {
		t.Error(err)
	}
}

func TestAClosedLogRefusesAppends(t *testing.T) {
	t.Parallel()
	log := openLog(t)
	if err := log.close(); err != nil {
		t.Fatal(err)
	}
	if err := log.append([]byte("late")); !errors.Is(err, errLogClosed) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(log.file.Name()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
}

func TestAFailedWriteFailsTheAppend(t *testing.T) {
	t.Parallel()
	log := openLog(t)
	if err := log.file.Close(); err != nil {
		t.Fatal(err)
	}
	if err := log.append([]byte("lost")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("error %v", err)
	}
	if err := log.close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("close: error %v", err)
	}
}
