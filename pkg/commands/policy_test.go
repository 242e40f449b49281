package commands_test

import (
	"strings"
	"testing"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/commands"
)

func TestAllowedRefs(t *testing.T) {
	t.Parallel()
	policy := commands.Policy{AllowedRefs: []string{"s3", "https://store.example.com/in", "gs://bucket/", "file:"}}
	for uri, want := range map[string]bool{
		"s3://any/where":                             true,
		"S3://any/where":                             true,
		"s3:opaque":                                  true,
		"s3":                                         false,
		"s3x://b":                                    false,
		"https://store.example.com/in":               true,
		"https://store.example.com/in/a.pdf":         true,
		"https://store.example.com/in?v=1":           true,
		"https://store.example.com/inner":            false,
		"https://store.example.com/out":              false,
		"https://store.example.com/":                 false,
		"https://store.example.com.evil.example/in/": false,
		"https://store.example.com/in/../out":        false,
		"https://store.example.com/in/%2e%2E/out":    false,
		"https://store.example.com/in/..%2Fout":      false,
		`https://store.example.com/in/..\\out`:       false,
		"https://store.example.com/in/./a":           false,
		"https://store.example.com/in/a..b":          true,
		"https://store.example.com/in/a?next=../b":   true,
		"http://store.example.com/in/a":              false,
		"gs://bucket/a b":                            true,
		"gs://bucket":                                false,
		"gs://bucket2/a":                             false,
		"file:///tmp/a":                              true,
		"in.pdf":                                     false,
	} {
		t.Run(uri, func(t *testing.T) {
			t.Parallel()
			_, err := commands.Decode(body(map[string]string{
				"input_ref": `{"uri":"` + uri + `"}`, "output_ref": `{"uri":"s3://b"}`,
			}), commands.Headers{}, policy)
			if want && err != nil {
				t.Errorf("refused: %v", err)
			}
			if got := apierror.From(err); !want && (got == nil || got.Code != apierror.RefInvalid || got.Errors[0].Pointer != "/input_ref/uri") {
				t.Errorf("Decode: %v, want %s at /input_ref/uri", err, apierror.RefInvalid)
			}
		})
	}
}

func TestWithoutAPolicyAnyURIIsAllowed(t *testing.T) {
	t.Parallel()
	for _, uri := range []string{"s3://b/a", "in.pdf", "../up", "urn:x:y", "C:/a"} {
		if _, err := commands.Decode(body(set("input_ref", `{"uri":"`+uri+`"}`)), commands.Headers{}, commands.Policy{}); err != nil {
			t.Errorf("%s: %v", uri, err)
		}
	}
}

func TestPayloadLimitOfThePolicy(t *testing.T) {
	t.Parallel()
	policy := commands.Policy{MaxPayloadBytes: 10}
	if _, err := commands.Decode(body(set("payload", `{ "a": 1 }`)), commands.Headers{}, policy); err != nil {
		t.Errorf("10 bytes: %v", err)
	}
	_, err := commands.Decode(body(set("payload", `{ "a": 12 }`)), commands.Headers{}, policy)
	if got := apierror.From(err); got == nil || got.Code != apierror.TooLarge {
		t.Errorf("11 bytes: %v, want %s", err, apierror.TooLarge)
	}
}

func TestPolicyValidate(t *testing.T) {
	t.Parallel()
	for _, policy := range []commands.Policy{
		{}, {MaxPayloadBytes: commands.LargestPayload}, {MaxPayloadBytes: 1, AllowedRefs: []string{"s3", "gs://b/", "x-y+z.1:", "https://[::1]:80/a"}},
	} {
		if err := policy.Validate(); err != nil {
			t.Errorf("%+v: %v", policy, err)
		}
	}
	for name, policy := range map[string]commands.Policy{
		"MaxPayloadBytes is -1":     {MaxPayloadBytes: -1},
		"MaxPayloadBytes is 458753": {MaxPayloadBytes: commands.LargestPayload + 1},
		"AllowedRefs[0]":            {AllowedRefs: []string{""}},
		"AllowedRefs[1]":            {AllowedRefs: []string{"s3", "//host/path"}},
		"AllowedRefs[2]":            {AllowedRefs: []string{"s3", "gs", "s3://b\n"}},
	} {
		if err := policy.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%+v: %v, want an error that names %s", policy, err, name)
		}
	}
}
