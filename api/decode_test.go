package api_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
)

func TestDecodeFaultSaysWhereAndWhatIsExpected(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, body, want string }{
		{"no object", `[]`, " must be an object"},
		{"a string", `{"jobId":7}`, "/jobId must be a string"},
		{"a number", `{"retry_after_seconds":"soon"}`, "/retry_after_seconds must be a number"},
		{"a whole number", `{"attempt_no":1.5}`, "/attempt_no must be a whole number of at most 32 bits"},
		{"a time, which is not repeated", `{"timestamp":"` + strings.Repeat("now", 1000) + `"}`, "/timestamp must be a time as in RFC 3339"},
		{"within another", `{"error":{"code":7}}`, "/error/code must be a string"},
		{"an object", `{"error":"broken"}`, "/error must be an object"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			err := json.Unmarshal([]byte(test.body), &api.ResultCallback{})
			fault := api.DecodeFault([]byte(test.body), err)
			if fault.Code != apierror.InvalidEnvelope || len(fault.Errors) != 1 || !errors.Is(fault, err) {
				t.Fatalf("%+v", fault)
			}
			if got := fault.Errors[0].Pointer + " " + fault.Errors[0].Message; got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
	body := []byte(`{"jobId":`)
	if fault := api.DecodeFault(body, json.Unmarshal(body, &api.ResultCallback{})); fault.Code != apierror.InvalidJSON {
		t.Errorf("no JSON: %+v", fault)
	}
}

func TestPointerEscapesNames(t *testing.T) {
	t.Parallel()
	if got := api.Pointer("error", "a/b~c"); got != "/error/a~1b~0c" {
		t.Error(got)
	}
}

func TestCheckText(t *testing.T) {
	t.Parallel()
	nested := func(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }
	for _, test := range []struct {
		name, body string
		code       apierror.Code
		detail     string
	}{
		{"as deep as it may be", nested(api.MaxDepth), "", ""},
		{"brackets in a text", `"` + strings.Repeat(`[\"`, 500) + `"`, "", ""},
		{"side by side", strings.Repeat("[]", 500), "", ""},
		{
			"too deep", " " + nested(api.MaxDepth+1), apierror.TooLarge,
			"The body is beyond a limit at line 1, column 130: it is nested deeper than 128 levels.",
		},
		{"not UTF-8", "{\n\"\xff\"}", apierror.InvalidJSON, "The body is not valid JSON at line 2, column 2: not UTF-8."},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			err := api.CheckText([]byte(test.body))
			if test.code == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if fault, ok := errors.AsType[*apierror.Error](err); !ok || fault.Code != test.code || fault.Detail != test.detail {
				t.Errorf("%v, want %s: %s", err, test.code, test.detail)
			}
		})
	}
}
