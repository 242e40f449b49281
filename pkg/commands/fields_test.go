package commands_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/commands"
)

// refused is a change to a valid command and the one violation that it makes.
type refused struct {
	name    string
	fields  map[string]string
	code    apierror.Code
	pointer string
	message string
}

func (test refused) run(t *testing.T) {
	t.Helper()
	_, err := commands.Decode(body(test.fields), commands.Headers{}, commands.Policy{})
	want := &apierror.Error{Code: test.code, Errors: []apierror.Violation{{Pointer: test.pointer, Message: test.message}}}
	if diff := cmp.Diff(want, apierror.From(err)); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
}

func set(name, text string) map[string]string { return map[string]string{name: text} }

func TestRequiredFields(t *testing.T) {
	t.Parallel()
	for name := range valid {
		for _, text := range []string{"", "null"} {
			t.Run(name+" "+text, func(t *testing.T) {
				t.Parallel()
				refused{fields: set(name, text), code: apierror.InvalidEnvelope, pointer: "/" + name, message: "is required"}.run(t)
			})
		}
	}
}

func TestRulesOfDates(t *testing.T) {
	t.Parallel()
	const form = "must be a time in the form of RFC 3339, such as 2026-01-28T02:00:00Z"
	in := func(d time.Duration) string { return `"` + time.Now().Add(d).Format(time.RFC3339) + `"` }
	late := "must be later than now and than not_before"
	for _, test := range []refused{
		{"a number", set("not_before", "1"), apierror.InvalidEnvelope, "/not_before", form},
		{"a day", set("not_after", `"2026-01-28"`), apierror.InvalidEnvelope, "/not_after", form},
		{"too far ahead", set("not_before", in(367*24*time.Hour)), apierror.InvalidEnvelope, "/not_before", "must be at most 366 days ahead"},
		{"a text as delay", set("delay_seconds", `"60"`), apierror.InvalidEnvelope, "/delay_seconds", "must be a whole number from 0 to 31622400"},
		{"half a second", set("delay_seconds", "0.5"), apierror.InvalidEnvelope, "/delay_seconds", "must be a whole number from 0 to 31622400"},
		{"a negative delay", set("delay_seconds", "-1"), apierror.InvalidEnvelope, "/delay_seconds", "must be a whole number from 0 to 31622400"},
		{
			"both", map[string]string{"delay_seconds": "1", "not_before": in(time.Hour)},
			apierror.InvalidEnvelope, "/delay_seconds", "must not be set if not_before is",
		},
		{"passed", set("not_after", in(-time.Second)), apierror.NotAfterPassed, "/not_after", late},
		{"the zero time", set("not_after", `"0001-01-01T00:00:00.0004Z"`), apierror.NotAfterPassed, "/not_after", late},
		{
			"before the begin", map[string]string{"delay_seconds": "7200", "not_after": in(time.Hour)},
			apierror.NotAfterPassed, "/not_after", late,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t)
		})
	}
}

// A not_before that has passed means now, and a delay counts from the request.
func TestDatesOfACommand(t *testing.T) {
	t.Parallel()
	before := time.Now().Truncate(time.Millisecond)
	got, err := commands.Decode(body(set("delay_seconds", "90")), commands.Headers{}, commands.Policy{})
	if err != nil || got.NotBefore.Before(before.Add(90*time.Second)) || got.NotBefore.After(time.Now().Add(90*time.Second)) {
		t.Errorf("a delay of 90 s: %+v, %v", got, err)
	}
	for _, passed := range []string{"2026-01-01T00:00:00.0009+01:00", "1500-01-01T00:00:00Z", "0000-01-01T00:00:00+10:00"} {
		got, err = commands.Decode(body(set("not_before", `"`+passed+`"`)), commands.Headers{}, commands.Policy{})
		if err != nil || !got.NotBefore.IsZero() {
			t.Errorf("%s: %+v, %v", passed, got, err)
		}
	}
}

