package httpapi_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/httpapi"
)

// deadLetters are dead letters in memory: those with even numbers can be replayed.
type deadLetters struct {
	letters []callbacks.DeadLetter
	err     error
}

func newDeadLetters(ids ...string) *deadLetters {
	d := &deadLetters{}
	for _, id := range ids {
		d.letters = append(d.letters, callbacks.DeadLetter{
			ID: id, Topic: "replies-p0", MessageID: "m" + id, Reason: "job_not_found", Description: "There is no such job.",
			SentAt: time.Date(2026, 1, 27, 10, 2, 0, 0, time.UTC), Body: []byte(`{"type":"ACK","lease_id":"capability"}`),
		})
	}
	return d
}

func (d *deadLetters) List(_ context.Context, limit int, after string) ([]callbacks.DeadLetter, string, error) {
	from := slices.IndexFunc(d.letters, func(l callbacks.DeadLetter) bool { return l.ID == after }) + 1
	page := d.letters[from:min(len(d.letters), from+limit)]
	if from+limit < len(d.letters) {
		return page, page[limit-1].ID, d.err
	}
	return page, "", d.err
}

func (d *deadLetters) Replay(_ context.Context, ids []string) ([]callbacks.HandledDeadLetter, bool, error) {
	return d.handle(ids, func(id string) callbacks.HandledDeadLetter {
		if strings.HasSuffix(id, "2") {
			return callbacks.HandledDeadLetter{ID: id, Outcome: callbacks.DeadLetterApplied}
		}
		return callbacks.HandledDeadLetter{
			ID: id, Outcome: callbacks.DeadLetterKept, Cause: apierror.Newf(apierror.JobNotFound, "There is no such job."),
		}
	})
}

func (d *deadLetters) Purge(_ context.Context, ids []string) ([]callbacks.HandledDeadLetter, bool, error) {
	return d.handle(ids, func(id string) callbacks.HandledDeadLetter {
		return callbacks.HandledDeadLetter{ID: id, Outcome: callbacks.DeadLetterPurged}
	})
}

func (d *deadLetters) handle(ids []string, decide func(string) callbacks.HandledDeadLetter) (
	handled []callbacks.HandledDeadLetter, more bool, err error,
) {
	d.letters = slices.DeleteFunc(d.letters, func(l callbacks.DeadLetter) bool {
		if ids != nil && !slices.Contains(ids, l.ID) {
			return false
		}
		handled = append(handled, decide(l.ID))
		return handled[len(handled)-1].Outcome != callbacks.DeadLetterKept
	})
	return handled, false, d.err
}

var errNoBus = &apierror.Error{Code: apierror.BusUnavailable, RetryAfter: time.Second}

// lostTopics is the situation in which dead letters cannot be read.
func lostTopics(operation string, err error) situation {
	return func(t *testing.T, g *guarded) question {
		t.Helper()
		asked := accepting(t, g, operation)
		g.Server = g.serve(t, func(c *httpapi.Config) { c.DeadLetters = &deadLetters{err: err} })
		return asked
	}
}

// withoutTopics is the situation of a server without reply topics.
func withoutTopics(operation string) situation {
	return func(t *testing.T, g *guarded) question {
		t.Helper()
		asked := accepting(t, g, operation)
		g.Server = g.serve(t, func(c *httpapi.Config) { c.DeadLetters = nil })
		return asked
	}
}

