//go:build unix

package pebblestore

import (
	"io/fs"
	"syscall"
)

// inode returns the number of the file, 0 if the file system has none.
func inode(info fs.FileInfo) uint64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(stat.Ino) //nolint:unconvert // It is smaller on some systems.
	}
	return 0
}
