package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/inbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source hands out commands, and records their outcomes.
type source struct {
	inbox.Operator
	waiting  []inbox.Command
	outcomes map[string]inbox.Outcome
	skipped  []string
	pages    int // how many calls of Forget it takes
	cursors  []string
	err      error
}

func (s *source) Take(ctx context.Context, limit int, skip []string, accept func(context.Context, []inbox.Command) []inbox.Outcome,
) (int, error) {
	s.skipped = append(s.skipped, strings.Join(skip, ","))
	taken := s.waiting[:min(limit, len(s.waiting))]
	s.waiting = s.waiting[len(taken):]
	for i, outcome := range accept(ctx, taken) {
		s.outcomes[taken[i].ID] = outcome
	}
	return len(taken), s.err
}

func (s *source) Survey(context.Context) (inbox.Survey, error) {
	return inbox.Survey{Waiting: len(s.waiting), Refused: 2}, s.err
}

func (s *source) Forget(_ context.Context, after string, _ time.Duration) (string, int, error) {
	s.cursors = append(s.cursors, after)
	if len(after) == s.pages {
		return "", 0, s.err
	}
	return after + "x", 0, s.err
}

func TestReader_SeparatesRefusedFromWaitingCommands(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		err   error
		tries int
		want  inbox.Outcome
	}{
		"accepted":    {nil, 0, inbox.Outcome{JobID: "job of accepted"}},
		"at a limit":  {&apierror.Error{Code: apierror.TenantLimit}, 2, inbox.Outcome{Problem: &apierror.Error{Code: apierror.TenantLimit}, PutBack: true}},
		"no store":    {&apierror.Error{Code: apierror.StoreUnavailable}, 0, inbox.Outcome{Problem: &apierror.Error{Code: apierror.StoreUnavailable}, Wait: time.Second, Unsure: true}},
		"often tried": {&apierror.Error{Code: apierror.Conflict}, 90, inbox.Outcome{Problem: &apierror.Error{Code: apierror.Conflict}, Wait: 30 * time.Second, Unsure: true}},
		"a full line": {&apierror.Error{Code: apierror.LineFull}, 0, inbox.Outcome{Problem: &apierror.Error{Code: apierror.LineFull}, Wait: time.Second}},
		"a busy line": {&apierror.Error{Code: apierror.LineBusy}, 0, inbox.Outcome{Problem: &apierror.Error{Code: apierror.LineBusy}}},
		"at a rate":   {&apierror.Error{Code: apierror.RateLimited}, 0, inbox.Outcome{Problem: &apierror.Error{Code: apierror.RateLimited}, PutBack: true}},
		"told when": {&apierror.Error{Code: apierror.ShuttingDown, RetryAfter: time.Hour}, 0,
			inbox.Outcome{Problem: &apierror.Error{Code: apierror.ShuttingDown, RetryAfter: time.Hour}, Wait: time.Hour, Unsure: true}},
		"a defect": {errUnforeseen, 5, inbox.Outcome{Problem: apierror.From(errUnforeseen), Wait: 30 * time.Second, Unsure: true}},
		"refused": {&apierror.Error{Code: apierror.UnknownRequestType}, 3,
			inbox.Outcome{Problem: &apierror.Error{Code: apierror.UnknownRequestType}}},
		"a panic": {nil, 0, inbox.Outcome{Problem: &apierror.Error{Code: apierror.Internal, Err: errors.New("panic: a defect")}, Wait: time.Second, Unsure: true}},
	}
	from := &source{outcomes: map[string]inbox.Outcome{}}
	want, observed := map[string]inbox.Outcome{}, make(chan inbox.Decision, len(cases))
	for id, c := range cases {
		from.waiting = append(from.waiting, inbox.Command{ID: id, TenantID: "tenant of " + id, Tries: c.tries})
		want[id] = c.want
	}
	reader := newReader(t, inbox.Config{
		Source: from,
		Accept: func(_ context.Context, c *inbox.Command) (string, error) {
			if c.ID == "a panic" {
				panic("a defect")
			}
			return "job of " + c.ID, cases[c.ID].err
		},
		Observe: func(decision inbox.Decision) { observed <- decision },
	})
	if err := reader.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	same := cmp.Comparer(func(a, b *apierror.Error) bool {
		return (a == nil) == (b == nil) && (a == nil || a.Error() == b.Error())
	})
	if diff := cmp.Diff(want, from.outcomes, same); diff != "" {
		t.Error(diff)
	}
	counts := map[inbox.Decision]int{}
	for range cases {
		counts[<-observed]++
	}
	if diff := cmp.Diff(map[inbox.Decision]int{inbox.Accepts: 1, inbox.Refuses: 2, inbox.Waits: 8}, counts); diff != "" {
		t.Error(diff)
	}
}

