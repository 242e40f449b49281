package commands_test

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// valid are the fields of the smallest command, as JSON texts.
var valid = map[string]string{
	"tenant_id": `"tenant_a"`, "request_type": `"doc.ingest"`, "schema_version": `"1"`,
	"input_ref": `{"uri":"s3://b/in.pdf"}`, "output_ref": `{"uri":"s3://b/out.json"}`, "payload": `{"language":"en"}`,
}

// body is the smallest command with some fields set, or left out where the text
// is empty.
func body(fields map[string]string) []byte {
	all := maps.Clone(valid)
	maps.Copy(all, fields)
	var members []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if all[name] != "" {
			members = append(members, `"`+name+`":`+all[name])
		}
	}
	return []byte("{" + strings.Join(members, ",") + "}")
}

// quote is a JSON string of n bytes.
func quote(n int) string { return `"` + strings.Repeat("x", n) + `"` }

func TestDecodeReadsEveryField(t *testing.T) {
	t.Parallel()
	got, err := commands.Decode([]byte(`{
		"tenant_id": "tenant_a", "request_type": "doc.ingest", "schema_version": "1",
		"input_ref": { "uri": "s3://b/in.pdf", "etag": 1.50 }, "output_ref": {"uri":"s3://b/out.json"},
		"payload": {"language": "en", "n": [1, null]},
		"mode": "BURST", "doc_id": "doc_1", "tags": {"env": "prod", "customer": "4=2"}, "idempotency_key": "key-1",
		"callback_urls": ["https://example.com/hook", "http://[::1]:8080/?a=b"],
		"workspace_ref": {"uri": "s3://b/work/"}, "correlation_id": "corr-1",
		"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	}`), commands.Headers{}, commands.Policy{})
	musttest.NoError(t, err)
	want := &commands.Command{
		TenantID: "tenant_a", RequestType: "doc.ingest", SchemaVersion: "1",
		InputRef:  json.RawMessage(`{ "uri": "s3://b/in.pdf", "etag": 1.50 }`),
		OutputRef: json.RawMessage(`{"uri":"s3://b/out.json"}`),
		Payload:   json.RawMessage(`{"language": "en", "n": [1, null]}`),
		PayloadTree: map[string]any{
			"language": "en", "n": []any{json.Number("1"), nil},
		},
		Mode: statemachine.ModeBurst, DocID: "doc_1", Tags: "customer=4=2\nenv=prod", IdempotencyKey: "key-1",
		CallbackURLs: []string{"https://example.com/hook", "http://[::1]:8080/?a=b"},
		WorkspaceRef: json.RawMessage(`{"uri": "s3://b/work/"}`), CorrelationID: "corr-1",
		Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		Hash:        got.Hash,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("command (-want +got):\n%s", diff)
	}
}

func TestOptionalFieldsMayBeAbsentOrNull(t *testing.T) {
	t.Parallel()
	absent, err := commands.Decode(body(nil), commands.Headers{}, commands.Policy{})
	musttest.NoError(t, err)
	nulls := map[string]string{}
	for _, name := range []string{"mode", "doc_id", "tags", "idempotency_key", "callback_urls", "workspace_ref", "correlation_id", "traceparent"} {
		nulls[name] = "null"
	}
	null, err := commands.Decode(body(nulls), commands.Headers{}, commands.Policy{})
	if diff := cmp.Diff(absent, null); err != nil || diff != "" {
		t.Errorf("null is not the same as absent: %v (-absent +null):\n%s", err, diff)
	}
	if absent.Mode != "" || absent.CallbackURLs != nil || absent.WorkspaceRef != nil || absent.Traceparent != "" || absent.Tags != "" {
		t.Errorf("absent fields are not empty: %+v", absent)
	}
}

