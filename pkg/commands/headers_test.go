package commands_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/commands"
)

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, body, header, want string }{
		{"neither", "", "", ""},
		{"in the body", `"k"`, "", "k"},
		{"in the header", "", "k", "k"},
		{"in the header, quoted", "", `"k"`, "k"},
		{"in the header, quoted with escapes", "", `"a\"b\\c"`, `a"b\c`},
		{"in the header, with a quotation mark inside", "", `a"b"`, `a"b"`},
		{"in both, equal", `"k"`, "k", "k"},
		{"in both, equal but for the quotation marks", `"k"`, `"k"`, "k"},
		{"null in the body", "null", "k", "k"},
		{"255 bytes", "", strings.Repeat("k", 255), strings.Repeat("k", 255)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			command, err := commands.Decode(body(set("idempotency_key", test.body)), commands.Headers{IdempotencyKey: test.header}, commands.Policy{})
			musttest.NoError(t, err)
			if command.IdempotencyKey != test.want {
				t.Errorf("key %q, want %q", command.IdempotencyKey, test.want)
			}
		})
	}
}

func TestIdempotencyKeysThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, body, header string
		code               apierror.Code
	}{
		{"both, different", `"a"`, "b", apierror.InvalidEnvelope},
		{"both, different in case", `"a"`, "A", apierror.InvalidEnvelope},
		{"empty in quotation marks", "", `""`, apierror.InvalidEnvelope},
		{"no closing quotation mark", "", `"k`, apierror.InvalidEnvelope},
		{"text after the closing quotation mark", "", `"k";a=1`, apierror.InvalidEnvelope},
		{"an escape that is none", "", `"a\b"`, apierror.InvalidEnvelope},
		{"a backslash at the end", "", `"a\`, apierror.InvalidEnvelope},
		{"a control character", "", "a\tb", apierror.InvalidEnvelope},
		{"not UTF-8", "", "a\xffb", apierror.InvalidEnvelope},
		{"too long", "", strings.Repeat("k", 256), apierror.TooLarge},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := commands.Decode(body(set("idempotency_key", test.body)), commands.Headers{IdempotencyKey: test.header}, commands.Policy{})
			got := apierror.From(err)
			if got == nil || got.Code != test.code || len(got.Errors) != 1 || got.Errors[0].Pointer != "/idempotency_key" {
				t.Errorf("Decode: %v, want %s at /idempotency_key", err, test.code)
			}
		})
	}
}

// HeaderKey returns the key that a command with that header gets.
func TestHeaderKey(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		"": "", "k": "k", `"k"`: "k", `"a\"b\\c"`: `a"b\c`, strings.Repeat("k", 255): strings.Repeat("k", 255),
		`"` + strings.Repeat(`\"`, 255) + `"`: strings.Repeat(`"`, 255),
	} {
		if got, err := commands.HeaderKey(header); err != nil || got != want {
			t.Errorf("%.20q: %.20q, %v, want %.20q", header, got, err, want)
		}
	}
	const malformed = "Idempotency-Key is malformed in the header: a quoted text must end with its quotation mark"
	for header, want := range map[string]apierror.Error{
		`"`:                      {Code: apierror.InvalidEnvelope, Errors: []apierror.Violation{{Message: malformed}}},
		`"k`:                     {Code: apierror.InvalidEnvelope, Errors: []apierror.Violation{{Message: malformed}}},
		`""`:                     {Code: apierror.InvalidEnvelope, Errors: []apierror.Violation{{Message: "Idempotency-Key must not be empty or blank"}}},
		strings.Repeat("k", 256): {Code: apierror.TooLarge, Errors: []apierror.Violation{{Message: "Idempotency-Key is 256 bytes long; at most 255 are allowed"}}},
	} {
		_, err := commands.HeaderKey(header)
		told, ok := errors.AsType[*apierror.Error](err)
		if !ok || told.Code != want.Code || !cmp.Equal(told.Errors, want.Errors) {
			t.Errorf("%.20q: %v, want %s %+v", header, err, want.Code, want.Errors)
		}
	}
}

func TestTraceparent(t *testing.T) {
	t.Parallel()
	const inBody = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	const inHeader = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
	for _, test := range []struct{ name, body, header, want string }{
		{"neither", "", "", ""},
		{"the body's", `"` + inBody + `"`, "", inBody},
		{"the header's", "", inHeader, inHeader},
		{"the body's before the header's", `"` + inBody + `"`, inHeader, inBody},
		{"the header's where the body's is null", "null", inHeader, inHeader},
		{"a malformed header starts no trace and breaks no command", "", "00-xyz", ""},
		{"a later version with the same fields", "", "cc" + inHeader[2:], "cc" + inHeader[2:]},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			command, err := commands.Decode(body(set("traceparent", test.body)), commands.Headers{Traceparent: test.header}, commands.Policy{})
			musttest.NoError(t, err)
			if command.Traceparent != test.want {
				t.Errorf("traceparent %q, want %q", command.Traceparent, test.want)
			}
		})
	}
}

func TestTraceparentsThatAreMalformed(t *testing.T) {
	t.Parallel()
	const traceID, parentID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for _, text := range []string{
		"", "00", "ff-" + traceID + "-" + parentID + "-01", "0-" + traceID + "-" + parentID + "-01",
		"00-" + strings.Repeat("0", 32) + "-" + parentID + "-01", "00-" + traceID + "-" + strings.Repeat("0", 16) + "-01",
		"00-" + strings.ToUpper(traceID) + "-" + parentID + "-01", "00-" + traceID + "-" + parentID + "-1",
		"00-" + traceID + "-" + parentID + "-01-more", "00-" + traceID[1:] + "-" + parentID + "-01",
		"00-" + traceID + "-" + parentID + "x-01", "00_" + traceID + "_" + parentID + "_01", " 00-" + traceID + "-" + parentID + "-01",
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			_, err := commands.Decode(body(set("traceparent", `"`+text+`"`)), commands.Headers{}, commands.Policy{})
			if got := apierror.From(err); got == nil || got.Code != apierror.InvalidEnvelope || got.Errors[0].Pointer != "/traceparent" {
				t.Errorf("Decode: %v, want %s at /traceparent", err, apierror.InvalidEnvelope)
			}
		})
	}
}
