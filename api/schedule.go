package api

import (
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
)

// MaxPreview is how many occurrences a preview computes at most.
const MaxPreview = 100

// Check returns what is wrong with the request by itself.
func (c *SchedulePreviewRequest) Check() []apierror.Violation {
	var v violations
	v.span("/every", c.Every)
	v.number("/count", float64(c.Count), MaxPreview)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *ScheduleRequest) Check() []apierror.Violation {
	var v violations
	v.span("/every", c.Every)
	v.span("/jitter", c.Jitter)
	v.span("/catch_up/window", c.CatchUp.Window)
	v.atLeast("/expected_rev", float64(c.ExpectedRev), 0)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *ScheduleChange) Check() []apierror.Violation {
	var v violations
	v.atLeast("/expected_rev", float64(c.ExpectedRev), 0)
	v.reason(c.Reason, 0)
	return v
}

// MaxBackfillRate is the largest rate_per_second of a backfill.
const MaxBackfillRate = 10

// Check returns what is wrong with the request by itself.
func (c *BackfillRequest) Check() []apierror.Violation {
	var v violations
	if c.From.IsZero() {
		v.add("/from", "is required")
	}
	v.number("/rate_per_second", c.RatePerSecond, MaxBackfillRate)
	v.atLeast("/expected_rev", float64(c.ExpectedRev), 0)
	v.reason(c.Reason, 0)
	return v
}

// span checks a duration, which may be absent.
func (v *violations) span(pointer, text string) {
	if _, err := Span(text); err != nil {
		v.add(pointer, "must be a duration such as 90s, 15m or 24h")
	}
}

// Span reads a duration of the wire; "" is 0.
func Span(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	return time.ParseDuration(text)
}

// SpanText writes a duration for the wire, without parts that are 0; 0 is "".
func SpanText(span time.Duration) string {
	if span == 0 {
		return ""
	}
	text := span.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