func TestRulesOfTexts(t *testing.T) {
	t.Parallel()
	limits := map[string]int{
		"tenant_id": 128, "request_type": 128, "schema_version": 32, "doc_id": 256, "idempotency_key": 255, "correlation_id": 128,
		"order_key": 256,
	}
	for name, limit := range limits {
		for _, test := range []refused{
			{"a number", set(name, "1"), apierror.InvalidEnvelope, "/" + name, "must be a string, not a number"},
			{"a boolean", set(name, "true"), apierror.InvalidEnvelope, "/" + name, "must be a string, not a boolean"},
			{"an object", set(name, "{}"), apierror.InvalidEnvelope, "/" + name, "must be a string, not an object"},
			{"empty", set(name, `""`), apierror.InvalidEnvelope, "/" + name, "must not be empty or blank"},
			{"with a blank at its end", set(name, `"x "`), apierror.InvalidEnvelope, "/" + name, "must not begin or end with a blank"},
			{"blank", set(name, `" \t\u00a0"`), apierror.InvalidEnvelope, "/" + name, "must not be empty or blank"},
			{"a control character", set(name, `"a\u0000b"`), apierror.InvalidEnvelope, "/" + name, "must not contain control characters"},
			{"a line break", set(name, `"a\nb"`), apierror.InvalidEnvelope, "/" + name, "must not contain control characters"},
			{"a control character beyond ASCII", set(name, `"a\u0085b"`), apierror.InvalidEnvelope, "/" + name, "must not contain control characters"},
		} {
			t.Run(name+" "+test.name, func(t *testing.T) {
				t.Parallel()
				test.run(t)
			})
		}
		t.Run(name+" at its limit", func(t *testing.T) {
			t.Parallel()
			if _, err := commands.Decode(body(set(name, quote(limit))), commands.Headers{}, commands.Policy{}); err != nil {
				t.Errorf("%d bytes: %v", limit, err)
			}
			_, err := commands.Decode(body(set(name, quote(limit+1))), commands.Headers{}, commands.Policy{})
			if got := apierror.From(err); got == nil || got.Code != apierror.TooLarge || got.Errors[0].Pointer != "/"+name {
				t.Errorf("%d bytes: %v, want %s", limit+1, err, apierror.TooLarge)
			}
		})
	}
}

// Bytes are counted, not characters.
func TestLimitsAreInBytes(t *testing.T) {
	t.Parallel()
	refused{fields: set("schema_version", `"`+strings.Repeat("é", 17)+`"`), code: apierror.TooLarge,
		pointer: "/schema_version", message: "is 34 bytes long; at most 32 are allowed"}.run(t)
}

func TestRulesOfTheOtherFields(t *testing.T) {
	t.Parallel()
	const absolute = "must be an absolute http or https URL"
	const traceparent = "must be a W3C traceparent: version-traceid-parentid-flags, in lower-case hex"
	nine := "[" + strings.Repeat(`"https://x",`, 8) + `"https://x"]`
	for _, test := range []refused{
		{"payload is a text", set("payload", `"{}"`), apierror.InvalidEnvelope, "/payload", "must be an object, not a string"},
		{"payload over its limit", set("payload", `{"x":`+quote(commands.DefaultMaxPayload)+"}"), apierror.TooLarge, "/payload", "is 131080 bytes long; at most 131072 are allowed"},
		{"mode in lower case", set("mode", `"default"`), apierror.InvalidEnvelope, "/mode", `must be "DEFAULT" or "BURST"`},
		{"mode is empty", set("mode", `""`), apierror.InvalidEnvelope, "/mode", `must be "DEFAULT" or "BURST"`},
		{"mode is a number", set("mode", `0`), apierror.InvalidEnvelope, "/mode", `must be "DEFAULT" or "BURST"`},
		{"a priority that is none", set("priority", `"high"`), apierror.InvalidEnvelope, "/priority", `must be "normal" or "bulk"`},
		{"a priority that is a number", set("priority", `1`), apierror.InvalidEnvelope, "/priority", `must be "normal" or "bulk"`},
		{"an order mode that is none", set("order_mode", `"lifo"`), apierror.InvalidEnvelope, "/order_mode", `must be "fifo", "newest" or "reject"`},
		{"an order mode that is a list", set("order_mode", `["fifo"]`), apierror.InvalidEnvelope, "/order_mode", `must be "fifo", "newest" or "reject"`},
		{"BURST without a document", set("mode", `"BURST"`), apierror.InvalidEnvelope, "/doc_id", "is required in the mode BURST"},
		{"BURST with a null document", map[string]string{"mode": `"BURST"`, "doc_id": "null"}, apierror.InvalidEnvelope, "/doc_id", "is required in the mode BURST"},
		{"BURST with an empty document", map[string]string{"mode": `"BURST"`, "doc_id": `""`}, apierror.InvalidEnvelope, "/doc_id", "must not be empty or blank"},
		{"unknown field", set("payloads", "{}"), apierror.InvalidEnvelope, "/payloads", "is not a field of a command"},
		{"unknown field that is null", set("a~b", "null"), apierror.InvalidEnvelope, "/a~0b", "is not a field of a command"},
		{"callback_urls is a text", set("callback_urls", `"https://x"`), apierror.InvalidEnvelope, "/callback_urls", "must be an array, not a string"},
		{"too many callback_urls", set("callback_urls", nine), apierror.TooLarge, "/callback_urls", "has 9 entries; at most 8 are allowed"},
		{"callback_urls with null", set("callback_urls", `["https://x",null]`), apierror.InvalidEnvelope, "/callback_urls/1", "must be a string, not null"},
		{"callback URL too long", set("callback_urls", `["https://x/`+strings.Repeat("y", 2048)+`"]`), apierror.TooLarge, "/callback_urls/0", "is 2058 bytes long; at most 2048 are allowed"},
		{"callback URL is relative", set("callback_urls", `["/hook"]`), apierror.InvalidEnvelope, "/callback_urls/0", absolute},
		{"callback URL without a host", set("callback_urls", `["https:///hook"]`), apierror.InvalidEnvelope, "/callback_urls/0", absolute},
		{"callback URL with a port alone", set("callback_urls", `["https://:80/"]`), apierror.InvalidEnvelope, "/callback_urls/0", absolute},
		{"callback URL of another scheme", set("callback_urls", `["file:///etc/passwd"]`), apierror.InvalidEnvelope, "/callback_urls/0", absolute},
		{"callback URL with a line break", set("callback_urls", `["https://x/\r\nHost: y"]`), apierror.InvalidEnvelope, "/callback_urls/0", absolute},
		{"callback URL with credentials", set("callback_urls", `["https://user:secret@x/"]`), apierror.InvalidEnvelope, "/callback_urls/0", "must not carry a user name or password"},
		{"traceparent is a number", set("traceparent", `1`), apierror.InvalidEnvelope, "/traceparent", traceparent},
		{"traceparent is cut off", set("traceparent", `"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"`), apierror.InvalidEnvelope, "/traceparent", traceparent},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t)
		})
	}
}

