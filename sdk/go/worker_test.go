package lucius_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

func TestAWorkerDoesWhatItClaims(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		var task *lucius.Task
		var parent string
		var payload struct{ Language string }
		stop := start(t, q.worker(func(ctx context.Context, got *lucius.Task) (any, error) {
			task, parent = got, lucius.Traceparent(ctx)
			return lucius.URI("s3://b/done"), got.Decode(&payload)
		}))
		q.enqueue("w1")
		synctest.Wait()
		if task.WorkID != "w1" || task.StepID != "w1" || payload.Language != "en" || task.InputRef.URI() != "s3://b/in" || task.OutputRef != nil {
			t.Errorf("task %+v", task)
		}
		if parent != "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" {
			t.Errorf("the handler's trace context is %q", parent)
		}
		claim := q.made("claim")[0].Body
		claim.RequestID = ""
		host, err := os.Hostname()
		if err != nil {
			t.Fatal(err)
		}
		want := body{Owner: "worker-7", Services: []string{"ocr"}, StepTypes: []string{"OCR"}, Max: 4, Lease: 90, Start: true, Host: host}
		if wait := q.made("claim")[1].Body.WaitSeconds; wait != 20 {
			t.Errorf("the second claim waits for %gs", wait)
		}
		if diff := cmp.Diff(want, claim); diff != "" {
			t.Errorf("claim (-want +got):\n%s", diff)
		}
		complete := q.only("complete")
		complete.Body.RequestID = ""
		want = body{Owner: "worker-7", ExpectedRev: 3, ResultRef: json.RawMessage(`{"uri":"s3://b/done"}`)}
		if diff := cmp.Diff(call{Verb: "complete", WorkID: "w1", Body: want}, complete); diff != "" {
			t.Errorf("complete (-want +got):\n%s", diff)
		}
		stop()
	})
}

func TestTheHandlerOfAnyStepDoesWhatHasNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		w := lucius.NewWorker(q.config())
		w.Handle("SCAN", func(context.Context, *lucius.Task) (any, error) { return nil, errors.New("another's step") })
		w.Handle(lucius.AnyStep, succeed)
		stop := start(t, w)
		q.enqueue("w1")
		synctest.Wait()
		q.only("complete")
		if types := q.made("claim")[0].Body.StepTypes; types != nil {
			t.Errorf("the claim asks for %v alone", types)
		}
		stop()
	})
}

func TestMiddlewareIsAroundEachHandlerTheFirstOutermost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		var said string
		says := func(word string) func(lucius.Handler) lucius.Handler {
			return func(next lucius.Handler) lucius.Handler {
				return func(ctx context.Context, task *lucius.Task) (any, error) {
					said += word
					return next(ctx, task)
				}
			}
		}
		w := q.worker(func(ctx context.Context, task *lucius.Task) (any, error) {
			said += "handler"
			return succeed(ctx, task)
		})
		w.Use(says("outer "), says("inner "))
		stop := start(t, w)
		q.enqueue("w1")
		synctest.Wait()
		if said != "outer inner handler" {
			t.Errorf("%q", said)
		}
		stop()
	})
}

// A slow item holds its own slot and no other.
func TestNoMoreThanParallelAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		var mu sync.Mutex
		running, most := 0, 0
		cfg := q.config()
		cfg.Parallel = 2
		w := lucius.NewWorker(cfg)
		w.Handle("OCR", func(_ context.Context, task *lucius.Task) (any, error) {
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				running--
			}()
			if task.StepID == "slow" {
				time.Sleep(10 * time.Second)
			}
			time.Sleep(time.Second)
			return nil, nil
		})
		stop := start(t, w)
		q.enqueue("slow", "w1", "w2", "w3", "w4", "w5")
		time.Sleep(6500 * time.Millisecond)
		synctest.Wait()
		if done := len(q.made("complete")); done != 5 {
			t.Errorf("%d items done besides the slow one, want 5", done)
		}
		if most != 2 {
			t.Errorf("%d at once, want 2", most)
		}
		for _, claim := range q.made("claim")[1:] {
			if claim.Body.Max != 1 {
				t.Errorf("a claim for %d items, one slot was free", claim.Body.Max)
			}
		}
		stop()
	})
}

