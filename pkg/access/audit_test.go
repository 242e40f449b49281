package access_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/access"
)

func TestAudit_Write(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	access.NewAudit(slog.New(slog.NewJSONHandler(&out, nil))).Write(t.Context(), access.Record{
		At: noon, Caller: access.NewCaller("ci", access.ByToken), From: "192.0.2.7:4711", Action: "cancelJob",
		Object: "0197f0c2", Tenant: "tenant_a", Outcome: access.Done,
	})
	var got map[string]string
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	delete(got, "time")
	want := map[string]string{
		"level": "INFO", "msg": "audit", "at": "2026-01-27T12:00:00Z", "caller": "ci", "origin": "token", "from": "192.0.2.7:4711",
		"action": "cancelJob", "object": "0197f0c2", "tenant": "tenant_a", "outcome": "done",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the record (-want +got):\n%s", diff)
	}
}

func TestAudit_HasNoSecretAndNoForgedLine(t *testing.T) {
	t.Parallel()
	token := access.NewToken()
	jwt := edKey("k").sign(t, claims(nil))
	for _, handler := range []func(*bytes.Buffer) slog.Handler{
		func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
		func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
	} {
		var out bytes.Buffer
		access.NewAudit(slog.New(handler(&out))).Write(t.Context(), access.Record{
			At: noon, From: jwt, Object: "x" + token + "y", Tenant: "a\noutcome=done", Action: strings.Repeat("ä", 1000), Outcome: access.Denied,
		})
		line := out.String()
		if strings.Contains(line, token[8:]) || strings.Contains(line, jwt[:20]) || strings.Count(line, "[masked]") != 2 {
			t.Errorf("a secret is in %s", line)
		}
		if strings.Count(line, "\n") != 1 || strings.Count(line, "ä") != 256 {
			t.Errorf("the line is forged, or too long: %s", line)
		}
	}
}
