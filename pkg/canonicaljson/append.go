package canonicaljson

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

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
		return appendNumber(dst, v)
	case string:
		return appendString(dst, v)
	case []any:
		return appendArray(dst, v)
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

func appendNumber(dst []byte, number json.Number) []byte {
	literal, ok := plainDecimal(number.String())
	if !ok {
		panic(fmt.Sprintf("canonicaljson: a number needs more than %d digits", MaxDigits))
	}
	return append(dst, literal...)
}

func appendString(dst []byte, text string) []byte {
	dst, err := jsontext.AppendQuote(dst, text)
	if err != nil {
		panic(fmt.Sprintf("canonicaljson: quote string: %v", err))
	}
	return dst
}

func appendArray(dst []byte, elements []any) []byte {
	dst = append(dst, '[')
	for i, element := range elements {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = Append(dst, element)
	}
	return append(dst, ']')
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
