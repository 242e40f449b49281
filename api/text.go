package api

import (
	"unicode/utf8"

	"github.com/lucius-project/lucius/pkg/problem"
)

// MaxDepth is how deep objects and arrays in a request may be nested. Commands have
// a lower limit: see package canonicaljson.
const MaxDepth = 128

// CheckText refuses what the decoder accepts but readers of the stored value may
// not: text that is not UTF-8, and values that are nested too deep. The error is a
// [*problem.Error].
func CheckText(body []byte) error {
	if !utf8.Valid(body) {
		return problem.NotJSONAt(body, validPrefix(body), "not UTF-8", nil)
	}
	if at := tooDeep(body); at >= 0 {
		return problem.Newf(problem.TooLarge, "The body is beyond a limit at %s: it is nested deeper than %d levels.",
			problem.Place(body, at), MaxDepth)
	}
	return nil
}

// validPrefix returns how many leading bytes of the text are valid UTF-8.
func validPrefix(data []byte) int {
	valid := 0
	for {
		r, size := utf8.DecodeRune(data[valid:])
		if r == utf8.RuneError && size <= 1 {
			return valid
		}
		valid += size
	}
}

// tooDeep returns the offset at which the text is nested too deep, or -1.
func tooDeep(data []byte) int {
	depth, quoted, escaped := 0, false, false
	for i, c := range data {
		switch {
		case escaped:
			escaped = false
		case quoted && c == '\\':
			escaped = true
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{', c == '[':
			if depth++; depth > MaxDepth {
				return i
			}
		case c == '}', c == ']':
			depth--
		}
	}
	return -1
}
