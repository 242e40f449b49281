package bench_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/bench"
	"github.com/lucius-project/lucius/internal/waittest"
)

// short returns options for a run that ends soon. Its ceilings may have no request.
func short(t *testing.T, server *fakeServer) bench.Options {
	t.Helper()
	return bench.Options{
		Start: server.start, DiskBytes: func(context.Context, string) (int64, error) { return 1 << 20, nil }, Dir: t.TempDir(), Loads: []string{bench.One}, Submitters: 4, Pullers: 2, PayloadBytes: 64,
		WarmUp: time.Millisecond, Duration: 100 * time.Millisecond, CeilingDuration: 10 * time.Millisecond, Drain: waittest.Bound(t),
	}
}

func TestMeasureCountsEachLoadOnBothStores(t *testing.T) {
	t.Parallel()
	server := serve(t, nil)
	options := short(t, server)
	options.Loads = nil
	options.Finished, options.Live, options.Waiting = 150, 120, 130
	options.Duration = waittest.Scale(time.Second).Truncate(time.Second) // long enough for a job to end on a slow machine
	options.CeilingDuration = waittest.Scale(3 * time.Second)            // long enough for a request, also on a busy disk
	report, err := bench.Measure(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, store := range []string{bench.Empty, bench.Prefilled} {
		for _, load := range bench.Loads() {
			want = append(want, load+" "+store)
		}
	}
	for i := range report.Rows {
		row := &report.Rows[i]
		got = append(got, row.Load+" "+row.Store)
		checkRow(t, row, report, options.Duration.Seconds())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	for _, ceiling := range report.Ceilings {
		if ceiling.Requests == 0 || ceiling.Latency.P50 == 0 {
			t.Errorf("ceiling: %+v", ceiling)
		}
	}
	if len(server.payloads) != 1 || server.payloads[64] == 0 {
		t.Errorf("payloads by size: %v, all should have 64 bytes", server.payloads)
	}
	if server.starts != 8 || server.running != 0 {
		t.Errorf("%d servers were started, and %d were not stopped", server.starts, server.running)
	}
	if left, err := os.ReadDir(options.Dir); err != nil || len(left) > 0 {
		t.Errorf("%v was not removed (%v)", left, err)
	}
}

// checkRow checks what must hold for all rows of so many seconds. The open loop's warm-up is shorter than the
// interval of its commands, so that only its first command is outside the window.
func checkRow(t *testing.T, row *bench.Row, report *bench.Report, seconds float64) {
	t.Helper()
	batches := row.Load == bench.Batch
	if row.Jobs == 0 || row.Submit.P50 == 0 || (row.EndToEnd.P50 == 0) != batches || row.Cost.Commits == 0 {
		t.Errorf("%s, %s: %+v", row.Load, row.Store, row)
	}
	if row.Load == bench.Open && float64(row.Jobs) != 50*seconds {
		t.Errorf("%d jobs were due in %v s at 50 a second", row.Jobs, seconds)
	}
	if row.PerSecond != float64(row.Jobs)/seconds {
		t.Errorf("%d jobs in %v s are %v a second", row.Jobs, seconds, row.PerSecond)
	}
	if ratio := row.PerSecond / report.Ceilings[1].PerSecond; math.Abs(row.OfCeiling-ratio) > 1e-9 {
		t.Errorf("%v of the ceiling, want %v", row.OfCeiling, ratio)
	}
	if prefilled := row.Store == bench.Prefilled; (row.OfEmpty > 0) != prefilled || (row.DiskBytes > 0) != (!prefilled && !batches) {
		t.Errorf("%v of the empty store, %v bytes", row.OfEmpty, row.DiskBytes)
	}
	if (row.Audited == 0) != batches {
		t.Errorf("%d jobs were read back", row.Audited)
	}
}

func TestEveryJobThatWasStartedEnds(t *testing.T) {
	t.Parallel()
	server := serve(t, nil)
	options := short(t, server)
	options.Loads = []string{bench.Three, bench.Callbacks, bench.Open}
	if _, err := bench.Measure(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	for id := range server.jobs {
		if state := server.state(id); state != api.JobStateSucceeded {
			t.Errorf("job %s was left %s", id, state)
		}
	}
}

func TestThePrefilledServerHoldsTheJobs(t *testing.T) {
	t.Parallel()
	server := serve(t, nil)
	options := short(t, server)
	options.Finished, options.Live, options.Waiting, options.InLine = 250, 120, 130, 140
	var finished, live, waiting, inLine int
	count := sync.OnceFunc(func() {
		for _, job := range server.jobs {
			switch {
			case job.service == "bench_live" && job.acked:
				live++
			case job.service == "bench_waiting" && job.orderKey != "":
				inLine++
			case job.service == "bench_waiting":
				waiting++
			case job.step > job.steps && strings.Count(job.correlationID, "-") == 8: // A command of a batch.
				finished++
			}
		}
	})
	server.spoil = func(_ http.ResponseWriter, r *http.Request) bool {
		server.mu.Lock()
		defer server.mu.Unlock()
		if r.URL.Path == "/v1/commands" && server.starts == 2 { // This is the first command after the prefill.
			count()
		}
		return false
	}
	if _, err := bench.Measure(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	count() // A slow machine may have sent no command in the time that is measured.
	if finished != 250 || live != 120 || waiting != 130 || inLine != 140 {
		t.Errorf("%d finished, %d live and %d waiting jobs, %d in a line", finished, live, waiting, inLine)
	}
}

// A run in which requests fail measures nothing, so the first failure ends it.
func TestAnUnexpectedAnswerEndsTheRun(t *testing.T) {
	t.Parallel()
	problem := `{"code":"unknown_request_type"}`
	refused := `{"results":[` + strings.Repeat(`{"status":202},`, 99) + `{"status":422,"error":{"code":"payload_invalid"}}]}`
	for name, test := range map[string]struct {
		load, path string
		status     int
		want       *bench.StatusError
		body       string
	}{
		"submit":   {bench.One, "/v1/commands", 422, statusOf("POST", "/v1/commands", 422, problem), problem},
		"claim":    {bench.One, "/v1/work:claim", 503, statusOf("POST", "/v1/work:claim", 503, problem), problem},
		"complete": {bench.One, "/v1/work:complete", 409, statusOf("POST", "/v1/work:complete", 409, problem), problem},
		"audit":    {bench.One, "/v1/jobs/job-0", 500, statusOf("GET", "/v1/jobs/job-0", 500, problem), problem},
		"metrics":  {bench.One, "/metrics", 500, statusOf("GET", "/metrics", 500, problem), problem},
		"ack":      {bench.Callbacks, "/v1/callbacks/ack", 404, statusOf("POST", "/v1/callbacks/ack", 404, problem), problem},
		"result":   {bench.Callbacks, "/v1/callbacks/result", 404, statusOf("POST", "/v1/callbacks/result", 404, problem), problem},
		"batch":    {bench.Batch, "/v1/commands:batch", 200, statusOf("POST", "/v1/commands:batch", 422, "payload_invalid: "), refused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := serve(t, at(test.path, test.status, test.body))
			options := short(t, server)
			options.Loads = []string{test.load}
			options.Duration = waittest.Scale(time.Second) // long enough for a request on a slow machine
			_, err := bench.Measure(t.Context(), options)
			var status *bench.StatusError
			if !errors.As(err, &status) {
				t.Fatalf("error %v, want a status", err)
			}
			if diff := cmp.Diff(test.want, status); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if server.running != 0 {
				t.Error("the server was not stopped")
			}
		})
	}
}

func TestAnInvalidRunFails(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		load  string
		spoil func(http.ResponseWriter, *http.Request) bool
		want  error
	}{
		"a command that was accepted before": {
			bench.One, at("/v1/commands", 202, `{"jobId":"j","replayed":true}`), bench.ErrReplayed,
		},
		"a batch that was accepted before": {
			bench.Batch, at("/v1/commands:batch", 200, `{"results":[`+strings.Repeat(`{"status":202,"replayed":true},`, 99)+`{}]}`), bench.ErrReplayed,
		},
		"a job that is not what the completion said": {
			bench.One, at("/v1/jobs/job-0", 200, `{"state":"IN_PROGRESS"}`), bench.ErrAudit,
		},
		"jobs that never end": {bench.One, at("/v1/work:claim", 200, `{"items":[]}`), bench.ErrUnfinished},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options := short(t, serve(t, test.spoil))
			options.Loads = []string{test.load}
			options.Duration = waittest.Scale(time.Second) // long enough for a job on a slow machine
			if errors.Is(test.want, bench.ErrUnfinished) {
				options.Drain = 100 * time.Millisecond
			}
			if _, err := bench.Measure(t.Context(), options); !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v", err, test.want)
			}
		})
	}
}

