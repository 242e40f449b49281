package queuetest

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// recorder is a test that records its failures instead of failing.
type recorder struct {
	testing.TB

	mu       sync.Mutex
	failed   bool
	messages []string
}

func (r *recorder) Helper() {}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) Logf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.messages = append(r.messages, fmt.Sprintf(format, args...))
}

func (r *recorder) Errorf(format string, args ...any) {
	r.Logf(format, args...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

func (r *recorder) Error(args ...any) { r.Errorf("%s", fmt.Sprint(args...)) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

// fails runs the check on the queue and returns its failures.
func fails(t *testing.T, c check, harness Harness) (messages []string, failed bool) {
	t.Helper()
	r := &recorder{TB: t}
	var group sync.WaitGroup
	group.Go(func() { c.runOn(r, harness) })
	group.Wait()
	return r.messages, r.failed
}

func TestAFailureNamesItsRule(t *testing.T) {
	t.Parallel()
	queue := newMemQueue(flaws{asks: anyOwner})
	for _, c := range checks() {
		if c.name != "requests/of an owner's move come from the owner" {
			continue
		}
		messages, failed := fails(t, c, queue.harness())
		if text := strings.Join(messages, "\n"); !failed || !strings.Contains(text, "rule: Owner-only execution transitions") {
			t.Errorf("failed: %t, messages:\n%s", failed, text)
		}
		return
	}
	t.Error("no such check")
}

func TestEachCheckHasANameAndARule(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, c := range checks() {
		if seen[c.name] || !strings.Contains(c.name, "/") || !strings.HasSuffix(c.rule, ".") {
			t.Errorf("check %q: rule %q", c.name, c.rule)
		}
		seen[c.name] = true
	}
}

func TestAnOperationThatNamesNoItemIsABugOfTheSuite(t *testing.T) {
	t.Parallel()
	c := check{name: "x/y", rule: "None.", run: func(t testing.TB, e *env) {
		t.Helper()
		_, _ = e.ask(t, statemachine.OpClaimNext, statemachine.Item{}, statemachine.ItemRequest{})
	}}
	if _, failed := fails(t, c, newMemQueue(flaws{}).harness()); !failed {
		t.Error("a claim of one item by its id passed")
	}
}