var errUnforeseen = errors.New("unforeseen")

func newReader(t *testing.T, cfg inbox.Config) *inbox.Reader {
	t.Helper()
	if cfg.Find == nil {
		cfg.Find = accept
	}
	reader, err := inbox.NewReader(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return reader
}

func accept(context.Context, *inbox.Command) (string, error) { return "j", nil }

func TestReader_TakesAllDueCommands(t *testing.T) {
	t.Parallel()
	from := &source{outcomes: map[string]inbox.Outcome{}}
	for i := range 1000 {
		from.waiting = append(from.waiting, inbox.Command{ID: fmt.Sprint(i)})
	}
	reader := newReader(t, inbox.Config{Source: from, Accept: accept})
	if err := reader.RunOnce(t.Context()); err != nil || len(from.outcomes) != 1000 {
		t.Errorf("%d commands were taken: %v", len(from.outcomes), err)
	}
	from.err = errUnforeseen
	if err := reader.RunOnce(t.Context()); !errors.Is(err, errUnforeseen) {
		t.Errorf("an unavailable store: %v", err)
	}
}

// lateSource has a command that is committed a moment after the others were taken, without a
// notification.
type lateSource struct {
	*source

	begun time.Time
	late  []inbox.Command
}

func (s *lateSource) Take(ctx context.Context, limit int, skip []string, accept func(context.Context, []inbox.Command) []inbox.Outcome,
) (int, error) {
	if time.Since(s.begun) >= 20*time.Millisecond {
		s.waiting, s.late = append(s.waiting, s.late...), nil
	}
	return s.source.Take(ctx, limit, skip, accept)
}

func TestReader_LooksAgainAfterItTookCommands(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from := &lateSource{
			source: &source{outcomes: map[string]inbox.Outcome{}, waiting: []inbox.Command{{ID: "first"}}},
			begun:  time.Now(), late: []inbox.Command{{ID: "late"}},
		}
		accept := func(context.Context, *inbox.Command) (string, error) { return "j", nil }
		reader := newReader(t, inbox.Config{Source: from, Accept: accept})
		if err := reader.RunOnce(t.Context()); err != nil || len(from.outcomes) != 2 {
			t.Errorf("%+v, %v", from.outcomes, err)
		}
		taken := len(from.skipped)
		if err := reader.RunOnce(t.Context()); err != nil || len(from.skipped) != taken+1 {
			t.Errorf("a pass without commands looked %d times, %v", len(from.skipped)-taken, err)
		}
		from.waiting = []inbox.Command{{ID: "last"}}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := reader.RunOnce(ctx); err != nil || time.Since(from.begun) >= time.Second {
			t.Errorf("a pass of a reader that ends: %v after %s", err, time.Since(from.begun))
		}
	})
}

// The other commands of a tenant at its limit keep their place, those of another tenant are
// accepted, and the tenant is tried again a second later.
func TestReader_SkipsATenantAtItsLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from, tried := &source{outcomes: map[string]inbox.Outcome{}}, atomic.Int64{}
		for i := range 64 {
			from.waiting = append(from.waiting, inbox.Command{ID: fmt.Sprint(i), TenantID: "full"})
		}
		from.waiting = append(from.waiting, inbox.Command{ID: "other", TenantID: "free"})
		reader := newReader(t, inbox.Config{Source: from, Accept: func(_ context.Context, c *inbox.Command) (string, error) {
			if c.TenantID == "free" {
				return "j", nil
			}
			tried.Add(1)
			return "", &apierror.Error{Code: apierror.TenantLimit}
		}})
		if err := reader.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := tried.Load(); n < 1 || n > 16 || !from.outcomes["63"].PutBack || from.outcomes["63"].Problem != nil ||
			from.outcomes["other"].JobID != "j" {
			t.Errorf("%d commands were tried: %+v", n, from.outcomes)
		}
		time.Sleep(2 * time.Second)
		if err := reader.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"", "full", "full", "full", ""}, from.skipped); diff != "" {
			t.Error(diff)
		}
	})
}

