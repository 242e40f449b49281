package server

import (
	"fmt"
	"time"
)

// maxLooks bounds the looks at lines that no caller waits for.
const maxLooks = 256

// looks does the work that follows commits and for which no caller waits: looks at lines. While as much is
// under way as fits, and once it is closed, the caller does the work itself.
type looks struct {
	slots chan struct{} // holds a value for each work under way
}

func newLooks() *looks { return &looks{slots: make(chan struct{}, maxLooks)} }

// do runs the work. It is [ledger.Config]'s Later.
func (l *looks) do(work func()) {
	select {
	case l.slots <- struct{}{}:
		go func() {
			defer func() { <-l.slots }()
			work()
		}()
	default:
		work()
	}
}

// close waits until no work is under way. From then on, callers do the work themselves. Call it once.
func (l *looks) close(timeout time.Duration) error {
	late := time.NewTimer(timeout)
	defer late.Stop()
	for range cap(l.slots) {
		select {
		case l.slots <- struct{}{}:
		case <-late.C:
			return fmt.Errorf("looks at lines did not end in %s", timeout)
		}
	}
	return nil
}
