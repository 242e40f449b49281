package storetest

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// Failing runs the suite and returns the failing checks by name, with their
// messages.
func Failing(t *testing.T, features Features, open func(t testing.TB) Harness) map[string]string {
	t.Helper()
	failing := map[string]string{}
	for _, check := range checks(features) {
		r := &recorder{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			check.runOn(r, features, open(t))
		}()
		<-done
		if len(r.lines) > 0 {
			failing[check.name] = strings.Join(r.lines, "\n")
		}
	}
	return failing
}

// recorder is a testing.TB that records failures.
type recorder struct {
	testing.TB
	mu    sync.Mutex
	lines []string
}

func (r *recorder) take(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
}

func (r *recorder) Helper() {}

func (r *recorder) Error(args ...any) { r.take(fmt.Sprint(args...)) }

func (r *recorder) Errorf(format string, args ...any) { r.take(fmt.Sprintf(format, args...)) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.take(fmt.Sprintf(format, args...))
	runtime.Goexit()
}
