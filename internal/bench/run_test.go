package bench_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/bench"
)

// short are options for a run that ends soon.
func short(t *testing.T, baseURL string) bench.Options {
	t.Helper()
	return bench.Options{
		BaseURL: baseURL, Dir: t.TempDir(), Out: io.Discard, Submitters: 4, Pullers: 2, PayloadBytes: 64,
		WarmUp: time.Millisecond, Duration: 200 * time.Millisecond,
	}
}

func TestMeasureCountsJobsAndCeiling(t *testing.T) {
	t.Parallel()
	server, baseURL := serve(t, nil)
	options := short(t, baseURL)
	options.ServerPID, options.Duration = os.Getpid(), 2*time.Second // A slow machine ends none in a moment.
	report, err := bench.Measure(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	for i, steps := range []int{1, 3} {
		job := report.Jobs[i]
		if job.Steps != steps || job.Jobs == 0 || job.EndToEnd.P50 == 0 || job.Submit.P50 == 0 {
			t.Errorf("jobs of %d steps: %+v", steps, job)
		}
		if rate := float64(job.Jobs) / 2; job.PerSecond != rate {
			t.Errorf("%d jobs in 2s are %v a second, not %v", job.Jobs, rate, job.PerSecond)
		}
		if ratio := job.PerSecond / report.Ceiling.PerSecond; math.Abs(job.OfCeiling-ratio) > 1e-9 {
			t.Errorf("%v of the ceiling, want %v", job.OfCeiling, ratio)
		}
		if job.Audited < options.Submitters {
			t.Errorf("only %d jobs were read back", job.Audited)
		}
		if job.CPU == nil {
			t.Error("the CPU time is missing")
		}
	}
	if report.Ceiling.Requests == 0 || report.Ceiling.Latency.P50 == 0 {
		t.Errorf("ceiling: %+v", report.Ceiling)
	}
	if len(server.payloads) != 1 || server.payloads[64] == 0 {
		t.Errorf("payloads by size: %v, all should have 64 bytes", server.payloads)
	}
	left, err := os.ReadDir(options.Dir)
	if err != nil || len(left) > 0 {
		t.Errorf("the ceiling did not remove %v (%v)", left, err)
	}
}

func TestEveryJobThatWasStartedEnds(t *testing.T) {
	t.Parallel()
	server, baseURL := serve(t, nil)
	options := short(t, baseURL)
	options.Steps = []int{3}
	if _, err := bench.Measure(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	for id := range server.jobs {
		if state := server.state(id); state != api.JobStateSucceeded {
			t.Errorf("job %s was left %s", id, state)
		}
	}
}

func TestRunWritesATableOrJSON(t *testing.T) {
	t.Parallel()
	_, baseURL := serve(t, nil)
	options := short(t, baseURL)
	options.Steps = []int{1}
	var table, document bytes.Buffer

	options.Out = &table
	if err := bench.Run(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"4 submitters", "one step", "ceiling", "end to end p50 ms"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table does not have %q:\n%s", want, &table)
		}
	}

	options.Out, options.JSON = &document, true
	if err := bench.Run(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	var report bench.Report
	if err := json.Unmarshal(document.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Jobs) != 1 || report.Jobs[0].Jobs == 0 || report.Jobs[0].CPU != nil {
		t.Errorf("report %+v", report)
	}
}

// A run in which requests fail measures nothing, so the first one ends it.
func TestAnUnexpectedAnswerEndsTheRun(t *testing.T) {
	t.Parallel()
	problem := `{"code":"unknown_request_type"}`
	for name, test := range map[string]struct {
		path   string
		status int
		want   *bench.StatusError
	}{
		"submit":   {"/v1/commands", 422, statusOf("POST", "/v1/commands", 422, problem)},
		"claim":    {"/v1/work:claim", 503, statusOf("POST", "/v1/work:claim", 503, problem)},
		"complete": {"/v1/work/job-0:complete", 409, statusOf("POST", "/v1/work/job-0:complete", 409, problem)},
		"audit":    {"/v1/jobs/job-0", 500, statusOf("GET", "/v1/jobs/job-0", 500, problem)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, baseURL := serve(t, at(test.path, test.status, problem))
			_, err := bench.Measure(t.Context(), short(t, baseURL))
			var status *bench.StatusError
			if !errors.As(err, &status) {
				t.Fatalf("error %v, want a status", err)
			}
			if diff := cmp.Diff(test.want, status); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if !strings.Contains(err.Error(), "unknown_request_type") {
				t.Errorf("%q does not say what the server said", err)
			}
		})
	}
}

func TestARunThatProvesNothingFails(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil func(http.ResponseWriter, *http.Request) bool
		want  error
	}{
		"a command that was accepted before": {
			at("/v1/commands", 202, `{"jobId":"j","replayed":true}`), bench.ErrReplayed,
		},
		"a job that is not what the completion said": {
			at("/v1/jobs/job-0", 200, `{"state":"IN_PROGRESS"}`), bench.ErrAudit,
		},
		"jobs that never end": {
			at("/v1/work:claim", 200, `{"items":[]}`), bench.ErrUnfinished,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, baseURL := serve(t, test.spoil)
			options := short(t, baseURL)
			if errors.Is(test.want, bench.ErrUnfinished) {
				options.Drain = 100 * time.Millisecond // Else there is time enough for a slow machine.
			}
			if _, err := bench.Measure(t.Context(), options); !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v", err, test.want)
			}
		})
	}
}

func TestAnswersThatAreNotJSONAreRefused(t *testing.T) {
	t.Parallel()
	_, baseURL := serve(t, at("/v1/commands", 202, "<html>"))
	_, err := bench.Measure(t.Context(), short(t, baseURL))
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) || !strings.Contains(err.Error(), "/v1/commands") {
		t.Errorf("error %v, want one about the JSON of /v1/commands", err)
	}
}

func TestAServerThatIsNotThereEndsTheRun(t *testing.T) {
	t.Parallel()
	if _, err := bench.Measure(t.Context(), short(t, "http://127.0.0.1:1")); err == nil {
		t.Error("no error")
	}
}

func TestTheEndOfTheContextEndsTheRun(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	_, baseURL := serve(t, func(http.ResponseWriter, *http.Request) bool {
		cancel()
		return false
	})
	options := short(t, baseURL)
	options.Duration = time.Hour
	if _, err := bench.Measure(ctx, options); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestAProcessThatIsNotThereEndsTheRun(t *testing.T) {
	t.Parallel()
	_, baseURL := serve(t, nil)
	options := short(t, baseURL)
	options.ServerPID = math.MaxInt32
	if _, err := bench.Measure(t.Context(), options); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

func TestTheCeilingNeedsItsFolder(t *testing.T) {
	t.Parallel()
	_, baseURL := serve(t, nil)
	options := short(t, baseURL)
	options.Dir = filepath.Join(options.Dir, "missing")
	if _, err := bench.Measure(t.Context(), options); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

// full refuses everything, as a full disk does.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestResultsThatCannotBeWrittenAreAnError(t *testing.T) {
	t.Parallel()
	_, baseURL := serve(t, nil)
	for _, asJSON := range []bool{false, true} {
		options := short(t, baseURL)
		options.Steps, options.JSON, options.Out = []int{1}, asJSON, full{}
		if err := bench.Run(t.Context(), options); !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("JSON %v: error %v", asJSON, err)
		}
	}
}
