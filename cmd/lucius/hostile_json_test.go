//go:build !race

package main

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// manyKeys returns 100,000 members of an object, each after a comma.
func manyKeys() string {
	var text strings.Builder
	for i := range int64(100_000) {
		text.WriteString(`,"` + strconv.FormatInt(i, 36) + `":1`)
	}
	return text.String()
}

// hostileBodies are bodies that parsers have failed on, by what is wrong with them.
func hostileBodies() map[string]string {
	nested := func(n int, open, shut string) string { return strings.Repeat(open, n) + "1" + strings.Repeat(shut, n) }
	return map[string]string{
		"arrays that are 400,000 deep":  `{"x":` + nested(400_000, "[", "]") + `}`,
		"objects that are 100,000 deep": nested(100_000, `{"a":`, "}"),
		"brackets that never close":     strings.Repeat("[", 1_000_000),
		"an object that never closes":   strings.Repeat(`{"a":`, 100_000),
		"100,000 keys":                  `{"x-":1` + manyKeys() + `}`,
		"bad UTF-8":                     "{\"owner\":\"\xff\xfe\"}",
		"a surrogate in UTF-8":          "{\"owner\":\"\xed\xa0\x80\"}",
		"UTF-16":                        "\xff\xfe{\x00}\x00",
		"an escape that is cut off":     `{"owner":"\u00`,
		"a byte that is no text":        "{\"owner\":\"\x00\"}",
		"no value":                      " ",
		"another type":                  `"{}"`,
		"a number without an end":       `{"x":` + strings.Repeat("9", 1_000_000) + `}`,
	}
}

// TestHostile_JSON sends [hostileBodies] to every kind of path that takes one.
func TestHostile_JSON(t *testing.T) {
	t.Parallel()
	f := startAttacked(t)
	f.while(func() {
		for name, body := range hostileBodies() {
			for _, path := range []string{
				"/v1/commands", "/v1/commands:batch", "/v1/callbacks/ack", "/v1/callbacks/result", "/v1/work:claim",
				"/v1/work/x:complete", "/v1/jobs/x:cancel", "/v1/admin/pauses", "/v1/admin/retries",
				"/v1/admin/cancellations",
			} {
				got := f.do(t, http.MethodPost, path, body)
				code := got.field(t, "code")
				switch code {
				case "invalid_json", "invalid_envelope", "too_large", "payload_invalid":
				default:
					t.Errorf("%s to %s is answered %.200s", name, path, got.body)
				}
				f.expectProblem(http.MethodPost, path, got, code)
			}
		}
	})
}

// TestHostile_TinyValues sends many bodies at a time that decode to trees 50 times their
// size. Each is answered.
func TestHostile_TinyValues(t *testing.T) {
	t.Parallel()
	f := startAttacked(t)
	f.while(func() {
		const value = `{"a":{"b":{}}},`
		body := `{"x":[` + strings.Repeat(value, (1<<20-20)/len(value)) + `0]}`
		var senders sync.WaitGroup
		for range 40 {
			senders.Go(func() {
				got, err := f.call(t.Context(), http.MethodPost, "/v1/commands", body)
				if err != nil {
					t.Errorf("not answered: %v", err)
					return
				}
				code := got.field(t, "code")
				if code != "invalid_envelope" && code != "rate_limited" {
					t.Errorf("answered %.200s", got.body)
				}
				f.expectProblem(http.MethodPost, "/v1/commands", got, code)
			})
		}
		senders.Wait()
	})
}

// TestHostile_Payloads sends commands that are valid except for their payload.
func TestHostile_Payloads(t *testing.T) {
	t.Parallel()
	f := startAttacked(t)
	f.while(func() {
		for name, test := range map[string]struct{ payload, code string }{
			"deep":            {`{"language":"en","x":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`, "too_large"},
			"100,000 keys":    {`{"language":"en"` + manyKeys() + `}`, "too_large"},
			"large":           {`{"language":"en","x":"` + strings.Repeat("x", 200_000) + `"}`, "too_large"},
			"bad UTF-8":       {"{\"language\":\"\xff\"}", "invalid_json"},
			"half a pair":     {`{"language":"\ud800"}`, "invalid_json"},
			"a large number":  {`{"language":"en","x":1e999999999}`, "too_large"},
			"many digits":     {`{"language":"en","x":` + strings.Repeat("1", 100_000) + `}`, "too_large"},
			"names twice":     {`{"language":"en","language":"de"}`, "invalid_json"},
			"of another kind": {`{"language":7}`, "payload_invalid"},
		} {
			body := strings.Replace(ingestFor("tenant_a", name), `"payload":{}`, `"payload":`+test.payload, 1)
			got := f.do(t, http.MethodPost, "/v1/commands", body)
			f.expectProblem(http.MethodPost, "/v1/commands", got, test.code)
		}
	})
}