// Items that end while many completions are under way share the next request.
func TestCompletionsAreSentTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		q.script = func(c *call) (int, any, bool) {
			if c.Verb == "complete" {
				time.Sleep(time.Second)
			}
			return 0, nil, false
		}
		cfg := q.config()
		cfg.Parallel = 250
		w := lucius.NewWorker(cfg)
		w.Handle("OCR", succeed)
		for i := range 250 {
			q.enqueue(fmt.Sprint("w", i))
		}
		stop := start(t, w)
		time.Sleep(time.Hour)
		stop()
		requests := 250 + len(q.batches)
		for _, size := range q.batches {
			requests -= size
		}
		if done := len(q.made("complete")); done != 250 || requests > 100 || slices.Max(q.batches) > 100 {
			t.Errorf("%d completions in %d requests, want 250 in few; batches of %d", done, requests, q.batches)
		}
	})
}

// Handlers that end at the same time share a request, however few they are.
func TestFewCompletionsAreSentTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		stop := start(t, q.worker(lasting(time.Second)))
		for i := range 200 {
			q.enqueue(fmt.Sprint("w", i))
		}
		time.Sleep(time.Hour)
		stop()
		if done := len(q.made("complete")); done != 200 || len(q.batches) == 0 {
			t.Errorf("%d completions, none together", done)
		}
	})
}

// One completion may be the reason why the server refuses a batch, such as by its size. It
// does not keep the others from being taken.
func TestCompletionsOfARefusedBatchAreSentAlone(t *testing.T) {
	t.Parallel()
	for status, wants := range map[int]string{400: "", 413: "fail", 422: "fail"} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(t)
				q.script = func(c *call) (int, any, bool) {
					switch {
					case c.Verb != "complete":
						return 0, nil, false
					case c.Batch > 0:
						return status, "the whole batch", true
					case c.WorkID == "w39":
						return status, lucius.Problem{Code: lucius.ProblemCodeTooLarge}, true
					}
					time.Sleep(time.Second)
					return 0, nil, false
				}
				cfg := q.config()
				cfg.Parallel = 40
				w := lucius.NewWorker(cfg)
				w.Handle("OCR", succeed)
				for i := range 40 {
					q.enqueue(fmt.Sprint("w", i))
				}
				stop := start(t, w)
				time.Sleep(time.Hour)
				stop()
				if len(q.batches) == 0 {
					t.Error("no batch was sent")
				}
				for i := range 39 {
					if id := fmt.Sprint("w", i); q.revs[id] != 4 {
						t.Errorf("%s is at %d: it is not completed", id, q.revs[id])
					}
				}
				if failed := q.made("fail"); len(failed) != len(wants)/len("fail") || wants != "" && failed[0].WorkID != "w39" {
					t.Errorf("failed: %+v", failed)
				}
			})
		})
	}
}

