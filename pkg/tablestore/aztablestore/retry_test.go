package aztablestore_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
)

var errNetwork = errors.New("connection reset by peer")

// row is the answer to a read of the row "a".
func row() answer {
	return reply(200, `{"odata.etag":"W/\"1\"","PartitionKey":"p","RowKey":"a","Timestamp":"2026-01-01T00:00:00Z"}`,
		"Content-Type", "application/json;odata=minimalmetadata")
}

// TestRetries checks which requests are retried. The answers end with success,
// which a call without a retry never gets.
func TestRetries(t *testing.T) {
	t.Parallel()
	commit := func(ctx context.Context, store *aztablestore.Store) error {
		_, err := store.Commit(ctx, tablestore.Batch{insert("a")})
		return err
	}
	get := func(ctx context.Context, store *aztablestore.Store) error {
		_, err := store.Get(ctx, key("a"))
		return err
	}
	committed, read := inside(done(one)), row()
	busy, later := refuses(503, "ServerBusy"), reply(503, "", "Retry-After", "7")
	for name, test := range map[string]struct {
		call     func(context.Context, *aztablestore.Store) error
		answers  []answer
		requests int
		want     error // nil is success.
	}{
		"a write that was throttled":              {commit, []answer{busy, later, refuses(429, ""), committed}, 4, nil},
		"a write that found no connection":        {commit, []answer{unreachable(errNetwork), unreachable(errNetwork), committed}, 3, nil},
		"a write that was lost":                   {commit, []answer{lost(errNetwork), committed}, 1, tablestore.ErrUnknown},
		"a write whose fate the server forgot":    {commit, []answer{refuses(500, "OperationTimedOut"), committed}, 1, tablestore.ErrUnknown},
		"a write without a trace":                 {commit, []answer{silent, committed}, 1, tablestore.ErrUnknown},
		"a write that was refused":                {commit, []answer{inside(failed(400, "InvalidInput", "0:Bad.")), committed}, 1, tablestore.ErrInvalid},
		"a write that is throttled for good":      {commit, []answer{busy}, 4, tablestore.ErrUnavailable},
		"a write without a connection for good":   {commit, []answer{unreachable(errNetwork)}, 4, tablestore.ErrUnavailable},
		"a write that was throttled, then lost":   {commit, []answer{busy, lost(errNetwork), committed}, 2, tablestore.ErrUnknown},
		"a read that was throttled":               {get, []answer{busy, later, read}, 3, nil},
		"a read that was lost":                    {get, []answer{lost(errNetwork), refuses(500, "InternalError"), read}, 3, nil},
		"a read of a page that is no row":         {get, []answer{reply(200, "<html>"), read}, 2, nil},
		"a read that is lost for good":            {get, []answer{lost(errNetwork)}, 4, tablestore.ErrUnavailable},
		"a read that was refused":                 {get, []answer{refuses(403, "AuthenticationFailed"), read}, 1, errDenied},
		"a read of a row that is not there":       {get, []answer{refuses(404, "ResourceNotFound"), read}, 1, tablestore.ErrNotFound},
		"a read of a table that is not there":     {get, []answer{refuses(404, "TableNotFound"), read}, 1, tablestore.ErrUnavailable},
		"a read that a proxy answered with a 404": {get, []answer{reply(404, "<html>"), read}, 1, tablestore.ErrUnavailable},
		"a read that breaks a rule of theirs":     {get, []answer{refuses(400, "InvalidInput"), read}, 1, tablestore.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, service := scripted(t, aztablestore.Options{}, test.answers...)
				err := test.call(t.Context(), store)
				expectError(t, err, test.want)
				if (err == nil) != (test.want == nil) || service.requests() != test.requests {
					t.Errorf("%v after %d requests, want %d", err, service.requests(), test.requests)
				}
			})
		})
	}
}

// TestConflictAfterAThrottledTry is about a service that applied a write
// although it answered that it was throttled: the conflicting row is the
// batch's own, and reporting a conflict would make the caller decide again
// about finished work.
func TestConflictAfterAThrottledTry(t *testing.T) {
	t.Parallel()
	there := inside(failed(409, "EntityAlreadyExists", "0:There."))
	for name, test := range map[string]struct {
		first answer
		want  error
	}{
		"it saw the first try":     {refuses(503, "ServerBusy"), tablestore.ErrUnknown},
		"it never saw a first try": {unreachable(errNetwork), &tablestore.ConflictError{Key: key("a"), Verb: tablestore.Insert}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, _ := scripted(t, aztablestore.Options{}, test.first, there)
				_, err := store.Commit(t.Context(), tablestore.Batch{insert("a")})
				expectError(t, err, test.want)
			})
		})
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		header string
		waited time.Duration // 0 if it does not wait at all.
	}{
		"seconds":                       {"7", 7 * time.Second},
		"a date":                        {"Sat, 01 Jan 2000 00:00:09 GMT", 9 * time.Second},
		"longer than the call may take": {"31", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, service := scripted(t, aztablestore.Options{}, refuses(503, "ServerBusy", "Retry-After", test.header), inside(done(one)))
				start := time.Now() // The bubble's, midnight of 2000-01-01.
				_, err := store.Commit(t.Context(), tablestore.Batch{insert("a")})
				if waited := time.Since(start); waited != test.waited {
					t.Errorf("it waited %s, want %s", waited, test.waited)
				}
				if (err == nil) != (test.waited > 0) || err != nil && !errors.Is(err, tablestore.ErrUnavailable) {
					t.Errorf("commit: %v", err)
				}
				if want := 1 + min(int(test.waited), 1); service.requests() != want {
					t.Errorf("%d requests, want %d", service.requests(), want)
				}
			})
		})
	}
}

