//go:build !unix

package main

// openFiles is how many files this process may have open, if that is limited.
func openFiles() (files uint64, limited bool) { return 0, false }
