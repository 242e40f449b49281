package statemachine

import "unicode/utf8"

// The most bytes of a worker's or a bus's error that are stored and sent on.
const (
	maxCode    = 128
	maxMessage = 1024
)

// truncate cuts a text at a rune boundary.
func truncate(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
