package bench

import (
	"os"
	"syscall"
)

// datasync syncs the file's data, but not its timestamps.
func datasync(file *os.File) error { return syscall.Fdatasync(int(file.Fd())) }
