package problem

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode"
	"unicode/utf8"
)

// NotJSON returns the [Error] of a body that package encoding/json could not read,
// with the error that it returned. One of a value's type is the caller's to tell
// apart: such a body is JSON. What is wrong is said by [NotJSONAt]: the
// decoder's own text repeats the body, and stays in Err, for the log.
func NotJSON(body []byte, err error) *Error {
	offset := len(body) // A decoder that reads from memory fails else by coming to its end.
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok && syntax.Error() != "unexpected end of JSON input" {
		offset = int(syntax.Offset) - 1
	}
	return NotJSONAt(body, offset, "", err)
}

// NotJSONAt returns the [Error] of a body that is not JSON from the byte at offset
// on, counted from 0. Its detail says where that is, and what: in the words given,
// or, where there are none, in those for what is found there. It repeats nothing of
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

// Place returns the line and column of the byte at offset, both counted from 1, in
// words. Columns are counted in bytes. An offset outside of the body is moved to
// its beginning or end.
func Place(body []byte, offset int) string {
	before := body[:min(max(offset, 0), len(body))]
	line := bytes.Count(before, []byte("\n")) + 1
	column := len(before) - bytes.LastIndexByte(before, '\n')
	return fmt.Sprintf("line %d, column %d", line, column)
}

// misplaced says what is found at offset, where JSON cannot go on like that.
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
