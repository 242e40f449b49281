// Package canonicaljson parses JSON strictly and writes it in a canonical form,
// whose SHA-256 tells whether two commands are the same.
//
//	text ──Parse──► tree ──Append──► canonical text ──Hash──► SHA-256, hex
//	                 │
//	                 └──► the envelope, the JSON Schemas of the protocol
//
// [Parse] refuses text that parsers are known to read differently, because it
// could mean one thing to Lucius and another to a platform service: duplicate
// names, invalid UTF-8, lone surrogates, a byte order mark, text after the
// value. It also refuses, as too large, values nested deeper than [MaxDepth],
// and numbers that need more than [MaxDigits] digits, which only an attacker
// sends.
//
// The canonical form:
//
//   - No white space outside of strings; UTF-8 without a byte order mark.
//   - Members are sorted by the UTF-8 bytes of their names (not by UTF-16 code
//     units, as RFC 8785 does), arrays keep their order.
//   - Members whose value is null are left out, at any depth. A null in an array
//     stays, since leaving it out would move its neighbours.
//   - Numbers keep their exact decimal value and never pass through a float, so
//     2^53 and 2^53+1 differ. They are written in plain decimal notation without
//     exponent, superfluous zeros or a negative zero: 1.50, 1.5 and 15e-1 are
//     all 1.5.
//   - In strings only the quotation mark, the backslash and the control
//     characters U+0000 to U+001F are escaped: \b \t \n \f \r, all others as
//     \u00xx with lower-case digits. There is no other normalisation: é and
//     e followed by a combining accent stay two different strings.
//
// The vectors in testdata/canonicaljson are examples of these rules, and can
// test any other implementation.
//
// The package is pure and safe for concurrent use.
//
// Source: Ledger and state model, Canonical JSON for idempotency.
package canonicaljson

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

// Append appends the canonical form of a tree to dst and returns the extended
// buffer. The tree is not changed.
//
// It panics on a value that [Parse] cannot return: another Go type, a string
// that is not UTF-8, a number of more than [MaxDigits] digits.
func Append(dst []byte, tree any) []byte {
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
			panic(fmt.Sprintf("canonicaljson: a number needs more than %d digits", MaxDigits))
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
			dst = Append(dst, element)
		}
		return append(dst, ']')
	case map[string]any:
		return appendObject(dst, v)
	default:
		panic(fmt.Sprintf("canonicaljson: %T is not part of a parsed tree", tree))
	}
}

// Hash returns the SHA-256 of the tree's canonical form, in lower-case hex. It
// panics as [Append] does.
//
// Source: Ledger and state model, Idempotency strategy.
func Hash(tree any) string {
	sum := sha256.Sum256(Append(make([]byte, 0, 512), tree))
	return hex.EncodeToString(sum[:])
}

func appendString(dst []byte, text string) []byte {
	dst, err := jsontext.AppendQuote(dst, text)
	if err != nil {
		panic(fmt.Sprintf("canonicaljson: quote string: %v", err))
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
		dst = Append(dst, members[name])
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
