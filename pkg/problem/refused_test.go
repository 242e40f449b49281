package problem_test

import (
	"encoding/json"
	"testing"

	"github.com/lucius-project/lucius/pkg/problem"
)

func TestRefusedHasTheForemostCode(t *testing.T) {
	t.Parallel()
	reference := problem.Violation{Pointer: "/output_ref/uri", Message: "is required", Code: problem.RefInvalid}
	large := problem.Violation{Pointer: "/owner", Message: "is too long", Code: problem.TooLarge}
	plain := problem.Violation{Pointer: "/owner", Message: "is required"}
	for _, test := range []struct {
		violations []problem.Violation
		want       problem.Code
	}{
		{[]problem.Violation{plain}, problem.InvalidEnvelope},
		{[]problem.Violation{reference}, problem.RefInvalid},
		{[]problem.Violation{reference, large}, problem.TooLarge},
		{[]problem.Violation{large, reference}, problem.TooLarge},
		{[]problem.Violation{large, plain, reference}, problem.InvalidEnvelope},
	} {
		found := problem.Refused(test.violations)
		if found.Code != test.want || len(found.Errors) != len(test.violations) {
			t.Errorf("%v: %v, want %s", test.violations, found, test.want)
		}
	}
	if got := problem.Foremost(problem.Internal, problem.Conflict); got != problem.Internal {
		t.Errorf("without precedence: %s", got)
	}
}

func TestTheCodeOfAViolationIsNotSent(t *testing.T) {
	t.Parallel()
	sent, err := json.Marshal(problem.Violation{Pointer: "/owner", Message: "is too long", Code: problem.TooLarge})
	if err != nil || string(sent) != `{"pointer":"/owner","message":"is too long"}` {
		t.Errorf("a violation is sent as %s, %v", sent, err)
	}
}
