package ledger_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
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
