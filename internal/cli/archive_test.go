package cli_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/musttest"
)

// archived returns the line of a job that ended that many hours ago, with a history of two
// changes, and of a callback that was refused between them.
func archived(t *testing.T, id, tenant string, hours int) string {
	t.Helper()
	ended := api.NewTime(now.Add(-time.Duration(hours) * time.Hour))
	text := encode(t, api.Job{
		JobID: id, TenantID: tenant, RequestType: "doc.ingest", State: api.JobStateSucceeded, Rev: 2,
		CreatedAt: api.NewTime(ended.Add(-time.Hour)), CompletedAt: ended, UpdatedAt: ended,
	})
	events := encode(t, []api.Event{
		{Rev: 1, Type: "job.accepted"}, {Rev: 1, Type: "callback.rejected"}, {Rev: 2, Type: "step.succeeded"}, {Rev: 2, Type: "job.succeeded"},
	})
	return strings.TrimSuffix(text, "}") + `,"payload":{"n":1e2},"events":` + events + "}\n"
}

func writeArchive(t *testing.T, dir, name string, lines ...string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	musttest.WriteFile(t, path, strings.Join(lines, ""))
	return path
}

func TestArchive_ListsEachJobOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, second, third := archived(t, "j1", "a", 300), archived(t, "j2", "b", 48), archived(t, "j3", "a", 2)
	writeArchive(t, dir, "jobs-2026-01.jsonl", second, third, third)
	january := writeArchive(t, dir, "jobs-2025-12.jsonl", first, second)
	writeArchive(t, dir, "notes.jsonl", "nothing")
	l := newLine(t, "")
	golden(t, "archive.txt", l.must(t, "archive", "read", dir))
	for want, args := range map[string][]string{
		first + third:          {"--tenant", "a"},
		second:                 {"--job", "j2"},
		second + third:         {"--since", "3d"},
		"":                     {"--job", "j4"},
		first + second + third: nil,
	} {
		if out, err := l.run(t, append([]string{"archive", "read", dir, "-o", "json"}, args...)...); err != nil || out != want {
			t.Errorf("%v prints %q, %v, want %q", args, out, err, want)
		}
	}
	if out, err := l.run(t, "archive", "read", january, "-o", "json"); err != nil || out != first+second {
		t.Errorf("one file prints %q, %v", out, err)
	}
}

func TestArchive_EscapesControlCharacters(t *testing.T) {
	t.Parallel()
	path := writeArchive(t, t.TempDir(), "jobs-2026-01.jsonl", strings.Replace(archived(t, "j1", "a", 1), "1e2", "\"\u009b2J\u202e\"", 1))
	if out := newLine(t, "").must(t, "archive", "read", path, "-o", "json"); !strings.Contains(out, `"payload":{"n":"\u009b2J\u202e"}`) {
		t.Errorf("it prints %q", out)
	}
}

// writerFunc is a writer that is a function.
type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// An archive is larger than memory, so the table begins before the last line is read.
func TestArchive_ListsJobsWhileItReads(t *testing.T) {
	t.Parallel()
	var lines []string
	for n := range 1_200 {
		lines = append(lines, archived(t, fmt.Sprint("j", n), "a", 2))
	}
	path := writeArchive(t, t.TempDir(), "jobs-2026-01.jsonl", lines...)
	l := newLine(t, "")
	grow := sync.OnceFunc(func() {
		lines = append(lines, archived(t, "late", "a", 2))
		writeArchive(t, filepath.Dir(path), filepath.Base(path), lines...)
	})
	l.Stdout = writerFunc(func(p []byte) (int, error) {
		grow()
		return l.out.Write(p)
	})
	out := l.must(t, "archive", "read", path)
	if rows := strings.Count(out, "\n"); rows != 1_202 || strings.Count(out, "JOB ") != 1 || !strings.Contains(out, "\nlate ") {
		t.Errorf("the table has %d lines:\n%.300s", rows, out)
	}
}

func TestArchive_ReportsDamagedLines(t *testing.T) {
	t.Parallel()
	good := archived(t, "j1", "a", 1)
	var job map[string]any
	musttest.NoError(t, json.Unmarshal([]byte(good), &job))
	with := func(field string, value any) string {
		changed := maps.Clone(job)
		changed[field] = value
		return encode(t, changed) + "\n"
	}
	for name, test := range map[string]struct{ line, says string }{
		"cut short":       {good[:len(good)/2], "it is truncated"},
		"without its end": {strings.TrimSuffix(good, "\n"), "it is truncated"},
		"merged":          {good[:len(good)/2] + good, "invalid character"},
		"no job":          {"[]\n", "left out: it has array where a job has another type"},
		"live":            {with("state", "IN_PROGRESS"), "it is not of an ended job"},
		"no history":      {with("events", []any{}), "it is not of an ended job"},
		"a gap":           {with("events", []api.Event{{Rev: 1}, {Rev: 3}}), "the history of job j1 jumps from rev 1 to 3"},
		"less history":    {with("events", []api.Event{{Rev: 1}}), "the history of job j1 ends with rev 1, and the job has rev 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			other := archived(t, "j2", "a", 1)
			path := writeArchive(t, t.TempDir(), "jobs-2026-01.jsonl", other, test.line)
			l := newLine(t, "")
			out, err := l.run(t, "archive", "read", path, "-o", "json")
			if out != other || cli.ExitCode(err) != cli.ExitFailed || !strings.HasPrefix(l.notes.String(), path+": line 2 is left out: ") ||
				!strings.Contains(l.notes.String(), test.says) {
				t.Errorf("%q %v, and says %q, want %q", out, err, l.notes.String(), test.says)
			}
		})
	}
	l := newLine(t, "")
	for want, args := range map[int][]string{
		cli.ExitNotFound: {"archive", "read", filepath.Join(t.TempDir(), "none")},
		cli.ExitUsage:    {"archive", "read", t.TempDir(), "-o", "yaml"},
	} {
		if _, err := l.run(t, args...); cli.ExitCode(err) != want {
			t.Errorf("%v: %v, want %d", args, err, want)
		}
	}
	if _, err := l.run(t, "archive", "read", t.TempDir()); cli.ExitCode(err) != cli.ExitNotFound || !strings.Contains(err.Error(), "holds no file jobs-*.jsonl") {
		t.Errorf("an empty folder: %v", err)
	}
	if _, err := l.run(t, "archive", "read", t.TempDir(), "--since", "soon"); cli.ExitCode(err) != cli.ExitUsage {
		t.Errorf("a time that is none: %v", err)
	}
}
