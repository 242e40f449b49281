package apierror_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/apierror"
)

func TestCodesHaveTheStatusOfTheContract(t *testing.T) {
	t.Parallel()
	want := map[apierror.Code]int{
		"invalid_json":               http.StatusBadRequest,
		"invalid_envelope":           http.StatusBadRequest,
		"unauthenticated":            http.StatusUnauthorized,
		"forbidden":                  http.StatusForbidden,
		"not_found":                  http.StatusNotFound,
		"job_not_found":              http.StatusNotFound,
		"step_not_found":             http.StatusNotFound,
		"work_not_found":             http.StatusNotFound,
		"method_not_allowed":         http.StatusMethodNotAllowed,
		"conflict":                   http.StatusConflict,
		"illegal_transition":         http.StatusConflict,
		"nothing_to_run":             http.StatusConflict,
		"not_after_passed":           http.StatusUnprocessableEntity,
		"stale_attempt":              http.StatusConflict,
		"contradictory_result":       http.StatusConflict,
		"rev_conflict":               http.StatusConflict,
		"not_owner":                  http.StatusConflict,
		"line_busy":                  http.StatusConflict,
		"not_blocking":               http.StatusConflict,
		"predecessor_refused":        http.StatusConflict,
		"line_not_found":             http.StatusNotFound,
		"line_full":                  http.StatusTooManyRequests,
		"too_large":                  http.StatusRequestEntityTooLarge,
		"unsupported_media_type":     http.StatusUnsupportedMediaType,
		"payload_invalid":            http.StatusUnprocessableEntity,
		"unknown_request_type":       http.StatusUnprocessableEntity,
		"ref_invalid":                http.StatusUnprocessableEntity,
		"schema_version_unsupported": http.StatusUnprocessableEntity,
		"idempotency_mismatch":       http.StatusUnprocessableEntity,
		"limit_unsupported":          http.StatusUnprocessableEntity,
		"schedule_invalid":           http.StatusUnprocessableEntity,
		"schedule_not_found":         http.StatusNotFound,
		"schedule_limit":             http.StatusConflict,
		"tenant_limit":               http.StatusTooManyRequests,
		"rate_limited":               http.StatusTooManyRequests,
		"internal":                   http.StatusInternalServerError,
		"store_unavailable":          http.StatusServiceUnavailable,
		"issuer_unavailable":         http.StatusServiceUnavailable,
		"shutting_down":              http.StatusServiceUnavailable,
	}
	got := map[apierror.Code]int{}
	for _, code := range apierror.Codes() {
		got[code] = code.Status()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("codes (-contract +table):\n%s", diff)
	}
}

func TestEveryCodeHasATitleAndATypeOfItsOwn(t *testing.T) {
	t.Parallel()
	types := map[string]apierror.Code{}
	for _, code := range apierror.Codes() {
		if title := code.Title(); title == "" || strings.HasSuffix(title, ".") {
			t.Errorf("%s: title %q must be a sentence without its full stop", code, title)
		}
		if other, taken := types[code.Type()]; taken {
			t.Errorf("%s and %s share the type %s", code, other, code.Type())
		}
		types[code.Type()] = code
	}
}

func TestAnUnknownCodeIsInternal(t *testing.T) {
	t.Parallel()
	code := apierror.Code("made_up")
	if code.Status() != http.StatusInternalServerError || code.Title() != apierror.Internal.Title() || code.Type() != apierror.Internal.Type() {
		t.Errorf("made_up is %d %q %s, want those of internal", code.Status(), code.Title(), code.Type())
	}
}

