package commands_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/commands"
)

// watched is a watcher of a folder on disk, with all that it reports.
type watchedFolder struct {
	*background.Watcher

	dir      string
	holder   *commands.ProtocolHolder
	log      bytes.Buffer
	attempts []string
}

// watch makes a watcher of a new folder that holds one protocol, p.yaml, of
// version 1.
func watchProtocols(t *testing.T) *watchedFolder {
	t.Helper()
	w := &watchedFolder{dir: t.TempDir()}
	w.write(t, "p.yaml", smallProtocol("version: 1", ""))
	registry := musttest.Make(t, commands.LoadProtocols, w.dir)
	w.holder = commands.NewProtocolHolder(registry)
	w.Watcher = background.NewWatcher("protocol files", commands.ProtocolFolder{Dir: w.dir, Holder: w.holder},
		slog.New(slog.NewTextHandler(&w.log, nil)),
		func(o background.ReloadOutcome) { w.attempts = append(w.attempts, o.String()) })
	return w
}

// write replaces a file atomically, as editors do.
func (w *watchedFolder) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(w.dir, name)
	musttest.NoError(t, errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)))
}

// looks runs n passes of the watcher and lists the outcomes.
func (w *watchedFolder) looks(t *testing.T, n int) []string {
	t.Helper()
	var outcomes []string
	for range n {
		outcome, err := w.RunOnce(t.Context())
		if (err != nil) != (outcome == background.Refused) {
			t.Errorf("RunOnce = %s, %v", outcome, err)
		}
		outcomes = append(outcomes, outcome.String())
	}
	return outcomes
}

// version returns the current protocol version of the request type r.
func (w *watchedFolder) version() string {
	p, ok := w.holder.Load().Lookup("r")
	if !ok {
		return "none"
	}
	return p.Version
}

// A change is loaded when two consecutive passes read the same files.
func TestWatcher_RunOnce(t *testing.T) {
	t.Parallel()
	v2, bad := smallProtocol("version: 2", ""), smallProtocol("version: 3", "    lease: 15")
	for _, test := range []struct {
		name string
		do   func(t *testing.T, w *watchedFolder)
		want []string // of three passes
		now  string   // the version in use afterwards
	}{
		{"nothing happens", func(*testing.T, *watchedFolder) {}, []string{"unchanged", "unchanged", "unchanged"}, "1"},
		{
			"a file is changed", func(t *testing.T, w *watchedFolder) { w.write(t, "p.yaml", v2) },
			[]string{"settling", "reloaded", "unchanged"}, "2",
		},
		{"a file is touched", func(t *testing.T, w *watchedFolder) {
			musttest.NoError(t, os.Chtimes(filepath.Join(w.dir, "p.yaml"), time.Now(), time.Now().Add(time.Hour)))
		}, []string{"unchanged", "unchanged", "unchanged"}, "1"},
		{
			"a file is added that is no protocol", func(t *testing.T, w *watchedFolder) { w.write(t, "p.yaml~", bad) },
			[]string{"unchanged", "unchanged", "unchanged"}, "1",
		},
		{
			"a file is bad", func(t *testing.T, w *watchedFolder) { w.write(t, "p.yaml", bad) },
			[]string{"settling", "refused", "unchanged"}, "1",
		},
		{"one file is good and one is bad", func(t *testing.T, w *watchedFolder) {
			w.write(t, "p.yaml", v2)
			w.write(t, "q.yaml", bad)
		}, []string{"settling", "refused", "unchanged"}, "1"},
		{"the file is removed", func(t *testing.T, w *watchedFolder) {
			musttest.NoError(t, os.Remove(filepath.Join(w.dir, "p.yaml")))
		}, []string{"settling", "refused", "unchanged"}, "1"},
		{"the file is renamed", func(t *testing.T, w *watchedFolder) {
			musttest.NoError(t, os.Rename(filepath.Join(w.dir, "p.yaml"), filepath.Join(w.dir, "q.yaml")))
		}, []string{"settling", "reloaded", "unchanged"}, "1"},
		{"the folder is removed", func(t *testing.T, w *watchedFolder) {
			musttest.NoError(t, os.RemoveAll(w.dir))
		}, []string{"settling", "refused", "unchanged"}, "1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := watchProtocols(t)
			test.do(t, w)
			if diff := cmp.Diff(test.want, w.looks(t, 3)); diff != "" {
				t.Errorf("outcomes (-want +got):\n%s", diff)
			}
			if got := w.version(); got != test.now {
				t.Errorf("version %s is in use, want %s", got, test.now)
			}
			if refused := slices.Contains(test.want, "refused"); (w.Err() != nil) != refused {
				t.Errorf("Err = %v", w.Err())
			}
		})
	}
}

