package ledger_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
)

// The jobs of a line that wait are cancelled from its end, so many at a time, with those before them left.
func TestCancelWaiting(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]ledger.Config{"atomic": {Store: ledgertest.Atomic()}, "split": {Store: ledgertest.Split()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newLineScript(t, ledgertest.Open(t, store))
			id := ledger.LineID("tenant_a", "doc")
			cancel := func(limit int) (int, bool) {
				t.Helper()
				cancelled, more, err := s.CancelWaiting(t.Context(), ledger.CancelWaiting{
					LineID: id, Actor: "ann", RequestID: "r", Reason: "why", Limit: limit, Until: time.Now().Add(time.Minute),
				})
				musttest.NoError(t, err)
				return cancelled, more
			}
			for i := range 8 {
				s.play(fmt.Sprintf("accept j%d", i))
			}
			s.play("cancel j5\nplaces 7")
			for _, step := range []struct {
				limit, cancelled int
				more             bool
				want             string
			}{
				{2, 2, true, "want j4=waits j6=cancelled j7=cancelled\nplaces 5"},
				{3, 3, true, "want j0=runs j1=waits j2=cancelled j3=cancelled j4=cancelled\nplaces 2"},
				{3, 1, false, "want j0=runs j1=cancelled\nplaces 1"},
				{3, 0, false, "want j0=runs\nplaces 1"},
			} {
				cancelled, more := cancel(step.limit)
				if cancelled != step.cancelled || more != step.more {
					t.Errorf("%d were cancelled, more %t; want %d, %t", cancelled, more, step.cancelled, step.more)
				}
				s.play(step.want)
			}
			s.play("end j0")
			_, _, err := s.CancelWaiting(t.Context(), ledger.CancelWaiting{LineID: id, Limit: 1})
			if !errors.Is(err, ledger.ErrLineNotFound) {
				t.Errorf("of a line without jobs: %v", err)
			}
		})
	}
}

func TestCancelWaiting_StopsInTime(t *testing.T) {
	t.Parallel()
	s := newLineScript(t, ledgertest.Open(t, ledger.Config{}))
	s.play("accept a\naccept b")
	cancelled, more, err := s.CancelWaiting(t.Context(), ledger.CancelWaiting{LineID: ledger.LineID("tenant_a", "doc"), Limit: 9})
	if err != nil || cancelled != 0 || !more {
		t.Errorf("%d were cancelled, more %t, %v", cancelled, more, err)
	}
	s.play("want b=waits")
}

func TestProblem_OfLines(t *testing.T) {
	t.Parallel()
	for code, err := range map[apierror.Code]error{
		apierror.LineNotFound: ledger.ErrLineNotFound, apierror.NotBlocking: ledger.ErrNotBlocking,
		apierror.LineFull: ledger.ErrLineFull, apierror.LineBusy: &ledger.LineBusyError{JobID: "j1"},
	} {
		told := apierror.From(ledger.Problem(fmt.Errorf("accept: %w", err)))
		if told.Code != code || told.Detail == "" || (told.RetryAfter > 0) != (code == apierror.LineFull) {
			t.Errorf("%v is told as %+v", err, told)
		}
	}
}