func TestFrom(t *testing.T) {
	t.Parallel()
	known := apierror.Newf(apierror.JobNotFound, "There is no job %s.", "j1")
	foreign := io.ErrUnexpectedEOF
	unlisted := &apierror.Error{Code: "made_up", Detail: "Secret."}
	for _, test := range []struct {
		name string
		err  error
		want *apierror.Error
	}{
		{"nil stays nil", nil, nil},
		{"a problem is returned as it is", known, known},
		{"a wrapped problem is found", fmt.Errorf("load: %w", known), known},
		{"a code that is not listed is internal", unlisted, &apierror.Error{Code: apierror.Internal, Err: unlisted}},
		{"anything else is internal", foreign, &apierror.Error{Code: apierror.Internal, Err: foreign}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := apierror.From(test.err)
			same := cmp.Comparer(func(a, b error) bool { return errors.Is(a, b) })
			if diff := cmp.Diff(test.want, got, cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "Err" }, same)); diff != "" {
				t.Errorf("From (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMayPassIsTrueForWhatARepetitionMayChange(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"no error":                            {nil, false},
		"a fault of the request":              {apierror.Newf(apierror.PayloadInvalid, ""), false},
		"a conflict with the state":           {apierror.Newf(apierror.LineBusy, ""), false},
		"a limit that others use up":          {fmt.Errorf("accept: %w", apierror.Newf(apierror.TenantLimit, "")), true},
		"a server that ends":                  {apierror.Newf(apierror.ShuttingDown, ""), true},
		"a fault of the server":               {io.ErrUnexpectedEOF, true},
		"a code that no client has heard of":  {&apierror.Error{Code: "made_up"}, true},
		"the outcome of a write is not known": {fmt.Errorf("commit: %w", context.DeadlineExceeded), true},
	} {
		if got := apierror.MayPass(test.err); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}

func TestErrorTextNamesCodeDetailViolationsAndCause(t *testing.T) {
	t.Parallel()
	err := &apierror.Error{
		Code:   apierror.InvalidEnvelope,
		Detail: "One field is not valid.",
		Errors: []apierror.Violation{{Pointer: "/tenant_id", Message: "must not be empty"}},
		Err:    io.EOF,
	}
	want := `invalid_envelope: One field is not valid.; "/tenant_id" must not be empty: EOF`
	if err.Error() != want {
		t.Errorf("Error() = %q, want %q", err.Error(), want)
	}
	if !errors.Is(err, io.EOF) {
		t.Error("the cause is not found by errors.Is")
	}
}

func TestSummaryIsTheDetailElseTheViolations(t *testing.T) {
	t.Parallel()
	one := apierror.Violation{Pointer: "/tenant_id", Message: "is required"}
	other := apierror.Violation{Pointer: "/payload", Message: "must be an object"}
	whole := apierror.Violation{Message: "query parameter wait is not a duration"}
	for _, test := range []struct {
		name string
		err  apierror.Error
		want string
	}{
		{"no detail and no violation", apierror.Error{}, ""},
		{"detail", apierror.Error{Detail: "No.", Errors: []apierror.Violation{one}}, "No."},
		{"one violation", apierror.Error{Errors: []apierror.Violation{one}}, "/tenant_id is required."},
		{"one without a pointer", apierror.Error{Errors: []apierror.Violation{whole}}, "query parameter wait is not a duration."},
		{"violations that are not named", apierror.Error{Errors: []apierror.Violation{one, {Message: "has 7 more violations", Rest: 7}}}, "/tenant_id is required. There are 8 violations in all."},
		{"violations that are not counted", apierror.Error{Errors: []apierror.Violation{one, {Message: "has more", Rest: -1}}}, "/tenant_id is required. There are at least 2 violations in all."},
		{"two violations", apierror.Error{Errors: []apierror.Violation{one, other}}, "/tenant_id is required. There are 2 violations in all."},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := test.err.Summary(); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func ExampleFrom() {
	err := fmt.Errorf("cancel job: %w", apierror.Newf(apierror.IllegalTransition, "The job is %s.", "SUCCEEDED"))
	found := apierror.From(err)
	fmt.Println(found.Code.Status(), found.Code, found.Detail)
	// Output: 409 illegal_transition The job is SUCCEEDED.
}

func TestRefusedHasTheForemostCode(t *testing.T) {
	t.Parallel()
	reference := apierror.Violation{Pointer: "/output_ref/uri", Message: "is required", Code: apierror.RefInvalid}
	large := apierror.Violation{Pointer: "/owner", Message: "is too long", Code: apierror.TooLarge}
	plain := apierror.Violation{Pointer: "/owner", Message: "is required"}
	for _, test := range []struct {
		violations []apierror.Violation
		want       apierror.Code
	}{
		{[]apierror.Violation{plain}, apierror.InvalidEnvelope},
		{[]apierror.Violation{reference}, apierror.RefInvalid},
		{[]apierror.Violation{reference, large}, apierror.TooLarge},
		{[]apierror.Violation{large, reference}, apierror.TooLarge},
		{[]apierror.Violation{large, plain, reference}, apierror.InvalidEnvelope},
	} {
		found := apierror.Refused(test.violations)
		if found.Code != test.want || len(found.Errors) != len(test.violations) {
			t.Errorf("%v: %v, want %s", test.violations, found, test.want)
		}
	}
	if got := apierror.Foremost(apierror.Internal, apierror.Conflict); got != apierror.Internal {
		t.Errorf("without precedence: %s", got)
	}
}

func TestTheCodeOfAViolationIsNotSent(t *testing.T) {
	t.Parallel()
	sent, err := json.Marshal(apierror.Violation{Pointer: "/owner", Message: "is too long", Code: apierror.TooLarge})
	if err != nil || string(sent) != `{"pointer":"/owner","message":"is too long"}` {
		t.Errorf("a violation is sent as %s, %v", sent, err)
	}
}