// A file that is being written differs from pass to pass, even if it happens to be a valid
// protocol.
func TestWatcher_AFileThatIsBeingWrittenIsNotLoaded(t *testing.T) {
	t.Parallel()
	w := watchProtocols(t)
	whole := smallProtocol("version: 2", "    lease: 1m\n    timeout: 1h")
	for _, part := range []string{"", "protocol", strings.TrimSuffix(whole, "    timeout: 1h\n"), whole} {
		w.write(t, "p.yaml", part)
		if got := w.looks(t, 1)[0]; got != "settling" || w.version() != "1" {
			t.Errorf("%q is %s, and version %s in use", part, got, w.version())
		}
	}
	if got := w.looks(t, 1)[0]; got != "reloaded" || w.version() != "2" {
		t.Errorf("the whole file is %s, and version %s in use", got, w.version())
	}
}

func TestWatcher_AChangeThatIsTakenBackIsNoChange(t *testing.T) {
	t.Parallel()
	w := watchProtocols(t)
	w.write(t, "p.yaml", smallProtocol("version: 2", ""))
	got := w.looks(t, 1)
	w.write(t, "p.yaml", smallProtocol("version: 1", ""))
	got = append(got, w.looks(t, 1)...)
	w.write(t, "p.yaml", smallProtocol("version: 2", ""))
	got = append(got, w.looks(t, 1)...)
	if diff := cmp.Diff([]string{"settling", "unchanged", "settling"}, got); diff != "" || len(w.attempts) > 0 {
		t.Errorf("attempts %v, outcomes (-want +got):\n%s", w.attempts, diff)
	}
}

// Restoring the file in use after a bad one clears the failure.
func TestWatcher_ARefusedFileThatIsRestored(t *testing.T) {
	t.Parallel()
	w := watchProtocols(t)
	w.write(t, "p.yaml", "x: 1\n")
	got := w.looks(t, 2)
	if err := w.Err(); err == nil || !strings.HasSuffix(err.Error(), `p.yaml:1: unknown field "x"`) {
		t.Errorf("Err = %v, want the file, its line and what is wrong there", err)
	}
	w.write(t, "p.yaml", smallProtocol("version: 1", ""))
	got = append(got, w.looks(t, 3)...)
	want := []string{"settling", "refused", "settling", "reloaded", "unchanged"}
	if diff := cmp.Diff(want, got); diff != "" || w.Err() != nil {
		t.Errorf("Err = %v, outcomes (-want +got):\n%s", w.Err(), diff)
	}
	if diff := cmp.Diff([]string{"refused", "reloaded"}, w.attempts); diff != "" {
		t.Errorf("attempts (-want +got):\n%s", diff)
	}
}

func TestWatcher_AskLoadsAtOnce(t *testing.T) {
	t.Parallel()
	w := watchProtocols(t)
	before := w.holder.Load()
	w.Ask()
	if outcome, err := w.RunOnce(t.Context()); outcome != background.Reloaded || err != nil || w.holder.Load() == before {
		t.Errorf("unchanged files: %s, %v, want them loaded again", outcome, err)
	}
	w.write(t, "p.yaml", smallProtocol("version: 2", ""))
	w.Ask()
	if outcome, err := w.RunOnce(t.Context()); outcome != background.Reloaded || err != nil || w.version() != "2" {
		t.Errorf("a change: %s, %v, version %s", outcome, err, w.version())
	}
	musttest.NoError(t, os.RemoveAll(w.dir))
	w.Ask()
	if outcome, err := w.RunOnce(t.Context()); outcome != background.Refused || !errors.Is(err, fs.ErrNotExist) || w.version() != "2" {
		t.Errorf("no folder: %s, %v, version %s", outcome, err, w.version())
	}
	if got := w.looks(t, 1)[0]; got != "unchanged" {
		t.Errorf("the same folder again is %s, want unchanged", got)
	}
}