// A command to discard is never accepted, not even one of a tenant at its limit.
func TestReader_ChecksADiscardedCommandForAJob(t *testing.T) {
	t.Parallel()
	from := &source{outcomes: map[string]inbox.Outcome{}, waiting: []inbox.Command{
		{ID: "full"}, {ID: "a job", Discard: true}, {ID: "none", Discard: true, Unsure: true}, {ID: "unknown", Discard: true},
	}}
	lost := &apierror.Error{Code: apierror.StoreUnavailable}
	reader := newReader(t, inbox.Config{
		Source: from,
		Accept: func(_ context.Context, c *inbox.Command) (string, error) {
			if c.Discard {
				t.Errorf("%s is accepted", c.ID)
			}
			return "", &apierror.Error{Code: apierror.TenantLimit}
		},
		Find: func(_ context.Context, c *inbox.Command) (string, error) {
			return map[string]string{"a job": "j"}[c.ID], map[string]error{"unknown": lost}[c.ID]
		},
	})
	if err := reader.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	delete(from.outcomes, "full")
	want := map[string]inbox.Outcome{
		"a job": {JobID: "j"}, "none": {PutBack: true}, "unknown": {Problem: lost, Wait: time.Second, Unsure: true},
	}
	if diff := cmp.Diff(want, from.outcomes, cmp.Comparer(func(a, b *apierror.Error) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

// A command that is put back without a look at the ledger may still be a job.
func TestReader_RemembersCommandsThatMayBeJobs(t *testing.T) {
	t.Parallel()
	from := &source{outcomes: map[string]inbox.Outcome{}}
	for i := range 64 {
		from.waiting = append(from.waiting, inbox.Command{ID: fmt.Sprint(i), TenantID: "t", Unsure: i%2 == 0})
	}
	reader := newReader(t, inbox.Config{Source: from, Accept: func(context.Context, *inbox.Command) (string, error) {
		return "", &apierror.Error{Code: apierror.RateLimited}
	}})
	if err := reader.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 64 {
		if got := from.outcomes[fmt.Sprint(i)]; !got.PutBack || got.Unsure != (i%2 == 0) {
			t.Errorf("%d: %+v", i, got)
		}
	}
}

// Commands of one order key are accepted one after another, those of others in the meantime. Once
// one waits, the rest of its key is put back, except for commands to discard.
func TestReader_AcceptsAKeyInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from := &source{outcomes: map[string]inbox.Outcome{}}
		for i := range 10 {
			from.waiting = append(from.waiting,
				inbox.Command{ID: fmt.Sprint("k", i), TenantID: "t", OrderKey: "k", Unsure: i == 9, Discard: i == 4 || i == 8},
				inbox.Command{ID: fmt.Sprint("l", i), TenantID: "t", OrderKey: "l"},
				inbox.Command{ID: fmt.Sprint("m", i), TenantID: "other", OrderKey: "k"},
				inbox.Command{ID: fmt.Sprint("n", i), TenantID: "t"})
		}
		lost := &apierror.Error{Code: apierror.StoreUnavailable}
		var mu sync.Mutex
		accepted := map[string]string{}
		begun := time.Now()
		reader := newReader(t, inbox.Config{
			Source: from,
			Accept: func(_ context.Context, c *inbox.Command) (string, error) {
				time.Sleep(rand.N(time.Second))
				mu.Lock()
				defer mu.Unlock()
				accepted[c.ID[:1]] += c.ID[1:]
				switch c.ID {
				case "k2":
					return "", &apierror.Error{Code: apierror.PayloadInvalid} // for good
				case "k6":
					return "", lost
				}
				return "j", nil
			},
			Find: func(context.Context, *inbox.Command) (string, error) { return "", nil },
		})
		if err := reader.RunOnce(t.Context()); err != nil || time.Since(begun) > 15*time.Second {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
		if accepted["k"] != "012356" || accepted["l"] != "0123456789" || accepted["m"] != "0123456789" || len(accepted["n"]) != 10 {
			t.Errorf("accepted %v", accepted)
		}
		want := map[string]inbox.Outcome{
			"k6": {Problem: lost, Wait: time.Second, Unsure: true}, "k7": {PutBack: true}, "k8": {PutBack: true}, "k9": {PutBack: true, Unsure: true},
		}
		for id, outcome := range want {
			if got := from.outcomes[id]; got != outcome {
				t.Errorf("%s: %+v, want %+v", id, got, outcome)
			}
		}
	})
}

// A command that no protocol of this replica accepts waits for the grace period.
func TestReader_WaitsForProtocols(t *testing.T) {
	t.Parallel()
	for code, first := range map[apierror.Code]time.Duration{apierror.InvalidEnvelope: 2 * time.Second, apierror.RefInvalid: 0} {
		synctest.Test(t, func(t *testing.T) {
			from := &source{outcomes: map[string]inbox.Outcome{}}
			submitted := time.Now()
			reader := newReader(t, inbox.Config{Source: from, Grace: time.Minute, Accept: func(context.Context, *inbox.Command) (string, error) {
				return "", &apierror.Error{Code: code, Unfit: first > 0}
			}})
			for _, wait := range []time.Duration{first, 0} {
				from.waiting = []inbox.Command{{ID: "c", SubmittedAt: submitted, Tries: 1}}
				if err := reader.RunOnce(t.Context()); err != nil || from.outcomes["c"].Wait != wait || from.outcomes["c"].Problem.Code != code {
					t.Errorf("%s: %+v, %v", code, from.outcomes["c"], err)
				}
				time.Sleep(time.Minute)
			}
		})
	}
}

func TestReader_BoundsAPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from := &source{outcomes: map[string]inbox.Outcome{}, waiting: make([]inbox.Command, 10_000)}
		reader := newReader(t, inbox.Config{Source: from, Accept: func(context.Context, *inbox.Command) (string, error) {
			time.Sleep(time.Second)
			return "j", nil
		}})
		if err := reader.RunOnce(t.Context()); err != nil || len(from.waiting) == 0 || len(from.waiting) == 10_000 {
			t.Errorf("%d commands are left: %v", len(from.waiting), err)
		}
	})
}

