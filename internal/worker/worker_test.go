package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/worker"
	"github.com/lucius-project/lucius/pkg/problem"
)

func TestAWorkerDoesWhatItClaims(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		var got api.Directive
		stop := run(t, q.config(func(_ context.Context, d api.Directive) (json.RawMessage, error) {
			got = d
			return json.RawMessage(`{"uri":"s3://b/done"}`), nil
		}))
		q.enqueue("w1")
		synctest.Wait()
		if got.StepID != "w1" || string(got.Payload) != `{"language":"en"}` {
			t.Errorf("directive %+v", got)
		}
		claim := q.made("claim")[0].Body
		claim.RequestID = ""
		want := body{Owner: "worker-7", Services: []string{"ocr"}, Max: 4, WaitSeconds: 20, Start: true}
		if diff := cmp.Diff(want, claim); diff != "" {
			t.Errorf("claim (-want +got):\n%s", diff)
		}
		complete := q.only("complete")
		complete.Body.RequestID = ""
		want = body{Owner: "worker-7", ExpectedRev: 3, ResultRef: json.RawMessage(`{"uri":"s3://b/done"}`)}
		if diff := cmp.Diff(call{Verb: "complete", WorkID: "w1", Body: want}, complete); diff != "" {
			t.Errorf("complete (-want +got):\n%s", diff)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A slow item holds its own slot and no other.
func TestNoMoreThanParallelAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		var mu sync.Mutex
		running, most := 0, 0
		cfg := q.config(func(_ context.Context, d api.Directive) (json.RawMessage, error) {
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				running--
			}()
			if d.StepID == "slow" {
				time.Sleep(10 * time.Second)
			}
			time.Sleep(time.Second)
			return nil, nil
		})
		cfg.Parallel = 2
		stop := run(t, cfg)
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
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestFailuresAreReported(t *testing.T) {
	t.Parallel()
	permanent := errors.New("the PDF is corrupt")
	long := strings.Repeat("é", 600)
	for name, test := range map[string]struct {
		handle    func() error
		retryable bool
		want      api.ReportedError
	}{
		"one that may go away": {
			func() error { return errors.New("disk full") }, true, api.ReportedError{Code: "work_failed", Message: "disk full"},
		},
		"one that may not": {
			func() error { return permanent }, false, api.ReportedError{Code: "work_failed", Message: "the PDF is corrupt"},
		},
		"a long message, cut between characters": {
			func() error { return errors.New("x" + long) }, true,
			api.ReportedError{Code: "work_failed", Message: "x" + long[:998]},
		},
		"a panic": {
			func() error { panic("nil map") }, true,
			api.ReportedError{Code: "handler_panicked", Message: "the handler panicked: nil map"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(t)
				cfg := q.config(func(context.Context, api.Directive) (json.RawMessage, error) { return nil, test.handle() })
				cfg.Permanent = func(err error) bool { return errors.Is(err, permanent) }
				stop := run(t, cfg)
				q.enqueue("w1")
				synctest.Wait()
				got := q.only("fail").Body
				if diff := cmp.Diff(&test.want, got.Error); diff != "" || got.Retryable != test.retryable {
					t.Errorf("retryable %v (-want +got):\n%s", got.Retryable, diff)
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// No other attempt would understand it either.
func TestADirectiveThatIsNoneFailsForGood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t)
		q.script = once("claim", 200, api.ClaimedWork{Items: []api.WorkItem{{
			WorkID: "w1", Rev: 0, Directive: json.RawMessage(`{"stepId":7}`),
		}}})
		stop := run(t, q.config(succeed))
		synctest.Wait()
		if got := q.only("fail").Body; got.Retryable || got.Error.Code != "directive_malformed" {
			t.Errorf("%+v, %+v", got, got.Error)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
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
					lost := 0
					q.script = func(c *call) (int, any, bool) {
						if c.Verb != verb || lost == 3 {
							return 0, nil, false
						}
						lost++
						return status, api.Problem{Code: problem.StoreUnavailable}, true
					}
					stop := run(t, q.config(func(ctx context.Context, d api.Directive) (json.RawMessage, error) {
						if verb == "fail" {
							return nil, errors.New("failed")
						}
						return succeed(ctx, d)
					}))
					q.enqueue("w1", "w2")
					time.Sleep(time.Minute)
					ids := map[string]bool{}
					made := q.made(verb)
					for _, c := range made {
						ids[c.Body.RequestID] = true
					}
					if repeats := len(made) - len(ids); repeats != 3 || len(ids) < 2 {
						t.Errorf("%d calls under %d request ids, want 3 repeats", len(made), len(ids))
					}
					synctest.Wait()
					if q.revs["w1"] != 4 || q.revs["w2"] != 4 {
						t.Errorf("the items are at %v, each should have moved once", q.revs)
					}
					if err := stop(); err != nil {
						t.Error(err)
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
		q.script = once("complete", 409, api.Problem{Code: problem.StaleAttempt})
		stop := run(t, q.config(succeed))
		q.enqueue("w1")
		synctest.Wait()
		q.enqueue("w2")
		synctest.Wait()
		made := q.made("complete")
		if len(made) != 2 || made[0].WorkID != "w1" || made[1].WorkID != "w2" {
			t.Errorf("completions %+v, want one each of w1 and w2", made)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestARefusedClaimEndsTheWorker(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status int
		answer any
		want   worker.RefusedError
		text   string
	}{
		"a problem": {
			400, api.Problem{Code: problem.InvalidEnvelope, Detail: "/owner is too long."},
			worker.RefusedError{Status: 400, Code: problem.InvalidEnvelope, Detail: "/owner is too long."},
			"worker worker-7: the server answered 400 invalid_envelope: /owner is too long.",
		},
		"not a server of ours": {
			204, nil, worker.RefusedError{Status: 204}, "worker worker-7: the server answered 204",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(t)
				q.script = func(*call) (int, any, bool) { return test.status, test.answer, true }
				w, err := worker.New(q.config(succeed))
				if err != nil {
					t.Fatal(err)
				}
				err = w.Run(t.Context())
				var refused *worker.RefusedError
				if !errors.As(err, &refused) || *refused != test.want || err.Error() != test.text {
					t.Errorf("error %v, %+v", err, refused)
				}
			})
		})
	}
}

func TestConfigNamesTheFieldThatMakesNoSense(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*worker.Config){
		"Client":    func(c *worker.Config) { c.Client = nil },
		"Owner":     func(c *worker.Config) { c.Owner = "" },
		"Handle":    func(c *worker.Config) { c.Handle = nil },
		"Parallel":  func(c *worker.Config) { c.Parallel = 101 },
		"ClaimWait": func(c *worker.Config) { c.ClaimWait = 2 * time.Minute },
		"Grace":     func(c *worker.Config) { c.Grace = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := newQueue(t).config(succeed)
			change(&cfg)
			if _, err := worker.New(cfg); err == nil || !strings.HasPrefix(err.Error(), "worker: "+name+" is ") {
				t.Errorf("error %v does not name %s", err, name)
			}
		})
	}
}