func TestDelaysGrowWithoutRetryAfter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var at []time.Time
		store := chosen(t, aztablestore.WithTries(aztablestore.Options{}, 6), func(*request) answer {
			at = append(at, time.Now())
			return refuses(503, "ServerBusy")
		})
		if _, err := store.Get(t.Context(), key("a")); !errors.Is(err, tablestore.ErrUnavailable) {
			t.Errorf("get: %v", err)
		}
		interval := 100 * time.Millisecond
		for i := 1; i < len(at); i++ { // Each delay is 0.5 to 1.5 times its interval.
			if delay := at[i].Sub(at[i-1]); delay < interval/2 || delay > interval*3/2 {
				t.Errorf("try %d after %s, want %s plus or minus half", i+1, delay, interval)
			}
			interval = interval * 3 / 2
		}
		if len(at) != 6 {
			t.Errorf("%d tries", len(at))
		}
	})
}

func TestDeadlines(t *testing.T) {
	t.Parallel()
	const request, call = 3 * time.Second, 8 * time.Second
	options := aztablestore.WithLimits(aztablestore.Options{}, request, call, 4)
	t.Run("a write ends with its one request", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			store, service := scripted(t, options, hangs)
			start := time.Now()
			_, err := store.Commit(t.Context(), tablestore.Batch{insert("a")})
			expectError(t, err, tablestore.ErrUnknown)
			if time.Since(start) != request || service.requests() != 1 || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v after %s and %d requests", err, time.Since(start), service.requests())
			}
		})
	})
	t.Run("a read ends with its call", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			store, service := scripted(t, options, hangs)
			start := time.Now()
			_, err := store.Get(t.Context(), key("a"))
			expectError(t, err, tablestore.ErrUnavailable)
			if time.Since(start) != call || service.requests() != 3 {
				t.Errorf("%v after %s and %d requests", err, time.Since(start), service.requests())
			}
		})
	})
	t.Run("the caller's own comes first", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			store, _ := scripted(t, options, hangs)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			start := time.Now()
			_, err := store.Commit(ctx, tablestore.Batch{insert("a")})
			expectError(t, err, tablestore.ErrUnknown)
			if time.Since(start) != time.Second {
				t.Errorf("%v after %s", err, time.Since(start))
			}
		})
	})
	t.Run("a call that is cancelled while it waits was not applied", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			store, service := scripted(t, options, refuses(503, "ServerBusy", "Retry-After", "5"))
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			start := time.Now()
			_, err := store.Commit(ctx, tablestore.Batch{insert("a")})
			expectError(t, err, tablestore.ErrUnavailable)
			if time.Since(start) != time.Second || service.requests() != 1 {
				t.Errorf("%v after %s and %d requests", err, time.Since(start), service.requests())
			}
		})
	})
}

// A cancelled call is not retried, so no retry is logged.
func TestNoRetryIsLoggedForACancelledCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		store, service := scripted(t, aztablestore.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, hangs)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err := store.Get(ctx, key("a"))
		expectError(t, err, tablestore.ErrUnavailable)
		if log.Len() > 0 || service.requests() != 1 {
			t.Errorf("after %d requests the log says %s", service.requests(), &log)
		}
	})
}

func TestRetriesAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		options := aztablestore.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}
		store, _ := scripted(t, options, refuses(503, "ServerBusy", "Retry-After", "2"), inside(done(one)))
		if _, err := store.Commit(t.Context(), tablestore.Batch{insert("a")}); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"level=WARN", "request=commit", "target=table/p", "tries=1", "delay=2s", "ServerBusy"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("log %q does not contain %s", log.String(), want)
			}
		}
	})
}

// TestPatience checks the deadline of a request: its own, or that of a caller who knows that
// the service is slow. Such a caller's request is not sent again.
func TestPatience(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		patience time.Duration
		requests int
		took     time.Duration
	}{
		"the driver's":          {0, 3, aztablestore.CallTimeout},
		"the caller's":          {20 * time.Second, 1, 20 * time.Second},
		"longer than any other": {2 * time.Minute, 1, 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var outcomes []aztablestore.Outcome
				store, service := scripted(t, aztablestore.Options{Observe: func(s aztablestore.Sample) {
					outcomes = append(outcomes, s.Outcome)
				}}, hangs)
				ctx := t.Context()
				if test.patience > 0 {
					ctx = tablestore.WithPatience(ctx, test.patience)
				}
				began := time.Now()
				_, err := store.Get(ctx, key("a"))
				expectError(t, err, tablestore.ErrUnavailable)
				if took := time.Since(began); took != test.took || service.requests() != test.requests {
					t.Errorf("%d requests in %s, want %d in %s", service.requests(), took, test.requests, test.took)
				}
				if outcomes[0] != aztablestore.Unanswered { // The circuit of the account counts it.
					t.Errorf("the outcome is %s", outcomes[0])
				}
			})
		})
	}
}
