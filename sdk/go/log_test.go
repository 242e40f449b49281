package lucius_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

// textLog returns a logger that writes lines without times.
func textLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey && a.Value.String() == "INFO" {
			return slog.Attr{}
		}
		return a
	}}))
}

// The lines for what a worker meets, from its start to its stop.
func TestAWorkerTalks(t *testing.T) {
	t.Parallel()
	const task = `step_id=w1 step_type=OCR attempt=1`
	away := func(calls int) func(*call) (int, any, bool) {
		return func(c *call) (int, any, bool) {
			calls--
			return 0, nil, c.Verb == "claim" && calls >= 0
		}
	}
	for name, test := range map[string]struct {
		script  func(*call) (int, any, bool)
		handler lucius.Handler
		stop    time.Duration // Defaults to a minute.
		want    []string
	}{
		"a task": {
			handler: lasting(38700 * time.Millisecond),
			want:    []string{`msg="task ended" job_id=j1 ` + task + ` duration=38.7s outcome=succeeded`},
		},
		"a failure": {
			handler: func(context.Context, *lucius.Task) (any, error) {
				time.Sleep(12 * time.Millisecond)
				return nil, lucius.Final("NO_PAGES", "it has no pages")
			},
			want: []string{`msg="task ended" job_id=j1 ` + task + ` duration=0.012s outcome=failed error="NO_PAGES: it has no pages"`},
		},
		"an error": {
			handler: func(context.Context, *lucius.Task) (any, error) { return nil, errors.New("no page") },
			want:    []string{`msg="task ended" job_id=j1 ` + task + ` duration=0.000s outcome=retry error="work_failed: no page"`},
			stop:    time.Second,
		},
		"an outage": {
			script: away(20), handler: succeed,
			want: []string{
				`level=WARN msg="server unreachable" server=http://server.test error="Post \"http://server.test/v1/work:claim\": connection reset by peer"`,
				`msg="server reachable" server=http://server.test duration=…`,
				`msg="task ended" job_id=j1 ` + task + ` duration=0.000s outcome=succeeded`,
			},
		},
		"a busy server": {
			script: once("complete", 503, lucius.Problem{Code: lucius.ProblemCodeStoreUnavailable, Detail: "The disk is full."}), handler: succeed,
			want: []string{
				`level=WARN msg="call repeated" call=complete tries=1 error="the server answered 503 store_unavailable: The disk is full."`,
				`msg="task ended" job_id=j1 ` + task + ` duration=0.000s outcome=succeeded`,
			},
		},
		"a refused result": {
			script: once("complete", 422, lucius.Problem{Code: lucius.ProblemCodeRefInvalid, Detail: "The uri is too long."}), handler: succeed,
			want: []string{
				`level=WARN msg="result refused" job_id=j1 ` + task + ` error="the server answered 422 ref_invalid: The uri is too long."`,
				`msg="task ended" job_id=j1 ` + task +
					` duration=0.000s outcome=failed error="result_refused: the server answered 422 ref_invalid: The uri is too long."`,
			},
		},
		"a refused report": {
			script: once("complete", 409, lucius.Problem{Code: lucius.ProblemCodeStaleAttempt}), handler: succeed,
			want: []string{
				`level=WARN msg="result refused" job_id=j1 ` + task + ` error="the server answered 409 stale_attempt"`,
				`msg="task ended" job_id=j1 ` + task + ` duration=0.000s outcome=refused error="the server answered 409 stale_attempt"`,
			},
		},
		"a lost lease": {
			script: once("heartbeat", 409, lucius.Problem{Code: lucius.ProblemCodeStaleAttempt}), handler: lasting(time.Hour),
			want: []string{
				`level=WARN msg="lease lost" job_id=j1 ` + task + ` error="the server answered 409 stale_attempt"`,
				`msg="task ended" job_id=j1 ` + task + ` duration=20.0s outcome=lease_lost error="the server answered 409 stale_attempt"`,
			},
		},
		"a stop in the middle": {
			handler: lasting(time.Hour), stop: time.Second,
			want: []string{`msg="task ended" job_id=j1 ` + task + ` duration=11.0s outcome=stopped error="worker_stopped: the worker has stopped"`},
		},
		"a stop without a server": {
			script:  func(c *call) (int, any, bool) { return 503, lucius.Problem{Code: "x"}, c.Verb == "complete" },
			handler: lasting(time.Minute), stop: 55 * time.Second,
			want: []string{
				`level=WARN msg="call repeated" call=complete tries=1 error="the server answered 503 x"`,
				`level=WARN msg="result not sent" job_id=j1 ` + task + ` error="the worker has stopped: the server answered 503 x"`,
				`msg="task ended" job_id=j1 ` + task + ` duration=60.0s outcome=not_sent error="the worker has stopped: the server answered 503 x"`,
			},
		},
		"a stop without an answer to a claim": {
			script: func(c *call) (int, any, bool) {
				return 503, lucius.Problem{Code: "x"}, c.Verb == "claim" && c.Body.WaitSeconds == 0 && c.At > 0
			},
			handler: succeed, stop: time.Second,
			want: []string{
				`msg="task ended" job_id=j1 ` + task + ` duration=0.000s outcome=succeeded`,
				`level=WARN msg="call repeated" call=claim tries=1 error="the server answered 503 x"`,
				`level=WARN msg="last claim unanswered" error="context deadline exceeded: the server answered 503 x"`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(t)
				q.script = test.script
				var log strings.Builder
				config := q.config()
				config.Log = textLog(&log)
				w := lucius.NewWorker(config)
				w.Handle("OCR", test.handler)
				stop := start(t, w)
				q.enqueue("w1")
				time.Sleep(max(test.stop, time.Second))
				if test.stop == 0 {
					time.Sleep(time.Minute)
				}
				stop()
				var got []string // Delays are random.
				for line := range strings.Lines(log.String()) {
					if before, _, cut := strings.Cut(line, ` duration=`); cut && strings.Contains(line, "reachable") {
						line = before + ` duration=…`
					}
					if !strings.Contains(line, "repeated") || strings.Contains(line, "tries=1 ") {
						got = append(got, strings.TrimSpace(line))
					}
				}
				want := append([]string{`msg="worker started" owner=worker-7 services=ocr steps=OCR server=http://server.test parallel=4`}, test.want...)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("the log (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A warning is logged when it comes, and when it comes again.
func TestAWarningIsLoggedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		unknown := lucius.ClaimWarning{Code: lucius.ClaimWarningCodeServiceUnknown, Message: "no protocol has service ocr (services: extract)"}
		denied := lucius.ClaimWarning{Code: lucius.ClaimWarningCodeServiceNotAllowed, Message: "the token does not cover ocr"}
		q.warnings = [][]lucius.ClaimWarning{{unknown}, {unknown, denied}, {denied}, {}, {unknown}, {unknown}}
		var log strings.Builder
		config := q.config()
		config.Log, config.ClaimWait = textLog(&log), time.Second
		w := lucius.NewWorker(config)
		w.Handle("OCR", succeed)
		stop := start(t, w)
		time.Sleep(time.Minute)
		q.enqueue("w1") // It goes on polling.
		synctest.Wait()
		stop()
		const unknownLine = `level=WARN msg="claim warning" code=service_unknown warning="no protocol has service ocr (services: extract)"` + "\n"
		want := `msg="worker started" owner=worker-7 services=ocr steps=OCR server=http://server.test parallel=4` + "\n" + unknownLine +
			`level=WARN msg="claim warning" code=service_not_allowed warning="the token does not cover ocr"` + "\n" + unknownLine +
			`msg="task ended" job_id=j1 step_id=w1 step_type=OCR attempt=1 duration=0.000s outcome=succeeded` + "\n"
		if diff := cmp.Diff(want, log.String()); diff != "" {
			t.Errorf("the log (-want +got):\n%s", diff)
		}
	})
}

// The stack of a panic is in the log alone.
func TestAPanicIsLoggedWithItsStack(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	w := lucius.NewWorker(lucius.WorkerConfig{Log: textLog(&log)})
	w.Handle("OCR", func(context.Context, *lucius.Task) (any, error) { panic("no page") })
	_, failure := w.Do(t.Context(), &lucius.Task{Directive: lucius.Directive{JobID: "j1", StepID: "ocr", StepType: "OCR", AttemptNo: 2}})
	const want = `level=ERROR msg="handler crashed" job_id=j1 step_id=ocr step_type=OCR attempt=2 error="no page" stack="goroutine `
	if !strings.HasPrefix(log.String(), want) || failure.Error() != "the handler panicked: no page" {
		t.Errorf("%s, %v", log.String(), failure)
	}
}
