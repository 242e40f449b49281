package webhook_test

import (
	"math"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/webhook"
)

func TestParseRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	const none = time.Duration(-1)
	tests := []struct {
		name, value string
		want        time.Duration
	}{
		{"seconds", "120", 2 * time.Minute},
		{"zero", "0", 0},
		{"leading zeros", "0005", 5 * time.Second},
		{"spaces around", " 7\t", 7 * time.Second},
		{"more than a duration holds", "9223372037", math.MaxInt64},
		{"more than an integer holds", "99999999999999999999", math.MaxInt64},
		{"date", "Sun, 01 Mar 2026 12:00:30 GMT", 30 * time.Second},
		{"date of RFC 850", "Sunday, 01-Mar-26 12:01:00 GMT", time.Minute},
		{"date of asctime", "Sun Mar  1 13:00:00 2026", time.Hour},
		{"date that has passed", "Sun, 01 Mar 2026 11:59:59 GMT", 0},
		{"empty", "", none},
		{"negative", "-1", none},
		{"signed", "+1", none},
		{"fraction", "1.5", none},
		{"hexadecimal", "0x10", none},
		{"unit", "5s", none},
		{"two numbers", "5, 6", none},
		{"date of RFC 3339", "2026-03-01T12:00:30Z", none},
		{"other digits", "５", none},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, ok := webhook.ParseRetryAfter(test.value, now)
			if !ok {
				got = none
			}
			if got != test.want {
				t.Errorf("parseRetryAfter(%q) = %s, want %s", test.value, got, test.want)
			}
		})
	}
}
