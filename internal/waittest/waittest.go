// Package waittest tells tests how long to wait. A test waits for an event and gives up only
// after a bound that no working program reaches, however slow or busy the machine is. Leases
// and timeouts that race the machine are scaled by its slowness.
package waittest

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"
)

const (
	// longest is the bound of a wait on such a machine.
	longest = 5 * time.Minute
	// most is the highest slowness. Tests that wait for a lease to end would last too long with
	// a higher one, and a bound would exceed the -timeout.
	most = 4
	// reserve is left of the -timeout, to report what a test waited for.
	reserve = 10 * time.Second
)

var slowness = sync.OnceValue(func() float64 {
	begun := time.Now()
	work()
	return slownessOf(time.Since(begun))
})

func slownessOf(took time.Duration) float64 { return min(max(1, float64(took)/float64(quiet)), most) }

// Scale returns a duration that suffices on a quiet machine, multiplied by how much slower this
// one is, at most four times. The slowness is measured at the first use in a test binary.
func Scale(d time.Duration) time.Duration {
	return time.Duration(float64(d) * slowness()).Round(time.Millisecond)
}

// Bound returns how long a wait of the test may last: minutes, but less than what is left of
// the -timeout of the test binary.
func Bound(t *testing.T) time.Duration {
	t.Helper()
	bound := Scale(longest)
	if deadline, limited := t.Deadline(); limited {
		bound = min(bound, max(0, time.Until(deadline)-reserve))
	}
	return bound
}

// Context returns the test's context, which also ends after the bound.
func Context(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Bound(t))
	t.Cleanup(cancel)
	return ctx
}

// Until polls until the condition holds. After the bound it ends the test with what it waited
// for. It must run in the test's goroutine.
func Until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	begun, bound := time.Now(), Bound(t)
	for pause := time.Millisecond; !holds(); pause = min(2*pause, 50*time.Millisecond) {
		if waited := time.Since(begun); waited > bound {
			inVain(t, waited, what)
		}
		time.Sleep(pause)
	}
}

// Receive receives from the channel. After the bound it ends the test with what it waited for.
// It must run in the test's goroutine.
func Receive[T any](t *testing.T, what string, from <-chan T) (value T) {
	t.Helper()
	bound := Bound(t)
	select {
	case value = <-from:
	case <-time.After(bound):
		inVain(t, bound, what)
	}
	return value
}

func inVain(t *testing.T, waited time.Duration, what string) {
	t.Helper()
	t.Fatalf("waited %s in vain, on a machine %.1f times as slow as a quiet one: %s", waited.Round(time.Second), slowness(), what)
}

// work does what servers do: it decodes on all cores, and syncs a file.
func work() {
	job := []byte(`{"job":{"id":"a","steps":[1,2,3]},"tenant":"b","state":"IN_PROGRESS","history":["c","d"]}`)
	var cores sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		cores.Go(func() {
			for range 5000 {
				var decoded map[string]any
				_ = json.Unmarshal(job, &decoded)
			}
		})
	}
	cores.Wait()
	dir, err := os.MkdirTemp("", "lucius-wait-")
	if err != nil {
		return // Tests that need a disk say what it lacks.
	}
	defer func() { _ = os.RemoveAll(dir) }() // Nothing depends on it.
	if file, err := os.Create(filepath.Join(dir, "synced")); err == nil {
		defer func() { _ = file.Close() }() // It was synced.
		for range 5 {
			_, _ = file.WriteString("written")
			_ = file.Sync()
		}
	}
}
