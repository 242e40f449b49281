package ledger_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// lines returns a script on a process whose store has hooks.
func lines(t *testing.T, cfg ledger.Config) (*lineScript, *bundle) {
	t.Helper()
	b := open(t, split(), cfg)
	return newLineScript(t, b.Ledger), b
}

// A failed job can be released though its rerun was lost, and though nothing has abandoned that rerun yet.
func TestLine_ReleaseOfAJobWhoseRerunWasLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := lines(t, ledger.Config{Shards: 1})
		s.play(`
			accept a
			accept b
			fail a`)
		b.lose(t, func() {
			if _, err := s.Rerun(t.Context(), ledger.Rerun{JobID: s.jobs["a"], From: ledger.FromFailed}); err == nil {
				t.Fatal("the rerun was meant to fail")
			}
		})
		s.play(`refused release a`)
		time.Sleep(2 * time.Minute)
		s.play(`
			release a
			want b=runs`)
	})
}

// A look that finds that the first job has expired projects its end.
func TestLine_ProjectsAJobThatExpiredBeforeItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		projector := &sketch{}
		s, _ := lines(t, ledger.Config{Shards: 1, Projector: projector})
		s.play(`
			accept a
			accept b expires 30s
			accept c`)
		time.Sleep(time.Minute)
		s.play(`
			end a
			want b=expired c=runs`)
		for _, r := range projector.given {
			if r.Job.ID == s.jobs["b"] && r.Job.State == statemachine.JobFailedFinal {
				return
			}
		}
		t.Error("the end of b was not projected")
	})
}
