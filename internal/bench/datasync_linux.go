package bench

import (
	"os"
	"syscall"
)

// datasync syncs the file's data, without its times.
func datasync(file *os.File) error { return syscall.Fdatasync(int(file.Fd())) }
