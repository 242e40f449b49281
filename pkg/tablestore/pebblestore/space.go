package pebblestore

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// space keeps the reserve of free disk space: writes are refused while less is
// free, so that a write to the log never fails on a full disk. Measuring costs
// a system call, so it is done once a second and after enough bytes were
// written.
type space struct {
	usage   func() (vfs.DiskUsage, error)
	reserve uint64

	written atomic.Uint64 // Bytes written since the last measurement.
	free    atomic.Uint64 // The result of the last measurement, in bytes.
	full    atomic.Bool   // A flush failed on a full disk and none has succeeded since.
}

func newSpace(fs vfs.FS, dir string, reserve uint64) *space {
	return &space{
		usage:   func() (vfs.DiskUsage, error) { return fs.GetDiskUsage(dir) },
		reserve: reserve,
	}
}

// admit returns why a write must be refused, or nil.
func (s *space) admit() error {
	// One writer measures; the others use the last result.
	if written := s.written.Load(); written > s.reserve/8 && s.written.CompareAndSwap(written, 0) {
		_ = s.look()
	}
	return s.verdict()
}

// wrote counts written bytes.
func (s *space) wrote(bytes int) { s.written.Add(uint64(bytes)) }

// look measures the free space. A file system that does not support it has no
// reserve; after an error the last result stays in use.
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

// verdict returns an error while too little space is free.
func (s *space) verdict() error {
	if free := s.free.Load(); free < s.reserve {
		return fmt.Errorf("%d MiB of disk space are free, and the reserve is %d MiB", free>>20, s.reserve>>20)
	}
	if s.full.Load() {
		return errors.New("the disk is full")
	}
	return nil
}
