package bench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
)

// ticksPerSecond is the unit of the times in /proc/<pid>/stat: USER_HZ, which
// is 100 on every platform that Linux runs on today.
const ticksPerSecond = 100

// errProcStat is returned for a stat file that does not follow proc(5).
var errProcStat = errors.New("has no CPU times in the fields that proc(5) names")

// cpuTime returns the CPU time that the process has used, user plus system, in steps
// of 10 ms. It reads /proc, so it needs Linux.
func cpuTime(pid int) (time.Duration, error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	stat, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	used, err := parseStat(stat)
	if err != nil {
		return 0, fmt.Errorf("%s %w", path, err)
	}
	return used, nil
}

// parseStat reads the fields utime and stime, the 14th and 15th. The second
// field is the program's name in parentheses, which may hold anything, so
// fields are counted from the last parenthesis.
func parseStat(stat []byte) (time.Duration, error) {
	const utime, stime = 14 - 3, 15 - 3 // field 3 is the first after the name
	at := bytes.LastIndexByte(stat, ')')
	fields := bytes.Fields(stat[at+1:])
	if at < 0 || len(fields) <= stime {
		return 0, errProcStat
	}
	var ticks uint64
	for _, field := range [][]byte{fields[utime], fields[stime]} {
		n, err := strconv.ParseUint(string(field), 10, 48)
		if err != nil {
			return 0, errProcStat
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

// cpu is the CPU time that server and client have used.
type cpu struct{ server, client time.Duration }

// usedCPU returns what this process, and the server if its process is known, have
// used so far.
func usedCPU(serverPID int) (used cpu, err error) {
	if serverPID == 0 {
		return cpu{}, nil
	}
	if used.server, err = cpuTime(serverPID); err != nil {
		return cpu{}, err
	}
	used.client, err = cpuTime(os.Getpid())
	return used, err
}
