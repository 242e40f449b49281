package commands

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// AppendCanonical appends the canonical form of a tree to dst and returns the extended
// buffer. The tree is not changed.
//
// It panics on a value that [ParseJSON] cannot return: another Go type, a string
// that is not UTF-8, a number of more than [MaxDigits] digits.
func AppendCanonical(dst []byte, tree any) []byte {
	switch v := tree.(type) {
	case nil:
		return append(dst, "null"...)
	case bool:
		if v {
			return append(dst, "true"...)
		}
		return append(dst, "false"...)
	case json.Number:
		literal, ok := plainDecimal(v.String())
		if !ok {
			panic(fmt.Sprintf("commands: a number needs more than %d digits", MaxDigits))
		}
		return append(dst, literal...)
	case string:
		return appendString(dst, v)
	case []any:
		dst = append(dst, '[')
		for i, element := range v {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = AppendCanonical(dst, element)
		}
		return append(dst, ']')
	case map[string]any:
		return appendObject(dst, v)
	default:
		panic(fmt.Sprintf("commands: %T is not part of a parsed tree", tree))
	}
}

// HashCanonical returns the SHA-256 of the tree's canonical form, in lower-case hex. It
// panics as [AppendCanonical] does.
//
// Source: Ledger and state model, Idempotency strategy.
func HashCanonical(tree any) string {
	sum := sha256.Sum256(AppendCanonical(make([]byte, 0, 512), tree))
	return hex.EncodeToString(sum[:])
}

func appendString(dst []byte, text string) []byte {
	dst, err := jsontext.AppendQuote(dst, text)
	if err != nil {
		panic(fmt.Sprintf("commands: quote string: %v", err))
	}
	return dst
}

func appendObject(dst []byte, members map[string]any) []byte {
	var few [16]string // keeps the names of most objects off the heap
	names := few[:0]
	for name, value := range members {
		if value != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	dst = append(dst, '{')
	for i, name := range names {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendString(dst, name), ':')
		dst = AppendCanonical(dst, members[name])
	}
	return append(dst, '}')
}

// MaxDigits is the greatest number of digits of a number in plain decimal
// notation, on both sides of the point together. It keeps a few bytes, such as
// 1e999999999, from becoming a gigabyte of text.
const MaxDigits = 1000

// plainDecimal rewrites a valid JSON number in plain decimal notation without
// superfluous zeros. It returns false if that needs more than [MaxDigits].
func plainDecimal(literal string) (string, bool) {
	// Nearly all numbers are short and canonical: JSON has no leading zeros.
	if len(literal) <= MaxDigits && literal != "-0" && (!strings.ContainsAny(literal, ".eE") ||
		!strings.ContainsAny(literal, "eE") && literal[len(literal)-1] != '0') {
		return literal, true
	}
	// The value is sign 0.digits × 10^point.
	sign, mantissa, point := "", literal, 0
	if rest, negative := strings.CutPrefix(literal, "-"); negative {
		sign, mantissa = "-", rest
	}
	if e := strings.IndexAny(mantissa, "eE"); e >= 0 {
		mantissa, point = mantissa[:e], parseExponent(mantissa[e+1:])
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	point += len(digits) - len(fraction)
	digits = strings.TrimRight(digits, "0")
	switch {
	case digits == "":
		return "0", true
	case point <= 0:
		if 1-point+len(digits) > MaxDigits {
			return "", false
		}
		return sign + "0." + strings.Repeat("0", -point) + digits, true
	case max(len(digits), point) > MaxDigits:
		return "", false
	case point >= len(digits):
		return sign + digits + strings.Repeat("0", point-len(digits)), true
	default:
		return sign + digits[:point] + "." + digits[point:], true
	}
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