func TestAnswersThatAreNotJSONAreRefused(t *testing.T) {
	t.Parallel()
	_, err := bench.Measure(t.Context(), short(t, serve(t, at("/v1/commands", 202, "<html>"))))
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) || !strings.Contains(err.Error(), "/v1/commands") {
		t.Errorf("error %v, want one about the JSON of /v1/commands", err)
	}
}

func TestAServerThatDoesNotStartEndsTheRun(t *testing.T) {
	t.Parallel()
	options := short(t, serve(t, nil))
	options.Start = func(context.Context, string, string, time.Duration) (bench.Server, error) {
		return bench.Server{}, os.ErrPermission
	}
	if _, err := bench.Measure(t.Context(), options); !errors.Is(err, os.ErrPermission) {
		t.Errorf("error %v", err)
	}
}

func TestTheEndOfTheContextEndsTheRun(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	options := short(t, serve(t, func(http.ResponseWriter, *http.Request) bool {
		cancel()
		return false
	}))
	options.Duration = time.Second
	if _, err := bench.Measure(ctx, options); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestTheMeasurementNeedsItsFolder(t *testing.T) {
	t.Parallel()
	options := short(t, serve(t, nil))
	options.Dir = filepath.Join(options.Dir, "missing")
	if _, err := bench.Measure(t.Context(), options); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}
