package commands

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lucius-project/lucius/pkg/apierror"
)

// MaxDepth is the greatest depth of nested objects and arrays; a scalar has
// depth 0.
const MaxDepth = 64

// ParseJSON reads one JSON value and returns its tree: map[string]any, []any,
// [json.Number] in canonical spelling, string, bool and nil. The caller owns
// the tree, which shares no memory with data.
//
// The error is a [apierror.Error] that points at the first fault, with the code
// [apierror.TooLarge] beyond [MaxDepth] or [MaxDigits], otherwise
// [apierror.InvalidJSON]. Its detail does not quote the text.
func ParseJSON(data []byte) (any, error) {
	p := jsonParsers.Get().(*jsonParser)
	p.text = data
	p.decoder.Reset(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true))
	defer func() {
		p.text = nil
		p.decoder.Reset(noText)
		jsonParsers.Put(p)
	}()
	token, err := p.decoder.ReadToken()
	if errors.Is(err, io.EOF) {
		return nil, p.refuse("", len(p.text), "is empty", "it is empty")
	}
	if err != nil {
		return nil, p.syntaxError(err)
	}
	tree, err := p.value(token, 0)
	if err != nil {
		return nil, err
	}
	end := p.decoder.InputOffset()
	if _, err = p.decoder.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, p.refuse("", int(end), "has more text after its value", "text after the value")
	}
	return tree, nil
}

// jsonParsers pools decoders with their stacks.
var jsonParsers = sync.Pool{New: func() any { return &jsonParser{decoder: new(jsontext.Decoder)} }}

// noText is the input of an idle decoder.
var noText = bytes.NewReader(nil)

// jsonParser parses one text. It finds duplicate names by the maps of the tree,
// which is cheaper than the decoder's own check.
type jsonParser struct {
	decoder *jsontext.Decoder
	text    []byte // The input, for lines and columns.
}

// value returns the scalar that the token is, or the object or array that it begins.
func (p *jsonParser) value(token jsontext.Token, depth int) (any, error) {
	switch token.Kind() {
	case jsontext.KindNull:
		return nil, nil
	case jsontext.KindTrue:
		return true, nil
	case jsontext.KindFalse:
		return false, nil
	case jsontext.KindString:
		return token.String(), nil
	case jsontext.KindNumber:
		literal, ok := plainDecimal(token.String())
		if !ok {
			return nil, p.exceeds("is a number that needs more than %d digits", MaxDigits)
		}
		return json.Number(literal), nil
	default: // The decoder returns only '{' or '[' here.
		if depth == MaxDepth {
			return nil, p.exceeds("is nested deeper than %d levels", MaxDepth)
		}
		if token.Kind() == jsontext.KindBeginObject {
			return p.object(depth + 1)
		}
		return p.array(depth + 1)
	}
}

// object reads members up to the end of the object.
func (p *jsonParser) object(depth int) (any, error) {
	members := make(map[string]any)
	for {
		token, err := p.decoder.ReadToken()
		if err != nil {
			return nil, p.syntaxError(err)
		}
		if token.Kind() == jsontext.KindEndObject {
			return members, nil
		}
		name := token.String()
		if _, taken := members[name]; taken {
			return nil, p.refuse(p.decoder.StackPointer(), p.last(),
				"is there twice: a name may occur only once in an object", "a name that its object has already")
		}
		if token, err = p.decoder.ReadToken(); err != nil {
			return nil, p.syntaxError(err)
		}
		if members[name], err = p.value(token, depth); err != nil {
			return nil, err
		}
	}
}

// array reads elements up to the end of the array.
func (p *jsonParser) array(depth int) (any, error) {
	elements := []any{}
	for {
		token, err := p.decoder.ReadToken()
		if err != nil {
			return nil, p.syntaxError(err)
		}
		if token.Kind() == jsontext.KindEndArray {
			return elements, nil
		}
		element, err := p.value(token, depth)
		if err != nil {
			return nil, err
		}
		elements = append(elements, element)
	}
}

// syntaxError converts the decoder's error.
func (p *jsonParser) syntaxError(err error) error {
	offset, pointer := len(p.text), jsontext.Pointer("")
	if syntactic, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		pointer = syntactic.JSONPointer
		if !errors.Is(syntactic.Err, io.ErrUnexpectedEOF) {
			offset = int(syntactic.ByteOffset)
		}
	}
	fault := apierror.NotJSONAt(p.text, offset, "", err)
	fault.Errors = []apierror.Violation{{Pointer: string(pointer), Message: "is not valid JSON"}}
	return fault
}

// last returns the offset of the last byte read.
func (p *jsonParser) last() int { return int(p.decoder.InputOffset()) - 1 }

// refuse returns the error of a single fault: message describes it at the
// pointer, and what describes the text at the offset.
func (p *jsonParser) refuse(pointer jsontext.Pointer, offset int, message, what string) error {
	fault := apierror.NotJSONAt(p.text, offset, what, nil)
	fault.Errors = []apierror.Violation{{Pointer: string(pointer), Message: message}}
	return fault
}

// exceeds returns the error of the value just read or begun, which exceeds a
// limit.
func (p *jsonParser) exceeds(format string, limit int) error {
	what := fmt.Sprintf(format, limit)
	return &apierror.Error{
		Code:   apierror.TooLarge,
		Detail: fmt.Sprintf("The body is beyond a limit at %s: it %s.", apierror.Place(p.text, p.last()), what),
		Errors: []apierror.Violation{{Pointer: string(p.decoder.StackPointer()), Message: what}},
	}
}

// Members splits the text of an object that [ParseJSON] accepted into the verbatim
// texts of its members, which alias raw. It returns false if raw is not an
// object.
func Members(raw json.RawMessage) (map[string]json.RawMessage, bool) {
	decoder := jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true))
	if token, err := decoder.ReadToken(); err != nil || token.Kind() != jsontext.KindBeginObject {
		return nil, false
	}
	members := make(map[string]json.RawMessage)
	for {
		token, err := decoder.ReadToken()
		if err != nil {
			return nil, false
		}
		if token.Kind() == jsontext.KindEndObject {
			return members, true
		}
		name := token.String()
		value, err := decoder.ReadValue()
		if err != nil {
			return nil, false
		}
		members[name] = json.RawMessage(value)
	}
}
