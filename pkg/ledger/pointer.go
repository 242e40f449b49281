package ledger

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// Pointer resolves an RFC 6901 pointer over raw JSON and returns the bytes of
// that value verbatim; the pointer "" is raw itself. The result aliases raw. It
// returns false if the pointer is malformed, names no value, or reaches text
// that is not JSON. Of duplicate names the first counts: accepted payloads have none.
func Pointer(raw json.RawMessage, pointer string) (json.RawMessage, bool) {
	path := jsontext.Pointer(pointer)
	if !path.IsValid() {
		return nil, false
	}
	if path == "" {
		return raw, true
	}
	// It decodes in place, without checking for duplicate names again.
	decoder := jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true))
	for token := range path.Tokens() {
		if !descend(decoder, token) {
			return nil, false
		}
	}
	value, err := decoder.ReadValue()
	if err != nil {
		return nil, false
	}
	return json.RawMessage(value), true
}

// Lookup is [Pointer] over the decoded form of a value: of objects, map[string]any, and of
// arrays, []any. The result is part of the tree. It returns false if the pointer is malformed or
// names no value.
func Lookup(tree any, pointer string) (any, bool) {
	path := jsontext.Pointer(pointer)
	if !path.IsValid() {
		return nil, false
	}
	for token := range path.Tokens() {
		found := false
		switch parent := tree.(type) {
		case map[string]any:
			tree, found = parent[token]
		case []any:
			if i, ok := arrayIndex(token); ok && i < len(parent) {
				tree, found = parent[i], true
			}
		}
		if !found {
			return nil, false
		}
	}
	return tree, true
}

// descend moves the decoder to the start of the next value's member or element
// that the reference token names.
func descend(decoder *jsontext.Decoder, token string) bool {
	begin, err := decoder.ReadToken()
	if err != nil {
		return false
	}
	switch begin.Kind() {
	case jsontext.KindBeginObject:
		for {
			name, err := decoder.ReadToken()
			if err != nil || name.Kind() == jsontext.KindEndObject {
				return false
			}
			if name.String() == token {
				return true
			}
			if decoder.SkipValue() != nil {
				return false
			}
		}
	case jsontext.KindBeginArray:
		i, ok := arrayIndex(token)
		for ; ok && i > 0; i-- {
			ok = decoder.SkipValue() == nil // It fails also at the end of the array.
		}
		return ok && decoder.PeekKind() != jsontext.KindEndArray
	default:
		return false
	}
}

// arrayIndex parses the reference token of an array element: digits without a
// leading zero. The "-" of RFC 6901, the element after the last, never exists.
func arrayIndex(token string) (int, bool) {
	if token == "" || token[0] == '0' && token != "0" || token[0] == '+' || token[0] == '-' {
		return 0, false
	}
	i, err := strconv.Atoi(token)
	return i, err == nil
}
