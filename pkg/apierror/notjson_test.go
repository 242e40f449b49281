package apierror_test

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/pkg/apierror"
)

func TestNotJSONSaysWhatAndWhereInItsOwnWords(t *testing.T) {
	t.Parallel()
	const odd, early = "a character that must not be there", "it ends too early"
	for body, want := range map[string]string{
		"":                         "line 1, column 1: " + early,
		`{"a":`:                    "line 1, column 6: " + early,
		`{"a":Ω}`:                  "line 1, column 6: " + odd,
		"{\n\"a\": \"Ω\",\n oops}": "line 3, column 2: " + odd,
		`["\Ω"]`:                   "line 1, column 4: " + odd,
		"[\"\n\"]":                 "line 1, column 3: a control character that must not be there",
		`{}Ω`:                      "line 1, column 3: " + odd,
		"\xff":                     "line 1, column 1: not UTF-8",
	} {
		t.Run(body, func(t *testing.T) {
			t.Parallel()
			var value any
			cause := json.Unmarshal([]byte(body), &value)
			found := apierror.NotJSON([]byte(body), cause)
			if want := "The body is not valid JSON at " + want + "."; found.Code != apierror.InvalidJSON || found.Detail != want {
				t.Errorf("got %s %q, want %q", found.Code, found.Detail, want)
			}
			if cause == nil || !errors.Is(found, cause) {
				t.Errorf("the cause is %v, want %v", found.Err, cause)
			}
		})
	}
}

func TestNotJSONOfAStreamThatEnds(t *testing.T) {
	t.Parallel()
	const body = `{"reason":`
	var value any
	cause := json.NewDecoder(strings.NewReader(body)).Decode(&value)
	for _, err := range []error{cause, io.EOF} {
		if got := apierror.NotJSON([]byte(body), err).Detail; got != "The body is not valid JSON at line 1, column 11: it ends too early." {
			t.Errorf("%v: %s", err, got)
		}
	}
}

func TestPlaceIsWithinTheBody(t *testing.T) {
	t.Parallel()
	const body = "ä\n\nb"
	for offset, want := range map[int]string{
		-1: "line 1, column 1", 0: "line 1, column 1", 2: "line 1, column 3", 3: "line 2, column 1", 4: "line 3, column 1",
		5: "line 3, column 2", 99: "line 3, column 2",
	} {
		if got := apierror.Place([]byte(body), offset); got != want {
			t.Errorf("%d is at %s, want %s", offset, got, want)
		}
	}
	if got := apierror.NotJSONAt([]byte(body), 3, "text after the value", nil).Detail; got != "The body is not valid JSON at line 2, column 1: text after the value." {
		t.Error(got)
	}
}