func TestReader_Maintain(t *testing.T) {
	t.Parallel()
	from := &source{pages: 2}
	reader := newReader(t, inbox.Config{Source: from, Accept: accept, Retention: time.Hour})
	if got := reader.Survey(); got != (inbox.Survey{}) {
		t.Errorf("before the first count: %+v", got)
	}
	for range 2 {
		if err := reader.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"", "x", "xx", "", "x", "xx"}, from.cursors); diff != "" {
		t.Error(diff)
	}
	from.err = errUnforeseen
	if err := reader.Maintain(t.Context()); !errors.Is(err, errUnforeseen) {
		t.Errorf("an unavailable store: %v", err)
	}
	if got := reader.Survey(); got != (inbox.Survey{Refused: 2}) {
		t.Errorf("%+v", got)
	}
	keeping := &source{}
	if err := newReader(t, inbox.Config{Source: keeping, Accept: accept}).Maintain(t.Context()); err != nil || keeping.cursors != nil {
		t.Errorf("it deletes commands after %v although jobs are kept forever: %v", keeping.cursors, err)
	}
}

func TestNewReader_NamesTheMissingField(t *testing.T) {
	t.Parallel()
	for _, cfg := range []inbox.Config{{Source: &source{}, Find: accept}, {Accept: accept, Find: accept}, {Source: &source{}, Accept: accept}} {
		if _, err := inbox.NewReader(cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}
