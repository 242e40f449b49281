//go:build unix

package main

import "syscall"

// openFiles returns how many files this process may open, and whether that is limited.
func openFiles() (files uint64, limited bool) {
	var limit syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
	return uint64(limit.Cur), err == nil //nolint:unconvert // It is signed on some systems.
}
