package tablestore

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Keys are parts joined by the separator. Neither the separator nor the escape
// mark occurs unescaped inside a part, and both are legal in Azure keys.
const (
	separator  = ':'
	escapeMark = '='
	hexDigits  = "0123456789ABCDEF"
)

// errKey is wrapped by the errors of Unescape and Split.
var errKey = errors.New("not an escaped key")

// Escape turns any string into a legal part of a key: each byte outside
// [A-Za-z0-9._-] becomes =XX, upper-case hex. It is reversible and injective,
// but does not keep the order of strings.
func Escape(s string) string {
	extra := 0
	for i := range len(s) {
		if !plain(s[i]) {
			extra += 2
		}
	}
	if extra == 0 {
		return s
	}
	out := make([]byte, 0, len(s)+extra)
	for i := range len(s) {
		if c := s[i]; plain(c) {
			out = append(out, c)
		} else {
			out = append(out, escapeMark, hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return string(out)
}

// Unescape is the inverse of [Escape]. Text that Escape cannot produce is an
// error.
func Unescape(s string) (string, error) {
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if plain(s[i]) {
			out = append(out, s[i])
			continue
		}
		if s[i] != escapeMark || i+2 >= len(s) {
			return "", fmt.Errorf("%w: %q at byte %d", errKey, s, i)
		}
		high, low := strings.IndexByte(hexDigits, s[i+1]), strings.IndexByte(hexDigits, s[i+2])
		if high < 0 || low < 0 || plain(byte(high<<4|low)) {
			return "", fmt.Errorf("%w: %q at byte %d", errKey, s, i)
		}
		out = append(out, byte(high<<4|low))
		i += 2
	}
	return string(out), nil
}

// Join returns the escaped parts with ':' between them. As ':' sorts after
// digits and before letters, a prefix range ends with Join(...)+";": see
// [PrefixEnd].
func Join(parts ...string) string {
	if len(parts) == 1 {
		return Escape(parts[0])
	}
	escaped := make([]string, len(parts))
	for i, part := range parts {
		escaped[i] = Escape(part)
	}
	return strings.Join(escaped, string(separator))
}

// Split is the inverse of [Join]. A key that Join cannot produce is an error.
func Split(key string) ([]string, error) {
	parts := strings.Split(key, string(separator))
	for i, part := range parts {
		raw, err := Unescape(part)
		if err != nil {
			return nil, fmt.Errorf("part %d of key %q: %w", i, key, err)
		}
		parts[i] = raw
	}
	return parts, nil
}

// Pad returns n in decimal with leading zeros to that width, so that the byte
// order of keys is the order of numbers. A negative number becomes 0, and one
// that is too wide becomes the greatest that fits, so that the order always
// holds.
func Pad[N ~int | ~int32 | ~int64 | ~uint | ~uint32 | ~uint64](n N, width int) string {
	if n < 0 {
		n = 0
	}
	digits := strconv.FormatUint(uint64(n), 10)
	if len(digits) > width {
		return strings.Repeat("9", width)
	}
	return strings.Repeat("0", width-len(digits)) + digits
}

// PrefixEnd returns the end of the range of all strings that begin with prefix,
// for [Query].To. For the empty prefix it is "", the end of the partition.
func PrefixEnd(prefix string) string {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] < 0xFF {
			return prefix[:i] + string([]byte{prefix[i] + 1})
		}
	}
	return ""
}

// plain reports whether the byte needs no escape in a key.
func plain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
}