func TestFailuresAreReported(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 600)
	for name, test := range map[string]struct {
		handle    func() (any, error)
		retryable bool
		after     float64
		want      lucius.ReportedError
	}{
		"any error": {
			func() (any, error) { return nil, errors.New("disk full") }, true, 0,
			lucius.ReportedError{Code: "work_failed", Message: "disk full"},
		},
		"a final one": {
			func() (any, error) { return nil, lucius.Final("NO_LANGUAGE", "no language in %s", "doc_1") }, false, 0,
			lucius.ReportedError{Code: "NO_LANGUAGE", Message: "no language in doc_1"},
		},
		"one to retry, wrapped": {
			func() (any, error) { return nil, fmt.Errorf("page 3: %w", lucius.Retry("BUSY", "try again")) }, true, 0,
			lucius.ReportedError{Code: "BUSY", Message: "page 3: try again"},
		},
		"one to retry later": {
			func() (any, error) { return nil, lucius.RetryAfter(90*time.Second, "BUSY", "try again") }, true, 90,
			lucius.ReportedError{Code: "BUSY", Message: "try again"},
		},
		"one without a reason": {
			func() (any, error) { return nil, &lucius.StepError{Code: "BUSY"} }, false, 0,
			lucius.ReportedError{Code: "BUSY", Message: "BUSY"},
		},
		"a delay that is too long": {
			func() (any, error) { return nil, lucius.RetryAfter(1e6*time.Hour, "BUSY", "try again") }, true, 604800,
			lucius.ReportedError{Code: "BUSY", Message: "try again"},
		},
		"a payload that does not decode": {
			func() (any, error) {
				task := lucius.Task{Directive: lucius.Directive{Payload: []byte(`"text"`)}}
				var payload struct{}
				return nil, task.Decode(&payload)
			}, false, 0,
			lucius.ReportedError{Code: "payload_invalid", Message: "must be object, is string"},
		},
		"a long message, cut between characters": {
			func() (any, error) { return nil, errors.New("x" + long) }, true, 0,
			lucius.ReportedError{Code: "work_failed", Message: "x" + long[:998]},
		},
		"a panic": {
			func() (any, error) { panic("nil map") }, true, 0,
			lucius.ReportedError{Code: "handler_panicked", Message: "the handler panicked: nil map"},
		},
		"an error that is a nil pointer": {
			func() (any, error) {
				var failure *lucius.StepError
				return nil, failure
			}, true, 0,
			lucius.ReportedError{
				Code: "handler_panicked", Message: "the handler panicked: runtime error: invalid memory address or nil pointer dereference",
			},
		},
		"a result that is no reference": {
			func() (any, error) { return "s3://b/done", nil }, false, 0,
			lucius.ReportedError{Code: "result_invalid", Message: `the result is "s3://b/done", and must be an object with a uri, such as lucius.URI returns`},
		},
		"a result that cannot be encoded": {
			func() (any, error) { return func() {}, nil }, false, 0,
			lucius.ReportedError{Code: "result_invalid", Message: "the result cannot be encoded: json: unsupported type: func()"},
		},
		"a result that is too large": {
			func() (any, error) { return lucius.Result{Output: lucius.URI(strings.Repeat("x", 9000))}, nil }, false, 0,
			lucius.ReportedError{Code: "result_too_large", Message: "the result has 9010 bytes, and a reference at most 8192: store the data, and return its URI"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(t)
				stop := start(t, q.worker(func(context.Context, *lucius.Task) (any, error) { return test.handle() }))
				q.enqueue("w1")
				synctest.Wait()
				got := q.only("fail").Body
				if diff := cmp.Diff(&test.want, got.Error); diff != "" || got.Retryable != test.retryable || got.RetryAfter != test.after {
					t.Errorf("retryable %v after %v (-want +got):\n%s", got.Retryable, got.RetryAfter, diff)
				}
				stop()
			})
		})
	}
}

// An error may quote a header, and everyone who may read the job reads its error.
func TestATokenIsNotReported(t *testing.T) {
	t.Parallel()
	const token = "a-secret-token"
	for name, test := range map[string]struct {
		handle func() (any, error)
		want   lucius.ReportedError
	}{
		"any error": {
			func() (any, error) { return nil, errors.New("401 for Bearer " + token + ", " + token) },
			lucius.ReportedError{Code: "work_failed", Message: "401 for Bearer [secret], [secret]"},
		},
		"a final one": {
			func() (any, error) { return nil, lucius.Final("of "+token, "401 for %s", token) },
			lucius.ReportedError{Code: "of [secret]", Message: "401 for [secret]"},
		},
		"one to retry": {
			func() (any, error) { return nil, lucius.Retry("BUSY", "401: %w", errors.New(token)) },
			lucius.ReportedError{Code: "BUSY", Message: "401: [secret]"},
		},
		"a panic": {
			func() (any, error) { panic(token) },
			lucius.ReportedError{Code: "handler_panicked", Message: "the handler panicked: [secret]"},
		},
		"one that is cut": {
			func() (any, error) { return nil, errors.New(strings.Repeat("x", 996) + token) },
			lucius.ReportedError{Code: "work_failed", Message: strings.Repeat("x", 996) + "[sec"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(t)
				cfg := q.config()
				var err error
				cfg.Client, err = lucius.NewClient(lucius.ClientConfig{
					URL: "http://server.test", HTTPClient: &http.Client{Transport: q}, Token: token + "\n",
				})
				if err != nil {
					t.Fatal(err)
				}
				w := lucius.NewWorker(cfg)
				w.Handle("OCR", func(context.Context, *lucius.Task) (any, error) { return test.handle() })
				stop := start(t, w)
				q.enqueue("w1")
				synctest.Wait()
				if diff := cmp.Diff(&test.want, q.only("fail").Body.Error); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				stop()
			})
		})
	}
	if got := (&lucius.StepError{Code: "token t"}).Reported("t", ""); got.Message != "token t" {
		t.Errorf("a secret that is none: %q", got.Message)
	}
}

