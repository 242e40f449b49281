package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"
)

// Kept is what the load [Retention] shows of the second half of the window.
type Kept struct {
	// Purged is the number of jobs that were purged, of those that ended in the same time.
	Purged float64 `json:"purged_of_ended"`
	// Growth is the largest size of the data directory in the last quarter of the window, of
	// that in the quarter before; 0 if the store is not in the data directory.
	Growth float64 `json:"growth"`
	// Bytes is the largest size in the last quarter.
	Bytes int64 `json:"disk_bytes"`
}

// watchStore compares purging with completing, and watches the size of the store.
func (r *run) watchStore(ctx context.Context) (*Kept, error) {
	quarter := r.window.end.Sub(r.window.start) / 4
	half, last := r.window.start.Add(2*quarter), r.window.end.Add(-quarter)
	if !sleepUntil(ctx, half) {
		return &Kept{}, nil
	}
	purgedBefore, err := r.purged(ctx)
	endedBefore := r.all.Load()
	if err != nil {
		return &Kept{}, err
	}
	var sizes [2]int64 // in the third quarter and in the last
	for at := half; at.Before(r.window.end) && sleepUntil(ctx, at); at = at.Add(min(time.Second, quarter/4)) {
		bytes, err := folderBytes(r.dataDir)
		if err != nil {
			return &Kept{}, err
		}
		n := 0
		if !at.Before(last) {
			n = 1
		}
		sizes[n] = max(sizes[n], bytes)
	}
	purged, err := r.purged(ctx)
	return &Kept{
		Purged: ratio(purged-purgedBefore, float64(r.all.Load()-endedBefore)),
		Growth: ratio(float64(sizes[1]), float64(sizes[0])), Bytes: sizes[1],
	}, err
}

// purged returns how many jobs the server has purged.
func (r *run) purged(ctx context.Context) (jobs float64, err error) {
	families, err := readMetrics(ctx, r.client)
	for _, metric := range families["lucius_retention_entries_total"].GetMetric() {
		for _, label := range metric.GetLabel() {
			if label.GetName() == "outcome" && label.GetValue() == "purged" {
				jobs += metric.GetCounter().GetValue()
			}
		}
	}
	return jobs, err
}

// folderBytes returns the size of all files of a folder. Files may come and go while it counts.
func folderBytes(dir string) (bytes int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			var info fs.FileInfo
			if info, err = entry.Info(); err == nil {
				bytes += info.Size()
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("measure the data directory: %w", err)
	}
	return bytes, nil
}
