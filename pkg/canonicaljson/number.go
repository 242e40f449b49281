package canonicaljson

import (
	"strconv"
	"strings"
)

// MaxDigits is the greatest number of digits of a number in plain decimal
// notation, on both sides of the point together. It keeps a few bytes, such as
// 1e999999999, from becoming a gigabyte of text.
const MaxDigits = 1000

// decimal is sign 0.digits × 10^point, with neither leading nor trailing zeros
// in digits; zero has no digits.
type decimal struct {
	sign   string
	digits string
	point  int
}

// plainDecimal rewrites a valid JSON number in plain decimal notation without
// superfluous zeros. It returns false if that needs more than [MaxDigits].
func plainDecimal(literal string) (string, bool) {
	if isPlain(literal) {
		return literal, true
	}
	d := parseDecimal(literal)
	if d.width() > MaxDigits {
		return "", false
	}
	switch {
	case d.digits == "":
		return "0", true
	case d.point <= 0:
		return d.sign + "0." + strings.Repeat("0", -d.point) + d.digits, true
	case d.point >= len(d.digits):
		return d.sign + d.digits + strings.Repeat("0", d.point-len(d.digits)), true
	default:
		return d.sign + d.digits[:d.point] + "." + d.digits[d.point:], true
	}
}

// isPlain reports whether the literal is short and already canonical, as nearly
// all are. JSON's grammar has no leading zeros.
func isPlain(literal string) bool {
	if len(literal) > MaxDigits || literal == "-0" {
		return false
	}
	return !strings.ContainsAny(literal, ".eE") ||
		!strings.ContainsAny(literal, "eE") && literal[len(literal)-1] != '0'
}

// parseDecimal splits a valid JSON number.
func parseDecimal(literal string) decimal {
	var d decimal
	if rest, negative := strings.CutPrefix(literal, "-"); negative {
		d.sign, literal = "-", rest
	}
	mantissa, exponent := literal, 0
	if e := strings.IndexAny(literal, "eE"); e >= 0 {
		mantissa, exponent = literal[:e], parseExponent(literal[e+1:])
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	d.point = len(whole) + exponent - (len(whole) + len(fraction) - len(digits))
	d.digits = strings.TrimRight(digits, "0")
	return d
}

// parseExponent parses an exponent. A huge one is cut to a value that is still
// too large for MaxDigits but can be added to without overflow.
func parseExponent(text string) int {
	const beyond = 1 << 30
	exponent, err := strconv.Atoi(text)
	switch {
	case err == nil:
		return min(max(exponent, -beyond), beyond)
	case text[0] == '-':
		return -beyond
	default:
		return beyond
	}
}

// width returns the number of digits that plain decimal notation needs.
func (d decimal) width() int {
	switch {
	case d.digits == "":
		return 1
	case d.point <= 0:
		return 1 - d.point + len(d.digits)
	default:
		return max(len(d.digits), d.point)
	}
}