// A mounted config map is a link to a link to a folder, and an update swaps the middle
// link.
func TestWatcher_TheLinkOfAConfigMapIsSwapped(t *testing.T) {
	t.Parallel()
	w := watchProtocols(t)
	for version, name := range map[string]string{"version: 1": "..1", "version: 2": "..2"} {
		musttest.NoError(t, os.Mkdir(filepath.Join(w.dir, name), 0o755))
		w.write(t, filepath.Join(name, "p.yaml"), smallProtocol(version, ""))
	}
	link := func(to, name string) {
		t.Helper()
		path := filepath.Join(w.dir, name)
		musttest.NoError(t, errors.Join(os.Symlink(to, path+".new"), os.Rename(path+".new", path)))
	}
	link("..1", "..data")
	link(filepath.Join("..data", "p.yaml"), "p.yaml")
	if got := w.looks(t, 1)[0]; got != "unchanged" {
		t.Errorf("the same text reached by a link is %s, want unchanged", got)
	}
	link("..2", "..data")
	if diff := cmp.Diff([]string{"settling", "reloaded"}, w.looks(t, 2)); diff != "" || w.version() != "2" {
		t.Errorf("version %s, outcomes (-want +got):\n%s", w.version(), diff)
	}
}

// running runs the watcher in a synctest bubble and calls story.
func (w *watchedFolder) running(t *testing.T, story func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	loop := w.Loop()
	loop.Interval = 2 * time.Second
	go func() { ended <- loop.Run(ctx) }()
	synctest.Wait()
	story()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run = %v, want nil at the end of its context", err)
	}
}

func TestWatcher_Run(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watchProtocols(t)
		w.running(t, func() {
			w.write(t, "p.yaml", smallProtocol("version: 2", ""))
			time.Sleep(3 * time.Second)
			synctest.Wait()
			if got := w.version(); got != "1" {
				t.Errorf("after one look version %s is in use, want 1", got)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if got := w.version(); got != "2" {
				t.Errorf("after two looks version %s is in use, want 2", got)
			}
			w.write(t, "p.yaml", smallProtocol("version: 3", ""))
			w.Ask()
			synctest.Wait()
			if got := w.version(); got != "3" {
				t.Errorf("after the signal version %s is in use, want 3", got)
			}
			if since := time.Since(w.holder.Load().LoadedAt); since != 0 {
				t.Errorf("version 3 was loaded %s ago, want now", since)
			}
		})
	})
}

// A failure is logged once, however often it is seen; a signal asks again.
func TestWatcher_Run_LogsAFailureOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watchProtocols(t)
		const refused, reloaded = "files refused", "files reloaded"
		count := func(step, text string, want int) {
			t.Helper()
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := strings.Count(w.log.String(), text); got != want {
				t.Errorf("%s: %q stands %d times in the log, want %d:\n%s", step, text, got, want, w.log.String())
			}
		}
		w.running(t, func() {
			w.write(t, "p.yaml", "x: 1\n")
			count("a bad file", refused, 1)
			w.write(t, "p.yaml", "x: 2\n")
			count("as bad, with another text", refused, 1)
			w.Ask()
			count("a signal", refused, 2)
			w.write(t, "p.yaml", "y: 1\n")
			count("bad in another way", refused, 3)
			w.write(t, "p.yaml", smallProtocol("version: 2", ""))
			count("mended", reloaded, 1)
			w.write(t, "p.yaml", "y: 1\n")
			count("bad as before", refused, 4)
		})
		for _, want := range []string{`p.yaml:1: unknown field`, `changed=[p]`} {
			if !strings.Contains(w.log.String(), want) {
				t.Errorf("the log does not say %s:\n%s", want, w.log.String())
			}
		}
		want := []string{"refused", "refused", "refused", "refused", "reloaded", "refused"}
		if diff := cmp.Diff(want, w.attempts); diff != "" {
			t.Errorf("attempts (-want +got):\n%s", diff)
		}
	})
}

func TestWatcher_Run_NamesChangedProtocols(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watchProtocols(t)
		w.running(t, func() {
			w.write(t, "p.yaml", strings.NewReplacer("protocol_id: p", "protocol_id: q", "[r]", "[r2]").Replace(smallProtocol("", "")))
			w.write(t, "z.yaml", strings.NewReplacer("protocol_id: p", "protocol_id: z", "[r]", "[r3]").Replace(smallProtocol("", "")))
			time.Sleep(time.Minute)
			synctest.Wait()
		})
		if want := `changed="[q z]" removed=[p]`; !strings.Contains(w.log.String(), want) {
			t.Errorf("the log does not say %s:\n%s", want, w.log.String())
		}
	})
}
