package commands_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/commands"
)

// Any request is either refused with a code of the contract and at least one violation, or
// yields a command with parts of the body.
func FuzzDecode(f *testing.F) {
	f.Add(body(nil), "", "")
	f.Add(body(map[string]string{"mode": `"BURST"`, "doc_id": `"d"`, "callback_urls": `["https://x"]`}), `"k"`, "00-xyz")
	f.Add(body(map[string]string{"input_ref": `{"uri":1}`, "payload": "[]", "x": "{}"}), `"`, "")
	f.Add([]byte(`{"tenant_id":"\ud800"}`), "\xff", "")
	policy := commands.Policy{AllowedRefs: []string{"s3", "https://x/"}, MaxPayloadBytes: 100}
	f.Fuzz(func(t *testing.T, data []byte, key, traceparent string) {
		command, err := commands.Decode(data, commands.Headers{IdempotencyKey: key, Traceparent: traceparent}, policy)
		if err != nil {
			switch refusal := apierror.From(err); refusal.Code {
			case apierror.InvalidJSON, apierror.InvalidEnvelope, apierror.TooLarge, apierror.RefInvalid:
				if len(refusal.Errors) == 0 {
					t.Fatalf("Decode(%q) names no violation: %v", data, err)
				}
			default:
				t.Fatalf("Decode(%q): %v", data, err)
			}
			return
		}
		for _, part := range []json.RawMessage{command.InputRef, command.OutputRef, command.Payload} {
			if !json.Valid(part) || len(part) == 0 || part[0] != '{' {
				t.Fatalf("Decode(%q): part %q is no object", data, part)
			}
		}
		again, err := commands.Decode(data, commands.Headers{IdempotencyKey: key, Traceparent: traceparent}, policy)
		if diff := cmp.Diff(command, again); err != nil || diff != "" {
			t.Fatalf("Decode(%q) differs the second time: %v\n%s", data, err, diff)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	command := body(map[string]string{"idempotency_key": `"k-1"`, "correlation_id": `"c-1"`})
	b.ReportAllocs()
	b.SetBytes(int64(len(command)))
	for b.Loop() {
		if _, err := commands.Decode(command, commands.Headers{}, commands.Policy{}); err != nil {
			b.Fatal(err)
		}
	}
}
