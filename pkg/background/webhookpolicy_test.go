package background_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/webhook"
)

var (
	webhookDue  = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	sameWebhook = cmpopts.IgnoreUnexported(ledger.WebhookRow{})
)

func retryAfter(after time.Duration) webhook.Result {
	return webhook.Result{
		Outcome: webhook.RetryAfter, Status: 503, After: after, Reason: "the receiver answered 503", HostFault: true,
	}
}

// A busy receiver says when to retry.
func ExampleWebhookPolicy_Apply() {
	policy := background.StandardWebhookPolicy()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	row := ledger.WebhookRow{State: ledger.WebhookPending}
	for _, result := range []webhook.Result{
		{Outcome: webhook.Failed, Status: 500},
		{Outcome: webhook.RetryAfter, Status: 503, After: time.Hour},
		{Outcome: webhook.Delivered, Status: 200},
	} {
		row = policy.Apply(row, result, now, 0)
		fmt.Println(now.Format(time.TimeOnly), result.Status, row.State)
		now = row.NextAttemptAt
	}
	// Output:
	// 12:00:00 500 PENDING
	// 12:00:05 503 PENDING
	// 13:00:05 200 DELIVERED
}

func TestWebhookPolicy_SchedulesTheNextAttempt(t *testing.T) {
	t.Parallel()
	result := func(outcome webhook.Outcome) webhook.Result { return webhook.Result{Outcome: outcome} }
	tests := []struct {
		name     string
		attempts int // made before
		result   webhook.Result
		random   float64
		state    ledger.WebhookState
		in       time.Duration
	}{
		{"delivered", 0, result(webhook.Delivered), 0, ledger.WebhookDelivered, 0},
		{"gone", 0, result(webhook.Gone), 0, ledger.WebhookGone, 0},
		{"refused", 0, result(webhook.Refused), 0, ledger.WebhookRefused, 0},
		{"first failed", 0, failed, 0, ledger.WebhookPending, 10 * time.Second},
		{"second failed", 1, failed, 0, ledger.WebhookPending, time.Minute},
		{"last failed", 2, failed, 0, ledger.WebhookExhausted, 0},
		{"far too many", 98, failed, 0, ledger.WebhookExhausted, 0},
		{"half the jitter", 0, failed, 0.5, ledger.WebhookPending, 12500 * time.Millisecond},
		{"nearly all of it", 1, failed, math.Nextafter(1, 0), ledger.WebhookPending, 90 * time.Second},
		{"receiver comes before the schedule", 1, retryAfter(time.Second), 0, ledger.WebhookPending, time.Minute},
		{"receiver comes after the schedule", 0, retryAfter(time.Hour), 0, ledger.WebhookPending, time.Hour},
		{"never before the receiver says so", 0, retryAfter(time.Hour), 0.2, ledger.WebhookPending, 66 * time.Minute},
		{"the last one, with any Retry-After", 2, retryAfter(time.Second), 0, ledger.WebhookExhausted, 0},
		{"interrupted", 0, result(webhook.Interrupted), 0.9, ledger.WebhookPending, 0},
		{"interrupted at the last attempt", 2, result(webhook.Interrupted), 0.9, ledger.WebhookPending, 0},
		{"deferred", 3, webhook.Result{Outcome: webhook.Deferred, After: time.Minute}, 0.9, ledger.WebhookPending, time.Minute},
		{ // It is old, so a tenth of its age would be too long.
			"deferred, as the host is silent", 3, webhook.Result{Outcome: webhook.Deferred, After: time.Minute, HostFault: true},
			0.9, ledger.WebhookPending, 61 * time.Minute,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			before := ledger.WebhookRow{State: ledger.WebhookPending, Attempts: test.attempts, NextAttemptAt: webhookDue}
			got := roundDelays.Apply(before, test.result, webhookDue, test.random)
			if got.State != test.state {
				t.Fatalf("state %s, want %s", got.State, test.state)
			}
			want := webhookDue.Add(test.in)
			if got.State != ledger.WebhookPending {
				want = time.Time{}
			}
			if !got.NextAttemptAt.Equal(want) {
				t.Errorf("at %s, want %s", got.NextAttemptAt, want)
			}
		})
	}
}

