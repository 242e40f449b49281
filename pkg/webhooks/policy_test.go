package webhooks_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/webhooks"
)

var t0 = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

func failed() webhooks.Result {
	return webhooks.Result{Outcome: webhooks.Failed, Status: 500, Reason: "the receiver answered 500"}
}

func retryAfter(after time.Duration) webhooks.Result {
	return webhooks.Result{
		Outcome: webhooks.RetryAfter, Status: 503, After: after, Reason: "the receiver answered 503", HostFault: true,
	}
}

// small is a policy with which one can count.
var small = webhooks.Policy{Delays: []time.Duration{10 * time.Second, time.Minute}, Jitter: 0.5}

func TestNext(t *testing.T) {
	t.Parallel()
	result := func(outcome webhooks.Outcome) webhooks.Result { return webhooks.Result{Outcome: outcome} }
	tests := []struct {
		name     string
		attempts int
		result   webhooks.Result
		random   float64
		state    webhooks.State
		in       time.Duration
	}{
		{"delivered", 1, result(webhooks.Delivered), 0, webhooks.StateDelivered, 0},
		{"gone", 1, result(webhooks.Gone), 0, webhooks.StateGone, 0},
		{"refused", 0, result(webhooks.Refused), 0, webhooks.StateRefused, 0},
		{"first failed", 1, failed(), 0, webhooks.StatePending, 10 * time.Second},
		{"second failed", 2, failed(), 0, webhooks.StatePending, time.Minute},
		{"last failed", 3, failed(), 0, webhooks.StateExhausted, 0},
		{"far too many", 99, failed(), 0, webhooks.StateExhausted, 0},
		{"half the jitter", 1, failed(), 0.5, webhooks.StatePending, 12500 * time.Millisecond},
		{"nearly all of it", 2, failed(), math.Nextafter(1, 0), webhooks.StatePending, 90 * time.Second},
		{"receiver comes before the schedule", 2, retryAfter(time.Second), 0, webhooks.StatePending, time.Minute},
		{"receiver comes after the schedule", 1, retryAfter(time.Hour), 0, webhooks.StatePending, time.Hour},
		{"never before the receiver says so", 1, retryAfter(time.Hour), 0.2, webhooks.StatePending, 66 * time.Minute},
		{"the last one, with any Retry-After", 3, retryAfter(time.Second), 0, webhooks.StateExhausted, 0},
		{"interrupted", 0, result(webhooks.Interrupted), 0.9, webhooks.StatePending, 0},
		{"interrupted at the last attempt", 2, result(webhooks.Interrupted), 0.9, webhooks.StatePending, 0},
		{"deferred", 3, result(webhooks.Deferred), 0.9, webhooks.StatePending, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			at, state := small.Next(test.attempts, test.result, t0, test.random)
			if state != test.state {
				t.Fatalf("state %s, want %s", state, test.state)
			}
			want := t0.Add(test.in)
			if state != webhooks.StatePending {
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
	policy := webhooks.StandardPolicy()
	policy.Jitter = 0
	delivery := webhooks.Delivery{ID: "j.0", State: webhooks.StatePending, NextAttemptAt: t0}
	var sent []string
	for delivery.State == webhooks.StatePending {
		now := delivery.NextAttemptAt
		sent = append(sent, now.Sub(t0).String())
		delivery = policy.Apply(delivery, failed(), now, 0)
	}
	want := []string{"0s", "5s", "5m5s", "35m5s", "2h35m5s", "7h35m5s", "17h35m5s", "31h35m5s", "51h35m5s", "75h35m5s"}
	if diff := cmp.Diff(want, sent); diff != "" {
		t.Errorf("attempts (-want +got):\n%s", diff)
	}
	last := t0.Add(75*time.Hour + 35*time.Minute + 5*time.Second)
	if diff := cmp.Diff(webhooks.Delivery{
		ID: "j.0", State: webhooks.StateExhausted, Attempts: 10, LastStatus: 500, LastError: "the receiver answered 500", UpdatedAt: last,
	}, delivery); diff != "" {
		t.Errorf("Delivery (-want +got):\n%s", diff)
	}
}

func TestApply(t *testing.T) {
	t.Parallel()
	before := webhooks.Delivery{
		ID: "j.0", JobID: "j", TenantID: "t", URL: "https://example.com", Body: []byte("{}"), State: webhooks.StatePending,
		Attempts: 1, NextAttemptAt: t0, LastStatus: 404, LastError: "the receiver answered 404", CreatedAt: t0, UpdatedAt: t0,
	}
	now := t0.Add(time.Second)
	tests := []struct {
		name   string
		result webhooks.Result
		want   func(*webhooks.Delivery)
	}{
		{"delivered", webhooks.Result{Outcome: webhooks.Delivered, Status: 204}, func(d *webhooks.Delivery) {
			d.State, d.Attempts, d.NextAttemptAt, d.LastStatus, d.LastError = webhooks.StateDelivered, 2, time.Time{}, 204, ""
		}},
		{"gone", webhooks.Result{Outcome: webhooks.Gone, Status: 410, Reason: "x"}, func(d *webhooks.Delivery) {
			d.State, d.Attempts, d.NextAttemptAt, d.LastStatus, d.LastError = webhooks.StateGone, 2, time.Time{}, 410, "x"
		}},
		{"failed", failed(), func(d *webhooks.Delivery) {
			d.Attempts, d.NextAttemptAt = 2, now.Add(time.Minute)
			d.LastStatus, d.LastError = 500, "the receiver answered 500"
		}},
		{"to be left alone", retryAfter(time.Hour), func(d *webhooks.Delivery) {
			d.Attempts, d.NextAttemptAt = 2, now.Add(time.Hour)
			d.LastStatus, d.LastError = 503, "the receiver answered 503"
		}},
		{"refused, so not sent", webhooks.Result{Outcome: webhooks.Refused, Reason: "x"}, func(d *webhooks.Delivery) {
			d.State, d.NextAttemptAt, d.LastStatus, d.LastError = webhooks.StateRefused, time.Time{}, 0, "x"
		}},
		{"interrupted, so not counted", webhooks.Result{Outcome: webhooks.Interrupted, Reason: "x"}, func(d *webhooks.Delivery) {
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
		policy webhooks.Policy
		want   string
	}{
		{"negative delay", webhooks.Policy{Delays: []time.Duration{0, -1}}, "Delays[1]"},
		{"negative jitter", webhooks.Policy{Jitter: -0.1}, "Jitter"},
		{"too much jitter", webhooks.Policy{Jitter: 1.1}, "Jitter"},
		{"no number", webhooks.Policy{Jitter: math.NaN()}, "Jitter"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if err := test.policy.Validate(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Validate: %v, want an error about %s", err, test.want)
			}
		})
	}
	for _, policy := range []webhooks.Policy{{}, small, webhooks.StandardPolicy()} {
		if err := policy.Validate(); err != nil {
			t.Errorf("Validate(%+v): %v", policy, err)
		}
	}
}
