package webhook_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/webhook"
)

var t0 = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

func failed() webhook.Result {
	return webhook.Result{Outcome: webhook.Failed, Status: 500, Reason: "the receiver answered 500"}
}

func retryAfter(after time.Duration) webhook.Result {
	return webhook.Result{
		Outcome: webhook.RetryAfter, Status: 503, After: after, Reason: "the receiver answered 503", HostFault: true,
	}
}

// small is a policy with which one can count.
var small = webhook.Policy{Delays: []time.Duration{10 * time.Second, time.Minute}, Jitter: 0.5}

func TestNext(t *testing.T) {
	t.Parallel()
	result := func(outcome webhook.Outcome) webhook.Result { return webhook.Result{Outcome: outcome} }
	tests := []struct {
		name     string
		attempts int
		result   webhook.Result
		random   float64
		state    webhook.State
		in       time.Duration
	}{
		{"delivered", 1, result(webhook.Delivered), 0, webhook.StateDelivered, 0},
		{"gone", 1, result(webhook.Gone), 0, webhook.StateGone, 0},
		{"refused", 0, result(webhook.Refused), 0, webhook.StateRefused, 0},
		{"first failed", 1, failed(), 0, webhook.StatePending, 10 * time.Second},
		{"second failed", 2, failed(), 0, webhook.StatePending, time.Minute},
		{"last failed", 3, failed(), 0, webhook.StateExhausted, 0},
		{"far too many", 99, failed(), 0, webhook.StateExhausted, 0},
		{"half the jitter", 1, failed(), 0.5, webhook.StatePending, 12500 * time.Millisecond},
		{"nearly all of it", 2, failed(), math.Nextafter(1, 0), webhook.StatePending, 90 * time.Second},
		{"receiver comes before the schedule", 2, retryAfter(time.Second), 0, webhook.StatePending, time.Minute},
		{"receiver comes after the schedule", 1, retryAfter(time.Hour), 0, webhook.StatePending, time.Hour},
		{"never before the receiver says so", 1, retryAfter(time.Hour), 0.2, webhook.StatePending, 66 * time.Minute},
		{"the last one, with any Retry-After", 3, retryAfter(time.Second), 0, webhook.StateExhausted, 0},
		{"interrupted", 0, result(webhook.Interrupted), 0.9, webhook.StatePending, 0},
		{"interrupted at the last attempt", 2, result(webhook.Interrupted), 0.9, webhook.StatePending, 0},
		{"deferred", 3, result(webhook.Deferred), 0.9, webhook.StatePending, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			at, state := small.Next(test.attempts, test.result, t0, test.random)
			if state != test.state {
				t.Fatalf("state %s, want %s", state, test.state)
			}
			want := t0.Add(test.in)
			if state != webhook.StatePending {
				want = time.Time{}
			}
			if !at.Equal(want) {
				t.Errorf("at %s, want %s", at, want)
			}
		})
	}
}

// TestNext_InWholeMilliseconds: a store keeps no more, and must not make it early.
func TestNext_InWholeMilliseconds(t *testing.T) {
	t.Parallel()
	for _, nanoseconds := range []time.Duration{0, 1, 999_999, 1_000_000} {
		now := t0.Add(nanoseconds)
		at, _ := small.Next(1, failed(), now, 0)
		due := now.Add(10 * time.Second)
		if at.Before(due) || at.Sub(due) >= time.Millisecond || at.Nanosecond()%1_000_000 != 0 {
			t.Errorf("due %s is at %s", due, at)
		}
	}
}

