package bench

import (
	"errors"
	"fmt"
	"os"
	"sync"
)

// groupLog is a log file with group commit: one sync covers all appends that arrived
// during the previous sync, as in every database with a log. It is safe for
// concurrent use.
type groupLog struct {
	file *os.File
	wake chan struct{}
	done chan struct{}

	mu      sync.Mutex
	pending *group
	closed  bool
}

// group is a set of appends that share a sync.
type group struct {
	bytes  []byte
	synced chan struct{}
	err    error // must not be read before synced is closed
}

// errLogClosed is returned for an append to a closed log.
var errLogClosed = errors.New("the log is closed")

// openGroupLog creates a log in a new file in the folder.
func openGroupLog(dir string) (*groupLog, error) {
	file, err := os.CreateTemp(dir, "bench-ceiling-*.log")
	if err != nil {
		return nil, fmt.Errorf("create the ceiling's log: %w", err)
	}
	l := &groupLog{file: file, wake: make(chan struct{}, 1), done: make(chan struct{}), pending: newGroup()}
	go l.run()
	return l, nil
}

func newGroup() *group { return &group{synced: make(chan struct{})} }

// append returns when the record is on disk.
func (l *groupLog) append(record []byte) error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return errLogClosed
	}
	mine := l.pending
	mine.bytes = append(mine.bytes, record...)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default: // A wake-up is already pending.
	}
	<-mine.synced
	return mine.err
}

// run flushes one group after the other.
func (l *groupLog) run() {
	defer close(l.done)
	for range l.wake {
		l.flush()
	}
	l.flush()
}

// flush writes and syncs the pending group.
func (l *groupLog) flush() {
	l.mu.Lock()
	current := l.pending
	if len(current.bytes) == 0 {
		l.mu.Unlock()
		return
	}
	l.pending = newGroup()
	l.mu.Unlock()
	if _, err := l.file.Write(current.bytes); err != nil {
		current.err = fmt.Errorf("write the ceiling's log: %w", err)
	} else if err := datasync(l.file); err != nil {
		current.err = fmt.Errorf("sync the ceiling's log: %w", err)
	}
	close(current.synced)
}

// close closes the log and removes the file. No append may be in progress.
func (l *groupLog) close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	close(l.wake)
	<-l.done
	if err := errors.Join(l.file.Close(), os.Remove(l.file.Name())); err != nil {
		return fmt.Errorf("remove the ceiling's log: %w", err)
	}
	return nil
}