// The hash is that of the published vectors, and covers no other field.
func TestHashOfTheVectors(t *testing.T) {
	t.Parallel()
	text := musttest.ReadFile(t, "../../testdata/canonicaljson/vectors.json")
	var vectors struct {
		Commands []struct{ Why, Command, SHA256 string }
	}
	if err := json.Unmarshal(text, &vectors); err != nil || len(vectors.Commands) == 0 {
		t.Fatalf("no vectors: %v", err)
	}
	for _, vector := range vectors.Commands {
		t.Run(vector.Why, func(t *testing.T) {
			t.Parallel()
			command, err := commands.Decode([]byte(vector.Command), commands.Headers{}, commands.Policy{})
			musttest.NoError(t, err)
			if command.Hash != vector.SHA256 {
				t.Errorf("hash %s, want %s", command.Hash, vector.SHA256)
			}
		})
	}
}

func TestHashCoversExactlySixFields(t *testing.T) {
	t.Parallel()
	hash := func(fields map[string]string) string {
		command, err := commands.Decode(body(fields), commands.Headers{}, commands.Policy{})
		musttest.NoError(t, err)
		return command.Hash
	}
	first := hash(nil)
	for name, text := range map[string]string{
		"mode": `"BURST"`, "tags": `{"a":"b"}`, "idempotency_key": `"k"`, "callback_urls": `["https://example.com"]`, "workspace_ref": `{"uri":"s3://w"}`,
		"correlation_id": `"c"`, "traceparent": `"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"`,
	} {
		if hash(map[string]string{name: text, "doc_id": `"d"`}) != first {
			t.Errorf("%s changes the hash", name)
		}
	}
	for name, text := range map[string]string{
		"tenant_id": `"tenant_b"`, "request_type": `"doc.other"`, "schema_version": `"2"`, "input_ref": `{"uri":"s3://b/in2.pdf"}`,
		"output_ref": `{"uri":"s3://b/out.json","x":0}`, "payload": `{"language":"de"}`,
	} {
		if hash(map[string]string{name: text}) == first {
			t.Errorf("%s does not change the hash", name)
		}
	}
}

func TestEveryViolationIsNamed(t *testing.T) {
	t.Parallel()
	_, err := commands.Decode([]byte(`{
		"tenant_id": 5, "request_type": " ", "input_ref": "s3://b/in.pdf", "output_ref": {"uri": ""}, "payload": [],
		"mode": "burst", "callback_urls": ["ftp://x", 7], "correlation_id": "`+strings.Repeat("x", 129)+`",
		"tenantId": "t", "a/b": null
	}`), commands.Headers{}, commands.Policy{})
	want := &apierror.Error{Code: apierror.InvalidEnvelope, Errors: []apierror.Violation{
		{Pointer: "/tenant_id", Message: "must be a string, not a number"},
		{Pointer: "/request_type", Message: "must not be empty or blank"},
		{Pointer: "/schema_version", Message: "is required"},
		{Pointer: "/input_ref", Message: "must be an object, not a string"},
		{Pointer: "/output_ref/uri", Message: "must not be empty or blank"},
		{Pointer: "/mode", Message: `must be "DEFAULT" or "BURST"`},
		{Pointer: "/callback_urls/0", Message: "must be an absolute http or https URL"},
		{Pointer: "/callback_urls/1", Message: "must be a string, not a number"},
		{Pointer: "/correlation_id", Message: "is 129 bytes long; at most 128 are allowed"},
		{Pointer: "/payload", Message: "must be an object, not an array"},
		{Pointer: "/a~1b", Message: "is not a field of a command"},
		{Pointer: "/tenantId", Message: "is not a field of a command"},
	}}
	if diff := cmp.Diff(want, apierror.From(err)); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
}