// As FailNow of a test does: the attempt ends with its lease, and the worker goes on.
func TestAHandlerThatEndsItsGoroutineHoldsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		cfg := q.config()
		cfg.Parallel = 1
		w := lucius.NewWorker(cfg)
		w.Handle("OCR", func(ctx context.Context, task *lucius.Task) (any, error) {
			if task.StepID == "w1" {
				runtime.Goexit()
			}
			return succeed(ctx, task)
		})
		stop := start(t, w)
		q.enqueue("w1", "w2")
		time.Sleep(time.Hour)
		stop()
		if q.only("complete").WorkID != "w2" || len(q.made("heartbeat"))+len(q.made("fail")) > 0 {
			t.Errorf("%d heartbeats, %d failures of an attempt without a handler", len(q.made("heartbeat")), len(q.made("fail")))
		}
	})
}

func TestBothReferencesOfAResultAreReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		stop := start(t, q.worker(func(context.Context, *lucius.Task) (any, error) {
			return lucius.Result{Output: lucius.URI("s3://b/out"), Ref: lucius.Reference(`{"uri":"s3://b/log","pages":3}`)}, nil
		}))
		q.enqueue("w1")
		synctest.Wait()
		got := q.only("complete").Body
		if string(got.OutputRef) != `{"uri":"s3://b/out"}` || string(got.ResultRef) != `{"uri":"s3://b/log","pages":3}` {
			t.Errorf("%s, %s", got.OutputRef, got.ResultRef)
		}
		stop()
	})
}

// No other attempt would understand it either.
func TestADirectiveThatIsNoneFailsForGood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		q.script = once("claim", 200, lucius.ClaimedWork{Items: []lucius.WorkItem{{
			WorkID: "w1", Rev: 0, Directive: json.RawMessage(`{"stepId":7}`),
		}}})
		stop := start(t, q.worker(succeed))
		synctest.Wait()
		if got := q.only("fail").Body; got.Retryable || got.Error.Code != "directive_malformed" {
			t.Errorf("%+v, %+v", got, got.Error)
		}
		stop()
	})
}

// A restart of the server: the same call under the same request id until it is
// answered, then another with another.
func TestACallWithoutAnAnswerIsMadeAgain(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"claim", "complete", "fail"} {
		for name, status := range map[string]int{"no answer": 0, "500": 500, "503": 503, "429": 429} {
			t.Run(verb+" "+name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					q := newQueue(t)
					var lost atomic.Int32
					q.script = func(c *call) (int, any, bool) {
						if c.Verb != verb || lost.Add(1) > 3 {
							return 0, nil, false
						}
						return status, lucius.Problem{Code: lucius.ProblemCodeStoreUnavailable}, true
					}
					stop := start(t, q.worker(func(ctx context.Context, task *lucius.Task) (any, error) {
						if verb == "fail" {
							return nil, errors.New("failed")
						}
						return succeed(ctx, task)
					}))
					q.enqueue("w1", "w2")
					time.Sleep(time.Minute)
					ids := map[string]bool{}
					made := q.made(verb)
					for _, c := range made {
						ids[c.Body.RequestID] = true
					}
					if repeats := len(made) - len(ids); repeats < 3 || len(ids) < 2 {
						t.Errorf("%d calls under %d request ids, want repeats under the same", len(made), len(ids))
					}
					stop()
					if q.revs["w1"] != 4 || q.revs["w2"] != 4 {
						t.Errorf("the items are at %v, each should have moved once", q.revs)
					}
				})
			})
		}
	}
}

