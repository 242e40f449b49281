package problem

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode"
	"unicode/utf8"
)

// NotJSON returns the [Error] of a body for which package encoding/json
// returned err. The caller must handle errors of a value's type itself: such a
// body is JSON. The detail is that of [NotJSONAt], because the decoder's own
// text quotes the body; that text is kept in Err, for the log.
func NotJSON(body []byte, err error) *Error {
	offset := len(body) // Any other failure of a decoder in memory is an early end.
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok && syntax.Error() != "unexpected end of JSON input" {
		offset = int(syntax.Offset) - 1
	}
	return NotJSONAt(body, offset, "", err)
}

// NotJSONAt returns the [Error] of a body that is not JSON from the byte at
// offset on, counted from 0. Its detail names the place and the fault, which is
// what or, if that is empty, a description of the byte there. It does not quote
// the body. err is the cause, for the log; it may be nil.
func NotJSONAt(body []byte, offset int, what string, err error) *Error {
	if what == "" {
		what = misplaced(body, offset)
	}
	return &Error{
		Code:   InvalidJSON,
		Detail: fmt.Sprintf("The body is not valid JSON at %s: %s.", Place(body, offset), what),
		Err:    err,
	}
}

// Place returns the line and column of the byte at offset, both counted from 1,
// in words. Columns are counted in bytes. An offset outside the body is moved
// to its beginning or end.
func Place(body []byte, offset int) string {
	before := body[:min(max(offset, 0), len(body))]
	line := bytes.Count(before, []byte("\n")) + 1
	column := len(before) - bytes.LastIndexByte(before, '\n')
	return fmt.Sprintf("line %d, column %d", line, column)
}

// misplaced describes the byte at offset, at which the JSON becomes invalid.
func misplaced(body []byte, offset int) string {
	if offset >= len(body) {
		return "it ends too early"
	}
	switch char, size := utf8.DecodeRune(body[max(offset, 0):]); {
	case char == utf8.RuneError && size == 1:
		return "not UTF-8"
	case unicode.IsControl(char):
		return "a control character that must not be there"
	}
	return "a character that must not be there"
}
