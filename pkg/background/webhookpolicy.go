package background

import (
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// WebhookPolicy decides when to retry a webhook, and when to give up. It is pure: callers pass
// the time and the randomness.
type WebhookPolicy struct {
	// Delays are the times between attempts. The first attempt is made at once, so n
	// delays allow n+1 attempts. Optional: without delays there is one attempt.
	Delays []time.Duration
	// Jitter is the greatest fraction, from 0 to 1, by which a delay is lengthened.
	// Optional. Defaults to 0.
	Jitter float64
	// GiveUp is how long after its Since a webhook is given up whose attempt is deferred because
	// the receiver's host does not answer: deferred attempts do not count. Optional. Defaults to
	// never.
	GiveUp time.Duration
}

// StandardWebhookPolicy returns the schedule that Standard Webhooks gives as its example, ten
// attempts over three days, and gives up a silent host after a week.
//
// Source: Standard Webhooks 1.0, Deliverability and reliability.
func StandardWebhookPolicy() WebhookPolicy {
	return WebhookPolicy{
		Delays: []time.Duration{
			5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour,
			10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
		},
		Jitter: 0.1,
		GiveUp: 7 * 24 * time.Hour,
	}
}

// Apply returns the webhook after an attempt with this result; random is from [0, 1). The
// next attempt is due after both the schedule's delay and the receiver's Retry-After. An
// attempt that sent nothing does not count. An interrupted one does not count either; it
// keeps the previous result and leaves the webhook due now. A deferred one is due when
// its turn comes, and says why it waits; if its host does not answer, it waits for a tenth of its age
// more, at most an hour, as each take costs writes, and is given up after GiveUp.
func (p WebhookPolicy) Apply(row ledger.WebhookRow, result webhook.Result, now time.Time, random float64) ledger.WebhookRow {
	if result.Outcome == webhook.Interrupted {
		row.State, row.NextAttemptAt = ledger.WebhookPending, roundUp(now)
		return row
	}
	if result.Outcome == webhook.Deferred {
		age, after := now.Sub(row.Since()), result.After
		if result.HostFault && p.GiveUp > 0 && age >= p.GiveUp {
			row.State, row.NextAttemptAt, row.LastError = ledger.WebhookExhausted, time.Time{}, result.Reason
			return row
		}
		if result.HostFault {
			after += min(age/10, time.Hour)
		}
		row.State, row.NextAttemptAt, row.LastError = ledger.WebhookPending, roundUp(now.Add(after)), result.Reason
		return row
	}
	row.LastStatus, row.LastError, row.NextAttemptAt = result.Status, result.Reason, time.Time{}
	if result.Outcome != webhook.Refused {
		row.Attempts++
	}
	switch {
	case result.Outcome == webhook.Delivered:
		row.State = ledger.WebhookDelivered
	case result.Outcome == webhook.Gone:
		row.State = ledger.WebhookGone
	case result.Outcome == webhook.Refused:
		row.State = ledger.WebhookRefused
	case row.Attempts > len(p.Delays):
		row.State = ledger.WebhookExhausted
	default:
		delay := max(p.Delays[row.Attempts-1], result.After)
		delay += time.Duration(float64(delay) * p.Jitter * random)
		row.State, row.NextAttemptAt = ledger.WebhookPending, roundUp(now.Add(delay))
	}
	return row
}

// roundUp rounds the time up to milliseconds, the precision of stores and schedules, so
// that it is never early.
func roundUp(t time.Time) time.Time {
	return t.UTC().Add(time.Millisecond - time.Nanosecond).Truncate(time.Millisecond)
}