// Stores keep milliseconds, and rounding must not make an attempt early.
func TestWebhookPolicy_RoundsUpToMilliseconds(t *testing.T) {
	t.Parallel()
	for _, nanoseconds := range []time.Duration{0, 1, 999_999, 1_000_000} {
		now := webhookDue.Add(nanoseconds)
		at := roundDelays.Apply(ledger.WebhookRow{}, failed, now, 0).NextAttemptAt
		due := now.Add(10 * time.Second)
		if at.Before(due) || at.Sub(due) >= time.Millisecond || at.Nanosecond()%1_000_000 != 0 {
			t.Errorf("due %s is at %s", due, at)
		}
	}
}

// TestStandardWebhookPolicy follows a webhook whose attempts all fail.
func TestStandardWebhookPolicy(t *testing.T) {
	t.Parallel()
	policy := background.StandardWebhookPolicy()
	policy.Jitter = 0
	delivery := ledger.WebhookRow{State: ledger.WebhookPending, NextAttemptAt: webhookDue}
	var sent []string
	for delivery.State == ledger.WebhookPending {
		now := delivery.NextAttemptAt
		sent = append(sent, now.Sub(webhookDue).String())
		delivery = policy.Apply(delivery, failed, now, 0)
	}
	want := []string{"0s", "5s", "5m5s", "35m5s", "2h35m5s", "7h35m5s", "17h35m5s", "31h35m5s", "51h35m5s", "75h35m5s"}
	if diff := cmp.Diff(want, sent); diff != "" {
		t.Errorf("attempts (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(ledger.WebhookRow{
		State: ledger.WebhookExhausted, Attempts: 10, LastStatus: 500, LastError: "the receiver answered 500",
	}, delivery, sameWebhook); diff != "" {
		t.Errorf("WebhookRow (-want +got):\n%s", diff)
	}
}

func TestWebhookPolicy_Apply(t *testing.T) {
	t.Parallel()
	before := ledger.WebhookRow{
		State: ledger.WebhookPending, Attempts: 1, NextAttemptAt: webhookDue, LastStatus: 404, LastError: "the receiver answered 404",
	}
	now := webhookDue.Add(time.Second)
	tests := []struct {
		name   string
		result webhook.Result
		want   func(*ledger.WebhookRow)
	}{
		{"delivered", webhook.Result{Outcome: webhook.Delivered, Status: 204}, func(d *ledger.WebhookRow) {
			d.State, d.Attempts, d.NextAttemptAt, d.LastStatus, d.LastError = ledger.WebhookDelivered, 2, time.Time{}, 204, ""
		}},
		{"gone", webhook.Result{Outcome: webhook.Gone, Status: 410, Reason: "x"}, func(d *ledger.WebhookRow) {
			d.State, d.Attempts, d.NextAttemptAt, d.LastStatus, d.LastError = ledger.WebhookGone, 2, time.Time{}, 410, "x"
		}},
		{"failed", failed, func(d *ledger.WebhookRow) {
			d.Attempts, d.NextAttemptAt = 2, now.Add(time.Minute)
			d.LastStatus, d.LastError = 500, "the receiver answered 500"
		}},
		{"told to wait", retryAfter(time.Hour), func(d *ledger.WebhookRow) {
			d.Attempts, d.NextAttemptAt = 2, now.Add(time.Hour)
			d.LastStatus, d.LastError = 503, "the receiver answered 503"
		}},
		{"refused, so not sent", webhook.Result{Outcome: webhook.Refused, Reason: "x"}, func(d *ledger.WebhookRow) {
			d.State, d.NextAttemptAt, d.LastStatus, d.LastError = ledger.WebhookRefused, time.Time{}, 0, "x"
		}},
		{"interrupted, so not counted", webhook.Result{Outcome: webhook.Interrupted, Reason: "x"}, func(d *ledger.WebhookRow) {
			d.NextAttemptAt = now
		}},
		{"deferred, so not counted", webhook.Result{Outcome: webhook.Deferred, After: time.Minute, Reason: "circuit open"}, func(d *ledger.WebhookRow) {
			d.NextAttemptAt, d.LastError = now.Add(time.Minute), "circuit open"
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			want := before
			test.want(&want)
			if diff := cmp.Diff(want, roundDelays.Apply(before, test.result, now, 0), sameWebhook); diff != "" {
				t.Errorf("WebhookRow (-want +got):\n%s", diff)
			}
		})
	}
}
