package seqledger_test

import (
	"errors"
	"testing"

	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
)

func TestConfigDefaults(t *testing.T) {
	t.Parallel()
	f := &fixture{Window: seqledger.New(seqledger.Config{
		LeaseDuration: leaseDuration,
		Window:        1,
		Retry:         seqledger.Policy{Retryable: []seqledger.Class{timeout}},
		Fatal:         func(e *seqledger.IllegalTransitionError) { t.Error(e) },
	})}
	seq, _ := f.in(t, seqledger.TerminalFail)
	if retried, err := f.Retry(seq, timeout, t0); retried || err != nil {
		t.Errorf("Retry = %t, %v, want none without MaxAttempts", retried, err)
	}
	if _, err := f.Take(t0); !errors.Is(err, seqledger.ErrWindowFull) {
		t.Errorf("Take beyond Window: error %v, want ErrWindowFull", err)
	}
}

func TestRetryPolicy(t *testing.T) {
	t.Parallel()
	policy := seqledger.Policy{MaxAttempts: 3, Retryable: []seqledger.Class{timeout}}
	tests := []struct {
		name     string
		class    seqledger.Class
		attempts int
		want     bool
	}{
		{"first attempt failed", timeout, 1, true},
		{"last but one failed", timeout, 2, true},
		{"last failed", timeout, 3, false},
		{"class is not retryable", poison, 1, false},
		{"expiry is a class like others", seqledger.LeaseExpired, 1, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := policy.Allows(test.class, test.attempts); got != test.want {
				t.Errorf("Allows(%s, %d) = %t, want %t", test.class, test.attempts, got, test.want)
			}
		})
	}
}