// The server has decided otherwise; the worker goes on with other work.
func TestARefusedReportIsDropped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		q.script = once("complete", 409, lucius.Problem{Code: lucius.ProblemCodeStaleAttempt})
		stop := start(t, q.worker(succeed))
		q.enqueue("w1")
		synctest.Wait()
		q.enqueue("w2")
		synctest.Wait()
		made := q.made("complete")
		if len(made) != 2 || made[0].WorkID != "w1" || made[1].WorkID != "w2" {
			t.Errorf("completions %+v, want one each of w1 and w2", made)
		}
		stop()
	})
}

// Otherwise the step would be tried again with the same result.
func TestAResultThatTheServerRefusesFailsTheStep(t *testing.T) {
	t.Parallel()
	for code, status := range map[lucius.ProblemCode]int{lucius.ProblemCodeRefInvalid: 422, lucius.ProblemCodeInvalidEnvelope: 400} {
		t.Run(string(code), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(t)
				q.script = once("complete", status, lucius.Problem{Code: code, Detail: "The uri is too long."})
				stop := start(t, q.worker(succeed))
				q.enqueue("w1")
				synctest.Wait()
				got := q.only("fail").Body
				want := lucius.ReportedError{
					Code: "result_refused", Message: fmt.Sprintf("the server answered %d %s: The uri is too long.", status, code),
				}
				if got.Retryable || *got.Error != want {
					t.Errorf("%+v, %+v", got, got.Error)
				}
				stop()
			})
		})
	}
}

// The server names the rev to the owner of the item alone, so the item is still its own.
func TestAReportIsRepeatedAtTheRevThatTheServerNames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		q.script = func(c *call) (int, any, bool) {
			if c.Verb != "complete" || c.Body.ExpectedRev == 5 {
				return 0, nil, false
			}
			q.mu.Lock()
			defer q.mu.Unlock()
			q.revs["w1"] = 5
			return 409, lucius.Problem{Code: lucius.ProblemCodeRevConflict, CurrentRev: 5}, true
		}
		stop := start(t, q.worker(succeed))
		q.enqueue("w1")
		synctest.Wait()
		made := q.made("complete")
		if len(made) != 2 || made[1].Body.ExpectedRev != 5 || made[0].Body.RequestID == made[1].Body.RequestID {
			t.Errorf("completions %+v, want a second one at rev 5", made)
		}
		stop()
	})
}

// So tests of a worker need no server.
func TestDoRunsTheHandlerAsRunDoes(t *testing.T) {
	t.Parallel()
	w := newQueue(t).worker(func(ctx context.Context, _ *lucius.Task) (any, error) {
		return lucius.URI(lucius.Traceparent(ctx)), nil
	})
	parent := "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	task := &lucius.Task{Directive: lucius.Directive{StepType: "OCR", Traceparent: &parent}}
	if result, failure := w.Do(t.Context(), task); failure != nil || result.Ref.URI() != parent {
		t.Errorf("%+v, %v", result, failure)
	}
	task.StepType = "SCAN"
	if _, failure := w.Do(t.Context(), task); failure == nil || failure.Code != "step_type_unknown" || !failure.Retryable {
		t.Errorf("a step without a handler: %+v", failure)
	}
	if !w.Handles("OCR") || w.Handles("SCAN") {
		t.Error("it does not say what it handles")
	}
	if w.Handle(lucius.AnyStep, succeed); !w.Handles("SCAN") {
		t.Error("it does not say that it handles any step")
	}
}
