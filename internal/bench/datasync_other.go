//go:build !linux

package bench

import "os"

// datasync puts what was written on disk.
func datasync(file *os.File) error { return file.Sync() }
