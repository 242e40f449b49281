//go:build !linux

package bench

import "os"

// datasync syncs the file.
func datasync(file *os.File) error { return file.Sync() }