// TestDeadLetters_AreShownWithoutCapabilities: bodies are shown as text of a bounded length
// without lease ids, whatever they contain.
func TestDeadLetters_AreShownWithoutCapabilities(t *testing.T) {
	t.Parallel()
	const withheld = "(not shown: it may hold a lease id where none belongs)"
	for name, test := range map[string]struct {
		body, shown string
		truncated   bool
	}{
		"a reply":              {`{"lease_id":"capability","jobId":"j"}`, `{"lease_id":"(masked)","jobId":"j"}`, false},
		"with blanks":          {"{\"lease_id\"\t: \"cap\\\"ability\" }", "{\"lease_id\"\t: \"(masked)\" }", false},
		"in another spelling":  {`{"Lease-ID":"capability","x":1}`, `{"Lease-ID":"(masked)","x":1}`, false},
		"with the long s":      {`{"leaſe_id":"capability"}`, `{"leaſe_id":"(masked)"}`, false},
		"escaped":              {`{"lease\u005fid":"capability"}`, `{"lease\u005fid":"(masked)"}`, false},
		"deep in a reply":      {`{"a":[{"LeaseId":"capability"}]}`, `{"a":[{"LeaseId":"(masked)"}]}`, false},
		"in a text":            {`{"a":"{\"lease_id\":\"capability\"}"}`, `{"a":"(masked)"}`, false},
		"escaped in a text":    {`{"a":"{\"lease\\u005fid\":\"capability\"}"}`, `{"a":"(masked)"}`, false},
		"in a name":            {`{"lease_id=capability":"x"}`, withheld, false},
		"in a list":            {`{"lease_id":["capability"]}`, withheld, false},
		"a text":               {`"{\"lease_id\":\"capability\"}"`, withheld, false},
		"cut off":              {`{"lease_id":"capab`, withheld, false},
		"not JSON":             {"lease_id=capability", withheld, false},
		"in UTF-16":            {"{\x00\"\x00l\x00e\x00a\x00s\x00e\x00_\x00i\x00d\x00\"\x00:\x00\"\x00c\x00", withheld, false},
		"twice":                {`[{"lease_id":"a"},{"lease_id":"b"}]`, `[{"lease_id":"(masked)"},{"lease_id":"(masked)"}]`, false},
		"no text":              {"a\xffb", "a\uFFFDb", false},
		"long":                 {strings.Repeat("x", 20<<10), strings.Repeat("x", 16<<10), true},
		"long, in a character": {"x" + strings.Repeat("ä", 20<<10), "x" + strings.Repeat("ä", 8<<10-1), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t, func(c *httpapi.Config) {
				c.DeadLetters = &deadLetters{letters: []callbacks.DeadLetter{{ID: "0-1", Body: []byte(test.body)}}}
			})
			got := decoded[api.DeadLetterPage](t, h.do(t, http.MethodGet, "/v1/admin/dead-letters", "")).DeadLetters
			if len(got) != 1 || got[0].Body != test.shown || got[0].BodyTruncated != test.truncated {
				t.Errorf("shown: %.200v", got)
			}
		})
	}
}

func TestDeadLetters_ArePagedAndSelected(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(c *httpapi.Config) { c.DeadLetters = newDeadLetters("0-1", "0-2", "1-7") })
	first := decoded[api.DeadLetterPage](t, h.do(t, http.MethodGet, "/v1/admin/dead-letters?limit=2", ""))
	second := decoded[api.DeadLetterPage](t, h.do(t, http.MethodGet, "/v1/admin/dead-letters?limit=2&page_token="+first.NextPageToken, ""))
	if len(first.DeadLetters) != 2 || len(second.DeadLetters) != 1 || second.DeadLetters[0].DeadLetterID != "1-7" || second.NextPageToken != "" {
		t.Errorf("pages %+v and %+v", first, second)
	}
	for _, body := range []string{`{}`, `{"all":false}`, `{"dead_letter_ids":[]}`, `{"all":true,"dead_letter_ids":["0-1"]}`} {
		for _, verb := range []string{"replay", "purge"} {
			if got := h.do(t, http.MethodPost, "/v1/admin/dead-letters:"+verb, body); got.Status != http.StatusBadRequest {
				t.Errorf("%s of %s: %d %s", verb, body, got.Status, got.Body)
			}
		}
	}
}

// Letters that were handled before the bus failed are answered and logged together with the
// fault.
func TestDeadLetters_AnswerWithLettersHandledBeforeAFault(t *testing.T) {
	t.Parallel()
	letters := newDeadLetters("0-1", "0-2")
	h := newHarness(t, func(c *httpapi.Config) { c.DeadLetters = letters })
	letters.err = errNoBus
	got := decoded[api.DeadLetterResult](t, h.do(t, http.MethodPost, "/v1/admin/dead-letters:purge", `{"dead_letter_ids":["0-1","1-7"]}`))
	if len(got.Handled) != 1 || got.Handled[0].Outcome != "purged" || got.Error == nil || got.Error.Code != apierror.BusUnavailable {
		t.Errorf("answered %+v", got)
	}
	if log := h.log.String(); !strings.Contains(log, "outcomes=map[purged:1] complete=false") {
		t.Errorf("the log says %s", log)
	}
	wantProblem(t, h.do(t, http.MethodPost, "/v1/admin/dead-letters:purge", `{"dead_letter_ids":["1-7"]}`), apierror.BusUnavailable, "")
	if log := h.log.String(); strings.Count(log, "dead letters handled") != 1 {
		t.Errorf("the log says %s", log)
	}
	letters.err = apierror.Newf(apierror.InvalidEnvelope, "There is no dead letter with that id.")
	wantProblem(t, h.do(t, http.MethodGet, "/v1/admin/dead-letters?page_token="+httpapi.PageToken("/v1/admin/dead-letters", "x"), ""), apierror.InvalidEnvelope, "page_token is invalid.")
}