// TestStandardPolicy follows a webhook that nobody ever takes.
func TestStandardPolicy(t *testing.T) {
	t.Parallel()
	policy := webhook.StandardPolicy()
	policy.Jitter = 0
	delivery := webhook.Delivery{ID: "j.0", State: webhook.StatePending, NextAttemptAt: t0}
	var sent []string
	for delivery.State == webhook.StatePending {
		now := delivery.NextAttemptAt
		sent = append(sent, now.Sub(t0).String())
		delivery = policy.Apply(delivery, failed(), now, 0)
	}
	want := []string{"0s", "5s", "5m5s", "35m5s", "2h35m5s", "7h35m5s", "17h35m5s", "31h35m5s", "51h35m5s", "75h35m5s"}
	if diff := cmp.Diff(want, sent); diff != "" {
		t.Errorf("attempts (-want +got):\n%s", diff)
	}
	last := t0.Add(75*time.Hour + 35*time.Minute + 5*time.Second)
	if diff := cmp.Diff(webhook.Delivery{
		ID: "j.0", State: webhook.StateExhausted, Attempts: 10, LastStatus: 500, LastError: "the receiver answered 500", UpdatedAt: last,
	}, delivery); diff != "" {
		t.Errorf("Delivery (-want +got):\n%s", diff)
	}
}

func TestApply(t *testing.T) {
	t.Parallel()
	before := webhook.Delivery{
		ID: "j.0", JobID: "j", TenantID: "t", URL: "https://example.com", Body: []byte("{}"), State: webhook.StatePending,
		Attempts: 1, NextAttemptAt: t0, LastStatus: 404, LastError: "the receiver answered 404", CreatedAt: t0, UpdatedAt: t0,
	}
	now := t0.Add(time.Second)
	tests := []struct {
		name   string
		result webhook.Result
		want   func(*webhook.Delivery)
	}{
		{"delivered", webhook.Result{Outcome: webhook.Delivered, Status: 204}, func(d *webhook.Delivery) {
			d.State, d.Attempts, d.NextAttemptAt, d.LastStatus, d.LastError = webhook.StateDelivered, 2, time.Time{}, 204, ""
		}},
		{"gone", webhook.Result{Outcome: webhook.Gone, Status: 410, Reason: "x"}, func(d *webhook.Delivery) {
			d.State, d.Attempts, d.NextAttemptAt, d.LastStatus, d.LastError = webhook.StateGone, 2, time.Time{}, 410, "x"
		}},
		{"failed", failed(), func(d *webhook.Delivery) {
			d.Attempts, d.NextAttemptAt = 2, now.Add(time.Minute)
			d.LastStatus, d.LastError = 500, "the receiver answered 500"
		}},
		{"to be left alone", retryAfter(time.Hour), func(d *webhook.Delivery) {
			d.Attempts, d.NextAttemptAt = 2, now.Add(time.Hour)
			d.LastStatus, d.LastError = 503, "the receiver answered 503"
		}},
		{"refused, so not sent", webhook.Result{Outcome: webhook.Refused, Reason: "x"}, func(d *webhook.Delivery) {
			d.State, d.NextAttemptAt, d.LastStatus, d.LastError = webhook.StateRefused, time.Time{}, 0, "x"
		}},
		{"interrupted, so not counted", webhook.Result{Outcome: webhook.Interrupted, Reason: "x"}, func(d *webhook.Delivery) {
			d.NextAttemptAt = now
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			want := before
			want.UpdatedAt = now
			test.want(&want)
			if diff := cmp.Diff(want, small.Apply(before, test.result, now, 0)); diff != "" {
				t.Errorf("Delivery (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPolicy_NamesTheBadField(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		policy webhook.Policy
		want   string
	}{
		{"negative delay", webhook.Policy{Delays: []time.Duration{0, -1}}, "Delays[1]"},
		{"negative jitter", webhook.Policy{Jitter: -0.1}, "Jitter"},
		{"too much jitter", webhook.Policy{Jitter: 1.1}, "Jitter"},
		{"no number", webhook.Policy{Jitter: math.NaN()}, "Jitter"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if err := test.policy.Validate(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Validate: %v, want an error about %s", err, test.want)
			}
		})
	}
	for _, policy := range []webhook.Policy{{}, small, webhook.StandardPolicy()} {
		if err := policy.Validate(); err != nil {
			t.Errorf("Validate(%+v): %v", policy, err)
		}
	}
}