// The rules of a key and a value are those of [statemachine.TagFault].
func TestRulesOfTags(t *testing.T) {
	t.Parallel()
	many := strings.Repeat(`,"k":"v"`, 8)
	for i := range 8 {
		many = strings.Replace(many, `"k"`, fmt.Sprintf(`"k%d"`, i), 1)
	}
	const key = "must have a key of 1 to 32 lower-case letters, digits, '_', '.' and '-' that begins with a letter"
	for _, test := range []refused{
		{"a list", set("tags", `["env=prod"]`), apierror.InvalidEnvelope, "/tags", "must be an object, not an array"},
		{"too many", set("tags", `{"a":"b"`+many+"}"), apierror.TooLarge, "/tags", "has 9 tags; at most 8 are allowed"},
		{"a number", set("tags", `{"part":7}`), apierror.InvalidEnvelope, "/tags/part", "must be a string, not a number"},
		{"null", set("tags", `{"part":null}`), apierror.InvalidEnvelope, "/tags/part", "must be a string, not null"},
		{"an empty value", set("tags", `{"part":""}`), apierror.InvalidEnvelope, "/tags/part", "must have a value of 1 to 128 bytes"},
		{"a line break", set("tags", `{"part":"1\nenv=prod"}`), apierror.InvalidEnvelope, "/tags/part", "must have a value in UTF-8 without control characters"},
		{"a key in upper case", set("tags", `{"Env":"prod"}`), apierror.InvalidEnvelope, "/tags/Env", key},
		{"a key with a slash", set("tags", `{"a/b":"c"}`), apierror.InvalidEnvelope, "/tags/a~1b", key},
		{"of the system", set("tags", `{"lucius.batch":"7"}`), apierror.InvalidEnvelope, "/tags/lucius.batch", `is a tag of the system: a command has none that begins with "lucius."`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t)
		})
	}
	command, err := commands.Decode(body(set("tags", "{"+many[1:]+"}")), commands.Headers{}, commands.Policy{})
	if err != nil || len(command.Tags.Map()) != 8 {
		t.Errorf("eight tags: %+v, %v", command, err)
	}
	if command, err = commands.Decode(body(set("tags", "{}")), commands.Headers{}, commands.Policy{}); err != nil || command.Tags != "" {
		t.Errorf("no tags: %+v, %v", command, err)
	}
}

func TestRulesOfReferences(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"input_ref", "output_ref", "workspace_ref"} {
		uri := "/" + name + "/uri"
		long := `{"uri":"s3://b","x":` + quote(commands.MaxRef) + "}"
		for _, test := range []refused{
			{"a text", set(name, `"s3://b"`), apierror.InvalidEnvelope, "/" + name, "must be an object, not a string"},
			{"an array", set(name, `[]`), apierror.InvalidEnvelope, "/" + name, "must be an object, not an array"},
			{"without uri", set(name, `{"url":"s3://b"}`), apierror.RefInvalid, uri, "is required"},
			{"uri is null", set(name, `{"uri":null}`), apierror.RefInvalid, uri, "is required"},
			{"uri is a number", set(name, `{"uri":7}`), apierror.RefInvalid, uri, "must be a string, not a number"},
			{"uri is empty", set(name, `{"uri":""}`), apierror.RefInvalid, uri, "must not be empty or blank"},
			{"uri has a control character", set(name, `{"uri":"s3://b/\u0007"}`), apierror.RefInvalid, uri, "must not contain control characters"},
			{"uri over its limit", set(name, `{"uri":`+quote(2049)+`}`), apierror.TooLarge, uri, "is 2049 bytes long; at most 2048 are allowed"},
			{"over its limit", set(name, long), apierror.TooLarge, "/" + name, "is 8215 bytes long; at most 8192 are allowed"},
		} {
			t.Run(name+" "+test.name, func(t *testing.T) {
				t.Parallel()
				test.run(t)
			})
		}
	}
}
