package httpapi_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/inbox"
	"github.com/lucius-project/lucius/pkg/problem"
)

// inboxOf is an inbox in memory.
type inboxOf struct {
	refused []inbox.Refused
	asked   []string
	err     error
}

func newInbox(ids ...string) *inboxOf {
	made := &inboxOf{}
	for _, id := range ids {
		at := time.Date(2026, 1, 27, 10, 2, 0, 0, time.UTC)
		made.refused = append(made.refused, inbox.Refused{
			Command: inbox.Command{
				ID: id, TenantID: "t", Body: []byte(`{"tenant_id": "t"}`), SubmittedBy: "shop", SubmittedAt: at,
			},
			RefusedAt: at.Add(time.Second), Code: problem.InvalidEnvelope, Detail: "/mode is odd.",
			Errors: []problem.Violation{{Pointer: "/mode", Message: "is odd"}},
		})
	}
	return made
}

func (i *inboxOf) List(_ context.Context, limit int, after string) ([]inbox.Refused, string, error) {
	if after == "bad" {
		return nil, "", problem.Newf(problem.InvalidEnvelope, "The cursor is bad.")
	}
	if i.err != nil || after != "" {
		return nil, "", i.err
	}
	if limit < len(i.refused) {
		return i.refused[:limit], "rest", nil
	}
	return i.refused, "", nil
}

func (i *inboxOf) Retry(_ context.Context, ids []string) ([]inbox.Handled, bool, error) {
	i.asked = append(i.asked, fmt.Sprint("retry ", ids))
	return i.handled(ids, inbox.Retried)
}

func (i *inboxOf) Discard(_ context.Context, ids []string, reason string) ([]inbox.Handled, bool, error) {
	i.asked = append(i.asked, fmt.Sprint("discard ", ids, " ", reason))
	return i.handled(ids, inbox.Discarded)
}

func (i *inboxOf) handled(ids []string, outcome inbox.HandledOutcome) (handled []inbox.Handled, more bool, err error) {
	for _, id := range ids {
		handled = append(handled, inbox.Handled{ID: id, Outcome: outcome})
		outcome = inbox.Absent // But the first.
	}
	return handled, ids == nil, i.err
}

// lostInbox is the situation in which the inbox cannot be read, and withoutInbox that in which
// there is none.
func lostInbox(operation string, err error) situation {
	return func(t *testing.T, g *guarded) question {
		t.Helper()
		asked := accepting(t, g, operation)
		g.Server = g.serve(t, func(c *httpapi.Config) { c.Inbox = &inboxOf{err: err} })
		return asked
	}
}

func withoutInbox(operation string) situation {
	return func(t *testing.T, g *guarded) question {
		t.Helper()
		asked := accepting(t, g, operation)
		g.Server = g.serve(t, func(c *httpapi.Config) { c.Inbox = nil })
		return asked
	}
}

var errNoDatabase = &problem.Error{Code: problem.StoreUnavailable, RetryAfter: time.Second}

func TestInbox_IsShownAndPaged(t *testing.T) {
	t.Parallel()
	of := newInbox("c-1", "c-2")
	of.refused[0].Body = []byte("x" + strings.Repeat("ä", 20<<10))
	h := newHarness(t, func(c *httpapi.Config) { c.Inbox = of })
	first := decoded[api.InboxPage](t, h.do(t, http.MethodGet, "/v1/admin/inbox?limit=1", ""))
	if len(first.Commands) != 1 || first.NextPageToken == "" || !first.Commands[0].BodyTruncated ||
		first.Commands[0].Body != "x"+strings.Repeat("ä", 8<<10-1) {
		t.Errorf("%d commands, next %q", len(first.Commands), first.NextPageToken)
	}
	if rest := decoded[api.InboxPage](t, h.do(t, http.MethodGet, "/v1/admin/inbox?limit=1&page_token="+first.NextPageToken, "")); len(rest.Commands) != 0 {
		t.Errorf("the page after the last: %+v", rest)
	}
	all := decoded[api.InboxPage](t, h.do(t, http.MethodGet, "/v1/admin/inbox", ""))
	want := api.InboxCommand{
		CommandID: "c-2", TenantID: "t", SubmittedBy: "shop", SubmittedAt: api.NewTime(of.refused[1].SubmittedAt),
		RefusedAt: api.NewTime(of.refused[1].RefusedAt), Code: "invalid_envelope", Detail: "/mode is odd.",
		Errors: []problem.Violation{{Pointer: "/mode", Message: "is odd"}}, Body: `{"tenant_id": "t"}`,
	}
	if diff := cmp.Diff(want, all.Commands[1]); diff != "" {
		t.Error(diff)
	}
}

func TestInbox_IsSelected(t *testing.T) {
	t.Parallel()
	of := newInbox()
	h := newHarness(t, func(c *httpapi.Config) { c.Inbox = of })
	got := decoded[api.InboxResult](t, h.do(t, http.MethodPost, "/v1/admin/inbox:discard", `{"command_ids":["a","b"],"reason":"why"}`))
	want := api.InboxResult{Handled: []api.HandledInboxCommand{
		{CommandID: "a", Outcome: api.InboxOutcomeDiscarded}, {CommandID: "b", Outcome: api.InboxOutcomeAbsent},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := decoded[api.InboxResult](t, h.do(t, http.MethodPost, "/v1/admin/inbox:retry", `{"all":true}`)); !got.More {
		t.Errorf("%+v", got)
	}
	if diff := cmp.Diff([]string{"discard [a b] why", "retry []"}, of.asked); diff != "" {
		t.Error(diff)
	}
	for _, request := range []string{
		"retry {}", `retry {"all":false}`, `retry {"command_ids":[]}`, `retry {"all":true,"command_ids":["a"]}`,
		`discard {"reason":"why"}`, `discard {"all":true}`, `discard {"all":true,"reason":""}`,
	} {
		verb, body, _ := strings.Cut(request, " ")
		if got := h.do(t, http.MethodPost, "/v1/admin/inbox:"+verb, body); got.Status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", request, got.Status, got.Body)
		}
	}
}
