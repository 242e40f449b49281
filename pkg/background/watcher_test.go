package background_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/background"
)

// file holds the text on disk and the text in use. It refuses a text that begins with
// "bad".
type file struct {
	*background.Watcher

	disk     atomic.Value // a string; tests write it while the watcher runs
	used     string
	log      bytes.Buffer
	attempts []string
}

func (f *file) InUse() string { return f.used }

func (f *file) Look() (string, func() ([]any, error)) {
	seen := f.disk.Load().(string)
	return seen, func() ([]any, error) {
		if strings.HasPrefix(seen, "bad") {
			return nil, errors.New("file:1: " + seen)
		}
		f.used = seen
		return []any{"callers", len(seen)}, nil
	}
}

func watch() *file {
	f := &file{used: "one"}
	f.disk.Store("one")
	f.Watcher = background.NewWatcher("tokens", f, slog.New(slog.NewTextHandler(&f.log, nil)),
		func(o background.ReloadOutcome) { f.attempts = append(f.attempts, o.String()) })
	return f
}

// The text on disk is loaded once two consecutive looks have found it.
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
			f := watch()
			var got []string
			for _, text := range test.disk {
				f.disk.Store(text)
				outcome, err := f.RunOnce(t.Context())
				if (err != nil) != (outcome == background.Refused) {
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
	f := watch()
	for _, step := range []struct {
		disk string
		want background.ReloadOutcome
		used string
	}{{"one", background.Reloaded, "one"}, {"two", background.Reloaded, "two"}, {"bad", background.Refused, "two"}} {
		f.disk.Store(step.disk)
		f.Ask()
		if outcome, err := f.RunOnce(t.Context()); outcome != step.want || f.used != step.used || (err != nil) != (step.want == background.Refused) {
			t.Errorf("%s: %s, %v, and %s is in use", step.disk, outcome, err, f.used)
		}
	}
}

// A failure is logged once, and again after Ask.
func TestWatcher_Ask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := watch()
		loop := f.Loop()
		loop.Interval = 2 * time.Second
		stop := running(t, loop)
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
		stop()
		want := []string{"reloaded", "refused", "refused", "reloaded"}
		if diff := cmp.Diff(want, f.attempts); diff != "" || f.used != "three" || f.Name() != "tokens" {
			t.Errorf("%s is in use, attempts (-want +got):\n%s", f.used, diff)
		}
		for text, times := range map[string]int{
			"files reloaded": 2, "files refused": 2, "files=tokens": 4, "file:1: bad": 2, "callers=3": 1, "callers=5": 1,
		} {
			if got := strings.Count(f.log.String(), text); got != times {
				t.Errorf("%q is %d times in the log, want %d:\n%s", text, got, times, f.log.String())
			}
		}
	})
}
