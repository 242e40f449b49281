package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// ticksPerSecond is the unit of the times in /proc/<pid>/stat: USER_HZ, which is 100 on
// every platform that Linux runs on today.
const ticksPerSecond = 100

// usedCPU returns the CPU time, user plus system, that this process and its descendants
// have used, those included that have ended and were waited for. It needs Linux.
func usedCPU() (time.Duration, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(paths) == 0 {
		return 0, errors.Join(errors.New("CPU times are read from /proc, which is not there"), err)
	}
	children := map[int][]processTime{}
	var self processTime
	for _, path := range paths {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // The process has ended since.
		}
		process, err := parseStat(stat)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		children[process.parent] = append(children[process.parent], process)
		if process.pid == os.Getpid() {
			self = process
		}
	}
	return sum(self, children), nil
}

// sum adds up the times of a process and its descendants.
func sum(process processTime, children map[int][]processTime) time.Duration {
	used := process.used
	for _, child := range children[process.pid] {
		used += sum(child, children)
	}
	return used
}

// processTime is the CPU time of one process and of the children that it waited for.
type processTime struct {
	pid, parent int
	used        time.Duration
}

// errStat is returned for a stat file that does not follow proc(5).
var errStat = errors.New("it has not the fields that proc(5) names")

// parseStat reads pid, ppid, utime, stime, cutime and cstime: the fields 1, 4 and 14 to
// 17. The second field is the program's name in parentheses, which may hold anything,
// so fields are counted from the last parenthesis.
func parseStat(stat []byte) (processTime, error) {
	const ppid, utime, cstime = 4 - 3, 14 - 3, 17 - 3 // field 3 is the first after the name
	id, _, _ := bytes.Cut(stat, []byte(" "))
	at := bytes.LastIndexByte(stat, ')')
	fields := bytes.Fields(stat[at+1:])
	if at < 0 || len(fields) <= cstime {
		return processTime{}, errStat
	}
	var process processTime
	var err error
	number := func(text []byte) int {
		n, invalid := strconv.Atoi(string(text))
		err = errors.Join(err, invalid)
		return n
	}
	process.pid, process.parent = number(id), number(fields[ppid])
	for _, ticks := range fields[utime : cstime+1] {
		process.used += time.Duration(number(ticks)) * time.Second / ticksPerSecond
	}
	if err != nil {
		return processTime{}, errors.Join(errStat, err)
	}
	return process, nil
}