func TestViolationsBeyondTheLimitAreCounted(t *testing.T) {
	t.Parallel()
	fields := map[string]string{}
	for i := range commands.MaxViolations + 7 {
		fields["unknown"+strings.Repeat("x", i)] = "0"
	}
	_, err := commands.Decode(body(fields), commands.Headers{}, commands.Policy{})
	got := apierror.From(err).Errors
	if len(got) != commands.MaxViolations+1 || got[commands.MaxViolations].Message != "has 7 more violations" {
		t.Errorf("%d violations, the last %+v", len(got), got[len(got)-1])
	}
	if summary := apierror.From(err).Summary(); !strings.HasSuffix(summary, "There are 107 violations in all.") {
		t.Errorf("the summary is %s", summary)
	}
}

func TestDecodeRefusesNonCommands(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		body    string
		code    apierror.Code
		pointer string
	}{
		{``, apierror.InvalidJSON, ""},
		{`{"tenant_id":"a","tenant_id":"b"}`, apierror.InvalidJSON, "/tenant_id"},
		{`{"payload":{"n":1e1000000}}`, apierror.TooLarge, "/payload/n"},
		{`{} {}`, apierror.InvalidJSON, ""},
		{`null`, apierror.InvalidEnvelope, ""},
		{`[]`, apierror.InvalidEnvelope, ""},
		{`"{}"`, apierror.InvalidEnvelope, ""},
	} {
		t.Run(test.body, func(t *testing.T) {
			t.Parallel()
			command, err := commands.Decode([]byte(test.body), commands.Headers{}, commands.Policy{})
			got := apierror.From(err)
			if command != nil || got == nil || got.Code != test.code || len(got.Errors) != 1 || got.Errors[0].Pointer != test.pointer {
				t.Errorf("Decode = %v, %v, want %s at %q", command, err, test.code, test.pointer)
			}
		})
	}
}

// The answer has one code: a command that is both malformed and too large is malformed, and
// its size counts before its references.
func TestCodeOfAMixture(t *testing.T) {
	t.Parallel()
	ref, large, malformed := map[string]string{"output_ref": "{}"}, map[string]string{"tenant_id": quote(129)}, map[string]string{"payload": ""}
	for _, test := range []struct {
		name string
		sets []map[string]string
		want apierror.Code
	}{
		{"only a reference", []map[string]string{ref}, apierror.RefInvalid},
		{"only a size", []map[string]string{large}, apierror.TooLarge},
		{"only a form", []map[string]string{malformed}, apierror.InvalidEnvelope},
		{"reference and size", []map[string]string{ref, large}, apierror.TooLarge},
		{"reference and form", []map[string]string{ref, malformed}, apierror.InvalidEnvelope},
		{"all three", []map[string]string{ref, large, malformed}, apierror.InvalidEnvelope},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			fields := map[string]string{}
			for _, set := range test.sets {
				maps.Copy(fields, set)
			}
			_, err := commands.Decode(body(fields), commands.Headers{}, commands.Policy{})
			if got := apierror.From(err); got == nil || got.Code != test.want || len(got.Errors) != len(test.sets) {
				t.Errorf("Decode: %v, want %s with %d violations", err, test.want, len(test.sets))
			}
		})
	}
}

func TestCallbackURLsOfThePolicy(t *testing.T) {
	t.Parallel()
	policy := commands.Policy{CheckCallbackURL: func(url string) string {
		switch {
		case strings.HasPrefix(url, "https://inside."):
			return "leads to an address that is not allowed"
		case strings.HasPrefix(url, "ftp:"):
			return "must be an absolute https URL"
		}
		return ""
	}}
	for url, want := range map[string]string{
		"https://example.com/hook": "", "https://inside.example.com/": "leads to an address that is not allowed",
		"ftp://example.com/":    "must be an absolute https URL", // The policy decides which schemes are allowed.
		"gopher://example.com/": "must be an absolute http or https URL", "https://me@example.com/": "must not carry a user name or password",
	} {
		command := body(map[string]string{"callback_urls": `["` + url + `"]`})
		_, err := commands.Decode(command, commands.Headers{}, policy)
		var told *apierror.Error
		if errors.As(err, &told); want == "" && err != nil || want != "" && (told == nil || told.Errors[0].Message != want) {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
	}
}
