package canonicaljson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lucius-project/lucius/pkg/problem"
)

// MaxDepth is how deep objects and arrays may be nested; a scalar has depth 0.
const MaxDepth = 64

// Parse reads one JSON value and returns its tree: map[string]any, []any,
// [json.Number] in canonical spelling, string, bool and nil. The caller owns
// the tree, which shares no memory with data.
//
// What is refused is reported as a [problem.Error] of the code
// [problem.InvalidJSON] that points at the first fault.
func Parse(data []byte) (any, error) {
	p := parsers.Get().(*parser)
	defer p.release()
	p.decoder.Reset(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true))
	return p.document()
}

// parsers keeps decoders with their stacks for reuse.
var parsers = sync.Pool{New: func() any { return &parser{decoder: new(jsontext.Decoder)} }}

// noText is what an idle decoder would read.
var noText = bytes.NewReader(nil)

// parser reads one text. Duplicate names are not left to the decoder: the maps
// of the tree find them at no further cost.
type parser struct{ decoder *jsontext.Decoder }

// release forgets the text and hands the parser back.
func (p *parser) release() {
	p.decoder.Reset(noText)
	parsers.Put(p)
}

// document reads the one value and makes sure that nothing follows.
func (p *parser) document() (any, error) {
	token, err := p.decoder.ReadToken()
	if errors.Is(err, io.EOF) {
		return nil, refuse("", "is empty")
	}
	if err != nil {
		return nil, syntaxError(err)
	}
	tree, err := p.value(token, 0)
	if err != nil {
		return nil, err
	}
	end := p.decoder.InputOffset()
	if _, err = p.decoder.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, refuse("", "has more text after its value, from byte %d on", end)
	}
	return tree, nil
}

// value returns the value that the token is or begins.
func (p *parser) value(token jsontext.Token, depth int) (any, error) {
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
		return p.number(token)
	default: // the decoder lets only the two beginnings through here
		return p.compound(token, depth+1)
	}
}

// compound returns the object or array that the token begins.
func (p *parser) compound(token jsontext.Token, depth int) (any, error) {
	if depth > MaxDepth {
		return nil, refuse(p.decoder.StackPointer(), "is nested deeper than %d levels", MaxDepth)
	}
	if token.Kind() == jsontext.KindBeginObject {
		return p.object(depth)
	}
	return p.array(depth)
}

// number returns the token's exact value in canonical spelling.
func (p *parser) number(token jsontext.Token) (any, error) {
	literal, ok := plainDecimal(token.String())
	if !ok {
		return nil, refuse(p.decoder.StackPointer(), "is a number that needs more than %d digits", MaxDigits)
	}
	return json.Number(literal), nil
}

// object reads members up to the end of the object.
func (p *parser) object(depth int) (any, error) {
	members := make(map[string]any)
	for {
		token, err := p.decoder.ReadToken()
		if err != nil {
			return nil, syntaxError(err)
		}
		if token.Kind() == jsontext.KindEndObject {
			return members, nil
		}
		name := token.String()
		if _, taken := members[name]; taken {
			return nil, refuse(p.decoder.StackPointer(), "is there twice: a name may occur only once in an object")
		}
		if token, err = p.decoder.ReadToken(); err != nil {
			return nil, syntaxError(err)
		}
		if members[name], err = p.value(token, depth); err != nil {
			return nil, err
		}
	}
}

// array reads elements up to the end of the array.
func (p *parser) array(depth int) (any, error) {
	elements := []any{}
	for {
		token, err := p.decoder.ReadToken()
		if err != nil {
			return nil, syntaxError(err)
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

// syntaxError translates what the decoder reports.
func syntaxError(err error) error {
	syntactic, ok := errors.AsType[*jsontext.SyntacticError](err)
	if !ok {
		return &problem.Error{Code: problem.InvalidJSON, Err: err}
	}
	if errors.Is(syntactic.Err, io.ErrUnexpectedEOF) {
		return refuse(syntactic.JSONPointer, "ends too early, after byte %d", syntactic.ByteOffset)
	}
	return refuse(syntactic.JSONPointer, "has a syntax error at byte %d: %v", syntactic.ByteOffset, syntactic.Err)
}

// refuse returns the error of the one fault at the pointer.
func refuse(pointer jsontext.Pointer, format string, args ...any) error {
	return &problem.Error{
		Code:   problem.InvalidJSON,
		Errors: []problem.Violation{{Pointer: string(pointer), Message: fmt.Sprintf(format, args...)}},
	}
}
