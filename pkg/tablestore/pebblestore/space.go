package pebblestore

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// checkInterval is how old the last look at the free space may get while
// there are writes.
const checkInterval = time.Second

// space keeps the reserve of free disk space: writes are refused while there
// is less, so that the log never meets a full disk. Looking costs a system
// call, so it is done once in a while and after enough has been written.
type space struct {
	usage   func() (vfs.DiskUsage, error)
	reserve uint64
	start   time.Time

	checked atomic.Int64  // When the last look was, since start.
	written atomic.Uint64 // Bytes since the last look.
	free    atomic.Uint64 // What was seen then.
	full    atomic.Bool   // A flush met a full disk and none has succeeded since.
}

func newSpace(fs vfs.FS, dir string, reserve uint64) *space {
	return &space{
		usage:   func() (vfs.DiskUsage, error) { return fs.GetDiskUsage(dir) },
		reserve: reserve,
		start:   time.Now(),
	}
}

// admit returns why no write can be taken, or nil.
func (s *space) admit() error {
	since := time.Since(s.start)
	last := time.Duration(s.checked.Load())
	if since-last > checkInterval || s.written.Load() > s.reserve/8 {
		// One writer looks; the others go by what was seen before.
		if s.checked.CompareAndSwap(int64(last), int64(since)) {
			_ = s.look()
		}
	}
	return s.verdict()
}

// wrote accounts for bytes that were written.
func (s *space) wrote(bytes int) { s.written.Add(uint64(bytes)) }

// look notes the free space. A file system that cannot tell has no reserve;
// after an error the last look stands.
func (s *space) look() error {
	s.written.Store(0)
	usage, err := s.usage()
	if errors.Is(err, vfs.ErrUnsupported) {
		s.free.Store(s.reserve)
		return nil
	}
	if err == nil {
		s.free.Store(usage.AvailBytes)
	}
	return err
}

// verdict returns an error while there is too little space.
func (s *space) verdict() error {
	if free := s.free.Load(); free < s.reserve {
		return fmt.Errorf("%d MiB of disk space are free, and the reserve is %d MiB", free>>20, s.reserve>>20)
	}
	if s.full.Load() {
		return errors.New("the disk is full")
	}
	return nil
}
