package auth_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/auth"
)

func TestAudit_Write(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	auth.NewAudit(slog.New(slog.NewJSONHandler(&out, nil))).Write(t.Context(), auth.Record{
		At: noon, Caller: auth.NewCaller("ci", auth.ByToken), From: "192.0.2.7:4711", Action: "cancelJob",
		Object: "0197f0c2", Tenant: "tenant_a", Outcome: auth.Done,
		Reason: "wrong input, seen with " + auth.TokenPrefix + "aaaaaaaaaaaaaaaaaaaaaaaa",
	})
	var got map[string]string
	musttest.NoError(t, json.Unmarshal(out.Bytes(), &got))
	delete(got, "time")
	want := map[string]string{
		"level": "INFO", "msg": "audit", "at": "2026-01-27T12:00:00Z", "caller": "ci", "origin": "token", "from": "192.0.2.7:4711",
		"action": "cancelJob", "object": "0197f0c2", "tenant": "tenant_a", "outcome": "done",
		"reason": "wrong input, seen with [masked]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the record (-want +got):\n%s", diff)
	}
}

// Unknown callers can cause any number of refusals. So their records are bounded and
// the dropped ones counted; the records of known callers are always written.
func TestAudit_IsNotFloodedByStrangers(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	audit := auth.NewAudit(slog.New(slog.NewJSONHandler(&out, nil)))
	write := func(at time.Time, caller auth.Caller) {
		audit.Write(t.Context(), auth.Record{At: at, Caller: caller, Action: "cancelJob", Outcome: auth.Denied})
	}
	lines := func() []string {
		defer out.Reset()
		return strings.Split(strings.TrimSpace(out.String()), "\n")
	}
	stranger, known := auth.Caller{}, auth.NewCaller("ci", auth.ByToken)
	for range 1000 {
		write(noon, stranger)
	}
	if got := lines(); len(got) != 100 || strings.Contains(got[99], "left_out") {
		t.Errorf("there are %d records, the last is %s", len(got), got[len(got)-1])
	}
	for range 200 {
		write(noon, known)
	}
	got := lines()
	if len(got) != 200 || !strings.Contains(got[0], `"left_out":900}`) || strings.Contains(got[1], "left_out") {
		t.Errorf("of a caller there are %d records, the first is %s", len(got), got[0])
	}
	for i := range 20 {
		write(noon.Add(time.Duration(i)*time.Second/2), stranger)
	}
	if got := lines(); len(got) != 9 || !strings.Contains(got[0], `"left_out":2`) {
		t.Errorf("in ten seconds there are %d records, the first is %s", len(got), got[0])
	}
}

func TestAudit_KeepsTheNewest(t *testing.T) {
	t.Parallel()
	audit := auth.NewAudit(nil) // Without a log, too.
	numbers := func(from, to, step int) (all []string) {
		for n := from; n > to; n -= step {
			all = append(all, strconv.Itoa(n))
		}
		return all
	}
	for n := range 1234 {
		audit.Write(t.Context(), auth.Record{At: noon, Caller: auth.NewCaller("ci", auth.ByToken), Object: strconv.Itoa(n + 1)})
	}
	read := func(limit int, match func(*auth.Record) bool) (found []string) {
		var lengths []int
		for after, more := int64(0), true; more; more = after != 0 {
			var records []auth.Record
			records, after = audit.Trail(after, limit, match)
			for _, record := range records {
				found = append(found, record.Object)
			}
			lengths = append(lengths, len(records))
		}
		if len(lengths) != (len(found)+limit-1)/limit {
			t.Errorf("pages of %v records", lengths)
		}
		return found
	}
	if diff := cmp.Diff(numbers(1234, 234, 1), read(300, func(*auth.Record) bool { return true })); diff != "" {
		t.Errorf("all (-want +got):\n%s", diff)
	}
	tens := func(r *auth.Record) bool { return strings.HasSuffix(r.Object, "0") }
	if diff := cmp.Diff(numbers(1230, 234, 10), read(50, tens)); diff != "" {
		t.Errorf("those that match (-want +got):\n%s", diff)
	}
	if records, next := audit.Trail(5, 10, tens); len(records) != 0 || next != 0 {
		t.Errorf("after what is kept: %v, %d", records, next)
	}
}

func TestAudit_HasNoSecretAndNoForgedLine(t *testing.T) {
	t.Parallel()
	token := auth.NewToken()
	jwt := edKey("k").sign(t, claims(nil))
	for _, handler := range []func(*bytes.Buffer) slog.Handler{
		func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
		func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
	} {
		var out bytes.Buffer
		audit := auth.NewAudit(slog.New(handler(&out)))
		audit.Write(t.Context(), auth.Record{
			At: noon, From: jwt, Object: "x" + token + "y", Tenant: "a\noutcome=done", Action: strings.Repeat("ä", 1000), Outcome: auth.Denied,
		})
		if kept, _ := audit.Trail(0, 1, func(*auth.Record) bool { return true }); kept[0].From != "[masked]" || len(kept[0].Action) != 512 {
			t.Errorf("it keeps %+v", kept[0])
		}
		line := out.String()
		if strings.Contains(line, token[8:]) || strings.Contains(line, jwt[:20]) || strings.Count(line, "[masked]") != 2 {
			t.Errorf("a secret is in %s", line)
		}
		if strings.Count(line, "\n") != 1 || strings.Count(line, "ä") != 256 {
			t.Errorf("the line is forged, or too long: %s", line)
		}
	}
}
