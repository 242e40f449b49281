package reload_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/pkg/reload"
	"github.com/lucius-project/lucius/pkg/upkeep"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// file holds the text on disk and the text in use. A text that begins with
// "bad" is refused.
type file struct {
	*reload.Watcher

	disk     atomic.Value // a string, written while the watcher looks
	used     string
	log      bytes.Buffer
	attempts []string
}

func watch(t *testing.T) *file {
	t.Helper()
	f := &file{used: "one"}
	f.disk.Store("one")
	var err error
	f.Watcher, err = reload.New(reload.Config{
		Name: "tokens", InUse: func() string { return f.used },
		Look: func() (string, reload.Load) {
			seen := f.disk.Load().(string)
			return seen, func() ([]any, error) {
				if strings.HasPrefix(seen, "bad") {
					return nil, errors.New("file:1: " + seen)
				}
				f.used = seen
				return []any{"callers", len(seen)}, nil
			}
		},
		Logger:  slog.New(slog.NewTextHandler(&f.log, nil)),
		Observe: func(o reload.Outcome) { f.attempts = append(f.attempts, o.String()) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestConfig_Validate(t *testing.T) {
	t.Parallel()
	look := func() (string, reload.Load) { return "", nil }
	inUse := func() string { return "" }
	for want, cfg := range map[string]reload.Config{
		"Name":  {Look: look, InUse: inUse},
		"Look":  {Name: "x", InUse: inUse},
		"InUse": {Name: "x", Look: look},
	} {
		if w, err := reload.New(cfg); err == nil || w != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New without a good %s = %v, %v", want, w, err)
		}
	}
}

// The text on disk is loaded once, when two consecutive looks have seen it.
func TestWatcher_RunOnce(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		disk []string // at each look
		want string
		used string
	}{
		"nothing happens":            {[]string{"one", "one"}, "unchanged unchanged", "one"},
		"a change":                   {[]string{"two", "two", "two"}, "settling reloaded unchanged", "two"},
		"a change under way":         {[]string{"t", "tw", "two", "two"}, "settling settling settling reloaded", "two"},
		"a change that is undone":    {[]string{"two", "one", "two"}, "settling unchanged settling", "one"},
		"a bad one":                  {[]string{"bad", "bad", "bad"}, "settling refused unchanged", "one"},
		"a bad one that is fixed":    {[]string{"bad", "bad", "two", "two"}, "settling refused settling reloaded", "two"},
		"a bad one that is restored": {[]string{"bad", "bad", "one", "one"}, "settling refused settling reloaded", "one"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := watch(t)
			var got []string
			for _, text := range test.disk {
				f.disk.Store(text)
				outcome, err := f.RunOnce(t.Context())
				if (err != nil) != (outcome == reload.Refused) {
					t.Errorf("RunOnce = %s, %v", outcome, err)
				}
				got = append(got, outcome.String())
			}
			if diff := cmp.Diff(test.want, strings.Join(got, " ")); diff != "" || f.used != test.used {
				t.Errorf("%q is in use, outcomes (-want +got):\n%s", f.used, diff)
			}
			if bad := strings.HasPrefix(f.disk.Load().(string), "bad"); (f.Err() != nil) != bad {
				t.Errorf("Err = %v", f.Err())
			}
		})
	}
}

func TestWatcher_AskLoadsAtOnce(t *testing.T) {
	t.Parallel()
	f := watch(t)
	for _, step := range []struct {
		disk string
		want reload.Outcome
		used string
	}{{"one", reload.Reloaded, "one"}, {"two", reload.Reloaded, "two"}, {"bad", reload.Refused, "two"}} {
		f.disk.Store(step.disk)
		f.Ask()
		if outcome, err := f.RunOnce(t.Context()); outcome != step.want || f.used != step.used || (err != nil) != (step.want == reload.Refused) {
			t.Errorf("%s: %s, %v, and %s is in use", step.disk, outcome, err, f.used)
		}
	}
}

// A failure is logged once, however often it is seen, and again after Ask.
func TestWatcher_Ask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := watch(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		loop := upkeep.Loop{Interval: 2 * time.Second, Wake: f.Asked(), Pass: func(ctx context.Context) error {
			_, _ = f.RunOnce(ctx)
			return nil
		}}
		go func() { ended <- loop.Run(ctx) }()
		pass := func() {
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		for _, text := range []string{"two", "bad", "bad"} {
			f.disk.Store(text)
			pass()
		}
		f.Ask()
		pass()
		f.disk.Store("three")
		f.Ask()
		pass()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v, want nil at the end of its context", err)
		}
		want := []string{"reloaded", "refused", "refused", "reloaded"}
		if diff := cmp.Diff(want, f.attempts); diff != "" || f.used != "three" || f.Name() != "tokens" {
			t.Errorf("%s is in use, attempts (-want +got):\n%s", f.used, diff)
		}
		for text, times := range map[string]int{
			"files reloaded": 2, "files refused": 2, "files=tokens": 4, "file:1: bad": 2, "callers=3": 1, "callers=5": 1,
		} {
			if got := strings.Count(f.log.String(), text); got != times {
				t.Errorf("%q stands %d times in the log, want %d:\n%s", text, got, times, f.log.String())
			}
		}
	})
}
