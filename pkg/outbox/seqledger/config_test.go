package seqledger_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
)

func TestConfigNamesTheBadField(t *testing.T) {
	t.Parallel()
	tests := []struct {
		field string
		spoil func(*seqledger.Config)
	}{
		{"LeaseDuration", func(c *seqledger.Config) { c.LeaseDuration = 0 }},
		{"LeaseDuration", func(c *seqledger.Config) { c.LeaseDuration = -time.Second }},
		{"Window", func(c *seqledger.Config) { c.Window = -1 }},
		{"Retry.MaxAttempts", func(c *seqledger.Config) { c.Retry.MaxAttempts = -1 }},
		{"Fatal", func(c *seqledger.Config) { c.Fatal = nil }},
	}
	for _, test := range tests {
		t.Run(test.field, func(t *testing.T) {
			t.Parallel()
			cfg := seqledger.Config{LeaseDuration: time.Second, Fatal: func(*seqledger.IllegalTransitionError) {}}
			if err := cfg.Validate(); err != nil {
				t.Fatalf("before: %v", err)
			}
			test.spoil(&cfg)
			window, err := seqledger.New(cfg)
			if window != nil || err == nil || !strings.Contains(err.Error(), test.field+" ") {
				t.Errorf("New = %v, %v, want an error about %s", window, err, test.field)
			}
		})
	}
}

func TestConfigDefaults(t *testing.T) {
	t.Parallel()
	window, err := seqledger.New(seqledger.Config{
		LeaseDuration: leaseDuration,
		Retry:         seqledger.Policy{Retryable: []seqledger.Class{timeout}},
		Fatal:         func(e *seqledger.IllegalTransitionError) { t.Error(e) },
	})
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{Window: window}
	seq, _ := f.in(t, seqledger.TerminalFail)
	if retried, err := f.Retry(seq, timeout, t0); retried || err != nil {
		t.Errorf("Retry = %t, %v, want none without MaxAttempts", retried, err)
	}
	for range seqledger.DefaultWindow - 1 {
		f.take(t)
	}
	if _, err := f.Take(t0); !errors.Is(err, seqledger.ErrWindowFull) {
		t.Errorf("Take beyond DefaultWindow: error %v, want ErrWindowFull", err)
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
