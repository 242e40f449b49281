package topology

import (
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// period is an ISO 8601 period as the namespace writes it: days and what is
// shorter, such as PT10M or P10675199DT2H48M5.4775807S.
var period = regexp.MustCompile(`^P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.\d+)?S)?)?$`)

// longest is what a period is cut to that is longer than a duration can be.
const longest = time.Duration(1<<63 - 1)

// parsePeriod reads a period; nothing is 0, and fractions of seconds are dropped.
func parsePeriod(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	parts := period.FindStringSubmatch(text)
	if parts == nil {
		return 0, fmt.Errorf("%q is not a period", text)
	}
	total := time.Duration(0)
	for i, unit := range []time.Duration{24 * time.Hour, time.Hour, time.Minute, time.Second} {
		if parts[i+1] == "" {
			continue
		}
		n, _ := strconv.ParseInt(parts[i+1], 10, 64) // Digits; too many are the greatest number.
		if time.Duration(n) > (longest-total)/unit {
			return longest, nil
		}
		total += time.Duration(n) * unit
	}
	return total, nil
}
