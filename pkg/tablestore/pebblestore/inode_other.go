//go:build !unix

package pebblestore

import "io/fs"

// inode returns 0: the system numbers no files.
func inode(fs.FileInfo) uint64 { return 0 }
