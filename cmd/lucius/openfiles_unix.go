//go:build unix

package main

import "syscall"

// openFiles is how many files this process may have open, if that is limited.
func openFiles() (files uint64, limited bool) {
	var limit syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
	return uint64(limit.Cur), err == nil //nolint:unconvert // It is signed on some systems.
}
