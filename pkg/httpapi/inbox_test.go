package httpapi_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/inbox"
)

// inboxOf is an inbox in memory.
type inboxOf struct {
	listed []inbox.Listed
	asked  []string
	err    error
}

func newInbox(ids ...string) *inboxOf {
	made := &inboxOf{}
	for _, id := range ids {
		made.listed = append(made.listed, inbox.Listed{
			State: inbox.Refused,
			Command: inbox.Command{
				ID: id, TenantID: "t", Body: []byte(`{"tenant_id": "t"}`), SubmittedBy: "shop", SubmittedAt: inboxTime, Tries: 1,
			},
			RefusedAt: inboxTime.Add(time.Second), Code: apierror.InvalidEnvelope, Detail: "/mode is odd.",
			Errors: []apierror.Violation{{Pointer: "/mode", Message: "is odd"}},
		})
	}
	return made
}

func (i *inboxOf) List(_ context.Context, state inbox.State, limit int, after string) ([]inbox.Listed, string, error) {
	if after == "bad" {
		return nil, "", apierror.Newf(apierror.InvalidEnvelope, "The cursor is bad.")
	}
	if i.err != nil || after != "" {
		return nil, "", i.err
	}
	page := slices.DeleteFunc(slices.Clone(i.listed), func(l inbox.Listed) bool { return l.State != state })
	if limit < len(page) {
		return page[:limit], "rest", nil
	}
	return page, "", nil
}

func (i *inboxOf) Survey(context.Context) (inbox.Survey, error) {
	return inbox.Survey{Refused: len(i.listed), OldestRefused: inboxTime}, nil
}

// inboxTime is when the commands of inboxOf were submitted.
var inboxTime = time.Date(2026, 1, 27, 10, 2, 0, 0, time.UTC)

func (i *inboxOf) Retry(_ context.Context, ids []string) ([]inbox.Handled, bool, error) {
	i.asked = append(i.asked, fmt.Sprint("retry ", ids))
	return i.handled(ids, inbox.Retried)
}

func (i *inboxOf) Discard(_ context.Context, ids []string, state inbox.State, reason string) ([]inbox.Handled, bool, error) {
	i.asked = append(i.asked, fmt.Sprint("discard ", ids, " ", state, " ", reason))
	return i.handled(ids, inbox.Discarded)
}

func (i *inboxOf) handled(ids []string, outcome inbox.HandledOutcome) (handled []inbox.Handled, more bool, err error) {
	for _, id := range ids {
		handled = append(handled, inbox.Handled{ID: id, Outcome: outcome})
		outcome = inbox.Absent // except for the first
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

var errNoDatabase = &apierror.Error{Code: apierror.StoreUnavailable, RetryAfter: time.Second}

func TestInbox_IsShownAndPaged(t *testing.T) {
	t.Parallel()
	of := newInbox("c-1", "c-2")
	of.listed[0].Body = []byte("x" + strings.Repeat("ä", 20<<10))
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
		CommandID: "c-2", TenantID: "t", SubmittedBy: "shop", SubmittedAt: api.NewTime(of.listed[1].SubmittedAt),
		State: api.InboxStateRefused, Tries: 1, RefusedAt: api.NewTime(of.listed[1].RefusedAt), Code: "invalid_envelope", Detail: "/mode is odd.",
		Errors: []apierror.Violation{{Pointer: "/mode", Message: "is odd"}}, Body: `{"tenant_id": "t"}`,
	}
	if diff := cmp.Diff(want, all.Commands[1]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(api.InboxCounts{Refused: 2, OldestRefusedAt: api.NewTime(inboxTime)}, all.Counts); diff != "" {
		t.Error(diff)
	}
}

func TestInbox_ShowsWaitingCommands(t *testing.T) {
	t.Parallel()
	of := newInbox("c-1", "c-2", "c-3")
	for i := range 2 {
		one := &of.listed[i]
		*one = inbox.Listed{State: inbox.Waiting, Command: one.Command, DueAt: inboxTime.Add(time.Minute)}
	}
	of.listed[1].Code, of.listed[1].Detail, of.listed[1].DiscardReason = apierror.TenantLimit, "Later.", "a mistake"
	h := newHarness(t, func(c *httpapi.Config) { c.Inbox = of })
	got := decoded[api.InboxPage](t, h.do(t, http.MethodGet, "/v1/admin/inbox?state=waiting", ""))
	fresh := api.InboxCommand{
		CommandID: "c-1", TenantID: "t", State: api.InboxStateWaiting, SubmittedBy: "shop", SubmittedAt: api.NewTime(inboxTime), Tries: 1,
		DueAt: api.NewTime(inboxTime.Add(time.Minute)), Body: `{"tenant_id": "t"}`,
	}
	tried := fresh
	tried.CommandID, tried.Code, tried.Detail, tried.DiscardReason = "c-2", "tenant_limit", "Later.", "a mistake"
	if diff := cmp.Diff([]api.InboxCommand{fresh, tried}, got.Commands); diff != "" {
		t.Error(diff)
	}
	if got := h.do(t, http.MethodGet, "/v1/admin/inbox?state=accepted", ""); got.Status != http.StatusBadRequest {
		t.Errorf("%d %s", got.Status, got.Body)
	}
}

// TestOverview_CountsTheInbox has a server with an inbox, and one without.
func TestOverview_CountsTheInbox(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(c *httpapi.Config) {
		c.InboxSurvey = func() inbox.Survey { return inbox.Survey{Waiting: 3, OldestWaiting: inboxTime} }
	})
	got := decoded[api.Overview](t, h.do(t, http.MethodGet, "/v1/admin/overview", ""))
	if diff := cmp.Diff(&api.InboxCounts{Waiting: 3, OldestWaitingAt: api.NewTime(inboxTime)}, got.Inbox); diff != "" {
		t.Error(diff)
	}
	without := newHarness(t)
	if got := decoded[api.Overview](t, without.do(t, http.MethodGet, "/v1/admin/overview", "")); got.Inbox != nil {
		t.Errorf("%+v", got.Inbox)
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
	h.do(t, http.MethodPost, "/v1/admin/inbox:discard", `{"all":true,"state":"waiting","reason":"why"}`)
	if diff := cmp.Diff([]string{"discard [a b] refused why", "retry []", "discard [] waiting why"}, of.asked); diff != "" {
		t.Error(diff)
	}
	for _, request := range []string{
		"retry {}", `retry {"all":false}`, `retry {"command_ids":[]}`, `retry {"all":true,"command_ids":["a"]}`,
		`discard {"reason":"why"}`, `discard {"all":true}`, `discard {"all":true,"reason":""}`,
		`discard {"all":true,"reason":"why","state":"accepted"}`, `discard {"command_ids":["a"],"reason":"why","state":"waiting"}`,
	} {
		verb, body, _ := strings.Cut(request, " ")
		if got := h.do(t, http.MethodPost, "/v1/admin/inbox:"+verb, body); got.Status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", request, got.Status, got.Body)
		}
	}
}
